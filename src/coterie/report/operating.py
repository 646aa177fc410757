"""A client's test rows of two classes as curves: ROC with its band, and how often what was predicted came true (reliability)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.compute.outcomes import Rows

Vector = NDArray[np.float64]

GRID: Vector = np.linspace(0, 1, 41)
"""False positive rates at which a ROC is drawn."""
DRAWS = 200
MOST_ROWS = 5000
"""With more test rows the band is narrower than its line and is not computed."""
BINS = 10
QUANTILE = 1.959964


class Roc(NamedTuple):
    """Sensitivity at each rate of `GRID`, mean over seeds, and its 95 % band over patients (None with very many)."""

    mean: Vector
    low: Vector | None
    high: Vector | None


class Reliability(NamedTuple):
    """Intervals of predicted risk that have rows, all seeds together.

    Attributes:
        risk, share: [m] mean predicted risk, and share of rows that were positive.
        low, high: [m] Wilson's 95 % interval of the share; a patient counts once, however many seeds tested it.
        patients: [m] how many there are.
    """

    risk: Vector
    share: Vector
    low: Vector
    high: Vector
    patients: NDArray[np.int64]


def roc(tested: Mapping[int, Rows]) -> Roc | None:
    """The ROC of one client under one method; None unless every seed has rows of both of two classes.

    The band is that of patients: they are resampled `DRAWS` times, once for all seeds, always with the same draws, so that the
    bands of two methods can be compared.
    """
    seeds = [_Sorted.of(rows) for rows in tested.values() if rows.risks is not None]
    some_without_risks = len(seeds) < len(tested)
    if not seeds or some_without_risks:
        return None
    if not all(rows_of_seed.has_both_classes for rows_of_seed in seeds):
        return None
    mean = np.mean(
        [
            _sensitivity(rows_of_seed, rows_of_seed.weights[None])[0]
            for rows_of_seed in seeds
        ],
        axis=0,
    )
    if max(len(rows_of_seed.numbers) for rows_of_seed in seeds) > MOST_ROWS:
        return Roc(mean, None, None)
    patients, places = np.unique(
        np.concatenate([rows_of_seed.numbers for rows_of_seed in seeds]),
        return_inverse=True,
    )
    generator = np.random.default_rng(0)
    drawn = generator.multinomial(
        len(patients), np.full(len(patients), 1 / len(patients)), DRAWS
    )
    ends = np.cumsum([len(rows_of_seed.numbers) for rows_of_seed in seeds])[:-1]
    curves = [
        _sensitivity(rows_of_seed, drawn[:, places] * rows_of_seed.weights)
        for rows_of_seed, places in zip(seeds, np.split(places, ends), strict=True)
    ]
    means = np.mean(curves, axis=0)
    low, high = np.quantile(
        means[np.isfinite(means).all(axis=1)], (0.025, 0.975), axis=0
    )
    return Roc(mean, low, high)


class _Sorted(NamedTuple):
    """The rows of one seed, highest risk first, and how much they count; `last` marks the last row of those with the same risk."""

    numbers: NDArray[np.int64]
    positive: Vector
    last: NDArray[np.bool_]
    weights: Vector

    @classmethod
    def of(cls, rows: Rows) -> _Sorted:
        risks, labels = np.asarray(rows.risks), np.asarray(rows.labels)
        order = np.argsort(-risks, kind="stable")
        differs_from_next = np.diff(risks[order]) != 0
        ends_tie = np.append(differs_from_next, True)
        positive = (labels[order] == 1).astype(float)
        weights = _weights_of(rows)[order]
        return cls(rows.numbers[order], positive, ends_tie, weights)

    @property
    def has_both_classes(self) -> bool:
        return bool(0 < self.positive.sum() < len(self.positive))


def _sensitivity(
    rows: _Sorted, weights: NDArray[np.float64] | NDArray[np.int64]
) -> Vector:
    """At each rate of `GRID` [draws, k] where rows count as `weights` [draws, R] says; NaN for a draw without one of the classes."""
    # Rows of the same risk are above a threshold together, so that a curve has one point for all of them.
    hits = np.cumsum(weights * rows.positive, axis=1)[:, rows.last]
    alarms = np.cumsum(weights * (1 - rows.positive), axis=1)[:, rows.last]
    with np.errstate(invalid="ignore", divide="ignore"):
        sensitivity = hits / hits[:, -1:]
        false_alarms = alarms / alarms[:, -1:]
    # Above the highest risk nobody is called.
    nobody = np.zeros((len(sensitivity), 1))
    sensitivity = np.hstack([nobody, sensitivity])
    false_alarms = np.hstack([nobody, false_alarms])
    curves = zip(false_alarms, sensitivity, strict=True)
    return np.stack([np.interp(GRID, rate, hit) for rate, hit in curves])


def reliability(tested: Mapping[int, Rows]) -> Reliability | None:
    """Return how often what a method predicted for a client came true; None without rows of two classes."""
    risks_of_seeds, positive_of_seeds = [], []
    numbers_of_seeds, weights_of_seeds = [], []
    for rows in tested.values():
        if rows.risks is None:
            continue
        risks_of_seeds.append(rows.risks)
        positive_of_seeds.append(np.asarray(rows.labels) == 1)
        numbers_of_seeds.append(rows.numbers)
        weights_of_seeds.append(_weights_of(rows))
    if not risks_of_seeds:
        return None
    risks = np.concatenate(risks_of_seeds)
    positive = np.concatenate(positive_of_seeds).astype(float)
    numbers = np.concatenate(numbers_of_seeds)
    weights = np.concatenate(weights_of_seeds)
    # A risk of exactly 1 belongs to the last bin.
    place = np.minimum((risks * BINS).astype(int), BINS - 1)
    bins, patients_of_bins = [], []
    for i in np.unique(place):
        in_bin = place == i
        # Weights of 0 alone have no mean.
        if weights[in_bin].any():
            bins.append(in_bin)
            # A patient tested under several seeds is one observation for the interval.
            patients_of_bins.append(len(np.unique(numbers[in_bin])))
    patients = np.array(patients_of_bins)

    def means(values: Vector) -> Vector:
        return np.array([np.average(values[b], weights=weights[b]) for b in bins])

    share = means(positive)
    return Reliability(
        means(risks),
        share,
        *_wilson(share, patients),
        patients,
    )


def _weights_of(rows: Rows) -> Vector:
    return np.ones(len(rows.numbers)) if rows.weights is None else rows.weights


def _wilson(share: Vector, count: NDArray[np.int64]) -> tuple[Vector, Vector]:
    """Wilson's score interval of a share (JASA 22, 1927), which unlike share +- z s stays within 0 and 1."""
    # z^2 / n
    square = QUANTILE**2 / count
    middle = (share + square / 2) / (1 + square)
    half = np.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
    return middle - half, middle + half
