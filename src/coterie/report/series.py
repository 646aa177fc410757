"""What a run directory says of rounds and of time: metrics and weights over rounds, seconds of each run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.report.files import Columns, csv_columns, number_or_nan

__all__ = ["Curve", "History", "Vector", "Weights", "clock_of", "history_of", "weights_of"]

Vector = NDArray[np.float64]
History = dict[tuple[str, str, str, str], dict[int, dict[int, float]]]
"""(method, client, split, metric) -> seed -> round -> value."""


class Curve(NamedTuple):
    """A metric over rounds: `rounds` [k] and `values` [seeds, k] (NaN where a seed has no value)."""

    rounds: NDArray[np.int64]
    values: Vector

    @classmethod
    def of(cls, series: Mapping[int, Mapping[int, float]]) -> Curve:
        """The curve of seed -> round -> value."""
        rounds = sorted({at for one in series.values() for at in one})
        values = [[one.get(at, math.nan) for at in rounds] for _, one in sorted(series.items())]
        table = np.array(values, dtype=float)
        return cls(np.array(rounds, dtype=np.int64), np.where(np.isfinite(table), table, math.nan))


class Weights(NamedTuple):
    """Weights of one method, mean over seeds: `values` [rounds, targets, clients]; target `*` serves everybody."""

    rounds: NDArray[np.int64]
    targets: tuple[str, ...]
    clients: tuple[str, ...]
    values: Vector

    def __repr__(self) -> str:
        return f"<weights of {len(self.clients)} clients for {len(self.targets)} targets, {len(self.rounds)} rounds>"

    def late(self) -> Vector:
        """Mean over the second half of the rounds, [targets, clients]."""
        middle = (self.rounds[0] + self.rounds[-1]) / 2
        mean: Vector = self.values[self.rounds >= middle].mean(axis=0)
        return mean


def history_of(folder: Path) -> History:
    """`history.csv`, without what is not finite."""
    table: History = {}
    columns: Columns = {"method": str, "seed": int, "round": int, "client": str, "split": str, "metric": str}
    columns_read = csv_columns(folder / "history.csv", {**columns, "value": number_or_nan})
    for method, seed, at, client, split, metric, value in zip(*columns_read, strict=True):
        if math.isfinite(value):
            table.setdefault((method, client, split, metric), {}).setdefault(seed, {})[at] = value
    return table


def weights_of(folder: Path, methods: Sequence[str], clients: Sequence[str]) -> dict[str, Weights]:
    """`weights.csv` per method, mean over seeds; methods without weights are left out."""
    columns: Columns = {
        "method": str,
        "seed": int,
        "round": int,
        "target": str,
        "client": str,
        "weight": number_or_nan,
    }
    columns_read = csv_columns(folder / "weights.csv", columns)
    rows: dict[str, list[tuple[int, int, str, str, float]]] = {}
    for method, *row in zip(*columns_read, strict=True):
        rows.setdefault(method, []).append(tuple(row))
    return {m: _weights(rows[m], clients) for m in methods if m in rows}


def _weights(rows: list[tuple[int, int, str, str, float]], known: Sequence[str]) -> Weights:
    seeds, rounds, targets, clients, weights = zip(*rows, strict=True)
    axes = (
        sorted(set(seeds)),
        sorted(set(rounds)),
        _ordered(set(targets), known),
        _ordered({*clients, *known}, known),
    )
    places = [{key: i for i, key in enumerate(axis)} for axis in axes]
    s, r, t, c = (
        np.array([place[k] for k in keys])
        for place, keys in zip(places, (seeds, rounds, targets, clients), strict=True)
    )
    total, seen = np.zeros([len(axis) for axis in axes[1:]]), np.zeros([len(axis) for axis in axes[:3]], dtype=bool)
    value = np.nan_to_num(np.array(weights, dtype=float), nan=0.0, posinf=0.0, neginf=0.0)
    np.add.at(total, (r, t, c), value)  # a client that did not take part has weight 0
    seen[s, r, t] = True
    mean = total / np.maximum(seen.sum(axis=0), 1)[:, :, None]
    return Weights(np.array(axes[1], dtype=np.int64), tuple(axes[2]), tuple(axes[3]), mean)


def _ordered(names: set[str], clients: Sequence[str]) -> list[str]:
    """`*`, then clients in their order, then names that are no clients."""
    order = {c: i for i, c in enumerate(("*", *clients))}
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


def clock_of(folder: Path, column: str, methods: Sequence[str]) -> dict[str, Vector]:
    """Seconds of a column of `timing.csv` by method, one value per seed that has any."""
    total: dict[str, dict[int, float]] = {}
    columns: Columns = {"method": str, "seed": int, column: lambda text: float(text or "nan")}
    for method, seed, seconds in zip(*csv_columns(folder / "timing.csv", columns), strict=True):
        runs = total.setdefault(method, {})
        runs[seed] = runs.get(seed, 0.0) + seconds
    return {m: np.array([v for _, v in sorted(total[m].items())]) for m in methods if m in total}
