"""Own loading and own splits, for one figure of each paper: nothing of coterie is used here.

Images come from the IDX files of Fashion-MNIST through numpy. Shards are dealt as the papers say: 500 images, sorted by label
(VaRSeL, Table 2), and for ISFL (Fig. 6) with a share of each shard drawn from all images. The samples of MeritFed's mean
estimation are drawn in plateaus.py, and the means of MaxFL's three clients (Fig. 6) in landscape.py.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PREFIX = "own-"
"""An experiment's name begins like this where its rows are loaded and split here."""
FOLDERS = (Path(os.environ.get("COTERIE_DATA", ".")) / "fashion-mnist", Path("/usr/share/datasets/fashion-mnist"))
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Images [n, 28, 28] of bytes and labels [n]."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Client:
    """A client's rows for training, and those that test it."""

    train: Part
    test: Part


@dataclass(frozen=True)
class Dealt:
    """Clients by name or number, and the server's rows."""

    members: Mapping[str, Client]
    server: Part

    @property
    def names(self) -> list[str]:
        """In order."""
        return list(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Client]:
        return iter(self.members.values())

    def __getitem__(self, which: int | str) -> Client:
        return self.members[self.names[which] if isinstance(which, int) else which]


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes: three bytes, the number of dimensions, each as four bytes, then the values."""
    data = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(data, ">u4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape).copy()


def cut_shards(labels: NDArray[Any], size: int, nr: float, random: np.random.Generator) -> Numbers:
    """Return row numbers [shards, size]: rows sorted by label, but of each shard a share 1 - nr drawn from all of them."""
    anywhere, count = round((1 - nr) * size), len(labels) // size
    order = random.permutation(len(labels))
    drawn, left = order[: count * anywhere], order[count * anywhere : count * size]
    left = left[np.argsort(labels[left], kind="stable")]
    return np.hstack([drawn.reshape(count, anywhere), left.reshape(count, size - anywhere)])


def draw_mix(mine: NDArray[Any], pool: NDArray[Any], random: np.random.Generator) -> Numbers:
    """Return as many row numbers of a pool of labels as can have the shares of classes of a client's labels."""
    classes, counts = np.unique(mine, return_counts=True)
    scale = min((pool == label).sum() / count for label, count in zip(classes, counts, strict=True))
    return np.concatenate([
        random.permutation(np.flatnonzero(pool == label))[: round(scale * count)]
        for label, count in zip(classes, counts, strict=True)
    ])  # fmt: skip


def deal(tables: Mapping[str, Any], seed: int) -> Dealt:
    """Return the clients of an experiment on shards of Fashion-MNIST."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[-1])
    (images, labels), (others, truth) = (
        (read_idx(folder / f"{which}-images-idx3-ubyte.gz"), read_idx(folder / f"{which}-labels-idx1-ubyte.gz"))
        for which in ("train", "t10k")
    )
    data, split, random = tables["data"], tables["split"], np.random.default_rng([seed, 2026])
    labels, server = labels[: data.get("rows")], data.get("server", 0)
    shards = cut_shards(labels, split["shard_size"], split.get("nr", 1.0), random)
    number, each = split["clients"], split.get("shards_per_client", 2)
    hands = random.permutation(len(shards))[: number * each].reshape(number, each)

    def part(x: NDArray[Any], y: NDArray[Any], rows: Any) -> Part:
        return Part(torch.from_numpy(x[rows]), torch.from_numpy(y[rows].astype(np.int64)))

    def client(rows: Numbers) -> Client:
        mixed = split["test"] == "label-mix"
        tested = server + draw_mix(labels[rows], truth[server:], random) if mixed else slice(server, None)
        return Client(part(images, labels, rows), part(others, truth, tested))

    members = {f"client-{i:02d}": client(shards[hand].ravel()) for i, hand in enumerate(hands)}
    return Dealt(members, part(others, truth, slice(server)))
