"""CIFAR-10 from Parquet with encoded images (Hugging Face layout): 50,000 over clients, 10,000 more for the server.

The files are `train.parquet` and `test.parquet` (or `train-00000-of-00001.parquet` and so on, also in a subfolder `plain_text`),
with an image column `img` or `image` of structs (bytes, path) and whole numbers in `label`. Where there is no local copy and the extra
`hub` is installed, the set comes from the Hugging Face hub or its cache. Only the images that some client has are decoded.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError, explain_imports
from coterie.base.rows import Part
from coterie.config.data import DEFAULT_PARTS, Split
from coterie.config.rules import COUNT, SIZE
from coterie.data import hub
from coterie.data.sets import Dataset
from coterie.data.splits import subset
from coterie.data.tensors import split_over

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
DEFAULT_SPLIT: Mapping[str, Any] = {"kind": "dirichlet", "alpha": 0.5, "clients": 10}
_CURE = (
    "give a folder with train.parquet and test.parquet in the Hugging Face layout, or set the environment variable "
    "COTERIE_DATA to it"
)

Index = NDArray[np.int64]
Source = tuple[Index, Callable[[Index], Tensor]]
"""All labels of `train` or `test`, and a function that reads the images of the given rows."""


class ImageSet(NamedTuple):
    """A data set of this format.

    Attributes:
        name: what a user types, a subfolder of its files, and its name on the hub after the owner.
        title: its name in sentences.
        classes: their names.
        label: column of the labels.
        subfolder: where the files of the hub lie in the set's own folder.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    label: str
    subfolder: str

    @property
    def on_the_hub(self) -> str:
        """Owner and name."""
        return f"uoft-cs/{self.name}"


CIFAR10 = ImageSet("cifar10", "CIFAR-10", CLASSES, "label", "plain_text")


def cifar10(
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    rows: int | None = None,
    server: int = 0,
) -> Clients:
    """Ten classes, images uint8 [rows, 3, 32, 32]; by default 10 clients with Dirichlet(.5) shares of classes.

    Clients share one copy of the training images that they use. Each splits its own rows into train, validation and
    test; the 10,000 test images go to no client, unless `test` of the [split] table asks for them.

    Args:
        seed: seed of the split and of `rows`.
        split: the [split] table, on top of `DEFAULT_SPLIT`.
        folder: with the Parquet files, itself or in `cifar10`; None looks into COTERIE_DATA, then asks the hub.
        rows: only so many images, every class in its share.
        server: so many of the 10,000 test images for the server, every class in its share.
    """
    return load_images(
        CIFAR10, seed=seed, split=split, folder=folder, rows=rows, server=server
    )


def load_images(
    images: ImageSet,
    *,
    seed: int,
    split: Split | Mapping[str, Any] | None,
    folder: str | Path | None,
    rows: int | None,
    server: int,
) -> Clients:
    """The clients of a data set of this format. Arguments as for `cifar10`."""
    rule = Split.parse(split, **DEFAULT_SPLIT)
    where = _find(images, folder)
    labels, read = _source(images, where, "train")
    if rows is not None and (not SIZE.test(rows) or rows > len(labels)):
        raise InputError(f"rows = {rows!r} must lie between 1 and {len(labels)}")
    if not COUNT.test(server):
        raise InputError(f"server = {server!r} must be a whole number of at least 0")
    split_seed = rule.seed_for(seed)
    chosen = np.arange(len(labels))
    if rows is not None:
        chosen = subset(labels, rows, seed=split_seed)
    server_part = standard = None
    if server or rule.test != "own":
        test_labels, read_test = _source(images, where, "test")
        if server > len(test_labels):
            raise InputError(
                f"server = {server} must lie between 0 and {len(test_labels)}"
            )
        at_server = np.zeros(0, dtype=np.int64)
        if server:
            at_server = subset(test_labels, server, seed=split_seed)
            server_labels = torch.from_numpy(test_labels[at_server])
            server_part = Part(read_test(at_server), server_labels)
        remaining = np.setdiff1d(np.arange(len(test_labels)), at_server)
        standard = (lambda index: read_test(remaining[index]), test_labels[remaining])
    return split_over(
        lambda index: read(chosen[index]),
        labels[chosen],
        rule,
        seed=seed,
        name=images.name,
        classes=images.classes,
        server=server_part,
        standard=standard,
    )


def _find(images: ImageSet, folder: str | Path | None) -> Path | None:
    """The folder with the files; None for the hub."""
    root, searched = os.environ.get("COTERIE_DATA"), _variable()
    if folder is not None:
        root, searched = str(folder), f"the folder {folder}"
    if root:
        both = f"{images.name}/{images.subfolder}"
        for subfolder in ("", images.name, images.subfolder, both):
            place = Path(root, subfolder)
            if _files(place, "train"):
                return place
    if folder is None and hub.has_datasets():
        return None
    hub_cure = 'or let the hub send it: pip install "coterie[hub]"'
    raise InputError(f"{images.title} was not found in {searched}; {_CURE}, {hub_cure}")


def _variable() -> str:
    value = os.environ.get("COTERIE_DATA")
    return f"COTERIE_DATA ({value or 'not set'})"


def _files(folder: Path, part: str) -> list[Path]:
    return sorted(folder.glob(f"{part}.parquet")) or sorted(
        folder.glob(f"{part}-*.parquet")
    )


def _source(images: ImageSet, folder: Path | None, part: str) -> Source:
    if folder is None:
        try:
            columns = hub.columns(
                hub.open_hub(images.on_the_hub, part=part), "img", images.label
            )
        except InputError as error:
            raise InputError(
                f"{images.title} was not found in {_variable()}; {_CURE} (the hub was tried: {error})"
            ) from error
        return columns.labels, columns.read_tensor
    files = _files(folder, part)
    if not files:
        raise InputError(f"{folder} has no {part}.parquet; copy it there too")
    return _parquet(images, files)


def _parquet(images: ImageSet, files: list[Path]) -> Source:
    with explain_imports("Parquet files need pyarrow", "data"):
        import pyarrow
        import pyarrow.parquet as parquet
    name = str(files[0])
    if len(files) > 1:
        name += f" and {len(files) - 1} more"
    try:
        columns = parquet.read_schema(files[0]).names
        image = next((c for c in ("img", "image") if c in columns), "")
        if not image or images.label not in columns:
            raise InputError(
                f"{name} needs the columns img (or image) and {images.label}, but has {', '.join(columns)}"
            )
        table = pyarrow.concat_tables(
            [parquet.read_table(f, columns=[image, images.label]) for f in files]
        )
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{name} cannot be read ({error}); copy it again") from error
    kind = table.schema.field(image).type
    if not pyarrow.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        raise InputError(
            f"{name}: column {image!r} is {kind}, not encoded images (a struct with bytes); save it with datasets.Image"
        )
    label = table.schema.field(images.label).type
    integers = pyarrow.types.is_integer(label) and table[images.label].null_count == 0
    if not integers:
        raise InputError(
            f"{name}: column {images.label!r} must hold whole numbers without gaps, not {label}"
        )
    labels = table[images.label].to_numpy().astype(np.int64)
    if (
        len(labels) <= 0
        or int(labels.min()) < 0
        or int(labels.max()) >= len(images.classes)
    ):
        raise InputError(
            f"{name}: labels must lie between 0 and {len(images.classes) - 1}"
        )
    encoded = table[image].combine_chunks().field("bytes")
    return labels, lambda index: _decode(
        encoded.take(pyarrow.array(index)).to_pylist(), index, str(name)
    )


def _decode(encoded: list[bytes | None], index: Index, name: str) -> Tensor:
    """Images as uint8 [rows, 3, 32, 32]."""
    with explain_imports("encoded images need pillow", "data"):
        from PIL import Image, UnidentifiedImageError
    out = np.empty((len(encoded), 3, 32, 32), dtype=np.uint8)
    for i, (row, raw) in enumerate(zip(index, encoded, strict=True)):
        try:
            image = Image.open(io.BytesIO(raw or b"")).convert("RGB")
        except (UnidentifiedImageError, OSError) as error:
            raise InputError(
                f"{name}: the image of row {row} cannot be decoded; copy the file again"
            ) from error
        if image.size != (32, 32):
            raise InputError(
                f"{name}: the image of row {row} is {image.size}, not 32 x 32"
            )
        out[i] = np.asarray(image).transpose(2, 0, 1)
    return torch.from_numpy(out)


DATASET = Dataset(
    "CIFAR-10: 60,000 colour images of 32 x 32, from Parquet or the hub",
    "10, Dirichlet(.5) shares of the classes",
    "10 classes",
    "none stated; free to use with citation",
    cifar10,
    {
        "folder": None,
        "rows": None,
        "server": 0,
        "split": {**DEFAULT_SPLIT, "parts": dict(DEFAULT_PARTS)},
    },
)
