"""Statistics of time to event on rows that were seen: Kaplan-Meier, Harrell's C, and Brier score and calibration at a horizon.

Needs numpy alone: reports read it. Rows are `entry`, `time` and `event` [n, 3]; a row is at risk at t if entry < t <= time.
Times are in any unit.

Sources: E. Kaplan, P. Meier, JASA 53 (1958); F. Harrell et al., "Evaluating the yield of medical tests", JAMA 247 (1982); E. Graf et
al., "Assessment and comparison of prognostic classification schemes for survival data", Statistics in Medicine 18 (1999).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.errors import require

Vector = NDArray[np.float64]

AT_ONCE = 1 << 22
"""Pairs that are compared at once: 4 MiB of truth values."""
Z95 = 1.959963984540054
ROUNDING = 1e-6
"""Added to effective rows before they are rounded down: of equal weights they are the rows."""
TINY = float(np.finfo(float).tiny)


class Curve(NamedTuple):
    """A survival curve by Kaplan and Meier.

    Attributes:
        times: at which it falls, ascending [m].
        survival: from each of them on [m].
        variance: of log survival there, by Greenwood [m]; infinite where nobody is left.
        last: until when somebody was at risk.
    """

    times: Vector
    survival: Vector
    variance: Vector
    last: float

    def at(self, time: float) -> float:
        """The probability of no event until `time`; NaN where nobody was at risk then."""
        if time > self.last:
            return math.nan
        place = int(np.searchsorted(self.times, time, side="right"))
        return 1.0 if place == 0 else float(self.survival[place - 1])

    def interval(self, time: float) -> tuple[float, float]:
        """The 95 % interval at `time`, on the scale of log(-log S), so that it stays within 0 and 1; NaN where it is not known."""
        place = int(np.searchsorted(self.times, time, side="right"))
        if time > self.last or place == 0:
            return math.nan, math.nan
        survival, variance = self.survival[place - 1], self.variance[place - 1]
        if not 0 < survival < 1 or not math.isfinite(variance):
            return math.nan, math.nan
        half = Z95 * math.sqrt(variance) / abs(math.log(survival))
        return float(survival ** math.exp(half)), float(survival ** math.exp(-half))


def effective_rows(weights: ArrayLike) -> float:
    """The number of rows of equal weight that say as much: (sum w)^2 / sum w^2 (Kish); 0 where nothing weighs.

    >>> effective_rows([1.0, 1.0, 2.0]).__round__(3)
    2.667
    """
    values = np.asarray(weights, dtype=float)
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / squares if squares else 0.0


def _cumulated(values: Vector, weights: Vector, at: Vector, side: Any) -> Vector:
    """The weight [m] of the values [n] that lie below each of `at` [m], or up to it where `side` is right."""
    order = np.argsort(values, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    return np.asarray(sums[np.searchsorted(values[order], at, side=side)])


def kaplan_meier(
    rows: ArrayLike, *, censoring: bool = False, weights: ArrayLike | None = None
) -> Curve:
    """The survival curve of rows [n, 3].

    Args:
        rows: entry, time, event.
        censoring: the curve of being followed, instead: its events are the ends of follow-up without an event. Where both happen at
            the same time, the event comes first.
        weights: of rows [n]; None: 1 each. The variance is that of as many effective rows.

    >>> curve = kaplan_meier([[0, 1, 1], [0, 2, 0], [0, 3, 1]])
    >>> [round(curve.at(t), 3) for t in (0.5, 1, 2, 3)]
    [1.0, 0.667, 0.667, 0.0]
    """
    table = np.asarray(rows, dtype=float).reshape(-1, 3)
    w = np.ones(len(table))
    if weights is not None:
        w = np.asarray(weights, dtype=float)
        # Of a row that weighs nothing neither time nor event is seen.
        table, w = table[w > 0], w[w > 0]
        w = w * effective_rows(w) / max(float(w.sum()), TINY)
    entry, time, event = table.T
    counted = (event > 0) != censoring
    times = np.unique(time[counted])

    def at_times(chosen: NDArray[np.bool_]) -> Vector:
        """Weight of the chosen rows whose time is each of `times`."""
        values, own = time[chosen], w[chosen]
        return _cumulated(values, own, times, "right") - _cumulated(
            values, own, times, "left"
        )

    falls = at_times(counted)
    left = _cumulated(time, w, times, "left")
    at_risk = _cumulated(entry, w, times, "left") - left
    if censoring:
        at_risk = at_risk - at_times(event > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        survival = np.asarray(np.cumprod(1 - falls / at_risk), dtype=np.float64)
        variance = np.cumsum(falls / (at_risk * (at_risk - falls)))
    last = float(time.max()) if len(time) else 0.0
    return Curve(times, survival, variance, last)


class Concordance(NamedTuple):
    """Harrell's C.

    Attributes:
        value: share of comparable pairs in which the row with the earlier event has the higher risk; equal risks count half.
        influence: what each row adds to its error [n]: the sum of squares is the variance of the value.
        events: rows with an event that some pair compares; of rows with weights effective ones.
    """

    value: float
    influence: Vector
    events: int


def concordance(
    rows: ArrayLike,
    risk: ArrayLike,
    folds: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    of_cases: ArrayLike | None = None,
) -> Concordance | None:
    """Harrell's C of a risk [n], and what each row adds to its error; None without a comparable pair.

    A pair is comparable if one row had its event while the other was at risk, and was not later followed to an event at that time.

    Args:
        rows: entry, time, event [n, 3].
        risk: higher where an event is expected earlier.
        folds: [n]: rows of other folds, which other models judge, make no pair.
        weights: of rows [n], a pair counts the product of both; None: 1 each.
        of_cases: [n], by which pairs count, too, whose row with the event it is; None: 1 each.

    >>> found = concordance([[0, 1, 1], [0, 2, 1], [0, 3, 0]], [3.0, 1.0, 2.0])
    >>> round(found.value, 3), found.events
    (0.667, 2)
    """
    entry, time, event = np.asarray(rows, dtype=float).reshape(-1, 3).T
    score = np.asarray(risk, dtype=float)
    fold = np.zeros(len(time)) if folds is None else np.asarray(folds)
    cases = np.flatnonzero(event > 0)
    better, pairs = np.zeros(len(time)), np.zeros(len(time))
    w = np.ones(len(time)) if weights is None else np.asarray(weights, dtype=float)
    factors = w if of_cases is None else w * np.asarray(of_cases, dtype=float)
    used: list[Vector] = []
    step = max(1, AT_ONCE // max(1, len(time)))
    for low in range(0, len(cases), step):
        i = cases[low : low + step, None]
        later = (time > time[i]) | ((time == time[i]) & (event <= 0))
        comparable = later & (entry < time[i]) & (fold == fold[i])
        right = np.where(score[i] > score, 1.0, np.where(score[i] == score, 0.5, 0.0))
        counts = comparable * (factors[i] * w)
        right = right * counts
        pairs[i[:, 0]] += counts.sum(axis=1)
        pairs += counts.sum(axis=0)
        better[i[:, 0]] += right.sum(axis=1)
        better += right.sum(axis=0)
        used.append(w[i[:, 0]][comparable.any(axis=1)])
    total = pairs.sum() / 2
    if not total:
        return None
    value = min(1.0, float(better.sum() / 2 / total))
    events = math.floor(effective_rows(np.concatenate(used)) + ROUNDING)
    return Concordance(value, (better - value * pairs) / total, events)


def uno(
    rows: ArrayLike, risk: ArrayLike, weights: ArrayLike | None = None
) -> float | None:
    """Uno's C: Harrell's, whose pairs count by the inverse square of being followed until the event, so that it does not depend on
    how follow-up ends; None without a comparable pair.

    Source: H. Uno et al., "On the C-statistics for evaluating overall adequacy of risk prediction procedures with censored survival
    data", Statistics in Medicine 30 (2011).

    Args:
        rows: entry, time, event [n, 3].
        risk: higher where an event is expected earlier [n].
        weights: of rows [n]; None: 1 each.

    >>> uno([[0, 1, 1], [0, 2, 0], [0, 3, 1], [0, 4, 0]], [3.0, 1.0, 2.0, 2.5])
    0.5714285714285714
    """
    table = np.asarray(rows, dtype=float).reshape(-1, 3)
    followed = kaplan_meier(table, censoring=True, weights=weights)
    before = np.searchsorted(followed.times, table[:, 1], side="left")
    share = np.concatenate([[1.0], followed.survival])[before]
    inverse = np.divide(1.0, share**2, out=np.zeros(len(share)), where=share > 0)
    found = concordance(table, risk, weights=weights, of_cases=inverse)
    return None if found is None else found.value


def brier_at(
    rows: ArrayLike,
    survival: ArrayLike,
    horizon: float,
    weights: ArrayLike | None = None,
) -> float | None:
    """The Brier score at a horizon: squared errors of the predicted survival, rows weighed by the inverse of being followed so long.

    Rows that entered late do not count in it. None where nobody was at risk at the horizon.

    Args:
        rows: entry, time, event [n, 3].
        survival: predicted probability of no event until the horizon [n].
        horizon: in the unit of times.
        weights: of rows [n]; None: 1 each.

    >>> brier_at([[0, 1, 1], [0, 3, 0]], [0.2, 0.9], 2.0)
    0.025
    """
    table = np.asarray(rows, dtype=float).reshape(-1, 3)
    counted = table[:, 0] <= 0
    if weights is not None:
        counted &= np.asarray(weights, dtype=float) > 0
    table, predicted = table[counted], np.asarray(survival, dtype=float)[counted]
    own = None if weights is None else np.asarray(weights, dtype=float)[counted]
    _, time, event = table.T
    if not len(table) or not (time >= horizon).any():
        return None
    followed = kaplan_meier(table, censoring=True, weights=own)
    died = (time <= horizon) & (event > 0)
    # Follow-up that is cut at the horizon ends there without an event: who was seen until then was alive.
    alive = (time > horizon) | ((time == horizon) & (event <= 0))
    # Who is followed to an event at t was followed until just before t.
    before = np.searchsorted(followed.times, time, side="left")
    share = np.concatenate([[1.0], followed.survival])
    until_horizon = share[np.searchsorted(followed.times, horizon, side="left")]
    errors = np.zeros(len(table))
    with np.errstate(divide="ignore"):
        errors[died] = predicted[died] ** 2 / share[before[died]]
        errors[alive] = (1 - predicted[alive]) ** 2 / until_horizon
    score = float(errors.mean())
    if own is not None:
        score = float(own @ errors / own.sum())
    return score if math.isfinite(score) else None


def integrated_brier(
    rows: ArrayLike,
    survival: ArrayLike,
    times: ArrayLike,
    weights: ArrayLike | None = None,
) -> float | None:
    """The mean Brier score between the first and the last of some times: that at each of them, joined by straight lines.

    Of Graf et al. it is the integrated score with uniform weight. None where nobody was at risk at one of the times.

    Args:
        rows: as for `brier_at`.
        survival: predicted probability of no event until each time [n, T].
        times: ascending [T], two or more, in the unit of the rows.
        weights: as for `brier_at`.

    Raises:
        InputError: One time alone, or times that do not ascend.

    >>> rows = [[0, 1, 1], [0, 3, 0]]
    >>> round(integrated_brier(rows, [[0.4, 0.2], [0.95, 0.9]], [1.0, 2.0]), 6)
    0.053125
    """
    at, predicted = np.asarray(times, dtype=float), np.asarray(survival, dtype=float)
    widths = np.diff(at)
    require(
        len(widths) > 0 and bool((widths > 0).all()),
        "an integrated Brier score needs two times or more that ascend; give them in their order",
    )
    scores = []
    for time, column in zip(at.tolist(), predicted.T, strict=True):
        score = brier_at(rows, column, time, weights)
        if score is None:
            return None
        scores.append(score)
    heights = np.array(scores)
    area = float(((heights[1:] + heights[:-1]) / 2) @ widths)
    return area / float(widths.sum())


def calibration_at(
    rows: ArrayLike,
    survival: ArrayLike,
    horizon: float,
    weights: ArrayLike | None = None,
) -> float | None:
    """How far the mean predicted survival at a horizon is from that of Kaplan and Meier; None where nobody was at risk then.

    Args:
        rows: as for `brier_at`.
        survival: as for `brier_at`.
        horizon: as for `brier_at`.
        weights: as for `brier_at`.

    >>> round(calibration_at([[0, 1, 1], [0, 3, 0]], [0.4, 0.8], 2.0), 6)
    0.1
    """
    seen = kaplan_meier(rows, weights=weights).at(horizon)
    if math.isnan(seen):
        return None
    predicted = np.asarray(survival, dtype=float)
    if weights is None:
        return abs(seen - float(predicted.mean()))
    own = np.asarray(weights, dtype=float)
    return abs(seen - float(own @ predicted / own.sum()))


def as_rows(labels: Any) -> Vector:
    """Labels of time to event (a tensor or an array [n, 3]) as float64 rows."""
    return np.asarray(labels, dtype=np.float64).reshape(-1, 3)
