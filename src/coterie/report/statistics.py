"""Differences of two methods and their 95 % intervals; what a client should do follows from `coterie.report.evidence`.

A difference has two sources of chance, and its interval is that of the worse of the two (`compare_pairs`):

- *seeds*: without folds every seed draws a new split and trains anew. Their test rows overlap, so that the plain paired t test
  takes repetition for evidence. Nadeau and Bengio ("Inference for the generalization error", Machine Learning 52, 2003, section
  3.3) correct the variance of the mean of J differences from `s^2 / J` to `(1/J + n_test / n_train) s^2`; where all seeds have
  the same test rows the plain variance holds. With folds every seed tests the same rows, and its spread tells nothing of others.
- *rows*: other patients would have given another difference. `compute/outcomes.py` says how large the error over them is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.errors import InputError
from coterie.compute.outcomes import RowError, student

FEWEST_SEEDS = 3
FEWEST_ROWS = 30
FEWEST_OF_A_CLASS = 10

Strength = Literal["shown", "probable", "safe", "open", "no verdict"]
Vector = NDArray[np.float64]


def deviation(finite: Vector) -> float:
    """The standard deviation of finite values over all but one of their number; NaN of fewer than two, without numpy's warning."""
    if finite.size < 2:
        return math.nan
    return float(finite.std(ddof=1))


class Difference(NamedTuple):
    """The mean over seeds of `a - b`.

    Attributes:
        mean: mean of the paired differences.
        low, high: its own 95 % interval, the wider of those over seeds and over rows; None where there is none.
        p: the larger of the two p values; None where there is none.
        better: whether `mean` speaks for `a`.
        strength: what may be said of it: "shown" or "probable" (better or worse), "safe" (a harm above the smallest effect is
            excluded), "open", or "no verdict" where seeds or rows are too few or the metric does not decide.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    better: bool
    strength: Strength = "no verdict"

    @property
    def half_width(self) -> float | None:
        """Half the length of the interval."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """1 for shown or probably better, -1 for worse, else 0."""
        if self.strength not in ("shown", "probable"):
            return 0
        return 1 if self.better else -1

    @property
    def excludes_zero(self) -> bool:
        """Return True if the interval does not contain 0."""
        if self.low is None or self.high is None:
            return False
        return not self.low <= 0 <= self.high

    @property
    def words(self) -> str:
        """`better`, `probably worse`, `no harm`, `not settled`, or nothing."""
        side = "better" if self.better else "worse"
        return {
            "shown": side,
            "probable": f"probably {side}",
            "safe": "no harm",
            "open": "not settled",
            "no verdict": "",
        }[self.strength]


def compare_pairs(
    a: ArrayLike,
    b: ArrayLike,
    ratio: float | None,
    rows: RowError | None = None,
    *,
    higher_is_better: bool = True,
) -> Difference | None:
    """Compare the results of two methods, paired over seeds and over test rows; None if no seed has both.

    Args:
        a: [J] results of one method, seed by seed. Seeds where one of the two is not a number are left out.
        b: [J] results of the other.
        ratio: test rows over training rows of one seed; 0 where all seeds have the same test rows; None where each tests all rows
            of a client in folds, so that `rows` alone says how large the error is.
        rows: the standard error over test rows; None where it is not known.
        higher_is_better: False for a loss.

    Raises:
        InputError: `a` and `b` have different lengths, or `ratio` is negative.

    >>> compare_pairs([0.80, 0.81, 0.79, 0.80], [0.92, 0.93, 0.92, 0.94], 0.5).excludes_zero
    True
    >>> compare_pairs([0.80, 0.91, 0.79, 0.99], [0.82, 0.90, 0.85, 0.94], 0.5).excludes_zero
    False
    """
    scores = np.atleast_1d(np.asarray(a, dtype=float))
    rival_scores = np.atleast_1d(np.asarray(b, dtype=float))
    if scores.shape != rival_scores.shape:
        raise InputError(
            f"cannot pair {scores.shape} results with {rival_scores.shape}; give one value per seed"
        )
    if ratio is not None and ratio < 0:
        raise InputError(f"{ratio} test rows for each training row; give a number >= 0")
    gaps = scores - rival_scores
    gaps = gaps[np.isfinite(gaps)]
    if not gaps.size:
        return None
    mean = float(gaps.mean())
    largest = float(np.abs(scores[np.isfinite(scores)]).max())
    if abs(mean) <= 1e-12 * max(1.0, largest):
        mean = 0.0  # what is left is rounding
    gains = (mean > 0) == higher_is_better
    unbounded = Difference(mean, None, None, None, gains)
    bounds = []
    if ratio is not None:
        of_seeds = over_seeds(gaps, ratio)
        if of_seeds is None:
            return unbounded
        bounds.append(student(mean, of_seeds))
    if rows is not None:
        bounds.append(student(mean, rows))
    if not any(half > 0 for half, _ in bounds):
        return unbounded
    # The larger error counts: neither of the two holds all of the other.
    half = max(half for half, _ in bounds)
    p = max(p for _, p in bounds)
    return Difference(mean, mean - half, mean + half, p, gains)


def over_seeds(gaps: Vector, ratio: float) -> RowError | None:
    """Return the error of the mean of the differences of several seeds [J]; None for fewer than two."""
    if gaps.size < 2:
        return None
    spread = float(gaps.std(ddof=1))
    if spread <= 1e-12 * max(1.0, float(np.abs(gaps).max())):
        spread = 0.0  # what is left is rounding: the same measurement each time
    return RowError(math.sqrt(1 / gaps.size + ratio) * spread, gaps.size - 1)


def weigh(differences: Sequence[Difference]) -> Difference | None:
    """The difference that several tables show together, whose rows are of other patients: weights are 1 / s^2; None for none.

    Args:
        differences: a table each. Those without an interval count only where none has one.
    """
    from scipy.special import ndtr

    bounded = [d for d in differences if d.half_width]
    if len(bounded) < 2:
        return next(iter(bounded or differences), None)
    errors = np.array([(d.half_width or 0.0) / 1.96 for d in bounded])
    mean = float(np.average([d.mean for d in bounded], weights=errors**-2))
    error = 1 / math.sqrt(float((errors**-2).sum()))
    positive_is_better = (bounded[0].mean > 0) == bounded[0].better
    p = 2 * float(ndtr(-abs(mean) / error))
    return Difference(
        mean,
        mean - 1.96 * error,
        mean + 1.96 * error,
        p,
        (mean > 0) == positive_is_better,
    )


def over_clients(errors: Sequence[RowError | None]) -> RowError | None:
    """The error of the mean over clients that share no patient: Welch's degrees of freedom. None if one is not known."""
    finite = [e for e in errors if e is not None]
    if not finite or len(finite) < len(errors):
        return None
    squares = np.array([e.error**2 for e in finite])
    total = float(squares.sum())
    freedoms = np.array([e.freedom for e in finite])
    if total:
        freedom = total**2 / float((squares**2 / freedoms).sum())
    else:
        freedom = float(freedoms.sum())
    return RowError(math.sqrt(total) / len(finite), freedom)
