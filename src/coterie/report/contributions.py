"""The contributions of a run beside its weights: what the updates of each client did to the validation loss of each target."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np

from coterie.compute.outcomes import student
from coterie.report.files import Columns, csv_columns
from coterie.report.results import Results
from coterie.report.statistics import FEWEST_SEEDS, over_seeds
from coterie.report.text import number, printable
from coterie.run.files import FEWEST_VALIDATION_ROWS

_COLUMNS: Columns = {
    "method": str,
    "seed": int,
    "fold": str,
    "round": int,
    "target": str,
    "client": str,
    "phi": float,
}
SMALLEST_WEIGHT = 0.01
"""Weight from which on it is said that a client has one and yet raises the loss."""
ALIKE = 0.1
"""Twins: their contributions differ by less than this share of the larger ones (planted and found in
`benchmarks/contribution.py`)."""
FEWEST_SHARED = 4
"""Rounds and targets in which both twins must have been measured."""

Phi = Mapping[tuple[int, str], Mapping[str, float]]
"""Contributions of one run: by round and target, those of each client."""


class Contribution(NamedTuple):
    """Effect of the updates of one client on one target.

    Attributes:
        method, target, client: whose.
        weight: its mean weight in the target's model, in the second half of the rounds; None where none is logged.
        fall: sum over the measured rounds of the fall of the target's validation log-loss, mean over seeds and folds.
        half: half of its 95 % interval over seeds; None for fewer than three.
        measured, rounds: how many rounds were measured, and how many there were.
        game: what the others would have done without it.
    """

    method: str
    target: str
    client: str
    weight: float | None
    fall: float
    half: float | None
    measured: int
    rounds: int
    game: str = "renormalised"

    @property
    def sign(self) -> int:
        """1 if the interval lies above 0, -1 if below, else 0."""
        if self.half is None or abs(self.fall) <= self.half:
            return 0
        return 1 if self.fall > 0 else -1

    def in_words(self, names: Mapping[str, str], loss_name: str = "log-loss") -> str:
        """One sentence, which claims nothing of later rounds, in which that client might have been missing."""
        client = printable(names.get(self.client, self.client))
        target = printable(names.get(self.target, self.target))
        whose, loss = f"{client}'s updates", f"{target}'s validation {loss_name}"
        if self.client == self.target:
            whose, loss = f"{client}'s own updates", f"its validation {loss_name}"
        lead = f"In {self.measured} measured of {self.rounds} rounds"
        if self.game == "renormalised":
            # In some pairs its sum has the other sign than retraining (benchmarks/contribution.py).
            lead += ", each taken alone,"
        if self.half is None:
            change = number(-self.fall)
            return f"{lead} {whose} changed {loss} by {change}; fewer than {FEWEST_SEEDS} seeds tell no interval."
        fall = _with_interval(self.fall, self.half)
        rise = _with_interval(-self.fall, self.half)
        if not self.sign:
            return f"{lead} {whose} neither clearly lowered nor clearly raised {loss}: it changed by {rise}."
        if self.sign > 0:
            return f"{lead} {whose} lowered {loss} by {fall}."
        despite = ""
        if self.weight is not None and self.weight >= SMALLEST_WEIGHT:
            despite = f", with a weight of {number(self.weight)}"
        return f"{lead} {whose} raised {loss} by {rise}{despite}."


def _with_interval(mean: float, half: float) -> str:
    return f"{number(mean)} [{number(mean - half)}, {number(mean + half)}]"


class Sign(NamedTuple):
    """A pattern in the contributions of one client, or of two.

    Attributes:
        kind: `rider`: no update changed the loss of anybody, which in the fixed game is so for zeros; `saboteur`: all updates together
            raised the loss of most clients, its own among them; `twin`: two clients did the same to everybody in each measured round.
        clients: which one, or which two.
    """

    kind: Literal["rider", "saboteur", "twin"]
    clients: tuple[str, ...]

    def in_words(self, names: Mapping[str, str], times: int, runs: int) -> str:
        """One sentence: what was seen in so many of all trainings of a method, and what may be behind it."""
        shown = [printable(names.get(name, name)) for name in self.clients]
        lead = f"In {times} of {runs} trainings"
        if self.kind == "rider":
            return f"{lead} {shown[0]}'s updates changed nobody's loss at all: they were zeros, or had no weight."
        if self.kind == "saboteur":
            return (
                f"{lead} {shown[0]}'s updates raised the validation loss of most clients, its own among them: training there may be "
                f"broken, or {shown[0]} may mean harm."
            )
        return f"{lead} {shown[0]}'s and {shown[1]}'s updates did nearly the same to everybody: they may have the same rows."


def conspicuous(phi: Phi) -> Iterator[Sign]:
    """Yield what the contributions of one run show of its clients. They say nothing of how long updates are."""
    totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (_, target), by_client in phi.items():
        for client, fall in by_client.items():
            totals[client][target] += fall
    for client, falls in totals.items():
        raised = sum(fall < 0 for fall in falls.values())
        if not any(by_client.get(client) for by_client in phi.values()):
            yield Sign("rider", (client,))
        elif falls.get(client, 0.0) < 0 and 2 * raised > len(falls):
            yield Sign("saboteur", (client,))
    for one, two in itertools.combinations(sorted(totals), 2):
        if _are_twins(phi, one, two):
            yield Sign("twin", (one, two))


def _are_twins(phi: Phi, one: str, two: str) -> bool:
    """Whether two clients did nearly the same wherever both were measured, and that was often enough and not nothing."""
    clients = {one, two}
    shared = [falls for falls in phi.values() if clients <= falls.keys()]
    if len(shared) < FEWEST_SHARED:
        return False
    falls = np.array([(by_client[one], by_client[two]) for by_client in shared])
    size = np.linalg.norm(falls, axis=0).max()
    gap = np.linalg.norm(falls[:, 0] - falls[:, 1])
    return bool(size > 0 and gap < ALIKE * size)


def signs(results: Results) -> Iterator[tuple[str, Sign, int, int]]:
    """Yield method, what its contributions show, in how many trainings, and of how many; the most frequent first."""
    # By training (method, seed, fold), then by round and target: what each client added there.
    trained: dict[tuple[str, int, str], dict[tuple[int, str], dict[str, float]]] = (
        defaultdict(lambda: defaultdict(dict))
    )
    for method, seed, fold, round_number, target, client, fall in _rows(results):
        trained[method, seed, fold][round_number, target][client] = fall
    runs = Counter(method for method, _, _ in trained)
    counts: Counter[tuple[str, Sign]] = Counter()
    for (method, _, _), phi in trained.items():
        counts.update((method, sign) for sign in conspicuous(phi))
    for (method, sign), times in counts.most_common():
        if 2 * times > runs[method]:
            yield method, sign, times, runs[method]


def silent_targets(results: Results, measured: Iterable[Contribution]) -> Iterator[str]:
    """Yield a sentence about each client that kept too few validation rows to be told anything, by method that was measured."""
    told_targets: dict[str, set[str]] = defaultdict(set)
    for contribution in measured:
        told_targets[contribution.method].add(contribution.target)
    if not told_targets and "contribution" in results.experiment.get("run", {}):
        yield f"Too few rows to tell: no client kept {FEWEST_VALIDATION_ROWS} validation rows."
    for method, targets in told_targets.items():
        for client in results.clients_of(method):
            if client not in targets:
                name = results.names[client]
                yield f"{printable(method)}, {name}: too few rows to tell (fewer than {FEWEST_VALIDATION_ROWS} validation rows)."


def _rows(results: Results) -> Iterator[tuple[str, int, str, int, str, str, float]]:
    """Rows of contribution.csv; none where nothing was measured."""
    path = results.folder / "contribution.csv"
    if not path.is_file():
        return iter(())
    return zip(*csv_columns(path, _COLUMNS), strict=True)


def contributions(results: Results) -> list[Contribution]:
    """Return all contributions of a run, by method, target and client; none where none were measured."""
    sums: dict[tuple[str, str, str], dict[int, dict[str, float]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(float))
    )
    measured: dict[str, set[int]] = defaultdict(set)
    for method, seed, fold, round_number, target, client, fall in _rows(results):
        sums[method, target, client][seed][fold] += fall
        measured[method].add(round_number)
    if not sums:
        return []
    run = results.experiment.get("run", {})
    last_measured = max(itertools.chain(*measured.values()))
    rounds = int(run.get("rounds", last_measured))
    game = str(run.get("contribution", {}).get("game", "renormalised"))
    every = []
    for (method, target, client), by_seed in sums.items():
        falls = np.array([np.mean(list(folds.values())) for folds in by_seed.values()])
        half = None
        if falls.size >= FEWEST_SEEDS:
            ratio = results.size(target) / results.size(target, "n_train")
            if not math.isfinite(ratio):
                ratio = 1.0  # not known: the cautious end
            error = over_seeds(falls, ratio)
            if error is not None:
                half, _ = student(float(falls.mean()), error)
        weight = _weight(results, method, target, client)
        every.append(
            Contribution(
                method,
                target,
                client,
                weight,
                float(falls.mean()),
                half,
                len(measured[method]),
                rounds,
                game,
            )
        )
    return every


def _weight(results: Results, method: str, target: str, client: str) -> float | None:
    weights = results.weights.get(method)
    if weights is None or client not in weights.clients:
        return None
    column = weights.clients.index(client)
    # "*" is the target of a method with one model for all.
    for name in (target, "*"):
        if name in weights.targets:
            return float(weights.late()[weights.targets.index(name), column])
    return None
