r"""IFCA: as many models as there are groups; each client trains the one that fits its rows best.

Paper: A. Ghosh, J. Chung, D. Yin, K. Ramchandran, "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020,
Algorithm 1, option II (model averaging).

Optimises: the mean loss of each group of clients, and who belongs to which.
Sends: d + 2 up, 2 d down (cluster_update: with two models).
Shows: the models of all groups.
Memory: none.
Use: clients fall into a few groups, and nobody knows which.
Avoid: clients differ gradually, or there are fewer clients than two for each group.
Formula: j_i = \operatorname{argmin}_j f_i(x_j), \quad x_j \leftarrow x_j + \frac{1}{|S_j|} \sum_{i \in S_j} \delta_i

Symbols: x_j = theta_j^(t), cluster of client i = j-hat, clusters = k, S_j the clients that chose x_j, delta_i = their updates (added).

`weighting = "size"` is HypCluster (Y. Mansour, M. Mohri, J. Ro, A. T. Suresh, "Three Approaches for Personalization with
Applications to Federated Learning", 2020, arXiv 2002.10619): clients of a group count by their rows.

Differences from the paper: the first model starts where the run starts; each further one is that plus numbers drawn evenly from
+-1 / sqrt(inputs of the layer) for each parameter, from the seed. Equal models would never come apart. Losses are taken in eval
mode over all training rows; of equal losses the first counts. A model that no client chose stays. For evaluation every client, also
one that did not take part, chooses anew.

Laws:
- one group is uniform averaging, by size FedAvg, bit by bit:
  tests/methods/test_ifca.py::test_one_group_is_averaging_bit_by_bit
- two groups on a line are found, and each is served by its mean:
  tests/methods/test_ifca.py::test_two_groups_on_a_line_are_found
- a model that no client chose stays:
  tests/methods/test_ifca.py::test_a_model_that_nobody_chose_stays
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.vector import Layout, average, shift
from coterie.compute.cohort import Cohort
from coterie.config.local import LocalSGD
from coterie.config.rules import SIZE, one_of
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import Form, Models, OneUpdate, Rows, task

Choice = Annotated[
    Tensor, "choice", Form(within=lambda payload: (0.0, len(payload["xs"]) - 1.0))
]
"""float64 [n]: which of the models a client chose."""


class ClusterUpdate(NamedTuple):
    """delta [n, d + b] of the chosen model, training rows [n], and which it is [n]."""

    delta: OneUpdate
    sizes: Rows
    cluster: Choice


class Chosen(NamedTuple):
    """Number of the model that each client would choose [n]."""

    cluster: Choice


@task
def cluster_update(cohort: Cohort, *, xs: Models, local: LocalSGD) -> ClusterUpdate:
    """Local training from the model with the lowest training loss."""
    chosen = best(cohort, xs)
    return ClusterUpdate(
        cohort.updates(xs[chosen], local), cohort.sizes, chosen.double()
    )


@task
def choice(cohort: Cohort, *, xs: Models) -> Chosen:
    """The model with the lowest training loss."""
    return Chosen(
        best(cohort.without_billing(), xs).double()
    )  # using a model is not part of the method's work


def best(cohort: Cohort, xs: Tensor) -> Tensor:
    """Position of the model with the lowest training loss, int64 [n]."""
    return cohort.losses(xs).nan_to_num(nan=torch.inf).argmin(1)


def apart(x: Tensor, layout: Layout, stream: Rng) -> Tensor:
    """X [d + b] plus even numbers in +-1 / sqrt(inputs) in its parameters, where a layer with weights [out, in, ...] has inputs."""
    inputs = []
    for _, shape in layout.parameters:
        inputs_of_layer = shape.numel()  # of a vector, which has no outputs
        if len(shape) > 1:
            inputs_of_layer = shape[1:].numel()
        inputs += [inputs_of_layer] * shape.numel()
    uniform = torch.rand(layout.dim, generator=stream.generator(), dtype=torch.float64)
    noise = (2 * uniform - 1) / torch.tensor(inputs, dtype=torch.float64).sqrt()
    return torch.cat([x[: layout.dim] + noise.to(x), x[layout.dim :]])


class State(NamedTuple):
    """The k models [k, d + b], names of all N clients, and the group of each, int64 [N], as it was last asked."""

    xs: Tensor
    names: tuple[str, ...]
    cluster: Tensor


@options
class IFCA(Method[State]):
    """Average in each group the updates of those clients whose loss the group's model makes lowest.

    Attributes:
        clusters: number k of models, at most that of clients.
        local: settings of local training.
        weighting: "uniform": clients of a group count alike (IFCA); "size": by training rows (HypCluster).

    >>> import coterie as ct, torch
    >>> centres = {"a": 0.0, "b": 1.0, "c": 10.0, "d": 11.0}
    >>> clients = ct.data.from_tensors({k: (torch.ones(30, 1), torch.full((30,), v)) for k, v in centres.items()})
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.IFCA(clusters=2, local=local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=40)
    >>> groups = {name: round(float(x), 1) for name, x in run.models.items()}
    >>> groups["a"] == groups["b"] < groups["c"] == groups["d"]
    True
    """

    clusters: Annotated[int, SIZE] = 2
    local: LocalSGD = LocalSGD()
    weighting: Annotated[str, one_of("uniform", "size")] = "uniform"

    exempt: ClassVar[Mapping[str, str]] = {
        "alone": "one client cannot fill several groups",
        "starts": "models that start alike would never come apart",
    }

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates of the model that fits best, and which that is."""
        return asks(cluster_update, models=self.clusters), asks(
            choice, models=self.clusters
        )

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for more groups than clients."""
        if self.clusters > len(everyone):
            raise InputError(
                f"IFCA.clusters = {self.clusters} groups of {len(everyone)} clients leave groups empty; take at most {len(everyone)}"
            )

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start the first model from x, and the others apart from it."""
        # Equal models would have equal losses, and every client would choose the first one for ever.
        streams = [
            Rng.named(federation.seed, "clusters", j) for j in range(1, self.clusters)
        ]
        xs = torch.stack(
            [x, *(apart(x, federation.layout, stream).to(x) for stream in streams)]
        )
        everyone = federation.everyone
        return State(xs, everyone, torch.zeros(len(everyone), dtype=torch.int64))

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        replies = federation.ask(
            federation.clients, cluster_update, xs=state.xs, local=self.local
        )
        chosen = replies.cluster.long()
        shares = replies.sizes
        if self.weighting != "size":
            shares = torch.ones_like(shares)
        xs, weights = state.xs.clone(), {}
        for j in chosen.unique().tolist():
            members = chosen == j
            xs[j] = shift(
                state.xs[j],
                average(shares[members], replies.delta[members]),
                dim=federation.dim,
            )
            size_weights = shares * members / shares[members].sum()
            weights.update(
                {
                    n: replies.by_client(size_weights)
                    for n, member in zip(replies.clients, members.tolist(), strict=True)
                    if member
                }
            )
        cluster = state.cluster.index_copy(
            0, federation.positions(replies.clients), chosen
        )
        log: Log = {"weights": weights, "cluster": replies.by_client(replies.cluster)}
        return State(xs, state.names, cluster), log

    def models(self, state: State) -> dict[str, Tensor]:
        """The model of the group in which each client was last."""
        return dict(zip(state.names, state.xs[state.cluster], strict=True))

    def personalised(self, state: State, federation: Federation) -> dict[str, Tensor]:
        """The model that each seen and unseen client would choose now."""
        replies = federation.ask(
            (*federation.everyone, *federation.unseen), choice, xs=state.xs
        )
        return dict(zip(replies.clients, state.xs[replies.cluster.long()], strict=True))

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates, and the models of all groups."""
        return per_round + 2 * self.clusters
