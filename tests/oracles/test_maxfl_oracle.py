"""MaxFL against numpy: a round, the warm-up, the two-client toy of the paper, and the slope of its objective."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.algorithms import MaxFL
from coterie.core.rng import Rng, batches
from coterie.core.training import LocalSGD, Steps
from federations import fit, logistic, quadratic, start

LR, STEPS, BATCH = 0.3, 3, 4
LOCAL = LocalSGD(lr=LR, steps=Steps(STEPS), batch_size=BATCH)


def run(method, problem, rounds, **options):
    return fit(method, problem.clients, problem.model, rounds, **{"merge_validation": False, "evaluate": 1, **options})


# ---- logistic regression in numpy


def loss(w, x, y):
    z = x @ w[:-1] + w[-1]
    return float(np.mean(np.logaddexp(0, z) - y * z))


def sgd(w, x, y, name, *, steps, round_, purpose):
    rng = Rng.named(0, round_, name, purpose)
    for chosen in batches(rng, len(y), BATCH, steps=steps):
        xb, yb = x[chosen], y[chosen]
        error = 1 / (1 + np.exp(-(xb @ w[:-1] + w[-1]))) - yb
        w = w - LR * np.append(xb.T @ error, error.sum()) / len(chosen)
    return w


def rows(problem, name, part="train"):
    found = problem.clients[name].part(part)
    return found.inputs.numpy(), found.labels.numpy()


def logged(found, round_, metric):
    return {r.client: r.value for r in found.history if (r.round, r.metric) == (round_, metric)}


@pytest.mark.parametrize("requirements", ["train", "validation"])
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_rounds_written_in_numpy(requirements, server_lr):
    problem = logistic()
    eps, warmup = 0.05, 7
    found = run(MaxFL(LOCAL, server_lr, eps, warmup, requirements), problem, 3)
    x0 = start(problem).numpy()
    solo = {n: sgd(x0, *rows(problem, n), n, steps=warmup, round_=0, purpose="warmup") for n in problem.clients.names}
    rho = {n: loss(w, *rows(problem, n, requirements)) for n, w in solo.items()}
    x = x0
    for number in (1, 2, 3):
        gap, delta = {}, {}
        for name in problem.clients.names:
            gap[name] = loss(x, *rows(problem, name)) - rho[name]
            delta[name] = sgd(x, *rows(problem, name), name, steps=STEPS, round_=number, purpose="train") - x
        s = {n: 1 / (1 + math.exp(-g)) for n, g in gap.items()}
        q = {n: v * (1 - v) for n, v in s.items()}
        x = x + server_lr * sum(q[n] * delta[n] for n in q) / (sum(q.values()) + eps)
        assert logged(found, number, "gap") == pytest.approx(gap, abs=1e-12)
        assert logged(found, number, "q") == pytest.approx(q, abs=1e-12)
        assert logged(found, number, "objective") == pytest.approx({"*": sum(s.values()) / len(s)}, abs=1e-12)
        assert logged(found, number, "effective_lr") == pytest.approx({"*": server_lr / (sum(q.values()) + eps)})
    np.testing.assert_allclose(found.x.numpy(), x, rtol=1e-11)

    # Appeal and preferred models, from the same numbers.
    names = problem.clients.names
    better = [loss(x, *rows(problem, n, "test")) < loss(solo[n], *rows(problem, n, "test")) for n in names]
    right = np.array([[_accuracy(w, *rows(problem, n, "test")) for w in (x, solo[n])] for n in names])
    expected = {
        "gm_appeal": np.mean(better),
        "appeal_train": np.mean([loss(x, *rows(problem, n)) < loss(solo[n], *rows(problem, n)) for n in names]),
        "test_accuracy": right[:, 0].mean(),
        "preferred_accuracy": np.where(better, right[:, 0], right[:, 1]).mean(),
        "best_of_two": right.max(axis=1).mean(),
        "slack": np.mean([max(rho[n] - loss(x, *rows(problem, n)), 0) for n in names]),
        "train_loss": np.mean([loss(x, *rows(problem, n)) for n in names]),
        "test_loss": np.mean([loss(x, *rows(problem, n, "test")) for n in names]),
        "objective_everyone": np.mean(
            [1 / (1 + math.exp(rho[n] - loss(x, *rows(problem, n)))) for n in names]
        ),
    }  # fmt: skip
    for key, value in expected.items():
        assert logged(found, 3, key)["*"] == pytest.approx(float(value), abs=1e-12), key
    tuned = {n: sgd(x, *rows(problem, n), n, steps=5, round_=3, purpose="tuned") for n in names}
    better = [loss(tuned[n], *rows(problem, n, "test")) < loss(solo[n], *rows(problem, n, "test")) for n in names]
    assert logged(found, 3, "gm_appeal_tuned")["*"] == pytest.approx(np.mean(better))


def _accuracy(w, x, y):
    return float(np.mean((x @ w[:-1] + w[-1] > 0) == y))


# ---- the two-client toy: gaps (x -+ g)^2


def toy(squared, offset):
    g = math.sqrt(squared)
    problem = quadratic({"a": [g + offset], "b": [-g + offset]})
    local = LocalSGD(lr=0.05, steps=Steps(1), batch_size=None)
    return problem, MaxFL(local, requirements={"a": 0.0, "b": 0.0})


@pytest.mark.parametrize("squared", [0.3, 1.0, 1.04, 1.05, 1.2, 4.0])
def test_the_midpoint_attracts_iff_the_clients_are_alike(squared):
    """A minimum iff g^2 tanh(g^2 / 2) < 1/2, that is g^2 < 1.044."""
    assert (squared * math.tanh(squared / 2) < 0.5) == (squared < 1.044)
    problem, method = toy(squared, 1e-3)  # the model starts at 0, so 1e-3 beside the midpoint
    away = abs(float(run(method, problem, 40, evaluate=40).x) - 1e-3)
    assert (away < 1e-3) == (squared < 1.044)


def test_far_clients_end_near_one_of_them():
    problem, method = toy(9.0, 0.2)
    x = float(run(method, problem, 200, evaluate=200).x)
    assert x == pytest.approx(-3 + 0.2, abs=1e-3)


@pytest.mark.parametrize("surrogate", ["sigmoid", "log", "exp"])
def test_a_step_follows_the_slope_of_the_objective(surrogate):
    """With eps in charge of the denominator, one full-batch step is -lr * lr_local / eps * n * the slope of Eq. 3."""
    from coterie.solvers import appeal

    centres, needs = {"a": [1.2, -0.4], "b": [-0.7, 0.3], "c": [0.1, 0.9]}, {"a": 0.5, "b": 0.9, "c": 0.2}
    problem = quadratic(centres)
    local, eps = LocalSGD(lr=0.1, steps=Steps(1), batch_size=None), 1e7
    moved = run(MaxFL(local, 1.0, eps, requirements=needs, surrogate=surrogate), problem, 1).x.numpy() * eps

    def value(x):
        return float(
            appeal.objective(
                torch.tensor([np.mean((x - np.array(c)) ** 2) - needs[n] for n, c in centres.items()]),
                surrogate=surrogate,
            )
        )

    h = 1e-5
    slope = [(value(h * e) - value(-h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(moved, -0.1 * 3 * np.array(slope), rtol=1e-5)
