"""Differences between methods against scipy, hand computation and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from coterie.core.errors import InputError
from coterie.report.statistics import BETTER, NO_SPREAD, ONE_SEED, UNCLEAR, WORSE, compare


def test_interval_by_hand() -> None:
    # Differences .1, .2, .3: mean .2, s^2 = .01; J = 3, n_test/n_train = 1/2; t(2, .975) = 4.302653.
    got = compare([0.6, 0.7, 0.8], [0.5, 0.5, 0.5], n_train=200, n_test=100)
    assert got is not None
    half = 4.302652729911275 * math.sqrt((1 / 3 + 1 / 2) * 0.01)
    assert (got.mean, got.low, got.high) == pytest.approx((0.2, 0.2 - half, 0.2 + half))
    assert got.verdict == UNCLEAR  # .2 - .3928 < 0, while the plain t interval .2 ± .248 is narrower
    assert got.half_width == pytest.approx(half)


@pytest.mark.parametrize("seeds", [2, 5, 20])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 2.0])
def test_interval_against_scipy(seeds: int, ratio: float) -> None:
    rng = np.random.default_rng(seeds)
    a, b = rng.normal(0.8, 0.05, seeds), rng.normal(0.7, 0.05, seeds)
    got = compare(a, b, n_train=1000, n_test=1000 * ratio)
    gaps = a - b
    scale = np.sqrt((1 / seeds + ratio) * gaps.var(ddof=1))
    assert got is not None
    assert got[:3] == pytest.approx((gaps.mean(), *stats.t.interval(0.95, seeds - 1, gaps.mean(), scale)))


def test_without_test_rows_it_is_the_paired_t_test() -> None:
    a, b = np.random.default_rng(1).normal(0, 1, (2, 8))
    got = compare(a, b, n_train=100, n_test=0)
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert got is not None
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high))


def test_direction_of_the_metric() -> None:
    high, low = [0.92, 0.93, 0.91, 0.92], [0.80, 0.79, 0.80, 0.81]
    verdicts = [
        compare(high, low, 80, 40),
        compare(low, high, 80, 40),
        compare(high, low, 80, 40, higher_is_better=False),
        compare(low, high, 80, 40, higher_is_better=False),
    ]
    assert [d.verdict for d in verdicts if d] == [BETTER, WORSE, WORSE, BETTER]


def test_seeds_without_a_value_are_left_out() -> None:
    nan = math.nan
    got = compare([0.1, nan, 0.3, 0.5], [0.0, 0.9, 0.1, nan], 100, 50)
    assert got == compare([0.1, 0.3], [0.0, 0.1], 100, 50)
    assert compare([nan], [0.5], 100, 50) is None


def test_one_seed_and_no_spread() -> None:
    assert compare([0.9], [0.5], 100, 50) == (pytest.approx(0.4), None, None, ONE_SEED)
    assert compare([0.9, 0.8, 0.7], [0.8, 0.7, 0.6], 100, 50) == (pytest.approx(0.1), None, None, NO_SPREAD)
    assert compare([0.9, 0.8], [0.9, 0.8], 100, 50) == (0.0, 0.0, 0.0, UNCLEAR)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"b": [1.0]}, "one value per seed"), ({"n_train": 0}, "training"), ({"n_test": -1}, "must be positive")],
)
def test_errors(changes: dict[str, object], words: str) -> None:
    arguments = {"a": [1.0, 2.0], "b": [1.0, 2.0], "n_train": 10, "n_test": 5} | changes
    with pytest.raises(InputError, match=words):
        compare(**arguments)  # type: ignore[arg-type]


def test_chance_is_not_called_clear_where_the_plain_t_test_calls_it() -> None:
    """Two equally good models on resampled splits of the same 150 rows: the plain paired t test is wrong often."""
    rng = np.random.default_rng(0)
    plain, corrected, studies, seeds = 0, 0, 300, 15
    for _ in range(studies):
        right = rng.random((2, 150)) < 0.8  # which rows two models of equal quality would get right
        picks = np.stack([rng.permutation(150)[:50] for _ in range(seeds)])
        a, b = (one[picks].mean(axis=1) for one in right)
        got = compare(a, b, n_train=100, n_test=50)
        corrected += got is not None and got.verdict in (BETTER, WORSE)
        plain += stats.ttest_rel(a, b).pvalue < 0.05
    assert plain > 0.3 * studies
    assert corrected < 0.1 * studies
