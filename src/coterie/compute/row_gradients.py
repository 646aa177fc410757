"""Gradients of single rows at the loaded model, and the sum of them where each has a bound."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from coterie.base.rows import Inputs, each_tensor, take
from coterie.compute.kernels import finite, shares_within
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


def clipped_sum(
    workspace: Workspace, inputs: Inputs, labels: Tensor, bound: float | None
) -> Tensor:
    """Sum over rows of their gradients at the loaded model, each scaled to a length of `bound` at most (None: as it is) [d].

    Kernels make no gradient of a row; elsewhere at most `ROW_GRADIENTS` numbers of them are held at once. A row without finite
    gradient counts 0, where there is a bound.
    """
    if workspace.of_rows is not None and isinstance(inputs, Tensor):
        loss = workspace.loss
        return workspace.of_rows.clipped_sum(
            workspace.head, inputs, loss.plain(labels), bound, loss.weights(labels)
        )
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
        if not bool(norms.isfinite().all()):
            gradients = finite(gradients)
        total += shares_within(norms, bound) @ gradients
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
