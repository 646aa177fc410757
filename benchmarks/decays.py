"""How far the choice of a weight decay flatters training alone, by simulation.

In a run with folds each client chooses the weight decay of its own model by the mean validation loss over all folds. The validation
rows of one fold are test rows of another, so the choice has seen them, and the loss that is tested is lower than that of new rows. Here
clients of one distribution choose so, and a second time without the rows of the fold that is tested. The flattery is how much lower
than on fresh rows the tested loss is, beside the same difference under a penalty of 3 for all, which nobody chooses.

Writes benchmarks/results/decays.json and what stands between the `decays` markers of docs/statistics.md.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.federations import Array, Client, losses
from benchmarks.pages import between
from benchmarks.verdicts import decimals
from coterie.base.files import write_atomically
from coterie.base.folds import deal_folds
from coterie.study.search import PENALTIES

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "decays.json"
SIZES = ((6, 25), (60, 60), (120, 120), (300, 300))
CLIENTS, FOLDS, REPEATS, FRESH = 150, 5, 2, 3000
STEPS, RATE = 150, 0.3
FIXED = PENALTIES.index(3)
CLIENT = Client(0, np.array([1, -0.8, 0.5, 0, 0.3]))


class Fold(NamedTuple):
    """One fold of a client: losses by row and penalty.

    Attributes:
        tested: Test rows.
        test: Losses of the model of all other rows on them, [rows, penalties].
        chosen_by: Validation rows.
        validation: Losses on them of the model of the rest, [rows, penalties].
        true: Mean losses of the first model on fresh rows, [penalties].
    """

    tested: Array
    test: Array
    chosen_by: Array
    validation: Array
    true: Array


def fit(inputs: Array, labels: Array) -> Array:
    """Coefficients of logistic regression by gradient descent under each penalty, [inputs, penalties]."""
    decays, x = (
        np.array(PENALTIES) / len(labels),
        np.zeros((inputs.shape[1], len(PENALTIES))),
    )
    for _ in range(STEPS):
        gradient = (
            inputs.T @ (1 / (1 + np.exp(-inputs @ x)) - labels[:, None]) / len(labels)
        )
        x = (x - RATE * gradient) / (1 + RATE * decays)
    return x


def _losses(x: Array, inputs: Array, labels: Array) -> Array:
    return losses(inputs @ x, labels[:, None], numbers=False, variance=1.0)


def train_folds(name: str, rows: int, rng: np.random.Generator) -> list[Fold]:
    """The folds of one client, over all repeats; a fifth of the training rows are for validation, as in a run."""
    inputs, labels, _ = CLIENT.draw(rows, rng)
    fresh = CLIENT.draw(FRESH, rng)[:2]
    folds = []
    for repeat in range(REPEATS):
        dealt = deal_folds(labels.astype(int), FOLDS, seed=repeat, name=name)
        for fold in range(FOLDS):
            tested, rest = (
                np.flatnonzero(dealt == fold),
                rng.permutation(np.flatnonzero(dealt != fold)),
            )
            chosen_by, kept = np.split(rest, [max(1, len(rest) // FOLDS)])
            held_back, whole = (
                fit(inputs[kept], labels[kept]),
                fit(inputs[rest], labels[rest]),
            )
            folds.append(
                Fold(
                    tested,
                    _losses(whole, inputs[tested], labels[tested]),
                    chosen_by,
                    _losses(held_back, inputs[chosen_by], labels[chosen_by]),
                    _losses(whole, *fresh).mean(axis=0),
                )
            )
    return folds


def choose(folds: Sequence[Fold], left_out: Array | None = None) -> int:
    """The penalty with the lowest mean validation loss over folds, the rows `left_out` having no say."""
    hidden = np.zeros(0, dtype=int) if left_out is None else left_out
    rows = [fold.validation[~np.isin(fold.chosen_by, hidden)] for fold in folds]
    return int(np.concatenate(rows).mean(axis=0).argmin())


def flattery(folds: Sequence[Fold], penalties: Sequence[int]) -> float:
    """How much lower the tested loss is than that of fresh rows under the penalty of each fold."""
    pairs = list(zip(folds, penalties, strict=True))
    tested = np.concatenate([fold.test[:, penalty] for fold, penalty in pairs]).mean()
    return float(np.mean([fold.true[penalty] for fold, penalty in pairs]) - tested)


def measure(sizes: tuple[int, int], clients: int) -> dict[str, list[float]]:
    """The flattery of each choice beyond that of a fixed penalty: mean over clients and standard error."""
    rng = np.random.default_rng([*sizes, 27])
    found: dict[str, list[float]] = {
        "all rows choose": [],
        "rows of other folds choose": [],
    }
    for client in range(clients):
        folds = train_folds(str(client), int(rng.integers(sizes[0], sizes[1] + 1)), rng)
        fixed = flattery(folds, [FIXED] * len(folds))
        found["all rows choose"].append(
            flattery(folds, [choose(folds)] * len(folds)) - fixed
        )
        apart = [choose(folds, fold.tested) for fold in folds]
        found["rows of other folds choose"].append(flattery(folds, apart) - fixed)
    return {
        how: [
            round(float(np.mean(values)), 4),
            round(float(np.std(values)) / math.sqrt(clients), 4),
        ]
        for how, values in found.items()
    }


def main(clients: int = CLIENTS) -> int:
    """Simulate, and write the results."""
    results = {
        f"{low} to {high}" if low < high else f"{low}": measure((low, high), clients)
        for low, high in SIZES
    }
    columns = list(next(iter(results.values())))
    lines = [f"| rows of a client | {' | '.join(columns)} |", "| --- | ---: | ---: |"]
    for rows, found in results.items():
        shares = [
            f"{decimals(value)} ± {decimals(error)}" for value, error in found.values()
        ]
        lines.append(f"| {rows} | {' | '.join(shares)} |")
    write_atomically(
        RESULTS, lambda p: p.write_text(json.dumps(results, indent=1) + "\n")
    )
    between(ROOT / "docs" / "statistics.md", "\n".join(lines), "decays")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
