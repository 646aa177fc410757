"""Gradients of single rows at the loaded model, and the sum of them where each has a bound."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from coterie.base.rows import Inputs, each_tensor, take
from coterie.compute.kernels import ClippedSums, make_finite, shares_within
from coterie.compute.workspace import Workspace

logger = logging.getLogger("coterie")
ROW_GRADIENTS = 1 << 22
"""Numbers in the gradients of rows that are held at once, where they are summed."""


def row_gradients(workspace: Workspace, inputs: Inputs, labels: Tensor) -> Tensor:
    """Gradient of the loss of each row at the loaded model [rows, d]; the model must be in eval mode.

    Vectorised over the rows where that is faster; for models that this cannot do (LSTM, control flow on values) row by row, which
    is logged once.
    """
    if workspace.vectorised:
        try:
            return _gradients_by_vmap(workspace, inputs, labels)
        except Exception as error:
            workspace.vectorised = False
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            logger.info(
                "gradients of single rows are computed one by one, which is slower (%s)",
                why,
            )
    slices = [slice(i, i + 1) for i in range(len(labels))]
    return torch.stack(
        [workspace.flat_gradient(take(inputs, row), labels[row]) for row in slices]
    )


def clipped_sums(
    workspace: Workspace, inputs: Inputs, labels: Tensor, bound: float | None
) -> Callable[[], Tensor]:
    """What gives the sum over rows of their gradients at the loaded model, each scaled to a length of `bound` at most [d].

    Without bound (None) gradients are as they are; else a row without finite gradient counts 0. What is returned may be written over
    by the next call. Kernels make no gradient of a row; elsewhere at most `ROW_GRADIENTS` numbers of them are held at once.
    """
    if workspace.of_rows is not None and isinstance(inputs, Tensor):
        loss = workspace.loss
        plain, weights = loss.plain(labels), loss.weights(labels)
        sums = ClippedSums(
            workspace.of_rows, workspace.head, inputs, plain, bound, weights
        )
        return sums.at_model
    return partial(_sum_of_gradients, workspace, inputs, labels, bound)


def _sum_of_gradients(
    workspace: Workspace, inputs: Inputs, labels: Tensor, bound: float | None
) -> Tensor:
    dim = workspace.layout.dim
    total = workspace.x.new_zeros(dim)
    height = max(1, ROW_GRADIENTS // dim)
    for low in range(0, len(labels), height):
        piece = slice(low, low + height)
        gradients = row_gradients(workspace, take(inputs, piece), labels[piece])
        if bound is None:
            total += gradients.sum(0)
            continue
        norms = torch.linalg.vector_norm(gradients, dim=1)
        # A share of 0 does not make 0 of a number that is not finite.
        shares = torch.where(norms.isfinite(), shares_within(norms, bound), 0.0)
        if not bool(norms.isfinite().all()):
            gradients = make_finite(gradients)
        total += shares @ gradients
    return total


def _gradients_by_vmap(workspace: Workspace, inputs: Inputs, labels: Tensor) -> Tensor:
    named = dict(workspace.model.named_parameters())
    names = [name for name, _ in workspace.layout.parameters]

    def loss_of_row(
        parameters: dict[str, Tensor], row: Inputs, label: Tensor
    ) -> Tensor:
        batch = each_tensor(lambda value: value[None], row)
        outputs = torch.func.functional_call(workspace.model, parameters, (batch,))
        return workspace.loss.rows(outputs, label[None]).sum()

    parameters = {name: named[name].detach() for name in names}
    # The same parameters for all rows; rows and labels along their first dimension.
    of_rows = torch.func.vmap(torch.func.grad(loss_of_row), in_dims=(None, 0, 0))
    gradients = of_rows(parameters, inputs, labels)
    flat = [gradients[name].reshape(len(labels), -1) for name in names]
    return torch.cat(flat, dim=1)
