"""FedDyn: its first round, two rounds by hand, where it ends, what a loss of memory does, and that it needs exact uploads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from coterie import FedAvg, FedDyn, data
from coterie.algorithms import feddyn
from coterie.base.errors import InputError
from coterie.compute.step_hooks import Quadratic
from coterie.config.local import LocalSGD, Steps
from coterie.contract.task import Task
from federations import (
    Problem,
    assert_close,
    batch_norm,
    cohort_of,
    fit,
    logistic,
    seeded,
    start,
)

MUTANTS = {
    "feddyn": [
        ("algorithms/feddyn.py", "correction=-dual", "correction=None"),
        ("algorithms/feddyn.py", "correction=-dual", "correction=dual"),
        ("algorithms/feddyn.py", "penalty=Quadratic(alpha)", "penalty=None"),
        (
            "algorithms/feddyn.py",
            "dual - alpha * delta[:, : cohort.layout.dim]",
            "dual",
        ),
        ("algorithms/feddyn.py", "mean[:d] - dual / self.alpha", "mean[:d]"),
        (
            "algorithms/feddyn.py",
            "len(average) / len(federation.everyone) * mean[:d]",
            "mean[:d]",
        ),
        (
            "algorithms/feddyn.py",
            "return State(state.x + mean, torch.zeros_like(state.dual)), log",
            "return State(state.x + mean, state.dual), log",
        ),
    ],
}

FULL = LocalSGD(lr=0.2, steps=Steps(3), batch_size=None)
TEN = LocalSGD(lr=0.1, steps=Steps(10), batch_size=None)
ROWS = {"a": (1.0, 0.0), "b": (2.0, 4.0)}
"""Rows (x, y) of two clients with f_k(w) = (w x - y)^2: w^2 and (2 w - 4)^2, whose mean is least at 1.6."""


def parabolas() -> Problem:
    ones = torch.ones(8, 1, dtype=torch.float64)
    clients = data.from_tensors(
        {n: (x * ones, y * ones[:, 0]) for n, (x, y) in ROWS.items()}
    )
    return Problem(clients, seeded(lambda: nn.Linear(1, 1, bias=False), torch.float64))


def run(method, problem, rounds, **options):
    return fit(
        method,
        problem.clients,
        problem.model,
        rounds,
        merge_validation=False,
        evaluate=rounds,
        **options,
    )


def limit(method, rounds=60, **options) -> float:
    return float(run(method, parabolas(), rounds, metrics=(), **options).x)


# ---- laws


@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_the_first_round_moves_by_twice_the_mean_update(make):
    problem = make()
    x, cohort = start(problem), cohort_of(problem)
    d = cohort.layout.dim
    mean = cohort.updates(x, FULL, penalty=Quadratic(0.5)).mean(0)
    assert_close(
        run(FedDyn(FULL, alpha=0.5), problem, 1).x,
        x + torch.cat([2 * mean[:d], mean[d:]]),
    )


@pytest.mark.parametrize("participants", [None, 1])
def test_two_rounds_by_hand(participants):
    alpha, lr = 0.7, 0.1
    problem = parabolas()
    found = run(FedDyn(TEN, alpha=alpha), problem, 4, clients_per_round=participants)
    x, dual, own = float(start(problem)), 0.0, dict.fromkeys(ROWS, 0.0)
    for number in range(1, 5):
        drawn = [
            n
            for n in ROWS
            if participants is None or took_part(problem, alpha, number, n)
        ]
        deltas = {}
        for name in drawn:
            a, b = ROWS[name]
            y = x
            for _ in range(10):
                y -= lr * (2 * a * (a * y - b) - own[name] + alpha * (y - x))
            deltas[name] = y - x
            own[name] -= alpha * deltas[name]
        dual -= alpha / len(ROWS) * sum(deltas.values())
        x += sum(deltas.values()) / len(deltas) - dual / alpha
    assert float(found.x) == pytest.approx(x, abs=1e-12)
    assert dual == pytest.approx(sum(own.values()) / len(ROWS), abs=1e-12)


def took_part(problem, alpha, number, name) -> bool:
    seen = run(FedDyn(TEN, alpha=alpha), problem, number, clients_per_round=1)
    return name in seen.weights["*"]


@pytest.mark.in_turn
def test_the_fixed_point_is_the_optimum_of_the_uniform_mean():
    assert limit(FedAvg(TEN)) == pytest.approx(
        1.0567, abs=5e-5
    )  # clients count alike here, and FedAvg drifts
    assert limit(FedDyn(TEN, alpha=1.0)) == pytest.approx(1.6, abs=1e-6)
    assert limit(FedDyn(TEN, alpha=0.3), rounds=120) == pytest.approx(1.6, abs=1e-4)
    top = (2 * 2.0 * 4.0) / (
        2 * (1 + 4) + 2 * 0.5
    )  # weight decay is part of each client's loss
    assert limit(FedDyn(replace(TEN, weight_decay=0.5), alpha=1.0)) == pytest.approx(
        top, abs=1e-6
    )


def test_the_fixed_point_is_the_optimum_also_with_some_clients_a_round():
    assert limit(FedDyn(TEN, alpha=1.0), clients_per_round=1) == pytest.approx(
        1.6, abs=1e-4
    )


def test_the_fixed_point_is_the_optimum_also_after_a_loss_of_memory(monkeypatch):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if self is feddyn.dynamic_update and cohort.round == 12 and "b" in cohort.names:
            cohort.memory._memory.forget(["b"])
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)
    found = run(FedDyn(TEN, alpha=1.0), parabolas(), 60)
    assert [(r.round, r.client) for r in found.history if r.metric == "dual_lost"] == [
        (12, "b")
    ]
    assert "round 12" in found.failures["b"]
    assert "its dual variable was lost" in found.failures["b"]
    assert float(found.x) == pytest.approx(1.6, abs=1e-6)


# ---- what it says of itself


def test_it_needs_exact_uploads_and_a_positive_alpha():
    assert FedDyn().needs_exact_uploads
    with pytest.raises(InputError, match=r"FedDyn\.alpha must be a number > 0; got 0"):
        FedDyn(alpha=0)
