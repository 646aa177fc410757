"""Metrics per client: functions `(outputs, labels, kind) -> number`, and the task that computes them.

A metric is None where it is undefined: another kind of task, several labels a row, or a share of nothing. Those of this file are
computed for many clients at once, from their rows behind each other (`Segments`), as `metric.each`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite, isnan
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.hazards import WITHIN_HORIZON
from coterie.base.loss import IGNORED, Kind
from coterie.base.metric_names import BOUNDS, DEFAULT_METRICS
from coterie.base.vector import Layout
from coterie.compute import survival
from coterie.compute.cohort import Cohort
from coterie.compute.segments import (
    Segments,
    areas,
    count_hits,
    pad_and_apply,
    probabilities,
)
from coterie.config.registry import METRICS
from coterie.contract.task import Flag, Form, MeanLoss, ModelOrOwn, Rows, task

__all__ = [
    "DEFAULT_METRICS",
    "Metric",
    "accuracy",
    "auc",
    "auprc",
    "balanced_accuracy",
    "brier",
    "c_index",
    "class_error",
    "ece",
    "evaluate",
    "f1",
    "find_metrics",
    "horizon_brier",
    "horizon_calibration",
    "integrated_brier",
    "mae",
    "npv",
    "poisson_deviance",
    "ppv",
    "probabilities",
    "r2",
    "rmse",
    "sensitivity",
    "specificity",
    "top5",
    "uno_c",
]

Metric = Callable[[Tensor, Tensor, Kind], float | None]
_Each = Callable[[Tensor, Tensor, Kind, Segments], Tensor | None]
"""Outputs and labels of many clients, kind of task, whose rows they are -> values [n], NaN where undefined; None: nowhere defined."""
_Parts = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

THRESHOLD, BINS = 0.5, 10


def _of_one(each: _Each) -> Metric:
    """The metric of one client, of which `each` computes that of many."""

    @functools.wraps(each)
    def metric(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
        values = each(outputs.cpu(), labels.cpu(), kind, Segments.of([len(labels)]))
        if values is None or isnan(values):
            return None
        return float(values)

    del metric.__wrapped__
    metric.__annotations__ = {
        "outputs": Tensor,
        "labels": Tensor,
        "kind": Kind,
        "return": float | None,
    }
    metric.each = each  # type: ignore[attr-defined]
    return metric


@_of_one
def sensitivity(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Share of the rows of class 1 that are called positive.

    >>> sensitivity(torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 1, 0]), "binary")
    0.5
    """
    return _share(
        outputs, labels, kind, segments, lambda called, truth: (called & truth, truth)
    )


@_of_one
def specificity(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Share of the rows of class 0 that are called negative.

    >>> specificity(torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 1, 0]), "binary")
    0.0
    """
    return _share(
        outputs,
        labels,
        kind,
        segments,
        lambda called, truth: (~called & ~truth, ~truth),
    )


@_of_one
def ppv(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Positive predictive value: share of the rows called positive that are of class 1.

    >>> ppv(torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 1, 0]), "binary")
    0.5
    """
    return _share(
        outputs, labels, kind, segments, lambda called, truth: (called & truth, called)
    )


@_of_one
def npv(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Negative predictive value: share of the rows called negative that are of class 0.

    >>> npv(torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 1, 0]), "binary")
    0.0
    """
    return _share(
        outputs,
        labels,
        kind,
        segments,
        lambda called, truth: (~called & ~truth, ~called),
    )


@_of_one
def f1(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Harmonic mean of sensitivity and positive predictive value; for several labels of a row the mean over those that occur or
    are predicted.

    >>> f1(torch.tensor([[2.0, 1.0], [2.0, -1.0]]), torch.tensor([[1, 0], [1, 1]]), "multilabel")
    0.5
    """
    if kind == "multilabel":
        pairs = list(zip((outputs > 0).unbind(1), (labels > 0).unbind(1), strict=True))
    else:
        risk = _risks(outputs, labels, kind)
        if risk is None:
            return None
        pairs = [(risk >= THRESHOLD, labels.reshape(-1) == 1)]
    # 2 TP / (called positive + positive); a label that neither occurs nor is predicted gives 0 / 0 and is left out.
    scores = [
        2 * segments.sum(called & truth) / (segments.sum(called) + segments.sum(truth))
        for called, truth in pairs
    ]
    if not scores:
        return None
    return torch.stack(scores).nanmean(0)


@_of_one
def brier(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Mean squared error of the risk of class 1.

    >>> round(brier(torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 1, 0]), "binary"), 3)
    0.485
    """
    risk = _risks(outputs, labels, kind)
    if risk is None:
        return None
    return segments.mean((risk - labels.reshape(-1)).square())


@_of_one
def ece(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Expected calibration error: mean over rows of |mean risk - share of class 1| within ten equal intervals of risk.

    >>> round(ece(torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 1, 0]), "binary"), 3)
    0.601
    """
    risk = _risks(outputs, labels, kind)
    if risk is None:
        return None
    bins = (risk * BINS).long().clamp(0, BINS - 1)  # a risk of 1 is in the last
    # The sum over a bin of risk - label is its rows times (mean risk - share of class 1).
    gaps = segments.divide(bins, BINS).sum(risk - labels.reshape(-1))
    return gaps.abs().view(-1, BINS).cumsum(1)[:, -1] / segments.sizes


@_of_one
def auprc(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Area under the precision-recall curve of class 1, as average precision: mean over its rows of the share of class 1 among all
    rows with at least their risk. By chance it is the share of class 1, so that it tells models of rare outcomes apart.

    >>> round(auprc(torch.tensor([[0.1], [0.4], [0.35], [0.8]]), torch.tensor([0, 0, 1, 1]), "binary"), 12)
    0.833333333333
    """
    if _risks(outputs, labels, kind) is None:
        return None
    positive = (labels.reshape(-1) == 1).double()
    # Logits do not tie where a sigmoid saturates.
    tie, client = segments.ties(-outputs.double().reshape(-1))
    by_tie = Segments(tie, len(client), segments.weights)
    cases, counts = by_tie.sum(positive), by_tie.sum(torch.ones_like(positive))
    per_client = Segments(client, segments.count)
    precision = per_client.cumulate(cases) / per_client.cumulate(counts)
    # Only where rows of weight 0 are ranked first is there nothing yet.
    precision = precision.nan_to_num(0.0)
    area = per_client.sum(precision * cases) / segments.sum(positive)
    # Sums of weights are rounded, in another order above than below.
    return area if segments.weights is None else area.clamp(0.0, 1.0)


@_of_one
def class_error(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Mean number of classes between the predicted class and the right one, for classes with an order.

    >>> class_error(torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([0, 2]), "classes")
    1.0
    """
    if kind != "classes" or labels.ndim > 1:
        return None
    return segments.mean((probabilities(kind, outputs).argmax(dim=1) - labels).abs())


@_of_one
def poisson_deviance(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Mean Poisson deviance of counts, 2 (y log(y / m) - y + m); a prediction m below a hundredth of the mean count is taken as that.

    None unless labels are whole numbers from 0 and some is above 0. Of counts with exposure outputs are rates per unit of exposure.

    >>> round(poisson_deviance(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 2.0]), "regression"), 12)
    1.0
    """
    if kind == "count":
        outputs, labels = outputs[:, 0] * labels[:, 1], labels[:, 0]
    exact = labels.double().reshape(-1)
    truth = exact.round()  # labels are stored standardised: they come back rounded
    if kind not in ("regression", "count"):
        return None
    if outputs.numel() != len(truth) or labels.numel() > len(labels):
        return None
    mean_truth = segments.mean(truth)
    is_no_count = ((exact - truth).abs() > 1e-4) | (truth < 0)
    undefined = (segments.sum(is_no_count) > 0) | (mean_truth <= 0)
    mean = outputs.reshape(-1).double().maximum(mean_truth[segments.place] / 100)
    logs = pad_and_apply(torch.xlogy, truth, truth / mean)
    deviance = segments.mean(logs - truth + mean)
    return (2 * deviance).masked_fill(undefined, torch.nan)


@_of_one
def r2(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Share of the variance of the label that is explained: 1 minus squared errors over those of the mean of these rows.

    >>> round(r2(torch.tensor([[1.0], [2.0], [2.5]]), torch.tensor([1.0, 2.0, 3.0]), "regression"), 3)
    0.875
    """
    if kind != "regression":
        return None
    entries, truth = segments.repeat(labels), labels.double().reshape(-1)
    means = entries.mean(truth)[entries.place]
    total = entries.sum((truth - means).square())
    unexplained = entries.sum(_errors(outputs, labels).square())
    return (1 - unexplained / total).masked_fill(total == 0, torch.nan)


def _risks(outputs: Tensor, labels: Tensor, kind: Kind) -> Tensor | None:
    """Risk of class 1 [rows], float64; None if the task has not two classes with one label a row."""
    if kind != "binary" or labels.numel() > len(labels):
        return None
    return probabilities(kind, outputs.double())[:, 1]


def _share(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments, parts: _Parts
) -> Tensor | None:
    risk = _risks(outputs, labels, kind)
    if risk is None:
        return None
    part, total = parts(risk >= THRESHOLD, labels.reshape(-1) == 1)
    return segments.sum(part) / segments.sum(total)


@_of_one
def accuracy(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Share of right predictions (of pixels for segmentation, of rows with every class right for several labels); None for regression.

    >>> accuracy(torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 0, 0]), "binary")
    0.6666666666666666
    >>> accuracy(torch.tensor([[2.0, 1.0], [2.0, -1.0]]), torch.tensor([[1, 0], [1, 0]]), "multilabel")
    0.5
    """
    if kind == "multilabel":
        return segments.mean(((outputs > 0) == labels).all(dim=1))
    if kind not in ("binary", "classes"):
        return None
    right, _, entries = count_hits(outputs, labels, kind, segments)
    return entries.mean(right)


@_of_one
def balanced_accuracy(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Mean over the classes present of the share of right predictions; None for regression and for several labels.

    >>> balanced_accuracy(torch.tensor([[2.0], [1.0], [3.0], [1.0]]), torch.tensor([1, 1, 1, 0]), "binary")
    0.5
    """
    if kind not in ("binary", "classes"):
        return None
    right, classes, entries = count_hits(outputs, labels, kind, segments)
    if not len(classes):
        return None
    width = int(classes.max()) + 1
    shares = entries.divide(classes, width).mean(right).view(-1, width)
    present = shares.isfinite()
    # One after the other, since a sum over columns may depend on how many there are.
    return shares.nan_to_num(0.0).cumsum(1)[:, -1] / present.sum(1)


@_of_one
def auc(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Area under the ROC curve from ranks, ties counted half; for C classes the mean of each class present against the rest, and for
    several labels the mean of those of which both values occur.

    None for regression, for segmentation, or if only one class is present.

    >>> auc(torch.tensor([[0.1], [0.4], [0.35], [0.8]]), torch.tensor([0, 0, 1, 1]), "binary")
    0.75
    """
    if kind == "multilabel":
        pairs = [
            (outputs[:, c].double(), labels[:, c] > 0) for c in range(labels.shape[1])
        ]
    elif kind not in ("binary", "classes") or labels.numel() > len(labels):
        return None
    else:
        flat = labels.reshape(-1)
        if kind == "binary":
            # Logits rank as probabilities do, and do not tie where a sigmoid saturates.
            logits = outputs.double().reshape(len(flat), -1)
            pairs = [(logits[:, 0], flat == 1)]
        else:
            scores = probabilities(kind, outputs.double())
            pairs = [(scores[:, c], flat == c) for c in flat.unique().tolist()]
    # Without rows of a class, or of any other, a client has no area for it, and that class does not count.
    total = torch.zeros(segments.count, dtype=torch.float64)
    defined = torch.zeros(segments.count, dtype=torch.float64)
    for score, positive in pairs:
        area = areas(score, positive, segments)
        total = total + area.nan_to_num(0.0)
        defined = defined + area.isfinite()
    return total / defined


@_of_one
def top5(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Share of rows whose class is among the five most likely; None for regression and below six classes.

    >>> top5(torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0]]).repeat(2, 1), torch.tensor([4, 5]), "classes")
    0.5
    """
    if kind != "classes" or labels.ndim > 1 or outputs.shape[1] < 6:
        return None
    best = outputs.topk(5, dim=1).indices
    return segments.mean((best == labels[:, None]).any(dim=1))


@_of_one
def mae(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Mean absolute error, in the unit of the label; None for classification.

    >>> mae(torch.tensor([[1.0], [5.0]]), torch.tensor([2.0, 2.0]), "regression")
    2.0
    """
    if kind != "regression":
        return None
    return segments.repeat(labels).mean(_errors(outputs, labels).abs())


@_of_one
def rmse(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> Tensor | None:
    """Root of the mean squared error, in the unit of the label; None for classification.

    >>> rmse(torch.tensor([[1.0], [9.0]]), torch.tensor([2.0, 2.0]), "regression")
    5.0
    """
    if kind != "regression":
        return None
    return segments.repeat(labels).mean(_errors(outputs, labels).square()).sqrt()


def c_index(
    outputs: Tensor, labels: Tensor, kind: Kind, weights: Tensor | None = None
) -> float | None:
    """Harrell's C of time to event: the share of comparable pairs in which the one with the earlier event has the higher risk.

    Outputs are cumulative hazards until the horizon, until the last cut, and until the times before the horizon, as `LabelForm.read`
    gives them, and labels entry, time and event in horizons. With weights a pair counts the product of both.

    Args:
        outputs: Cumulative hazards [rows, 2] or more.
        labels: Entry, time and event [rows, 3].
        kind: Of the task.
        weights: Of rows [rows]; None: 1 each.

    >>> hazard = torch.tensor([[0.3, 0.9], [0.1, 0.2]])
    >>> c_index(hazard, torch.tensor([[0.0, 0.5, 1.0], [0.0, 1.5, 0.0]]), "hazards")
    1.0
    """
    if kind != "hazards":
        return None
    found = survival.concordance(
        survival.as_rows(labels), outputs[:, 1].numpy(), weights=_array(weights)
    )
    if found is None:
        return None
    return found.value


def uno_c(
    outputs: Tensor, labels: Tensor, kind: Kind, weights: Tensor | None = None
) -> float | None:
    """Uno's C of time to event: Harrell's, that does not depend on how follow-up ends; outputs as of `c_index`.

    Args:
        outputs: Cumulative hazards [rows, 2] or more.
        labels: Entry, time and event [rows, 3].
        kind: Of the task.
        weights: Of rows [rows]; None: 1 each.

    >>> hazard = torch.tensor([[0.3, 0.9], [0.1, 0.2]])
    >>> uno_c(hazard, torch.tensor([[0.0, 0.5, 1.0], [0.0, 1.5, 0.0]]), "hazards")
    1.0
    """
    if kind != "hazards":
        return None
    rows, risk = survival.as_rows(labels), outputs[:, 1].numpy()
    return survival.uno(rows, risk, _array(weights))


def horizon_brier(
    outputs: Tensor, labels: Tensor, kind: Kind, weights: Tensor | None = None
) -> float | None:
    """Brier score of the predicted survival at the horizon, weighed by the inverse of being followed so long; outputs as of `c_index`.

    Args:
        outputs: Cumulative hazards [rows, 2] or more.
        labels: Entry, time and event [rows, 3].
        kind: Of the task.
        weights: Of rows [rows]; None: 1 each.

    >>> hazard = torch.tensor([[0.5, 0.9], [0.1, 0.2]])
    >>> round(horizon_brier(hazard, torch.tensor([[0.0, 0.5, 1.0], [0.0, 1.5, 0.0]]), "hazards"), 3)
    0.188
    """
    if kind != "hazards":
        return None
    predicted = torch.exp(-outputs[:, 0].double()).numpy()
    return survival.brier_at(
        survival.as_rows(labels), predicted, 1.0, weights=_array(weights)
    )


def integrated_brier(
    outputs: Tensor, labels: Tensor, kind: Kind, weights: Tensor | None = None
) -> float | None:
    """Mean of the Brier score from 0 to the horizon, in 16 equal steps joined by straight lines; outputs as of `c_index`.

    Source: E. Graf et al., Statistics in Medicine 18 (1999), the integrated score with uniform weight.

    Args:
        outputs: Cumulative hazards [rows, 2 + 15].
        labels: Entry, time and event [rows, 3].
        kind: Of the task.
        weights: Of rows [rows]; None: 1 each.

    >>> hazard = torch.tensor([[0.5, 0.9], [0.1, 0.2]])
    >>> hazard = torch.cat([hazard, hazard[:, :1] * torch.tensor(WITHIN_HORIZON)], 1)
    >>> round(integrated_brier(hazard, torch.tensor([[0.0, 0.5, 1.0], [0.0, 1.5, 0.0]]), "hazards"), 3)
    0.134
    """
    if kind != "hazards":
        return None
    # At 0 everybody is without an event, as predicted.
    start = outputs.new_zeros(len(outputs), 1)
    hazard = torch.cat([start, outputs[:, 2:], outputs[:, :1]], 1).double()
    return survival.integrated_brier(
        survival.as_rows(labels),
        torch.exp(-hazard).numpy(),
        (0.0, *WITHIN_HORIZON, 1.0),
        weights=_array(weights),
    )


def horizon_calibration(
    outputs: Tensor, labels: Tensor, kind: Kind, weights: Tensor | None = None
) -> float | None:
    """How far the mean predicted survival at the horizon is from that of Kaplan and Meier; outputs as of `c_index`.

    Args:
        outputs: Cumulative hazards [rows, 2] or more.
        labels: Entry, time and event [rows, 3].
        kind: Of the task.
        weights: Of rows [rows]; None: 1 each.

    >>> hazard = torch.tensor([[0.5, 0.9], [0.1, 0.2]])
    >>> round(horizon_calibration(hazard, torch.tensor([[0.0, 0.5, 1.0], [0.0, 1.5, 0.0]]), "hazards"), 3)
    0.256
    """
    if kind != "hazards":
        return None
    predicted = torch.exp(-outputs[:, 0].double()).numpy()
    return survival.calibration_at(
        survival.as_rows(labels), predicted, 1.0, weights=_array(weights)
    )


def _array(weights: Tensor | None) -> NDArray[np.float64] | None:
    return None if weights is None else weights.numpy()


def _errors(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.double().reshape(-1) - labels.double().reshape(-1)


def value_of(
    metric: Metric, outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> float | None:
    """The metric of one client, whose rows count as `segments` says; None where it is undefined."""
    of_many = getattr(metric, "each", None)
    if of_many is None and segments.weights is None:
        return metric(outputs, labels, kind)
    if of_many is None:
        weighted: Callable[..., float | None] = metric
        return weighted(outputs, labels, kind, segments.weights)
    values = of_many(outputs, labels, kind, segments)
    if values is None or isnan(values):
        return None
    return float(values)


def _guard(name: str, metric: Metric) -> Metric:
    """A metric of the user's own, on tensors that it may write into."""

    def value_of(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
        value = metric(outputs.clone(), labels.clone(), kind)
        if value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            sentence = f"the metric {name!r} gave a {type(value).__name__}; it must give a number or None"
            raise InputError(sentence) from error

    return value_of


def _as_many(payload: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    return (len(payload["metrics"]),)


def _ranges(payload: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The lowest and the highest value of each metric that is asked; undefined ones are sent as 0."""
    ranges = [BOUNDS.get(name, (-inf, inf)) for name in payload["metrics"]]
    low, high = torch.tensor(ranges, dtype=torch.float64).reshape(-1, 2).T
    return low, high


def find_metrics(names: Iterable[str]) -> Mapping[str, Metric]:
    """The metrics of these names. Raises `InputError` for one that there is not.

    Args:
        names: of metrics, or FILE.py:FUNCTION.

    >>> sorted(find_metrics(["auc", "brier"]))
    ['auc', 'brier']
    """
    metrics = {}
    for name in names:
        metric = METRICS.find(name)
        if metric.__module__ != __name__:
            metric = _guard(name, metric)
        metrics[name] = metric
    return metrics


class Evaluation(NamedTuple):
    """Rows [n], mean loss [n], metrics [n, m] and which of them are defined [n, m]; loss is 0 where there are no rows, or where it is
    not told, and then no metric is defined.

    No reply may hold NaN, so here and in `Shares` a number is 0 where `defined` says that it is none.
    """

    rows: Rows
    loss: MeanLoss
    values: Annotated[Tensor, "loss", Form(_as_many, within=_ranges)]
    defined: Annotated[Tensor, "other", Form(_as_many, torch.bool)]


@task
def evaluate(
    cohort: Cohort, *, x: ModelOrOwn, part: str, metrics: tuple[str, ...]
) -> Evaluation:
    """Loss and metrics of model x ([d + b], or [n, d + b]) on each client's own rows; only these numbers leave it.

    >>> import coterie as ct
    >>> import torch
    >>> engine = ct.InProcess().open(ct.data.load("heart-disease"), torch.nn.Linear(15, 1), "auto")
    >>> federation = ct.Federation(engine, engine.clients)
    >>> replies = federation.ask(engine.clients, ct.metrics.evaluate, x=engine.x, part="test", metrics=("auc",))
    >>> replies.rows.tolist()  # test rows of the four hospitals
    [101.0, 98.0, 66.0, 41.0]
    >>> engine.close()
    """
    columns = cohort.evaluate(x, find_metrics(metrics), part=part)
    values = torch.stack([columns[k] for k in ("n", *metrics)], dim=1)[:, 1:]
    loss, defined = columns["loss"].where(columns["n"] > 0, 0.0), values.isfinite()
    if cohort.workspace.veil is not None:  # which may tell nothing
        loss = loss.nan_to_num(nan=0.0)
    if not bool(loss.isfinite().all()):
        for name, value in zip(cohort.names, loss.tolist(), strict=True):
            if not isfinite(value):
                raise FloatingPointError(
                    f"the loss on {part} rows of client {name!r} is {value}"
                )
    return Evaluation(columns["n"], loss, values.where(defined, 0.0), defined)


class Shares(NamedTuple):
    """Share of the largest class [n], log-loss of predicting the client's own training shares [n], and whether they are defined [n]."""

    majority: Annotated[Tensor, "count", Form(within=(0.0, 1.0))]
    majority_loss: Annotated[Tensor, "count", Form(within=(0.0, inf))]
    defined: Flag


@task
def baselines(cohort: Cohort, *, part: str) -> Shares:
    """Return what a constant prediction reaches on each client's rows: the yardstick of any accuracy or log-loss."""
    shares = torch.full((2, len(cohort.names)), torch.nan, dtype=torch.float64)
    if cohort.workspace.loss.kind in ("binary", "classes"):
        for group in cohort.groups(part):
            counts, train_counts = _class_counts(cohort, group, part)
            majority, loss = _constant_scores(counts, train_counts)
            shares[:, group] = torch.stack([majority, loss])
    defined = shares.isfinite().all(0)
    majority, loss = shares.where(defined, 0.0)
    return Shares(majority, loss, defined)


def _class_counts(cohort: Cohort, group: list[int], part: str) -> tuple[Tensor, Tensor]:
    """Rows of each class in a part and among training rows [n, C], float64."""
    labelled = []
    width = 1  # C
    for kind in (part, "train"):
        labels, segments = cohort.labels_of(group, kind)
        entries, classes = segments.repeat(labels), labels.reshape(-1).long()
        is_counted = classes != IGNORED
        clients, classes = entries.place[is_counted], classes[is_counted]
        weights = entries.weights
        if weights is not None:
            weights = weights[is_counted]
        labelled.append((clients, classes, weights))
        if len(classes):
            width = max(width, int(classes.max()) + 1)
    counts = []
    for clients, classes, weights in labelled:
        cells = clients * width + classes
        flat = torch.bincount(cells, weights, len(group) * width)
        counts.append(flat.view(-1, width).double())
    return counts[0], counts[1]


def _constant_scores(counts: Tensor, train_counts: Tensor) -> tuple[Tensor, Tensor]:
    """Accuracy [n] of the largest class among rows [n, C], and log-loss [n] of the training shares there; NaN without rows.

    The log-loss of predicting shares q on rows of which a share p_c is of class c is -sum over c of p_c log q_c.
    """
    # A client's classes are 0 up to the largest that it has, whatever the others have.
    numbers = torch.arange(1, counts.shape[1] + 1)
    is_present = (counts + train_counts) > 0
    class_count = (is_present * numbers).amax(1, keepdim=True)
    # One added row per class: a class without training rows would cost an infinite loss.
    smoothed = (train_counts + 1) * (numbers <= class_count)
    shares = smoothed / smoothed.sum(1, keepdim=True)
    # Where there is no row the share is taken as 1, so that 0 log 0 does not arise.
    losses = -pad_and_apply(torch.xlogy, counts, shares.where(counts > 0, 1.0))
    rows = counts.sum(1).where(train_counts.sum(1) > 0, torch.nan)
    # By `cumsum`, one class after the other: a sum over columns may depend on how many there are.
    return counts.amax(1) / rows, losses.cumsum(1)[:, -1] / rows
