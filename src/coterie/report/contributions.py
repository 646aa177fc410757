"""The contributions of a run beside its weights: what the updates of each client did to the validation loss of each target."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from coterie.compute.outcomes import student
from coterie.report.files import Columns, csv_columns
from coterie.report.results import Results
from coterie.report.statistics import FEWEST_SEEDS, over_seeds
from coterie.report.text import number, printable

_COLUMNS: Columns = {"method": str, "seed": int, "fold": str, "round": int, "target": str, "client": str, "phi": float}
SMALLEST_WEIGHT = 0.01
"""Weight from which on it is said that a client has one and yet raises the loss."""


class Contribution(NamedTuple):
    """Effect of the updates of one client on one target.

    Attributes:
        method, target, client: whose.
        weight: its mean weight in the target's model, in the second half of the rounds; None where none is logged.
        fall: sum over the measured rounds of the fall of the target's validation log-loss, mean over seeds and folds.
        half: half of its 95 % interval over seeds; None for fewer than three.
        measured, rounds: how many rounds were measured, and how many there were.
    """

    method: str
    target: str
    client: str
    weight: float | None
    fall: float
    half: float | None
    measured: int
    rounds: int

    @property
    def sign(self) -> int:
        """1 if the interval lies above 0, -1 if below, else 0."""
        return 0 if self.half is None or abs(self.fall) <= self.half else 1 if self.fall > 0 else -1

    def in_words(self, names: Mapping[str, str], loss_name: str = "log-loss") -> str:
        """One sentence, which claims nothing of later rounds, in which that client might have been missing."""
        client, target = (printable(names.get(name, name)) for name in (self.client, self.target))
        whose, loss = f"{client}'s updates", f"{target}'s validation {loss_name}"
        if self.client == self.target:
            whose, loss = f"{client}'s own updates", f"its validation {loss_name}"
        when = f"In {self.measured} measured of {self.rounds} rounds"
        if self.half is None:
            change = number(-self.fall)
            return f"{when} {whose} changed {loss} by {change}; fewer than {FEWEST_SEEDS} seeds tell no interval."
        fall = f"{number(self.fall)} [{number(self.fall - self.half)}, {number(self.fall + self.half)}]"
        rise = f"{number(-self.fall)} [{number(-self.fall - self.half)}, {number(-self.fall + self.half)}]"
        if not self.sign:
            return f"{when} {whose} neither clearly lowered nor clearly raised {loss}: it changed by {rise}."
        if self.sign > 0:
            return f"{when} {whose} lowered {loss} by {fall}."
        despite = f", with a weight of {number(self.weight)}" if (self.weight or 0.0) >= SMALLEST_WEIGHT else ""
        return f"{when} {whose} raised {loss} by {rise}{despite}."


def contributions(results: Results) -> list[Contribution]:
    """Return all contributions of a run, by method, target and client; none where none were measured."""
    path = results.folder / "contribution.csv"
    if not path.is_file():
        return []
    sums: dict[tuple[str, str, str], dict[int, dict[str, float]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(float))
    )
    measured: dict[str, set[int]] = defaultdict(set)
    for method, seed, fold, at, target, client, fall in zip(*csv_columns(path, _COLUMNS), strict=True):
        sums[method, target, client][seed][fold] += fall
        measured[method].add(at)
    rounds = int(results.experiment.get("run", {}).get("rounds", max(max(seen) for seen in measured.values())))
    every = []
    for (method, target, client), by_seed in sums.items():
        falls = np.array([np.mean(list(folds.values())) for folds in by_seed.values()])
        ratio = results.size(target) / results.size(target, "n_train")
        error = over_seeds(falls, ratio if math.isfinite(ratio) else 1.0) if falls.size >= FEWEST_SEEDS else None
        half = None if error is None else student(float(falls.mean()), error)[0]
        weight = _weight(results, method, target, client)
        every.append(
            Contribution(method, target, client, weight, float(falls.mean()), half, len(measured[method]), rounds)
        )
    return every


def _weight(results: Results, method: str, target: str, client: str) -> float | None:
    weights = results.weights.get(method)
    row = next((t for t in (target, "*") if weights is not None and t in weights.targets), None)
    if weights is None or row is None or client not in weights.clients:
        return None
    return float(weights.late()[weights.targets.index(row), weights.clients.index(client)])
