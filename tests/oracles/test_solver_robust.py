"""solvers.robust against numpy, scipy and loops; the plain mean fails each of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import trim_mean

from coterie.solvers import robust

quick = settings(deadline=None, derandomize=True)


def rows_of(n, d, seed=0, wild=0):
    found = np.random.default_rng(seed).normal(size=(n, d)) * np.arange(1, d + 1)
    found[:wild] += 1e4
    return found


RULES = {
    "median": robust.median,
    "trimmed": lambda rows: robust.trimmed_mean(rows, 2),
    "geometric": lambda rows: robust.geometric_median(rows, tolerance=1e-12)[0],
    "krum": lambda rows: (
        torch.as_tensor(rows)[robust.multi_krum(rows, 2, 3)].double().mean(0)
    ),
}
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@each_rule
def test_two_wild_rows_of_nine_hardly_count(rule):
    calm, wild = rows_of(9, 4), rows_of(9, 4, wild=2)
    honest = calm[2:].mean(0)
    assert np.abs(rule(wild).numpy() - honest).max() < 3
    assert np.abs(wild.mean(0) - honest).min() > 1000
    assert (
        np.abs(rule(wild * [1, -1, 1, -1]).numpy() - honest * [1, -1, 1, -1]).max() < 3
    )


@each_rule
def test_permutations_and_translations(rule):
    rows = rows_of(9, 4, seed=3)
    order = np.random.default_rng(0).permutation(9)
    shift = np.array([3.0, -8.0, 0.5, 100.0])
    got = rule(rows).numpy()
    np.testing.assert_allclose(rule(rows[order]).numpy(), got, atol=1e-9)
    np.testing.assert_allclose(rule(rows + shift).numpy(), got + shift, atol=1e-7)
    np.testing.assert_allclose(rule(-2.5 * rows).numpy(), -2.5 * got, atol=1e-7)
    np.testing.assert_allclose(
        rule(np.repeat(rows[:1], 9, 0)).numpy(), rows[0], atol=1e-14
    )


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_median_is_numpys(n):
    rows = rows_of(n, 5, seed=n)
    np.testing.assert_allclose(robust.median(rows), np.median(rows, axis=0), rtol=1e-15)
    assert n < 3 or np.abs(np.median(rows, axis=0) - rows.mean(0)).max() > 1e-2


@pytest.mark.parametrize(("n", "trim"), [(5, 0), (5, 1), (5, 2), (8, 3)])
def test_trimmed_mean_is_scipys(n, trim):
    rows = rows_of(n, 5, seed=n)
    np.testing.assert_allclose(
        robust.trimmed_mean(rows, trim),
        trim_mean(rows, trim / n + 1e-9, axis=0),
        rtol=1e-13,
    )
    assert (
        trim == 0
        or np.abs(robust.trimmed_mean(rows, trim).numpy() - rows.mean(0)).max() > 1e-2
    )


@pytest.mark.parametrize(("n", "d"), [(3, 2), (6, 2), (7, 3), (12, 5)])
def test_geometric_median_has_the_least_sum_of_distances(n, d):
    rows = rows_of(n, d, seed=n)
    point, weights = robust.geometric_median(rows, tolerance=1e-12)

    def total(p):
        return float(np.linalg.norm(rows - p, axis=1).sum())

    options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 20000, "maxfev": 20000}
    least = minimize(total, np.median(rows, 0), method="Nelder-Mead", options=options)
    assert total(point.numpy()) <= least.fun + 1e-6
    assert total(rows.mean(0)) > least.fun + 1e-3
    assert float(weights.sum()) == pytest.approx(1, abs=1e-14)
    np.testing.assert_allclose(weights.numpy() @ rows, point.numpy(), atol=1e-8)


def test_geometric_median_of_a_triangle_is_fermats_point():
    side = np.array([[0.0, 0.0], [1.0, 0.0], [0.3, 0.9]])
    point = robust.geometric_median(side, tolerance=1e-13)[0].numpy()
    units = (side - point) / np.linalg.norm(side - point, axis=1)[:, None]
    for a, b in itertools.combinations(units, 2):  # each side is seen under 120 degrees
        assert float(a @ b) == pytest.approx(-0.5, abs=1e-5)
    # An obtuse corner of at least 120 degrees is itself the point, where unsmoothed weights would be infinite.
    corner = np.array([[0.0, 0.0], [1.0, 0.05], [-1.0, 0.05]])
    np.testing.assert_allclose(robust.geometric_median(corner)[0], [0, 0], atol=1e-3)


def test_geometric_median_of_numbers_is_their_median():
    np.testing.assert_allclose(
        robust.geometric_median([[0.0], [1.0], [3.0], [10.0], [1e5]])[0],
        [3.0],
        atol=1e-2,
    )
    assert robust.geometric_median([[2.0], [2.0]])[0].tolist() == [2.0]
    assert robust.geometric_median([[2.0, 3.0]])[1].tolist() == [1.0]


def krum_by_hand(rows, f):
    scores = []
    for i in range(len(rows)):
        others = sorted(
            float(((rows[i] - rows[j]) ** 2).sum()) for j in range(len(rows)) if j != i
        )
        scores.append(sum(others[: max(0, len(rows) - f - 2)]))
    return scores


@pytest.mark.parametrize(("n", "f"), [(5, 1), (9, 3), (9, 2), (4, 0), (2, 0), (1, 0)])
def test_krum_scores_are_sums_over_the_nearest(n, f):
    rows = rows_of(n, 3, seed=n)
    expected = krum_by_hand(rows, f)
    np.testing.assert_allclose(robust.krum_scores(rows, f), expected, rtol=1e-12)
    for keep in range(1, n - f + 1):
        assert robust.multi_krum(rows, f, keep).tolist() == sorted(
            np.argsort(expected, kind="stable")[:keep].tolist()
        )
    assert len(robust.multi_krum(rows, f)) == n - f


def test_krum_keeps_its_digits_beside_a_large_mean():
    rows = rows_of(7, 3, seed=1)
    far = torch.from_numpy(rows + 1e7)
    np.testing.assert_allclose(
        robust.krum_scores(far, 2), krum_by_hand(rows, 2), rtol=1e-6
    )


@quick
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_rules_stay_between_the_smallest_and_the_largest(n, d, seed):
    rows = rows_of(n, d, seed)
    found = [
        robust.median(rows),
        robust.trimmed_mean(rows, (n - 1) // 2),
        robust.geometric_median(rows)[0],
    ]
    for point in found:
        assert (point.numpy() >= rows.min(0) - 1e-12).all()
        assert (point.numpy() <= rows.max(0) + 1e-12).all()
    np.testing.assert_allclose(
        robust.trimmed_mean(rows, (n - 1) // 2), robust.median(rows), atol=1e-12
    )


def test_dtype():
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert {robust.median(rows).dtype, robust.trimmed_mean(rows, 1).dtype} == {
        torch.float32
    }
    assert {t.dtype for t in robust.geometric_median(rows)} == {torch.float32}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: robust.median(torch.zeros(0, 3)),
            "rows must have at least one row; got none",
        ),
        (lambda: robust.median([[math.nan]]), "rows must be finite"),
        (
            lambda: robust.trimmed_mean([[1.0], [2.0]], 1),
            "2 \\* trim < n; got trim = 1 for n = 2",
        ),
        (
            lambda: robust.trimmed_mean([[1.0]], -1),
            "trim must be an integer >= 0; got -1",
        ),
        (
            lambda: robust.geometric_median([[1.0]], smoothing=0),
            "smoothing must be a finite number > 0; got 0.0",
        ),
        (
            lambda: robust.geometric_median([[1.0]], tolerance=0),
            "tolerance must be a finite number > 0; got 0.0",
        ),
        (
            lambda: robust.geometric_median([[1.0]], most=0),
            "most must be an integer >= 1; got 0",
        ),
        (
            lambda: robust.krum_scores([[1.0]] * 4, 1),
            r"at most \(n - 3\) / 2; got byzantine = 1 for n = 4",
        ),
        (
            lambda: robust.multi_krum([[1.0]] * 5, 1, 5),
            "keep must be at most n - byzantine = 4; got 5",
        ),
        (
            lambda: robust.multi_krum([[1.0]] * 5, 1, 0),
            "keep must be an integer >= 1; got 0",
        ),
    ],
)
def test_bad_arguments_are_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
