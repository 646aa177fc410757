"""MedMNIST: medical images of 28 x 28 from .npz files, one client for each file, or one file dealt by a split.

Source: J. Yang et al., "MedMNIST v2: A large-scale lightweight benchmark for 2D and 3D biomedical image
classification", Scientific Data 2023, https://medmnist.com. Licence: CC BY 4.0 (DermaMNIST: CC BY-NC 4.0). It is read
from your disk and never ships.

Files are NumPy archives with the official keys `train_images`, `val_images`, `test_images` and the labels beside
them. With one set its training rows are dealt by the split, and its test set is that of `[split] test`; with several,
each is a client with its official parts, as in the MeritFed papers, and a class is a number that means something else
in each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.config.data import DEFAULT_PARTS, Split
from coterie.data.sets import Dataset, find_folder
from coterie.data.tensors import from_tensors, split_over

DEFAULT_SPLIT: Mapping[str, Any] = {"kind": "dirichlet", "alpha": 0.5, "clients": 10}
_PARTS = {"train": "train", "validation": "val", "test": "test"}

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]


def medmnist(
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    sets: Sequence[str] = ("pneumoniamnist",),
) -> Clients:
    """Images uint8 [rows, 28, 28], or [rows, 3, 28, 28] in colour, and one class per row.

    Args:
        seed: seed of the split.
        split: the [split] table, on top of `DEFAULT_SPLIT`, for one set; several have their own parts.
        folder: with the .npz files; None looks below COTERIE_DATA.
        sets: names of files without .npz.

    Raises:
        InputError: missing or broken files, or sets whose images differ in shape.
    """
    if isinstance(sets, str):
        sets = [sets]
    names = list(sets)
    if not names or not all(isinstance(n, str) for n in names):
        raise InputError(f"medmnist: sets = {sets!r} must be a list of names")
    where = find_folder("medmnist", tuple(f"{name}.npz" for name in names), folder)
    if len(names) == 1:
        rule = Split.parse(split, **DEFAULT_SPLIT)
        parts = read_npz(where / f"{names[0]}.npz")
        (images, labels), (standard, classes) = parts["train"], parts["test"]
        return split_over(
            torch.from_numpy(images),
            labels,
            rule,
            seed=seed,
            name=names[0],
            standard=(torch.from_numpy(standard), classes),
        )
    Split.parse(split, natural="medmnist with several sets")
    clients = {name: read_npz(where / f"{name}.npz") for name in names}
    shapes = {name: parts["train"][0].shape[1:] for name, parts in clients.items()}
    if len(set(shapes.values())) != 1:
        raise InputError(
            f"the images of these sets differ in shape: {shapes}; take sets of one shape"
        )
    tensors: dict[str, dict[str, tuple[torch.Tensor, torch.Tensor]]] = {}
    for name, parts in clients.items():
        tensors[name] = {}
        for part, (images, labels) in parts.items():
            pair = torch.from_numpy(images), torch.from_numpy(labels)
            tensors[name][part] = pair
    return from_tensors(tensors, name="medmnist")


def read_npz(path: Path) -> dict[str, Images]:
    """Images and classes of train, validation and test. Raises `InputError` for another format."""
    if not path.is_file():
        raise InputError(f"{path.parent} has no {path.name}; copy it there too")
    try:
        with np.load(path, allow_pickle=False) as archive:
            raw = {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}); copy it again"
        ) from error
    return {part: _images(path, raw, key) for part, key in _PARTS.items()}


def _images(path: Path, raw: Mapping[str, NDArray[Any]], key: str) -> Images:
    if f"{key}_images" not in raw or f"{key}_labels" not in raw:
        raise InputError(
            f"{path} has no {key}_images or no {key}_labels; copy it again"
        )
    images, labels = raw[f"{key}_images"], raw[f"{key}_labels"]
    bytes_of_images = images.dtype == np.uint8 and images.shape[1:] in (
        (28, 28),
        (28, 28, 3),
    )
    if not bytes_of_images:
        raise InputError(
            f"{path}: {key}_images are {images.dtype} {list(images.shape)}, not bytes of 28 x 28"
        )
    single = labels.shape in ((len(images),), (len(images), 1)) and np.issubdtype(
        labels.dtype, np.integer
    )
    if not single:
        raise InputError(
            f"{path}: {key}_labels have the shape {list(labels.shape)}; only sets with one class per image can be read"
        )
    if images.ndim == 4:  # files have the colours last, torch before height and width
        images = images.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images), labels.reshape(-1).astype(np.int64)


DATASET = Dataset(
    "MedMNIST: medical images of 28 x 28, read from your disk",
    "one for each of several sets, or 10 with Dirichlet(.5) shares of the classes of one",
    "the classes of the sets",
    "CC BY 4.0 (DermaMNIST: CC BY-NC 4.0)",
    medmnist,
    {
        "folder": None,
        "sets": ["pneumoniamnist"],
        "split": {**DEFAULT_SPLIT, "parts": dict(DEFAULT_PARTS)},
    },
)
