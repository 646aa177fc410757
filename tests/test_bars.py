"""What partial pooling and the words must reach through `ct.compare`, on federations whose truth is known.

The kinds are drawn by a seed that no table of docs/statistics.md shows. The rival is the linear model alone. The truth of a
client is the mean gain of the models of two further training sets of the same sizes, on new rows. A bar is an average over
kinds and no guarantee for one federation.
"""

from __future__ import annotations

import csv
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from benchmarks.federations import Client, drawn, losses, scores_of

import coterie as ct
from coterie.base.clients import Client as Rows
from coterie.base.clients import Clients
from coterie.base.rows import Part
from coterie.report.verdicts import JOINS, STRENGTH

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SEED, FEDERATIONS, TRUTHS, FRESH = 20270101, 2, 2, 4000
BIAS = ("fedavg", "fedavg+bias")
"""Methods that are added, and must weaken no word."""


class Told(NamedTuple):
    """What one client is told, and what is true.

    Attributes:
        kind: of the federation.
        federation: kind and number.
        rows: of the client.
        word, gain, low, high: what it is told with partial as the only federated method.
        more: the word with the methods `BIAS`, too; None where they were not run.
        truth: the mean true gain of models trained like that.
    """

    kind: str
    federation: str
    rows: int
    word: str
    gain: float
    low: float
    high: float
    more: str | None
    truth: float


def write(clients: list[Client], folder: Path, rng: np.random.Generator) -> None:
    """A table of each client."""
    for i, client in enumerate(clients):
        inputs, labels, _ = client.draw(client.rows, rng)
        names = [f"x{j}" for j in range(inputs.shape[1])]
        with open(folder / f"c{i:02d}.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*names, "y"])
            table.writerows(
                [*row, int(label)]
                for row, label in zip(inputs.tolist(), labels, strict=True)
            )


def true_gains(clients: list[Client], rng: np.random.Generator) -> np.ndarray:
    """The gain of partial over local on new rows, for each of `TRUTHS` training sets [TRUTHS, clients]."""
    fresh = [client.draw(FRESH, rng)[:2] for client in clients]
    gains = []
    for _ in range(TRUTHS):
        rows = []
        for i, client in enumerate(clients):
            inputs, labels, _ = client.draw(client.rows, rng)
            part = Part(torch.tensor(inputs), torch.tensor(labels, dtype=torch.int64))
            rows.append(Rows(f"c{i:02d}", part))
        layer = torch.nn.Linear(fresh[0][0].shape[1], 1).double()
        pair = [
            ct.fit(method, Clients(rows), model=layer, rounds=2).models
            for method in (ct.Local(), ct.Partial())
        ]
        of_set = []
        for i, (inputs, labels) in enumerate(fresh):
            alone, pooled = (
                losses(
                    scores_of(inputs, models[f"c{i:02d}"].numpy()), labels, False, 1.0
                ).mean()
                for models in pair
            )
            of_set.append(alone - pooled)
        gains.append(of_set)
    return np.array(gains)


def told(kind: str, draw, number: int) -> list[Told]:
    """What the clients of one federation are told, and the truth."""
    rng = np.random.default_rng([SEED, *kind.encode(), number])
    clients = draw(rng)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "rows"
        folder.mkdir()
        write(clients, folder, rng)
        data = {"folder": str(folder), "label": "y", "split": {"folds": 5}}

        def compare(methods: tuple[str, ...], *, resume: bool) -> ct.Comparison:
            settings = ct.StudySettings(
                rivals=("linear",), metrics=(), evaluate=2, resume=resume
            )
            run = Path(place) / "run"
            return ct.compare(
                methods, data, rounds=2, seeds=2, folder=run, settings=settings
            )

        one = compare(("local", "partial"), resume=False)
        words = [one.verdict(client) for client in one.clients]
        more: list[str | None] = [None] * len(words)
        if number == 0:
            several = compare(("local", "partial", *BIAS), resume=True)
            more = [several.verdict(client).kind for client in several.clients]
    truths = true_gains(clients, rng).mean(0)
    return [
        Told(
            kind,
            f"{kind}/{number}",
            clients[i].rows,
            word.kind,
            word.gain,
            word.low,
            word.high,
            more[i],
            float(truths[i]),
        )
        for i, word in enumerate(words)
    ]


@pytest.fixture(scope="module")
def judged() -> list[Told]:
    kinds = drawn(SEED)
    return [
        one
        for number in range(FEDERATIONS)
        for kind, draw in kinds.items()
        for one in told(kind, draw, number)
    ]


def by_kind(judged: list[Told]) -> dict[str, list[float]]:
    """The true gains of each kind."""
    gains: dict[str, list[float]] = defaultdict(list)
    for one in judged:
        gains[one.kind].append(one.truth)
    return gains


def share(judged: list[Told], counted) -> float:
    """The share of clients that are counted."""
    return float(np.mean([counted(one) for one in judged]))


def test_partial_pooling_gains_and_harms_few(judged: list[Told]) -> None:
    """One training set as truth would show several times as many harmed: its luck moves a gain by about .01."""
    gains = by_kind(judged)
    means = [float(np.mean(of_kind)) for of_kind in gains.values()]
    harmed = [float(np.mean(np.array(of_kind) < -0.01)) for of_kind in gains.values()]
    assert np.mean(means) >= 0.018
    assert min(means) >= -0.006
    assert np.mean(harmed) <= 0.04


def test_gains_are_told_and_few_who_are_told_lose(judged: list[Told]) -> None:
    gaining = [one for one in judged if one.truth > 0.02]
    joining = [one for one in judged if one.word in JOINS]
    assert share(gaining, lambda one: one.word in JOINS) >= 0.85
    assert share(joining, lambda one: one.truth < -0.01) <= 0.03
    assert share(judged, lambda one: one.word in ("undecided", "mixed")) <= 0.20


def test_intervals_hold_and_gains_are_not_biased(judged: list[Told]) -> None:
    assert share(judged, lambda one: one.low <= one.truth <= one.high) >= 0.90
    off: dict[str, list[float]] = defaultdict(list)
    for one in judged:
        if 60 <= one.rows <= 150:
            off[one.federation].append(one.gain - one.truth)
    # Clients of a federation share the luck of its rows, so federations are counted.
    means = [float(np.mean(of_one)) for of_one in off.values()]
    error = float(np.std(means, ddof=1)) / np.sqrt(len(means))
    assert abs(np.mean(means)) <= 0.007 + 1.96 * error


def test_methods_that_are_added_weaken_no_word(judged: list[Told]) -> None:
    added = [one for one in judged if one.more is not None]
    assert added
    for one in added:
        assert STRENGTH[one.more] >= STRENGTH[one.word]
