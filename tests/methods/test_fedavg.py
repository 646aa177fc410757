"""What must hold of FedAvg: its recursion, invariances, and who takes part."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from short_runs import CENTRES, MINI, ONE, assert_follows_the_recursion, trained, unplug

from coterie import FedAvg, FedProx, Local
from coterie.base.clients import Client, Clients
from coterie.base.rows import Part
from coterie.base.vector import move
from coterie.config.local import Epochs, LocalSGD, Steps
from federations import (
    SIZES,
    assert_close,
    assert_same_bits,
    batch_norm,
    cohort_of,
    dropout,
    logistic,
    loss_of,
    model_at,
    quadratic,
    start,
    subset,
    vector_of,
)

MUTANTS = {
    "fedavg": [
        (
            "algorithms/fedavg.py",
            "average.by_client(average.weights)",
            "average.by_client(average.weights * 0 + 1 / len(average))",
        ),
        (
            "algorithms/fedavg.py",
            "x=state.x",
            "weights=state.x.new_ones(len(federation.clients)), x=state.x",
        ),
        (
            "algorithms/fedavg.py",
            "rate_of(self.lr, federation.round), federation.dim)",
            "1.0, federation.dim)",
        ),
    ],
}

quick = settings(derandomize=True, deadline=None)


@pytest.mark.parametrize("make", [logistic, dropout])
def test_one_step_on_all_rows_is_gradient_descent_on_the_size_weighted_loss(make):
    problem = make()
    if make is dropout:
        problem.model[2].p = 0.0
    together = problem.clients.pool_training_rows()
    for lr in (1.0, 0.7):
        model = model_at(problem, start(problem))
        for _ in range(3):
            parameters = list(model.parameters())
            grads = torch.autograd.grad(
                loss_of(model(together.inputs), together.labels), parameters
            )
            for p, g in zip(parameters, grads, strict=True):
                p.data -= lr * 0.2 * g
        assert_close(trained(FedAvg(ONE, lr), problem).x, vector_of(model))


@pytest.mark.parametrize("method", [FedAvg, FedProx])
def test_a_client_that_exists_twice_counts_twice(method):
    problem = logistic()
    local = replace(ONE, steps=Steps(4))
    a = problem.clients["a"]
    twice = Clients([*problem.clients, Client("a-again", a.train)])
    rows = a.train
    doubled = Part(
        torch.cat([rows.inputs, rows.inputs]), torch.cat([rows.labels, rows.labels])
    )
    heavier = Clients(
        [*[c for c in problem.clients if c.name != "a"], Client("a", doubled)]
    )
    one, other = (
        trained(method(local), problem.with_clients(twice)),
        trained(method(local), problem.with_clients(heavier)),
    )
    assert_close(one.x, other.x)
    assert (one.x - trained(method(local), problem).x).abs().max() > 1e-4
    assert one.weights["*"]["a"] + one.weights["*"]["a-again"] == pytest.approx(
        other.weights["*"]["a"], abs=1e-15
    )


def test_weights_are_shares_of_rows():
    total = sum(SIZES.values())
    for method in (FedAvg(MINI), FedProx(MINI)):
        weights = trained(method, logistic()).weights["*"]
        assert weights == pytest.approx(
            {n: s / total for n, s in SIZES.items()}, abs=1e-15
        )


@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_averaging_follows_its_recursion_on_quadratics(server_lr):
    assert_follows_the_recursion(lambda local: FedAvg(local, server_lr), 0.0, server_lr)


def test_statistics_are_averaged_with_the_same_weights_and_without_the_server_rate():
    problem = batch_norm()
    x = start(problem)
    cohort = cohort_of(problem, seed=0, round=1)
    dim = cohort.layout.dim
    weights = torch.tensor(
        [s / sum(SIZES.values()) for s in SIZES.values()], dtype=torch.float64
    )
    mean = sum(w * y for w, y in zip(weights, cohort.train(x, MINI), strict=True))
    for lr in (1.0, 0.3):
        got = trained(FedAvg(MINI, lr), problem, 1).x
        assert_close(got[:dim], x[:dim] + lr * (mean[:dim] - x[:dim]))
        assert_close(got[dim:], mean[dim:])
    assert (mean[dim:] - x[dim:]).abs().min() > 1e-4


def test_every_client_is_drawn_equally_often():
    problem = quadratic({n: [0.0] for n in "abcdefgh"})
    found = trained(FedAvg(ONE), problem, 100, clients_per_round=3, evaluate=1)
    times = Counter(c for _, _, c, _ in found.weight_rows)
    assert sum(times.values()) == 300
    assert all(
        abs(times[c] - 37.5) < 4 * (100 * 3 / 8 * 5 / 8) ** 0.5 for c in "abcdefgh"
    )


@pytest.mark.parametrize(
    "method",
    [FedAvg(MINI), FedProx(MINI), Local(MINI, exact=False)],
    ids=lambda m: type(m).__name__,
)
def test_a_client_that_always_fails_is_as_if_it_were_not_there(method, monkeypatch):
    problem = logistic()
    without = trained(method, problem.with_clients(subset(problem.clients, "abde")))
    unplug(monkeypatch, "c")
    failing = trained(method, problem)
    for name, x in without.models.items():
        assert torch.equal(failing.models[name], x)
    assert failing.weights == without.weights
    assert list(failing.failures) == ["c"]


def test_epochs_are_as_many_steps_as_they_have_batches():
    problem = quadratic(CENTRES, 6)
    local = LocalSGD(lr=0.1, batch_size=4, steps=Epochs(3))
    assert torch.equal(
        trained(FedAvg(local), problem).x,
        trained(FedAvg(replace(local, steps=Steps(6))), problem).x,
    )


def test_validation_rows_are_trained_on_only_where_nobody_needs_them():
    problem = logistic()
    folded, plain = (
        trained(FedAvg(MINI), problem, merge_validation=f) for f in (True, False)
    )
    assert {r["n_train"] - SIZES[r["client"]] for r in folded.summary} == {6}
    assert {r["n_train"] - SIZES[r["client"]] for r in plain.summary} == {0}
    assert "validation" not in {r["split"] for r in folded.summary}
    assert not torch.equal(folded.x, plain.x)


number = st.floats(-1e3, 1e3)


@st.composite
def moves(draw):
    n, d, b = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(0, 3))
    vector = st.lists(number, min_size=d + b, max_size=d + b)
    x, updates = draw(vector), draw(st.lists(vector, min_size=n, max_size=n))
    weights = draw(st.lists(st.floats(1e-3, 10), min_size=n, max_size=n))
    doubles = [torch.tensor(v, dtype=torch.float64) for v in (x, weights, updates)]
    return (*doubles, draw(st.floats(0.01, 3)), d)


@quick
@given(moves(), st.randoms(use_true_random=False), st.floats(0.1, 9))
def test_a_move_is_linear_in_weights_and_knows_no_order(move_, random, factor):
    x, weights, updates, lr, d = move_
    got = move(x, weights, updates, lr, d)
    order = list(range(len(weights)))
    random.shuffle(order)
    assert_close(move(x, weights[order], updates[order], lr, d), got, 1e-9)
    # Heads scale with the weights, statistics do not; a rate is a factor of the weights for heads only.
    scaled = move(x, factor * weights, updates, lr, d)
    assert_close(scaled[:d] - x[:d], factor * (got[:d] - x[:d]), 1e-8)
    assert_close(scaled[d:], got[d:], 1e-8)
    assert_close(move(x, weights, updates, lr * factor, d)[:d], scaled[:d], 1e-8)
    assert torch.equal(move(x, weights, updates, lr * factor, d)[d:], got[d:])
    # Equal updates arrive whole if the weights sum to 1.
    same = updates[:1].expand_as(updates)
    assert_close(move(x, weights / weights.sum(), same, 1.0, d), x + updates[0], 1e-9)
    # A client of weight 0 changes nothing.
    more = torch.cat([weights, torch.zeros(1, dtype=torch.float64)])
    assert_close(move(x, more, torch.cat([updates, 7 * updates[:1]]), lr, d), got, 1e-9)


@quick
@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 40), min_size=1))
def test_weights_of_any_sizes_are_shares(sizes):
    problem = quadratic({n: [1.0] for n in sizes}, sizes)
    weights = trained(FedAvg(ONE), problem, 1, metrics=()).weights["*"]
    assert weights == pytest.approx(
        {n: s / sum(sizes.values()) for n, s in sizes.items()}, abs=1e-15
    )


def test_runs_of_equal_settings_are_equal_values():
    problem = logistic()
    assert_same_bits(trained(FedAvg(MINI), problem), trained(FedAvg(MINI), problem))
