"""Rows of clients: inputs in memory, or read by number whenever they are asked for, with their labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng

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

    def __init__(
        self,
        count: int,
        open: Callable[[], Read],
        mark: str,
        contents: str = "the data set",
    ) -> None:
        self.count, self.mark = count, mark
        self._open, self._what = open, contents
        self._opened: tuple[int, Read] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, numbers: Array) -> Inputs:
        """The inputs of these rows. Raises `InputError` that names a row whose values are not finite or of another shape."""
        inputs = self._read(numbers)
        for key, value in tensors_by_name(inputs).items():
            expected = tensors_by_name(self.sample).get(key)
            if (
                expected is None
                or value.shape != (len(numbers), *expected.shape[1:])
                or value.dtype != expected.dtype
            ):
                raise InputError(
                    f"rows {numbers[0]} to {numbers[-1]} of {self._what}: {key} are {value.dtype} of shape {list(value.shape)}; "
                    "every row must have the shape of row 0"
                )
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                is_bad = (~torch.isfinite(value)).reshape(len(value), -1).any(1)
                bad = int(is_bad.nonzero()[0])
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
        if self.numbers is None:
            return self.source.count
        return len(self.numbers)

    def at(self, index: Tensor | slice) -> LazyInputs:
        """The rows `index` of these, still unread."""
        return LazyInputs(self.source, self.source_numbers(index))

    def read(self, index: Tensor | slice) -> Inputs:
        """The rows `index` of these."""
        numbers = self.source_numbers(index)
        if not len(numbers):
            return take(self.source.sample, slice(0, 0))
        return self.source.read(numbers)

    def source_numbers(self, index: Tensor | slice = slice(None)) -> Array:
        """The numbers of the rows `index` of these in the source, int64."""
        places = index if isinstance(index, slice) else index.cpu().numpy()
        if self.numbers is not None:
            return self.numbers[places]
        if isinstance(places, slice):
            return np.arange(*places.indices(len(self)))
        return places


Held = Inputs | LazyInputs
"""Inputs in memory, or unread."""


def describe_inputs(inputs: Held) -> str:
    """Type and shape of a row, without a value.

    >>> describe_inputs(torch.zeros(5, 3))
    'float32 [3]'
    """
    if isinstance(inputs, LazyInputs):
        return "unread inputs"
    if isinstance(inputs, dict):
        return ", ".join(f"{key} {_describe(value)}" for key, value in inputs.items())
    return _describe(inputs)


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape[1:])}"


def rows(inputs: Held) -> int:
    """Number of rows of `inputs`."""
    if isinstance(inputs, LazyInputs):
        return len(inputs)
    return len(next(iter(tensors_by_name(inputs).values())))


def take(inputs: Held, index: Tensor | slice) -> Inputs:
    """The rows `index` (int64 numbers, or a slice) of `inputs`, read if they are not in memory."""
    if isinstance(inputs, LazyInputs):
        return inputs.read(index)
    if isinstance(inputs, dict):
        return {name: take_rows(tensor, index) for name, tensor in inputs.items()}
    return take_rows(inputs, index)


def take_rows(value: Tensor, index: Tensor | slice) -> Tensor:
    """The rows `index` of a tensor."""
    if isinstance(index, slice):
        return value[index]
    # `value[index]` takes up to fifteen times as long.
    return value.index_select(0, index.to(value.device))


def class_numbers(labels: Tensor) -> Tensor:
    """Return labels of whole numbers, or of True and False, as int64; floats stay as they are.

    In a narrower type a comparison with a number beyond its range wraps: `uint8 labels >= 256` is true of all of them.
    """
    if labels.is_floating_point():
        return labels
    return labels.to(torch.int64)


def join_inputs(parts: Sequence[Held]) -> Held:
    """The rows of several behind each other; unread ones stay so. Raises `InputError` for unread rows of several sources."""
    example = parts[0]
    if isinstance(example, LazyInputs):
        source = example.source
        lazy = [part for part in parts if isinstance(part, LazyInputs)]
        if len(lazy) < len(parts) or any(part.source is not source for part in lazy):
            raise InputError(
                "unread rows of several data sets cannot be joined; make them one, e.g. by torch.utils.data.ConcatDataset"
            )
        return LazyInputs(
            source, np.concatenate([part.source_numbers() for part in lazy])
        )
    if isinstance(example, dict):
        return {k: torch.cat([part[k] for part in parts]) for k in example}  # type: ignore[index]
    return torch.cat(parts)  # type: ignore[arg-type]


def sample(inputs: Held) -> Inputs:
    """The first row [1, ...], or none [0, ...] of none: what shapes and types can be read from."""
    if isinstance(inputs, LazyInputs):
        return inputs.source.sample
    return take(inputs, slice(0, 1))


def row_shapes(inputs: Held) -> dict[str, tuple[int, ...]]:
    """Return the shape of one row of each tensor, by name."""
    if isinstance(inputs, Tensor):
        return {"inputs": tuple(inputs.shape[1:])}
    if isinstance(inputs, LazyInputs):
        inputs = inputs.source.sample
    tensors = tensors_by_name(inputs)
    return {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}


def row_size(inputs: Held) -> int:
    """Count the numbers in the inputs of one row, at least 1."""
    if isinstance(inputs, Tensor):
        return max(1, prod(inputs.shape[1:]))
    return max(1, sum(map(prod, row_shapes(inputs).values())))


def each_tensor(change: Callable[[Tensor], Any], inputs: Inputs) -> Any:
    """Return `change` of the inputs, or of each of their tensors by name, where a row has several."""
    if isinstance(inputs, dict):
        return {name: change(value) for name, value in inputs.items()}
    return change(inputs)


def tensors_by_name(inputs: Inputs) -> Mapping[str, Tensor]:
    """Tensors by name; one that has none is called `inputs`."""
    if isinstance(inputs, dict):
        return inputs
    return {"inputs": inputs}


def check_plain(value: object, where: str) -> None:
    """Raise `InputError` that begins with `where` unless `value` is a dense tensor of real numbers with rows."""
    if not isinstance(value, Tensor):
        raise InputError(
            f"{where} is a {type(value).__name__}; give a tensor [rows, ...]"
        )
    kinds = {
        "nested": value.is_nested,
        "without values (device meta)": value.is_meta,
        "sparse": not value.is_nested and value.layout != torch.strided,
        "complex": value.is_complex(),
        "quantised": value.is_quantized,
        f"{value.dtype}": value.is_floating_point() and value.dtype.itemsize == 1,
        "without rows": not value.is_nested and value.ndim == 0,
    }
    for kind, holds in kinds.items():
        if holds:
            raise InputError(
                f"{where} is a tensor that is {kind}; give a dense one [rows, ...] of real numbers, e.g. float32"
            )


class LabelScale(NamedTuple):
    """The scale in which labels of a regression are stored: as (label - mean) / scale; with mean 0 and scale 1 as they were given.

    A model learns, and every loss is of, the stored labels; `undo` gives labels and predictions in the label's unit.
    """

    mean: float = 0.0
    scale: float = 1.0

    def undo(self, values: Tensor) -> Tensor:
        """Stored labels, or outputs of a model [...], in the unit of the label; float64 unless nothing is to be done."""
        if self == LabelScale():
            return values
        return values.double() * self.scale + self.mean


CHUNK = 4096
"""Rows of one forward pass at most; bounds memory, and is fixed so that results do not depend on what is free."""
ELEMENTS = 1 << 24
"""Numbers in the inputs of one forward pass at most."""
LOOKED_AT = 64
"""Rows that a fingerprint of unread inputs looks at."""


class Part(NamedTuple):
    """Some rows of one client: inputs [rows, ...], which may be unread, and labels [rows, ...].

    Attributes:
        inputs: Tensor [rows, ...], a dict of such tensors, or rows that are read when they are needed.
        labels: Labels [rows, ...].

    >>> import coterie as ct
    >>> import torch
    >>> part = ct.Part(torch.zeros(40, 3), torch.arange(40) % 2)
    >>> part.select(slice(0, 10))
    <10 rows of float32 [3], labels int64 []>
    """

    inputs: Held
    labels: Tensor

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {describe_inputs(self.inputs)}, labels {_describe(self.labels)}>"

    def select(self, index: Tensor | slice) -> Part:
        """The rows `index` of this part; unread ones stay so."""
        labels = take_rows(self.labels, index)
        if isinstance(self.inputs, LazyInputs):
            return Part(self.inputs.at(index), labels)
        return Part(take(self.inputs, index), labels)

    def read(self) -> Inputs:
        """The inputs, read if they are not in memory."""
        if isinstance(self.inputs, LazyInputs):
            return self.inputs.read(slice(None))
        return self.inputs

    def chunks(self) -> Iterator[Part]:
        """The rows in pieces of at most `CHUNK` rows and `ELEMENTS` numbers, in order."""
        chunk_rows = max(1, min(CHUNK, ELEMENTS // row_size(self.inputs)))
        count = len(self)
        if 0 < count <= chunk_rows:
            yield self
            return
        for low in range(0, count, chunk_rows):
            yield self.select(slice(low, low + chunk_rows))

    def map_tensors(self, change: Callable[[Tensor, str | None], Tensor]) -> Part:
        """The same rows with other tensors; `change` as for `Clients.changed`, which leaves unread inputs as they are."""
        inputs = self.inputs
        if isinstance(inputs, dict):
            inputs = {name: change(tensor, name) for name, tensor in inputs.items()}
        elif not isinstance(inputs, LazyInputs):
            inputs = change(inputs, "inputs")
        return Part(inputs, change(self.labels, None))

    def check(self, where: str) -> None:
        """Raise `InputError` unless inputs and labels are plain, finite and equally many."""
        tensors = self.tensors()
        for key, value in tensors.items():
            check_plain(value, f"{where}: {key}")
        counts = {key: len(value) for key, value in tensors.items() if key != "labels"}
        if isinstance(self.inputs, LazyInputs):
            counts = {"inputs": len(self.inputs)}
        if {*counts.values()} != {len(self)}:
            raise InputError(
                f"{where}: inputs have {counts} rows but there are {len(self)} labels; give one label per row"
            )
        for key, value in tensors.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise InputError(
                    f"{where}: {key} contain NaN or Inf; impute or drop those rows first"
                )

    def tensors(self) -> dict[str, Tensor]:
        """Return what of it is in memory, by name: inputs that are read, and `labels`."""
        if isinstance(self.inputs, LazyInputs):
            return {"labels": self.labels}
        return {**tensors_by_name(self.inputs), "labels": self.labels}


def offsets_from_sizes(sizes: Sequence[int] | Array) -> Array:
    """Return where each client's positions begin and the last ones end, int64 [n + 1].

    >>> offsets_from_sizes([2, 0, 3])
    array([0, 2, 2, 5])
    """
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@dataclass(frozen=True)
class Rows:
    """One part (say `train`) of n clients, stored flat so that a client costs an offset and not an object.

    Attributes:
        inputs, labels: the rows of all clients, [R, ...] each; inputs may be unread.
        offsets: int64 array [n + 1]; client i has the positions offsets[i]:offsets[i + 1].
        index: int64 array of row numbers, one per position; None where positions are row numbers.
    """

    inputs: Held
    labels: Tensor
    offsets: Array
    index: Array | None = None

    @classmethod
    def concatenate(cls, parts: Sequence[Part | None]) -> Rows | None:
        """The parts of n clients behind each other; None if no client has a row."""
        present = [p for p in parts if p is not None]
        if not present:
            return None
        inputs = join_inputs([p.inputs for p in present])
        labels = class_numbers(torch.cat([p.labels for p in present]))
        sizes = np.zeros(len(parts), dtype=np.int64)
        for i, part in enumerate(parts):
            if part is not None:
                sizes[i] = len(part)
        return cls(inputs, labels, offsets_from_sizes(sizes))

    @classmethod
    def from_indices(
        cls, inputs: Held, labels: Tensor, lists: Sequence[Sequence[int] | Array]
    ) -> Rows:
        """Client i has the rows `lists[i]` of a data set that all clients share in memory."""
        sizes = [len(part) for part in lists]
        arrays = [np.asarray(part, dtype=np.int64) for part in lists]
        index = np.concatenate([np.zeros(0, np.int64), *arrays])
        if index.size and (index.min() < 0 or index.max() >= len(labels)):
            raise InputError(
                f"index lists name row {int(index.max())} of a data set with {len(labels)} rows"
            )
        return cls(inputs, class_numbers(labels), offsets_from_sizes(sizes), index)

    def absorb(self, other: Rows, moves: NDArray[np.bool_]) -> tuple[Rows, Rows | None]:
        """Return these rows with those of `other` added at the clients that `moves` [clients] marks, and the rows left in `other`."""
        inputs, labels = self.inputs, self.labels
        other_numbers = other.all_numbers()
        if other.inputs is not inputs or other.labels is not labels:
            # The rows of `other` are stored behind ours: their numbers begin where ours end.
            other_numbers = other_numbers + len(labels)
            inputs = join_inputs([inputs, other.inputs])
            labels = torch.cat([labels, other.labels])
        other_owners = other.owners()
        is_moved = moves[other_owners]

        # Positions lie client by client. The sort is stable: a client keeps its own rows before those it receives.
        owners = np.concatenate([self.owners(), other_owners[is_moved]])
        numbers = np.concatenate([self.all_numbers(), other_numbers[is_moved]])
        by_client = np.argsort(owners, kind="stable")
        merged_offsets = offsets_from_sizes(self.sizes + other.sizes * moves)
        merged = Rows(inputs, labels, merged_offsets, numbers[by_client])

        if is_moved.all():
            return merged, None
        left_offsets = offsets_from_sizes(other.sizes * ~moves)
        return merged, Rows(inputs, labels, left_offsets, other_numbers[~is_moved])

    @property
    def sizes(self) -> Array:
        """Rows per client, int64 [n]."""
        return np.diff(self.offsets)

    def positions(self, client: int) -> slice | Array:
        """Return where the rows of client number `client` lie in `inputs` and `labels`."""
        positions = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        if self.index is None:
            return positions
        return self.index[positions]

    def numbers(self, client: int) -> Array:
        """The same as an array of row numbers."""
        positions = self.positions(client)
        if isinstance(positions, slice):
            return np.arange(positions.start, positions.stop, dtype=np.int64)
        return positions

    def owners(self) -> Array:
        """Return the number of the client to which each position belongs."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.sizes)

    def all_numbers(self) -> Array:
        """Return the row numbers of all positions."""
        if self.index is None:
            return np.arange(self.offsets[-1])
        return self.index

    def part(self, client: int) -> Part:
        """The rows of client number `client` (a view where they lie together, else a copy; unread ones stay so)."""
        positions = self.positions(client)
        everything = Part(self.inputs, self.labels)
        if isinstance(positions, slice):
            return everything.select(positions)
        return everything.select(torch.from_numpy(positions))

    def subset(self, clients: Sequence[int]) -> Rows:
        """Copies of the rows of some clients, by number, and no others."""
        lists = [self.numbers(i) for i in clients]
        # The empty one stands for no clients at all.
        numbers = np.concatenate([np.zeros(0, np.int64), *lists])
        everything = Part(self.inputs, self.labels)
        inputs, labels = everything.select(torch.from_numpy(numbers))
        return Rows(inputs, labels, offsets_from_sizes([len(part) for part in lists]))

    def evidence(self) -> Callable[[int], dict[str, Tensor]]:
        """A function (client number) -> the tensors by name that a fingerprint of its rows is made of; {} without rows.

        They are all that is in memory. Of unread inputs they are the numbers of the rows, the mark of their source, and those rows of
        the client that are among `LOOKED_AT` of all clients, chosen by name.
        """
        total = int(self.offsets[-1]) if isinstance(self.inputs, LazyInputs) else 0
        sampled = np.sort(Rng.named(0, "fingerprint").permutation(total, LOOKED_AT))

        def of_client(client: int) -> dict[str, Tensor]:
            part = self.part(client)
            if not len(part):
                return {}
            if not isinstance(part.inputs, LazyInputs):
                return part.tensors()
            low, high = self.offsets[client], self.offsets[client + 1]
            positions = sampled[(sampled >= low) & (sampled < high)] - low
            numbers = torch.from_numpy(part.inputs.source_numbers())
            return {
                f"numbers of {part.inputs.source.mark}": numbers,
                **part.tensors(),
                **tensors_by_name(part.inputs.read(torch.from_numpy(positions))),
            }

        return of_client
