"""Is one method better than another for a client, or is it the spread over seeds?

Every seed draws a new split of the same rows, so the results of two seeds are not independent: their test rows and
most of their training rows overlap. The plain paired t test takes them for independent and calls far too many
differences real. Nadeau and Bengio ("Inference for the generalization error", Machine Learning 52, 2003, section 3.3)
correct the variance of the mean of J paired differences from `s^2 / J` to `(1/J + n_test / n_train) s^2`.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.core.errors import require

__all__ = ["BETTER", "NO_SPREAD", "ONE_SEED", "UNCLEAR", "WORSE", "Difference", "VerdictWord", "compare"]

VerdictWord = Literal[
    "better", "worse", "no clear difference", "one seed: no verdict", "no spread over seeds: no verdict"
]
BETTER: VerdictWord = "better"
WORSE: VerdictWord = "worse"
UNCLEAR: VerdictWord = "no clear difference"
ONE_SEED: VerdictWord = "one seed: no verdict"
NO_SPREAD: VerdictWord = "no spread over seeds: no verdict"

LEVEL = 0.95


class Difference(NamedTuple):
    """The mean of `a - b` over seeds, its 95 % interval (None where there is none), and what may be said of it."""

    mean: float
    low: float | None
    high: float | None
    verdict: VerdictWord

    @property
    def half_width(self) -> float | None:
        """Half the length of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def compare(
    a: ArrayLike, b: ArrayLike, n_train: float, n_test: float, higher_is_better: bool = True
) -> Difference | None:
    """Compare the results `a` and `b` of two methods, paired over seeds; None if no seed has both.

    `mean ± t sqrt((1/J + n_test/n_train) s^2)`, with s^2 the sample variance of the J paired differences and t the
    97.5 % quantile of Student's distribution with J - 1 degrees of freedom. Seeds where one of the two is not a
    number are left out.

    Args:
        a: [J] results of one method, seed by seed.
        b: [J] results of the other.
        n_train: rows that one seed trains on.
        n_test: rows that one seed tests on.
        higher_is_better: False for a loss.

    Raises:
        InputError: `a` and `b` have different lengths, or a number of rows is not sensible.

    >>> compare([0.80, 0.81, 0.79, 0.80], [0.92, 0.93, 0.92, 0.94], 82, 41).verdict
    'worse'
    >>> compare([0.80, 0.91, 0.79, 0.99], [0.82, 0.90, 0.85, 0.94], 82, 41).verdict
    'no clear difference'
    """
    from scipy.special import stdtrit

    one, two = np.atleast_1d(np.asarray(a, dtype=float)), np.atleast_1d(np.asarray(b, dtype=float))
    require(one.shape == two.shape, f"cannot pair {one.shape} results with {two.shape}; give one value per seed")
    require(n_train > 0 and n_test >= 0, f"{n_train} training and {n_test} test rows; both must be positive")
    gaps = one - two
    gaps = gaps[np.isfinite(gaps)]
    if gaps.size == 0:
        return None
    mean, seeds = float(gaps.mean()), int(gaps.size)
    if seeds == 1:
        return Difference(mean, None, None, ONE_SEED)
    spread = float(gaps.std(ddof=1))
    if spread <= 1e-12 * max(1.0, float(np.abs(gaps).max())):  # rounding: the seeds repeat one measurement
        return Difference(0.0, 0.0, 0.0, UNCLEAR) if abs(mean) <= 1e-12 else Difference(mean, None, None, NO_SPREAD)
    quantile = float(stdtrit(seeds - 1, (1 + LEVEL) / 2))
    half = quantile * math.sqrt(1 / seeds + n_test / n_train) * spread
    return Difference(mean, mean - half, mean + half, _verdict(mean, half, higher_is_better))


def _verdict(mean: float, half: float, higher_is_better: bool) -> VerdictWord:
    if abs(mean) <= half:
        return UNCLEAR
    return BETTER if (mean > 0) == higher_is_better else WORSE
