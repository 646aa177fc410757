"""Clients from folders of images, which are read whenever they are asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.base.clients import Clients
from coterie.base.errors import InputError, explain_imports
from coterie.base.files import check_name, path_exists
from coterie.base.rows import Inputs, Read
from coterie.config.data import Split
from coterie.data.hub import DEFAULT_SPLIT
from coterie.data.lazy import lazy, mark
from coterie.data.tensors import over_clients, split_over

ENDINGS = (
    ".bmp",
    ".gif",
    ".jpeg",
    ".jpg",
    ".pgm",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)


def from_images(
    folder: str | os.PathLike[str],
    *,
    size: int | None = None,
    grey: bool = False,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
) -> Clients:
    """Clients from images in FOLDER/CLIENT/CLASS/*.png, or from FOLDER/CLASS/*.png, which a split deals out (extra `data`).

    Images are decoded whenever a batch asks for them, so that they need not fit in memory, to uint8 [3, height, width].

    Args:
        folder: with a folder for each client, in which there is one for each class; or with one for each class.
        size: pixels to whose square every image is resized (bilinear); None: all have one size already.
        grey: read grey values, uint8 [height, width].
        seed: seed of the split.
        split: how each client's images are split, or how all are dealt to clients (by default 10 with Dirichlet(.5) shares).

    Raises:
        InputError: no images, folders of both kinds, or a file that is no image or has another size, with its name.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import coterie as ct
    >>> from PIL import Image
    >>> folder = tempfile.TemporaryDirectory()
    >>> for client in ("north", "south"):
    ...     for label in ("ill", "well"):
    ...         place = Path(folder.name, client, label)
    ...         place.mkdir(parents=True)
    ...         for number in range(5):
    ...             Image.new("RGB", (8, 8)).save(place / f"{number}.png")
    >>> ct.data.from_images(folder.name).classes
    ('ill', 'well')
    >>> folder.cleanup()
    """
    with explain_imports("image folders need Pillow", "data"):
        import PIL.Image  # noqa: F401
    root = Path(folder)
    if not path_exists(root, Path.is_dir):
        raise InputError(f"there is no folder {root}")
    flat, nested = _images(root, "*/*"), _images(root, "*/*/*")
    if bool(flat) == bool(nested):
        raise InputError(
            f"{root} must hold images either as CLIENT/CLASS/image or as CLASS/image, with endings such as .png or .jpg"
        )
    files = flat or nested
    classes = sorted({file.parent.name for file in files})
    labels = np.array(
        [classes.index(file.parent.name) for file in files], dtype=np.int64
    )
    mode = "L" if grey else "RGB"
    marked = mark(
        [str(size), mode, *(str(file.relative_to(root)) for file in files)], files
    )
    inputs = lazy(len(files), lambda: _reader(files, size, mode), marked)
    labelling: dict[str, Any] = {"name": root.resolve().name, "classes": classes}
    if flat:
        return split_over(
            inputs, labels, Split.parse(split, **DEFAULT_SPLIT), seed=seed, **labelling
        )
    names = np.array([file.parent.parent.name for file in files])
    lists = {str(name): np.flatnonzero(names == name) for name in np.unique(names)}
    rule = Split.parse(split, natural="a folder per client")
    return over_clients(
        inputs, torch.from_numpy(labels), lists, rule, seed=seed, **labelling
    )


def _images(root: Path, pattern: str) -> list[Path]:
    files = sorted(
        file for file in root.glob(pattern) if file.suffix.lower() in ENDINGS
    )
    for file in files:
        check_name(file)
    return files


def _reader(files: list[Path], size: int | None, mode: str) -> Read:
    def read(numbers: NDArray[np.int64]) -> Inputs:
        arrays = [_decode(files[i], size, mode) for i in numbers]
        for i, array in zip(numbers, arrays, strict=True):
            if array.shape != arrays[0].shape:
                raise InputError(
                    f"{files[i]} has {array.shape[0]} x {array.shape[1]} pixels, {files[numbers[0]].name} has "
                    f"{arrays[0].shape[0]} x {arrays[0].shape[1]}; give size=... to make all alike"
                )
        stacked = torch.from_numpy(np.stack(arrays))
        if stacked.ndim < 4:
            return stacked
        return stacked.movedim(-1, 1).contiguous()

    return read


def _decode(file: Path, size: int | None, mode: str) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(file) as image:
            shown = image.convert(mode)
            if size is not None:
                shown = shown.resize((size, size), Image.Resampling.BILINEAR)
            return np.array(shown)
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{file} cannot be read as an image: {error}") from error
