"""What must hold of Cox regression: slopes and errors of statsmodels, late entry and ties included; and what sites ask for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from short_runs import trained
from torch import nn

import coterie as ct
from coterie.base.errors import InputError
from coterie.base.vector import Layout
from coterie.compute.linear import solver_labels
from coterie.compute.ridge import find_linear
from coterie.compute.workspace import Workspace
from coterie.sites.allowed import Allowed, RefusedError
from coterie.sites.minima import curvature_fits
from coterie.solvers import glm
from coterie.solvers.cox import partial_likelihood
from coterie.solvers.profile import own_intercepts
from federations import Problem, batch_norm, logistic, regression

MUTANTS = {
    "cox": [
        (
            "solvers/cox.py",
            "- (share[:, None] * means).T",
            "+ (share[:, None] * means).T",
        ),
        ("solvers/cox.py", "own[died] -= lighter[at_time]", "own[died] -= 0"),
        ("solvers/cox.py", "- gone[:, None] *", "- 0 * gone[:, None] *"),
        (
            "solvers/cox.py",
            " - _sums_from(times, entry, weighted)",
            "",
        ),
        ("compute/shared_slopes.py", "- ridge * state.b", "+ ridge * state.b"),
        ("compute/shared_slopes.py", "step = state.step / 2", "step = state.step"),
        (
            "compute/shared_slopes.py",
            "pooling.add_up(replies.intercepts) / len(replies)",
            "pooling.add_up(replies.intercepts)",
        ),
        (
            "algorithms/cox.py",
            "events_per_slope: ClassVar[int] = 10",
            "events_per_slope: ClassVar[int] = 0",
        ),
    ]
}

FORM = ct.LabelForm("hazards", cuts=(0.25, 0.5, 1.0), rates=(2.0, 1.5, 1.0))
SLOPES = torch.tensor([0.8, -0.5, 0.3])


def survival(clients=3, rows=120, scale=1.0, seed=0):
    """Clients whose baseline hazards differ; times have ties, and a third of the rows enters late."""
    tables = {}
    for k in range(clients):
        g = torch.Generator().manual_seed(seed + k)
        x = torch.randn(rows, 3, generator=g)
        rate = 1.5 * (1 + k) * (x @ SLOPES).exp()
        died = -torch.rand(rows, generator=g).log() / rate
        censored = 0.1 + 0.9 * torch.rand(rows, generator=g)
        time = (torch.minimum(died, censored) * 64).ceil() / 64
        entry = torch.where(
            torch.arange(rows) % 3 == 0, time * torch.rand(rows, generator=g) * 0.9, 0.0
        )
        # Between two event times, so that nobody asks whether it counts at its own entry.
        entry = (entry * 64).floor() / 64 + torch.where(entry > 0, 1 / 128, 0.0)
        entry = torch.where(entry < time, entry, 0.0)
        event = (died <= censored).float()
        x[:, 0] *= scale
        tables["abcdefg"[k]] = (x, torch.stack([entry, time.clamp(max=1), event], 1))
    made = ct.data.from_tensors(tables, form=FORM, split={"parts": {"train": 1.0}})
    return Problem(made, ct.Hazards(nn.Linear(3, 1), 3).double())


def pooled(problem):
    """Inputs, followup and client of all training rows, as numpy arrays."""
    parts = [client.train for client in problem.clients]
    inputs = np.concatenate([part.inputs.double().numpy() for part in parts])
    labels = np.concatenate([part.labels.double().numpy() for part in parts])
    who = np.concatenate([np.full(len(part), k) for k, part in enumerate(parts)])
    return inputs, labels, who


def test_slopes_and_errors_are_those_of_statsmodels_with_strata_entry_and_ties():
    sm = pytest.importorskip("statsmodels.api")
    problem = survival()
    found = trained(ct.Cox(), problem, 12)
    x, labels, who = pooled(problem)
    entry, time, event = labels.T
    assert len(np.unique(time[event > 0])) < 0.7 * event.sum()
    assert (entry > 0).sum() > 40
    model = sm.PHReg(time, x, status=event, entry=entry, strata=who, ties="efron")
    theirs = model.fit(disp=0, method="newton", maxiter=100, tol=1e-12)
    prior = found.prior
    np.testing.assert_allclose(prior["slopes"], theirs.params, atol=1e-5)
    np.testing.assert_allclose(
        prior["covariance"].diagonal().sqrt(), theirs.bse, atol=1e-5
    )
    for x in found.models.values():
        np.testing.assert_allclose(x[:3], theirs.params, atol=1e-5)


def test_gradient_and_curvature_are_the_derivatives_of_the_value():
    x, labels, _ = map(torch.from_numpy, pooled(survival(clients=1, rows=60)))
    at = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)

    def value(b):
        """Efron's sum, term by term."""
        entry, time, event = labels.unbind(1)
        scores, total = x @ b, torch.zeros((), dtype=torch.float64)
        for t in time[event > 0].unique():
            risk, now = (entry < t) & (time >= t), (time == t) & (event > 0)
            total = total + scores[now].sum()
            for j in range(int(now.sum())):
                gone = j / int(now.sum()) * scores[now].exp().sum()
                total = total - (scores[risk].exp().sum() - gone).log()
        return total

    found = partial_likelihood(at, x, labels)
    gradient = torch.autograd.functional.jacobian(value, at)
    curvature = -torch.autograd.functional.hessian(value, at)
    torch.testing.assert_close(found.loglik, value(at), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.gradient, gradient, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.curvature, curvature, rtol=0, atol=1e-9)


def test_a_clock_that_runs_faster_at_one_client_changes_no_slope():
    problem = survival()
    tables = {
        client.name: (client.train.inputs, client.train.labels.clone())
        for client in problem.clients
    }
    tables["b"][1][:, :2] = tables["b"][1][:, :2] ** 2
    made = ct.data.from_tensors(tables, form=FORM, split={"parts": {"train": 1.0}})
    one = trained(ct.Cox(), problem, 9).prior["slopes"]
    other = trained(ct.Cox(), problem.with_clients(made), 9).prior["slopes"]
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_a_column_in_another_unit_divides_its_slope():
    one = trained(ct.Cox(), survival(), 9).prior
    other = trained(ct.Cox(), survival(scale=4.0), 9).prior
    torch.testing.assert_close(one["slopes"][0], 4 * other["slopes"][0])
    torch.testing.assert_close(one["slopes"][1:], other["slopes"][1:])
    errors = [p["covariance"].diagonal().sqrt() for p in (one, other)]
    torch.testing.assert_close(errors[0][0], 4 * errors[1][0])


def test_the_baseline_is_the_clients_own_and_that_of_one_outside_their_mean():
    problem = survival()
    found = trained(ct.Cox(), problem, 9)
    slopes = found.prior["slopes"]
    baselines = []
    for client in problem.clients:
        labels = solver_labels(FORM, client.train.labels)
        inputs = client.train.inputs.double()
        family, start = glm.FAMILIES["hazards"], torch.zeros(3)
        own = own_intercepts(slopes, inputs, labels, family, 3, 0.05, start)
        torch.testing.assert_close(found.models[client.name], own, rtol=0, atol=1e-7)
        baselines.append(own[3:])
    outside = torch.stack(baselines).mean(0)
    torch.testing.assert_close(found.models["*"][3:], outside, rtol=0, atol=1e-7)


def test_two_classes_are_a_conditional_logistic_regression():
    sm = pytest.importorskip("statsmodels.api")
    problem = logistic()
    found = trained(ct.Cox(), problem, 12)
    x, event, who = pooled(problem)
    model = sm.PHReg(np.ones(len(x)), x, status=event, strata=who, ties="efron")
    theirs = model.fit(disp=0, method="newton", maxiter=100, tol=1e-12).params
    np.testing.assert_allclose(found.prior["slopes"], theirs, atol=1e-5)


def test_a_ridge_is_that_of_the_sum():
    problem = survival()
    found = trained(ct.Cox(ridge=30.0), problem, 12)
    b = found.prior["slopes"]
    gradient = sum(
        partial_likelihood(b, c.train.inputs, c.train.labels).gradient
        for c in problem.clients
    )
    torch.testing.assert_close(gradient, 30.0 * b, rtol=0, atol=1e-7)
    assert float(b.norm()) < float(trained(ct.Cox(), problem, 9).prior["slopes"].norm())


def test_a_step_too_far_is_halved():
    """The last row at risk is rare and dies first: from 0 a Newton step goes too far."""
    x = torch.tensor([0.0] * 100 + [1.0] * 3)[:, None]
    time = torch.cat([torch.linspace(0.2, 1.0, 100), torch.tensor([0.01, 0.02, 0.03])])
    labels = torch.stack([torch.zeros(103), time, torch.ones(103)], 1)
    labels[0, 1] = 0.005
    tables = {"a": (x, labels), "b": (x, labels.clone())}
    made = ct.data.from_tensors(tables, form=FORM, split={"parts": {"train": 1.0}})
    problem = Problem(made, ct.Hazards(nn.Linear(1, 1), 3).double())
    found = trained(ct.Cox(ridge=1e-3), problem, 20)
    b = found.prior["slopes"]
    gradient = 2 * partial_likelihood(b, x, labels).gradient
    torch.testing.assert_close(gradient, 1e-3 * b, rtol=0, atol=1e-6)


def test_a_client_without_an_event_tells_of_none_and_is_served():
    problem = survival()
    tables = {
        client.name: (client.train.inputs, client.train.labels.clone())
        for client in problem.clients
    }
    tables["c"][1][:, 2] = 0.0
    made = ct.data.from_tensors(tables, form=FORM, split={"parts": {"train": 1.0}})
    found = trained(ct.Cox(), problem.with_clients(made), 9)
    del tables["c"]
    two = ct.data.from_tensors(tables, form=FORM, split={"parts": {"train": 1.0}})
    without = trained(ct.Cox(), problem.with_clients(two), 9)
    torch.testing.assert_close(
        found.prior["slopes"], without.prior["slopes"], rtol=0, atol=1e-9
    )
    assert bool(torch.isfinite(found.models["c"]).all())


def test_other_labels_and_models_are_refused_in_a_sentence():
    with pytest.raises(InputError, match="leave out cox"):
        trained(ct.Cox(), batch_norm(), 1)
    with pytest.raises(InputError, match=r"cox takes a time to event \(--time"):
        trained(ct.Cox(), regression(), 1)


@pytest.mark.parametrize(
    ("model", "is_solved"),
    [
        (ct.Hazards(nn.Linear(3, 1), 3), True),
        (ct.Hazards(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), 3), False),
        (nn.Linear(3, 3), False),
    ],
)
def test_alone_only_one_linear_score_of_hazards_is_solved(model, is_solved):
    """A layer of as many numbers as intervals has slopes of its own for each of them."""
    clients = survival().clients
    space = Workspace(model, ct.RunSettings().row_loss(clients), clients[0])
    assert (find_linear(space, clients) is not None) is is_solved


def test_a_site_needs_ten_events_for_each_slope():
    pairs = [Allowed(ct.Cox(), 0, 1, ())]
    layout = Layout.of(ct.Hazards(nn.Linear(3, 1), 3))
    curvature_fits(pairs, layout, 3, 1000, 30)
    with pytest.raises(RefusedError, match=r"3 slopes follow from.*fewer than 30"):
        curvature_fits(pairs, layout, 3, 1000, 29)


def test_bad_fields_are_named():
    with pytest.raises(InputError, match="ridge must be"):
        ct.Cox(ridge=-1.0)
