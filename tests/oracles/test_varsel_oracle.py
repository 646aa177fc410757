"""A round of VaRSeL, recomputed with numpy and scipy from the rows alone; and which rows the parts of a batch have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from coterie.algorithms import VaRSeL
from coterie.algorithms.varsel import local_updates
from coterie.core.rng import Rng
from coterie.core.rows import Client, Clients, Part
from coterie.core.training import Epochs, LocalSGD, Steps
from federations import Problem, Vector, assert_close, cohort_of, fit, logistic, start

LR = 0.4


def gradient(part, x, steps):
    """Accumulated gradient of full-batch descent on the logistic loss; with one step the gradient itself."""
    inputs = np.hstack([part.inputs.numpy(), np.ones((len(part.labels), 1))])
    y = x.copy()
    for _ in range(steps):
        y = y - LR * inputs.T @ (1 / (1 + np.exp(-inputs @ y)) - part.labels.numpy()) / len(part.labels)
    return (x - y) / LR


def least(value, n, budget):
    """A minimiser over [0, 1]^n with sum <= budget by SLSQP from many starts."""
    rng = np.random.default_rng(0)
    starts = [np.zeros(n), np.full(n, min(1, budget / n)), *rng.uniform(0, min(1, budget / n), (20, n))]
    limit = {"type": "ineq", "fun": lambda w: budget - w.sum()}
    options = {"ftol": 1e-15, "maxiter": 500}
    found = [minimize(value, w, bounds=[(0, 1)] * n, constraints=[limit], options=options) for w in starts]
    return min(found, key=lambda f: f.fun).x


def by_hand(problem, method, steps):
    """Algorithm 1, round 1: the model, weights by client, and Phi(w*) / Phi(0)."""
    x = start(problem).numpy()
    g = {c.name: gradient(c.train, x, steps) for c in problem.clients}
    inner = np.stack([g[n] for n in method.internal])
    outside = [n for n in g if n not in method.internal]
    m, center = len(inner), inner.mean(0)
    v = ((inner - center) ** 2).sum() * (m / (m - 1) if method.unbiased_variance or method.debias else 1)
    d = np.array([((g[n] - center) ** 2).sum() for n in outside])
    budget = len(outside) if method.budget is None else method.budget
    if method.preselect == "smallest":
        chosen = sorted(outside[i] for i in np.argsort(d)[: int(budget)])
    else:
        w = least(lambda w: (v + w.sum() * (w @ d)) / (m + w.sum()) ** 2, len(d), budget)
        rng = Rng.named(0, "server", 1)
        chosen = [n for n, p in zip(outside, w, strict=True) if rng.child("draw", n).uniform(1)[0] < p]
    far = np.stack([g[n] for n in chosen]) - center

    def phi(w):
        shared = (w.sum() / m) ** 2 * v if method.debias else 0
        return (v + ((w @ far) ** 2).sum() - shared) / (m + w.sum()) ** 2

    w = least(phi, len(chosen), budget)
    step = (inner.sum(0) + w @ (far + center)) / (m + w.sum())
    return x - (method.lr or LR) * step, dict(zip(chosen, w, strict=True)), phi(w) / phi(0 * w)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("options", [
    {"preselect": "smallest"},
    {"preselect": "smallest", "debias": True},
    {"preselect": "smallest", "budget": 2, "lr": 0.9},
    {"preselect": "smallest", "unbiased_variance": True, "budget": 3},
    {"budget": 2.5, "unbiased_variance": True},
    {"debias": True},
])  # fmt: skip
def test_a_round_is_that_of_algorithm_1(options, steps):
    problem = logistic()
    local = LocalSGD(lr=LR, steps=Steps(steps), batch_size=None)
    method = VaRSeL(internal=("a", "c"), local=local, **options)
    found = fit(method, problem.clients, problem.model, 1, merge_validation=False)
    x, weights, ratio = by_hand(problem, method, steps)
    assert weights, "the case must choose somebody"
    assert set(found.models) == {"a", "c"}
    np.testing.assert_allclose(found.models["a"].numpy(), x, atol=2e-6)
    mass = 2 + sum(weights.values())
    assert set(found.weights["a"]) == {"a", "c", *weights}
    for name in ("a", "c"):
        assert found.weights["c"][name] == pytest.approx(1 / mass, abs=1e-5)
    for name, weight in weights.items():
        assert found.weights["c"][name] == pytest.approx(weight / mass, abs=1e-5)
    assert found.history.select("phi_ratio") == [(1, pytest.approx(ratio, rel=1e-6))]
    assert found.history.select("sum_weights") == [(1, pytest.approx(mass - 2, abs=1e-4))]
    assert found.history.select("selected") == [(1, len(weights))]


def test_the_cases_have_weights_of_all_kinds():
    problem = logistic()
    local = LocalSGD(lr=LR, steps=Steps(1), batch_size=None)
    method = VaRSeL(internal=("a", "c"), local=local, preselect="smallest", unbiased_variance=True, budget=3)
    weights = by_hand(problem, method, 1)[1].values()
    assert max(weights) > 0.5
    assert any(0.01 < w < 0.99 for w in weights)


# ---- which rows a part of a batch has: the labels are powers of two, so that a sum of labels names its rows

ROWS = 13


def binary():
    labels = 2.0 ** torch.arange(ROWS, dtype=torch.float64)[:, None]
    clients = Clients([Client(n, Part(torch.zeros(ROWS, 1, dtype=torch.float64), labels)) for n in "ab"])
    return Problem(clients, Vector(1).double())


def rows_of_gradient(gradient, count):
    """The rows whose mean of (0 - label)^2 has this gradient, -2 * mean(label)."""
    total = round(-float(gradient) / 2 * count)
    return {k for k in range(ROWS) if total >> k & 1}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("parts", "size", "sizes"), [
    (1, 5, [5]), (2, 8, [4, 4]), (3, 8, [3, 3, 2]), (2, None, [7, 6]), (5, 5, [1, 1, 1, 1, 1]), (1, None, [13]),
])  # fmt: skip
def test_parts_are_disjoint_and_together_the_batch_of_gradient(parts, size, sizes, mode):
    problem = binary()
    cohort, x = cohort_of(problem), start(problem)
    found = cohort.gradients(x, parts=parts, batch_size=size, mode=mode)
    assert cohort.spent["row_gradients"] == 2 * sum(sizes)
    whole = cohort.gradient(x, batch_size=size, mode=mode)
    for i in range(2):
        rows = [rows_of_gradient(g, n) for g, n in zip(found[i, :, 0], sizes, strict=True)]
        assert [len(r) for r in rows] == sizes
        assert set().union(*rows) == rows_of_gradient(whole[i, 0], sum(sizes))


@pytest.mark.parametrize("local", [
    LocalSGD(lr=0.25, steps=Steps(1), batch_size=8),
    LocalSGD(lr=0.25, steps=Steps(1), batch_size=8, momentum=0.5),
    LocalSGD(lr=0.25, steps=Epochs(1), batch_size=None),
])  # fmt: skip
@pytest.mark.parametrize("parts", [2, 3])
def test_internal_splits_are_disjoint_shares_of_a_batch_in_every_way_of_training(local, parts):
    problem = binary()
    found = local_updates(cohort_of(problem, "a"), x=start(problem), local=local, parts=parts).delta[0, :, 0]
    batch = local.batch_size or ROWS
    sizes = [len(range(k, batch, parts)) for k in range(parts)]
    rows = [rows_of_gradient(-d, n) for d, n in zip(found, sizes, strict=True)]
    assert [len(r) for r in rows] == sizes
    assert len(set().union(*rows)) == batch


def test_local_steps_of_a_split_never_leave_its_rows():
    problem, x = binary(), torch.zeros(1, dtype=torch.float64)
    # lr = 1/2 makes the model the mean label of the last batch: of batches of 2 + 2 rows, from parts of 7 and 6 rows.
    local = LocalSGD(lr=0.5, steps=Steps(5), batch_size=4)
    seen = [set(), set()]
    for steps in range(1, 6):
        taken = LocalSGD(lr=0.5, steps=Steps(steps), batch_size=4, weight_decay=1e-300)
        ends = local_updates(cohort_of(problem, "a"), x=x, local=taken, parts=2).delta[0, :, 0] * local.lr
        for part, end in enumerate(ends):
            rows = rows_of_gradient(-2 * end, 2)
            assert len(rows) in (1, 2)  # a batch may begin and end with the same row, which then counts twice
            seen[part] |= rows
    assert not seen[0] & seen[1]
    assert min(map(len, seen)) >= 5


def test_one_part_is_the_gradient_itself():
    problem = logistic()
    cohort, x = cohort_of(problem), start(problem)
    assert_close(cohort.gradients(x, parts=1, batch_size=4)[:, 0], cohort.gradient(x, batch_size=4), 0)
