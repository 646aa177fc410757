"""Local training: the hooks of its loop over batches, and its optimiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from coterie.config.local import LocalSGD

__all__ = ["GradientRule", "Penalty", "Quadratic", "Step", "make_optimiser"]


@dataclass(frozen=True)
class Quadratic:
    """The penalty `mu / 2 * ||y - anchor||^2` on the parameters y of a local model.

    Attributes:
        mu: >= 0.
        anchor: [d + b], or [n, d + b] for one anchor per client; None: the model that training starts from.
    """

    mu: float
    anchor: Tensor | None = None

    def add_gradient(self, grad: Tensor, y: Tensor) -> None:
        """Add mu (y - anchor) to `grad` [d], in place, at the parameters y [d]; the anchor must be given."""
        grad.add_(y - cast("Tensor", self.anchor)[: len(y)], alpha=self.mu)

    def shift(self, lr: float, start: Tensor) -> Tensor:
        """What the anchor adds to y in a step of length lr, lr mu anchor; y itself shrinks by lr mu. Training began at `start`."""
        return lr * self.mu * (start if self.anchor is None else self.anchor)


class Step(NamedTuple):
    """What a penalty of the user's own sees of one local step."""

    outputs: Tensor
    inputs: Any
    labels: Tensor
    client: int
    model: torch.nn.Module


Penalty = Quadratic | Callable[[Step], Tensor]
"""A quadratic penalty, or a function of a step that returns a scalar to be added to its loss."""

GradientRule = Callable[[Callable[[Tensor, int], Tensor], Tensor], Tensor]
"""(gradient, y) -> direction [d], where `gradient(y, k)` is the gradient at y [d] on the step's k-th batch; plain: `gradient(y, 0)`.
Random layers draw the same numbers in each call with the same k."""

_CLASSES = {cls.__name__.lower(): cls for cls in vars(torch.optim).values() if isinstance(cls, type)}


def make_optimiser(local: LocalSGD, head: Tensor, lr: float) -> torch.optim.Optimizer | None:
    """The optimiser of one local training; None for plain SGD, which needs no object."""
    if local.optimiser == "sgd" and not local.momentum:
        return None
    further = {"momentum": local.momentum} if local.momentum else {}
    optimiser: Any = _CLASSES[cast("str", local.optimiser)]  # each takes these
    return cast("torch.optim.Optimizer", optimiser([head], lr, weight_decay=local.weight_decay, **further))
