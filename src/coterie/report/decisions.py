"""What a model of two classes is worth for decisions, and whether its risks come true. For physicians: docs/howto/read-report.md.

- *Net benefit* at a threshold t (Vickers and Elkin, Medical Decision Making 2006): patients per 100 who are treated rightly,
  minus those who are treated in vain, each of whom counts t / (1 - t): t says how many one is willing to treat for one who
  needs it. Beside it stand treating everybody, and nobody, whose net benefit is 0.
- *Missed*: patients per 100 who need it and are not treated.
- *Calibration slope and intercept*: of a logistic regression of the outcome on the logit of the risk; 1 and 0 are best. A
  slope below 1 says that risks are too extreme. The intercept is found with the slope held at 1.
- *Observed over expected*: the share of positives over the mean risk; 1 is best.

All are of tested rows, whose model has not seen them: mean over seeds, with the error over patients as in `compute/outcomes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.compute.outcomes import Influence, Rows, count_distinct, mean_influence
from coterie.report.results import Results
from coterie.report.statistics import Difference
from coterie.report.text import MISSING, is_zero, percent, printable, without_zero

Vector = NDArray[np.float64]

PER = 100
CURVE = np.round(np.linspace(0.01, 0.99, 50), 3)
"""Thresholds of a decision curve."""
STEPS, TOLERANCE = 30, 1e-10
STEEPEST = 20.0
"""A calibration slope beyond this has no maximum: the risks part the classes."""

MEASURES: Mapping[str, str] = {
    "net benefit": "net benefit per 100",
    "over all": "more than treating all",
    "missed": "missed per 100",
    "slope": "calibration slope",
    "intercept": "calibration intercept",
    "O:E": "observed over expected",
}
"""Titles of the measures in the report and the card."""


class Decision(NamedTuple):
    """The threshold at which decisions of one client are judged, and whether the user named it."""

    threshold: float
    named: bool

    @property
    def words(self) -> str:
        """`20 %`, or `46 % (the share of cases here)`."""
        text = percent(round(self.threshold, 3))
        if self.named:
            return text
        return f"{text} (the share of cases here)"


def decision(results: Results, client: str) -> Decision | None:
    """The threshold that the user named, or else the prevalence at the client; None without rows of both of two classes."""
    share = results.comparisons.outcomes.positive(results.against or "", client)
    if share is None or not 0 < share < 1:
        return None
    if results.decision_threshold is not None:
        return Decision(results.decision_threshold, True)
    return Decision(share, False)


def measures(
    results: Results, method: str, client: str, threshold: float
) -> dict[str, Difference]:
    """The measures of a method at a client by name, mean over seeds, with intervals; those that are undefined are left out.

    Args:
        results: Results of a run.
        method: Label of a method.
        client: Its name.
        threshold: The risk from which a patient is treated, in (0, 1).
    """
    by_seed = results.comparisons.outcomes.rows(method, client)
    tested = [rows for rows in by_seed.values() if rows.risks is not None]
    if not tested or len(tested) < len(by_seed):
        return {}
    influences: dict[str, Callable[[Rows], Influence | None]] = {
        "net benefit": partial(_net_benefit, threshold=threshold),
        "over all": partial(_more_than_treating_all, threshold=threshold),
        "missed": partial(_missed, threshold=threshold),
        "slope": _slope,
        "intercept": _intercept,
        "O:E": _observed_over_expected,
    }
    found = {}
    for name, influence_of in influences.items():
        of_seeds = [influence_of(rows) for rows in tested]
        finite = [influence for influence in of_seeds if influence is not None]
        if len(finite) < len(of_seeds):
            continue
        values = np.array([influence.metric for influence in finite])
        score = results.comparisons.score_of(client, name, values, of_seeds)
        if score is not None:
            found[name] = score
    return found


class Table(NamedTuple):
    """What joining changes in decisions at one client: a row for each measure.

    Attributes:
        at: The threshold in words.
        columns: Training alone, the method that speaks, treating everybody and nobody.
        rows: Title of each measure and its texts, a value and an interval by column; an empty interval where there is none.
    """

    at: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def table(results: Results, client: str) -> Table | None:
    """The measures of training alone and of the method that speaks, beside treating everybody and nobody; None without two classes."""
    at = decision(results, client)
    if at is None:
        return None
    methods = [m for m in (results.baseline, results.primary) if m is not None]
    found = {m: measures(results, m, client, at.threshold) for m in methods}
    methods = [m for m in methods if found[m]]
    if not methods:
        return None
    rival = results.against or ""
    share = results.comparisons.outcomes.positive(rival, client) or 0.0
    everybody = PER * treat_all(share, at.threshold)
    without_model = {
        "net benefit": (everybody, 0.0),
        "over all": (0.0, -everybody),
        "missed": (0.0, PER * share),
    }
    rows = []
    for name, title in MEASURES.items():
        cells = [_cell(name, found[m].get(name)) for m in methods]
        values = without_model.get(name, (math.nan, math.nan))
        cells += [(text_of(name, value), "") for value in values]
        rows.append((title, tuple(cells)))
    columns = (*(printable(m) for m in methods), "treat all", "treat none")
    return Table(at.words, columns, tuple(rows))


def treat_all(share: float, threshold: float) -> float:
    """Net benefit per patient of treating everybody, where `share` of them need it.

    >>> round(treat_all(0.3, 0.3), 6), round(treat_all(0.3, 0.1), 3)
    (0.0, 0.222)
    """
    return share - (1 - share) * threshold / (1 - threshold)


def decision_curve(results: Results, method: str, client: str) -> Vector | None:
    """Net benefit per 100 patients at each threshold of `CURVE`, mean over seeds; None without rows of two classes."""
    tested = results.comparisons.outcomes.rows(method, client).values()
    curves = []
    for rows in tested:
        if rows.risks is None:
            return None
        benefits = []
        for threshold in CURVE:
            treated = _treated(rows, threshold)
            benefits.append(rows.mean(_benefit(rows, treated, threshold)))
        curves.append(benefits)
    if not curves:
        return None
    per_patient: Vector = np.mean(curves, axis=0)
    return PER * per_patient


def text_of(name: str, value: float) -> str:
    """A measure with as many digits as it tells: of patients per 100 one decimal, of calibration two.

    >>> text_of("missed", 11.5498), text_of("slope", 0.861), text_of("O:E", float("nan"))
    ('11.5', '.86', '-')
    """
    if not math.isfinite(value):
        return MISSING
    digits = 1 if name in ("net benefit", "over all", "missed") else 2
    text = f"{abs(value):.{digits}f}"
    if is_zero(text):
        return "0"
    sign = "−" if value < 0 else ""
    return sign + without_zero(text)


def interval_of(name: str, score: Difference) -> str:
    """`19.4 to 32.7`; empty where there is no interval."""
    if score.low is None or score.high is None:
        return ""
    return f"{text_of(name, score.low)} to {text_of(name, score.high)}"


def _cell(name: str, score: Difference | None) -> tuple[str, str]:
    if score is None:
        return MISSING, ""
    return text_of(name, score.mean), interval_of(name, score)


# Rows


def _cases(rows: Rows) -> NDArray[np.bool_]:
    return np.asarray(rows.labels == 1)


def _treated(rows: Rows, threshold: float) -> NDArray[np.bool_]:
    return np.asarray(np.asarray(rows.risks) >= threshold)


def _benefit(rows: Rows, treated: NDArray[np.bool_], threshold: float) -> Vector:
    """What each row adds to the net benefit: 1, minus the odds of the threshold, or 0."""
    odds = threshold / (1 - threshold)
    cases = _cases(rows)
    rightly, in_vain = treated & cases, treated & ~cases
    return np.asarray(rightly - odds * in_vain, dtype=float)


def _net_benefit(rows: Rows, threshold: float) -> Influence | None:
    treated = _treated(rows, threshold)
    return mean_influence(
        rows.units, PER * _benefit(rows, treated, threshold), rows.weights
    )


def _more_than_treating_all(rows: Rows, threshold: float) -> Influence | None:
    treated = _treated(rows, threshold)
    of_all = _benefit(rows, np.ones_like(treated), threshold)
    gained = _benefit(rows, treated, threshold) - of_all
    return mean_influence(rows.units, PER * gained, rows.weights)


def _missed(rows: Rows, threshold: float) -> Influence | None:
    missed = _cases(rows) & ~_treated(rows, threshold)
    return mean_influence(rows.units, PER * missed, rows.weights)


def _observed_over_expected(rows: Rows) -> Influence | None:
    """The ratio of two means: each row adds (y - ratio x risk) / mean risk."""
    risks, cases = np.asarray(rows.risks), _cases(rows)
    expected = rows.mean(risks)
    ratio = rows.mean(cases) / expected
    values = (cases - ratio * risks) / expected
    return mean_influence(rows.units, values, rows.weights)._replace(metric=ratio)


def _slope(rows: Rows) -> Influence | None:
    logits = _logits(rows)
    if float(np.ptp(logits)) < TOLERANCE:
        return None
    design = np.column_stack([logits, np.ones_like(logits)])
    return _logistic(rows, design, np.zeros_like(logits), np.array([1.0, 0.0]))


def _intercept(rows: Rows) -> Influence | None:
    logits = _logits(rows)
    return _logistic(rows, np.ones((len(logits), 1)), logits, np.zeros(1))


def _logits(rows: Rows) -> Vector:
    return np.asarray(rows.outputs, dtype=float)[:, 0]


def _logistic(
    rows: Rows, design: Vector, offset: Vector, start: Vector
) -> Influence | None:
    """The first coefficient of a logistic regression on `design` [R, k] beside `offset` [R], by Newton's method.

    What a row adds to it is the first entry of H^-1 x (y - p), with the curvature H of all rows (the sandwich estimate).
    """
    cases, beta = _cases(rows).astype(float), start
    weights = np.ones(len(cases)) if rows.weights is None else rows.weights
    if not 0 < cases.mean() < 1:
        return None
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-np.clip(offset + design @ beta, -700, 700)))
        curvature = (design.T * (weights * p * (1 - p))) @ design
        if np.linalg.cond(curvature) > 1 / TOLERANCE:
            return None
        step = np.linalg.solve(curvature, design.T @ (weights * (cases - p)))
        beta = beta + step
        if np.abs(beta).max() > STEEPEST:
            return None
        if np.abs(step).max() < TOLERANCE:
            break
    else:
        return None
    scores = design * (cases - p)[:, None]
    added = weights.sum() * np.linalg.solve(curvature, scores.T)[0]
    if count_distinct(rows.units) < 2 or not math.isfinite(float(beta[0])):
        return None
    influence = mean_influence(rows.units, added, rows.weights)
    return influence._replace(metric=float(beta[0]))
