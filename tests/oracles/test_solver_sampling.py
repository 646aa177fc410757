"""solvers.sampling against enumeration, constrained optimisation and frequencies."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from coterie.base.rng import Rng
from coterie.solvers import sampling

quick = settings(deadline=None, derandomize=True)
NORMS = [
    ([1.0, 2.0, 3.0, 10.0], 2),
    ([0.3, 0.3, 5.0, 5.0, 0.1], 3),
    ([1.0, 1.1, 0.9, 1.0, 40.0, 30.0], 3),
    ([2.0, 1.0, 4.0], 1),
    ([1.0, 1.0, 2.0, 8.0], 2.5),
]


def variance(u, p):
    return float(sum(a * a / q for a, q in zip(u, p, strict=True) if a > 0))


# ---- inclusion probabilities


@pytest.mark.parametrize(("u", "m"), NORMS)
@pytest.mark.filterwarnings(
    "ignore:Values in x were outside bounds"
)  # scipy 1.11 says of its own steps
def test_inclusion_probabilities_are_the_minimiser(u, m):
    p = sampling.inclusion_probabilities(u, m).numpy()
    limit = {"type": "eq", "fun": lambda q: q.sum() - m}
    least = minimize(
        lambda q: variance(u, q), np.full(len(u), m / len(u)), bounds=[(1e-4, 1)] * len(u), constraints=[limit],
        options={"ftol": 1e-14, "maxiter": 1000},
    )  # fmt: skip
    np.testing.assert_allclose(p, least.x, atol=2e-4)
    assert variance(u, p) <= least.fun + 1e-9
    # What would be found with a wrong share, or without the cap, is worse or no probability.
    even = np.full(len(u), m / len(u))
    capped = np.minimum(1, m * np.array(u) / sum(u))
    assert variance(u, p) < variance(u, even) - 1e-3
    assert capped.sum() <= p.sum() + 1e-12


@quick
@given(
    st.lists(st.just(0.0) | st.floats(1e-6, 1e6), min_size=1, max_size=12),
    st.floats(0.01, 1),
)
def test_inclusion_probabilities_meet_the_conditions_of_optimality(u, share):
    m = max(share * len(u), 1e-3)
    p = sampling.inclusion_probabilities(u, m).numpy()
    assert p.min() >= 0
    assert p.max() <= 1
    assert p.sum() == pytest.approx(m, rel=1e-9)
    inside = (p > 0) & (p < 1) & (np.array(u) > 0)
    if inside.any():  # u / p is one number where p < 1, and no smaller where p = 1
        ratio = np.array(u)[inside] / p[inside]
        assert np.ptp(ratio) <= 1e-9 * ratio.max()
        capped = np.array(u)[p == 1]
        assert (capped >= ratio.max() * (1 - 1e-9)).all()


def test_inclusion_probabilities_at_the_edges():
    assert sampling.inclusion_probabilities([3.0, 1.0], 2).tolist() == [1, 1]
    assert sampling.inclusion_probabilities([0.0, 0.0, 0.0], 1.5).tolist() == [0.5] * 3
    assert sampling.inclusion_probabilities([0.0, 0.0, 7.0], 2).tolist() == [
        0.5,
        0.5,
        1.0,
    ]
    assert sampling.inclusion_probabilities([0.0, 2.0, 2.0], 1).tolist() == [
        0.0,
        0.5,
        0.5,
    ]
    assert sampling.inclusion_probabilities([1e300, 1e300, 1e-300], 1).tolist() == [
        0.5,
        0.5,
        0.0,
    ]
    assert (
        sampling.inclusion_probabilities(torch.tensor([1.0, 3.0]), 1).dtype
        is torch.float32
    )
    one, other = (
        sampling.inclusion_probabilities([1.0, 5.0, 2.0], 2),
        sampling.inclusion_probabilities([5.0, 2.0, 1.0], 2),
    )
    assert one[[1, 2, 0]].tolist() == other.tolist()


@pytest.mark.parametrize(("u", "m"), NORMS)
def test_the_estimate_of_a_sum_is_unbiased_over_all_subsets(u, m):
    p = sampling.inclusion_probabilities(u, m).tolist()
    vectors = np.random.default_rng(0).normal(size=(len(u), 3))
    mean, second = np.zeros(3), 0.0
    for drawn in itertools.product([False, True], repeat=len(u)):
        chance = math.prod(q if d else 1 - q for q, d in zip(p, drawn, strict=True))
        found = sum(
            (v / q for v, q, d in zip(vectors, p, drawn, strict=True) if d), np.zeros(3)
        )
        mean += chance * found
        second += chance * float(((found - vectors.sum(0)) ** 2).sum())
    np.testing.assert_allclose(mean, vectors.sum(0), atol=1e-12)
    expected = sum((1 / q - 1) * float(v @ v) for q, v in zip(p, vectors, strict=True))
    assert second == pytest.approx(expected, abs=1e-10)


# ---- draws


def successive(weights, count):
    """The probability of each set, if one entry is drawn after the other."""
    found = Counter()
    for order in itertools.permutations(range(len(weights)), count):
        left, chance = sum(weights), 1.0
        for i in order:
            chance *= weights[i] / left
            left -= weights[i]
        found[tuple(sorted(order))] += chance
    return found


@pytest.mark.parametrize(
    ("weights", "count"), [([1.0, 2.0, 7.0], 1), ([1.0, 2.0, 3.0, 10.0], 2)]
)
def test_draws_without_replacement_are_successive_draws_by_weight(weights, count):
    times, expected = 4000, successive(weights, count)
    drawn = Counter(
        tuple(
            sampling.without_replacement(
                weights, Rng.named(0, "draw", i).uniform(len(weights)), count
            ).tolist()
        )
        for i in range(times)
    )
    for chosen, chance in expected.items():
        assert abs(drawn[chosen] - times * chance) < 4.5 * math.sqrt(
            times * chance * (1 - chance)
        ), chosen


def test_draws_without_replacement_at_the_edges():
    assert sampling.without_replacement([1.0, 2.0], [0.5, 0.5], 0).tolist() == []
    assert sampling.without_replacement([1.0, 2.0], [0.5, 0.5], 9).tolist() == [0, 1]
    assert sampling.without_replacement(
        [0.0, 2.0, 0.0], [0.99, 0.0, 0.5], 1
    ).tolist() == [1]


@quick
@given(
    st.lists(st.floats(0, 1e3), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-3),
    st.integers(0, 1000),
)
def test_draws_with_replacement_invert_the_distribution(weights, seed):
    u = Rng.named(seed, "rows").uniform(50)
    edges = np.cumsum(weights) / sum(weights)
    for number, i in zip(
        u, sampling.with_replacement(weights, u).tolist(), strict=True
    ):
        assert weights[i] > 0
        assert (edges[i - 1] if i else 0) <= number + 1e-12
        assert number < edges[i] + 1e-12


def test_rows_are_weighted_by_class():
    labels = torch.tensor([2, 0, 0, 2, 2, 0, 0])
    weights = sampling.row_weights(labels, [0.3, 0.4, 0.1, 0.2])
    for label, share in ((0, 0.75), (2, 0.25)):
        assert float(weights[labels == label].sum()) == pytest.approx(share, abs=1e-15)
        assert weights[labels == label].unique().numel() == 1
    assert sampling.row_weights(labels, [0.0, 1.0, 0.0, 0.0]).tolist() == [1 / 7] * 7


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: sampling.inclusion_probabilities([], 1),
            "norms must have at least one entry; got none",
        ),
        (
            lambda: sampling.inclusion_probabilities([-1.0], 1),
            "norms must be >= 0 everywhere; got -1",
        ),
        (
            lambda: sampling.inclusion_probabilities([math.nan], 1),
            "norms must be finite",
        ),
        (
            lambda: sampling.inclusion_probabilities([1.0], 2),
            "expected must be a finite number > 0 and <= 1; got 2.0",
        ),
        (
            lambda: sampling.inclusion_probabilities([1.0], 0),
            "expected must be a finite number > 0 and <= 1; got 0.0",
        ),
        (
            lambda: sampling.without_replacement([1.0], [0.5, 0.5], 1),
            r"uniform must have as many entries as weights \(1\)",
        ),
        (
            lambda: sampling.without_replacement([1.0], [1.0], 1),
            r"uniform must be in \[0, 1\); got 1 to 1",
        ),
        (
            lambda: sampling.without_replacement([1.0], [0.5], -1),
            "count must be an integer >= 0; got -1",
        ),
        (
            lambda: sampling.with_replacement([0.0, 0.0], [0.5]),
            "weights must not all be 0",
        ),
        (
            lambda: sampling.row_weights([0, 3], [0.5, 0.5]),
            "labels must be between 0 and 1",
        ),
        (
            lambda: sampling.row_weights([0.5], [0.5, 0.5]),
            "labels must be a vector of at least one class number",
        ),
        (lambda: sampling.row_weights([0], [0.5, 0.6]), "shares must sum to 1"),
    ],
)
def test_bad_arguments_are_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
