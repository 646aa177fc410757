"""Uniform-IS: FedAvg whose clients sample their rows evenly over the classes that they have.

Paper: a comparator of Z. Zhu, Y. Shi, P. Fan, C. Peng, K. B. Letaief, "ISFL: Federated Learning for Non-i.i.d. Data with Local
Importance Sampling", 2022, Section V.

Optimises: the mean over clients, by size, of the loss with equally frequent classes.
Sends: d + 1 up, d down (local_update).
Memory: none.

Symbols: q = 1 / C over the C classes that are present at a client; rows are drawn with replacement, a class by q and then one of
its rows, and their losses are not weighted back, so that a client trains as if its classes were equally frequent.

Nothing is asked of anybody, and no class share leaves a client.

Laws (tests/laws): FedAvg with its sampler, bit by bit; with equal class counts rows are drawn evenly; sampled frequencies are q.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.errors import Rules, check_fields, require
from coterie.core.federation import Federation
from coterie.core.method import Log, Method, Sampler
from coterie.core.rng import Rng
from coterie.core.task import Update, task
from coterie.core.training import LocalSGD
from coterie.core.vector import move
from coterie.core.wire import wire_type
from coterie.solvers.sampling import row_weights, with_replacement

__all__ = ["State", "UniformClassSampler", "UniformIS"]


class LocalUpdate(NamedTuple):
    """delta [n, d + b] and training rows [n]."""

    delta: Update
    sizes: Tensor


@task
def local_update(cohort: Cohort, *, x: Tensor, local: LocalSGD) -> LocalUpdate:
    """Local training on sampled rows."""
    return LocalUpdate(cohort.updates(x, local), cohort.sizes)


@wire_type
@dataclass(frozen=True)
class UniformClassSampler(Sampler):
    """Rows evenly over the classes of a client, for any method: `LocalSGD(sampler=UniformClassSampler())`.

    Attributes:
        sample_ratio: share of its rows that a client draws in a local epoch, in (0, 1].
    """

    sample_ratio: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, sample_ratio=Rules.SHARE)

    def rows(self, cohort: Cohort, client: int, rng: Rng, steps: int, batch_size: int) -> NDArray[np.int64]:
        """Row numbers [steps, batch_size], with replacement."""
        classes = cohort.workspace.classes
        require(classes > 0, "UniformClassSampler samples by class; it needs rows with one class each as their labels")
        labels = cohort.labels(client).long().cpu()
        weights = row_weights(labels, torch.full((classes,), 1 / classes, dtype=torch.float64))
        drawn: NDArray[np.int64] = with_replacement(weights, rng.uniform(steps * batch_size)).numpy()
        return drawn.reshape(steps, batch_size)


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@dataclass(frozen=True)
class UniformIS(Method[State]):
    """Average by size what clients learn from rows that are sampled evenly over their classes.

    Attributes:
        local: settings of local training; its sampler is that of this method.
        lr: server learning rate > 0; 1 is FedAvg's average.
        sample_ratio: share of its rows that a client draws in a local epoch, in (0, 1].

    >>> import coterie as ct, torch
    >>> y = torch.tensor([0] * 90 + [1] * 10)  # the same inputs for both classes
    >>> clients = ct.data.from_tensors([(torch.ones(100, 1), y)])
    >>> local = ct.LocalSGD(lr=0.2, batch_size=100, steps=ct.Steps(50))
    >>> found = [ct.fit(m, clients, ct.models.Logistic(), 3).x.sum() for m in (ct.FedAvg(local), ct.UniformIS(local))]
    >>> [round(float(x.sigmoid()), 1) for x in found]  # probability of class 1
    [0.1, 0.5]
    """

    local: LocalSGD = LocalSGD()
    lr: float = 1.0
    sample_ratio: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, lr=Rules.POSITIVE, sample_ratio=Rules.SHARE)
        alone = self.local.sampler is None
        require(alone, "UniformIS.local.sampler must be None: UniformIS brings its own; set it under FedAvg")

    @property
    def sampler(self) -> UniformClassSampler:
        """Chooses the rows."""
        return UniformClassSampler(self.sample_ratio)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(self, state: State, federation: Federation, rng: Rng) -> tuple[State, Log]:
        """FedAvg's round with `federation.clients`."""
        local = replace(self.local, sampler=self.sampler)
        got = federation.ask(federation.clients, local_update, x=state.x, local=local)
        weights = got.sizes / got.sizes.sum()
        x = move(state.x, weights, got.delta, self.lr, federation.dim)
        return State(x), {"weights": got.named(weights)}

    def models(self, state: State) -> Tensor:
        """One model for everybody."""
        return state.x
