"""Rows that stay where they are: memory maps, and data sets that are read row by row."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError, require
from coterie.base.rng import Generators, fork_generators
from coterie.base.rows import (
    Inputs,
    LazyInputs,
    Read,
    Source,
    check_plain,
    tensors_by_name,
)
from coterie.data.values import from_array

Numbers = NDArray[np.int64]


def lazy(
    count: int, open: Callable[[], Read], marked: str, used: Numbers | None = None
) -> LazyInputs:
    """The rows `used` (None: all) of a source of `count` rows, unread; `open` and `marked` are `open` and `mark` of a `Source`.

    Raises `InputError` if the first of them is not the same whenever it is read.
    """
    inputs = LazyInputs(Source(count, open, marked), used)
    row = refuse_random_rows(
        lambda: tensors_by_name(inputs.read(slice(0, 1))),
        f"row {inputs.source_numbers()[0]} of the data set",
    )
    for key, value in row.items():
        check_plain(value, f"the data set: {key}")
    return inputs


def refuse_random_rows(
    read: Callable[[], Mapping[str, Tensor]], row: str
) -> Mapping[str, Tensor]:
    """Read a row twice, and return it. Raises `InputError` that begins with `row` if it is drawn at random.

    A transform that changes few rows shows itself by what it draws from the global generators. A row that seeds them itself draws, too,
    but leaves them where it left them before.

    Args:
        read: Reads the row, as tensors by name.
        row: What the error calls it.
    """
    with fork_generators():
        first = read()
        after_first = Generators.now()
        second = read()
        draws = after_first.differ()
    same = all(_equal(value, second[key]) for key, value in first.items())
    if draws or not same:
        raise InputError(
            f"{row} is another one whenever it is read; take random transforms out of the data set and give them to "
            "clients.with_transform"
        )
    return first


def _equal(a: Tensor, b: Tensor) -> bool:
    """Return True for the same shape and numbers; a missing number (NaN) is one, too."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def map_arrays(inputs: Any) -> LazyInputs | None:
    """Memory-mapped arrays, or a dict of arrays of which some are, as inputs that are read when they are asked for; else None.

    Raises `InputError` for arrays of different length.
    """
    arrays: dict[str, Any] = {"inputs": inputs}
    if isinstance(inputs, Mapping):
        arrays = {str(key): array for key, array in inputs.items()}
    files = [file for file in map(_file_behind, arrays.values()) if file is not None]
    if not files:
        return None
    counts = {key: len(array) for key, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise InputError(f"the arrays have different lengths: {counts}")
    forms = [
        f"{key} {np.asarray(array[:0]).dtype} {np.shape(array)}"
        for key, array in arrays.items()
    ]
    opens = {key: _opener(array) for key, array in arrays.items()}
    count = next(iter(counts.values()))
    require(count > 0, "the arrays have no rows")
    return lazy(
        count,
        partial(_open_arrays, opens, isinstance(inputs, Mapping)),
        mark(forms, files),
    )


def _file_behind(value: Any) -> str | None:
    """The file of the map that an array shows a part of."""
    while isinstance(value, np.ndarray):
        if isinstance(value, np.memmap) and value.filename is not None:
            return str(value.filename)
        value = value.base
    return None


def _opener(array: Any) -> Callable[[], Any]:
    """Return what gives a process an array: a map of a whole file is mapped anew, so that it can be sent to another process."""
    memory: Any = None
    if isinstance(array, np.memmap):
        # Typed as an array, but where it maps a whole file it is the map.
        memory = array.base
    if not isinstance(memory, mmap.mmap):
        return lambda: array
    order = "C" if array.flags.c_contiguous else "F"
    return partial(
        np.memmap, array.filename, array.dtype, "r", array.offset, array.shape, order
    )


def _open_arrays(opens: Mapping[str, Callable[[], Any]], by_name: bool) -> Read:
    arrays = {key: np.asarray(opened()) for key, opened in opens.items()}

    def read(numbers: Numbers) -> Inputs:
        tensors = {key: from_array(array[numbers]) for key, array in arrays.items()}
        if not by_name:
            return tensors["inputs"]
        return tensors

    return read


def mark(words: Iterable[str], files: Iterable[str | os.PathLike[str]]) -> str:
    """A short hash of words, and of the names, sizes and modification times of files. Raises `InputError` for a missing file."""
    digest = hashlib.blake2b(digest_size=16)
    for word in words:
        digest.update(f"{word}\n".encode())
    for file in files:
        try:
            status = os.stat(file)
        except OSError as error:
            raise InputError(
                f"the file {os.fspath(file)} of the data set cannot be read: {error.strerror}"
            ) from error
        digest.update(
            f"{Path(file).name} {status.st_size} {status.st_mtime_ns}\n".encode()
        )
    return digest.hexdigest()


def mark_of(
    dataset: Any,
    facts: Iterable[str] = (),
    files: Iterable[str | os.PathLike[str]] = (),
) -> str:
    """The mark of a data set: of its kind and length, what a Hugging Face one says of itself, further words, and files."""
    cached = [
        str(entry["filename"]) for entry in getattr(dataset, "cache_files", None) or ()
    ]
    words = (
        type(dataset).__qualname__,
        str(len(dataset)),
        str(getattr(dataset, "_fingerprint", "")),
    )
    return mark([*words, *facts], [*cached, *files])
