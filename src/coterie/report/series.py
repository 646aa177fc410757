"""Rounds and time in a run directory: weights over rounds, seconds of each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.report.files import Columns, csv_columns, number_or_nan
from coterie.report.history import Vector
from coterie.run.files import ALL


class Weights(NamedTuple):
    """Weights of one method, mean over seeds and folds: `values` [rounds, targets, clients]; target `*` serves all.

    `runs` are the seeds and folds, and `late_of_runs` [runs, targets, clients] what each gave in the second half of its rounds.
    """

    rounds: NDArray[np.int64]
    targets: tuple[str, ...]
    clients: tuple[str, ...]
    values: Vector
    runs: tuple[tuple[int, str], ...] = ()
    late_of_runs: Vector = np.zeros((0, 0, 0))

    def __repr__(self) -> str:
        return f"<weights of {len(self.clients)} clients for {len(self.targets)} targets, {len(self.rounds)} rounds>"

    def late(self) -> Vector:
        """Mean over the second half of the rounds, [targets, clients]."""
        middle = (self.rounds[0] + self.rounds[-1]) / 2
        mean: Vector = self.values[self.rounds >= middle].mean(axis=0)
        return mean


def weights_of(
    folder: Path, methods: Sequence[str], clients: Sequence[str]
) -> dict[str, Weights]:
    """`weights.csv` per method, mean over seeds; methods without weights are left out."""
    columns: Columns = {
        "method": str,
        "seed": int,
        "fold": str,
        "round": int,
        "target": str,
        "client": str,
        "weight": number_or_nan,
    }
    columns_read = csv_columns(folder / "weights.csv", columns)
    rows: dict[str, list[tuple[tuple[int, str], int, str, str, float]]] = {}
    for method, seed, fold, *row in zip(*columns_read, strict=True):
        if fold != ALL:
            rows.setdefault(method, []).append(((seed, fold), *row))
    return {m: _weights(rows[m], clients) for m in methods if m in rows}


def _weights(
    rows: list[tuple[tuple[int, str], int, str, str, float]], names: Sequence[str]
) -> Weights:
    runs, rounds, targets, clients, weights = zip(*rows, strict=True)
    axes = (
        sorted(set(runs)),
        sorted(set(rounds)),
        _in_order(set(targets), names),
        _in_order({*clients, *names}, names),
    )
    places = [{key: i for i, key in enumerate(axis)} for axis in axes]
    s, r, t, c = (
        np.array([place[k] for k in keys])
        for place, keys in zip(places, (runs, rounds, targets, clients), strict=True)
    )
    table = np.zeros([len(axis) for axis in axes])
    present = np.zeros(table.shape[:3], dtype=bool)
    value = np.nan_to_num(
        np.array(weights, dtype=float), nan=0.0, posinf=0.0, neginf=0.0
    )
    np.add.at(
        table, (s, r, t, c), value
    )  # a client that did not take part has weight 0
    present[s, r, t] = True
    mean = table.sum(axis=0) / np.maximum(present.sum(axis=0), 1)[:, :, None]
    numbers = np.array(axes[1], dtype=np.int64)
    is_late = numbers >= (numbers[0] + numbers[-1]) / 2
    late_of_runs = (
        table[:, is_late].sum(axis=1)
        / np.maximum(present[:, is_late].sum(axis=1), 1)[:, :, None]
    )
    return Weights(
        numbers, tuple(axes[2]), tuple(axes[3]), mean, tuple(axes[0]), late_of_runs
    )


def _in_order(names: set[str], clients: Sequence[str]) -> list[str]:
    """`*`, then clients in their order, then names that are no clients."""
    order = {c: i for i, c in enumerate(("*", *clients))}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


def clock_of(folder: Path, column: str, methods: Sequence[str]) -> dict[str, Vector]:
    """Seconds of a column of `timing.csv` by method, one value per seed that has any."""
    total: dict[str, dict[int, float]] = {}
    columns: Columns = {
        "method": str,
        "seed": int,
        column: lambda text: float(text or "nan"),
    }
    for method, seed, seconds in zip(
        *csv_columns(folder / "timing.csv", columns), strict=True
    ):
        runs = total.setdefault(method, {})
        runs[seed] = runs.get(seed, 0.0) + seconds
    return {
        m: np.array([v for _, v in sorted(total[m].items())])
        for m in methods
        if m in total
    }
