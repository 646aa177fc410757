r"""CFL: average until clients pull apart, then split the group in two by the directions of their updates, and again.

Paper: F. Sattler, K.-R. Müller, W. Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under
Privacy Constraints", IEEE Transactions on Neural Networks and Learning Systems 2021, Algorithms 1 to 3.

Optimises: the mean loss over the rows of each group, where groups are found on the way.
Sends: d + 1 up, d down (local_update).
Shows: the model of its group.
Memory: none.
Use: clients fall into groups with contradictory data, and nobody knows how many.
Avoid: rounds are short or few take part: a group is split only in a round in which all of it replied.
Formula: \Bigl\| \sum_k p_k \delta_k \Bigr\| < \varepsilon_1 < \varepsilon_2 < \max_k \|\delta_k\| \; \Rightarrow \; \text{split}

Symbols: x = theta_c of the group, delta_k = Delta theta_k (added), similar = alpha_kl = cos(delta_k, delta_l), eps1, eps2.

A group is split if its mean update is shorter than eps1 while the longest of its updates is longer than eps2. Of all ways to
split it in two, the one is taken whose largest cosine between the two parts is least, found exactly: the weakest edge of the
largest spanning tree parts them. Each part then averages the same updates by itself.

Differences from the paper: the bound on the cosine below which a split is said to be right (gamma_max) is left out. eps1 and eps2 are
lengths of updates, so they depend on model and learning rate.

Laws:
- eps1 = 0 is FedAvg, bit by bit:
  tests/methods/test_cfl.py::test_without_a_split_it_is_fedavg_bit_by_bit
- a split has the least largest cosine of all splits:
  tests/methods/test_cfl.py::test_a_split_has_the_least_largest_cosine_of_all
- two groups with opposite data are split once, and each goes to its own mean:
  tests/methods/test_cfl.py::test_opposite_groups_are_split_where_the_mean_stands_still
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.rng import Rng
from coterie.base.vector import average
from coterie.compute.server_averages import average_groups
from coterie.compute.tasks import local_update
from coterie.config.local import LocalSGD
from coterie.config.rules import NOT_NEGATIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.wire import PerClient


def halves(similar: Tensor) -> Tensor:
    """Split n >= 2 clients in two such that the largest similarity [n, n] between the parts is least; bool [n], the first is False.

    >>> halves(torch.tensor([[1, 0.9, -0.8], [0.9, 1, -0.7], [-0.8, -0.7, 1]])).tolist()
    [False, False, True]
    """
    n = len(similar)
    parent, strength = torch.zeros(n, dtype=torch.int64), similar[0].clone()
    waiting = list(range(1, n))
    edges = []
    while waiting:  # Prim's largest spanning tree
        child = max(waiting, key=strength.__getitem__)
        waiting.remove(child)
        edges.append((child, int(parent[child]), float(strength[child])))
        closer = similar[child] > strength
        parent[closer], strength[closer] = child, similar[child][closer]
    weakest = min(range(n - 1), key=lambda k: edges[k][2])
    part = torch.zeros(n, dtype=torch.bool)
    part[edges[weakest][0]] = True
    for child, ancestor, _ in edges[
        weakest + 1 :
    ]:  # clients that joined the tree through that child
        part[child] = part[ancestor]
    return part


class State(NamedTuple):
    """Names of all N clients, the group of each, int64 [N], and their models [N, d + b], equal within a group."""

    names: tuple[str, ...]
    cluster: Tensor
    x: Tensor


@options
class CFL(Method[State]):
    """Average by size in each group, and split a group whose mean stands still while some of it pull.

    Attributes:
        local: settings of local training.
        eps1: >= 0: a group is split if its mean update is shorter, 0 for never.
        eps2: >= 0: and the longest update of its clients longer.

    >>> import coterie as ct, torch
    >>> centres = {"a": -1.0, "b": -1.1, "c": 1.0, "d": 1.1}
    >>> clients = ct.data.from_tensors({k: (torch.ones(30, 1), torch.full((30,), v)) for k, v in centres.items()})
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.CFL(local, eps1=0.1, eps2=0.4), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=30)
    >>> {name: round(float(x), 2) for name, x in run.models.items()}
    {'a': -1.05, 'b': -1.05, 'c': 1.05, 'd': 1.05}
    """

    local: LocalSGD = LocalSGD()
    eps1: Annotated[float, NOT_NEGATIVE] = 0.4
    eps2: Annotated[float, NOT_NEGATIVE] = 1.6

    needs = "pairs"
    tasks = (local_update,)

    def init(self, x: Tensor, federation: Federation) -> State:
        """One group of all clients, from x."""
        n = len(federation.everyone)
        return State(
            federation.everyone, torch.zeros(n, dtype=torch.int64), x.repeat(n, 1)
        )

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        start = PerClient(state.x[federation.positions(federation.clients)])
        replies = federation.ask(
            federation.clients, local_update, x=start, local=self.local
        )
        positions = federation.positions(replies.clients)
        cluster = self._split(
            state.cluster, positions, replies.sizes, replies.delta[:, : federation.dim]
        )
        x, weights = average_groups(federation, state.x, cluster, replies)
        return State(state.names, cluster, x), {
            "weights": weights,
            "groups": len(cluster.unique()),
        }

    def _split(
        self, cluster: Tensor, positions: Tensor, sizes: Tensor, deltas: Tensor
    ) -> Tensor:
        """The group of each client [N] after all groups were split whose members all replied, at `positions`, and pull apart."""
        split_cluster = cluster.clone()
        for group in cluster.unique().tolist():
            replied = cluster[positions] == group
            # A group is split by the updates of all its members alone: an absent one would belong to neither part.
            if not 2 <= int(replied.sum()) == int((cluster == group).sum()):
                continue
            updates = deltas[replied].double().cpu()
            norms = torch.linalg.vector_norm(updates, dim=1)
            if (
                average(sizes[replied], updates).norm() < self.eps1
                and norms.max() > self.eps2
            ):
                units = (
                    updates / norms.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
                )
                split_cluster[positions[replied][halves(units @ units.T)]] = (
                    int(split_cluster.max()) + 1
                )
        return split_cluster

    def models(self, state: State) -> dict[str, Tensor]:
        """The model of each client's group."""
        return dict(zip(state.names, state.x, strict=True))

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return 3 * per_round + 2 * clients
