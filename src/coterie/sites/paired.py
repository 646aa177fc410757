"""Verdicts without rows: of a paired difference a site tells its standard error and p value, and nothing else.

After the last round of each method and seed the site notes what the model says of each of its test rows (`sites.noted`). When all have
run, it is asked how uncertain the differences are. It resamples its patients with random numbers that follow from a key of the site and
from the differences themselves: the same question has the same answer, and who lacks the key cannot solve for rows.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Protocol

import torch
from torch import Tensor

from coterie.compute.outcomes import CONSTANT
from coterie.contract.task import Flag, Form, ModelOrOwn, task
from coterie.run.experiment import Experiment

__all__ = ["DECIDING", "comparisons", "note_outcomes", "paired_errors"]

DECIDING = ("auc", "loss", "rmse")
"""Metrics of whose differences errors are told, in the order of the reply."""


def comparisons(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    """Return which methods an experiment compares: each with the one that trains each client alone, and with a constant prediction."""
    labels = experiment.labels
    alone = next((entry.label for entry in experiment.methods if entry.name == "local"), None)
    pairs = [(label, alone) for label in labels if alone is not None and label != alone]
    return (*pairs, *((label, CONSTANT) for label in labels))


class TestRows(Protocol):
    """The cohort of the tasks below: one site."""

    def note(self, x: Tensor) -> bool:
        """Keep what model x [d + b] says of each test row; False where there are none."""
        ...

    def error(self, method: str, other: str, metric: str) -> tuple[float, float] | None:
        """Standard error and p value of `method` minus `other`, mean over seeds; None if nothing may be said."""
        ...


class Done(NamedTuple):
    """Reply of `note_outcomes`: for each client [n] if it has test rows."""

    done: Flag


def _form(dtype: torch.dtype = torch.float64, highest: float = float("inf")) -> Form:
    return Form(lambda payload, layout: (len(DECIDING),), dtype, (0.0, highest))


class PairedErrors(NamedTuple):
    """For each of `DECIDING` the standard error, p value and whether they are told, [n, 3]; 0 where they are not."""

    error: Annotated[Tensor, "other", _form()]
    p: Annotated[Tensor, "other", _form(highest=1.0)]
    known: Annotated[Tensor, "other", _form(torch.bool, 1.0)]


@task
def note_outcomes(cohort: TestRows, *, x: ModelOrOwn) -> Done:
    """Note at the site what the last model x [d + b] of this method and seed says of each test row."""
    return Done(torch.tensor([cohort.note(x.reshape(-1))]))


@task
def paired_errors(cohort: TestRows, *, method: str, other: str) -> PairedErrors:
    """How uncertain the differences between two methods are over the site's test rows."""
    errors = [cohort.error(method, other, metric) for metric in DECIDING]
    numbers = torch.tensor([[pair or (0.0, 0.0) for pair in errors]], dtype=torch.float64)
    return PairedErrors(numbers[:, :, 0], numbers[:, :, 1], torch.tensor([[pair is not None for pair in errors]]))
