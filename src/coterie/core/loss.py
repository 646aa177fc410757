"""Losses: per row, and how `loss="auto"` reads a model and its labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.errors import InputError

__all__ = ["Kind", "Loss", "RowLoss", "choose_loss", "probabilities"]

Kind = Literal["binary", "classes", "regression", "own"]
RowLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) -> loss of each row [rows]."""


class Loss:
    """A loss per row with the `kind` of task that it stands for.

    Attributes:
        kind: `binary` (one logit), `classes` (C logits in dimension 1), `regression` (squared error) or `own`.
    """

    def __init__(self, kind: Kind, own: RowLoss | None = None) -> None:
        self.kind = kind
        self._own = own

    def rows(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of each row [rows]; further dimensions (pixels, positions) are averaged."""
        if self._own is not None:
            per_row = self._own(outputs, labels)
            if per_row.shape != labels.shape[:1]:
                raise InputError(
                    f"the loss returned shape {tuple(per_row.shape)}; it must return one number per row: ({labels.shape[0]},)"
                )
            return per_row
        if self.kind == "classes":
            values = F.cross_entropy(outputs, labels.long(), reduction="none")
        elif self.kind == "binary":
            values = F.binary_cross_entropy_with_logits(
                _squeeze(outputs, labels), labels.to(outputs.dtype), reduction="none"
            )
        else:
            values = F.mse_loss(_squeeze(outputs, labels), labels.to(outputs.dtype), reduction="none")
        return values if values.ndim == 1 else values.flatten(1).mean(1)

    def mean(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over rows, a scalar."""
        if self.kind == "classes":
            return F.cross_entropy(outputs, labels if labels.dtype == torch.int64 else labels.long())
        if self.kind == "binary":
            return F.binary_cross_entropy_with_logits(_squeeze(outputs, labels), labels.to(outputs.dtype))
        return self.rows(outputs, labels).mean()


def _squeeze(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.squeeze(1) if outputs.ndim == labels.ndim + 1 and outputs.shape[1] == 1 else outputs


def choose_loss(loss: str | RowLoss, outputs: Tensor, labels: Tensor) -> Loss:
    """The loss that `loss` names, checked against one batch of outputs and labels.

    `"auto"`: float labels: squared error; one logit per label: binary cross-entropy; C logits in dimension 1: cross-entropy.
    Raises `InputError` if outputs and labels do not fit.
    """
    if callable(loss):
        return Loss("own", loss)
    if loss != "auto":
        raise InputError(f'loss must be "auto" or a callable (outputs, labels) -> [rows]; got {loss!r}')
    shapes = f"outputs of shape {tuple(outputs.shape)} for labels of shape {tuple(labels.shape)}"
    one_logit = outputs.shape == labels.shape or (outputs.ndim == labels.ndim + 1 and outputs.shape[1] == 1)
    if labels.is_floating_point():
        if not one_logit:
            raise InputError(f"the model gives {shapes}; for regression they must agree")
        return Loss("regression")
    if one_logit:
        return Loss("binary")
    if outputs.ndim == labels.ndim + 1 and outputs.shape[2:] == labels.shape[1:]:
        return Loss("classes")
    raise InputError(f"the model gives {shapes}; classification needs one logit, or C logits in dimension 1")


def probabilities(kind: Kind, outputs: Tensor) -> Tensor:
    """Class probabilities [rows, C, ...] of outputs; for one logit C = 2. Own losses are read as C logits in dimension 1."""
    if kind == "binary":
        logit = outputs.squeeze(1) if outputs.ndim > 1 and outputs.shape[1] == 1 else outputs
        positive = torch.sigmoid(logit)
        return torch.stack([1 - positive, positive], dim=1)
    return torch.softmax(outputs, dim=1)
