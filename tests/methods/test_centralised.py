"""What must hold where all rows lie in one place."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from short_runs import MINI, ONE, trained
from torch import nn

import coterie as ct
from coterie import Centralised, FedAvg, FixedEffects, Local
from coterie.config.local import Steps
from federations import (
    assert_close,
    logistic,
    subset,
)

MUTANTS = {
    "centralised": [
        ("algorithms/centralised.py", "size * len(federation.clients)", "size"),
        (
            "algorithms/centralised.py",
            "state.x + replies.delta[0]",
            "state.x + replies.delta[0] / len(federation.clients)",
        ),
        ("algorithms/centralised.py", "INTERCEPTS = 20", "INTERCEPTS = 2"),
        (
            "algorithms/centralised.py",
            "of_everyone[name] for name in names",
            "of_everyone[name] for name in reversed(names)",
        ),
    ],
}


def test_centralised_with_one_step_on_all_rows_is_fedavg():
    problem = logistic()
    assert_close(
        trained(Centralised(ONE, exact=False), problem, 4).x,
        trained(FedAvg(ONE), problem, 4).x,
    )
    two = replace(ONE, steps=Steps(2))
    assert (
        trained(Centralised(two, exact=False), problem).x
        - trained(FedAvg(two), problem).x
    ).abs().max() > 1e-5


@pytest.mark.in_turn
def test_centralised_with_one_client_is_local():
    problem = logistic()
    alone = problem.with_clients(subset(problem.clients, "d"))
    local = replace(ONE, steps=Steps(5), momentum=0.5)
    assert_close(
        trained(Centralised(local, exact=False), alone).x,
        trained(Local(local, exact=False), alone).x,
    )


def test_centralised_makes_batches_of_all_participants():
    problem = logistic()
    found = trained(Centralised(MINI, exact=False), problem, 2, clients_per_round=3)
    assert found.history.select("row_gradients")[-1] == (2, 2 * 3 * 4 * 3)
    assert [r.clients for r in found.asks if "own_update" in r.task] == [1, 1]


def federation(kind: str) -> ct.Clients:
    """Three clients with one slope and intercepts far apart."""
    generator = torch.Generator().manual_seed(0)
    parts = {}
    for name, size, shift in (("a", 30, -2.0), ("b", 45, 0.0), ("c", 20, 1.5)):
        inputs = torch.randn(size, 2, generator=generator)
        score = inputs[:, 0] + shift + torch.randn(size, generator=generator)
        labels = (score > 0).long()
        if kind == "classes":
            labels = labels + (score > 1)
        parts[name] = (inputs, score if kind == "regression" else labels)
    return ct.data.from_tensors(parts)


@pytest.mark.in_turn(but=("binary-1.0", "regression-9.0"))
@pytest.mark.parametrize("ridge", [1.0, 9.0])
@pytest.mark.parametrize("kind", ["binary", "classes", "regression"])
def test_of_a_linear_model_it_is_what_fixed_effects_comes_to(kind, ridge):
    data, model = federation(kind), nn.Linear(2, 3 if kind == "classes" else 1)
    pooled = ct.fit(Centralised(ridge=ridge), data, model, rounds=1).models
    shared = ct.fit(FixedEffects(ridge=ridge), data, model, rounds=12).models
    for name in ("*", *data.names):
        assert_close(pooled[name], shared[name], 1e-6)
    assert (pooled["a"] - pooled["c"]).abs().max() > 1


def test_rounds_after_the_first_change_no_solution_and_steps_go_on():
    data, model = federation("binary"), nn.Linear(2, 1)
    for method, stands in ((Centralised(), True), (Centralised(exact=False), False)):
        once, thrice = (ct.fit(method, data, model, rounds=r).models for r in (1, 3))
        assert all(torch.equal(once[name], thrice[name]) is stands for name in once)


@pytest.mark.parametrize("case", ["attack", "layers"])
def test_where_a_model_is_not_solved_for_it_takes_steps(case):
    data = federation("binary")
    layers = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    model = layers if case == "layers" else nn.Linear(2, 1)
    attack = ct.attacks.SignFlip(on=("b",)) if case == "attack" else None
    found, stepped = (
        ct.fit(Centralised(exact=exact), data, model, rounds=2, attack=attack).x
        for exact in (True, False)
    )
    assert torch.equal(found, stepped)


def test_a_ridge_of_zero_is_refused():
    with pytest.raises(ct.InputError, match="ridge"):
        Centralised(ridge=0.0)
