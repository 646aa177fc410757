"""Predictions for single test rows, and the error over these rows of a difference between two models.

Needs numpy alone: reports read it, and so does a site, which tells nothing but the error (`sites/comparisons.py`).

The question is what other patients would have given. Patients are resampled once and used for all seeds; the statistic is the mean
over seeds. `row_error` is the limit of many such resamples, computed without drawing any (the infinitesimal jackknife, Efron 1982; for
an AUC DeLong's, DeLong and Clarke-Pearson 1988); `error_by_resampling` draws them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.errors import InputError, require
from coterie.compute.survival import ROUNDING, concordance, effective_rows

CONSTANT = "constant"
"""In place of a method: the loss of always predicting a client's own training rows."""
BOOSTED = "boosted"
"""In place of a method: boosted trees that each client fits to its own training rows (`compute/boosted.py`)."""
LEVEL = 0.95
DRAWS = 1000
LEAST_EFFECTIVE = 0.25
"""Share of rows that must be effective for a word: below, intervals of 95 % cover as few as 83 % (11 tables, weights of all kinds)."""

Vector = NDArray[np.float64]


class Influence(NamedTuple):
    """The part of each test row of one seed in the error of a metric: `numbers` [R] name the rows (the patients, where one has
    several rows), `values` [R]; the fewest of a kind that it rests on (all; for an AUC those of the rarest class); and the
    metric itself.
    """

    numbers: NDArray[np.int64]
    values: Vector
    fewest: int
    metric: float = math.nan


Pairs = Sequence[tuple[Influence, Influence]]
"""Those of two methods, seed by seed, of the same rows in the same order."""


class RowError(NamedTuple):
    """Standard error of a paired difference over test rows, its degrees of freedom, and its p value where a site has told one."""

    error: float
    freedom: float
    p: float | None = None


class Rows(NamedTuple):
    """The test rows of one client under one method and seed.

    Attributes:
        numbers: [R] which rows of the client they are.
        loss, constant: [R] loss of the model and of the constant prediction.
        labels, outputs: [R] and [R, C]; None where a row has more than one label.
        threshold: the risk of class 1 that suits the client's validation rows best; NaN where none was chosen.
        folds: [R] in which fold each was tested; a model ranks the rows of its own fold alone. None: one model, no folds.
        patients: [R] whose rows they are, where one has several; None: each row is a patient.
        boosted: [R] loss of the client's own boosted trees; None unless this method is the one that trains it alone.
        marks: [R, C] 0 or 1 for each of several labels; None unless a row has several.
        followup: [R, 3] entry, time and event, times in horizons; None unless the label is a time to event.
        hazards: [R, K] predicted cumulative hazard at the end of each interval; likewise.
        counts: [R, 2] events that are usual in such an exposure, and those counted; None unless the label is a count with exposure.
        weights: [R] by which each row counts, of mean 1 over all rows of the client; None: once. Losses are without them.
    """

    numbers: NDArray[np.int64]
    loss: Vector
    constant: Vector
    labels: NDArray[Any] | None
    outputs: Vector | None
    threshold: float = math.nan
    folds: NDArray[np.int64] | None = None
    patients: NDArray[np.int64] | None = None
    boosted: Vector | None = None
    marks: NDArray[np.int8] | None = None
    followup: Vector | None = None
    hazards: Vector | None = None
    counts: Vector | None = None
    weights: Vector | None = None

    def effective(self, members: NDArray[np.bool_] | None = None) -> int:
        """Return how many patients (rows, where each is one) are among `members` [R], or in all; with weights effective ones."""
        return count_effective(self.units, self.weights, members)

    @property
    def is_uneven(self) -> bool:
        """Whether weights leave less than a quarter of the rows, or patients (`LEAST_EFFECTIVE`)."""
        if self.weights is None:
            return False
        return self.effective() < LEAST_EFFECTIVE * count_distinct(self.units)

    def weights_of(self, members: NDArray[np.bool_]) -> Vector | None:
        """Return the weights of the rows `members` [R]; None where all count alike."""
        return None if self.weights is None else self.weights[members]

    def mean(self, values: ArrayLike) -> float:
        """Return the mean of values [R] over rows, by their weights."""
        return float(np.average(np.asarray(values, dtype=float), weights=self.weights))

    @property
    def units(self) -> NDArray[np.int64]:
        """Return what is drawn by chance, by number [R]: the patients, or the rows themselves."""
        return self.numbers if self.patients is None else self.patients

    @property
    def risks(self) -> Vector | None:
        """The predicted probability of class 1 [R]; None unless there are two classes and one logit."""
        if not self.classes or self.outputs is None or self.outputs.shape[1] != 1:
            return None
        return np.asarray(
            1 / (1 + np.exp(-np.clip(self.outputs[:, 0].astype(float), -700, 700)))
        )

    @property
    def classes(self) -> bool:
        """Return True if labels are classes and outputs are logits."""
        return self.labels is not None and np.issubdtype(self.labels.dtype, np.integer)

    @property
    def rarest(self) -> int:
        """Rows (patients, where one has several) of the rarest class; 0 if there is only one, or labels are no classes.

        Of several labels, the rarer rows of the label of which that is most: the mean loss rests on its commonest labels. In
        simulations with 3 to 5 labels, of .5 to 30 % of 30 to 400 rows, intervals of so many degrees of freedom covered .95 to 1.
        Of time to event and of counts, the rows with an event.
        """
        if self.followup is not None:
            return self.effective(self.followup[:, 2] > 0)
        if self.counts is not None:
            return self.effective(self.counts[:, 1] > 0)
        if self.marks is not None:
            of_labels = [
                min(self.effective(column == value) for value in (0, 1))
                for column in self.marks.T
            ]
            return max(of_labels, default=0)
        if self.labels is None or not self.classes:
            return 0
        counts = [
            self.effective(np.asarray(self.labels == c)) for c in np.unique(self.labels)
        ]
        return min(counts) if len(counts) > 1 else 0

    @property
    def half_deviance(self) -> float | None:
        """Half the mean Poisson deviance of a constant rate; None unless the label is a count with exposure."""
        if self.counts is None:
            return None
        usual, seen = self.counts.T
        with np.errstate(divide="ignore", invalid="ignore"):
            best = seen - np.where(seen > 0, seen * np.log(seen / usual), 0.0)
        return self.mean(self.constant - best)

    @property
    def scores(self) -> Vector:
        """Return what ranks the rows: the logit [R, 1], or the probability of each class [R, C]."""
        if self.outputs is None or self.outputs.shape[1] == 1:
            return (
                np.zeros((len(self.loss), 1)) if self.outputs is None else self.outputs
            )
        powers = np.exp(self.outputs - self.outputs.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    @property
    def _predictions(self) -> NDArray[np.int64]:
        """The class of the highest probability."""
        scores = self.scores
        return np.asarray(
            scores[:, 0] >= 0 if scores.shape[1] == 1 else scores.argmax(axis=1),
            dtype=np.int64,
        )

    @property
    def squares(self) -> Vector | None:
        """Squared errors of a regression in the unit of the label."""
        if self.labels is None or self.outputs is None or self.classes:
            return None
        return np.asarray((self.outputs[:, 0].astype(float) - self.labels) ** 2)

    def influence(self, metric: str, instead: str = "") -> Influence | None:
        """Return what each row adds to the error of a deciding metric, or None.

        Args:
            metric: Its name.
            instead: `CONSTANT` or `BOOSTED`: of that prediction and not of the model. Their losses alone are known.
        """
        if instead == BOOSTED:
            return self._influence_of_boosted(metric)
        if metric == "loss":
            return self._mean(self.constant if instead else self.loss)
        if instead:
            return None
        if metric == "accuracy" and self.classes and self.outputs is not None:
            return self._mean(self._predictions == self.labels)
        if metric == "rmse" and self.squares is not None:
            return rmse_influence(self.units, self.squares, self.weights)
        if (
            metric == "auc"
            and self.classes
            and self.labels is not None
            and self.outputs is not None
        ):
            return auc_influence(
                self.units, self.scores, self.labels, self.folds, self.weights
            )
        if metric == "c_index":
            return self._influence_on_c()
        if metric == "mse" and self.squares is not None and self.labels is not None:
            variance = self._variance(self.labels)
            return self._mean(self.squares / variance) if variance else None
        return None

    def _mean(self, values: ArrayLike) -> Influence:
        return mean_influence(self.units, values, self.weights)

    def _variance(self, labels: NDArray[Any]) -> float:
        if self.weights is None:
            return float(labels.var())
        return self.mean((labels - self.mean(labels)) ** 2)

    def _influence_on_c(self) -> Influence | None:
        if self.followup is None or self.hazards is None:
            return None
        found = concordance(
            self.followup, self.hazards[:, -1], self.folds, self.weights
        )
        if found is None:
            return None
        return Influence(self.units, found.influence, found.events, found.value)

    def _influence_of_boosted(self, metric: str) -> Influence | None:
        if self.boosted is None:
            return None
        if metric == "loss":
            return self._mean(self.boosted)
        squares, labels = self.squares, self.labels
        if metric != "mse" or squares is None or labels is None:
            return None
        # Losses are squared errors of the standardised label: one factor leads to the unit of the label.
        loss, variance = float(self.loss.sum()), self._variance(labels)
        if not (loss and variance):
            return None
        factor = float(squares.sum()) / loss
        return self._mean(factor * self.boosted / variance)


def join_folds(folds: Sequence[Rows]) -> Rows:
    """Return the rows of all folds of one seed; a single one as it is."""
    if len(folds) == 1:
        return folds[0]
    labels, outputs, patients, boosted, marks, followup, hazards, counts, weights = (
        np.concatenate([getattr(f, name) for f in folds])
        if all(getattr(f, name) is not None for f in folds)
        else None
        for name in (
            "labels",
            "outputs",
            "patients",
            "boosted",
            "marks",
            "followup",
            "hazards",
            "counts",
            "weights",
        )
    )
    return Rows(
        np.concatenate([f.numbers for f in folds]),
        np.concatenate([f.loss for f in folds]),
        np.concatenate([f.constant for f in folds]),
        labels,
        outputs,
        float(np.mean([f.threshold for f in folds])),
        np.concatenate([np.full(len(f.loss), i) for i, f in enumerate(folds)]),
        patients,
        boosted,
        marks,
        followup,
        hazards,
        counts,
        weights,
    )


def pair_influences(
    rows_a: Mapping[int, Rows],
    rows_b: Mapping[int, Rows],
    metric: str,
    *,
    instead: str = "",
) -> Pairs:
    """Return what the rows of a client add to the error of a difference, by seed; the second may be of `CONSTANT` or `BOOSTED`."""
    pairs = [
        (rows_a[s].influence(metric), rows_b[s].influence(metric, instead))
        for s in rows_a
        if s in rows_b
    ]
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def count_distinct(numbers: NDArray[np.int64]) -> int:
    """Return how many of these numbers differ; of few rows `np.unique` takes three times as long."""
    ordered = np.sort(numbers)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + min(1, len(ordered))


def count_effective(
    numbers: NDArray[np.int64],
    weights: Vector | None,
    members: NDArray[np.bool_] | None = None,
) -> int:
    """Return how many distinct numbers [R] are among `members` [R], or in all; with weights [R] (sum w)^2 / sum w^2 of these."""
    if members is not None:
        numbers = numbers[members]
    if weights is None:
        return count_distinct(numbers)
    own = weights if members is None else weights[members]
    _, patient = np.unique(numbers, return_inverse=True)
    of_patients = np.bincount(patient, own)
    return math.floor(effective_rows(of_patients) + ROUNDING)


def mean_influence(
    numbers: NDArray[np.int64], values: ArrayLike, weights: Vector | None = None
) -> Influence:
    """Return the influence of rows on the mean of `values` [R], such as losses. Infinite errors below two rows, or patients.

    With weights [R] it is the mean by them, and its variance n / (n - 1) sum (w / sum w)^2 (value - mean)^2 over the n rows that
    weigh something.
    """
    losses = np.asarray(values, dtype=float)
    return Influence(
        numbers,
        _centre(losses, weights) * _cluster_factor(numbers[_weighs(losses, weights)]),
        count_effective(numbers, weights),
        float(np.average(losses, weights=weights)),
    )


def rmse_influence(
    numbers: NDArray[np.int64], squares: ArrayLike, weights: Vector | None = None
) -> Influence:
    """Return the influence of rows on the root of the mean of squared errors `squares` [R]."""
    of_rows = mean_influence(numbers, squares, weights)
    root = math.sqrt(of_rows.metric)
    values = of_rows.values / (2 * root) if root else np.zeros(len(numbers))
    return Influence(numbers, values, of_rows.fewest, root)


def auc_influence(
    numbers: NDArray[np.int64],
    scores: ArrayLike,
    labels: ArrayLike,
    folds: ArrayLike | None = None,
    weights: Vector | None = None,
) -> Influence | None:
    """Return the influence of rows on the AUC of `scores` for `labels` [R] (DeLong's components).

    It is [R, 1] for two classes, where a high score means class 1; [R, C] for C classes, of the mean over the classes
    present against the rest. None if only one class is present.

    With `folds` [R] a row is placed among those of its own fold; folds with one class alone are left out. With weights [R] a pair
    counts the product of both, and a row that weighs nothing is as if it were not there.
    """
    table, classes = (
        np.asarray(scores, dtype=float).reshape(len(numbers), -1),
        np.asarray(labels),
    )
    weighs = _weighs(classes, weights)
    present = np.unique(classes[weighs])
    if len(present) < 2:
        return None
    columns = (
        {1: table[:, 0]}
        if table.shape[1] == 1
        else {int(c): table[:, int(c)] for c in present}
    )
    fold = (
        np.zeros(len(numbers), dtype=np.int64) if folds is None else np.asarray(folds)
    )
    parts = [
        _delong(column, classes == c, fold, weights) for c, column in columns.items()
    ]
    factor = _cluster_factor(numbers[weighs])
    values = factor * np.mean([values for values, _ in parts], axis=0)
    fewest = min(count_effective(numbers, weights, classes == c) for c in present)
    return Influence(
        numbers, values, fewest, float(np.mean([area for _, area in parts]))
    )


def _delong(
    scores: Vector,
    positive: NDArray[np.bool_],
    folds: NDArray[np.int64],
    weights: Vector | None = None,
) -> tuple[Vector, float]:
    """The placement of each row among those of the other class and its fold, centred and scaled within its class; and the AUC."""
    placement = np.full(len(scores), math.nan)
    for fold in np.unique(folds):
        in_fold = folds == fold
        for members, opposite in (
            (positive & in_fold, ~positive & in_fold),
            (~positive & in_fold, positive & in_fold),
        ):
            if weights is not None:
                placement[members] = _weighted_places(
                    scores[members], scores[opposite], weights[opposite]
                )
                continue
            ordered = np.sort(scores[opposite])
            if len(ordered):
                below = np.searchsorted(
                    ordered, scores[members], "left"
                ) + np.searchsorted(ordered, scores[members], "right")
                placement[members] = below / (2 * len(ordered))
    result, areas = np.zeros(len(scores)), []
    placed = np.isfinite(placement) & _weighs(placement, weights)
    for members, sign in ((~positive & placed, -1), (positive & placed, 1)):
        own = None if weights is None else weights[members]
        result[members] = sign * _centre(placement[members], own)
        areas.append(
            (sign < 0) + sign * float(np.average(placement[members], weights=own))
            if members.any()
            else math.nan
        )
    return result, sum(areas) / 2


def _weighted_places(scores: Vector, opposite: Vector, weights: Vector) -> Vector:
    """The share by weight of `opposite` rows below each score, ties half; NaN where none of them weighs."""
    total = float(weights.sum())
    if not total:
        return np.full(len(scores), math.nan)
    order = np.argsort(opposite, kind="stable")
    ordered = opposite[order]
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    below = sums[np.searchsorted(ordered, scores, "left")]
    up_to = sums[np.searchsorted(ordered, scores, "right")]
    return np.asarray((below + up_to) / (2 * total))


def _weighs(rows: NDArray[Any], weights: Vector | None) -> NDArray[np.bool_]:
    """Which rows [n] weigh something."""
    if weights is None:
        return np.full(len(rows), True)
    return np.asarray(weights > 0)


def _centre(values: Vector, weights: Vector | None = None) -> Vector:
    """(v - mean) / sqrt(n (n - 1)): the sum of squares is its variance; with weights sqrt(n / (n - 1)) w (v - mean) / sum w."""
    count = int(_weighs(values, weights).sum())
    if count < 2:
        return np.full(len(values), math.inf)
    if weights is not None:
        shares = weights / weights.sum()
        centred = values - shares @ values
        return np.asarray(shares * centred * math.sqrt(count / (count - 1)))
    return np.asarray(
        (values - values.mean()) / math.sqrt(count * (count - 1)), dtype=float
    )


def _cluster_factor(numbers: NDArray[np.int64]) -> float:
    """Return what turns `_centre` of rows into that of patients [n] who have several: sums with P - 1 degrees of freedom, not n - 1."""
    patients, rows = count_distinct(numbers), len(numbers)
    if not 1 < patients < rows:
        return 1.0
    return math.sqrt(patients / (patients - 1) * (rows - 1) / rows)


def row_error(a: Sequence[Influence], b: Sequence[Influence]) -> RowError | None:
    """The error over test rows of the mean over seeds of a difference; None if it cannot be known.

    A row that several seeds test is one patient: what it adds in each of them is summed before it is squared. The degrees
    of freedom are those of the rarest kind of rows.

    Args:
        a: of one method, seed by seed.
        b: outcomes of the other, of the same seeds and rows in the same order.
    """
    if not (a or b):
        return None
    patients = _by_patient(a, b)
    return _as_row_error(float(np.sqrt((patients**2).sum())), a)


def error_by_resampling(
    a: Sequence[Influence], b: Sequence[Influence], rng: np.random.Generator
) -> RowError | None:
    """The same from `DRAWS` resamples of the patients, and so uncertain by a factor of 1 / sqrt(2 DRAWS).

    Whoever does not know `rng` cannot compute back what the rows are from many such errors of chosen models.
    """
    if not (a or b):
        return None
    patients = _by_patient(a, b)
    sums = [
        patients[rng.integers(0, len(patients), len(patients))].sum()
        for _ in range(DRAWS)
    ]
    return _as_row_error(float(np.std(sums)), a)


def _by_patient(a: Sequence[Influence], b: Sequence[Influence]) -> Vector:
    """Return what each patient adds to the mean over seeds of the difference, [patients]; it sums to 0."""
    if len(a) != len(b):
        raise InputError(
            f"cannot pair {len(a)} seeds with {len(b)}; give both methods' influences of the same seeds"
        )
    require(
        all(
            np.array_equal(left_side.numbers, right_side.numbers)
            for left_side, right_side in zip(a, b, strict=True)
        ),
        "two models were not tried on the same test rows, so they cannot be compared row by row; check the run with coterie verify",
    )
    with np.errstate(invalid="ignore"):
        gaps = np.concatenate(
            [
                left_side.values - right_side.values
                for left_side, right_side in zip(a, b, strict=True)
            ]
        ) / len(a)
    numbers = np.concatenate([left_side.numbers for left_side in a])
    if count_distinct(numbers) == len(numbers):
        return np.asarray(gaps[np.argsort(numbers)])
    _, patient = np.unique(numbers, return_inverse=True)
    return np.asarray(np.bincount(patient, weights=gaps), dtype=float)


def _as_row_error(error: float, a: Sequence[Influence]) -> RowError | None:
    fewest = min(influence.fewest for influence in a)
    return RowError(error, fewest - 1) if math.isfinite(error) and fewest > 1 else None


def student(mean: float, rows: RowError) -> tuple[float, float]:
    """Half the length of the 95 % interval of a mean with this error, and its p value (two-sided, Student's t)."""
    from scipy.special import stdtr, stdtrit

    error, freedom, p_value = rows
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    if p_value is not None:
        return half, p_value
    if error == 0:
        return 0.0, 0.0 if mean else 1.0
    return half, 2 * float(stdtr(freedom, -abs(mean) / error))
