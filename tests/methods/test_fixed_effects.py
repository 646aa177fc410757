"""What must hold of the fixed-effects regression: pooled rows with an indicator of each client, by numpy and by statsmodels."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from short_runs import trained
from test_partial import noisy, softmax_moments, tables_of, three_classes
from torch import nn

import coterie as ct
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rows import Part
from coterie.contract.task import Task
from coterie.solvers import glm
from federations import Problem, batch_norm, logistic, regression

MUTANTS = {
    "fixed-effects": [
        (
            "solvers/profile.py",
            "curvature = of_slopes - mixed.T @ followed.T",
            "curvature = of_slopes + mixed.T @ followed.T",
        ),
        (
            "compute/shared_slopes.py",
            "- ridge * state.b",
            "+ ridge * state.b",
        ),
        ("algorithms/fixed_effects.py", "INTERCEPTS = 20", "INTERCEPTS = 2"),
        ("compute/shared_slopes.py", "step = state.step / 2", "step = state.step"),
        (
            "compute/shared_slopes.py",
            "pooling.add_up(replies.intercepts) / len(replies)",
            "pooling.add_up(replies.intercepts)",
        ),
        (
            "solvers/glm.py",
            "gradient = rows.gradient.sum(0) - ridge * a",
            "gradient = rows.gradient.sum(0)",
        ),
        (
            "solvers/one_output.py",
            "float(of_rows.gradient.sum()) - ridge * a",
            "float(of_rows.gradient.sum())",
        ),
        (
            "solvers/one_output.py",
            "- mixed[:, None] * followed",
            "+ mixed[:, None] * followed",
        ),
    ]
}

PROBLEMS = {
    "regression": (regression, 0),
    "noisy": (noisy, 1),
    "classes": (three_classes, 3),
}


def with_indicators(tables):
    """Pooled rows whose columns are those of all clients and an indicator of each; the places of slopes and indicators."""
    columns = tables[0][0].shape[1]
    x = np.concatenate([x for x, _ in tables])
    who = np.concatenate([np.full(len(x), k) for k, (x, _) in enumerate(tables)])
    return (
        np.c_[x, np.eye(len(tables))[who]],
        np.concatenate([y for _, y in tables]),
        columns,
    )


def pooled_regression(tables, classes, ridge):
    """Models of the clients by Newton's method on the pooled rows, in the order of a linear layer's parameters."""
    design, y, columns = with_indicators(tables)
    outputs, width = max(classes, 1), design.shape[1]
    penalty = np.full((outputs, width), ridge / 20)
    penalty[:, :columns] = ridge
    # The intercept of a linear layer is held at 0: the indicators take its place.
    penalty = np.r_[penalty.ravel(), np.full(outputs, 1e9)]
    theta = np.zeros(len(penalty))
    for _ in range(100):
        g, h = softmax_moments(theta, design, y, classes)
        theta = theta + np.linalg.solve(h + np.diag(penalty), g - penalty * theta)
    table = theta[: outputs * width].reshape(outputs, width)
    slopes = table[:, :columns].ravel()
    return [np.r_[slopes, table[:, columns + k]] for k in range(len(tables))]


@pytest.mark.parametrize("ridge", [1.0, 0.1])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_it_is_a_regression_on_pooled_rows_with_an_indicator_of_each_client(
    kind, ridge
):
    make, classes = PROBLEMS[kind]
    problem = make()
    found = trained(ct.FixedEffects(ridge=ridge), problem, 8)
    expected = pooled_regression(tables_of(problem), classes, ridge)
    for name, theta in zip(problem.clients.names, expected, strict=True):
        np.testing.assert_allclose(found.models[name], theta, atol=1e-8)
    intercepts = np.mean([theta[-max(classes, 1) :] for theta in expected], 0)
    np.testing.assert_allclose(found.x[-max(classes, 1) :], intercepts, atol=1e-8)


@pytest.mark.parametrize("kind", ["regression", "noisy"])
def test_without_a_penalty_it_is_statsmodels(kind):
    sm = pytest.importorskip("statsmodels.api")
    make, classes = PROBLEMS[kind]
    problem = make()
    found = trained(ct.FixedEffects(ridge=0.0), problem, 10)
    design, y, columns = with_indicators(tables_of(problem))
    family = sm.families.Binomial() if classes else sm.families.Gaussian()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = sm.GLM(y, design, family=family).fit(tol=1e-14, maxiter=100).params
    for k, name in enumerate(problem.clients.names):
        expected = np.r_[theirs[:columns], theirs[columns + k]]
        np.testing.assert_allclose(found.models[name], expected, atol=1e-8)


def test_counts_are_statsmodels_poisson():
    """The solver with a family of one's own, counts with exposure, on pooled rows with indicators."""
    sm = pytest.importorskip("statsmodels.api")

    def counts(z, labels):
        mean = labels[:, 1] * z[..., 0].exp()
        error = (labels[:, 0] - mean)[..., None]
        loglik = labels[:, 0] * z[..., 0] - mean
        return glm.Derivatives(loglik, error, mean[..., None, None])

    generator = np.random.default_rng(3)
    tables = []
    for k in range(4):
        x = generator.normal(size=(40, 2))
        exposure = generator.uniform(0.5, 3, 40)
        rate = exposure * np.exp(x @ [0.4, -0.3] + 0.3 * k)
        tables.append((x, np.c_[generator.poisson(rate), exposure]))
    design, y, _ = with_indicators(tables)
    held = torch.tensor([0.0] * 6 + [1e12])
    ours = glm.mode(torch.tensor(design), torch.tensor(y), counts, held).theta[:6]
    theirs = sm.GLM(y[:, 0], design, family=sm.families.Poisson(), exposure=y[:, 1])
    expected = theirs.fit(tol=1e-14, maxiter=100).params
    np.testing.assert_allclose(ours, expected, atol=1e-8)


def test_a_shift_of_one_clients_labels_moves_its_intercept_alone():
    problem = regression()
    clients = [Client(c.name, c.train) for c in problem.clients]
    moved = list(clients)
    moved[2] = Client("c", Part(clients[2].train.inputs, clients[2].train.labels + 7))
    one, other = (
        trained(ct.FixedEffects(ridge=0.0), problem.with_clients(Clients(c)), 4).models
        for c in (clients, moved)
    )
    for name in "abcde":
        difference = other[name] - one[name]
        expected = torch.tensor([0, 0, 0, 7.0 if name == "c" else 0.0]).double()
        torch.testing.assert_close(difference, expected, rtol=0, atol=1e-8)


def test_one_client_has_its_own_ridge_regression():
    problem = noisy()
    alone = problem.with_clients(Clients([problem.clients["b"]]))
    found = trained(ct.FixedEffects(ridge=2.0), alone, 8)
    rows = problem.clients["b"].train
    precision = torch.tensor([2.0, 2.0, 2.0, 0.1])
    expected = glm.mode(rows.inputs, rows.labels, glm.FAMILIES["binary"], precision)
    torch.testing.assert_close(found.models["b"], expected.theta, rtol=0, atol=1e-8)


def test_once_it_has_converged_nobody_is_asked():
    found = trained(ct.FixedEffects(), noisy(), 20)
    asked = [r.round for r in found.asks if r.task.endswith(":tell_profile")]
    assert asked == list(range(1, len(asked) + 1))
    assert len(asked) <= 7
    assert bool(found.state.done)


def test_a_step_too_far_is_halved():
    """Cases are rare where most rows are, so that the first Newton step goes four times as far as the maximum."""
    x = torch.tensor([0.0] * 100 + [1.0] * 4).double()[:, None]
    y = torch.tensor([1] + [0] * 99 + [1, 1, 0, 0])
    clients = Clients([Client(name, Part(x, y)) for name in "ab"])
    problem = Problem(clients, nn.Linear(1, 1).double())
    found = trained(ct.FixedEffects(ridge=1e-4), problem, 20)
    design, labels, _ = with_indicators(tables_of(problem))
    precision = torch.tensor([1e-4, 5e-6, 5e-6, 1e12])
    expected = glm.mode(
        torch.tensor(design), torch.tensor(labels), glm.FAMILIES["binary"], precision
    )
    torch.testing.assert_close(
        found.models["a"][0], expected.theta[0], rtol=0, atol=1e-8
    )
    assert found.state.rounds < 20


def test_a_client_with_one_class_is_served_finite_numbers():
    problem = noisy()
    clients = [Client(c.name, c.train) for c in problem.clients]
    kept = clients[1].train.labels > 0
    rows = clients[1].train
    clients[1] = Client("b", Part(rows.inputs[kept], rows.labels[kept]))
    problem = problem.with_clients(Clients(clients))
    for ridge in (1.0, 0.0):
        found = trained(ct.FixedEffects(ridge=ridge), problem, 12)
        assert all(bool(torch.isfinite(x).all()) for x in found.models.values())
        assert float(found.models["b"][-1]) > float(found.x[-1])


def test_a_client_that_fails_is_named_and_the_others_go_on(monkeypatch):
    problem = noisy()
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if "fixed_effects" in self.name and "d" in cohort.names:
            raise OSError("unplugged")
        return honest(self, cohort, **payload)

    monkeypatch.setattr(Task, "__call__", call)
    found = trained(ct.FixedEffects(), problem, 8)
    monkeypatch.setattr(Task, "__call__", honest)
    assert list(found.failures) == ["d"]
    assert "d" not in found.models  # it is served the mean intercept
    without = Clients(
        [Client(c.name, c.train) for c in problem.clients if c.name != "d"]
    )
    for name, x in trained(
        ct.FixedEffects(), problem.with_clients(without), 8
    ).models.items():
        torch.testing.assert_close(x, found.models[name], rtol=0, atol=1e-8)


def test_models_that_are_not_linear_are_refused_in_a_sentence():
    with pytest.raises(InputError, match="leave out fixed-effects"):
        trained(ct.FixedEffects(), batch_norm(), 1)
    assert trained(ct.FixedEffects(), logistic(), 1).models


def test_bad_fields_are_named():
    with pytest.raises(InputError, match="ridge must be"):
        ct.FixedEffects(ridge=-1.0)
