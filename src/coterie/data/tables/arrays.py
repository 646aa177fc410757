"""A folder with one npz file of arrays per client: images, series, anything that is not a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import InputError, require
from coterie.core.rows import Clients
from coterie.data.tables.read import read_arrays
from coterie.data.tensors import from_tensors

__all__ = ["from_array_files", "is_array_file"]

_LABELS = ("label", "labels", "target", "y")


def is_array_file(path: Path) -> bool:
    """Whether `path` is an npz with an array of three or more dimensions, which no table has."""
    return path.suffix.lower() == ".npz" and any(array.ndim > 2 for array in read_arrays(path).values())


def from_array_files(
    files: Mapping[str, Path],
    *,
    label: str | None,
    seed: int,
    split: Mapping[str, Any] | None,
    name: str,
    classes: Sequence[str],
) -> Clients:
    """One client per npz file with an array `label` and one or more arrays of inputs, used as they are."""
    clients = {}
    for client, path in files.items():
        require(path.suffix.lower() == ".npz", f"{path} is not an npz file but others in its folder are; use one kind")
        arrays = read_arrays(path)
        key = label or next((n for n in _LABELS if n in arrays), "")
        if key not in arrays:
            raise InputError(f"{path} has no array {key or 'label'!r}; it has {', '.join(arrays)}: name one as label")
        inputs = {k: v for k, v in arrays.items() if k != key}
        require(bool(inputs), f"{path} has labels only; add an array of inputs")
        clients[client] = (next(iter(inputs.values())) if len(inputs) == 1 else inputs, arrays[key])
    return from_tensors(clients, seed=seed, split=split, name=name, classes=classes)
