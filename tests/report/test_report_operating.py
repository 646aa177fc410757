"""ROC and reliability against scikit-learn and Wilson's formula, and a band that is where it should be."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import trapezoid
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score, roc_curve

from coterie.compute.outcomes import Rows
from coterie.report.operating import GRID, reliability, roc


def rows(seed: int, count: int = 120, gap: float = 1.5, ties: bool = False) -> Rows:
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.permutation(3 * count)[:count])
    labels = (np.random.default_rng(7).random(3 * count) < 0.4).astype(int)[numbers]
    logits = gap * labels + rng.normal(0, 1, count) - 1
    logits = np.round(logits) if ties else logits
    return Rows(numbers, np.zeros(count), np.zeros(count), labels, logits[:, None])


@pytest.mark.parametrize("ties", [False, True])
def test_a_roc_is_scikit_learns(ties: bool) -> None:
    one = rows(0, ties=ties)
    assert one.outputs is not None
    found = roc({0: one})
    assert found is not None
    x, y, _ = roc_curve(one.labels, one.outputs[:, 0], drop_intermediate=False)
    inside = ~np.isin(
        np.round(GRID, 9), np.round(x, 9)
    )  # where a step rises, either end is right
    assert found.mean[inside] == pytest.approx(np.interp(GRID, x, y)[inside], abs=1e-12)
    assert trapezoid(found.mean, GRID) == pytest.approx(
        roc_auc_score(one.labels, one.outputs[:, 0]), abs=0.02
    )
    assert (np.diff(found.mean) >= 0).all()


def test_a_roc_of_seeds_is_their_mean_with_a_band_around_it() -> None:
    seeds = {s: rows(s) for s in range(4)}
    found = roc(seeds)
    assert found is not None
    alone = [roc({0: one}) for one in seeds.values()]
    assert found.mean == pytest.approx(
        np.mean([one.mean for one in alone if one], axis=0)
    )
    assert found.low is not None
    assert found.high is not None
    assert (found.low <= found.mean + 1e-9).all()
    assert (found.mean <= found.high + 1e-9).all()
    again = roc(seeds)
    assert again is not None
    assert again.low is not None
    assert np.array_equal(again.low, found.low)
    narrow = roc({s: rows(s, 1200) for s in range(4)})
    assert narrow is not None
    assert narrow.low is not None
    assert narrow.high is not None
    assert (narrow.high - narrow.low).mean() < 0.5 * (found.high - found.low).mean()


def test_the_band_holds_the_true_curve_about_as_often_as_it_says() -> None:
    # A threshold c has sensitivity 1 - F(c - gap) and false positive rate 1 - F(c).
    from scipy.stats import norm

    middle = 12  # a rate of .3
    truth = norm.sf(norm.isf(GRID[middle]) - 1.5)
    inside = []
    for trial in range(60):
        rng = np.random.default_rng(trial)
        labels = (rng.random(150) < 0.4).astype(int)
        logits = 1.5 * labels + rng.normal(0, 1, 150)
        found = roc(
            {
                0: Rows(
                    np.arange(150),
                    np.zeros(150),
                    np.zeros(150),
                    labels,
                    logits[:, None],
                )
            }
        )
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        inside.append(found.low[middle] <= truth <= found.high[middle])
    assert np.mean(inside) > 0.85


def test_no_curve_without_two_classes() -> None:
    one = rows(0)
    lone = one._replace(labels=np.ones(len(one.loss), dtype=int))
    assert roc({0: one, 1: lone}) is None
    assert roc({}) is None
    number = one._replace(labels=one.loss)
    assert roc({0: number}) is None
    assert reliability({0: number}) is None


def test_very_many_rows_have_a_curve_without_a_band() -> None:
    found = roc({0: rows(0, 6000)})
    assert found is not None
    assert found.low is None


def test_reliability_is_scikit_learns_with_intervals_of_wilson() -> None:
    one = rows(0)
    assert one.risks is not None
    found = reliability({0: one})
    assert found is not None
    share, risk = calibration_curve(one.labels, one.risks, n_bins=10)
    assert found.share == pytest.approx(share)
    assert found.risk == pytest.approx(risk)
    # 0 of 10 and 5 of 10 by Wilson's formula: (0, .2775) and (.2366, .7634).
    logits = np.array([-5.0] * 10 + [0.1] * 10)
    labels = np.array([0] * 10 + [0, 1] * 5)
    known = reliability(
        {0: Rows(np.arange(20), np.zeros(20), np.zeros(20), labels, logits[:, None])}
    )
    assert known is not None
    assert known.low == pytest.approx([0, 0.2366], abs=1e-4)
    assert known.high == pytest.approx([0.2775, 0.7634], abs=1e-4)


def test_a_patient_of_several_seeds_counts_once() -> None:
    one = rows(0)
    twice = reliability({0: one, 1: one})
    once = reliability({0: one})
    assert once is not None
    assert twice is not None
    assert np.array_equal(once.patients, twice.patients)
    assert twice.low == pytest.approx(once.low)
