"""Metrics per client: functions `(outputs, labels, kind) -> number`, and the task that computes them.

A metric is None where it is undefined: another kind of task, several labels a row, or a share of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.loss import IGNORED, Kind
from coterie.base.metric_names import BOUNDS, DEFAULT_METRICS
from coterie.base.vector import Layout
from coterie.compute.cohort import Cohort
from coterie.config.registry import METRICS
from coterie.contract.task import Flag, Form, ModelOrOwn, Number, Rows, Size, task

__all__ = [
    "BINS",
    "DEFAULT_METRICS",
    "THRESHOLD",
    "Metric",
    "accuracy",
    "auc",
    "auprc",
    "balanced_accuracy",
    "brier",
    "class_error",
    "ece",
    "evaluate",
    "f1",
    "find_metrics",
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
]

_Parts = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

THRESHOLD = 0.5
BINS = 10


def sensitivity(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Share of the rows of class 1 that are called positive.

    >>> sensitivity(torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 1, 0]), "binary")
    0.5
    """
    return _share(outputs, labels, kind, lambda called, truth: (called & truth, truth))


def specificity(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Share of the rows of class 0 that are called negative."""
    return _share(outputs, labels, kind, lambda called, truth: (~called & ~truth, ~truth))


def ppv(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Positive predictive value: share of the rows called positive that are of class 1."""
    return _share(outputs, labels, kind, lambda called, truth: (called & truth, called))


def npv(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Negative predictive value: share of the rows called negative that are of class 0."""
    return _share(outputs, labels, kind, lambda called, truth: (~called & ~truth, ~called))


def f1(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Harmonic mean of sensitivity and positive predictive value; for several labels of a row the mean over those that occur or
    are predicted.

    >>> f1(torch.tensor([[2.0, 1.0], [2.0, -1.0]]), torch.tensor([[1, 0], [1, 1]]), "multilabel")
    0.5
    """
    if kind == "multilabel":
        pairs = list(zip((outputs > 0).unbind(1), (labels > 0).unbind(1), strict=True))
    else:
        risk = _risks(outputs, labels, kind)
        pairs = [] if risk is None else [(risk >= THRESHOLD, labels.cpu().reshape(-1) == 1)]
    scores = [2 * int((p & t).sum()) / int(p.sum() + t.sum()) for p, t in pairs if bool((p | t).any())]
    return sum(scores) / len(scores) if scores else None


def brier(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Mean squared error of the risk of class 1."""
    risk = _risks(outputs, labels, kind)
    return None if risk is None else float((risk - labels.cpu().reshape(-1)).square().mean())


def ece(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Expected calibration error: mean over rows of |mean risk - share of class 1| within ten equal intervals of risk."""
    risk = _risks(outputs, labels, kind)
    if risk is None:
        return None
    place = (risk * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, risk - labels.cpu().reshape(-1))
    return float(gaps.abs().sum() / len(labels))


def auprc(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Area under the precision-recall curve of class 1, as average precision: mean over its rows of the share of class 1 among all
    rows with at least their risk. By chance it is the share of class 1, so that it tells models of rare outcomes apart.

    >>> round(auprc(torch.tensor([[0.1], [0.4], [0.35], [0.8]]), torch.tensor([0, 0, 1, 1]), "binary"), 12)
    0.833333333333
    """
    risk = _risks(outputs, labels, kind)
    positive = labels.cpu().reshape(-1) == 1
    if risk is None or not bool(positive.any()):
        return None
    scores = outputs.double().cpu().reshape(-1)  # logits do not tie where a sigmoid saturates
    _, place, counts = scores.unique(return_inverse=True, return_counts=True)
    cases = torch.bincount(place[positive], minlength=len(counts)).double().flip(0)
    precision = cases.cumsum(0) / counts.double().flip(0).cumsum(0)
    return float((precision * cases).sum() / cases.sum())


def class_error(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Mean number of classes between the predicted class and the right one, for classes with an order.

    >>> class_error(torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([0, 2]), "classes")
    1.0
    """
    if kind != "classes" or labels.ndim > 1:
        return None
    return float((probabilities(kind, outputs).argmax(dim=1) - labels).abs().double().mean())


def poisson_deviance(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Mean Poisson deviance of counts, 2 (y log(y / m) - y + m); a prediction m below a hundredth of the mean count is taken as that.

    None unless labels are whole numbers from 0 and some is above 0.

    >>> round(poisson_deviance(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 2.0]), "regression"), 12)
    1.0
    """
    exact = labels.double().reshape(-1)
    truth = exact.round()  # labels are stored standardised
    if kind != "regression" or outputs.numel() != len(truth) or bool((exact - truth).abs().max() > 1e-4):
        return None
    if bool((truth < 0).any()) or not bool(truth.any()):
        return None
    mean = outputs.reshape(-1).double().clamp(min=float(truth.mean()) / 100)
    return float(2 * (torch.xlogy(truth, truth / mean) - truth + mean).mean())


def r2(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Share of the variance of the label that is explained: 1 minus squared errors over those of the mean of these rows."""
    if kind != "regression":
        return None
    truth = labels.double()
    total = float((truth - truth.mean()).square().sum())
    return 1 - float((outputs.reshape(labels.shape).double() - truth).square().sum()) / total if total else None


def _risks(outputs: Tensor, labels: Tensor, kind: Kind) -> Tensor | None:
    """Risk of class 1 [rows], float64; None if the task has not two classes with one label a row."""
    if kind != "binary" or labels.numel() > len(labels):
        return None
    return probabilities(kind, outputs.double())[:, 1].cpu()


def _share(outputs: Tensor, labels: Tensor, kind: Kind, parts: _Parts) -> float | None:
    risk = _risks(outputs, labels, kind)
    if risk is None:
        return None
    part, total = parts(risk >= THRESHOLD, labels.cpu().reshape(-1) == 1)
    return int(part.sum()) / int(total.sum()) if bool(total.any()) else None


RARE = 0.05
"""Share of the rarer class below which an outcome counts as rare."""


def metrics_by_label(clients: Clients) -> tuple[str, ...]:
    """Return names of the metrics that a label calls for beside the usual ones: of counts, of ordered classes, of a rare outcome."""
    label, labels = (clients.recipe or {}).get("label", {}), clients.train.labels
    if label.get("count"):
        return ("poisson_deviance",)
    if label.get("kind") == "number" and len(label.get("values", ())) > 2:
        return ("class_error",)
    if labels.is_floating_point() or labels.ndim > 1 or int(labels.max()) != 1:
        return ()
    cases = int((labels == 1).sum())
    return ("auprc",) if 0 < min(cases, len(labels) - cases) < RARE * len(labels) else ()


Metric = Callable[[Tensor, Tensor, Kind], float | None]


def probabilities(kind: Kind, outputs: Tensor) -> Tensor:
    """Return class probabilities [rows, C, ...]; for one logit C = 2.

    Args:
        kind: How the outputs are read: binary, classes or multilabel. Own losses are read as C logits in dimension 1.
        outputs: Outputs of the model for some rows, [rows, ...].
    """
    if kind == "binary":
        logit = outputs.squeeze(1) if outputs.ndim > 1 and outputs.shape[1] == 1 else outputs
        positive = torch.sigmoid(logit)
        return torch.stack([1 - positive, positive], dim=1)
    return torch.sigmoid(outputs) if kind == "multilabel" else torch.softmax(outputs, dim=1)


def _hits(outputs: Tensor, labels: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return which predictions are right, and the labels, flat, without positions that are ignored."""
    predicted = probabilities(kind, outputs).argmax(dim=1).reshape(labels.shape)
    counted = labels != IGNORED
    return (predicted == labels)[counted].double(), labels[counted]


def _predict_labels(outputs: Tensor) -> Tensor:
    """Which classes of several are predicted: those with a probability over 1/2."""
    return outputs > 0


def accuracy(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Share of right predictions (of pixels for segmentation, of rows with every class right for several labels); None for regression.

    >>> accuracy(torch.tensor([[2.0], [-1.0], [3.0]]), torch.tensor([1, 0, 0]), "binary")
    0.6666666666666666
    >>> accuracy(torch.tensor([[2.0, 1.0], [2.0, -1.0]]), torch.tensor([[1, 0], [1, 0]]), "multilabel")
    0.5
    """
    if kind == "multilabel":
        return float((_predict_labels(outputs) == labels).all(dim=1).double().mean())
    if kind not in ("binary", "classes"):
        return None
    right, _ = _hits(outputs, labels, kind)
    return float(right.mean()) if len(right) else None


def balanced_accuracy(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Mean over the classes present of the share of right predictions; None for regression and for several labels.

    >>> balanced_accuracy(torch.tensor([[2.0], [1.0], [3.0], [1.0]]), torch.tensor([1, 1, 1, 0]), "binary")
    0.5
    """
    if kind not in ("binary", "classes"):
        return None
    right, labels = _hits(outputs, labels, kind)
    if not len(labels):
        return None
    classes = labels.long()
    counts = torch.bincount(classes)
    shares = torch.bincount(classes, weights=right) / counts
    return float(shares[counts > 0].mean())


def auc(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Area under the ROC curve from ranks, ties counted half; for C classes the mean of each class present against the rest, and for
    several labels the mean of those of which both values occur.

    None for regression, for segmentation, or if only one class is present.

    >>> auc(torch.tensor([[0.1], [0.4], [0.35], [0.8]]), torch.tensor([0, 0, 1, 1]), "binary")
    0.75
    """
    if kind == "multilabel":
        each = [(outputs[:, c].double(), labels[:, c] > 0) for c in range(labels.shape[1])]
        areas = [_area(score, positive) for score, positive in each if positive.any() and not positive.all()]
        return sum(areas) / len(areas) if areas else None
    if kind not in ("binary", "classes") or labels.numel() > len(labels):
        return None
    labels = labels.reshape(-1)
    present = labels.unique()
    if len(present) < 2:
        return None
    # Logits rank as probabilities do, and do not tie where a sigmoid saturates.
    scores = outputs.reshape(len(labels), -1) if kind == "binary" else probabilities(kind, outputs.double())
    columns = present.tolist() if kind == "classes" else [1]
    areas = [_area(scores[:, 0 if kind == "binary" else c].double(), labels == c) for c in columns]
    return sum(areas) / len(areas)


def _area(score: Tensor, positive: Tensor) -> float:
    """Share of pairs of a positive and a negative row that `score` [rows] puts in order, ties counted half."""
    n1 = int(positive.sum())
    n0 = len(score) - n1
    return (float(_ranks(score)[positive].sum()) - n1 * (n1 + 1) / 2) / (n1 * n0)


def top5(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Share of rows whose class is among the five most likely; None for regression and below six classes.

    >>> top5(torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0]]).repeat(2, 1), torch.tensor([4, 5]), "classes")
    0.5
    """
    if kind != "classes" or labels.ndim > 1 or outputs.shape[1] < 6:
        return None
    best = outputs.topk(5, dim=1).indices
    return float((best == labels[:, None]).any(dim=1).double().mean())


def mae(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Mean absolute error, in the unit of the label; None for classification.

    >>> mae(torch.tensor([[1.0], [5.0]]), torch.tensor([2.0, 2.0]), "regression")
    2.0
    """
    return None if kind != "regression" else float(_errors(outputs, labels).abs().mean())


def rmse(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Root of the mean squared error, in the unit of the label; None for classification.

    >>> rmse(torch.tensor([[1.0], [9.0]]), torch.tensor([2.0, 2.0]), "regression")
    5.0
    """
    return None if kind != "regression" else float(_errors(outputs, labels).square().mean().sqrt())


def _errors(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.reshape(labels.shape).double() - labels.double()


def _ranks(values: Tensor) -> Tensor:
    _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks: Tensor = last - (counts.double() - 1) / 2
    return ranks[inverse]


def _guard(name: str, metric: Metric) -> Metric:
    """A metric of the user's own, on tensors that it may write into."""

    def value_of(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
        value = metric(outputs.clone(), labels.clone(), kind)
        try:
            return None if value is None else float(value)
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
        names: Names of metrics, or FILE.py:FUNCTION.
    """
    metrics = {}
    for name in names:
        metric = METRICS.find(name)
        metrics[name] = metric if metric.__module__ == __name__ else _guard(name, metric)
    return metrics


class Evaluation(NamedTuple):
    """Rows [n], mean loss [n], metrics [n, m] and which of them are defined [n, m]; loss is 0 where there are no rows.

    No reply may hold NaN, so here and in `Shares` a number is 0 where `defined` says that it is none.
    """

    rows: Rows
    loss: Number
    values: Annotated[Tensor, "other", Form(_as_many, within=_ranges)]
    defined: Annotated[Tensor, "other", Form(_as_many, torch.bool)]


@task
def evaluate(cohort: Cohort, *, x: ModelOrOwn, part: str, metrics: tuple[str, ...]) -> Evaluation:
    """Loss and metrics of model x ([d + b], or [n, d + b]) on each client's own rows; only these numbers leave it."""
    columns = cohort.evaluate(x, find_metrics(metrics), part=part)
    values = (
        torch.stack([columns[k] for k in metrics], dim=1)
        if metrics
        else torch.zeros(len(cohort.names), 0, dtype=torch.float64)
    )
    loss, defined = columns["loss"].where(columns["n"] > 0, 0.0), values.isfinite()
    for name, value in zip(cohort.names, loss.tolist(), strict=True):
        if not isfinite(value):
            raise FloatingPointError(f"the loss on {part} rows of client {name!r} is {value}")
    return Evaluation(columns["n"], loss, values.where(defined, 0.0), defined)


class Shares(NamedTuple):
    """Share of the largest class [n], log-loss of predicting the client's own training shares [n], and whether they are defined [n]."""

    majority: Annotated[Tensor, "other", Form(within=(0.0, 1.0))]
    majority_loss: Size
    defined: Flag


def _drop_ignored_labels(labels: Tensor) -> Tensor:
    return labels[labels != IGNORED]


@task
def baselines(cohort: Cohort, *, part: str) -> Shares:
    """Return what a constant prediction reaches on each client's rows: the yardstick of any accuracy or log-loss."""
    shares = [_constant(cohort, i, part) for i in range(len(cohort.names))]
    table = torch.tensor([pair or (0.0, 0.0) for pair in shares], dtype=torch.float64)
    return Shares(table[:, 0], table[:, 1], torch.tensor([pair is not None for pair in shares]))


def _constant(cohort: Cohort, client: int, part: str) -> tuple[float, float] | None:
    """Accuracy of the largest class on a client's rows, and log-loss of its training shares; None where there are no classes."""
    if cohort.workspace.loss.kind not in ("binary", "classes") or not cohort.has(client, part):
        return None
    labels, train = (_drop_ignored_labels(cohort.labels(client, k)) for k in (part, "train"))
    if not len(labels) or not len(train):
        return None
    classes = int(max(labels.max(), train.max())) + 1
    counts = torch.bincount(labels, minlength=classes).double()
    # One added row per class: a class without training rows would cost an infinite loss.
    smoothed = torch.bincount(train, minlength=classes).double() + 1
    loss = -(counts * (smoothed / smoothed.sum()).log()).sum() / counts.sum()
    return float(counts.max() / counts.sum()), float(loss)
