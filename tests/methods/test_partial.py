"""What must hold of partial pooling: its steps recomputed with numpy alone, its limits, and other people's mixed models."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from short_runs import run, trained
from torch import nn

import coterie as ct
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rows import Part
from coterie.contract.task import Task
from coterie.solvers import glm, pooling
from federations import (
    Problem,
    assert_same_bits,
    batch_norm,
    logistic,
    regression,
    shuffled,
)

MUTANTS = {
    "partial": [
        (
            "algorithms/partial.py",
            "gradient = pooling.own_precision(slopes, intercepts) * own",
            "gradient = torch.zeros_like(own)",
        ),
        (
            "algorithms/partial.py",
            "moments.curvature[None]",
            "2 * moments.curvature[None]",
        ),
        ("algorithms/partial.py", "scale=1 / variance", "scale=variance"),
        (
            "algorithms/partial.py",
            "**new._asdict(), old_t=prior.t",
            "**new._asdict(), old_t=new.t",
        ),
        (
            "solvers/pooling.py",
            "sums.offset / old.t - old.mu / s2",
            "sums.offset / old.t + old.mu / s2",
        ),
        ("solvers/pooling.py", "n = free + PSEUDO_CLIENTS", "n = free"),
        (
            "solvers/pooling.py",
            "used = sums.shrunk + sums.kept_square * w / old.t",
            "used = sums.shrunk",
        ),
        (
            "solvers/pooling.py",
            "sums.offset + step * step * sums.weight",
            "sums.offset",
        ),
        (
            "solvers/pooling.py",
            "(FREEDOM + slopes) / (FREEDOM + distance)",
            "(FREEDOM + distance) / (FREEDOM + slopes)",
        ),
        (
            "solvers/pooling.py",
            "u = _robust_weights(theta, variance, new.mu, prior.t)",
            "u = _robust_weights(theta, variance, new.mu, new.t)",
        ),
        (
            "solvers/pooling.py",
            "sums.intercept_square[..., 0] - clients * (m0 * m0).sum(-1)",
            "sums.intercept_square[..., 0]",
        ),
        (
            "solvers/pooling.py",
            "torch.diag((1 - shrunk).mean(1))",
            "torch.diag(shrunk.mean(1))",
        ),
    ]
}


# ---- the method with numpy alone


def softmax_moments(theta, x, y, classes):
    """Gradient and curvature of the log likelihood; one logit where `classes` is 1, numbers of variance 1 where it is 0."""
    n, d = x.shape
    outputs = max(classes, 1)
    z = x @ theta[: outputs * d].reshape(outputs, d).T + theta[outputs * d :]
    if classes == 0:
        error, weight = (y - z[:, 0])[:, None], np.ones((n, 1, 1))
    elif classes == 1:
        p = 1 / (1 + np.exp(-z))
        error, weight = y[:, None] - p, (p * (1 - p))[:, :, None]
    else:
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        error = np.eye(classes)[y] - p
        weight = p[:, :, None] * np.eye(classes) - p[:, :, None] * p[:, None, :]
    # A row of the design for each output: its slopes, then the intercepts.
    design = np.zeros((n, outputs, len(theta)))
    for c in range(outputs):
        design[:, c, c * d : (c + 1) * d] = x
        design[:, c, outputs * d + c] = 1
    gradient = np.einsum("nc,ncp->p", error, design)
    curvature = np.einsum("ncp,nce,neq->pq", design, weight, design)
    return gradient, curvature


def own_model(x, y, classes):
    """The mode under ridge 4, and the residual variance of a regression (else 1)."""
    outputs = max(classes, 1)
    ridge = np.r_[np.full(outputs * x.shape[1], 4.0), np.full(outputs, 0.001)]

    def solve(scale):
        theta = np.zeros(len(ridge))
        for _ in range(200):
            g, h = softmax_moments(theta, x, y, classes)
            step = np.linalg.solve(
                h / scale + np.diag(ridge), g / scale - ridge * theta
            )
            theta = theta + step * min(1, 1 / np.abs(step).max())
        return theta, h / scale

    theta, h = solve(1.0)
    if classes:
        return theta, 1.0
    residual = y - x @ theta[:-1] - theta[-1]
    degrees = np.trace(np.linalg.solve(h + np.diag(ridge), h))
    variance = (residual**2).sum() / (len(y) - degrees)
    return solve(variance)[0], variance


def pooled(own, about, gradients, curvatures, d_all):
    """Sixty steps of section 1, one client after the other."""
    m, size = own.shape
    d = d_all
    mu, m0 = own[:, :d].mean(0), own[:, d:].mean(0)
    t, q0, s2, u = np.full(d, 0.1), 1.0, 1.0, np.ones(m)
    theta = own.copy()
    variance = np.zeros_like(own)

    def move():
        for k in range(m):
            precision = np.r_[u[k] / t, np.full(size - d, 1 / q0)]
            inverse = np.linalg.inv(curvatures[k] + np.diag(precision))
            uphill = gradients[k] - curvatures[k] @ (theta[k] - about[k])
            uphill = uphill - precision * (theta[k] - np.r_[mu, m0])
            step = inverse @ uphill
            theta[k] = theta[k] + step * min(1, 3 / max(np.linalg.norm(step), 1e-300))
            variance[k] = np.diag(inverse)

    for _ in range(60):
        move()
        b, v = theta[:, :d], variance[:, :d]
        r = u[:, None] * v / t
        a = (u[:, None] * (1 - np.minimum(r, 1))).sum(0) / t + 1 / s2
        pull = (u[:, None] * (b - mu)).sum(0) / t - mu / s2
        mu = mu + np.clip(pull / a, -0.5, 0.5)
        w = 1 / a
        used = (r + (1 - r) ** 2 * u[:, None] * w / t).sum(0)
        used = np.clip(used, 0, m - 0.001)
        s = (u[:, None] * (b - mu) ** 2).sum(0)
        c = s.sum() / (m - used).sum()
        new_u = (4 + d) / (4 + (((b - mu) ** 2 + v) / t).sum(1))
        n, z = m - used + 5, s + 5 * c
        middle = 0.04 * n - z
        root = np.sqrt(middle**2 + 4 * (n + 2) * 0.04 * z)
        t = np.maximum((root - middle) / (2 * (n + 2)), 1e-4)
        u = np.clip(new_u, 0.02, 2)
        s2 = np.clip(((mu**2 + w).sum() + 1) / (d + 2), 0.001, 4)
        intercepts = theta[:, d:]
        m0 = intercepts.mean(0)
        spread = ((intercepts - m0) ** 2 + variance[:, d:]).sum()
        q0 = (spread + 2) / (m * (size - d) + 2)
    move()
    prior = {"mu": mu, "t": t, "u": u, "m0": m0, "q0": q0, "s2": s2}
    return theta, np.r_[mu, m0], prior


def two_passes(tables, classes):
    """The models of all clients, that of a hospital outside, and the prior."""
    outputs = max(classes, 1)
    d = outputs * tables[0][0].shape[1]
    fits = [own_model(x, y, classes) for x, y in tables]
    own = np.stack([theta for theta, _ in fits])
    at = own
    for _ in range(2):
        told = [
            softmax_moments(point, x, y, classes)
            for point, (x, y) in zip(at, tables, strict=True)
        ]
        scales = [v for _, v in fits]
        gradients = [g / v for (g, _), v in zip(told, scales, strict=True)]
        curvatures = [h / v for (_, h), v in zip(told, scales, strict=True)]
        at, outside, prior = pooled(own, at, gradients, curvatures, d)
    return at, outside, prior


# ---- problems


def three_classes(names="abcde"):
    clients = []
    for k, name in enumerate(names):
        g = torch.Generator().manual_seed(40 + k)
        x = torch.randn(30, 2, generator=g).double()
        tilt = torch.tensor([[1.0, 0.2 * k], [0.0, -1.0], [-1.0, 0.5]]).double()
        y = (x @ tilt.T + torch.randn(30, 3, generator=g)).argmax(1)
        clients.append(Client(name, Part(x, y)))
    return Problem(Clients(clients), nn.Linear(2, 3).double())


def noisy(names="abcde"):
    """Labels that no plane separates, so that likelihoods without a penalty have a maximum."""
    clients = []
    for k, name in enumerate(names):
        g = torch.Generator().manual_seed(60 + k)
        x = torch.randn(50, 3, generator=g).double()
        score = x @ torch.tensor([0.8, -0.6, 0.2 * k]).double() - 0.3
        y = (torch.rand(50, generator=g) < torch.sigmoid(score)).long()
        clients.append(Client(name, Part(x, y)))
    return Problem(Clients(clients), nn.Linear(3, 1).double())


PROBLEMS = {
    "logistic": (logistic, 1),
    "regression": (regression, 0),
    "three classes": (three_classes, 3),
}


def tables_of(problem):
    return [
        (c.train.inputs.double().numpy(), c.train.labels.numpy())
        for c in problem.clients
    ]


@pytest.mark.parametrize("kind", PROBLEMS)
def test_two_passes_are_those_of_numpy(kind):
    make, classes = PROBLEMS[kind]
    problem = make()
    found = trained(ct.Partial(), problem, 3)
    models, outside, prior = two_passes(tables_of(problem), classes)
    for name, expected in zip(problem.clients.names, models, strict=True):
        np.testing.assert_allclose(found.models[name], expected, atol=1e-8)
    np.testing.assert_allclose(found.x, outside, atol=1e-8)
    for name, value in prior.items():
        np.testing.assert_allclose(getattr(found.state, name), value, atol=1e-8)


def test_in_single_precision_models_are_within_a_millionth():
    problem = logistic(torch.float32)
    found = trained(ct.Partial(), problem, 2)
    models, _, _ = two_passes(tables_of(problem), 1)
    for name, expected in zip(problem.clients.names, models, strict=True):
        assert found.models[name].dtype == torch.float32
        np.testing.assert_allclose(found.models[name], expected, atol=1e-6)


@pytest.mark.in_turn
def test_many_steps_of_sums_and_many_passes_end_at_the_same_models():
    problem = noisy()
    sums = trained(ct.Partial(sends="sums"), problem, 60)
    passes = trained(ct.Partial(passes=6), problem, 6)
    for name, x in passes.models.items():
        torch.testing.assert_close(sums.models[name], x, rtol=0, atol=1e-3)
    # A regression is a quadratic: there the steps are the same from the start.
    problem = regression()
    sums = trained(ct.Partial(sends="sums"), problem, 61)
    passes = trained(ct.Partial(passes=1), problem, 1)
    for name in problem.clients.names:
        torch.testing.assert_close(
            sums.models[name], passes.models[name], rtol=0, atol=1e-6
        )


def test_each_step_of_sums_is_one_of_the_solvers():
    """A regression is a quadratic, so that five rounds are five Newton steps with four updates of the prior between them."""
    problem = regression()
    sums = trained(ct.Partial(sends="sums"), problem, 5)
    told = trained(ct.Partial(passes=1), problem, 1).state
    quadratics = pooling.Quadratics(told.about, told.gradient, told.curvature)
    steps = pooling.pool(quadratics, told.own, 3, steps=4)
    for name, theta in zip(problem.clients.names, steps.theta, strict=True):
        torch.testing.assert_close(sums.models[name], theta, rtol=0, atol=1e-10)


# ---- laws


def quadratics_at(theta, problem, kind="binary"):
    told = [
        glm.moments(at, c.train.inputs, c.train.labels, glm.FAMILIES[kind])
        for at, c in zip(theta, problem.clients, strict=True)
    ]
    return pooling.Quadratics(
        theta,
        torch.stack([m.gradient for m in told]),
        torch.stack([m.curvature for m in told]),
    )


def own_models(problem, kind="binary"):
    precision = pooling.own_precision(problem.clients[0].train.inputs.shape[1], 1)
    return torch.stack(
        [
            glm.mode(
                c.train.inputs, c.train.labels, glm.FAMILIES[kind], precision
            ).theta
            for c in problem.clients
        ]
    )


def settled(problem, held=pooling.NOTHING_HELD, steps=60, passes=12):
    """Passes until the quadratics are those at the modes."""
    own = at = own_models(problem)
    for _ in range(passes):
        found = pooling.pool(
            quadratics_at(at, problem), own, own.shape[1] - 1, steps, held
        )
        at = found.theta
    return found


def number(value):
    return torch.tensor(value, dtype=torch.float64)


def test_one_client_has_the_ridge_of_its_prior():
    problem = logistic()
    problem = problem.with_clients(Clients([problem.clients["c"]]))
    t = torch.tensor([0.2, 0.1, 0.4], dtype=torch.float64)
    found = settled(problem, pooling.Held(t=t, s2=number(0.8)), passes=15)
    prior = found.prior
    ridge = 1 / (prior.s2 + prior.t / found.u)
    rows = problem.clients[0].train
    free_intercept = torch.cat([ridge, number([0.0])])
    alone = glm.mode(rows.inputs, rows.labels, glm.FAMILIES["binary"], free_intercept)
    torch.testing.assert_close(found.theta[0], alone.theta, rtol=0, atol=1e-6)


@pytest.mark.parametrize("sends", ["curvature", "sums"])
def test_two_clients_with_equal_rows_are_served_equal_models(sends):
    problem = logistic()
    twin = Client("z", problem.clients["b"].train)
    problem = problem.with_clients(
        Clients([*(Client(c.name, c.train) for c in problem.clients), twin])
    )
    found = trained(ct.Partial(sends=sends), problem, 3)
    assert torch.equal(found.models["b"], found.models["z"])
    assert not torch.equal(found.models["b"], found.models["c"])


@pytest.mark.in_turn
def test_the_limits_of_the_variance_between_clients():
    """u = 1, and t, S2 and q0 held."""
    problem = noisy()
    ones = torch.ones(5, dtype=torch.float64)
    s2, wide = number(0.5), number(1e8)

    small = torch.full((3,), 1e-7, dtype=torch.float64)
    alike = settled(problem, pooling.Held(small, ones, wide, s2))
    table, indicators = [], []
    for k, client in enumerate(problem.clients):
        table.append(client.train.inputs)
        indicator = torch.zeros(len(client.train), 5, dtype=torch.float64)
        indicator[:, k] = 1
        indicators.append(indicator)
    # Pooled rows with an indicator of each client; the intercept before them is held at 0.
    inputs = torch.cat([torch.cat(table), torch.cat(indicators)], 1)
    labels = torch.cat([c.train.labels for c in problem.clients])
    precision = torch.cat([(1 / s2).expand(3), torch.zeros(5), number([1e12])])
    together = glm.mode(inputs, labels, glm.FAMILIES["binary"], precision).theta
    for k in range(5):
        torch.testing.assert_close(alike.theta[k, :3], together[:3], rtol=0, atol=1e-5)
        torch.testing.assert_close(
            alike.theta[k, 3], together[3 + k], rtol=0, atol=1e-5
        )

    unlike = torch.full((3,), 1e9, dtype=torch.float64)
    family = glm.FAMILIES["binary"]
    apart = settled(problem, pooling.Held(unlike, ones, wide, s2), steps=20)
    for k, c in enumerate(problem.clients):
        best = glm.mode(c.train.inputs, c.train.labels, family, torch.zeros(4)).theta
        torch.testing.assert_close(apart.theta[k], best, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sends", ["curvature", "sums"])
def test_the_order_of_clients_changes_no_bit(sends):
    problem = logistic()
    turned = problem.with_clients(Clients(shuffled(problem.clients)))
    assert_same_bits(
        trained(ct.Partial(sends=sends), problem, 3),
        trained(ct.Partial(sends=sends), turned, 3),
    )
    # Nor do their names, by which they are sorted.
    called = dict(zip("abcde", "dbeca", strict=True))
    renamed = problem.with_clients(
        Clients([Client(called[c.name], c.train) for c in problem.clients])
    )
    plain = problem.with_clients(
        Clients([Client(c.name, c.train) for c in problem.clients])
    )
    one, other = (
        trained(ct.Partial(sends=sends), p, 3).models for p in (plain, renamed)
    )
    for name, x in one.items():
        assert torch.equal(x, other[called.get(name, name)])


@pytest.mark.parametrize("make", [logistic, three_classes])
def test_a_client_with_no_rows_of_a_class_is_served_finite_numbers(make):
    problem = make()
    lacking = problem.clients["b"].train
    kept = lacking.labels > 0
    clients = [Client(c.name, c.train) for c in problem.clients]
    clients[1] = Client("b", Part(lacking.inputs[kept], lacking.labels[kept]))
    found = trained(ct.Partial(), problem.with_clients(Clients(clients)), 2)
    assert all(bool(torch.isfinite(x).all()) for x in found.models.values())
    assert float(found.models["b"].abs().max()) < 10


def test_one_opposite_client_is_set_apart_and_the_others_stay_together():
    clients = []
    for k in range(7):
        g = torch.Generator().manual_seed(k)
        x = torch.randn(150, 3, generator=g).double()
        sign = -1 if k == 6 else 1
        score = sign * (x @ torch.tensor([1.5, -1.0, 1.0]).double())
        y = (torch.rand(150, generator=g) < torch.sigmoid(score)).long()
        clients.append(Client(f"c{k}", Part(x, y)))
    problem = Problem(Clients(clients), nn.Linear(3, 1).double())
    found = trained(ct.Partial(), problem, 2)
    assert float(found.state.u[6]) < 0.3 < float(found.state.u[:6].min())
    # What it is served is its own; hardly anything of the others' is.
    assert found.weights["c6"]["c6"] > 0.9
    saved = ct.Partial().prior(found.state)
    p = torch.special.gammaincc(saved["degrees"].double() / 2, saved["distance"] / 2)
    pairs = 7 * 6 / 2
    differs = p * pairs < 0.05
    assert bool(differs[6, :6].all())
    assert not bool(differs[:6, :6].any())


# ---- rounds, clients that fail, counts


def test_rounds_after_the_passes_ask_nothing_and_change_nothing():
    problem = logistic()
    two, five = (run(ct.Partial(), problem, rounds) for rounds in (2, 5))
    for name, x in two.models.items():
        assert torch.equal(x, five.models[name])
    asked = [(r.round, r.task) for r in five.asks if "partial:" in r.task]
    assert [number for number, _ in asked] == [1, 2]
    one = run(ct.Partial(passes=1), problem, 5)
    assert [r.round for r in one.asks if "partial:" in r.task] == [1]
    assert not torch.equal(one.x, two.x)


def test_a_client_that_fails_is_served_the_mean_and_named(monkeypatch):
    problem = logistic()
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if self.name.endswith(":tell_quadratic") and "d" in cohort.names:
            raise OSError("unplugged")
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)
    found = trained(ct.Partial(), problem, 2)
    assert list(found.failures) == ["d"]
    assert "d" not in found.models
    assert "d" not in found.weights
    # The others are served what they would be without it.
    without = problem.with_clients(
        Clients([c for c in problem.clients if c.name != "d"])
    )
    monkeypatch.setattr(Task, "__call__", honest)
    at_first = trained(ct.Partial(passes=1), problem, 1)
    assert not torch.equal(at_first.x, found.x)
    for name, x in trained(ct.Partial(), without, 2).models.items():
        torch.testing.assert_close(x, found.models[name], rtol=0, atol=0.05)


def test_a_curvature_of_no_log_likelihood_is_refused_by_name(monkeypatch):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        if self.name.endswith(":tell_mode") and "b" in cohort.names:
            curvature = reply.curvature.clone()
            curvature[cohort.names.index("b"), 0] = -1e6
            return reply._replace(curvature=curvature)
        return reply

    monkeypatch.setattr(Task, "__call__", call)
    found = trained(ct.Partial(), logistic(), 2)
    assert "of no log likelihood" in found.failures["b"]
    assert all(bool(torch.isfinite(x).all()) for x in found.models.values())


def test_gradients_of_rows_are_counted():
    problem = regression()
    found = trained(ct.Partial(), problem, 2)
    rows = sum(len(c.train) for c in problem.clients)
    counted = found.history.select("row_gradients")[-1][1]
    # One Newton step solves a regression: a look at 0, one after the step, and one that finds no step left; then one in pass 2.
    assert counted == 4 * rows


def test_weights_say_how_much_of_a_model_is_a_clients_own():
    found = trained(ct.Partial(), logistic(), 2)
    for name, weights in found.weights.items():
        assert set(weights) == set("abcde")
        assert sum(weights.values()) == pytest.approx(1)
        assert min(weights.values()) >= 0
        assert weights[name] > 0
    # With a variance that lets nothing through, each model is its client's own.
    pooled_ = pooling.pool(
        quadratics_at(own_models(logistic()), logistic()),
        own_models(logistic()),
        3,
        held=pooling.Held(t=torch.full((3,), 1e6, dtype=torch.float64)),
    )
    torch.testing.assert_close(
        pooling.shares(pooled_), torch.eye(5).double(), rtol=0, atol=1e-2
    )


def test_the_prior_is_all_that_a_new_client_needs():
    found = trained(ct.Partial(), logistic(), 2)
    saved = ct.Partial().prior(found.state)
    prior = pooling.Prior(*(saved[key] for key in pooling.Prior._fields))
    torch.testing.assert_close(prior.centre(), found.x)
    assert saved["clients"] == tuple("abcde")
    assert saved["curvature"].shape == (5, 4, 4)
    assert ct.Partial().prior(run(ct.Partial(), logistic(), 0).state) == {}


def test_a_saved_run_keeps_what_the_clients_share(tmp_path):
    found = trained(ct.Partial(), logistic(), 2)
    found.save(tmp_path / "run.safetensors")
    again = ct.Run.load(tmp_path / "run.safetensors", found.module)
    assert again.models.keys() == found.models.keys()
    assert again.prior.keys() == found.prior.keys()
    for name, value in found.prior.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(again.prior[name], value)
        else:
            assert again.prior[name] == value


# ---- others' programs


@pytest.mark.in_turn
def test_a_regression_in_the_limit_of_many_clients_is_that_of_statsmodels():
    """Fixed effects and variances of MixedLM, u held at 1; clients have one residual variance."""
    sm = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    generator = np.random.default_rng(5)
    clients, rows, sd = 100, 30, np.array([0.5, 0.3])
    mean = np.array([1.0, -0.5])
    tables = []
    for _ in range(clients):
        x = generator.normal(size=(rows, 2))
        b = mean + sd * generator.normal(size=2)
        tables.append(
            (x, x @ b + 0.4 * generator.normal() + generator.normal(size=rows))
        )
    own, gradients, curvatures = [], [], []
    for x, y in tables:
        theta, variance = own_model(x, y, 0)
        g, h = softmax_moments(theta, x, y, 0)
        own.append(theta)
        gradients.append(g / variance)
        curvatures.append(h / variance)
    found = pooling.pool(
        pooling.Quadratics(
            *(torch.tensor(np.stack(v)) for v in (own, gradients, curvatures))
        ),
        torch.tensor(np.stack(own)),
        2,
        held=pooling.Held(u=torch.ones(clients, dtype=torch.float64)),
    )
    x = np.concatenate([x for x, _ in tables])
    design = np.c_[x, np.ones(len(x))]
    y = np.concatenate([y for _, y in tables])
    groups = np.repeat(np.arange(clients), rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        free = sm.MixedLMParams.from_components(fe_params=np.ones(3), cov_re=np.eye(3))
        theirs = sm.MixedLM(y, design, groups, exog_re=design).fit(free=free)
    fixed = torch.cat([found.prior.mu, found.prior.m0])
    np.testing.assert_allclose(fixed, theirs.fe_params, atol=0.01)
    np.testing.assert_allclose(found.prior.t, np.diag(theirs.cov_re)[:2], rtol=0.06)
    without_prior = (float(found.prior.q0) * (clients + 2) - 2) / clients
    np.testing.assert_allclose(without_prior, theirs.cov_re[2, 2], rtol=0.06)


# ---- what it refuses


def test_models_that_are_not_linear_and_own_losses_are_refused_in_a_sentence():
    problem = batch_norm()
    with pytest.raises(
        InputError, match="not one linear layer with bias; leave out partial"
    ):
        trained(ct.Partial(), problem, 1)
    problem = logistic()
    without_bias = Problem(problem.clients, nn.Linear(3, 1, bias=False).double())
    with pytest.raises(InputError, match="not one linear layer with bias"):
        trained(ct.Partial(), without_bias, 1)
    with pytest.raises(InputError, match="under the library's loss"):
        trained(ct.Partial(), problem, 1, loss=torch.nn.BCEWithLogitsLoss())
    wide = Problem(
        Clients([Client("a", Part(torch.randn(4, 1100), torch.tensor([0, 1, 0, 1])))]),
        nn.Linear(1100, 1),
    )
    with pytest.raises(InputError, match="the curvature of 1101 parameters"):
        trained(ct.Partial(), wide, 1)


@pytest.mark.parametrize("filters", ["clip", "gaussian-noise", "top-k"])
def test_filters_that_cannot_change_a_curvature_are_refused_by_name(filters):
    fields = {"clip": {"bound": 1.0}, "gaussian-noise": {"sigma": 0.1}}.get(filters, {})
    from coterie.config.registry import FILTERS

    step = FILTERS.build({"name": filters, **fields}, "")
    with pytest.raises(InputError, match=f"leave out the filter {type(step).__name__}"):
        trained(ct.Partial(), logistic(), 1, filters=[step])


def test_attacks_on_updates_are_refused_and_attacks_on_rows_are_not():
    with pytest.raises(InputError, match="SignFlip changes updates"):
        trained(ct.Partial(), logistic(), 1, attack=ct.attacks.SignFlip(on=("b",)))
    honest = trained(ct.Partial(), logistic(), 2)
    lied_to = trained(
        ct.Partial(), logistic(), 2, attack=ct.attacks.LabelFlip(on=("b",))
    )
    assert not torch.equal(honest.x, lied_to.x)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"passes": 0}, "passes must be an int > 0"),
        ({"passes": 1.5}, "passes must be an int > 0"),
        ({"sends": "updates"}, "sends"),
    ],
)
def test_bad_fields_are_named(fields, words):
    with pytest.raises(InputError, match=words):
        ct.Partial(**fields)


def test_models_that_stand_are_not_evaluated_again():
    problem = logistic()
    found = run(ct.Partial(), problem, 6)
    asked = [r.round for r in found.asks if r.task.endswith(":evaluate")]
    assert set(asked) == {0, 1, 2}
    losses = dict(found.history.select("loss", "a", "test"))
    assert sorted(losses) == list(range(7))
    assert losses[2] == losses[3] == losses[6] != losses[1]
    rows = {
        row["client"]: row["loss"] for row in found.summary if row["split"] == "test"
    }
    assert rows["a"] == losses[6]


def test_methods_all_leaves_it_out_of_other_models_and_says_why(capsys):
    from coterie.cli.commands import _fitting
    from coterie.run.tables import preset

    tables = preset("heart-disease")
    tables["methods"] = [{"name": n} for n in ("fedavg", "partial", "fixed-effects")]
    tables["model"] = {"name": "mlp"}
    assert [table["name"] for table in _fitting(tables)] == ["fedavg"]
    said = capsys.readouterr().err
    assert "left out partial" in said
    assert "left out fixed-effects" in said
    tables["model"] = {"name": "logistic"}
    assert len(_fitting(tables)) == 3
