"""The rule of differences against scipy, hand computation, resampling and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from coterie.base.errors import InputError
from coterie.compute.outcomes import (
    Influence,
    RowError,
    auc_influence,
    count_distinct,
    mean_influence,
    rmse_influence,
    row_error,
)
from coterie.report.statistics import compare_pairs, over_clients


@pytest.mark.parametrize("numbers", [[], [7], [3, 1, 2], [5, 5, 5], [2, 9, 2, 4, 9]])
def test_distinct_rows_are_counted_in_any_order(numbers: list[int]) -> None:
    assert count_distinct(np.array(numbers, dtype=np.int64)) == len(set(numbers))


def test_the_error_over_rows_is_the_same_in_any_order_of_the_rows() -> None:
    rng = np.random.default_rng(3)
    numbers, gaps = np.arange(32), rng.integers(0, 9, size=(2, 32)).astype(float)
    order = rng.permutation(32)
    ordered, shuffled = (
        [mean_influence(numbers[at], values[at]) for values in gaps]
        for at in (slice(None), order)
    )
    assert row_error(ordered[:1], ordered[1:]) == row_error(shuffled[:1], shuffled[1:])


def test_interval_by_hand() -> None:
    # Differences .1, .2, .3: mean .2, s^2 = .01; J = 3, n_test/n_train = 1/2; t(2, .975) = 4.302653.
    found = compare_pairs([0.6, 0.7, 0.8], [0.5, 0.5, 0.5], 0.5)
    assert found is not None
    half = 4.302652729911275 * math.sqrt((1 / 3 + 1 / 2) * 0.01)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (0.2, 0.2 - half, 0.2 + half)
    )
    assert (
        not found.excludes_zero
    )  # .2 - .3928 < 0, while the plain t interval .2 ± .248 is narrower
    assert found.half_width == pytest.approx(half)


@pytest.mark.parametrize("seeds", [2, 5, 20])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 2.0])
def test_interval_and_p_against_scipy(seeds: int, ratio: float) -> None:
    rng = np.random.default_rng(seeds)
    a, b = rng.normal(0.8, 0.05, seeds), rng.normal(0.7, 0.05, seeds)
    found = compare_pairs(a, b, ratio)
    gaps = a - b
    scale = np.sqrt((1 / seeds + ratio) * gaps.var(ddof=1))
    assert found is not None
    assert found[:3] == pytest.approx(
        (gaps.mean(), *stats.t.interval(0.95, seeds - 1, gaps.mean(), scale))
    )
    assert found.p == pytest.approx(2 * stats.t.sf(abs(gaps.mean()) / scale, seeds - 1))


def test_on_fixed_test_rows_it_is_the_paired_t_test() -> None:
    a, b = np.random.default_rng(1).normal(0, 1, (2, 8))
    found, expected = compare_pairs(a, b, 0), stats.ttest_rel(a, b)
    assert found is not None
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(
        tuple(expected.confidence_interval(0.95))
    )


def test_the_worse_of_seeds_and_rows_counts() -> None:
    a, b = [0.80, 0.81, 0.79, 0.80], [0.92, 0.93, 0.92, 0.94]
    alone, sure, unsure = (
        compare_pairs(a, b, 0.5, rows)
        for rows in (None, RowError(0.001, 99), RowError(0.1, 99))
    )
    assert alone is not None
    assert sure == alone
    assert unsure is not None
    assert unsure.mean == alone.mean
    assert unsure.p == pytest.approx(2 * stats.t.sf(abs(alone.mean) / 0.1, 99))
    assert unsure.half_width == pytest.approx(0.1 * stats.t.ppf(0.975, 99))
    assert alone.excludes_zero
    assert not unsure.excludes_zero


def test_seeds_that_repeat_one_measurement_leave_the_rows_to_decide() -> None:
    same = compare_pairs([0.9, 0.9, 0.9], [0.8, 0.8, 0.8], 0, RowError(0.02, 99))
    assert same is not None
    assert same.p == pytest.approx(2 * stats.t.sf(5, 99))
    nothing = compare_pairs([0.9, 0.8, 0.7], [0.8, 0.7, 0.6], 0.5)
    assert nothing is not None
    assert nothing[1:4] == (None, None, None)


def test_seeds_without_a_value_are_left_out() -> None:
    nan = math.nan
    found = compare_pairs([0.1, nan, 0.3, 0.5], [0.0, 0.9, 0.1, nan], 0.5)
    assert found == compare_pairs([0.1, 0.3], [0.0, 0.1], 0.5)
    assert compare_pairs([nan], [0.5], 0.5) is None


@pytest.mark.parametrize(
    ("b", "ratio", "words"),
    [([1.0], 0.5, "one value per seed"), ([1.0, 1.0], -1.0, ">= 0")],
)
def test_errors(b: list[float], ratio: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        compare_pairs([1.0, 2.0], b, ratio)


def test_models_that_were_tried_on_other_rows_cannot_be_compared_row_by_row() -> None:
    one = Influence(np.array([0.1, -0.1]), np.array([1, 2]), 5)
    for other in (
        one._replace(numbers=np.array([1, 3])),
        Influence(np.zeros(3), np.arange(3), 5),
    ):
        with pytest.raises(
            InputError, match="two models were not tried on the same test rows"
        ):
            row_error([one], [other])


def test_in_folds_the_spread_of_repeats_is_no_source_of_error() -> None:
    found = compare_pairs([0.5, 0.9], [0.4, 0.3], None, RowError(0.1, 99))
    assert found is not None
    assert found.half_width == pytest.approx(0.1 * stats.t.ppf(0.975, 99))


def test_in_folds_a_row_is_ranked_among_those_of_its_own_fold() -> None:
    rng = np.random.default_rng(0)
    scores, labels, folds = (
        rng.normal(size=60),
        rng.integers(0, 2, 60),
        np.arange(60) % 5,
    )
    scores += 10 * folds  # models of different folds have different levels
    found = auc_influence(np.arange(60), scores, labels, folds)
    assert found is not None
    placed = np.zeros(60)
    for i in range(60):
        others = (folds == folds[i]) & (labels != labels[i])
        placed[i] = np.mean(scores[others] < scores[i])
    positive, negative = placed[labels == 1], 1 - placed[labels == 0]
    assert found.metric == pytest.approx((positive.mean() + negative.mean()) / 2)
    variance = positive.var(ddof=1) / len(positive) + negative.var(ddof=1) / len(
        negative
    )
    assert (found.values**2).sum() == pytest.approx(variance)


# Rows: resampled patients are what the closed form stands for


def two_models(
    rng: np.random.Generator, seeds: int
) -> tuple[list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """Test rows of each seed out of 120 patients, labels, and [seed] -> scores [2, 120] of two models."""
    labels = (rng.random(120) < 0.4).astype(int)
    signal = rng.normal(0, 1, 120) + labels
    picks = [np.sort(rng.permutation(120)[:60]) for _ in range(seeds)]
    scores = [
        np.stack([signal + rng.normal(0, s, 120) for s in (0.5, 1.0)])
        for _ in range(seeds)
    ]
    return picks, labels, scores


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    gaps = scores[labels == 1][:, None] - scores[labels == 0]
    return float((np.sign(gaps).mean() + 1) / 2)


@pytest.mark.parametrize("metric", ["mean", "rmse", "auc"])
def test_the_row_error_is_what_resampled_patients_give(metric: str) -> None:
    rng = np.random.default_rng(7)
    picks, labels, scores = two_models(rng, 4)

    def influence(at: np.ndarray, values: np.ndarray) -> Influence:
        found = {
            "mean": lambda: mean_influence(at, values[at]),
            "rmse": lambda: rmse_influence(at, values[at] ** 2),
            "auc": lambda: auc_influence(at, values[at], labels[at]),
        }[metric]()
        assert found is not None
        return found

    def statistic(at: np.ndarray, values: np.ndarray) -> float:
        if metric == "auc":
            return auc(values[at], labels[at])
        return float(
            values[at].mean() if metric == "mean" else np.sqrt((values[at] ** 2).mean())
        )

    draws = []
    for _ in range(1500):
        times = np.bincount(
            rng.integers(0, 120, 120), minlength=120
        )  # every patient once for all seeds
        rows = [np.repeat(at, times[at]) for at in picks]
        draws.append(
            np.mean(
                [
                    statistic(at, s[0]) - statistic(at, s[1])
                    for at, s in zip(rows, scores, strict=True)
                ]
            )
        )
    both = zip(picks, scores, strict=True)
    pairs = [(influence(at, s[0]), influence(at, s[1])) for at, s in both]
    found = row_error([a for a, _ in pairs], [b for _, b in pairs])
    assert found is not None
    assert found.error == pytest.approx(np.std(draws), rel=0.08)
    rarest = min(min(labels[at].sum(), (1 - labels[at]).sum()) for at in picks)
    assert found.freedom == (rarest - 1 if metric == "auc" else 59)


def test_a_patient_in_all_seeds_is_one_patient() -> None:
    rng = np.random.default_rng(0)
    loss, numbers = rng.random(50), np.arange(50)
    zero = mean_influence(numbers, np.zeros(50))
    once = row_error([mean_influence(numbers, loss)], [zero])
    same = row_error([mean_influence(numbers, loss)] * 4, [zero] * 4)
    others = [numbers + 50 * s for s in range(4)]
    apart = row_error(
        [mean_influence(n, loss) for n in others],
        [zero._replace(numbers=n) for n in others],
    )
    assert once is not None
    assert same is not None
    assert apart is not None
    assert once.error == pytest.approx(loss.std(ddof=1) / math.sqrt(50))
    assert same.error == pytest.approx(once.error)
    assert apart.error == pytest.approx(once.error / 2)


def test_several_rows_of_a_patient_err_together() -> None:
    """The error of a mean whose rows come in clusters: n_P / (n_P - 1) times the sum of squares of the patients' sums."""
    rng = np.random.default_rng(3)
    patient = np.repeat(np.arange(12), [1, 2, 3, 4] * 3)
    one, two = (
        rng.normal(0, 1, 12)[patient] + rng.normal(0, 0.1, len(patient))
        for _ in range(2)
    )
    error = row_error([mean_influence(patient, one)], [mean_influence(patient, two)])
    gap = one - two
    sums = np.array([(gap[patient == p] - gap.mean()).sum() for p in range(12)])
    assert error is not None
    assert error.freedom == 11
    assert error.error == pytest.approx(math.sqrt(12 / 11 * (sums**2).sum()) / len(gap))
    assert error.error > 1.3 * gap.std(ddof=1) / math.sqrt(
        len(gap)
    )  # more than independent rows would have


def test_an_auc_of_rows_that_are_repeated_has_the_error_of_the_patients() -> None:
    rng = np.random.default_rng(4)
    labels, patients = rng.integers(0, 2, 40), np.arange(40)
    scores = rng.normal(labels[:, None], 1), rng.normal(0, 1, (40, 1))
    once = row_error(
        *[[i] for s in scores if (i := auc_influence(patients, s, labels)) is not None]
    )
    many = [
        auc_influence(
            np.repeat(patients, 5), np.repeat(s, 5, axis=0), np.repeat(labels, 5)
        )
        for s in scores
    ]
    assert once is not None
    assert all(i is not None for i in many)
    five = row_error(*[[i] for i in many if i is not None])
    assert five is not None
    assert five.freedom == once.freedom
    assert five.error == pytest.approx(once.error, rel=0.05)


def test_an_auc_of_several_classes_is_the_mean_over_classes() -> None:
    rng = np.random.default_rng(3)
    numbers, labels, scores = np.arange(60), rng.integers(0, 3, 60), rng.random((60, 3))
    whole = auc_influence(numbers, scores, labels)
    single = [
        auc_influence(numbers, scores[:, c], (labels == c).astype(int))
        for c in range(3)
    ]
    assert whole is not None
    assert whole.values == pytest.approx(
        np.mean([one.values for one in single if one is not None], axis=0)
    )
    assert whole.fewest == np.bincount(labels).min()
    assert auc_influence(numbers, scores[:, 0], np.ones(60)) is None


def test_one_row_tells_nothing() -> None:
    one = mean_influence(np.zeros(1, dtype=np.int64), [0.4])
    assert row_error([one], [one]) is None
    assert row_error([], []) is None


def test_the_mean_over_clients_adds_their_errors() -> None:
    found = over_clients([RowError(0.3, 9), RowError(0.4, 19)])
    assert found is not None
    assert found.error == pytest.approx(0.25)
    assert found.freedom == pytest.approx(0.25**2 / (0.09**2 / 9 + 0.16**2 / 19))
    assert over_clients([RowError(0.3, 9), None]) is None


@pytest.mark.in_turn
def test_chance_is_not_called_clear_where_the_plain_t_test_calls_it() -> None:
    """Two equally good models on resampled splits of the same 150 rows: the plain paired t test is wrong often."""
    rng = np.random.default_rng(0)
    plain = seeds_only = both = 0
    studies, seeds = 300, 15
    for _ in range(studies):
        right = (
            rng.random((2, 150)) < 0.8
        )  # which rows two models of equal quality would get right
        picks = np.stack([rng.permutation(150)[:50] for _ in range(seeds)])
        a, b = (one[picks].mean(axis=1) for one in right)
        rows = row_error(
            *([mean_influence(at, one[at]) for at in picks] for one in right)
        )
        alone, together = compare_pairs(a, b, 0.5), compare_pairs(a, b, 0.5, rows)
        assert alone is not None
        assert together is not None
        seeds_only += alone.excludes_zero
        both += together.excludes_zero
        plain += stats.ttest_rel(a, b).pvalue < 0.05
    assert plain > 0.3 * studies
    assert seeds_only < 0.1 * studies
    assert both < 0.04 * studies
