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

Vector = NDArray[np.float64]

AT_ONCE = 1 << 22
"""Pairs that are compared at once: 4 MiB of truth values."""
Z95 = 1.959963984540054


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


def kaplan_meier(rows: ArrayLike, *, censoring: bool = False) -> Curve:
    """The survival curve of rows [n, 3].

    Args:
        rows: entry, time, event.
        censoring: the curve of being followed, instead: its events are the ends of follow-up without an event. Where both happen at
            the same time, the event comes first.

    >>> curve = kaplan_meier([[0, 1, 1], [0, 2, 0], [0, 3, 1]])
    >>> [round(curve.at(t), 3) for t in (0.5, 1, 2, 3)]
    [1.0, 0.667, 0.667, 0.0]
    """
    entry, time, event = np.asarray(rows, dtype=float).reshape(-1, 3).T
    counted = (event > 0) != censoring
    times = np.unique(time[counted])
    falls = np.searchsorted(np.sort(time[counted]), times, side="right") - (
        np.searchsorted(np.sort(time[counted]), times, side="left")
    )
    left = np.searchsorted(np.sort(time), times, side="left")
    begun = np.searchsorted(np.sort(entry), times, side="left")
    at_risk = (begun - left).astype(float)
    if censoring:
        earlier = np.sort(time[event > 0])
        ended = np.searchsorted(earlier, times, side="right") - np.searchsorted(
            earlier, times, side="left"
        )
        at_risk = at_risk - ended
    with np.errstate(divide="ignore", invalid="ignore"):
        survival = np.cumprod(1 - falls / at_risk)
        variance = np.cumsum(falls / (at_risk * (at_risk - falls)))
    last = float(time.max()) if len(time) else 0.0
    return Curve(times, survival, variance, last)


class Concordance(NamedTuple):
    """Harrell's C.

    Attributes:
        value: share of comparable pairs in which the row with the earlier event has the higher risk; equal risks count half.
        influence: what each row adds to its error [n]: the sum of squares is the variance of the value.
        events: rows with an event that some pair compares.
    """

    value: float
    influence: Vector
    events: int


def concordance(
    rows: ArrayLike, risk: ArrayLike, folds: ArrayLike | None = None
) -> Concordance | None:
    """Harrell's C of a risk [n], and what each row adds to its error; None without a comparable pair.

    A pair is comparable if one row had its event while the other was at risk, and was not later followed to an event at that time.

    Args:
        rows: entry, time, event [n, 3].
        risk: higher where an event is expected earlier.
        folds: [n]: rows of other folds, which other models judge, make no pair.

    >>> found = concordance([[0, 1, 1], [0, 2, 1], [0, 3, 0]], [3.0, 1.0, 2.0])
    >>> round(found.value, 3), found.events
    (0.667, 2)
    """
    entry, time, event = np.asarray(rows, dtype=float).reshape(-1, 3).T
    score = np.asarray(risk, dtype=float)
    fold = np.zeros(len(time)) if folds is None else np.asarray(folds)
    cases = np.flatnonzero(event > 0)
    better, pairs = np.zeros(len(time)), np.zeros(len(time))
    used = 0
    step = max(1, AT_ONCE // max(1, len(time)))
    for low in range(0, len(cases), step):
        i = cases[low : low + step, None]
        later = (time > time[i]) | ((time == time[i]) & (event <= 0))
        comparable = later & (entry < time[i]) & (fold == fold[i])
        right = np.where(score[i] > score, 1.0, np.where(score[i] == score, 0.5, 0.0))
        right = right * comparable
        pairs[i[:, 0]] += comparable.sum(axis=1)
        pairs += comparable.sum(axis=0)
        better[i[:, 0]] += right.sum(axis=1)
        better += right.sum(axis=0)
        used += int(comparable.any(axis=1).sum())
    total = pairs.sum() / 2
    if not total:
        return None
    value = float(better.sum() / 2 / total)
    return Concordance(value, (better - value * pairs) / total, used)


def brier_at(rows: ArrayLike, survival: ArrayLike, horizon: float) -> float | None:
    """The Brier score at a horizon: squared errors of the predicted survival, rows weighed by the inverse of being followed so long.

    Rows that entered late do not count in it. None where nobody was at risk at the horizon.

    Args:
        rows: entry, time, event [n, 3].
        survival: predicted probability of no event until the horizon [n].
        horizon: in the unit of times.

    >>> brier_at([[0, 1, 1], [0, 3, 0]], [0.2, 0.9], 2.0)
    0.025
    """
    table = np.asarray(rows, dtype=float).reshape(-1, 3)
    from_start = table[:, 0] <= 0
    table, predicted = table[from_start], np.asarray(survival, dtype=float)[from_start]
    _, time, event = table.T
    if not len(table) or not (time >= horizon).any():
        return None
    followed = kaplan_meier(table, censoring=True)
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
    return score if math.isfinite(score) else None


def calibration_at(
    rows: ArrayLike, survival: ArrayLike, horizon: float
) -> float | None:
    """How far the mean predicted survival at a horizon is from that of Kaplan and Meier; None where nobody was at risk then.

    Args:
        rows: as for `brier_at`.
        survival: as for `brier_at`.
        horizon: as for `brier_at`.

    >>> round(calibration_at([[0, 1, 1], [0, 3, 0]], [0.4, 0.8], 2.0), 6)
    0.1
    """
    seen = kaplan_meier(rows).at(horizon)
    if math.isnan(seen):
        return None
    return abs(seen - float(np.mean(np.asarray(survival, dtype=float))))


def as_rows(labels: Any) -> Vector:
    """Labels of time to event (a tensor or an array [n, 3]) as float64 rows."""
    return np.asarray(labels, dtype=np.float64).reshape(-1, 3)
