"""solvers.variance against an enumeration of active sets in exact fractions, a proven gap, and scipy."""

from __future__ import annotations

import itertools
import math
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from coterie.solvers import variance

quick = settings(deadline=None, derandomize=True)


# ---- Eq. 4


def solve_fractions(matrix, right):
    """Gaussian elimination, or None for a singular matrix."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    n = len(rows)
    for k in range(n):
        pivot = next((i for i in range(k, n) if rows[i][k] != 0), None)
        if pivot is None:
            return None
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [value / rows[k][k] for value in rows[k]]
        for i in range(n):
            if i != k and rows[i][k] != 0:
                rows[i] = [
                    a - rows[i][k] * b for a, b in zip(rows[i], rows[k], strict=True)
                ]
    return [row[n] for row in rows]


def minimum_by_enumeration(gram, spread, m, budget, debias):
    """The least objective: every weight is 0, 1 or free, the budget binds or not; each case is a linear system.

    In u = M / (M + s) and y = w / (M + s): V u^2 / M^2 (debiased: 2 V u / M^2 - V / M^2) + y' Gram y. Singular cases can be
    skipped: on a flat optimal face there is always an optimum with fewer free weights.
    """
    n, best = len(gram), None
    for states in itertools.product("01f", repeat=n):
        ones, free = [[j for j in range(n) if states[j] == kind] for kind in "1f"]
        # Columns of y in terms of x = (u, y_free).
        columns = [[Fraction(int(j in ones), m) for j in range(n)]] + [
            [Fraction(int(i == j)) for i in range(n)] for j in free
        ]
        inner = [
            [
                sum(
                    a * gram[i][j] * b for i, a in enumerate(p) for j, b in enumerate(q)
                )
                for q in columns
            ]
            for p in columns
        ]
        if not debias:
            inner[0][0] += spread / m**2
        linear = [(2 * spread / m**2 if debias else Fraction(0))] + [Fraction(0)] * len(
            free
        )
        total = [sum(column) for column in columns]
        unit = [1 + total[0], *total[1:]]
        for budget_binds in (False, True):
            rows = [unit] + (
                [[total[0] - budget / m, *total[1:]]] if budget_binds else []
            )
            size = len(columns)
            matrix = [
                [2 * v for v in inner[i]] + [row[i] for row in rows]
                for i in range(size)
            ]
            matrix += [row + [Fraction(0)] * len(rows) for row in rows]
            x = solve_fractions(
                matrix,
                [-v for v in linear] + [Fraction(1)] + [Fraction(0)] * (len(rows) - 1),
            )
            if x is None or x[0] <= 0 or any(not 0 <= y <= x[0] / m for y in x[1:size]):
                continue
            if sum(a * b for a, b in zip(total, x, strict=False)) > budget * x[0] / m:
                continue
            value = sum(
                x[i] * inner[i][j] * x[j] for i in range(size) for j in range(size)
            )
            value += sum(a * b for a, b in zip(linear, x, strict=False)) - (
                spread / m**2 if debias else 0
            )
            best = value if best is None else min(best, value)
    return best


def exact_objective(w, gram, spread, m, debias):
    w = [Fraction(value) for value in w]
    s = sum(w)
    inner = sum(a * gram[i][j] * b for i, a in enumerate(w) for j, b in enumerate(w))
    return (spread + inner - (s**2 * spread / m**2 if debias else 0)) / (m + s) ** 2


def small_problem(seed):
    """Gradients on a grid of 1/64, so that means and differences are exact, with one kind of trouble after another."""
    g = np.random.default_rng(seed)
    m, n, d = int(g.choice([2, 4])), int(g.integers(1, 5)), int(g.integers(1, 4))
    internal = np.round(g.normal(size=(m, d)) * g.choice([0.3, 3.0]) * 64) / 64
    external = np.round(g.normal(size=(n, d)) * g.choice([0.3, 3.0]) * 64) / 64
    mean = internal.mean(0)
    trouble = seed % 6
    if trouble == 1:
        external[::2] *= 1e4
    elif trouble == 2:
        external[-1] = external[0]
    elif trouble == 3:
        external[-1] = mean
    elif trouble == 4:
        external[0] = 1e4 * external[0] + mean
        external[-1] = 2 * mean - external[0]
    elif trouble == 5:
        external = external[:, :1] * np.ones((1, d)) * 1e4
    return internal, external, float(g.choice([0.25, 0.75, 1.0, 1.5, 2.0, 3.0, 100.0]))


@pytest.mark.in_turn(but="True")
@pytest.mark.parametrize("debias", [False, True])
def test_exact_weights_reach_the_minimum_of_all_active_sets(debias):
    for seed in range(24):
        internal, external, budget = small_problem(seed)
        m = len(internal)
        w = variance.exact_weights(internal, external, budget, debias=debias).numpy()
        assert w.min() >= 0
        assert w.max() <= 1
        assert w.sum() <= budget + 1e-9
        differences = [
            [Fraction(value) for value in row] for row in external - internal.mean(0)
        ]
        gram = [
            [sum(a * b for a, b in zip(p, q, strict=True)) for q in differences]
            for p in differences
        ]
        spread = sum(
            Fraction(value) ** 2 for value in (internal - internal.mean(0)).ravel()
        )
        if debias:
            spread *= Fraction(m, m - 1)
        lowest = minimum_by_enumeration(gram, spread, m, Fraction(budget), debias)
        got = exact_objective(w, gram, spread, m, debias)
        # The debiased objective can pass 0; its excess is judged against its value at w = 0.
        assert got - lowest <= 1e-6 * (spread / m**2 if debias else lowest), seed
        reported = float(variance.objective(w, internal, external, debias=debias))
        assert reported == pytest.approx(float(got), rel=1e-6, abs=1e-9 * float(spread))


def federation(n, d, m=2, seed=0, shift=0.3):
    g = np.random.default_rng(seed)
    center = g.normal(size=d)
    internal = center + g.normal(size=(m, d))
    return internal, center + g.normal(size=(n, d)) * (
        1 + shift * g.exponential(size=(n, 1))
    )


def relative_gap(w, internal, external, budget):
    """(objective - minimum) / objective is at most this, by weak duality.

    For any number a and vector r, `V u^2 / M^2 + ||D'y||^2 >= 2 (a u + r'D'y) - (a^2 M^2 / V + r'r)`, whose right side is
    linear in (u, y) and so least at a vertex. Taken at the solution itself, but with r moved a little so that clients
    between the bounds have equal slopes: rounding in the slopes of rows of length 1e4 would else swamp the bound.
    """
    m, differences = len(internal), external - internal.mean(0)
    spread = np.sum((internal - internal.mean(0)) ** 2)
    u, y = m / (m + w.sum()), w / (m + w.sum())
    moved = y @ differences
    value = spread * u**2 / m**2 + moved @ moved
    a, slopes = spread * u / m**2, differences @ moved
    bounds, free = [], (w > 0) & (w < 1)
    for correct in {False, bool(free.any())}:
        if correct:
            level = np.median(slopes[free])
            wrong = free | ((w == 0) & (slopes < level)) | ((w == 1) & (slopes > level))
            moved = (
                moved
                + np.linalg.lstsq(
                    differences[wrong], level - slopes[wrong], rcond=None
                )[0]
            )
            slopes = differences @ moved
        ordered, vertices = np.sort(slopes), []
        for s in {*range(int(min(budget, len(w))) + 1), min(budget, len(w))}:
            vertices.append(
                (a * m + ordered @ np.clip(s - np.arange(len(w)), 0, 1)) / (m + s)
            )
        bounds.append(2 * min(vertices) - a**2 * m**2 / spread - moved @ moved)
    return (value - max(bounds)) / value


def troubled(kind):
    internal, external = federation(
        58, {"wide": 200, "more clients than dimensions": 5}.get(kind, 40)
    )
    if kind == "long rows":
        external[::7] *= 1e4
    elif kind == "duplicates":
        external[10:30] = external[0]
    elif kind == "zero rows":
        external[[3, 5]] = internal.mean(0)
    elif kind == "opposite long rows":
        external[1] = 1e4 * external[1]
        external[2] = 2 * internal.mean(0) - external[1]
    return internal, external


KINDS = [
    "plain",
    "wide",
    "more clients than dimensions",
    "long rows",
    "duplicates",
    "zero rows",
    "opposite long rows",
]


@pytest.mark.parametrize("budget", [0.3, 10.0, 1000.0])
@pytest.mark.parametrize("kind", KINDS)
def test_58_clients_are_solved_to_a_proven_gap(kind, budget):
    internal, external = troubled(kind)
    w = variance.exact_weights(internal, external, budget).numpy()
    assert w.min() >= 0
    assert w.max() <= 1
    assert w.sum() <= budget + 1e-9
    assert relative_gap(w, internal, external, budget) <= 1e-6


@pytest.mark.parametrize("seed", range(30))
def test_weights_that_balance_exactly_are_found(seed):
    """The last client balances the others under known weights of sum K, so the minimum is V / (M + K)^2."""
    g = np.random.default_rng(seed)
    n, d, m = int(g.integers(4, 59)), int(g.integers(1, 12)), int(g.integers(2, 5))
    internal = g.normal(size=(m, d))
    internal -= internal.mean(0)
    balanced = np.where(g.random(n) < 0.3, 1.0, g.uniform(0.05, 1, size=n))
    external = g.normal(size=(n, d)) * 10.0 ** g.choice([0, 0, 2, 4], size=(n, 1))
    external[-1] = -balanced[:-1] @ external[:-1] / balanced[-1]
    w = variance.exact_weights(internal, external, balanced.sum())
    lowest = np.sum(internal**2) / (m + balanced.sum()) ** 2
    assert float(variance.objective(w, internal, external)) == pytest.approx(
        lowest, rel=1e-6
    )


@pytest.mark.parametrize("seed", [1, 2, 17, 30, 45])
def test_no_other_scaling_of_the_program_finds_better_weights(monkeypatch, seed):
    """Few dimensions, rows of lengths from .001 to 1e5 of V's unit: a single scaling of 1 misses the minimum at 17 and 45."""
    g = np.random.default_rng(seed)
    n, d, m = int(g.integers(20, 59)), int(g.integers(1, 4)), int(g.integers(2, 6))
    internal = 0.1 * g.normal(size=(m, d))
    external = g.normal(size=(n, d)) * 10.0 ** g.uniform(-2, 0, size=(n, 1))
    external[:: int(g.integers(1, 4))] *= 1e4
    budget = float(g.choice([3.0, n / 2, n]))

    def reached():
        return float(
            variance.objective(
                variance.exact_weights(internal, external, budget), internal, external
            )
        )

    default, values = reached(), []
    for scaling in (0.0, 0.25, 0.5, 0.75, 1.0):
        monkeypatch.setattr("coterie.solvers._variance_qp.SCALINGS", (scaling,))
        values.append(reached())
    assert default <= min(values) * (1 + 1e-6)


def test_700_clients_are_solved_to_a_proven_gap():
    internal, external = federation(700, 60, m=10)
    external[::9] *= 1e4
    w = variance.exact_weights(internal, external, 50.0).numpy()
    assert relative_gap(w, internal, external, 50.0) <= 1e-6


def test_nothing_random_or_slsqp_is_better():
    internal, external = federation(6, 4, seed=2)
    spread = float(np.sum((internal - internal.mean(0)) ** 2))

    def phi(w):
        return (spread + np.sum((w @ (external - internal.mean(0))) ** 2)) / (
            len(internal) + w.sum()
        ) ** 2

    got = phi(variance.exact_weights(internal, external, 2.5).numpy())
    g = np.random.default_rng(0)
    for _ in range(10):
        start = g.uniform(size=6) * 0.4
        found = minimize(
            phi,
            start,
            bounds=[(0, 1)] * 6,
            constraints={"type": "ineq", "fun": lambda w: 2.5 - w.sum()},
        )
        assert (
            got <= phi(np.clip(found.x, 0, 1)) * (1 + 1e-7)
            or found.x.sum() > 2.5 + 1e-9
        )
        assert got <= phi(start)


def test_weights_grow_with_variance_and_vanish_without():
    internal, external = federation(20, 30)
    sums = [
        float(variance.exact_weights(internal, external, 20, variance=v).sum())
        for v in (0.0, 1.0, 30.0, 300.0, 1e9)
    ]
    assert sums[0] == 0.0
    assert sums == sorted(sums)
    assert sums[-1] == pytest.approx(20, rel=1e-6)
    same = np.ones((3, 4))
    assert variance.exact_weights(same, external[:, :4], 5.0).tolist() == [0.0] * 20
    assert (
        variance.exact_weights(same, external[:, :4], 5.0, debias=True).tolist()
        == [0.0] * 20
    )


def test_clients_at_the_internal_mean_count_fully_and_opposite_ones_balance():
    internal = [[1.0, 0.0], [-1.0, 0.0]]
    w = variance.exact_weights(
        internal, [[0.0, 0.0], [0.0, 100.0], [3.0, 1.0], [0.0, -100.0]], 4.0
    )
    assert w[0] == 1.0
    assert w[1] == pytest.approx(float(w[3]), abs=0.02)
    assert w[1] > 0.9
    lone = variance.exact_weights(internal, [[0.0, 0.0], [0.0, 100.0]], 4.0)
    # (2 + 1e4 w^2) / (3 + w)^2 is least at w = 2 / (3 * 1e4).
    assert lone.tolist() == pytest.approx([1.0, 2 / 3e4], rel=1e-3)


def test_permutation_scale_and_shift_change_nothing():
    internal, external = federation(12, 40, seed=5)
    w = variance.exact_weights(internal, external, 4.0)
    order = np.random.default_rng(0).permutation(12)
    np.testing.assert_allclose(
        variance.exact_weights(internal, external[order], 4.0), w[order], atol=1e-5
    )
    np.testing.assert_allclose(
        variance.exact_weights(1e-6 * internal, 1e-6 * external, 4.0), w, atol=1e-5
    )
    np.testing.assert_allclose(
        variance.exact_weights(internal + 3.0, external + 3.0, 4.0), w, atol=1e-5
    )


def test_debias_trusts_external_clients_more():
    """All clients alike: the plug-in objective charges g_I's own error to the others, the debiased one does not."""
    internal, external = federation(10, 500, shift=0.0)
    plain, debiased = (
        variance.exact_weights(internal, external, 10.0, debias=debias)
        for debias in (False, True)
    )
    assert debiased.sum() > 1.5 * plain.sum()
    assert debiased.min() > 0.4 > plain.max()


def test_a_given_variance_replaces_the_plain_one():
    internal, external = federation(8, 30, m=3)
    plain = float(np.sum((internal - internal.mean(0)) ** 2))
    default, given_plain = (
        variance.exact_weights(internal, external, 4.0, variance=v)
        for v in (None, plain)
    )
    assert torch.equal(default, given_plain)
    unbiased = plain * 3 / 2
    both = [
        variance.objective([0.5] * 8, internal, external, variance=v, debias=True)
        for v in (None, unbiased)
    ]
    assert both[0].item() == pytest.approx(both[1].item(), rel=1e-14)
    assert variance.exact_weights(
        internal[:1], external, 4.0, variance=unbiased
    ).shape == (8,)


def test_empty_and_dtype():
    internal, external = federation(3, 5)
    assert variance.exact_weights(internal, np.zeros((0, 5)), 2.0).shape == (0,)
    assert variance.exact_weights(internal, external, 0.0).tolist() == [0.0, 0.0, 0.0]
    single = variance.exact_weights(
        torch.tensor(internal, dtype=torch.float32), external, 2.0
    )
    assert single.dtype is torch.float32
    rows = [torch.tensor(row) for row in internal]
    np.testing.assert_allclose(
        variance.exact_weights(rows, external, 2.0), single, atol=1e-5
    )


def test_many_columns_are_factorised_block_by_block():
    internal, external = federation(6, 3 * variance.BLOCK + 17)
    factor = variance._triangular(torch.tensor(internal), torch.tensor(external))
    differences = external - internal.mean(0)
    assert factor.shape == (6, 6)
    np.testing.assert_allclose(
        factor.T @ factor, differences @ differences.T, rtol=1e-11
    )


def test_missing_clarabel_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(
        ImportError,
        match=r'exact_weights needs clarabel: pip install "coterie\[varsel\]"',
    ):
        variance.exact_weights(*federation(3, 5), 2.0)


# ---- Eq. 8


def phi8(w, d, v, m):
    return (v + w.sum() * (w @ d)) / (m + w.sum()) ** 2


@quick
@given(
    st.lists(st.floats(0, 50), min_size=1, max_size=12),
    st.floats(0.01, 100),
    st.integers(1, 5),
    st.one_of(st.floats(0, 14), st.integers(0, 14)),
)
def test_surrogate_weights_are_the_minimum_over_every_filled_sum(d, v, m, budget):
    d = np.array(d)
    w = variance.surrogate_weights(d, v, m, budget).numpy()
    assert w.min() >= 0
    assert w.max() <= 1
    assert w.sum() <= budget + 1e-9
    order = np.argsort(d, kind="stable")

    def filled(s):
        full = np.zeros(len(d))
        full[order] = np.clip(s - np.arange(len(d)), 0, 1)
        return full

    limit = min(budget, len(d))
    best = min(phi8(filled(s), d, v, m) for s in [*range(int(limit) + 1), limit])
    for k in range(math.ceil(limit)):
        ends = (k, min(k + 1, limit))
        if ends[1] - ends[0] > 1e-9:
            found = minimize_scalar(
                lambda s: phi8(filled(s), d, v, m),
                bounds=ends,
                method="bounded",
                options={"xatol": 1e-12},
            )
            best = min(best, found.fun)
    assert phi8(w, d, v, m) <= best * (1 + 1e-9)
    np.testing.assert_allclose(w, filled(w.sum()), atol=1e-12)
    assert np.sum((w > 0) & (w < 1)) <= 1
    assert phi8(w, d, v, m) == pytest.approx(
        float(variance.surrogate_objective(w, d, v, m)), rel=1e-12
    )


@pytest.mark.in_turn
def test_no_other_weights_have_a_smaller_surrogate():
    g = np.random.default_rng(0)
    for _ in range(20):
        d, v, m, budget = (
            g.exponential(size=6),
            g.exponential(),
            int(g.integers(1, 4)),
            g.uniform(0.2, 6),
        )
        got = phi8(variance.surrogate_weights(d, v, m, budget).numpy(), d, v, m)
        for _ in range(5):
            found = minimize(
                lambda w: phi8(w, d, v, m) / got,  # noqa: B023
                g.uniform(size=6) * min(1.0, budget / 6),
                bounds=[(0, 1)] * 6,
                constraints={"type": "ineq", "fun": lambda w: budget - w.sum()},  # noqa: B023
                options={"ftol": 1e-14},
            )
            assert found.fun >= 1 - 1e-9


def test_the_surrogate_bounds_the_objective():
    internal, external = federation(10, 7, seed=3)
    d = np.sum((external - internal.mean(0)) ** 2, axis=1)
    v = np.sum((internal - internal.mean(0)) ** 2)
    w = np.random.default_rng(1).uniform(size=10)
    bound, value = (
        variance.surrogate_objective(w, d, v, 2),
        variance.objective(w, internal, external),
    )
    assert bound > value
    one = np.eye(10)[0]
    assert float(variance.surrogate_objective(one, d, v, 2)) == pytest.approx(
        float(variance.objective(one, internal, external))
    )


def test_surrogate_degenerate_cases():
    assert variance.surrogate_weights([1.0, 2.0], 0.0, 2, 2).tolist() == [0.0, 0.0]
    assert variance.surrogate_weights([0.0, 0.0, 5.0], 0.0, 2, 2).tolist() == [
        0.0,
        0.0,
        0.0,
    ]
    assert variance.surrogate_weights([0.0, 0.0, 1e12], 3.0, 2, 3)[:2].tolist() == [
        1.0,
        1.0,
    ]
    assert variance.surrogate_weights([0.0] * 4, 3.0, 2, 2.5).tolist() == [
        1.0,
        1.0,
        0.5,
        0.0,
    ]
    assert variance.surrogate_weights([7.0, 1.0, 1.0, 1.0], 100.0, 1, 1.5).tolist() == [
        0.0,
        1.0,
        0.5,
        0.0,
    ]
    ties = variance.surrogate_weights([1.0] * 1000, 100.0, 1, 2.5)
    assert ties.nonzero().flatten().tolist() == [0, 1, 2]
    assert variance.surrogate_weights([], 1.0, 2, 2).shape == (0,)
    assert variance.surrogate_weights([1.0], 1.0, 2, 0).tolist() == [0.0]
    assert (
        variance.surrogate_weights(torch.tensor([1.0]), torch.tensor(9.0), 2, 1).dtype
        is torch.float32
    )


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: variance.exact_weights([[1.0]], [[1.0]], 1.0),
            "internal must have at least 2 rows, .*split the internal",
        ),
        (
            lambda: variance.objective([1.0], [[1.0]], [[1.0]]),
            "internal must have at least 2 rows",
        ),
        (
            lambda: variance.exact_weights([[1.0], [2.0]], [[1.0, 2.0]], 1.0),
            r"external must have as many columns as internal \(1\); got 2",
        ),
        (
            lambda: variance.exact_weights([[1.0], [2.0]], [1.0], 1.0),
            r"external must be a matrix \[rows, columns\]; got shape \[1\]",
        ),
        (
            lambda: variance.exact_weights(np.zeros((0, 2)), [[1.0, 2.0]], 1.0),
            "internal must have at least one row; got none",
        ),
        (
            lambda: variance.exact_weights([[1.0], [2.0]], [[math.nan]], 1.0),
            "external must be finite; got 1 NaN or Inf",
        ),
        (
            lambda: variance.exact_weights([[1.0], [2.0]], [[1.0]], -1.0),
            r"budget must be a finite number >= 0; got -1\.0",
        ),
        (
            lambda: variance.exact_weights([[1.0], [2.0]], [[1.0]], 1.0, variance=-1),
            r"variance must be a finite number >= 0; got -1\.0",
        ),
        (
            lambda: variance.objective([1.0, 2.0], [[1.0], [2.0]], [[1.0]]),
            r"weights must have one entry for each row of external \(1\); got 2",
        ),
        (
            lambda: variance.objective([-2.0], [[1.0], [2.0]], [[1.0]]),
            "weights must have a sum > -2",
        ),
        (
            lambda: variance.surrogate_weights([-1.0], 1.0, 2, 1),
            "distances must be >= 0 everywhere .*; got -1",
        ),
        (
            lambda: variance.surrogate_weights([1.0], 1.0, 0, 1),
            "num_internal must be an integer >= 1; got 0",
        ),
        (
            lambda: variance.surrogate_weights([1.0], 1.0, 2, math.nan),
            "budget must be a finite number >= 0; got nan",
        ),
        (
            lambda: variance.surrogate_objective([1.0, 1.0], [1.0], 1.0, 2),
            "weights must be 1 numbers >= 0, as many as distances",
        ),
    ],
)
def test_bad_input_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
