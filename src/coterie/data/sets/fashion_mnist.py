"""Fashion-MNIST from IDX files: 60,000 grey images of 28 x 28 over clients, 10,000 more for the server."""

from __future__ import annotations

import functools
import gzip
import math
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.rows import Part
from coterie.config.data import DEFAULT_PARTS, Split
from coterie.config.rules import COUNT, SIZE
from coterie.data.sets import Dataset
from coterie.data.tensors import split_over

CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
DEFAULT_SPLIT: Mapping[str, Any] = {"kind": "dirichlet", "alpha": 0.5, "clients": 100}
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_FIRST = "train-images-idx3-ubyte"

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]


def fashion_mnist(
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    rows: int | None = None,
    server: int = 0,
) -> Clients:
    """Ten classes, images uint8 [rows, 28, 28]; by default 100 clients with Dirichlet(.5) shares of classes.

    Clients share one copy of the 60,000 training images and hold row numbers only. Each splits its own rows into train,
    validation and test; the 10,000 test images go to no client, unless `test` of the [split] table asks for them.

    Args:
        seed: seed of the split.
        split: the [split] table, on top of `DEFAULT_SPLIT`.
        folder: with the four IDX files, plain or .gz; None looks into COTERIE_DATA and Debian's folder.
        rows: only the first so many images.
        server: so many of the 10,000 test images for the server.
    """
    rule, where = Split.parse(split, **DEFAULT_SPLIT), _find(folder)
    pairs = {
        part: functools.partial(read_pair, where, name, 10)
        for part, name in (("train", "train"), ("test", "t10k"))
    }
    return over_idx(
        pairs,
        rule,
        seed=seed,
        rows=rows,
        server=server,
        name="fashion-mnist",
        classes=CLASSES,
    )


def over_idx(
    pairs: Mapping[str, Callable[[], Images]],
    rule: Split,
    *,
    seed: int,
    rows: int | None,
    server: int,
    **about: Any,
) -> Clients:
    """Clients with the training images of `pairs`, and the server with the first of the test images.

    Args:
        pairs: what reads the images and labels of `train` and `test`.
        rule: the split.
        seed: seed of the split.
        rows: only the first so many images.
        server: so many test images for the server; the others are the standard test set.
        about: `name` and `classes` of the clients.
    """
    images, labels = pairs["train"]()
    if rows is not None and (not SIZE.test(rows) or rows > len(labels)):
        raise InputError(f"rows = {rows!r} must lie between 1 and {len(labels)}")
    images, labels = images[:rows], labels[:rows]
    server_part = standard = None
    if server or rule.test != "own":
        extra_images, extra_labels = pairs["test"]()
        if not COUNT.test(server) or server > len(extra_labels):
            raise InputError(
                f"server = {server!r} must lie between 0 and {len(extra_labels)}"
            )
        if server:
            server_part = Part(
                torch.from_numpy(extra_images[:server]),
                torch.from_numpy(extra_labels[:server]),
            )
        standard = (torch.from_numpy(extra_images[server:]), extra_labels[server:])
    return split_over(
        torch.from_numpy(images),
        labels,
        rule,
        seed=seed,
        server=server_part,
        standard=standard,
        **about,
    )


def _find(folder: str | Path | None) -> Path:
    root = os.environ.get("COTERIE_DATA")
    if folder is not None:
        searched = f"the folder {folder}"
        places = [Path(folder), Path(folder) / "fashion-mnist"]
    elif root:
        searched = "COTERIE_DATA"
        places = [Path(root), Path(root) / "fashion-mnist", DEBIAN]
    else:
        searched = "COTERIE_DATA (not set)"
        places = [DEBIAN]
    for place in places:
        if (place / _FIRST).is_file() or (place / f"{_FIRST}.gz").is_file():
            return place
    raise InputError(
        f"Fashion-MNIST was not found in {searched}; give a folder with {_FIRST}.gz and its three siblings, set the "
        f"environment variable COTERIE_DATA to it, or fill {DEBIAN} by: apt install dataset-fashion-mnist"
    )


def read_pair(folder: Path, part: str, classes: int) -> Images:
    """Images [n, 28, 28] and labels [n] below `classes` of `train` or `t10k`."""
    images = read_idx(_file(folder, f"{part}-images-idx3-ubyte"))
    labels = read_idx(_file(folder, f"{part}-labels-idx1-ubyte"))
    if images.shape[1:] != (28, 28):
        raise InputError(
            f"{folder}: {part} images are {list(images.shape[1:])}, not 28 x 28"
        )
    if labels.shape != images.shape[:1]:
        raise InputError(
            f"{folder}: {len(images)} {part} images but labels of shape {labels.shape}"
        )
    in_range = len(labels) > 0 and int(labels.max()) < classes
    if not in_range:
        raise InputError(
            f"{folder}: {part} labels must lie between 0 and {classes - 1}"
        )
    return images, labels.astype(np.int64)


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise InputError(
        f"{folder} has no {name} or {name}.gz; copy all four files of the data set there"
    )


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """The array of bytes in an IDX file, plain or gzip: magic 0 0 8 ndim, ndim big-endian uint32 sizes, the bytes.

    Raises `InputError` for another format, another type than bytes, and files that are cut off or too long.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}); copy it again") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or not (1 <= raw[3] <= 4):
        raise InputError(
            f"{path} is not an IDX file of bytes: it starts with {raw[:4].hex(' ') or 'nothing'}, not with 00 00 08; copy it again"
        )
    start = 4 + 4 * raw[3]
    shape = tuple(
        int(n)
        for n in np.frombuffer(raw[4:start].ljust(4 * raw[3], b"\x00"), dtype=">u4")
    )
    have, want = len(raw) - start, math.prod(shape)
    if have != want:
        raise InputError(
            f"{path} holds {have} bytes of data but its header says {want} {list(shape)}; copy it again"
        )
    return np.frombuffer(bytearray(raw[start:]), dtype=np.uint8).reshape(
        shape
    )  # writable, as torch wants it


DATASET = Dataset(
    "Fashion-MNIST: 60,000 grey images of 28 x 28, read from your disk",
    "100, Dirichlet(.5) shares of the classes",
    "10 classes",
    "MIT",
    fashion_mnist,
    {
        "folder": None,
        "rows": None,
        "server": 0,
        "split": {**DEFAULT_SPLIT, "parts": dict(DEFAULT_PARTS)},
    },
)
