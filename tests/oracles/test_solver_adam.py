"""solvers.adam against torch.optim.Adam, autograd through the step, and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.solvers import adam

SETTINGS = [
    {},
    {"betas": (0.5, 0.8), "eps": 1e-3},
    {"betas": (0.0, 0.9)},
    {"betas": (0.9, 0.0), "eps": 0.1},
]


def gradients(steps, dim=6, seed=3):
    g = torch.randn(
        steps, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return g * torch.logspace(-3, 2, dim, dtype=torch.float64)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_many_steps_are_those_of_torch(settings):
    rows = gradients(8)
    x = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([x], lr=0.3, **settings)
    mine, moments = (
        torch.zeros(6, dtype=torch.float64),
        torch.zeros(2, 6, dtype=torch.float64),
    )
    for count, g in enumerate(rows):
        x.grad = g.clone()
        optimiser.step()
        change, _, moments = adam.step(g, moments, count, lr=0.3, **settings)
        mine = mine + change
        np.testing.assert_allclose(mine, x.detach(), rtol=1e-12)


def by_autograd(g, moments, count, *, lr, betas=(0.9, 0.999), eps=1e-8):
    """Kingma and Ba's algorithm in their words, differentiated by torch."""
    g = g.clone().requires_grad_(True)
    m = betas[0] * moments[0] + (1 - betas[0]) * g
    v = betas[1] * moments[1] + (1 - betas[1]) * g**2
    t = count + 1
    change = -lr * (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)) ** 0.5 + eps)
    return torch.autograd.grad(change.sum(), g)[0]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("past", [1, 2, 7])
def test_the_slope_is_the_derivative_of_the_step(settings, past):
    *before, g = gradients(past + 1)
    moments = torch.zeros(2, 6, dtype=torch.float64)
    for count, row in enumerate(before):
        moments = adam.step(row, moments, count, lr=0.3, **settings).moments
    found = adam.step(g, moments, past, lr=0.3, **settings).slope
    np.testing.assert_allclose(
        found, by_autograd(g, moments, past, lr=0.3, **settings), rtol=1e-7, atol=1e-12
    )
    h = 1e-6 * g.abs()
    up, down = (
        adam.step(g + sign * h, moments, past, lr=0.3, **settings).change
        for sign in (1, -1)
    )
    np.testing.assert_allclose(found, (up - down) / (2 * h), rtol=1e-5, atol=1e-8)


def test_a_larger_gradient_may_shorten_a_later_step():
    moments = adam.step(
        [1.0], torch.zeros(2, 1, dtype=torch.float64), 0, lr=0.1
    ).moments
    slopes = [float(adam.step([g], moments, 1, lr=0.1).slope) for g in (0.5, 3.0)]
    assert slopes[0] < 0 < slopes[1]


def test_the_first_step_keeps_the_digits_of_its_tiny_slope():
    """There the step is -lr g / (|g| + eps), with the derivative -lr eps / (|g| + eps)^2."""
    g, eps = np.array([1e-9, -1e-4, 2.0, -1e5]), 1e-8
    found = adam.step(g, np.zeros((2, 4)), 0, lr=0.7, eps=eps)
    np.testing.assert_allclose(
        found.slope, -0.7 * eps / (np.abs(g) + eps) ** 2, rtol=1e-12
    )
    np.testing.assert_allclose(found.change, -0.7 * g / (np.abs(g) + eps), rtol=1e-12)


@pytest.mark.parametrize("tiny", [0.0, 1e-200])
def test_where_nothing_ever_moved_the_slope_is_that_of_a_line(tiny):
    found = adam.step([tiny], torch.zeros(2, 1), 0, lr=0.5, eps=1e-2)
    assert float(found.slope) == pytest.approx(-50.0, rel=1e-12)
    assert float(found.change) == pytest.approx(-50.0 * tiny)


def test_the_dtype_of_the_gradient_comes_back():
    found = adam.step(torch.ones(3), torch.zeros(2, 3), 0, lr=0.1)
    assert {t.dtype for t in found} == {torch.float32}
    assert found.moments.shape == (2, 3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gradient": [float("nan")]}, "gradient must be finite"),
        (
            {"moments": torch.zeros(1, 1)},
            r"moments must have the shape \[2, 1\], two rows like gradient; got \[1, 1\]",
        ),
        ({"count": -1}, "count must be"),
        ({"lr": 0.0}, "lr must be"),
        ({"eps": 0.0}, "eps must be"),
        ({"betas": (1.0, 0.5)}, r"betas\[0\] must be in \[0, 1\); got 1"),
        ({"betas": (0.5, -0.1)}, r"betas\[1\] must be"),
    ],
)
def test_bad_arguments_are_named(changes, sentence):
    values = {
        "gradient": [1.0],
        "moments": torch.zeros(2, 1),
        "count": 0,
        "lr": 0.1,
        **changes,
    }
    with pytest.raises(ValueError, match=sentence):
        adam.step(
            values.pop("gradient"), values.pop("moments"), values.pop("count"), **values
        )
