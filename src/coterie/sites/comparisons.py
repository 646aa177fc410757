"""Verdicts without rows: of a paired difference a site tells mean, standard error and p value, and nothing of single rows or folds.

After the last round of each method, seed and fold the site keeps what the model says of each of its test rows
(`sites.kept_outcomes`). When all have run, it is asked how methods differ. It resamples its patients with random numbers that follow
from a key of the site and from the differences themselves: the same question has the same answer, and who lacks the key cannot solve
for rows.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, Protocol

import torch
from torch import Tensor

from coterie.compute.outcomes import BOOSTED, CONSTANT
from coterie.contract.task import Flag, Form, ModelOrOwn, Size, task
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.run.experiment import Experiment
from coterie.study.rivals import BASELINE

TOLD = ("auc", "loss", "rmse", "mse", "accuracy", "c_index")
"""Metrics of whose differences a site tells, in the order of the reply; `mse` is a share of the variance of the site's labels, and
`c_index` Harrell's C of time to event."""


def comparisons(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    """Return which methods an experiment compares: each with its rivals, and with a constant prediction.

    The rivals are the method that trains each client alone, and boosted trees of the client's own where sites fit them.
    """
    labels, baseline = experiment.labels, baseline_of(experiment)
    federated = [label for label in labels if baseline and label != baseline]
    pairs = [(label, baseline) for label in federated]
    if federated and fits_boosted_at_sites(experiment):
        pairs += [(label, BOOSTED) for label in labels]
    return (*pairs, *((label, CONSTANT) for label in labels))


def baseline_of(experiment: Experiment) -> str:
    """Return the label of the method that trains each client alone; "" where there is none."""
    alone = (entry.label for entry in experiment.methods if entry.name == BASELINE)
    return next(alone, "")


def fits_boosted_at_sites(experiment: Experiment) -> bool:
    """Return True if sites are to fit boosted trees of their own, whose losses stay there.

    Not without folds, where a verdict needs the gain of each seed, which is not told. Nor behind secret noise: it hides what
    one row adds to a sum, and one row may change the loss of every other one under the trees.
    """
    is_hidden = any(
        isinstance(step, GaussianNoise) and step.secret for step in experiment.filters
    )
    is_rival = "boosted" in experiment.run.rivals and bool(experiment.folds)
    return is_rival and not is_hidden and not callable(experiment.run.loss)


class Paired(NamedTuple):
    """One metric as a site tells it: `method` minus `other` and the metric of `method` itself, mean over seeds."""

    error: float
    p: float
    gap: float
    value: float


class TestRows(Protocol):
    """The cohort of the tasks below: one site."""

    def note(self, x: Tensor) -> bool:
        """Keep what model x [d + b] says of each test row; False where there are none."""

    def compare(self, method: str, other: str, metric: str) -> Paired | None:
        """Compare `method` with `other`; None if nothing may be said."""

    def counts(self, method: str) -> tuple[int, int]:
        """Test rows (patients, where one has several), in all and of the rarest class; 0 for what too few stand behind."""


class Done(NamedTuple):
    """Reply of `note_outcomes`: for each client [n] if it has test rows."""

    done: Flag


def _form(
    dtype: torch.dtype = torch.float64, highest: float = math.inf, lowest: float = 0.0
) -> Form:
    return Form((len(TOLD),), dtype, (lowest, highest))


class PairedErrors(NamedTuple):
    """For each of `TOLD` the standard error and p value of the difference, the difference, the metric of the method itself and whether
    they are told, [n, 5], 0 where they are not; and the test rows, in all and of the rarest class, [n].
    """

    error: Annotated[Tensor, "other", _form()]
    p: Annotated[Tensor, "other", _form(highest=1.0)]
    gap: Annotated[Tensor, "other", _form(lowest=-math.inf)]
    value: Annotated[Tensor, "other", _form()]
    known: Annotated[Tensor, "other", _form(torch.bool, 1.0)]
    tested: Size
    rarest: Size


@task
def note_outcomes(cohort: TestRows, *, x: ModelOrOwn) -> Done:
    """Note at the site what the last model x [d + b] of this method and seed says of each test row."""
    return Done(torch.tensor([cohort.note(x.reshape(-1))]))


@task
def paired_errors(cohort: TestRows, *, method: str, other: str) -> PairedErrors:
    """Measure how uncertain the differences between two methods are over the site's test rows."""
    told, pairs = [], []
    for metric in TOLD:
        pair = cohort.compare(method, other, metric)
        told.append(pair is not None)
        pairs.append(pair or Paired(0.0, 0.0, 0.0, 0.0))
    # The cohort of a site is one client: the first dimension is 1.
    numbers = torch.tensor([pairs], dtype=torch.float64)
    error, p, gap, value = numbers.unbind(2)
    counts = torch.tensor([cohort.counts(method)], dtype=torch.float64)
    tested, rarest = counts.unbind(1)
    return PairedErrors(error, p, gap, value, torch.tensor([told]), tested, rarest)
