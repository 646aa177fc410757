"""What stands behind a model whose label asks for more than one number a class: a baseline for each interval of time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coterie.base.errors import InputError, require


class Baseline(nn.Module):
    """One score [rows, 1] and an intercept for each interval: outputs [rows, K], from 0."""

    def __init__(self, intervals: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(intervals))

    def forward(self, score: Tensor) -> Tensor:
        """Add the intercepts to the score."""
        return score.reshape(score.shape[0], 1) + self.bias


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
        last = body
        while isinstance(last, nn.Sequential) and len(last):
            last = last[-1]
        if isinstance(last, nn.Linear):
            if last.out_features != 1:
                raise InputError(
                    f"the body of Hazards gives {last.out_features} numbers for a row; it must give one, a score"
                )
            last.register_parameter("bias", None)
        self.body, self.baseline = body, Baseline(intervals)

    def forward(self, inputs: Any) -> Tensor:
        """Outputs [rows, K]."""
        outputs: Tensor = self.baseline(self.body(inputs))
        return outputs
