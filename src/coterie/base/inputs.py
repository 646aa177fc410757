"""Inputs of rows: tensors in memory, or rows that are read by number whenever they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError, require

__all__ = [
    "Held",
    "Inputs",
    "LazyInputs",
    "Read",
    "Source",
    "check_plain",
    "joined",
    "named",
    "rows",
    "sample",
    "take",
    "take_rows",
]

Array = NDArray[np.int64]

Inputs = Tensor | dict[str, Tensor]
"""A tensor [rows, ...], or a dict of tensors with a common first dimension."""
Read = Callable[[Array], Inputs]
"""(row numbers [k]) -> the inputs of these rows, [k, ...] in this order."""


class Source:
    """Rows that are read by number, so that they need not fit in memory.

    Args:
        count: number of rows.
        open: function () -> `Read`. Each process calls it once, when it first reads: a file that it opens is not shared over a fork.
        mark: text that tells these rows from others without reading them, such as names, sizes and times of files.
        what: the rows are called in errors.
    """

    def __init__(self, count: int, open: Callable[[], Read], mark: str, what: str = "the data set") -> None:
        self.count, self.mark = count, mark
        self._open, self._what = open, what
        self._opened: tuple[int, Read] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, numbers: Array) -> Inputs:
        """The inputs of these rows. Raises `InputError` that names a row whose values are not finite or of another shape."""
        inputs = self._read(numbers)
        for key, value in named(inputs).items():
            expected = named(self.sample).get(key)
            same = expected is not None and (value.shape[1:], value.dtype) == (expected.shape[1:], expected.dtype)
            if not same or len(value) != len(numbers):
                raise InputError(
                    f"rows {numbers[0]} to {numbers[-1]} of {self._what}: {key} are {value.dtype} of shape {list(value.shape)}; "
                    "every row must have the shape of row 0"
                )
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                bad = int((~torch.isfinite(value)).reshape(len(value), -1).any(1).nonzero()[0])
                raise InputError(
                    f"row {numbers[bad]} of {self._what}: {key} contain NaN or Inf; impute or drop that row first"
                )
        return inputs

    @cached_property
    def sample(self) -> Inputs:
        """The first row, [1, ...]."""
        return self._read(np.zeros(1, dtype=np.int64))

    def _read(self, numbers: Array) -> Inputs:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), self._open()
        return self._opened[1](numbers)


class LazyInputs:
    """Some rows of a `Source`.

    Attributes:
        source: where they are read.
        numbers: int64 [rows], their numbers there; None: all.
    """

    def __init__(self, source: Source, numbers: Array | None = None) -> None:
        self.source, self.numbers = source, numbers

    def __len__(self) -> int:
        return self.source.count if self.numbers is None else len(self.numbers)

    def at(self, index: Tensor | slice) -> LazyInputs:
        """The rows `index` of these, still unread."""
        return LazyInputs(self.source, self.chosen(index))

    def read(self, index: Tensor | slice) -> Inputs:
        """The rows `index` of these."""
        numbers = self.chosen(index)
        return self.source.read(numbers) if len(numbers) else take(self.source.sample, slice(0, 0))

    def chosen(self, index: Tensor | slice = slice(None)) -> Array:
        """The numbers of the rows `index` of these in the source, int64."""
        if isinstance(index, slice):
            whole = range(*index.indices(len(self)))
            return np.arange(whole.start, whole.stop, whole.step) if self.numbers is None else self.numbers[index]
        at = index.cpu().numpy()
        return at if self.numbers is None else self.numbers[at]


Held = Inputs | LazyInputs
"""Inputs in memory, or unread."""


def rows(inputs: Held) -> int:
    """Number of rows of `inputs`."""
    return len(inputs) if isinstance(inputs, LazyInputs) else len(next(iter(named(inputs).values())))


def take(inputs: Held, index: Tensor | slice) -> Inputs:
    """The rows `index` (int64 numbers, or a slice) of `inputs`, read if they are not in memory."""
    if isinstance(inputs, LazyInputs):
        return inputs.read(index)
    return {k: take_rows(v, index) for k, v in inputs.items()} if isinstance(inputs, dict) else take_rows(inputs, index)


def take_rows(value: Tensor, index: Tensor | slice) -> Tensor:
    """The rows `index` of a tensor."""
    # `value[index]` takes up to fifteen times as long.
    return value[index] if isinstance(index, slice) else value.index_select(0, index.to(value.device))


def joined(parts: Sequence[Held]) -> Held:
    """The rows of several behind each other; unread ones stay so. Raises `InputError` for unread rows of several sources."""
    first = parts[0]
    if isinstance(first, LazyInputs):
        source = first.source
        require(
            all(isinstance(part, LazyInputs) and part.source is source for part in parts),
            "unread rows of several data sets cannot be joined; make them one, e.g. by torch.utils.data.ConcatDataset",
        )
        return LazyInputs(source, np.concatenate([part.chosen() for part in parts]))  # type: ignore[union-attr]
    if isinstance(first, dict):
        return {k: torch.cat([part[k] for part in parts]) for k in first}  # type: ignore[index]
    return torch.cat(parts)  # type: ignore[arg-type]


def sample(inputs: Held) -> Inputs:
    """The first row [1, ...], or none [0, ...] of none: what shapes and types can be read from."""
    return inputs.source.sample if isinstance(inputs, LazyInputs) else take(inputs, slice(0, 1))


def named(inputs: Inputs) -> Mapping[str, Tensor]:
    """Tensors by name; one that has none is called `inputs`."""
    return inputs if isinstance(inputs, dict) else {"inputs": inputs}


def check_plain(value: object, where: str) -> None:
    """Raise `InputError` that begins with `where` unless `value` is a dense tensor of real numbers with rows."""
    if not isinstance(value, Tensor):
        raise InputError(f"{where} is a {type(value).__name__}; give a tensor [rows, ...]")
    kinds = {
        "nested": value.is_nested,
        "without values (device meta)": value.is_meta,
        "sparse": not value.is_nested and value.layout != torch.strided,
        "complex": value.is_complex(),
        "quantised": value.is_quantized,
        f"{value.dtype}": value.is_floating_point() and value.dtype.itemsize == 1,
        "without rows": not value.is_nested and value.ndim == 0,
    }
    for kind in (k for k, holds in kinds.items() if holds):
        raise InputError(
            f"{where} is a tensor that is {kind}; give a dense one [rows, ...] of real numbers, e.g. float32"
        )
