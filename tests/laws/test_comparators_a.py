"""What must hold of SCAFFOLD, MOON, q-FFL, MW-Fed, Per-FedAvg and FedFomo."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

from coterie import data
from coterie.algorithms import ALGORITHMS, MOON, QFFL, FedAvg, FedFomo, Local, MWFed, PerFedAvg, Scaffold
from coterie.cli.main import main
from coterie.core.errors import InputError, RunError
from coterie.core.rows import Client, Clients
from coterie.core.task import Task
from coterie.core.training import Epochs, LocalSGD, Steps
from federations import (
    HELD,
    SIZES,
    Problem,
    assert_close,
    batch_norm,
    cohort_of,
    dropout,
    fit,
    logistic,
    loss_of,
    model_at,
    quadratic,
    seeded,
    segmentation,
    start,
    subset,
    vector_of,
)

MINI = LocalSGD(lr=0.2, steps=Steps(3), batch_size=4)
FULL = LocalSGD(lr=0.2, steps=Steps(3), batch_size=None)
ONE = LocalSGD(lr=0.2, steps=Steps(1), batch_size=None)
CENTRES = {"a": [1.0, -2.0], "b": [0.0, 4.0], "c": [-3.0, 1.0]}


def run(method, problem, rounds=3, **options):
    return fit(method, problem.clients, problem.model, rounds, **{"merge_validation": False, "evaluate": 1, **options})


def uniform(problem, local, rounds=3, lr=1.0):
    """Uniform averaging of plain local training, from the cohort's own training."""
    x = start(problem)
    dim = cohort_of(problem).layout.dim
    for number in range(1, rounds + 1):
        mean = cohort_of(problem, round=number).train(x, local).mean(0) - x
        x = x + torch.cat([lr * mean[:dim], mean[dim:]])
    return x


def logged(found, metric):
    return {(r.round, r.client): r.value for r in found.history if r.metric == metric}


def forget(monkeypatch, victim, round_):
    """Let one client lose its memory before its update in one round."""
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if "update" in self.kinds.values() and cohort.round == round_ and victim in cohort.names:
            cohort.memory._memory.forget([victim])
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)


# ---- reductions to averaging


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_qffl_without_q_is_uniform_averaging(make):
    problem = make()
    assert_close(run(QFFL(MINI, q=0.0), problem).x, uniform(problem, MINI))
    assert (run(QFFL(MINI, q=1.0), problem).x - uniform(problem, MINI)).abs().max() > 1e-4


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_mwfed_without_a_rate_is_uniform_averaging_with_equal_steps(make):
    problem = make()
    found = run(MWFed(MINI, rate=0.0, lr=0.6, warmup_steps=2), problem)
    assert_close(found.x, uniform(problem, MINI, lr=0.6))
    assert set(logged(found, "steps").values()) == {3.0}
    assert found.weights["*"] == pytest.approx(dict.fromkeys(SIZES, 0.2), abs=1e-15)
    assert (run(MWFed(MINI, rate=1.0, lr=0.6, warmup_steps=2), problem).x - found.x).abs().max() > 1e-4


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_moon_without_mu_is_fedavg_bit_by_bit(make):
    local = replace(MINI, momentum=0.5, weight_decay=0.01)
    moon, avg = run(MOON(local, mu=0.0, lr=0.5), make()), run(FedAvg(local, 0.5), make())
    assert torch.equal(moon.x, avg.x)
    assert (moon.weights, moon.summary) == (avg.weights, avg.summary)


@pytest.mark.parametrize("make", [batch_norm, dropout])
def test_moon_has_nothing_to_hold_away_from_in_its_first_round(make):
    problem = make()
    moon, avg = ([run(m, problem, r).x for r in (1, 2)] for m in (MOON(MINI), FedAvg(MINI)))
    assert_close(moon[0], avg[0])
    assert (moon[1] - avg[1]).norm() > 1e-3


def test_moon_of_a_model_without_representations_is_fedavg():
    assert_close(run(MOON(MINI), logistic()).x, run(FedAvg(MINI), logistic()).x)


def test_the_contrast_vanishes_as_the_temperature_grows():
    problem = dropout()
    plain = run(FedAvg(MINI), problem).x
    away = [float((run(MOON(MINI, temperature=t), problem).x - plain).norm()) for t in (1e3, 1e5)]
    assert away[0] == pytest.approx(100 * away[1], rel=0.01)
    assert away[1] > 1e-9


@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_perfedavg_without_an_inner_step_is_uniform_averaging(make):
    problem = make()
    found = run(PerFedAvg(FULL, alpha=0.0), problem)
    assert_close(found.x[: cohort_of(problem).layout.dim], uniform(problem, FULL)[: cohort_of(problem).layout.dim])
    for x in found.models.values():
        assert torch.equal(x, found.x)


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_the_first_round_of_scaffold_is_uniform_averaging(make):
    problem = make()
    assert_close(run(Scaffold(MINI, lr=0.6), problem, 1).x, uniform(problem, MINI, 1, lr=0.6))
    assert (run(Scaffold(MINI), problem, 2).x - uniform(problem, MINI, 2)).abs().max() > 1e-4


def test_scaffold_with_one_step_on_all_rows_is_fedsgd_in_every_round():
    problem = logistic()
    model = model_at(problem, start(problem))
    for _ in range(4):
        parameters, mean = list(model.parameters()), None
        for client in problem.clients:
            value = loss_of(model(client.train.inputs), client.train.labels)
            grads = torch.autograd.grad(value, parameters)
            mean = [g / 5 for g in grads] if mean is None else [m + g / 5 for m, g in zip(mean, grads, strict=True)]
        for p, g in zip(parameters, mean, strict=True):
            p.data -= 0.7 * 0.2 * g
    assert_close(run(Scaffold(ONE, lr=0.7), problem, 4).x, vector_of(model))


# ---- SCAFFOLD: controls

SLOPES = {"a": (1.0, 0.0), "b": (2.0, 4.0), "c": (0.5, -3.0), "d": (1.5, 1.0)}
"""Rows (x, y) of the clients of `curved`: f_k(w) = (w x - y)^2, of different curvature."""
OPTIMUM = sum(x * y for x, y in SLOPES.values()) / sum(x * x for x, _ in SLOPES.values())


def curved() -> Problem:
    ones = torch.ones(8, 1, dtype=torch.float64)
    clients = data.from_tensors({n: (x * ones, y * ones[:, 0]) for n, (x, y) in SLOPES.items()})
    return Problem(clients, seeded(lambda: nn.Linear(1, 1, bias=False), torch.float64))


def long(method, rounds=60, **options):
    """A run of many rounds on `curved`, seldom looked at."""
    return run(method, curved(), rounds, evaluate=rounds, metrics=(), **options)


TEN = LocalSGD(lr=0.05, steps=Steps(10), batch_size=None)


@pytest.mark.parametrize("participants", [None, 2])
def test_scaffold_ends_at_the_optimum_of_unlike_clients(participants):
    found, plain = (long(m(TEN), clients_per_round=participants) for m in (Scaffold, FedAvg))
    assert float(found.x) == pytest.approx(OPTIMUM, abs=1e-6 if participants is None else 1e-4)
    assert abs(float(plain.x) - OPTIMUM) > 0.05
    assert not logged(found, "control_lost")


def test_weight_decay_is_part_of_the_objective_that_scaffold_ends_at():
    found = long(Scaffold(replace(TEN, weight_decay=0.5)))
    top = sum(2 * x * y for x, y in SLOPES.values())
    assert float(found.x) == pytest.approx(top / sum(2 * x * x + 0.5 for x, _ in SLOPES.values()), abs=1e-6)


def test_a_lost_control_is_named_and_does_not_move_where_scaffold_ends(monkeypatch):
    undisturbed = long(Scaffold(TEN))
    forget(monkeypatch, "b", 12)
    found = long(Scaffold(TEN))
    assert logged(found, "control_lost") == {(12, "b"): 1.0}
    assert list(found.failures) == ["b"]
    assert "round 12" in found.failures["b"]
    assert "its control was lost" in found.failures["b"]
    norms, before = logged(found, "control_norm"), logged(undisturbed, "control_norm")
    assert {r for r, _ in norms} == set(range(1, 61)) - {12}
    assert all(norms[r, "*"] == before[r, "*"] for r in range(1, 12))
    assert norms[13, "*"] != before[13, "*"]
    assert float(found.x) == pytest.approx(OPTIMUM, abs=1e-6)


def test_a_control_that_was_never_counted_cannot_be_lost(monkeypatch):
    forget(monkeypatch, "b", 1)
    found = run(Scaffold(TEN), curved(), 3)
    assert not logged(found, "control_lost")
    assert found.failures == {}


def test_a_process_that_ends_takes_the_controls_of_its_clients_with_it(monkeypatch):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        if "update" in self.kinds.values() and cohort.round == 3 and "b" in cohort.names:
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    monkeypatch.setattr(Task, "__call__", call)
    found = long(Scaffold(TEN), workers=2)
    assert logged(found, "control_lost") == {(4, "b"): 1.0, (4, "d"): 1.0}
    assert float(found.x) == pytest.approx(OPTIMUM, abs=1e-6)


def test_a_reply_that_was_refused_does_not_leave_a_control_that_the_server_does_not_know(monkeypatch):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        if "update" in self.kinds.values() and cohort.round == 5 and "b" in cohort.names:
            reply.delta[cohort.names.index("b")] = float("nan")
        return reply

    monkeypatch.setattr(Task, "__call__", call)
    found = long(Scaffold(TEN))
    assert logged(found, "control_lost") == {(6, "b"): 1.0}
    assert float(found.x) == pytest.approx(OPTIMUM, abs=1e-6)


# ---- q-FFL


def test_equal_losses_and_lengths_make_a_shorter_uniform_step():
    problem = quadratic({"a": [2.0, 0.0], "b": [0.0, 2.0]})
    q, lr = 2.0, 0.2
    found = run(QFFL(ONE, q), problem, 1)
    loss, step = 2.0, lr * torch.tensor([2.0, 0.0], dtype=torch.float64)  # mean of (x - c)^2 over 2 entries at 0
    mean = (step + step.flip(0)) / 2
    assert_close(found.x, mean / (1 + q * float(step @ step) / (loss * lr)))


def test_scaling_the_loss_does_not_change_the_direction_of_qffl():
    problem = logistic()

    def scaled(factor):
        def loss(outputs, labels):
            return factor * nn.functional.softplus(-outputs[:, 0] * (2 * labels - 1))

        return loss

    x = start(problem)
    moves = [run(QFFL(ONE, 3.0), problem, 1, loss=scaled(s)).x - x for s in (1.0, 7.0)]
    cosine = nn.functional.cosine_similarity(*moves, dim=0)
    assert float(cosine) == pytest.approx(1, abs=1e-12)
    assert not torch.equal(*moves)


def test_losses_of_nearly_zero_and_large_powers_stay_finite():
    problem = quadratic({"a": [0.0], "b": [1e-3]})
    found = run(QFFL(ONE, q=60.0), problem, 3)
    assert torch.isfinite(found.x).all()
    assert found.weights["*"]["b"] == pytest.approx(1)
    still = run(QFFL(ONE, q=0.5), quadratic({"a": [0.0], "b": [0.0]}), 1)
    assert still.x.tolist() == [0.0]


def test_a_negative_loss_cannot_be_raised_to_a_power():
    with pytest.raises(RunError, match=r"q-FFL needs losses >= 0, and that of a, b, c is negative; shift the loss"):
        run(QFFL(ONE), quadratic(CENTRES), loss=lambda outputs, labels: outputs.sum(1) - 100)


# ---- MW-Fed


def test_a_client_that_is_never_content_gets_all_the_weight_and_the_steps():
    problem = quadratic(CENTRES)
    found = run(MWFed(FULL, rate=1.0, requirements={"a": 1e6, "b": 1e6, "c": -1.0}), problem, 40)
    assert found.weights["*"]["c"] == pytest.approx(1, abs=1e-12)
    assert {k: v for k, v in logged(found, "steps").items() if k[0] == 40} == {(40, "a"): 1, (40, "b"): 1, (40, "c"): 9}
    assert_close(found.x, torch.tensor(CENTRES["c"], dtype=torch.float64), 1e-6)


def test_equal_gaps_leave_mwfed_uniform():
    problem = quadratic(CENTRES)
    found = run(MWFed(FULL, rate=1.0, requirements=dict.fromkeys(CENTRES, -1.0)), problem)
    assert_close(found.x, uniform(problem, FULL))


def test_weights_of_absent_clients_and_far_powers_never_run_out():
    need = {"a": 1e6, "b": 1e6, "c": -1.0}
    found = run(MWFed(FULL, rate=900.0, requirements=need), quadratic(CENTRES), 12, clients_per_round=2)
    assert torch.isfinite(found.x).all()
    pairs = {r: {c: v for n, _, c, v in found.weight_rows if n == r} for r in range(1, 13)}
    assert all(sum(w.values()) == pytest.approx(1) for w in pairs.values())
    assert any(set(w) == {"a", "b"} and w["a"] == pytest.approx(0.5) for w in pairs.values())


# ---- Per-FedAvg


@pytest.mark.parametrize("alpha", [0.3, 1.7])
def test_hessian_free_steps_on_a_quadratic_are_gradients_of_the_meta_objective(alpha):
    problem = quadratic({"a": CENTRES["a"]})
    found = run(PerFedAvg(ONE, alpha, "hf"), problem, 1)
    x, centre = torch.zeros(2, dtype=torch.float64, requires_grad=True), torch.tensor(CENTRES["a"]).double()
    slope = torch.autograd.grad((x - centre).square().mean(), x, create_graph=True)[0]
    meta = torch.autograd.grad((x - alpha * slope - centre).square().mean(), x)[0]
    assert_close(found.x, -0.2 * meta, 1e-9)
    assert (run(PerFedAvg(ONE, alpha, "fo"), problem, 1).x - found.x).abs().max() > 1e-3


def test_perfedavg_ends_where_the_mean_of_its_meta_objectives_is_least():
    alpha = 0.1
    found = long(PerFedAvg(replace(ONE, steps=Steps(1), lr=0.4), alpha, "hf"), 100)
    shrunk = {n: 1 - 2 * alpha * x * x for n, (x, _) in SLOPES.items()}  # f_k(w - alpha f_k') = shrunk^2 (w x - y)^2
    top = sum(shrunk[n] ** 2 * x * y for n, (x, y) in SLOPES.items())
    assert float(found.x) == pytest.approx(top / sum(shrunk[n] ** 2 * x * x for n, (x, _) in SLOPES.items()), abs=1e-7)


def test_two_gradients_on_one_batch_meet_the_same_noise():
    wide, narrow, other = (
        run(PerFedAvg(MINI, 0.5, "hf", radius=r), dropout(), 2, seed=s).x for r, s in ((1e-3, 0), (1e-5, 0), (1e-3, 1))
    )
    assert (wide - narrow).abs().max() < 1e-5
    assert (wide - other).abs().max() > 1e-3


def test_unseen_clients_adapt_as_well_and_work_of_use_is_not_counted():
    problem = logistic()
    seen = subset(problem.clients, "abc")
    clients = Clients(list(seen), unseen=subset(problem.clients, "de"))
    found = run(PerFedAvg(MINI, 0.7), problem.with_clients(clients), 2)
    assert set(found.models) == {"*", *SIZES}
    for name in SIZES:
        part = problem.clients[name].train
        model = model_at(problem, found.x)
        grads = torch.autograd.grad(loss_of(model(part.inputs), part.labels), list(model.parameters()))
        assert_close(found.models[name], found.x - 0.7 * torch.cat([g.reshape(-1) for g in grads]))
        assert torch.equal(found.state_dict(name)["weight"].reshape(-1), found.models[name][:3])
    assert {r["client"]: r.get("unseen", False) for r in found.summary} == {n: n in "de" for n in SIZES}
    assert all(r["own_model"] for r in found.summary)
    assert found.history.select("row_gradients")[-1] == (2, 2 * 2 * 3 * 3 * 4)


def test_whoever_cannot_adapt_is_left_with_the_common_model(monkeypatch):
    problem = logistic()
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if self.name.endswith(":adapted") and "c" in cohort.names:
            raise OSError("unplugged")
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)
    found = run(PerFedAvg(MINI), problem)
    assert set(found.models) == {"*", *SIZES} - {"c"}
    rows = {r["client"]: r for r in found.summary if r["split"] == "test"}
    part = problem.clients["c"].test
    with torch.no_grad():
        expected = float(loss_of(model_at(problem, found.x)(part.inputs), part.labels))
    assert rows["c"]["loss"] == pytest.approx(expected)
    assert {n: r["own_model"] for n, r in rows.items()} == {n: n != "c" for n in SIZES}


# ---- MOON


def test_a_lost_local_model_is_replaced_by_the_global_one(monkeypatch):
    problem = dropout()
    undisturbed = run(MOON(MINI), problem, 3)
    forget(monkeypatch, "c", 3)
    found = run(MOON(MINI), problem, 3)
    assert logged(undisturbed, "with_previous") == {(1, "*"): 0, (2, "*"): 5, (3, "*"): 5}
    assert logged(found, "with_previous") == {(1, "*"): 0, (2, "*"): 5, (3, "*"): 4}
    assert not torch.equal(found.x, undisturbed.x)


@pytest.mark.parametrize("workers", [1, 2])
def test_moon_needs_a_linear_layer(workers):
    with pytest.raises(
        InputError, match="MOON compares the inputs of the last linear layer, and this model calls none"
    ):
        run(MOON(MINI), segmentation(), workers=workers)


# ---- FedFomo


def test_a_client_like_the_target_pulls_and_an_opposite_one_does_not():
    problem = quadratic({"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [-1.0, -1.0], "d": [1.0, -1.0]})
    weights = run(FedFomo(local=FULL), problem, 1).weights
    assert weights["a"]["a"] == weights["a"]["b"] > 0.4
    assert weights["a"]["c"] == weights["c"]["a"] == weights["c"]["b"] == 0
    assert weights["c"]["c"] == 1


def test_a_model_that_exists_twice_pulls_twice():
    problem = logistic()
    twice = problem.with_clients(Clients([*problem.clients, Client("b-again", *_parts(problem.clients["b"]))]))
    full = FedFomo("a", FULL)
    one, two = run(full, problem, 1).weights["a"], run(full, twice, 1).weights["a"]
    assert two["b"] == two["b-again"]
    total = sum(w * (2 if n == "b" else 1) for n, w in one.items())
    assert two == pytest.approx({**{n: w / total for n, w in one.items()}, "b-again": one["b"] / total}, rel=1e-9)
    assert one["b"] > 0.01


def _parts(client):
    return client.train, client.validation, client.test


@pytest.mark.parametrize("make", [logistic, dropout])
def test_fedfomo_with_one_client_is_local_training_while_that_helps(make):
    problem = make()
    alone = problem.with_clients(subset(problem.clients, "b"))
    assert_close(run(FedFomo(local=MINI), alone).models["b"], run(Local(MINI), alone).models["b"])


def test_a_target_for_whom_nobody_does_better_keeps_its_model():
    problem = quadratic({"a": [2.0, 0.0], "b": [0.0, 2.0]})
    found = run(FedFomo(local=replace(ONE, lr=1e15)), problem, 2)
    assert all(x.tolist() == [0.0, 0.0] for x in found.models.values())
    assert logged(found, "kept") == {(1, "*"): 2, (2, "*"): 2}
    assert found.weights == {}


def test_who_combines_no_models_goes_on_alone():
    problem = logistic()
    found, alone = run(FedFomo(("a", "b"), MINI), problem), run(Local(MINI), problem)
    assert set(found.models) == {"a", "b"}
    rows = dict(zip(found.state.names, found.state.x, strict=True))
    for name in "cde":
        assert_close(rows[name], alone.models[name])
    assert not torch.equal(rows["a"], alone.models["a"])
    asked = {
        r.round for r in run(FedFomo("a", MINI), problem, 8, clients_per_round=1).asks if r.task.endswith(":judge")
    }
    assert 0 < len(asked) < 8  # only where the target takes part


def test_validation_rows_of_targets_are_kept_from_training():
    problem = logistic()
    found = run(FedFomo(("a", "c"), MINI), problem, merge_validation=True)
    assert found.method.keeps_validation(tuple(SIZES)) == ("a", "c")
    assert {r["client"]: r["n_train"] - SIZES[r["client"]] for r in found.summary} == {"a": 0, "c": 0}
    by_train = FedFomo(("a", "c"), MINI, "train")
    assert by_train.keeps_validation(tuple(SIZES)) == ()
    assert {r["n_train"] - SIZES[r["client"]] for r in run(by_train, problem, merge_validation=True).summary} == {HELD}


# ---- a client that exists twice


def test_moon_counts_rows_so_that_a_client_that_exists_twice_counts_twice():
    problem = dropout()
    problem.model[2].p = 0.0
    twice = problem.with_clients(Clients([*problem.clients, Client("a-again", problem.clients["a"].train)]))
    weights = run(MOON(FULL), twice).weights["*"]
    assert weights["a"] == weights["a-again"] == SIZES["a"] / (sum(SIZES.values()) + SIZES["a"])


# ---- bad input


WRONG = [
    (Scaffold, {"lr": 0.0}, r"Scaffold.lr must be a number > 0; got 0.0"),
    (Scaffold, {"local": replace(MINI, momentum=0.9)}, r"Scaffold needs local momentum = 0.0, got 0.9: .* plain SGD steps"),
    (Scaffold, {"local": replace(MINI, clip=1.0)}, r"Scaffold needs local clip = None, got 1.0: its controls are means"),
    (Scaffold, {"local": replace(MINI, optimiser="adam")}, r"Scaffold needs local optimiser = 'sgd', got 'adam'"),
    (QFFL, {"q": -0.5}, r"QFFL.q must be a number >= 0; got -0.5"),
    (QFFL, {"local": replace(MINI, optimiser="adamw")}, r'QFFL needs local optimiser = "sgd", got .adamw.: its L is 1 / lr'),
    (PerFedAvg, {"alpha": -1}, r"PerFedAvg.alpha must be None \(the rate of local training\) or a number >= 0; got -1"),
    (PerFedAvg, {"variant": "so"}, r"PerFedAvg.variant must be fo \| hf; got 'so'"),
    (PerFedAvg, {"radius": 0}, r"PerFedAvg.radius must be a number > 0; got 0"),
    (PerFedAvg, {"local": replace(MINI, sampler=object())}, r"PerFedAvg cannot have a local sampler: a step draws two"),
    (MOON, {"mu": -1}, r"MOON.mu must be a number >= 0; got -1"),
    (MOON, {"temperature": 0.0}, r"MOON.temperature must be a number > 0; got 0.0"),
    (MOON, {"lr": -1}, r"MOON.lr must be a number > 0; got -1"),
    (MWFed, {"rate": -0.1}, r"MWFed.rate must be a number >= 0; got -0.1"),
    (MWFed, {"lr": 0}, r"MWFed.lr must be a number > 0; got 0"),
    (MWFed, {"warmup_steps": 0}, r"MWFed.warmup_steps must be an int > 0; got 0"),
    (MWFed, {"requirements": "test"}, r'MWFed.requirements must be "train", "validation", or a table'),
    (MWFed, {"local": replace(MINI, steps=Epochs(2))}, r"MWFed shares out local steps .* with Epochs\(count=2\); give local steps"),
    (FedFomo, {"targets": ()}, r"FedFomo.targets must be \"all\", a client's name, or several names; got \(\)"),
    (FedFomo, {"validation": "server"}, r"FedFomo.validation must be validation \| train; got 'server'"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "fields", "sentence"), WRONG)
def test_bad_settings_are_refused_with_the_reason(method, fields, sentence):
    with pytest.raises(InputError, match=sentence):
        method(**fields)


def test_clients_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match=r"FedFomo.targets names 'x', which is not a client"):
        run(FedFomo(("a", "x")), logistic())
    with pytest.raises(InputError, match=r"MWFed.requirements names 'x', which is not a client"):
        run(MWFed(requirements={"x": 1.0}), logistic())


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        ("scaffold", "scaffold.local.momentum=0.9", "Scaffold needs local momentum = 0.0"),
        ("fedfomo", 'fedfomo.targets="nobody"', "FedFomo.targets names 'nobody'"),
        ("mwfed", "local.epochs=2", "MWFed shares out local steps"),
    ],
)
def test_wrong_pairs_end_the_command_with_status_2(name, setting, sentence, capsys, tmp_path):
    command = ["compare", "heart-disease", "--methods", name, "--set", setting, "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_methods_are_registered_in_lower_case():
    names = {
        "scaffold": Scaffold,
        "moon": MOON,
        "qffl": QFFL,
        "mwfed": MWFed,
        "perfedavg": PerFedAvg,
        "fedfomo": FedFomo,
    }
    assert {n: ALGORITHMS[n] for n in names} == names
