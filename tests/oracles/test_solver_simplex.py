"""solvers.simplex against the KKT conditions and an enumeration of all supports."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.solvers import simplex

quick = settings(deadline=None, derandomize=True)


@quick
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30))
def test_projection_meets_the_kkt_conditions(v):
    w = simplex.project(v).numpy()
    scale = max(1.0, float(np.abs(v).max()))
    assert (w >= 0).all()
    assert w.sum() == pytest.approx(1.0, abs=1e-12 * len(v))
    # v - w is one and the same threshold on the support, and no larger elsewhere.
    threshold = (np.array(v) - w)[w > 0]
    assert np.ptp(threshold) <= 1e-15 * scale
    assert (np.array(v)[w == 0] <= threshold.min() + 1e-15 * scale).all()


@pytest.mark.parametrize("seed", range(8))
def test_projection_is_the_nearest_of_all_supports(seed):
    v = np.random.default_rng(seed).normal(size=5)
    best = None
    for size in range(1, 6):
        for support in itertools.combinations(range(5), size):
            w = np.zeros(5)
            kept = list(support)
            w[kept] = v[kept] + (1 - v[kept].sum()) / size
            if (w >= 0).all() and (
                best is None or np.sum((w - v) ** 2) < np.sum((best - v) ** 2)
            ):
                best = w
    np.testing.assert_allclose(simplex.project(v).numpy(), best, atol=1e-15)


def test_points_of_the_simplex_stay_and_vertices_win():
    inside = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    assert torch.equal(simplex.project(inside), inside)
    assert simplex.project([-3.0, 7.0, 1.0]).tolist() == [0.0, 1.0, 0.0]
    assert simplex.project([-5.0]).tolist() == [1.0]


@pytest.mark.parametrize(
    ("v", "w"),
    [
        ([1e300, -1e300, 1e300], [0.5, 0.0, 0.5]),
        ([1e16, 1e16, 1.0], [0.5, 0.5, 0.0]),
        ([-1e16] + [0.25] * 4, [0.0] + [0.25] * 4),
        ([1.7e308, -1.7e308, -1.7e308], [1.0, 0.0, 0.0]),
        ([0.0] * 3, [1 / 3] * 3),
    ],
)
def test_entries_far_apart_lose_no_digits(v, w):
    np.testing.assert_allclose(simplex.project(v).numpy(), w, rtol=1e-15)


def test_dtype_and_input_kinds():
    read_only = np.array([0.75, 0.5])
    read_only.setflags(write=False)
    assert simplex.project(read_only).dtype is torch.float64
    assert simplex.project(np.array([1, 2], dtype=np.int32)).dtype is torch.float64
    assert simplex.project(torch.tensor([3, 1])).dtype is torch.float64
    assert (
        simplex.project(torch.tensor([0.5, 0.5], requires_grad=True)).dtype
        is torch.float32
    )
    assert simplex.project([torch.tensor(0.75), torch.tensor(0.5)]).tolist() == [
        0.625,
        0.375,
    ]


@pytest.mark.parametrize(
    ("v", "sentence"),
    [
        ([], "v must have at least one entry; got none"),
        ([0.1, float("nan")], "v must be finite; got 1 NaN or Inf among 2 values"),
        ([[0.1]], r"v must be a vector \[n\]; got shape \[1, 1\]"),
        ([[0.1], [0.2, 0.3]], r"v must be a vector \[n\] of numbers; got list"),
        ("abc", r"v must be a vector \[n\] of numbers; got str"),
    ],
)
def test_bad_input_is_named(v, sentence):
    with pytest.raises(ValueError, match=sentence):
        simplex.project(v)
