"""What stands behind a model that gives one score for a row: a baseline for each interval of time, or cuts between ordered classes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.base.errors import InputError, require


class Baseline(nn.Module):
    """One score [rows, 1] and an intercept for each interval: outputs [rows, K], from 0."""

    def __init__(self, intervals: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(intervals))

    def forward(self, score: Tensor) -> Tensor:
        """Add the intercepts to the score."""
        return score.reshape(score.shape[0], 1) + self.bias


def _without_bias(body: nn.Module, head: str) -> nn.Module:
    """Return a model of one score, with the bias of a last linear layer taken off it. Raises `InputError` for more numbers."""
    last = body
    while isinstance(last, nn.Sequential) and len(last):
        last = last[-1]
    if isinstance(last, nn.Linear):
        if last.out_features != 1:
            raise InputError(
                f"the body of {head} gives {last.out_features} numbers for a row; it must give one, a score"
            )
        last.register_parameter("bias", None)
    return body


class Hazards(nn.Module):
    """A model for time to event: one score for a row, and a baseline hazard in each interval of time.

    Outputs [rows, K] are score(x) + bias_k, the logarithm of the row's hazard in interval k in comparison with the usual one. `bias` is
    the last layer: shared by federated methods, a client's own under `fedavg+bias` and personal layers.

    Args:
        body: gives one number for a row. The bias of a last linear layer is taken off it, since the baseline has it.
        intervals: K, as many as the label form of the clients has.

    Raises:
        InputError: no interval.

    >>> model = Hazards(nn.Linear(13, 1), 4)
    >>> model(torch.zeros(2, 13)).shape, [name for name, _ in model.named_parameters()]
    (torch.Size([2, 4]), ['body.weight', 'baseline.bias'])
    """

    def __init__(self, body: nn.Module, intervals: int) -> None:
        super().__init__()
        require(
            intervals >= 1,
            f"there is no model of {intervals} intervals; give 1 or more",
        )
        self.body = _without_bias(body, "Hazards")
        self.baseline = Baseline(intervals)

    def forward(self, inputs: Any) -> Tensor:
        """Outputs [rows, K]."""
        outputs: Tensor = self.baseline(self.body(inputs))
        return outputs


class Cuts(nn.Module):
    """One score [rows, 1] and K - 1 cuts, ascending: the logarithms [rows, K] of the probabilities of ordered classes.

    `bias` is the first cut, then what each step to the next one is before softplus.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        # With steps of softplus(0) the cuts lie about 0.
        steps = torch.zeros(classes - 1)
        steps[0] = -math.log(2) * (classes - 2) / 2
        self.bias = nn.Parameter(steps)

    def forward(self, score: Tensor) -> Tensor:
        """Logarithms of the probabilities."""
        score = score.reshape(score.shape[0], 1)
        gaps = F.softplus(self.bias[1:])
        cuts = torch.cat([self.bias[:1], self.bias[:1] + gaps.cumsum(0)])
        # P(class k) = s(a) - s(b) = s(a) s(-b) (1 - exp(b - a)), with a the cut above it, b that below, less the score.
        until = F.logsigmoid(cuts - score)
        beyond = F.logsigmoid(score - cuts)
        between = torch.log(-torch.expm1(-gaps))
        middle = until[:, 1:] + beyond[:, :-1] + between
        return torch.cat([until[:, :1], middle, beyond[:, -1:]], 1)


class Ordered(nn.Module):
    """A model for ordered classes: one score for a row, and cuts between the classes (proportional odds).

    The probability of a class up to k is sigmoid(cut_k - score): a column moves the odds of all cuts by one factor. Outputs are the
    logarithms of probabilities [rows, K], which cross-entropy and metrics read as logits. Where odds are not proportional, and rows
    are 150 or more, a model with C logits was better: it is for whom asks for it (`[data] ordered`).

    Source: P. McCullagh, "Regression models for ordinal data", JRSS B 42 (1980).

    Args:
        body: gives one number for a row. The bias of a last linear layer is taken off it, since the cuts have it.
        classes: K, 3 or more; of two an ordinary model says the same.

    Raises:
        InputError: fewer classes, or a body of several numbers.

    >>> model = Ordered(nn.Linear(13, 1), 4)
    >>> model(torch.zeros(2, 13)).exp().sum(1).allclose(torch.ones(2))
    True
    >>> [name for name, _ in model.named_parameters()]
    ['body.weight', 'cuts.bias']
    """

    def __init__(self, body: nn.Module, classes: int) -> None:
        super().__init__()
        require(
            classes >= 3,
            f"{classes} classes have no cuts between; give 3 or more, or a model without Ordered",
        )
        self.body = _without_bias(body, "Ordered")
        self.cuts = Cuts(classes)

    def forward(self, inputs: Any) -> Tensor:
        """Outputs [rows, K]."""
        outputs: Tensor = self.cuts(self.body(inputs))
        return outputs
