"""solvers.mirror against closed forms, a plain NumPy loop, a proven bound of the minimum and exact quadrature."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from coterie.solvers import mirror

quick = settings(deadline=None, derandomize=True)


def uniform(n, dtype=torch.float64):
    return torch.full((n,), 1.0 / n, dtype=dtype)


def mean_estimation(seed, lr, distance):
    """phi, its gradient and n: the target's squared error after one step, 5 / 95 / 50 clients, d = 10 (MeritFed)."""
    g = np.random.default_rng(seed)
    second = g.normal(size=10)
    centers = np.repeat(
        [
            np.zeros(10),
            0.01 * second / np.linalg.norm(second),
            np.tile([0, 1], 5) / 5**0.5,
        ],
        [5, 95, 50],
        axis=0,
    )
    x = distance * np.ones(10) / 10**0.5
    deltas = -2 / 10 * (x - centers - g.normal(size=(150, 10)) / 10)
    target = g.normal(size=10) / 1000**0.5

    def phi(w):
        return float(np.mean((x + lr * np.asarray(w) @ deltas - target) ** 2))

    def gradient(w):
        return lr * deltas @ (2 / 10 * (x + lr * np.asarray(w) @ deltas - target))

    return phi, gradient, 150


def share_left(phi, gradient, n, w):
    """An upper bound of (phi(w) - minimum) / (phi(uniform) - minimum), by convexity: <gradient, w - vertex> >= the excess."""
    slope = gradient(w)
    excess = float(slope @ np.asarray(w) - slope.min())
    return excess / (phi(uniform(n)) - phi(w) + excess)


@quick
@given(
    st.integers(1, 6),
    st.floats(0, 5),
    st.lists(st.floats(-3, 3), min_size=2, max_size=9),
)
def test_constant_gradient_has_a_closed_form(steps, step, slope):
    start = np.arange(1, len(slope) + 1) / sum(range(1, len(slope) + 1))
    w = mirror.entropic_descent(lambda _: slope, start, steps=steps, step=step).numpy()
    expected = start * np.exp(-step * steps * (np.array(slope) - min(slope)))
    expected /= expected.sum()
    # The floor acts in every step, so compare only where it does not.
    np.testing.assert_allclose(
        w[expected > 1e-13], expected[expected > 1e-13], rtol=1e-11
    )


@pytest.mark.parametrize("damping", [False, True])
def test_steps_equal_a_plain_loop(damping):
    _, gradient, n = mean_estimation(0, 0.5, 1.0)
    w = np.full(n, 1 / n)
    for t in range(7):
        moved = w * np.exp(-3.5 * gradient(w))
        moved /= moved.sum()
        w = t / (t + 1) * w + 1 / (t + 1) * moved if damping else moved
    got = mirror.entropic_descent(
        gradient, np.full(n, 1 / n), steps=7, step=3.5, damping=damping
    )
    np.testing.assert_allclose(got.numpy(), w, rtol=1e-13)


def test_damping_gives_the_mean_of_all_points():
    points = []

    def gradient(w):
        points.append(w)
        return torch.tensor([1.0, 0.0])

    end = mirror.entropic_descent(gradient, [0.5, 0.5], steps=3, step=1.0, damping=True)
    moved = [
        mirror.entropic_descent(lambda _: [1.0, 0.0], w, steps=1, step=1.0)
        for w in points
    ]
    np.testing.assert_allclose(end, torch.stack(moved).mean(0), rtol=1e-14)


@pytest.mark.parametrize(
    ("lr", "distance", "steps"),
    [(0.01, 1.0, 8), (0.01, 0.03, 8), (0.5, 0.1, 16), (1.0, 0.1, 30)],
)
def test_line_search_reaches_a_thousandth_in_few_gradients(lr, distance, steps):
    phi, gradient, n = mean_estimation(1, lr, distance)
    w = mirror.entropic_descent(
        gradient, uniform(n), steps=steps, step="line-search", value=phi
    )
    assert share_left(phi, gradient, n, w) <= 1e-3


def test_fixed_small_steps_stay_far_from_the_minimum():
    phi, gradient, n = mean_estimation(1, 0.01, 1.0)
    searched, fixed = (
        mirror.entropic_descent(gradient, uniform(n), steps=50, step=step, value=phi)
        for step in ("line-search", 3.5)
    )
    assert 0.6 < (phi(fixed) - phi(searched)) / (phi(uniform(n)) - phi(searched)) < 1.0


def test_line_search_descends_in_every_step_and_calls_one_gradient_per_step():
    phi, gradient, n = mean_estimation(2, 1.0, 0.3)
    calls = []

    def counted(w):
        calls.append(phi(w))
        return gradient(w)

    mirror.entropic_descent(
        counted, uniform(n), steps=12, step="line-search", value=phi
    )
    assert len(calls) == 12
    assert all(
        later <= earlier * (1 + 1e-14) for earlier, later in itertools.pairwise(calls)
    )


def test_line_search_shortens_over_values_that_are_not_finite():
    def phi(w):
        return float("nan") if w[0] > 0.6 else -float(w[0])

    w = mirror.entropic_descent(
        lambda _: [-1.0, 0.0], [0.5, 0.5], steps=8, step="line-search", value=phi
    )
    assert 0.55 < float(w[0]) <= 0.6


def test_line_search_stops_at_the_minimum():
    stationary = mirror.entropic_descent(
        lambda w: torch.ones_like(w),
        [0.2, 0.8],
        steps=5,
        step="line-search",
        value=lambda _: 3.0,
    )
    assert stationary.tolist() == [0.2, 0.8]
    one = mirror.entropic_descent(
        lambda _: [5.0], [1.0], steps=3, step="line-search", value=lambda _: 1.0
    )
    assert one.tolist() == [1.0]


def test_a_weight_at_the_floor_comes_back():
    low = mirror.entropic_descent(
        lambda _: [1e30, 0.0], [0.5, 0.5], steps=3, step=1e300
    )
    assert low.tolist() == [mirror.FLOOR, 1.0]
    back = mirror.entropic_descent(lambda _: [0.0, 1.0], low, steps=10, step=4.0)
    assert float(back[0]) == pytest.approx(
        1 / (1 + math.exp(-40) / mirror.FLOOR), rel=1e-12
    )
    lifted = mirror.entropic_descent(
        lambda _: [0.0, 1.0], [0.0, 1.0], steps=10, step=4.0
    )
    assert torch.equal(lifted, back)


def test_no_steps_return_the_start_bit_by_bit_as_a_copy():
    start = torch.tensor([0.0, 0.1, 0.9], dtype=torch.float32)
    got = mirror.entropic_descent(lambda _: 1 / 0, start, steps=0, step=1.0)
    assert torch.equal(got, start)
    assert got.data_ptr() != start.data_ptr()


def test_callables_see_the_dtype_of_the_start_and_may_use_autograd():
    seen = []

    def value(w):
        seen.append(w.dtype)
        return (w * torch.tensor([1.0, 2.0])).square().sum()

    def gradient(w):
        w = w.clone().requires_grad_()
        return torch.autograd.grad(value(w), w)[0]

    start = uniform(2, torch.float32)
    w = mirror.entropic_descent(
        gradient,
        start,
        steps=20,
        step="line-search",
        value=lambda w: value(w.requires_grad_()),
    )
    assert set(seen) == {torch.float32}
    assert w.dtype is torch.float32
    np.testing.assert_allclose(w, [0.8, 0.2], atol=1e-3)
    assert start.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"weights": [0.5, 0.6]}, r"weights must sum to 1; got a sum of 1\.1"),
        ({"weights": [-0.5, 1.5]}, r"weights must be >= 0 everywhere; got -0\.5"),
        ({"weights": []}, "weights must have at least one entry"),
        ({"steps": -1}, "steps must be an integer >= 0; got -1"),
        ({"steps": 1.5}, r"steps must be an integer >= 0; got 1\.5"),
        ({"step": -1.0}, r"step must be a finite number >= 0; got -1\.0"),
        ({"step": math.nan}, "step must be a finite number >= 0; got nan"),
        (
            {"step": "search"},
            "step must be a number >= 0 or 'line-search'; got 'search'",
        ),
        (
            {"step": "line-search"},
            r"value must be a function w -> phi\(w\) when step is 'line-search'; got None",
        ),
        (
            {"step": "line-search", "value": lambda _: math.inf},
            r"value\(w\) must be finite at the start; got inf",
        ),
        (
            {"gradient": lambda _: [1.0]},
            r"gradient\(w\) must have the shape of weights \[2\]; got \[1\]",
        ),
        (
            {"gradient": lambda _: torch.tensor([1.0, math.nan])},
            r"gradient\(w\) must be finite; got 1 NaN or Inf",
        ),
        (
            {"gradient": lambda _: [1.0, math.inf]},
            r"gradient\(w\) must be finite; got 1 NaN or Inf",
        ),
    ],
)
def test_bad_input_of_the_descent_is_named(arguments, sentence):
    call = {
        "gradient": lambda _: [1.0, 0.0],
        "weights": [0.5, 0.5],
        "steps": 2,
        "step": 1.0,
    } | arguments
    with pytest.raises(ValueError, match=sentence):
        mirror.entropic_descent(call.pop("gradient"), call.pop("weights"), **call)


def test_an_orthonormal_frame_gives_the_gradient_of_a_quadratic_exactly():
    g = np.random.default_rng(3)
    curvature, w = g.normal(size=(6, 6)), g.normal(size=6)
    curvature = curvature @ curvature.T
    frame = np.linalg.qr(g.normal(size=(6, 6)))[0]
    candidates = np.concatenate([w + 0.3 * frame, w - 0.3 * frame])
    losses = np.einsum("qi,ij,qj->q", candidates, curvature, candidates) / 2
    np.testing.assert_allclose(
        mirror.two_point_estimate(losses, frame, 0.3), curvature @ w, rtol=1e-12
    )


def test_directions_are_uniform_on_the_sphere():
    generator = torch.Generator().manual_seed(5)
    candidates, e = mirror.two_point_candidates(
        uniform(4), h=0.1, directions=20_000, generator=generator
    )
    assert candidates.shape == (40_000, 4)
    np.testing.assert_allclose(e.norm(dim=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(
        candidates[:20_000] - 0.1 * e, uniform(4).expand(20_000, 4), atol=1e-15
    )
    np.testing.assert_allclose(
        candidates[20_000:] + 0.1 * e, uniform(4).expand(20_000, 4), atol=1e-15
    )
    np.testing.assert_allclose(e.mean(0), np.zeros(4), atol=0.012)
    np.testing.assert_allclose(4 * e.T @ e / 20_000, np.eye(4), atol=0.03)


def test_two_point_is_its_batched_sibling():
    w = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    slope = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
    single = mirror.two_point(
        lambda w: w @ slope, w, h=0.01, generator=torch.Generator().manual_seed(1)
    )
    candidates, e = mirror.two_point_candidates(
        w, h=0.01, directions=1, generator=torch.Generator().manual_seed(1)
    )
    losses = [float(candidate @ slope) for candidate in candidates]
    assert torch.equal(single, mirror.two_point_estimate(losses, e, 0.01))
    np.testing.assert_allclose(single, 3 * (slope @ e[0]) * e[0], rtol=1e-11)
    again = mirror.two_point(
        lambda w: w @ slope.float(),
        w.float(),
        h=0.01,
        generator=torch.Generator().manual_seed(1),
    )
    assert again.dtype is torch.float32


def test_estimated_gradients_descend():
    phi, gradient, n = mean_estimation(4, 1.0, 1.0)
    generator = torch.Generator().manual_seed(0)

    def estimate(w):
        candidates, e = mirror.two_point_candidates(
            w, h=1e-3, directions=100, generator=generator
        )
        return mirror.two_point_estimate(
            [phi(candidate) for candidate in candidates], e, 1e-3
        )

    w = mirror.entropic_descent(estimate, uniform(n), steps=60, step=20.0)
    assert share_left(phi, gradient, n, w) < 0.3


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda g: mirror.two_point(sum, [0.5, 0.5], h=0.0, generator=g),
            r"h must be a finite number > 0; got 0\.0",
        ),
        (
            lambda g: mirror.two_point(sum, [], h=0.1, generator=g),
            "weights must have at least one entry",
        ),
        (
            lambda g: mirror.two_point(lambda w: math.nan, [1.0], h=0.1, generator=g),
            "losses must be finite; got 2 NaN",
        ),
        (
            lambda g: mirror.two_point_candidates(
                [1.0], h=0.1, directions=0, generator=g
            ),
            "directions must be an integer >= 1; got 0",
        ),
        (
            lambda g: mirror.two_point_estimate([1.0, 2.0, 3.0], [[1.0]], 0.1),
            "losses must have 2 entries for each of the rows of e; got 3 for 1 rows",
        ),
        (
            lambda g: mirror.two_point_estimate([1.0, 2.0], [1.0], 0.1),
            r"e must be a matrix \[rows, columns\]; got shape",
        ),
    ],
)
def test_bad_input_of_the_estimator_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(torch.Generator().manual_seed(0))


@pytest.mark.parametrize("step", [0.7, "line-search"])
@pytest.mark.parametrize("damping", [False, True])
def test_several_problems_in_step_are_solved_as_each_alone(step, damping):
    matrices = torch.randn(
        3, 6, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )
    curved = matrices @ matrices.mT

    def value(w):
        return 0.5 * torch.einsum("ti,tij,tj->t", w, curved, w)

    start = torch.softmax(
        torch.randn(
            3, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64
        ),
        -1,
    )
    together = mirror.entropic_descent(
        lambda w: torch.einsum("tij,tj->ti", curved, w),
        start,
        steps=6,
        step=step,
        value=value,
        damping=damping,
    )
    for t in range(3):
        alone = mirror.entropic_descent(
            lambda w, t=t: curved[t] @ w,
            start[t],
            steps=6,
            step=step,
            value=lambda w, t=t: 0.5 * w @ curved[t] @ w,
            damping=damping,
        )
        assert torch.allclose(together[t], alone, atol=1e-12, rtol=0)
        assert not torch.allclose(alone, start[t], atol=1e-3)


# ---- the Frank-Wolfe gap


def test_the_duality_gap_bounds_the_distance_to_the_minimum_of_a_quadratic():
    """phi(w) = ||A w - b||^2 / 2, whose minimum on the simplex scipy finds."""
    a, b = (
        np.random.default_rng(5).normal(size=(4, 6)),
        np.random.default_rng(6).normal(size=4),
    )

    def phi(w):
        return float(np.square(a @ w - b).sum() / 2)

    inside = {"type": "eq", "fun": lambda w: w.sum() - 1}
    best = minimize(
        phi,
        np.full(6, 1 / 6),
        bounds=[(0, 1)] * 6,
        constraints=[inside],
        options={"ftol": 1e-14},
    )
    points = np.random.default_rng(7).dirichlet(np.ones(6), size=20)
    for w in points:
        gap = float(mirror.duality_gap(w, a.T @ (a @ w - b)))
        assert gap >= phi(w) - best.fun - 1e-9
        assert gap == pytest.approx(
            max((w - e) @ a.T @ (a @ w - b) for e in np.eye(6)), rel=1e-12
        )
    assert (
        float(mirror.duality_gap(best.x / best.x.sum(), a.T @ (a @ best.x - b))) < 1e-5
    )
    slope = [3.0, -1.0, 0.5]
    assert float(mirror.duality_gap([0.2, 0.3, 0.5], slope)) == pytest.approx(
        0.6 - 0.3 + 0.25 + 1.0
    )


@pytest.mark.parametrize(
    ("weights", "slope", "sentence"),
    [
        ([0.5, 0.6], [1.0, 2.0], "weights must sum to 1"),
        (
            [0.5, 0.5],
            [1.0],
            "slope must have an entry for each of the 2 weights; got 1",
        ),
        ([0.5, 0.5], [1.0, np.nan], "slope must be finite"),
    ],
)
def test_the_duality_gap_names_bad_arguments(weights, slope, sentence):
    with pytest.raises(ValueError, match=sentence):
        mirror.duality_gap(weights, slope)


# ---- accelerated steps


def quadratic(seed, n):
    """phi(w) = 1/2 w'Qw - b'w of an ill-conditioned Q, its gradient, and its smoothness by |d|_1."""
    g = np.random.default_rng(seed)
    root = g.normal(size=(n, n)) * np.logspace(0, -2, n)
    q, b = root.T @ root, 0.1 * g.normal(size=n)

    def phi(w):
        w = np.asarray(w)
        return float(w @ q @ w / 2 - b @ w)

    return phi, lambda w: q @ np.asarray(w) - b, float(np.abs(q).max())


@quick
@given(st.integers(0, 100), st.integers(2, 30), st.integers(1, 60))
def test_accelerated_steps_keep_the_bound_of_tseng(seed, n, steps):
    phi, gradient, smooth = quadratic(seed, n)
    found = mirror.entropic_descent(
        gradient, uniform(n), steps=steps, step=1 / smooth, accelerated=True
    )
    rivals = np.random.default_rng(seed).dirichlet(np.full(n, 0.3), 20)
    for rival in [*np.eye(n), *rivals]:
        divergence = float(np.sum(rival * np.log(np.maximum(rival * n, 1e-300))))
        bound = 4 * divergence * smooth / (steps + 1) ** 2
        assert phi(found) <= phi(rival) + bound + 1e-12


def test_accelerated_steps_come_nearer_than_as_many_plain_ones():
    for seed in range(5):
        phi, gradient, smooth = quadratic(seed, 20)
        how = {"steps": 100, "step": 1 / smooth}
        plain = mirror.entropic_descent(gradient, uniform(20), **how)
        fast = mirror.entropic_descent(gradient, uniform(20), accelerated=True, **how)
        excess = [
            float(gradient(w) @ np.asarray(w) - gradient(w).min())
            for w in (plain, fast)
        ]
        assert phi(fast) < phi(plain)
        assert excess[1] < excess[0] / 2


def test_one_accelerated_step_is_a_plain_one_and_rows_are_solved_apart():
    start = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]], dtype=torch.float64)
    centres = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]], dtype=torch.float64)

    def solve(rows, **how):
        about = centres[rows]
        return mirror.entropic_descent(
            lambda w: w - about, start[rows], step=0.7, **how
        )

    both = slice(None)
    one = solve(both, steps=1)
    assert torch.equal(solve(both, steps=1, accelerated=True), one)
    together = solve(both, steps=9, accelerated=True)
    for row in (0, 1):
        assert torch.equal(solve(row, steps=9, accelerated=True), together[row])


@pytest.mark.parametrize(
    "how", [{"step": "line-search"}, {"step": 1.0, "damping": True}]
)
def test_accelerated_steps_are_neither_damped_nor_searched_for(how):
    with pytest.raises(ValueError, match="accelerated"):
        mirror.entropic_descent(
            lambda w: w,
            [0.5, 0.5],
            steps=2,
            value=lambda w: 0.0,
            accelerated=True,
            **how,
        )
