"""Where kernels read rows: by their numbers among those of all clients of this process."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from coterie.base.rows import Rows, take
from coterie.compute.segments import RowSource
from coterie.compute.workspace import Workspace


def source_of(workspace: Workspace, all_rows: Rows) -> RowSource:
    """Return where a kernel reads these rows, as the model of the workspace takes them."""
    labels, loss = all_rows.labels, workspace.loss

    def read_inputs(numbers: Tensor) -> Tensor:
        # No kernel takes a dict.
        return cast("Tensor", workspace.prepare(take(all_rows.inputs, numbers)))

    def read_labels(numbers: Tensor) -> Tensor:
        chosen = labels.index_select(0, numbers.to(labels.device))
        return loss.plain(chosen).to(workspace.device)

    if loss.weighted is None:
        return RowSource(read_inputs, read_labels)
    (weights,) = labels[:, -1:].unbind(1)

    def read_weights(numbers: Tensor) -> Tensor:
        chosen = weights.index_select(0, numbers.to(weights.device))
        return chosen.to(workspace.device)

    return RowSource(read_inputs, read_labels, read_weights)
