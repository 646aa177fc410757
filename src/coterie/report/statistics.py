"""The rule by which one method is called better than another; the whole of it, in words for readers: docs/statistics.md.

A comparison has two sources of chance, and is judged by the worse of the two (`paired`):

- *seeds*: every seed draws a new split and trains anew. Their test rows overlap, so that the plain paired t test takes
  repetition for evidence. Nadeau and Bengio ("Inference for the generalization error", Machine Learning 52, 2003,
  section 3.3) correct the variance of the mean of J differences from `s^2 / J` to `(1/J + n_test / n_train) s^2`; where
  all seeds have the same test rows the plain variance holds.
- *rows*: other patients would have given another difference. Patients are resampled once and used for all seeds, the
  statistic is the mean over seeds. Its standard error is the limit of many such resamples, computed without drawing any
  (`row_error`; the infinitesimal jackknife, Efron 1982; for an AUC DeLong's, DeLong and Clarke-Pearson 1988).

`judge` then decides over the comparisons of one client: Benjamini and Hochberg (1995) at 5 %, and a smallest effect.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.core.errors import require

__all__ = [
    "FEWEST_OF_A_CLASS",
    "FEWEST_ROWS",
    "FEWEST_SEEDS",
    "Difference",
    "Influence",
    "RowError",
    "Strength",
    "adjusted",
    "auc_influence",
    "judge",
    "mean_influence",
    "paired",
    "rmse_influence",
    "row_error",
]

LEVEL = 0.95
FEWEST_SEEDS = 3
FEWEST_ROWS = 30
FEWEST_OF_A_CLASS = 10

Strength = Literal["clear", "likely", "not shown", "no verdict"]
Key = TypeVar("Key", bound=Hashable)
Vector = NDArray[np.float64]


class RowError(NamedTuple):
    """Standard error of a paired difference over test rows, and its degrees of freedom."""

    error: float
    freedom: float


class Difference(NamedTuple):
    """The mean over seeds of `a - b`.

    Attributes:
        mean: of the paired differences.
        low, high: its own 95 % interval, the wider of those over seeds and over rows; None where there is none.
        p: the larger of the two p values; None where there is none.
        better: whether `mean` speaks for `a`.
        strength: what may be said of it. "no verdict" where seeds or rows are too few or the metric does not decide.
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
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def sign(self) -> int:
        """1 clearly or likely better, -1 clearly or likely worse, else 0."""
        return (1 if self.better else -1) if self.strength in ("clear", "likely") else 0

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval does not contain 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def words(self) -> str:
        """`clearly better`, `likely worse`, `no difference shown`, or nothing."""
        side = "better" if self.better else "worse"
        return {
            "clear": f"clearly {side}",
            "likely": f"likely {side}",
            "not shown": "no difference shown",
            "no verdict": "",
        }[self.strength]


def paired(
    a: ArrayLike,
    b: ArrayLike,
    ratio: float,
    rows: RowError | None = None,
    *,
    higher_is_better: bool = True,
) -> Difference | None:
    """Compare the results of two methods, paired over seeds and over test rows; None if no seed has both.

    Args:
        a: [J] results of one method, seed by seed. Seeds where one of the two is not a number are left out.
        b: [J] results of the other.
        ratio: test rows over training rows of one seed; 0 where all seeds have the same test rows.
        rows: the standard error over test rows; None where it is not known.
        higher_is_better: False for a loss.

    Raises:
        InputError: `a` and `b` have different lengths, or `ratio` is negative.

    >>> paired([0.80, 0.81, 0.79, 0.80], [0.92, 0.93, 0.92, 0.94], 0.5).excludes_zero
    True
    >>> paired([0.80, 0.91, 0.79, 0.99], [0.82, 0.90, 0.85, 0.94], 0.5).excludes_zero
    False
    """
    one, two = np.atleast_1d(np.asarray(a, dtype=float)), np.atleast_1d(np.asarray(b, dtype=float))
    require(one.shape == two.shape, f"cannot pair {one.shape} results with {two.shape}; give one value per seed")
    require(ratio >= 0, f"{ratio} test rows for each training row; give a number >= 0")
    gaps = one - two
    gaps = gaps[np.isfinite(gaps)]
    if not gaps.size:
        return None
    mean = float(gaps.mean())
    if abs(mean) <= 1e-12 * max(1.0, float(np.abs(one[np.isfinite(one)]).max())):  # rounding
        mean = 0.0
    better = (mean > 0) == higher_is_better
    seeds = _over_seeds(gaps, ratio)
    sources = [_student(mean, *source) for source in (seeds, rows) if source is not None]
    if seeds is None or not any(half > 0 for half, _ in sources):
        return Difference(mean, None, None, None, better)
    half, p = max(half for half, _ in sources), max(p for _, p in sources)
    return Difference(mean, mean - half, mean + half, p, better)


def _over_seeds(gaps: Vector, ratio: float) -> RowError | None:
    if gaps.size < 2:
        return None
    spread = float(gaps.std(ddof=1))
    spread = 0.0 if spread <= 1e-12 * max(1.0, float(np.abs(gaps).max())) else spread  # rounding: one measurement
    return RowError(math.sqrt(1 / gaps.size + ratio) * spread, gaps.size - 1)


def _student(mean: float, error: float, freedom: float) -> tuple[float, float]:
    """Half the length of the interval, and the p value."""
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    if error == 0:
        return 0.0, 0.0 if mean else 1.0
    return half, 2 * float(stdtr(freedom, -abs(mean) / error))


def adjusted(p: Mapping[Key, float]) -> dict[Key, float]:
    """The p values of a family, adjusted as by Benjamini and Hochberg (1995): compare them with the level.

    >>> adjusted({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.04, 'b': 0.04}
    """
    order = sorted(p, key=lambda key: p[key])
    smallest, result = 1.0, {}
    for rank in range(len(order), 0, -1):
        smallest = min(smallest, p[order[rank - 1]] * len(order) / rank)
        result[order[rank - 1]] = smallest
    return {key: result[key] for key in order}


def judge(family: Mapping[Key, Difference], smallest: Mapping[Key, float]) -> dict[Key, Difference]:
    """The comparisons of one client with their strength.

    Args:
        family: its comparisons, federated methods x deciding metrics.
        smallest: the smallest effect of each that may be called clear.
    """
    corrected = adjusted({key: d.p for key, d in family.items() if d.p is not None})
    result = {}
    for key, difference in family.items():
        if key not in corrected:
            strength: Strength = "no verdict"
        elif corrected[key] <= 1 - LEVEL and abs(difference.mean) > smallest[key]:
            strength = "clear"
        else:
            strength = "likely" if difference.excludes_zero else "not shown"
        result[key] = difference._replace(strength=strength)
    return result


# Rows


class Influence(NamedTuple):
    """What each test row of one seed adds to the error of a metric: `numbers` [R] name the rows, `values` [R]; the fewest rows
    of a kind that it rests on (all rows; for an AUC those of the rarest class).
    """

    numbers: NDArray[np.int64]
    values: Vector
    fewest: int


def mean_influence(numbers: NDArray[np.int64], values: ArrayLike) -> Influence:
    """Of the mean of `values` [R], such as losses. Infinite errors below two rows."""
    given = np.asarray(values, dtype=float)
    return Influence(numbers, _centred(given), len(given))


def rmse_influence(numbers: NDArray[np.int64], squares: ArrayLike) -> Influence:
    """Of the root of the mean of squared errors `squares` [R]."""
    given = np.asarray(squares, dtype=float)
    root = math.sqrt(float(given.mean()))
    return Influence(numbers, _centred(given) / (2 * root) if root else np.zeros(len(given)), len(given))


def auc_influence(numbers: NDArray[np.int64], scores: ArrayLike, labels: ArrayLike) -> Influence | None:
    """Of the AUC of `scores` for `labels` [R] (DeLong's components): [R, 1] for two classes, where a high score means class 1;
    [R, C] for C classes, of the mean over the classes present against the rest. None if only one class is present.
    """
    table, classes = np.asarray(scores, dtype=float).reshape(len(numbers), -1), np.asarray(labels)
    present, counts = np.unique(classes, return_counts=True)
    if len(present) < 2:
        return None
    columns = {1: table[:, 0]} if table.shape[1] == 1 else {int(c): table[:, int(c)] for c in present}
    values = np.mean([_delong(column, classes == c) for c, column in columns.items()], axis=0)
    return Influence(numbers, values, int(counts.min()))


def _delong(scores: Vector, positive: NDArray[np.bool_]) -> Vector:
    """The placement of each row among those of the other class, centred and scaled within its class."""
    result = np.empty(len(scores))
    for mine, sign in ((positive, 1), (~positive, -1)):
        others = np.sort(scores[~mine])
        below = np.searchsorted(others, scores[mine], "left") + np.searchsorted(others, scores[mine], "right")
        result[mine] = sign * _centred(below / (2 * len(others)))
    return result


def _centred(values: Vector) -> Vector:
    """(v - mean) / sqrt(n (n - 1)): the sum of squares is the variance of the mean."""
    count = len(values)
    if count < 2:
        return np.full(count, math.inf)
    return np.asarray((values - values.mean()) / math.sqrt(count * (count - 1)), dtype=float)


def row_error(a: Sequence[Influence], b: Sequence[Influence]) -> RowError | None:
    """The error over test rows of the mean over seeds of a difference; None if it cannot be known.

    A row that several seeds test is one patient: what it adds in each of them is summed before it is squared. The degrees
    of freedom are those of the rarest kind of rows.

    Args:
        a: of one method, seed by seed.
        b: of the other, of the same seeds and rows in the same order.
    """
    require(
        len(a) == len(b), f"cannot pair {len(a)} seeds with {len(b)}; give both methods' influences of the same seeds"
    )
    if not a:
        return None
    with np.errstate(invalid="ignore"):
        gaps = np.concatenate([one.values - two.values for one, two in zip(a, b, strict=True)]) / len(a)
    _, patient = np.unique(np.concatenate([one.numbers for one in a]), return_inverse=True)
    error = float(np.sqrt((np.bincount(patient, weights=gaps) ** 2).sum()))
    fewest = min(one.fewest for one in a)
    return RowError(error, fewest - 1) if math.isfinite(error) and fewest > 1 else None


def over_clients(errors: Sequence[RowError | None]) -> RowError | None:
    """The error of the mean over clients, who share no patient: Welch's degrees of freedom. None if one is not known."""
    known = [e for e in errors if e is not None]
    if not known or len(known) < len(errors):
        return None
    squares = np.array([e.error**2 for e in known])
    total = float(squares.sum())
    freedoms = np.array([e.freedom for e in known])
    freedom = total**2 / float((squares**2 / freedoms).sum()) if total else float(freedoms.sum())
    return RowError(math.sqrt(total) / len(known), freedom)
