"""solvers.waterfill against SLSQP from many starts, a dense grid, and each edge case of the paper's formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from coterie.solvers import waterfill

quick = settings(deadline=None, derandomize=True)


def rho(q, p, lipschitz):
    return (1 + np.sum((p - q) ** 2, axis=-1)) * (q @ np.asarray(lipschitz) ** 2)


def problem(seed, classes=None):
    g = np.random.default_rng(seed)
    c = classes or int(g.integers(2, 7))
    p, local = g.dirichlet(np.ones(c)), g.dirichlet(np.full(c, 0.4))
    return (
        p,
        local,
        np.exp(g.normal(size=c) * g.choice([0.01, 0.3, 1.0, 3.0])),
        float(g.choice([0.0, 0.01, 0.05, 0.5, 1.0])),
        g,
    )


def best_of_slsqp(p, lower, upper, lipschitz, g, starts=4):
    unit = rho(p, p, lipschitz)
    values = []
    for _ in range(starts):
        found = minimize(
            lambda q: rho(q, p, lipschitz) / unit,
            np.clip(g.dirichlet(np.ones(p.size)), lower, upper),
            bounds=list(zip(lower, upper, strict=True)),
            constraints={
                "type": "eq",
                "fun": lambda q: q.sum() - 1,
                "jac": np.ones_like,
            },
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 300},
        )
        if found.success and abs(found.x.sum() - 1) < 1e-10:
            values.append(found.fun * unit)
    return min(values, default=math.inf)


@pytest.mark.filterwarnings(
    "ignore:Values in x were outside bounds"
)  # SciPy 1.11 says so of its own steps
@pytest.mark.parametrize("support", ["all", "local"])
def test_exact_is_never_above_slsqp(support):
    solved = 0
    for seed in range(25):
        p, local, lipschitz, floor, g = problem(seed)
        if support == "local":
            local = np.where(local < 0.1, 0.0, local) / local[local >= 0.1].sum()
        upper = np.ones(p.size) if support == "all" else (local > 0).astype(float)
        lower = np.minimum(floor * local, p)
        q = waterfill.exact(p, local, lipschitz, floor, support=support).numpy()
        assert q.sum() == pytest.approx(1.0, abs=1e-13)
        assert (q >= lower).all()
        assert (q <= upper).all()
        best = best_of_slsqp(p, lower, upper, lipschitz, g)
        assert rho(q, p, lipschitz) <= best * (1 + 1e-9)
        solved += math.isfinite(best)
    assert solved >= 20


@pytest.mark.parametrize("seed", range(6))
def test_exact_is_never_above_a_grid_of_three_classes(seed):
    p, local, lipschitz, floor, _ = problem(seed + 100, classes=3)
    lower = np.minimum(floor * local, p)
    ticks = np.linspace(0, 1, 401)
    grid = np.stack(np.meshgrid(ticks, ticks, indexing="ij"), -1).reshape(-1, 2)
    grid = (
        lower
        + (1 - lower.sum())
        * np.concatenate([grid, 1 - grid.sum(1, keepdims=True)], axis=1)[
            grid.sum(1) <= 1
        ]
    )
    best = rho(grid, p, lipschitz).min()
    got = rho(waterfill.exact(p, local, lipschitz, floor).numpy(), p, lipschitz)
    assert best * (1 - 1e-3) <= got <= best * (1 + 1e-12)


@quick
@given(st.integers(0, 10_000))
def test_closed_form_is_the_largest_feasible_step_and_exact_is_at_least_as_good(seed):
    p, local, lipschitz, floor, _ = problem(seed)
    q, gamma = waterfill.closed_form(p, local, lipschitz, floor)
    q, lower = q.numpy(), np.minimum(floor * local, p)
    a = 1 - p.size * lipschitz**2 / np.sum(lipschitz**2)
    a /= np.linalg.norm(a)
    np.testing.assert_allclose(q, p + gamma * a, atol=1e-14)
    assert gamma >= 0
    assert (q >= lower).all()
    assert (p + (gamma + 1e-9) * a < lower).any()
    assert rho(
        waterfill.exact(p, local, lipschitz, floor).numpy(), p, lipschitz
    ) <= rho(q, p, lipschitz) * (1 + 1e-12)


def test_the_class_that_changes_least_is_sampled_more():
    p, local = [0.25] * 4, [0.4, 0.3, 0.2, 0.1]
    lipschitz = [1.0, 2.0, 2.0, 3.0]
    for q in (
        waterfill.closed_form(p, local, lipschitz, 0.05)[0],
        waterfill.exact(p, local, lipschitz, 0.05),
    ):
        assert q[0] > 0.25 > q[3]


@pytest.mark.parametrize(
    "lipschitz", [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [1.0, 1.0 + 5e-7, 1.0]]
)
def test_equal_constants_keep_the_global_shares(lipschitz):
    p, local = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), [0.1, 0.1, 0.8]
    q, gamma = waterfill.closed_form(p, local, lipschitz, 0.05)
    assert gamma == 0.0
    assert torch.equal(q, p)
    np.testing.assert_allclose(waterfill.exact(p, local, lipschitz, 0.05), p, atol=1e-6)


def test_a_floor_above_the_global_share_is_lowered_to_it():
    p, local = [0.9, 0.1], [0.0, 1.0]
    q, gamma = waterfill.closed_form(p, local, [1.0, 2.0], 0.5)
    assert gamma == 0.0
    assert q.tolist() == p
    assert waterfill.exact(p, local, [1.0, 2.0], 0.5).tolist() == p
    rising, gamma = waterfill.closed_form(p, local, [2.0, 1.0], 0.5)
    assert gamma > 0
    assert rising.tolist() == pytest.approx([0.0, 1.0])


def test_a_class_that_the_client_lacks():
    p, local, lipschitz = [0.3, 0.3, 0.4], [0.5, 0.5, 0.0], [2.0, 3.0, 1.0]
    q, _ = waterfill.closed_form(p, local, lipschitz, 0.1)
    assert q[2] > 0.4
    assert float(q.sum()) == pytest.approx(1.0, abs=1e-15)
    kept = waterfill.exact(p, local, lipschitz, 0.1, support="local")
    assert kept[2] == 0.0
    assert float(kept.sum()) == pytest.approx(1.0, abs=1e-15)
    # The best two-class split, by a fine scan.
    first = np.linspace(0.05, 0.95, 90_001)
    scan = rho(np.stack([first, 1 - first, 0 * first], 1), np.array(p), lipschitz)
    assert float(kept[0]) == pytest.approx(first[scan.argmin()], abs=2e-5)


def test_a_class_without_global_share_and_one_class():
    q, gamma = waterfill.closed_form(
        [0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [1.0, 1.0, 2.0], 0.1
    )
    assert (q.tolist(), gamma) == ([0.5, 0.5, 0.0], 0.0)
    assert waterfill.closed_form([1.0], [1.0], [3.0], 0.1)[0].tolist() == [1.0]
    assert waterfill.exact([1.0], [1.0], [3.0], 0.1).tolist() == [1.0]


def test_classes_that_do_not_change_take_everything_without_a_floor():
    q = waterfill.exact([0.5, 0.3, 0.2], [0.4, 0.3, 0.3], [1.0, 0.0, 0.0], 0.0)
    np.testing.assert_allclose(q, [0.0, 0.55, 0.45], atol=1e-15)
    floored = waterfill.exact([0.5, 0.3, 0.2], [0.4, 0.3, 0.3], [1.0, 0.0, 0.0], 0.1)
    np.testing.assert_allclose(floored, [0.04, 0.53, 0.43], atol=1e-15)


def test_only_ratios_of_the_constants_matter():
    p, local, lipschitz, _, _ = problem(3, classes=5)
    for scale in (1e-150, 1e150):
        for solve in (
            lambda values: waterfill.closed_form(p, local, values, 0.05)[0],
            lambda values: waterfill.exact(p, local, values, 0.05),
        ):
            np.testing.assert_allclose(
                solve(lipschitz * scale), solve(lipschitz), rtol=1e-12
            )


def test_dtypes():
    p = torch.tensor([0.5, 0.5])
    q, gamma = waterfill.closed_form(p, p, [1.0, 2.0], 0.1)
    assert (q.dtype, type(gamma)) == (torch.float32, float)
    assert waterfill.exact(p, p, [1.0, 2.0], 0.1).dtype is torch.float32
    assert waterfill.bound([0.5, 0.5], p, [1.0, 2.0]).dtype is torch.float64


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: waterfill.exact([0.5, 0.4], [0.5, 0.5], [1, 2], 0.1),
            r"p must sum to 1; got a sum of 0\.9",
        ),
        (
            lambda: waterfill.exact([0.5, 0.5], [1.5, -0.5], [1, 2], 0.1),
            r"p_local must be >= 0 everywhere; got -0\.5",
        ),
        (
            lambda: waterfill.exact([0.5, 0.5], [1.0], [1, 2], 0.1),
            r"p_local must have as many classes as p \(2\); got 1",
        ),
        (
            lambda: waterfill.exact([0.5, 0.5], [0.5, 0.5], [1], 0.1),
            r"lipschitz must have as many classes as p \(2\); got 1",
        ),
        (
            lambda: waterfill.exact([0.5, 0.5], [0.5, 0.5], [1, -2], 0.1),
            "lipschitz must be >= 0 everywhere; got -2",
        ),
        (
            lambda: waterfill.exact([0.5, 0.5], [0.5, 0.5], [1, math.nan], 0.1),
            "lipschitz must be finite; got 1 NaN or Inf",
        ),
        (
            lambda: waterfill.exact(
                [0.5, 0.5], [0.5, 0.5], [1, 2], 0.1, support="mine"
            ),
            "support must be 'all' or 'local'; got 'mine'",
        ),
        (
            lambda: waterfill.closed_form([0.5, 0.5], [0.5, 0.5], [1, 2], -0.1),
            r"floor must be a finite number >= 0 and <= 1; got -0\.1",
        ),
        (
            lambda: waterfill.closed_form([0.5, 0.5], [0.5, 0.5], [1, 2], 1.5),
            r"floor must be a finite number >= 0 and <= 1; got 1\.5",
        ),
        (
            lambda: waterfill.bound([1.0], [0.5, 0.5], [1, 2]),
            r"q must have as many classes as p \(2\); got 1",
        ),
    ],
)
def test_bad_input_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
