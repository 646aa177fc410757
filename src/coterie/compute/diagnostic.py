"""Metrics of a test of two classes at a risk of .5, of its calibration, and R2: functions `(outputs, labels, kind) -> number`.

None where a metric is undefined: another kind of task, several labels a row, or a share of nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.base.loss import Kind, probabilities

__all__ = ["BINS", "DIAGNOSTIC", "THRESHOLD", "brier", "ece", "f1", "npv", "ppv", "r2", "sensitivity", "specificity"]

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
    part, whole = parts(risk >= THRESHOLD, labels.cpu().reshape(-1) == 1)
    return int(part.sum()) / int(whole.sum()) if bool(whole.any()) else None


DIAGNOSTIC = {
    "sensitivity": sensitivity,
    "specificity": specificity,
    "ppv": ppv,
    "npv": npv,
    "f1": f1,
    "brier": brier,
    "ece": ece,
    "r2": r2,
}
"""By name."""
