"""The history of a run directory, `history.csv` or of many numbers `history.safetensors`: curves over rounds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.base.files import open_tensors
from coterie.report.files import Columns, csv_columns, number_or_nan
from coterie.report.memo import cache_answers
from coterie.run.files import ALL, LONG_HISTORY

Vector = NDArray[np.float64]


Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Coded(Generic[Name]):
    """Names of rows [k], each by its place in `names`: a long column has few different ones.

    >>> column = Coded.of(["b", "a", "b"])
    >>> column.codes.tolist(), column.names, column.among(["a", "b"]).tolist()
    ([0, 1, 0], ['b', 'a'], [1, 0, 1])
    """

    codes: NDArray[np.int64]
    names: list[Name]

    @classmethod
    def of(cls, values: Iterable[Name]) -> Coded[Name]:
        """Give each name its place, in the order in which they come."""
        places: dict[Name, int] = {}
        codes = [places.setdefault(value, len(places)) for value in values]
        return cls(np.array(codes, np.int64), [*places])

    def take(self, rows: NDArray[np.int64]) -> Coded[Name]:
        """The names of some of the rows."""
        return Coded(self.codes[rows], self.names)

    def present(self) -> list[Name]:
        """The names that some row has."""
        return [self.names[code] for code in np.unique(self.codes).tolist()]

    def among(self, names: Sequence[Name]) -> NDArray[np.int64]:
        """The place [k] of each row's name in `names`, which hold all that are present."""
        places = {name: place for place, name in enumerate(names)}
        place_of_code = [places.get(name, -1) for name in self.names]
        return np.array(place_of_code, np.int64)[self.codes]


class Curve(NamedTuple):
    """A metric over rounds: `rounds` [k] and `values` [seeds, k] (NaN where a seed has no value)."""

    rounds: NDArray[np.int64]
    values: Vector


class Numbers(NamedTuple):
    """The numbers [k] of one run; `client` and `series` are places in the names of a `SavedHistory`."""

    round: NDArray[np.int64]
    client: NDArray[np.int64]
    series: NDArray[np.int64]
    value: Vector


class _Series(NamedTuple):
    """The finite numbers [k] of one method, split and metric, in the order of clients, seeds and rounds."""

    client: NDArray[np.int64]
    seed: NDArray[np.int64]
    round: NDArray[np.int64]
    value: Vector


class SavedHistory:
    """The numbers of a run directory by round. Those of a long history are read when they are asked for, method by method.

    Attributes:
        clients: names.
        series: split and metric of each kind of numbers.
        runs: method, seed and fold of each run.
    """

    def __init__(self, folder: Path) -> None:
        """Read `history.csv`, or what there is in place of it. Raises `InputError` if it is damaged."""
        self._path = folder / LONG_HISTORY
        self._in_memory: list[Numbers] | None = None
        if self._path.is_file():
            with open_tensors(self._path, "numpy") as (_, names):
                self.clients = [str(name) for name in names["clients"]]
                self.series = [
                    (str(split), str(metric)) for split, metric in names["series"]
                ]
                self.runs = [
                    (str(method), int(seed), str(fold))
                    for method, seed, fold in names["runs"]
                ]
        else:
            self._read_csv(folder / "history.csv")

    def _read_csv(self, path: Path) -> None:
        texts: Columns = dict.fromkeys(
            ("method", "fold", "client", "split", "metric"), str
        )
        columns: Columns = {**texts, "seed": int, "round": int, "value": number_or_nan}
        methods, folds, names, splits, metrics, seeds, rounds, values = csv_columns(
            path, columns
        )
        run = Coded.of(zip(methods, seeds, folds, strict=True))
        client = Coded.of(names)
        kind = Coded.of(zip(splits, metrics, strict=True))
        self.clients, self.series, self.runs = client.names, kind.names, run.names
        found = Numbers(
            np.array(rounds, np.int64),
            client.codes,
            kind.codes,
            np.array(values, float),
        )
        self._in_memory = [
            Numbers(*[column[run.codes == place] for column in found])
            for place in range(len(self.runs))
        ]

    def numbers(self, run: int) -> Numbers:
        """The numbers of one of `runs`. Raises `InputError` if the file is damaged."""
        if self._in_memory is not None:
            return self._in_memory[run]
        with open_tensors(self._path, "numpy") as (file, _):
            numbers = Numbers(
                *[file.get_tensor(f"{run}/{name}") for name in Numbers._fields]
            )
            if len({len(column) for column in numbers}) > 1:
                raise ValueError(f"the columns of run {run} differ in length")
            for places, names in (
                (numbers.client, self.clients),
                (numbers.series, self.series),
            ):
                if len(places) and not 0 <= places.min() <= places.max() < len(names):
                    raise ValueError(f"run {run} names what is not there")
        return numbers

    def rows(self, run: int) -> Iterator[tuple[int, str, str, str, float]]:
        """The numbers of one of `runs`: round, client, split, metric and value."""
        for number, client, series, value in zip(
            *[column.tolist() for column in self.numbers(run)], strict=True
        ):
            yield number, self.clients[client], *self.series[series], value

    def curve(self, method: str, client: str, split: str, metric: str) -> Curve | None:
        """A metric of one client over rounds, without what is not finite, with folds their mean; None if there is nothing."""
        found = self._columns_of(method).get((split, metric))
        place = self._places.get(client)
        if found is None or place is None:
            return None
        # Rows lie by client, then seed, then round.
        begin, end = np.searchsorted(found.client, (place, place + 1)).tolist()
        if begin == end:
            return None
        seeds = found.seed[begin:end]
        rounds = found.round[begin:end]
        values = found.value[begin:end]
        count = 1 + int(np.count_nonzero(np.diff(seeds)))
        # Most often all seeds have the same rounds, and the columns are the table already.
        if len(seeds) % count == 0:
            by_seed = rounds.reshape(count, -1)
            if (by_seed == by_seed[0]).all():
                return Curve(by_seed[0], values.reshape(count, -1))
        every_round, columns = np.unique(rounds, return_inverse=True)
        table = np.full((count, len(every_round)), math.nan)
        which_seed = np.cumsum(np.diff(seeds, prepend=seeds[0]) != 0)
        table[which_seed, columns] = values
        return Curve(every_round, table)

    def clients_with(self, method: str, split: str, metric: str) -> set[str]:
        """Clients that have a curve."""
        found = self._columns_of(method).get((split, metric))
        if found is None:
            return set()
        return {self.clients[client] for client in np.unique(found.client).tolist()}

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.clients)}

    @cache_answers
    def _columns_of(self, method: str) -> dict[tuple[str, str], _Series]:
        """The finite numbers of a method by split and metric; those of folds are averaged."""
        runs = [
            run
            for run, (of_method, _, fold) in enumerate(self.runs)
            if of_method == method and fold != ALL
        ]
        read = [self.numbers(run) for run in runs]
        if not read:
            return {}
        rounds, clients, series, values = (
            np.concatenate(columns) for columns in zip(*read, strict=True)
        )
        seeds = np.repeat(
            [self.runs[run][1] for run in runs],
            [len(numbers.value) for numbers in read],
        )
        order = np.lexsort((rounds, seeds, clients, series))
        order = order[np.isfinite(values[order])]
        keys = np.stack([series, clients, seeds, rounds])[:, order].astype(int)
        begins = np.flatnonzero(
            np.diff(keys, prepend=-1).any(axis=0)
        )  # of numbers that differ in the fold alone
        counts = np.diff(begins, append=len(order))
        total = np.zeros(len(begins))
        np.add.at(total, np.repeat(np.arange(len(begins)), counts), values[order])
        series, *columns = keys[:, begins]
        ends = np.searchsorted(series, np.arange(1, len(self.series)))
        parts = zip(
            *[np.split(column, ends) for column in (*columns, total / counts)],
            strict=True,
        )
        return {
            name: _Series(*part)
            for name, part in zip(self.series, parts, strict=True)
            if len(part[0])
        }
