"""Shared by samplers: rows drawn with replacement by weights, and methods that are FedAvg with a sampler.

The losses of drawn rows are not weighted back, so a client trains as if its rows, or its classes, had other shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.algorithms.fedavg import FedAvg, State
from coterie.base.errors import InputError, require
from coterie.base.rng import Rng
from coterie.compute.cohort import Cohort
from coterie.compute.tasks import local_update
from coterie.config.local import LocalSGD
from coterie.config.rules import SHARE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Sampler
from coterie.contract.requests import Asks, asks
from coterie.contract.task import Count, Form, task
from coterie.solvers.sampling import row_weights, with_replacement

Done = Annotated[Tensor, "other", Form(dtype=torch.float32, within=(1.0, 1.0))]
"""1 for each client [n]."""


class Counts(NamedTuple):
    """Rows of each class [n, C]."""

    counts: Count


class Kept(NamedTuple):
    """1 where something was stored [n]."""

    done: Done

    @classmethod
    def by(cls, clients: int) -> Kept:
        """Return the reply of so many clients, in the declared dtype whatever torch's default is."""
        return cls(torch.ones(clients, dtype=torch.float32))


@task
def class_counts(cohort: Cohort) -> Counts:
    """Training rows of each class."""
    classes = number_of_classes(cohort)
    counts = [
        torch.bincount(cohort.labels(i).long().cpu(), minlength=classes)
        for i in range(len(cohort.names))
    ]
    return Counts(torch.stack(counts))


def number_of_classes(cohort: Cohort) -> int:
    """C. Raises `InputError` for labels that are no classes."""
    classes = cohort.workspace.classes
    require(
        classes > 0,
        "this method samples by class; it needs rows with one class each as their labels",
    )
    return classes


def class_shares(counts: Tensor) -> Tensor:
    """Class shares of counts [..., C], float64."""
    return counts / counts.sum(-1, keepdim=True, dtype=torch.float64)


def shares_in_memory(cohort: Cohort, client: int, key: str) -> Tensor:
    """Class shares [C] that the client at this position keeps; [0] if it has none."""
    return (
        cohort.only([client]).state(key, torch.zeros(0, dtype=torch.float64)).values[0]
    )


@options
class Weighted(Sampler):
    """Draws rows with replacement, by weights.

    Attributes:
        sample_ratio: share of its rows that a client draws in a local epoch, in (0, 1].
    """

    sample_ratio: Annotated[float, SHARE] = 1.0

    def weights(self, cohort: Cohort, client: int) -> Tensor:
        """Weights >= 0 of the training rows of the client at this position, [rows]."""
        labels, q = cohort.labels(client).long().cpu(), self.shares(cohort, client)
        if len(q):
            return row_weights(labels, q)
        return torch.ones(len(labels), dtype=torch.float64)

    def shares(self, cohort: Cohort, client: int) -> Tensor:
        """Shares q [C], renormalised over the classes of the client: a class is drawn by q, then one of its rows; [0] for any row."""
        return torch.zeros(0, dtype=torch.float64)

    def rows(
        self, cohort: Cohort, client: int, rng: Rng, steps: int, batch_size: int
    ) -> NDArray[np.int64]:
        """Row numbers [steps, batch_size], with replacement."""
        weights = self.weights(cohort, client)
        drawn: NDArray[np.int64] = with_replacement(
            weights, rng.uniform(steps * batch_size)
        ).numpy()
        return drawn.reshape(steps, batch_size)


@options
class Preset(FedAvg):
    """FedAvg with the sampler of this method, its hook `sampler`.

    Attributes:
        local: settings of local training; its sampler is that of this method.
        lr: server learning rate > 0; 1 is FedAvg's average.
        sample_ratio: share of its rows that a client draws in a local epoch, in (0, 1].
    """

    sample_ratio: Annotated[float, SHARE] = 1.0

    newcomers = False  # samplers may keep what they learned of each client
    exempt: ClassVar[Mapping[str, str]] = {
        "names": "rows are drawn with replacement by the name of the client",
        "diverges": "rows are drawn by their class",
    }

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """FedAvg's, with the sampler of this method."""
        return (asks(local_update, local=self._local),)

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.local.sampler is not None:
            raise InputError(
                f"{name}.local.sampler must be None: {name} brings its own; set it under FedAvg"
            )

    @property
    def _local(self) -> LocalSGD:
        return replace(self.local, sampler=self.sampler)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """FedAvg's round with `federation.clients`."""
        return FedAvg(self._local, self.lr).round(state, federation, rng)
