"""Named data sets, one file each; here what they share."""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.files import path_exists

if TYPE_CHECKING:
    from coterie.base.clients import Clients


_TOKENS = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[^\w\s]")


@dataclass(frozen=True)
class Dataset:
    """One entry of `coterie data`.

    Attributes:
        summary: one line.
        clients: how many, and who they are.
        task: what is predicted.
        licence: licence of the data.
        build: makes the clients; its keyword arguments are the options.
        defaults: defaults of the options and of the split, for `coterie show NAME`.

    >>> import coterie as ct
    >>> import torch
    >>> def coins(*, seed=0, split=None):
    ...     tosses = torch.arange(60) % 2
    ...     return ct.data.from_tensors({"a": (torch.ones(60, 1), tosses)}, seed=seed, split=split)
    >>> coins = Dataset("tosses of a coin", "1", "2 classes", "none needed", coins)
    >>> coins.build(seed=1).names
    ('a',)
    """

    summary: str
    clients: str
    task: str
    licence: str
    build: Callable[..., Clients] = field(repr=False)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def details(self) -> str:
        """The text for `coterie show NAME`: where the data is from and how its traps are treated."""
        return sys.modules[self.build.__module__].__doc__ or ""


def find_folder(name: str, files: tuple[str, ...], folder: str | Path | None) -> Path:
    """The folder that has one of `files`: `folder` itself or its subfolder `name`; None looks below COTERIE_DATA.

    Raises `InputError` that says where it looked and what to do.
    """
    variable = os.environ.get("COTERIE_DATA")
    place, searched = variable, f"COTERIE_DATA ({variable or 'not set'})"
    if folder is not None:
        place, searched = str(folder), f"the folder {folder}"
    candidates = []
    if place:
        candidates = [Path(place), Path(place) / name]
    for candidate in candidates:
        if path_exists(candidate) and any(any(candidate.glob(file)) for file in files):
            return candidate
    raise InputError(
        f"{name} was not found in {searched}; set the environment variable COTERIE_DATA to a folder with {name}/{files[0]}, or give "
        "folder"
    )


def hash_words(texts: Sequence[str], size: int = 2048) -> Tensor:
    """Counts of words and signs of each text in `size` buckets, scaled to length 1: float32 [texts, size].

    A word's bucket is its CRC-32 modulo `size`, the same on every machine. A text without a word is 0.

    >>> round(hash_words(["so good , so good"], 8).square().sum().item(), 6)
    1.0
    """
    counts = np.zeros((len(texts), size), dtype=np.float32)
    for row, text in enumerate(texts):
        for token in _TOKENS.findall(text.lower()):
            counts[row, zlib.crc32(token.encode()) % size] += 1
    lengths = np.sqrt((counts**2).sum(axis=1, keepdims=True))
    return torch.from_numpy(counts / np.maximum(lengths, 1e-12))
