"""A folder with one npz file of arrays per client: images, series, anything that is not a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.base.clients import Clients
from coterie.base.errors import InputError, require
from coterie.data.tables.read import read_arrays
from coterie.data.tensors import from_tensors

__all__ = ["from_array_files", "is_array_file"]

_LABELS = ("label", "labels", "target", "y")


def is_array_file(path: Path, said: bool | None = None) -> bool:
    """Whether `path` is an npz of arrays: as `said`, or if one has three or more dimensions, which no table has.

    Raises `InputError` where nothing is said of whole numbers [rows, columns], which may be tokens as well as columns.
    """
    if path.suffix.lower() != ".npz":
        require(not said, f"{path} is not an npz file, so arrays = true does not apply; drop it")
        return False
    if said is not None:
        return said
    arrays = read_arrays(path)
    if any(array.ndim > 2 for array in arrays.values()):
        return True
    unclear = next((k for k, array in arrays.items() if array.ndim == 2 and array.dtype.kind in "iu"), None)
    require(
        unclear is None,
        f"{path}: array {unclear!r} holds whole numbers [rows, columns], which may be sequences or columns; "
        "say arrays = true, or arrays = false for a table",
    )
    return False


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
