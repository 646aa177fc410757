"""What must hold between the plain methods: reductions, invariances and closed forms."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.algorithms import Centralised, FedAvg, FedProx, Local
from coterie.core.rows import Client, Clients, Part
from coterie.core.task import Task
from coterie.core.training import Epochs, LocalSGD, Schedule, Steps
from coterie.core.vector import move
from federations import (
    SIZES,
    assert_close,
    assert_same_bits,
    batch_norm,
    cohort_of,
    dropout,
    fit,
    logistic,
    loss_of,
    model_at,
    quadratic,
    start,
    subset,
    vector_of,
)

quick = settings(derandomize=True, deadline=None, max_examples=40)
MINI = LocalSGD(lr=0.2, steps=Steps(3), batch_size=4)
FULL_STEP = LocalSGD(lr=0.2, steps=Steps(1), batch_size=None)


def run(method, problem, rounds=3, **options):
    return fit(
        method, problem.clients, problem.model, rounds, **{"merge_validation": False, "evaluate": rounds, **options}
    )


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
@pytest.mark.parametrize("lr", [1.0, 0.5])
def test_fedprox_without_a_penalty_is_fedavg_bit_by_bit(make, lr):
    local = replace(MINI, momentum=0.5, weight_decay=0.01)
    prox, avg = run(FedProx(local, mu=0.0, lr=lr), make()), run(FedAvg(local, lr), make())
    assert torch.equal(prox.x, avg.x)
    assert (prox.history, prox.weights, prox.summary) == (avg.history, avg.weights, avg.summary)
    assert not torch.equal(run(FedProx(local, mu=0.1, lr=lr), make()).x, avg.x)


def test_a_larger_penalty_keeps_updates_shorter():
    problem = logistic()
    local = replace(MINI, steps=Steps(30), lr=0.1)
    far = [float((run(FedProx(local, mu), problem, 1).x - start(problem)).norm()) for mu in (0.0, 0.3, 3.0)]
    assert far[0] > 1.2 * far[1] > 1.2**2 * far[2] > 0


@pytest.mark.parametrize("make", [logistic, dropout])
def test_one_step_on_all_rows_is_gradient_descent_on_the_size_weighted_loss(make):
    problem = make()
    if make is dropout:
        problem.model[2].p = 0.0
    together = problem.clients.pooled()
    for lr in (1.0, 0.7):
        model = model_at(problem, start(problem))
        for _ in range(3):
            parameters = list(model.parameters())
            grads = torch.autograd.grad(loss_of(model(together.inputs), together.labels), parameters)
            for p, g in zip(parameters, grads, strict=True):
                p.data -= lr * 0.2 * g
        assert_close(run(FedAvg(FULL_STEP, lr), problem).x, vector_of(model))


def test_centralised_with_one_step_on_all_rows_is_fedavg():
    problem = logistic()
    assert_close(run(Centralised(FULL_STEP), problem, 4).x, run(FedAvg(FULL_STEP), problem, 4).x)
    two = replace(FULL_STEP, steps=Steps(2))
    assert (run(Centralised(two), problem).x - run(FedAvg(two), problem).x).abs().max() > 1e-5


def test_centralised_with_one_client_is_local():
    problem = logistic()
    alone = problem.with_clients(subset(problem.clients, "d"))
    local = replace(FULL_STEP, steps=Steps(5), momentum=0.5)
    assert_close(run(Centralised(local), alone).x, run(Local(local), alone).x)


def test_centralised_makes_batches_of_all_participants():
    problem = logistic()
    found = run(Centralised(MINI), problem, 2, clients_per_round=3)
    assert found.history.select("row_gradients")[-1] == (2, 2 * 3 * 4 * 3)
    assert [r.clients for r in found.asks if "own_update" in r.task] == [1, 1]


@pytest.mark.parametrize("method", [FedAvg, FedProx])
def test_a_client_that_exists_twice_counts_twice(method):
    problem = logistic()
    local = replace(FULL_STEP, steps=Steps(4))
    a = problem.clients["a"]
    twice = Clients([*problem.clients, Client("a-again", a.train)])
    rows = a.train
    doubled = Part(torch.cat([rows.inputs, rows.inputs]), torch.cat([rows.labels, rows.labels]))
    heavier = Clients([*[c for c in problem.clients if c.name != "a"], Client("a", doubled)])
    one, other = run(method(local), problem.with_clients(twice)), run(method(local), problem.with_clients(heavier))
    assert_close(one.x, other.x)
    assert (one.x - run(method(local), problem).x).abs().max() > 1e-4
    assert one.weights["*"]["a"] + one.weights["*"]["a-again"] == pytest.approx(other.weights["*"]["a"], abs=1e-15)


def test_weights_are_shares_of_rows():
    total = sum(SIZES.values())
    for method in (FedAvg(MINI), FedProx(MINI)):
        weights = run(method, logistic()).weights["*"]
        assert weights == pytest.approx({n: s / total for n, s in SIZES.items()}, abs=1e-15)


# ---- Local


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_local_models_do_not_depend_on_other_clients(make):
    problem = make()
    many = run(Local(MINI), problem)
    few = run(Local(MINI), problem.with_clients(subset(problem.clients, "bd")))
    for name in "bd":
        assert torch.equal(many.models[name], few.models[name])
    assert not torch.equal(many.models["b"], many.models["d"])


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_fedavg_with_one_client_is_local(make):
    problem = make()
    alone = problem.with_clients(subset(problem.clients, "c"))
    assert_close(run(FedAvg(MINI), alone).x, run(Local(MINI), alone).models["c"], 1e-14)


def test_local_rounds_of_steps_are_one_long_training():
    problem = logistic()
    local = replace(FULL_STEP, steps=Steps(2))
    short, long = run(Local(local), problem, 3), run(Local(replace(local, steps=Steps(6))), problem, 1)
    for name in SIZES:
        assert_close(short.models[name], long.models[name])


def test_clients_that_work_alone_need_not_wait_to_be_drawn():
    problem = logistic()
    few, everybody = (run(Local(MINI), problem, 3, clients_per_round=m) for m in (2, None))
    start = run(Local(MINI), problem, 1)
    for name in SIZES:
        assert torch.equal(few.models[name], everybody.models[name])
        assert not torch.equal(few.models[name], start.models[name])


# ---- closed forms on quadratics

CENTRES = {"a": [1.0, -2.0], "b": [0.0, 4.0], "c": [-3.0, 1.0]}
ROWS = {"a": 2, "b": 5, "c": 3}


@pytest.mark.parametrize("mu", [0.0, 0.8])
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_averaging_follows_its_recursion_on_quadratics(mu, server_lr):
    problem = quadratic(CENTRES, ROWS)
    local = LocalSGD(lr=Schedule(0.3, (3,), 0.5), steps=Steps(4), batch_size=None)
    method = FedProx(local, mu, server_lr) if mu else FedAvg(local, server_lr)
    x = [0.0, 0.0]
    for round_ in range(1, 5):
        lr = 0.3 if round_ < 3 else 0.15
        new = []
        for j in range(2):
            step = 0.0
            for name, centre in CENTRES.items():
                y = x[j]
                for _ in range(4):
                    y -= lr * (y - centre[j] + mu * (y - x[j]))  # the loss is the mean over 2 entries of (y - centre)^2
                step += ROWS[name] / 10 * (y - x[j])
            new.append(x[j] + server_lr * step)
        x = new
        assert run(method, problem, round_).x.tolist() == pytest.approx(x, rel=1e-12)


def test_statistics_are_averaged_with_the_same_weights_and_without_the_server_rate():
    problem = batch_norm()
    x = start(problem)
    cohort = cohort_of(problem, seed=0, round=1)
    dim = cohort.layout.dim
    weights = torch.tensor([s / sum(SIZES.values()) for s in SIZES.values()], dtype=torch.float64)
    trained = sum(w * y for w, y in zip(weights, cohort.train(x, MINI), strict=True))
    for lr in (1.0, 0.3):
        got = run(FedAvg(MINI, lr), problem, 1).x
        assert_close(got[:dim], x[:dim] + lr * (trained[:dim] - x[:dim]))
        assert_close(got[dim:], trained[dim:])
    assert (trained[dim:] - x[dim:]).abs().min() > 1e-4


# ---- participation and failures


def test_every_client_is_drawn_equally_often():
    problem = quadratic({n: [0.0] for n in "abcdefgh"})
    found = run(FedAvg(FULL_STEP), problem, 200, clients_per_round=3, evaluate=1, metrics=())
    times = Counter(c for _, _, c, _ in found.weight_rows)
    assert sum(times.values()) == 600
    assert all(abs(times[c] - 75) < 4 * (200 * 3 / 8 * 5 / 8) ** 0.5 for c in "abcdefgh")


@pytest.mark.parametrize("method", [FedAvg(MINI), FedProx(MINI), Local(MINI)], ids=lambda m: type(m).__name__)
def test_a_client_that_always_fails_is_as_if_it_were_not_there(method, monkeypatch):
    problem = logistic()
    without = run(method, problem.with_clients(subset(problem.clients, "abde")))
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if "update" in self.kinds.values() and "c" in cohort.names:
            raise OSError("unplugged")
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)
    failing = run(method, problem)
    for name, x in without.models.items():
        assert torch.equal(failing.models[name], x)
    assert failing.weights == without.weights
    assert list(failing.failures) == ["c"]


def test_epochs_are_as_many_steps_as_they_have_batches():
    problem = quadratic(CENTRES, 6)
    local = LocalSGD(lr=0.1, batch_size=4, steps=Epochs(3))
    assert torch.equal(run(FedAvg(local), problem).x, run(FedAvg(replace(local, steps=Steps(6))), problem).x)


def test_validation_rows_are_trained_on_only_where_nobody_needs_them():
    problem = logistic()
    folded, plain = (run(FedAvg(MINI), problem, merge_validation=f) for f in (True, False))
    assert {r["n_train"] - SIZES[r["client"]] for r in folded.summary} == {6}
    assert {r["n_train"] - SIZES[r["client"]] for r in plain.summary} == {0}
    assert "validation" not in {r["split"] for r in folded.summary}
    assert not torch.equal(folded.x, plain.x)


# ---- moving, whatever the numbers

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
    weights = run(FedAvg(FULL_STEP), problem, 1, metrics=()).weights["*"]
    assert weights == pytest.approx({n: s / sum(sizes.values()) for n, s in sizes.items()}, abs=1e-15)


def test_runs_of_equal_settings_are_equal_values():
    problem = logistic()
    assert_same_bits(run(FedAvg(MINI), problem), run(FedAvg(MINI), problem))
