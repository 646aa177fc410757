"""Metrics of a test and R2 against scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn import metrics as sk

from coterie.config.registry import METRICS

LOGITS = (
    torch.linspace(-3, 3, 80)[:, None] * torch.tensor([1.0, -0.4]).repeat(40)[:, None]
)
LABELS = (torch.sin(torch.arange(80.0)) + LOGITS[:, 0] > 0.5).long()
RISKS = torch.sigmoid(LOGITS[:, 0].double())


def calibration_error(bins: int) -> float:
    """The mean over rows of |mean risk - share of cases| in the row's interval of risk, interval by interval."""
    total = 0.0
    for k in range(bins):
        inside = (k / bins <= RISKS) & ((k + 1) / bins > RISKS)
        if inside.any():
            gap = RISKS[inside].mean() - LABELS[inside].double().mean()
            total += float(gap.abs()) * int(inside.sum())
    return total / len(RISKS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sensitivity", sk.recall_score(LABELS, RISKS >= 0.5)),
        ("specificity", sk.recall_score(LABELS, RISKS >= 0.5, pos_label=0)),
        ("ppv", sk.precision_score(LABELS, RISKS >= 0.5)),
        ("npv", sk.precision_score(LABELS, RISKS >= 0.5, pos_label=0)),
        ("f1", sk.f1_score(LABELS, RISKS >= 0.5)),
        ("brier", sk.brier_score_loss(LABELS, RISKS)),
        ("ece", calibration_error(10)),
    ],
)
def test_against_scikit_learn(name: str, expected: float) -> None:
    assert METRICS[name](LOGITS, LABELS, "binary") == pytest.approx(
        float(expected), abs=1e-12
    )
    assert METRICS[name](LOGITS, LABELS.float(), "regression") is None
    assert METRICS[name](LOGITS.repeat(1, 3), LABELS, "classes") is None


def test_r2_against_scikit_learn() -> None:
    labels = LOGITS[:, 0] * 2 + torch.cos(torch.arange(80.0))
    assert METRICS["r2"](LOGITS, labels, "regression") == pytest.approx(
        sk.r2_score(labels, LOGITS[:, 0]), abs=1e-6
    )
    assert METRICS["r2"](LOGITS, torch.ones(80), "regression") is None
    assert METRICS["r2"](LOGITS, LABELS, "binary") is None


def test_a_share_of_nothing_is_undefined() -> None:
    ones = torch.ones(3, dtype=torch.int64)
    assert METRICS["specificity"](torch.ones(3, 1), ones, "binary") is None
    assert METRICS["npv"](torch.ones(3, 1), ones, "binary") is None
    assert METRICS["sensitivity"](torch.ones(3, 1), ones, "binary") == 1
