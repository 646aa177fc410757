"""The history of a run directory, `history.csv` or of many numbers `history.safetensors`: curves over rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.base.files import open_tensors
from coterie.report.files import Columns, csv_columns, number_or_nan
from coterie.report.memo import cache_answers
from coterie.run.files import ALL, LONG_HISTORY

Vector = NDArray[np.float64]


class Curve(NamedTuple):
    """A metric over rounds: `rounds` [k] and `values` [seeds, k] (NaN where a seed has no value)."""

    rounds: NDArray[np.int64]
    values: Vector


class Numbers(NamedTuple):
    """The numbers [k] of one run, or of one series of several; `client` and `series` are places in the names of a `SavedHistory`."""

    round: NDArray[np.int64]
    client: NDArray[np.int64]
    series: NDArray[np.int64]
    value: Vector


class _Series(NamedTuple):
    """The finite numbers of one method, split and metric, by client, seed and round: `[begin[c] : begin[c + 1]]` are of place c."""

    begin: NDArray[np.int64]
    seed: NDArray[np.int64]
    round: NDArray[np.int64]
    value: Vector

    def curve(self, place: int) -> Curve | None:
        mine = slice(self.begin[place], self.begin[place + 1])
        seeds, rounds = self.seed[mine], self.round[mine]
        if not len(seeds):
            return None
        count = 1 + int(np.count_nonzero(np.diff(seeds)))
        if len(seeds) % count == 0:
            by_seed = rounds.reshape(count, -1)
            if (by_seed == by_seed[0]).all():
                return Curve(by_seed[0], self.value[mine].reshape(count, -1))
        all_rounds, columns = np.unique(rounds, return_inverse=True)
        values = np.full((count, len(all_rounds)), math.nan)
        values[np.cumsum(np.diff(seeds, prepend=seeds[0]) != 0), columns] = self.value[mine]
        return Curve(all_rounds, values)


class SavedHistory:
    """The numbers of a run directory by round. A long history is read when it is asked for, one run after the other.

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
                self.clients: list[str] = [str(name) for name in names["clients"]]
                self.series = [(str(split), str(metric)) for split, metric in names["series"]]
                self.runs = [(str(method), int(seed), str(fold)) for method, seed, fold in names["runs"]]
        else:
            self._read_csv(folder / "history.csv")

    def _read_csv(self, path: Path) -> None:
        columns: Columns = {
            "method": str,
            "seed": int,
            "fold": str,
            "round": int,
            "client": str,
            "split": str,
            "metric": str,
            "value": number_or_nan,
        }
        methods, seeds, folds, rounds, clients, splits, metrics, values = csv_columns(path, columns)
        places: list[dict[object, int]] = [{}, {}, {}]
        named = (clients, zip(splits, metrics, strict=True), zip(methods, seeds, folds, strict=True))
        client, series, run = (
            np.array([of_kind.setdefault(name, len(of_kind)) for name in names], np.int64)
            for of_kind, names in zip(places, named, strict=True)
        )
        self.clients, self.series, self.runs = (list(of_kind) for of_kind in places)  # type: ignore[assignment]
        order = np.argsort(run, kind="stable")
        ends = np.searchsorted(run[order], np.arange(1, len(self.runs)))
        sorted_columns = [
            np.array(rounds, np.int64)[order],
            client[order],
            series[order],
            np.array(values, float)[order],
        ]
        parts = zip(*[np.split(column, ends) for column in sorted_columns], strict=True)
        self._in_memory = [Numbers(*part) for part in parts] if self.runs else []

    def numbers(self, run: int) -> Numbers:
        """The numbers of one of `runs`. Raises `InputError` if the file is damaged."""
        if self._in_memory is not None:
            return self._in_memory[run]
        with open_tensors(self._path, "numpy") as (file, _):
            columns = Numbers(*[file.get_tensor(f"{run}/{name}") for name in Numbers._fields])
            sizes = (len(self.clients), len(self.series))
            for places, size in zip((columns.client, columns.series), sizes, strict=True):
                if len({len(column) for column in columns}) != 1 or (
                    len(places) and not 0 <= places.min() <= places.max() < size
                ):
                    raise ValueError(f"run {run} names what is not there")
        return columns

    def rows(self, run: int) -> Iterator[tuple[int, str, str, str, float]]:
        """The numbers of one of `runs`: round, client, split, metric and value."""
        for number, client, series, value in zip(*[column.tolist() for column in self.numbers(run)], strict=True):
            yield number, self.clients[client], *self.series[series], value

    def curve(self, method: str, client: str, split: str, metric: str) -> Curve | None:
        """A metric of one client over rounds, without what is not finite, with folds their mean; None if there is nothing."""
        found, place = self._of(method, split, metric), self._places.get(client)
        return None if found is None or place is None else found.curve(place)

    def mean_curve(self, method: str, clients: Iterable[str], split: str, metric: str) -> Curve | None:
        """The mean over those of `clients` that have a curve; None if there is none, or they differ in rounds or seeds."""
        found = self._of(method, split, metric)
        if found is None:
            return None
        places = np.array([self._places[client] for client in clients if client in self._places], int)
        sizes = np.diff(found.begin)[places]
        places = places[sizes > 0]
        if not len(places) or (sizes[sizes > 0] != sizes.max()).any():
            return None
        theirs = found.begin[places][:, None] + np.arange(sizes.max())
        if any((column[theirs] != column[theirs[0]]).any() for column in (found.seed, found.round)):
            return None
        first = found.curve(int(places[0]))
        assert first is not None
        values = first.values.copy()
        values[np.isfinite(values)] = found.value[theirs].mean(axis=0)
        return Curve(first.rounds, values)

    def measured(self, method: str, split: str, metric: str) -> set[str]:
        """Clients that have a curve."""
        found = self._of(method, split, metric)
        return set() if found is None else {self.clients[c] for c in np.flatnonzero(np.diff(found.begin)).tolist()}

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.clients)}

    @cache_answers
    def _of(self, method: str, split: str, metric: str) -> _Series | None:
        if (split, metric) not in self.series:
            return None
        place = self.series.index((split, metric))
        found: list[tuple[Vector, ...]] = []
        for run, (of_method, seed, fold) in enumerate(self.runs):
            if of_method == method and fold != ALL:
                numbers = self.numbers(run)
                mine = (numbers.series == place) & np.isfinite(numbers.value)
                rounds = numbers.round[mine]
                found.append((numbers.client[mine], np.full(len(rounds), seed), rounds, numbers.value[mine]))
        if not found:
            return None
        clients, seeds, rounds, values = (np.concatenate(columns) for columns in zip(*found, strict=True))
        order = np.lexsort((rounds, seeds, clients))
        keys = np.stack([clients, seeds, rounds])[:, order].astype(np.int64)
        is_new = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(order)]
        total = np.zeros(int(is_new.sum()))
        np.add.at(total, np.cumsum(is_new) - 1, values[order])
        counts = np.diff(np.append(np.flatnonzero(is_new), len(order)))
        clients, seeds, rounds = keys[:, is_new]
        begin = np.searchsorted(clients, np.arange(len(self.clients) + 1))
        return _Series(begin, seeds, rounds, total / counts)
