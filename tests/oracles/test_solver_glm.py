"""Penalised generalised linear models: against automatic derivatives, scikit-learn, and fits one at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.solvers import glm

KINDS = {"binary": 1, "classes": 3, "regression": 1}


def rows(kind: str, n: int = 60, columns: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(n, columns, generator=generator).double()
    if kind == "regression":
        return inputs, inputs[:, 0] + torch.randn(n, generator=generator)
    return inputs, torch.randint(0, max(KINDS[kind], 2), (n,), generator=generator)


def loglik(theta: Tensor, kind: str, inputs: Tensor, labels: Tensor) -> Tensor:
    """By torch's own losses, from a weight and a bias as a linear layer has them."""
    outputs, columns = KINDS[kind], inputs.shape[1]
    weight = theta[: outputs * columns].view(outputs, columns)
    z = F.linear(inputs, weight, theta[outputs * columns :])
    if kind == "classes":
        return -F.cross_entropy(z, labels, reduction="sum")
    if kind == "binary":
        return -F.binary_cross_entropy_with_logits(
            z[:, 0], labels.double(), reduction="sum"
        )
    return -F.mse_loss(z[:, 0], labels.double(), reduction="sum") / 2


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_the_derivatives_of_torchs_losses(kind: str) -> None:
    inputs, labels = rows(kind)
    size = KINDS[kind] * 5
    theta = torch.linspace(-1, 1, size).double()
    told = glm.moments(theta, inputs, labels, glm.FAMILIES[kind], KINDS[kind])
    value = lambda t: loglik(t, kind, inputs, labels)  # noqa: E731
    torch.testing.assert_close(told.loglik, value(theta))
    torch.testing.assert_close(
        told.gradient, torch.autograd.functional.jacobian(value, theta)
    )
    torch.testing.assert_close(
        told.curvature, -torch.autograd.functional.hessian(value, theta)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_moments_at_one_theta_with_weights_of_several_problems(kind: str) -> None:
    inputs, labels = rows(kind)
    theta = torch.linspace(-1, 1, KINDS[kind] * 5).double()
    weights = torch.rand(2, 3, 60, generator=torch.Generator().manual_seed(0))
    family, outputs = glm.FAMILIES[kind], KINDS[kind]
    together = glm.moments(theta, inputs, labels, family, outputs, weights=weights)
    alone = glm.moments(theta, inputs, labels, family, outputs, weights=weights[1, 2])
    for of_all, of_one in zip(together, alone, strict=True):
        torch.testing.assert_close(of_all[1, 2], of_one)


@pytest.mark.parametrize("problems", [(), (2,)])
def test_a_step_where_nothing_bends_is_short_and_silent(
    problems: tuple[int, ...],
) -> None:
    """As of a column of zeros without a ridge; warnings are errors here."""
    curvature = torch.diag(torch.tensor([4.0, 0.0, 1.0])).double()
    gradient = torch.tensor([2.0, 0.0, 3.0]).double()
    step = glm.newton_step(
        curvature.expand(*problems, 3, 3), gradient.expand(*problems, 3)
    )
    expected = torch.tensor([0.5, 0.0, 3.0]).double().expand(*problems, 3)
    torch.testing.assert_close(step, expected)


def test_outputs_with_the_same_slopes_have_the_derivatives_of_one_score() -> None:
    inputs, labels = rows("classes")
    theta = torch.linspace(-1, 1, 7).double()
    told = glm.moments(theta, inputs, labels, glm.FAMILIES["classes"], 3, shared=True)

    def value(t: Tensor) -> Tensor:
        z = (inputs @ t[:4])[:, None] + t[4:]
        return -F.cross_entropy(z, labels, reduction="sum")

    torch.testing.assert_close(
        told.curvature, -torch.autograd.functional.hessian(value, theta)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_at_the_mode_is_that_of_the_penalty(kind: str) -> None:
    inputs, labels = rows(kind)
    precision = torch.linspace(0.1, 5, KINDS[kind] * 5).double()
    centre = torch.linspace(-0.5, 0.5, KINDS[kind] * 5).double()
    fit = glm.mode(
        inputs, labels, glm.FAMILIES[kind], precision, KINDS[kind], centre=centre
    )
    assert bool(fit.converged)
    pull = precision * (fit.theta - centre)
    torch.testing.assert_close(fit.rows.gradient, pull, rtol=0, atol=1e-10)


def test_the_mode_is_scikit_learns() -> None:
    from sklearn.linear_model import LogisticRegression

    inputs, labels = rows("binary")
    fit = glm.mode(
        inputs, labels, glm.FAMILIES["binary"], torch.tensor([2.0] * 4 + [0.0])
    )
    theirs = LogisticRegression(C=0.5, tol=1e-12, max_iter=1000).fit(inputs, labels)
    expected = [*theirs.coef_[0], theirs.intercept_[0]]
    torch.testing.assert_close(
        fit.theta, torch.tensor(expected).double(), rtol=0, atol=1e-5
    )


def test_several_problems_side_by_side_are_each_alone() -> None:
    inputs, labels = rows("binary")
    kept = torch.ones(3, 1, 60)
    for fold in range(3):
        kept[fold, 0, fold::3] = 0
    precision = torch.tensor([[0.01] * 4 + [0.001], [30.0] * 4 + [0.001]])
    family = glm.FAMILIES["binary"]
    together = glm.mode(inputs, labels, family, precision, weights=kept)
    assert together.theta.shape == (3, 2, 5)
    for fold in range(3):
        mine = kept[fold, 0] > 0
        for k in range(2):
            alone = glm.mode(inputs[mine], labels[mine], family, precision[k])
            torch.testing.assert_close(
                together.theta[fold, k], alone.theta, rtol=0, atol=1e-10
            )


def as_hazards(labels: Tensor) -> Tensor:
    """Labels [n] as counts in exposures [n, 2]: usual and seen events."""
    return torch.stack([torch.full((len(labels),), 0.7), labels.abs().round()], 1)


@pytest.mark.parametrize("kind", ["binary", "regression", "count"])
def test_models_of_one_output_are_those_of_any_number(kind: str) -> None:
    """They are solved apart, in less time; a family that only passes calls on is solved as any other."""
    inputs, labels = rows("regression" if kind == "count" else kind)
    if kind == "count":
        labels = as_hazards(9 * labels)
    family = glm.FAMILIES[kind]
    precision = torch.tensor([[0.01] * 4 + [0.001], [30.0] * 4 + [0.001]]).double()
    centre = torch.linspace(-0.5, 0.5, 5).double()
    weights = torch.linspace(0, 2, 60).double()
    theirs = {"centre": centre, "weights": weights, "scale": 0.5}
    fit = glm.mode(inputs, labels, family, precision, **theirs)
    general = glm.mode(inputs, labels, lambda z, y: family(z, y), precision, **theirs)
    for of_one, of_any in zip(
        (fit.theta, *fit.rows, fit.curvature),
        (general.theta, *general.rows, general.curvature),
        strict=True,
    ):
        torch.testing.assert_close(of_one, of_any, rtol=1e-9, atol=1e-9)


def test_a_logit_far_from_0_loses_no_digit() -> None:
    inputs = torch.tensor([[1.0], [-1.0]]).double() * 300
    labels = torch.tensor([1, 1])
    told = glm.moments(
        torch.tensor([1.0, 0.0]).double(), inputs, labels, glm.FAMILIES["binary"]
    )
    assert told.loglik.item() == pytest.approx(-300)
    assert told.gradient.tolist() == pytest.approx([-300, 1])
    assert told.curvature[0, 0].item() == pytest.approx(2 * 9e4 * 5.148200222e-131)


def poisson(z: Tensor, labels: Tensor) -> glm.Derivatives:
    """Counts (labels [n, 2]: count and exposure), as a user's own family."""
    counts, exposure = labels[:, 0], labels[:, 1]
    mean = exposure * z[..., 0].exp()
    curvature = mean[..., None, None]
    loglik = counts * z[..., 0] - mean
    return glm.Derivatives(loglik, (counts - mean)[..., None], curvature)


def test_a_family_of_ones_own_is_solved_by_shorter_steps() -> None:
    """From 0 the whole step to a mean of 100 is 99, where the likelihood is far lower."""
    inputs, _ = rows("regression")
    exposure = torch.linspace(0.5, 2, 60).double()
    counts = torch.arange(60).remainder(7) + 100.0 * exposure
    precision = torch.tensor([0.0] * 5)
    labels = torch.stack([counts, exposure], 1)
    fit = glm.mode(inputs, labels, poisson, precision)
    assert bool(fit.converged)
    torch.testing.assert_close(
        fit.rows.gradient, torch.zeros(5).double(), rtol=0, atol=1e-8
    )


def test_columns_that_depend_on_each_other_share_their_slope() -> None:
    inputs, labels = rows("regression")
    doubled = torch.cat([inputs, inputs[:, :1]], 1)
    family = glm.FAMILIES["regression"]
    once = glm.mode(inputs, labels, family, torch.zeros(5)).theta
    twice = glm.mode(doubled, labels, family, torch.zeros(6)).theta
    half = once[:1] / 2
    expected = torch.cat([half, once[1:4], half, once[4:]])
    torch.testing.assert_close(twice, expected, rtol=0, atol=1e-9)


def test_the_residual_variance_without_a_penalty_is_that_of_least_squares() -> None:
    inputs, labels = rows("regression")
    fit = glm.mode(inputs, labels, glm.FAMILIES["regression"], torch.zeros(5))
    with_one = F.pad(inputs, (0, 1), value=1.0)
    solution = torch.linalg.lstsq(with_one, labels.double()[:, None]).solution
    left = labels.double() - (with_one @ solution)[:, 0]
    torch.testing.assert_close(
        glm.residual_variance(fit, 60), left.square().sum() / (60 - 5)
    )


def test_rows_in_several_blocks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = rows("classes")
    theta = torch.linspace(-1, 1, 15).double()
    family = glm.FAMILIES["classes"]
    whole = glm.moments(theta, inputs, labels, family, 3)
    monkeypatch.setattr(glm, "BLOCK", 25 * 7)
    parts = glm.moments(theta, inputs, labels, family, 3)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b)
