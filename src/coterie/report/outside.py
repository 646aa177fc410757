"""What a hospital that took no part may expect of the model that the others' mean is: leave-one-client-out.

Each client's gain g_k over a constant prediction, by a model of the others alone (`study/left_out.py`), has a true value
of its own: g_k ~ N(M, tau^2 + SE_k^2). A new hospital's true gain is one more draw of N(M, tau^2). The mean M has no
prior; tau is 0 or one of 20 points from .004 to 1, with a half-normal(.1) prior, and weighs by the restricted likelihood
(Harville, JASA 1977). The interval is mean +- 1.96 standard deviations of the mixture: with few clients those of
DerSimonian and Laird are too narrow or, with Higgins' t, twice as wide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.base.files import open_tensors
from coterie.report.history import Vector
from coterie.report.results import Results
from coterie.report.text import with_sign
from coterie.run.files import (
    ALL,
    OUTSIDE_ERROR,
    OUTSIDE_GAIN,
    safe_name,
    seed_suffix,
)

FEWEST = 3
"""Clients below which nothing is said of a hospital outside."""
TAUS = np.array([0.0, *np.geomspace(0.004, 1.0, 20)])
TAU_SPREAD = 0.1


class Outside(NamedTuple):
    """The gain of a hospital outside over a constant prediction.

    Attributes:
        mean: the expected true gain; in log-loss, in regression as a share of the variance of the label.
        low, high: the 95 % prediction interval of the true gain of one new hospital.
        clients: number of clients that were left out, one at a time.
    """

    mean: float
    low: float
    high: float
    clients: int


def predict_gain(gains: Vector, errors: Vector) -> Outside:
    """Predict the true gain of one more hospital.

    Args:
        gains: of m >= 2 clients, each by a model of the others.
        errors: their standard errors over rows, above 0.

    >>> alike = predict_gain(np.full(8, 0.05), np.full(8, 0.01))
    >>> unlike = predict_gain(np.array([0.2, -0.1] * 4), np.full(8, 0.01))
    >>> round(alike.mean, 3), alike.low > 0, unlike.low < -0.1
    (0.05, True, True)
    """
    variance = TAUS[:, None] ** 2 + errors**2  # [taus, m]
    weight = 1 / variance
    precision = weight.sum(1)
    mean = (weight * gains).sum(1) / precision
    square = (weight * (gains - mean[:, None]) ** 2).sum(1)
    restricted = -(np.log(variance).sum(1) + np.log(precision) + square) / 2
    log_weight = restricted + _log_prior()
    share = np.exp(log_weight - log_weight.max())
    share /= share.sum()

    expected = float(share @ mean)
    # Of a new hospital: how far hospitals differ, and how little is known of their mean.
    spread = TAUS**2 + 1 / precision + (mean - expected) ** 2
    reach = 1.96 * float(np.sqrt(share @ spread))
    return Outside(expected, expected - reach, expected + reach, len(gains))


def _log_prior() -> Vector:
    """The log of density times width at each of `TAUS`."""
    edges = np.concatenate([[0.0], (TAUS[1:] + TAUS[:-1]) / 2, [TAUS[-1]]])
    prior: Vector = np.log(np.diff(edges)) - TAUS**2 / (2 * TAU_SPREAD**2)
    return prior


def outside(results: Results, method: str) -> Outside | None:
    """What a method offers a hospital outside, by its training on all rows of the first seed; None where that was not measured."""
    for seed in results.seeds:
        for fold in (ALL, ""):
            name = safe_name(f"{method}-{seed_suffix(seed, fold)}")
            path = results.folder / "models" / "prior" / f"{name}.safetensors"
            if not path.is_file():
                continue
            with open_tensors(path, "numpy") as (file, _):
                if OUTSIDE_GAIN not in file.keys():  # noqa: SIM118 - it is not a dict
                    return None
                gains = file.get_tensor(OUTSIDE_GAIN)
                errors = file.get_tensor(OUTSIDE_ERROR)
            known = np.isfinite(gains) & np.isfinite(errors) & (errors > 0)
            if known.sum() < FEWEST:
                return None
            return predict_gain(gains[known], errors[known])
    return None


def first_outside_words(results: Results) -> str:
    """The sentence of the first method of which that was measured; empty if there is none."""
    told = (outside_words(results, method) for method in results.federated)
    return next(filter(None, told), "")


def outside_words(results: Results, method: str) -> str:
    """The same in a sentence; empty where nothing is known."""
    found = outside(results, method)
    if found is None:
        return ""
    unit = "of the variance of the label"
    if results.classification or results.of_events:
        unit = "in log-loss"
    elif results.of_counts:
        unit = "in loss"
    mean, low, high = (with_sign(v) for v in (found.mean, found.low, found.high))
    return (
        f"A hospital outside is served the mean of the models: over giving every row the same prediction it gains {mean} {unit} "
        f"(for one new hospital, 95 %: {low} to {high}; {found.clients} left out in turn)."
    )
