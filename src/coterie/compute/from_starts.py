"""Local training from several models by the same batches, as methods with a model per target ask for it."""

from __future__ import annotations

from torch import Tensor

from coterie.compute.cohort_rows import CohortRows
from coterie.compute.columns import COLUMNS, Columns
from coterie.compute.local_training import LocalTraining
from coterie.compute.side_by_side import SideBySide
from coterie.config.local import LocalSGD


def updates_from(cohort: CohortRows, starts: Tensor, local: LocalSGD) -> Tensor:
    """Train from each of the models [T, d + b] by the same batches, planned once; return updates [n, T, d + b].

    Linear models train some at a time as columns of one; no bit of an update depends on how many there are. A sampler, which may look
    at the model, is not for this.
    """
    training = LocalTraining(cohort, starts[0], local)
    if training.is_plain and cohort.workspace.columns is not None:
        return _as_columns(training, starts, cohort.workspace.columns)
    training.comes_again = len(starts) > 1
    updates = starts.new_empty(len(cohort.names), *starts.shape)
    for number, start in enumerate(starts):
        training.x, training.start = start, number
        updates[:, number] = training.models(relative=True)
    return updates


def _as_columns(training: LocalTraining, starts: Tensor, columns: Columns) -> Tensor:
    """Train `COLUMNS` models at a time."""
    cohort = training.cohort
    several_calls = len(starts) > COLUMNS
    side_by_side = SideBySide(
        cohort, columns.kernel, training.numbers(), several_calls, columns.widen
    )
    updates = starts.new_empty(len(cohort.names), *starts.shape)
    for number in range(0, len(starts), COLUMNS):
        part = starts[number : number + COLUMNS]
        training.x = columns.pack(part)
        wide = starts.new_empty(len(updates), columns.dim)
        side_by_side.train(
            training.x,
            training.rule_of_steps(),
            wide,
            relative=True,
            models=len(part),
        )
        updates[:, number : number + len(part)] = columns.unpack(wide, len(part))
    return updates
