"""What must hold of Per-FedAvg, and rounds recomputed with numpy alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import (
    BATCH,
    CENTRES,
    FULL,
    LOCAL,
    LR,
    MINI,
    ONE,
    drawn,
    gradient,
    loss,
    rows,
    run,
    uniform,
)
from torch import nn

from coterie import PerFedAvg, data
from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.config.local import Steps
from coterie.contract.task import Task
from coterie.samplers.isfl import LipschitzSampler
from federations import (
    SIZES,
    Problem,
    assert_close,
    batch_norm,
    cohort_of,
    dropout,
    logistic,
    loss_of,
    model_at,
    quadratic,
    seeded,
    start,
    subset,
)

MUTANTS = {
    "perfedavg": [
        (
            "algorithms/perfedavg.py",
            "gradient(y - alpha * gradient(y, 0), 1)",
            "gradient(y, 1)",
        ),
        ("algorithms/perfedavg.py", "return meta - alpha * product", "return meta"),
        (
            "algorithms/perfedavg.py",
            "x - alpha * cohort.without_billing().gradient(x)",
            "x - 0 * cohort.without_billing().gradient(x)",
        ),
        (
            "algorithms/perfedavg.py",
            "gradient(y - alpha * gradient(y, 0), 1)",
            "gradient(y - alpha * gradient(y, 0), 0)",
        ),
    ],
}


@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_perfedavg_without_an_inner_step_is_uniform_averaging(make):
    problem = make()
    found = run(PerFedAvg(FULL, alpha=0.0), problem)
    assert_close(
        found.x[: cohort_of(problem).layout.dim],
        uniform(problem, FULL)[: cohort_of(problem).layout.dim],
    )
    for x in found.models.values():
        assert torch.equal(x, found.x)


SLOPES = {"a": (1.0, 0.0), "b": (2.0, 4.0), "c": (0.5, -3.0), "d": (1.5, 1.0)}
"""Rows (x, y) of the clients of `curved`: f_k(w) = (w x - y)^2, of different curvature."""


def curved() -> Problem:
    ones = torch.ones(8, 1, dtype=torch.float64)
    clients = data.from_tensors(
        {n: (x * ones, y * ones[:, 0]) for n, (x, y) in SLOPES.items()}
    )
    return Problem(clients, seeded(lambda: nn.Linear(1, 1, bias=False), torch.float64))


def long(method, rounds=60, **options):
    """A run of many rounds on `curved`, seldom looked at."""
    return run(method, curved(), rounds, evaluate=rounds, metrics=(), **options)


@pytest.mark.parametrize("alpha", [0.3, 1.7])
def test_hessian_free_steps_on_a_quadratic_are_gradients_of_the_meta_objective(alpha):
    problem = quadratic({"a": CENTRES["a"]})
    found = run(PerFedAvg(ONE, alpha, "hf"), problem, 1)
    x, centre = (
        torch.zeros(2, dtype=torch.float64, requires_grad=True),
        torch.tensor(CENTRES["a"]).double(),
    )
    slope = torch.autograd.grad((x - centre).square().mean(), x, create_graph=True)[0]
    meta = torch.autograd.grad((x - alpha * slope - centre).square().mean(), x)[0]
    assert_close(found.x, -0.2 * meta, 1e-9)
    assert (run(PerFedAvg(ONE, alpha, "fo"), problem, 1).x - found.x).abs().max() > 1e-3


@pytest.mark.in_turn
def test_perfedavg_ends_where_the_mean_of_its_meta_objectives_is_least():
    alpha = 0.1
    found = long(PerFedAvg(replace(ONE, steps=Steps(1), lr=0.4), alpha, "hf"), 100)
    shrunk = {
        n: 1 - 2 * alpha * x * x for n, (x, _) in SLOPES.items()
    }  # f_k(w - alpha f_k') = shrunk^2 (w x - y)^2
    top = sum(shrunk[n] ** 2 * x * y for n, (x, y) in SLOPES.items())
    assert float(found.x) == pytest.approx(
        top / sum(shrunk[n] ** 2 * x * x for n, (x, _) in SLOPES.items()), abs=1e-7
    )


def test_two_gradients_on_one_batch_meet_the_same_noise():
    wide, narrow, other = (
        run(PerFedAvg(MINI, 0.5, "hf", radius=r), dropout(), 2, seed=s).x
        for r, s in ((1e-3, 0), (1e-5, 0), (1e-3, 1))
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
        grads = torch.autograd.grad(
            loss_of(model(part.inputs), part.labels), list(model.parameters())
        )
        assert_close(
            found.models[name],
            found.x - 0.7 * torch.cat([g.reshape(-1) for g in grads]),
        )
        assert torch.equal(
            found.state_dict(name)["weight"].reshape(-1), found.models[name][:3]
        )
    assert {r["client"]: r.get("unseen", False) for r in found.summary} == {
        n: n in "de" for n in SIZES
    }
    assert all(r["own_model"] for r in found.summary)
    assert found.history.select("row_gradients")[-1] == (2, 2 * 2 * 3 * 3 * 4)


def test_whoever_cannot_adapt_is_left_with_the_common_model(monkeypatch):
    problem = logistic()
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if self.name.endswith(":adaptation") and "c" in cohort.names:
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


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"alpha": -1}, r"PerFedAvg.alpha must be None \(the rate of local training\) or a number >= 0; got -1"),
    ({"variant": "so"}, r"PerFedAvg.variant must be fo \| hf; got 'so'"),
    ({"radius": 0}, r"PerFedAvg.radius must be a number > 0; got 0"),
    ({"local": replace(MINI, sampler=LipschitzSampler())}, r"PerFedAvg cannot have a local sampler: a step draws two"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        PerFedAvg(**fields)


def hessian(w, x):
    p = 1 / (1 + np.exp(-(x @ w[:-1] + w[-1])))
    wide = np.column_stack([x, np.ones(len(x))])
    return wide.T @ (wide * (p * (1 - p))[:, None]) / len(x)


@pytest.mark.parametrize(("variant", "precision"), [("fo", 1e-11), ("hf", 1e-7)])
def test_perfedavg_written_in_numpy(variant, precision):
    problem, alpha = logistic(), 0.8
    found = run(PerFedAvg(LOCAL, alpha, variant, radius=1e-4), problem, 2)
    x = start(problem).numpy()
    for number in (1, 2):
        moves = []
        for name in SIZES:
            inputs, labels = rows(problem, name)
            y = x
            for step, first in enumerate(drawn(name, number, steps=3)):
                stream = Rng.named(0, number, name, f"train/{step}")
                second, third = (
                    stream.child(k).permutation(SIZES[name], BATCH) for k in (1, 2)
                )
                near = y - alpha * gradient(y, inputs[first], labels[first])
                meta = gradient(near, inputs[second], labels[second])
                if variant == "hf":
                    meta = meta - alpha * hessian(y, inputs[third]) @ meta
                y = y - LR * meta
            moves.append(y - x)
        x = x + sum(moves) / len(SIZES)
    np.testing.assert_allclose(found.x.numpy(), x, rtol=precision)
    for name in SIZES:  # what clients use, and its numbers in the summary
        own = x - alpha * gradient(x, *rows(problem, name))
        np.testing.assert_allclose(found.models[name].numpy(), own, rtol=precision)
        row = next(
            r for r in found.summary if (r["client"], r["split"]) == (name, "test")
        )
        assert row["own_model"]
        assert row["loss"] == pytest.approx(
            loss(own, *rows(problem, name, "test")), rel=precision
        )
