"""Rounds and time in a run directory: weights over rounds, seconds of each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.report.files import Columns, csv_columns, number_or_nan
from coterie.report.history import Coded, Vector
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
    labels, seeds, folds, *rest = csv_columns(folder / "weights.csv", columns)
    rounds, targets, names, weights = rest
    label_of, run_of = Coded.of(labels), Coded.of(zip(seeds, folds, strict=True))
    target_of, client_of = Coded.of(targets), Coded.of(names)
    is_tested = np.array([fold != ALL for _, fold in run_of.names], dtype=bool)
    in_folds = is_tested[run_of.codes]
    round_of, weight_of = np.array(rounds, np.int64), np.array(weights, float)
    found: dict[str, Weights] = {}
    for method in methods:
        if method not in label_of.names:
            continue
        of_method = label_of.codes == label_of.names.index(method)
        rows = np.flatnonzero(of_method & in_folds)
        if len(rows):
            found[method] = _weights(
                run_of.take(rows),
                round_of[rows],
                target_of.take(rows),
                client_of.take(rows),
                weight_of[rows],
                clients,
            )
    return found


def _weights(
    runs: Coded[tuple[int, str]],
    rounds: NDArray[np.int64],
    targets: Coded[str],
    clients: Coded[str],
    weights: Vector,
    names: Sequence[str],
) -> Weights:
    """The rows of one method [k] as a table; `names` are the clients of the run."""
    all_runs = sorted(runs.present())
    all_rounds, r = np.unique(rounds, return_inverse=True)
    all_targets = _in_order({*targets.present()}, names)
    all_clients = _in_order({*clients.present(), *names}, names)
    s, t, c = (
        runs.among(all_runs),
        targets.among(all_targets),
        clients.among(all_clients),
    )
    shape = (len(all_runs), len(all_rounds), len(all_targets), len(all_clients))
    table = np.zeros(shape)
    present = np.zeros(shape[:3], dtype=bool)
    value = np.nan_to_num(weights, nan=0.0, posinf=0.0, neginf=0.0)
    # A client that did not take part has weight 0.
    np.add.at(table, (s, r, t, c), value)
    present[s, r, t] = True
    mean = table.sum(axis=0) / np.maximum(present.sum(axis=0), 1)[:, :, None]
    is_late = all_rounds >= (all_rounds[0] + all_rounds[-1]) / 2
    late_of_runs = (
        table[:, is_late].sum(axis=1)
        / np.maximum(present[:, is_late].sum(axis=1), 1)[:, :, None]
    )
    return Weights(
        all_rounds,
        tuple(all_targets),
        tuple(all_clients),
        mean,
        tuple(all_runs),
        late_of_runs,
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
