"""What must hold of FedAdp, and rounds recomputed with numpy alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from short_runs import MINI, assert_resumes, between, descent, run, unplug

from coterie import FedAdp, FedAvg
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rows import Part
from coterie.config.local import LocalSGD, Steps
from coterie.contract.federation import QuorumError
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    logistic,
    quadratic,
    start,
    subset,
)

MUTANTS = {
    "fedadp": [
        (
            "algorithms/fedadp.py",
            "gompertz(now, self.alpha) + sizes.log()",
            "sizes.log()",
        ),
        (
            "algorithms/fedadp.py",
            "gompertz(now, self.alpha) + sizes.log()",
            "gompertz(now, self.alpha)",
        ),
        (
            "algorithms/fedadp.py",
            "now = sums[0, positions] / sums[1, positions]",
            "now = now.clone()",
        ),
        (
            "algorithms/fedadp.py",
            "(sizes / sizes.sum()).to(heads.device) @ heads",
            "heads.mean(0)",
        ),
        (
            "algorithms/fedadp.py",
            "return heads[clients.index(self.reference)]",
            "return heads.mean(0)",
        ),
    ],
}

FULL = LocalSGD(lr=0.4, steps=Steps(3), batch_size=None)


@pytest.mark.parametrize("reference", ["global", "d"])
@pytest.mark.parametrize(
    ("by_size", "running_mean"), [(True, True), (False, False), (True, False)]
)
def test_fedadp_by_hand(reference, by_size, running_mean):
    problem = logistic()
    x, past, rounds = start(problem).numpy(), {n: [] for n in SIZES}, 3
    for _ in range(rounds):
        delta = {n: descent(problem, n, x, FULL) for n in SIZES}
        sizes = {n: SIZES[n] if by_size else 1 for n in SIZES}
        average = sum(sizes[n] * delta[n] for n in SIZES) / sum(sizes.values())
        axis = average if reference == "global" else delta[reference]
        weights = {}
        for n in SIZES:
            past[n].append(0.0 if n == reference else between(delta[n], axis))
            angle = sum(past[n]) / len(past[n]) if running_mean else past[n][-1]
            weights[n] = sizes[n] * math.exp(
                2.0 * (1 - math.exp(-math.exp(-2.0 * (angle - 1))))
            )
        weights = {n: w / sum(weights.values()) for n, w in weights.items()}
        x = x + 0.7 * sum(weights[n] * delta[n] for n in SIZES)
    method = FedAdp(FULL, 0.7, 2.0, reference, by_size, running_mean)
    found = run(method, problem, rounds)
    np.testing.assert_allclose(found.x.numpy(), x, atol=1e-7)
    assert found.weights["*"] == pytest.approx(weights, abs=1e-7)
    assert (
        max(abs(weights[n] - SIZES[n] / sum(SIZES.values())) for n in SIZES) > 0.02
    )  # FedAvg would fail


def test_fedadp_with_equal_angles_is_fedavg():
    problem = batch_norm()
    rows = problem.clients["b"].train
    twins = Clients([Client(n, rows) for n in "abc"])
    local = replace(FULL, lr=0.1)
    one, other = (
        run(FedAdp(local), problem.with_clients(twins)),
        run(FedAvg(local), problem.with_clients(twins)),
    )
    assert_close(one.x, other.x)
    # One client points along with itself, whatever its size; two that differ do not.
    lone = problem.with_clients(subset(problem.clients, "d"))
    assert_close(run(FedAdp(MINI), lone).x, run(FedAvg(MINI), lone).x)
    assert (
        run(FedAdp(MINI), problem).x - run(FedAvg(MINI), problem).x
    ).abs().max() > 1e-4


def test_fedadp_a_client_that_points_away_counts_less_whatever_its_size():
    problem = quadratic(
        {"a": [1.0, 0.2], "b": [1.0, -0.2], "c": [-1.0, 0.1]}, {"a": 4, "b": 4, "c": 6}
    )
    local = LocalSGD(lr=0.1, steps=Steps(1), batch_size=None)
    weights = run(FedAdp(local), problem, 1).weights["*"]
    assert weights["c"] < 0.02
    assert weights["a"] == pytest.approx(weights["b"], rel=0.5)
    # Towards c as the target it is the other way round.
    assert run(FedAdp(local, reference="c"), problem, 1).weights["*"]["c"] > 0.9


def test_fedadp_a_duplicated_client_counts_twice():
    problem = logistic()
    twice = problem.with_clients(
        Clients([*problem.clients, Client("a-again", problem.clients["a"].train)])
    )
    rows = problem.clients["a"].train
    both = Part(rows.inputs.repeat(2, 1), rows.labels.repeat(2))
    heavier = problem.with_clients(
        Clients([*[c for c in problem.clients if c.name != "a"], Client("a", both)])
    )
    one, other = run(FedAdp(FULL), twice), run(FedAdp(FULL), heavier)
    assert_close(one.x, other.x, 1e-10)
    assert one.weights["*"]["a"] * 2 == pytest.approx(other.weights["*"]["a"], rel=1e-9)


def test_fedadp_takes_the_mean_over_rounds_in_which_a_client_took_part():
    problem = logistic()
    found = run(FedAdp(MINI), problem, 4, clients_per_round=2)
    assert found.state.angles[1].sum() == 8
    means = found.state.angles[0] / found.state.angles[1].clamp(min=1)
    last = {
        r.client: r.value for r in found.history if r.round == 4 and r.metric == "angle"
    }
    assert len(last) == 2
    for name, value in last.items():
        assert value == pytest.approx(float(means[list(SIZES).index(name)]), abs=1e-15)
    assert not run(FedAdp(MINI, running_mean=False), problem, 4).state.angles.any()


def test_fedadp_asks_a_reference_that_takes_no_part():
    problem = logistic()
    found = run(FedAdp(FULL, reference="c"), problem, 6, clients_per_round=2)
    by_round = {}
    for number, _, client, _ in found.weight_rows:
        by_round.setdefault(number, set()).add(client)
    asked = {r.round for r in found.asks if r.task.endswith(":own_update")}
    assert asked == {number for number, names in by_round.items() if "c" not in names}
    assert 0 < len(asked) < 6
    # The update is the same wherever it comes from: with c among two clients, or beside them.
    delta = {n: descent(problem, n, start(problem).numpy(), FULL) for n in SIZES}
    first = {
        r.client: r.value for r in found.history if r.round == 1 and r.metric == "angle"
    }
    assert first == pytest.approx(
        {n: 0.0 if n == "c" else between(delta[n], delta["c"]) for n in first}, abs=1e-7
    )


def test_fedadp_a_lost_reference(monkeypatch):
    problem = logistic()
    unplug(monkeypatch, "c")
    with pytest.raises(QuorumError, match=r"own_update.*c \(OSError: unplugged\)"):
        run(FedAdp(MINI, reference="c"), problem)


@pytest.mark.in_turn
def test_resumed_and_repeated_runs_agree(tmp_path):
    assert_resumes(FedAdp(MINI, reference="b"), tmp_path)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedAdp(lr=0), "FedAdp.lr must be a number > 0; got 0"),
        (lambda: FedAdp(alpha=-1), "FedAdp.alpha must be a number > 0; got -1"),
        (
            lambda: FedAdp(reference=""),
            "FedAdp.reference must be \"global\" or a client's name; got ''",
        ),
        (lambda: FedAdp(by_size=1), "FedAdp.by_size must be true or false; got 1"),
        (
            lambda: FedAdp(running_mean="no"),
            "FedAdp.running_mean must be true or false; got 'no'",
        ),
        (
            lambda: run(FedAdp(reference="z"), logistic()),
            "FedAdp.reference names 'z', which is not a client",
        ),
    ],
)
def test_bad_fields_are_named(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
