"""p_j-IS: FedAvg whose clients sample their rows by the class shares of all clients together.

Paper: a comparator of Z. Zhu, Y. Shi, P. Fan, C. Peng, K. B. Letaief, "ISFL: Federated Learning for Non-i.i.d. Data with Local
Importance Sampling", 2022, Section V: the first term of its Eq. 15.

Optimises: the mean over clients, by size, of the loss with the class shares of all.
Sends: d + 1 up, d down (local_update); C up, 0 down (class_counts: once, C classes); 0 up, C down (keep_shares: once).
Memory: C numbers: the class shares of all.

Symbols: q = p, the global class shares; rows are drawn with replacement, a class by q (renormalised over those that the client
has) and then one of its rows, and their losses are not weighted back.

Every client tells its class counts once, before the first round, and is told p, which it keeps; so p counts from the first round
on, while ISFL's first round draws any row. A client that has lost p draws any row.

Laws (tests/laws): FedAvg with its sampler, bit by bit; ISFL with equal Lipschitz constants draws the same rows, bit by bit.
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

__all__ = ["ClassShareSampler", "PjIS", "State"]

SHARES = "class-shares"
"""Name of p in client memory."""


class LocalUpdate(NamedTuple):
    """delta [n, d + b] and training rows [n]."""

    delta: Update
    sizes: Tensor


class Counts(NamedTuple):
    """Rows of each class [n, C]."""

    counts: Tensor


class Kept(NamedTuple):
    """1 where p was stored [n]."""

    done: Tensor


@task
def class_counts(cohort: Cohort) -> Counts:
    """Training rows of each class."""
    classes = cohort.workspace.classes
    require(classes > 0, "ClassShareSampler samples by class; it needs rows with one class each as their labels")
    found = [torch.bincount(cohort.labels(i).long().cpu(), minlength=classes) for i in range(len(cohort.names))]
    return Counts(torch.stack(found))


@task
def keep_shares(cohort: Cohort, *, p: Tensor) -> Kept:
    """Store p [C]."""
    cohort.memory.put(SHARES, p.expand(len(cohort.names), -1))
    return Kept(torch.ones(len(cohort.names)))


@task
def local_update(cohort: Cohort, *, x: Tensor, local: LocalSGD) -> LocalUpdate:
    """Local training on sampled rows."""
    return LocalUpdate(cohort.updates(x, local), cohort.sizes)


@wire_type
@dataclass(frozen=True)
class ClassShareSampler(Sampler):
    """Rows by the class shares of all clients together, for any method: `LocalSGD(sampler=ClassShareSampler())`.

    Attributes:
        sample_ratio: share of its rows that a client draws in a local epoch, in (0, 1].
    """

    sample_ratio: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, sample_ratio=Rules.SHARE)

    def check(self, federation: Federation) -> None:
        """Ask everybody for class counts, and tell them p. Raises `InputError` for rows without classes."""
        got = federation.ask(federation.everyone, class_counts)
        total = got.counts.sum(0)
        federation.ask(got.clients, keep_shares, p=total / total.sum(dtype=torch.float64))

    def rows(self, cohort: Cohort, client: int, rng: Rng, steps: int, batch_size: int) -> NDArray[np.int64]:
        """Row numbers [steps, batch_size], with replacement; any row where p is not known."""
        labels = cohort.labels(client).long().cpu()
        p = cohort.only([client]).memory.get(SHARES, torch.zeros(0, dtype=torch.float64))[0]
        weights = row_weights(labels, p) if len(p) else torch.ones(len(labels), dtype=torch.float64)
        drawn: NDArray[np.int64] = with_replacement(weights, rng.uniform(steps * batch_size)).numpy()
        return drawn.reshape(steps, batch_size)


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@dataclass(frozen=True)
class PjIS(Method[State]):
    """Average by size what clients learn from rows that are sampled by the class shares of all clients.

    Attributes:
        local: settings of local training; its sampler is that of this method.
        lr: server learning rate > 0; 1 is FedAvg's average.
        sample_ratio: share of its rows that a client draws in a local epoch, in (0, 1].

    >>> import coterie as ct, torch
    >>> labels = {"a": [0] * 90 + [1] * 10, "b": [1] * 300}  # the same inputs for both classes
    >>> clients = ct.data.from_tensors({k: (torch.ones(len(y), 1), torch.tensor(y)) for k, y in labels.items()})
    >>> local = ct.LocalSGD(lr=0.2, batch_size=100, steps=ct.Steps(50))
    >>> methods = ct.FedAvg(local), ct.PjIS(local)
    >>> found = [ct.fit(m, clients, ct.models.Logistic(), 1, seed=2, clients_per_round=1).x.sum() for m in methods]
    >>> [round(float(x.sigmoid()), 1) for x in found]  # probability of class 1 after training at a alone
    [0.1, 0.8]
    """

    local: LocalSGD = LocalSGD()
    lr: float = 1.0
    sample_ratio: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, lr=Rules.POSITIVE, sample_ratio=Rules.SHARE)
        alone = self.local.sampler is None
        require(alone, "PjIS.local.sampler must be None: PjIS brings its own; set it under FedAvg")

    @property
    def sampler(self) -> ClassShareSampler:
        """Chooses the rows."""
        return ClassShareSampler(self.sample_ratio)

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
