r"""p_j-IS: FedAvg whose clients sample their rows by the class shares of all clients together.

Paper: a comparator of Z. Zhu, Y. Shi, P. Fan, C. Peng, K. B. Letaief, "ISFL: Federated Learning for Non-i.i.d. Data with Local
Importance Sampling", 2022, Section V: the first term of its Eq. 15.

Optimises: the mean over clients, by size, of the loss with the class shares of all.
Sends: d + 1 up, d down (local_update); C up, 0 down (class_counts: once, C classes); 0 up, C down (keep_shares: once).
Memory: C numbers: the class shares of all.
Use: clients hold the classes in different shares, and may tell their class counts.
Avoid: class counts may not leave a client, or a client lacks classes altogether: sampling cannot make up for them.
Formula: q_{k,i} = \frac{p_i}{\sum_{j \in C_k} p_j} \; (i \in C_k), \quad x \leftarrow x + \eta \sum_{k \in S}
\frac{n_k}{\sum_{j \in S} n_j} \, \delta_k

Symbols: q = p, the global class shares; rows are drawn with replacement, a class by q (renormalised over those that the client
has) and then one of its rows, and their losses are not weighted back.

Every client tells its class counts once, before the first round, and is told p, which it keeps; so p counts from the first round
on, while ISFL's first round draws any row. A client that has lost p draws any row in that round, after which all tell their counts and
are told p again.

Laws:
- FedAvg with its sampler, bit by bit:
  tests/methods/test_pj_is.py::test_it_is_fedavg_with_its_sampler_bit_by_bit
- ISFL with equal Lipschitz constants draws the same rows, bit by bit:
  tests/methods/test_pj_is.py::test_pj_is_is_isfl_with_equal_constants_bit_by_bit
- sampled frequencies are p:
  tests/methods/test_pj_is.py::test_rows_come_as_often_as_they_should
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from coterie.compute.cohort import Cohort
from coterie.config.schema import options, wire_type
from coterie.contract.federation import Federation
from coterie.contract.method import Log
from coterie.contract.task import Holds, task
from coterie.samplers.weighted import (
    Kept,
    Preset,
    Weighted,
    class_counts,
    class_shares,
    shares_in_memory,
)

SHARES = "class-shares"
"""Name in client memory of the class shares p of all clients."""


@task
def keep_shares(
    cohort: Cohort,
    *,
    p: Annotated[Tensor, Holds(("classes",), torch.float64, (0.0, 1.0001))],
) -> Kept:
    """Store p [C]."""
    cohort.keep(SHARES, p.expand(len(cohort.names), -1))
    return Kept.by(len(cohort.names))


@wire_type
@options
class ClassShareSampler(Weighted):
    """Rows by the class shares of all clients together: q = p, the first term of ISFL's Eq. 15.

    Before the first round every client sends its class counts once, receives p and keeps it. A participant that has lost p draws from
    all its rows, and the exchange is repeated after the round.

    >>> import coterie as ct
    >>> local = ct.LocalSGD(sampler=ct.ClassShareSampler())
    >>> run = ct.fit(ct.FedProx(local=local, mu=0.1), "heart-disease", rounds=2)  # a sampler works under any method
    >>> [ask.task.rpartition(":")[2] for ask in run.asks if "class" in ask.task]  # clients send their counts of classes once
    ['class_counts']
    """

    tasks = (class_counts, keep_shares)

    def check(self, federation: Federation) -> None:
        """Ask all clients for class counts, and tell them p. Raises `InputError` for rows without classes."""
        replies = federation.ask(federation.everyone, class_counts)
        federation.ask(
            replies.clients, keep_shares, p=class_shares(replies.counts.sum(0))
        )

    def after_round(self, x: Tensor | None, federation: Federation) -> Log:
        """Begin again if a participant does not have p."""
        lost = [
            name
            for name in federation.clients
            if name not in federation.holders(SHARES)
        ]
        if lost:
            self.check(federation)
        if not lost:
            return {}
        return {"shares_lost": dict.fromkeys(lost, 1.0)}

    def shares(self, cohort: Cohort, client: int) -> Tensor:
        """p, where it is known."""
        return shares_in_memory(cohort, client, SHARES)


@options
class PjIS(Preset):
    """Average by size what clients learn from rows that are sampled by the class shares of all clients.

    >>> import coterie as ct, torch
    >>> labels = {"a": [0] * 90 + [1] * 10, "b": [1] * 300}  # the same inputs for both classes
    >>> clients = ct.data.from_tensors({k: (torch.ones(len(y), 1), torch.tensor(y)) for k, y in labels.items()})
    >>> local = ct.LocalSGD(lr=0.2, batch_size=100, steps=ct.Steps(50))
    >>> methods, one = (ct.FedAvg(local), ct.PjIS(local)), ct.RunSettings(clients_per_round=1)
    >>> found = [ct.fit(m, clients, ct.models.Logistic(), 1, seed=2, settings=one).x.sum() for m in methods]
    >>> [round(float(x.sigmoid()), 1) for x in found]  # probability of class 1 after training at a alone
    [0.1, 0.8]
    """

    @property
    def sampler(self) -> ClassShareSampler:
        """Chooses the rows."""
        return ClassShareSampler(self.sample_ratio)
