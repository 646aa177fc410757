r"""FedCollab: before training, clients are parted into coalitions by how different their rows are; each coalition averages.

Paper: W. Bao, H. Wang, J. Wu, J. He, "Optimizing the Collaboration Structure in Cross-Silo Federated Learning", ICML 2023, Eq. 5 and
Algorithm 1.

Optimises: a bound on the sum of the clients' errors, over partitions; then the mean loss over the rows of each coalition.
Sends: d + 1 up, d down (local_update); 260 N up, 260 N down (tell_apart: once, in each of 21 asks before training).
Shows: the average of its coalition; before, classifiers that tell its rows from those of each other client.
Memory: none.
Use: clients fall into groups, and one wants to know before training who belongs together.
Avoid: clients have fewer than some hundred rows, so that accuracies err by more than divergences differ.
Formula: \min_{\text{partitions}} \; \sum_i \Bigl[ \frac{C}{\sqrt{N_S}} + \sum_{j \in S} \frac{n_j}{N_S} D_{ij} \Bigr], \quad i \in S

Symbols: n_j = m_j, N_S = rows of the coalition S of client i, C = complexity, D_ij = C-divergence / 2 = max(0, accuracy of i + that of
j - 1) of a classifier that tells (input, label) of client i from those of client j.

The classifiers are logistic regressions on 128 random features of input and label, the same for all clients. Both clients of a pair
train theirs on equally many rows, in turns of local steps and averages. Rows are dealt into two halves: one classifier learns on the
first and is judged on the second, another the other way round, and D is the mean of both. Training ends where the accuracy on the rows
that a classifier has not seen was best. The partition is searched by moving one client at a time, from several starts.

Differences from the paper: which classifier; halves in place of one split; D is never below 0. Divergences are of training rows, and
a client that fails while they are estimated stays alone.

Laws:
- without divergences it is FedAvg, bit by bit:
  tests/methods/test_fedcollab.py::test_one_coalition_is_fedavg_and_coalitions_of_one_are_training_alone
- without a cost of few rows each client trains alone, to rounding:
  tests/methods/test_fedcollab.py::test_one_coalition_is_fedavg_and_coalitions_of_one_are_training_alone
- clients with the same distribution have a divergence near 0, and those with opposite labels near 1:
  tests/methods/test_fedcollab.py::test_divergences_tell_who_differs
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.rng import Rng
from coterie.base.rows import Inputs
from coterie.base.vector import Layout
from coterie.compute.cohort import Cohort
from coterie.compute.server_averages import average_groups
from coterie.compute.tasks import local_update
from coterie.config.local import LocalSGD
from coterie.config.rules import NOT_NEGATIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import asks
from coterie.contract.task import Form, Holds, task
from coterie.contract.wire import PerClient
from coterie.solvers.coalitions import partition

FEATURES = 128
WIDTH = FEATURES + 1
"""Numbers of a classifier: a weight for each feature, and one for all rows."""
ROUNDS, STEPS, RATE, MOMENTUM = 20, 20, 0.5, 0.9
"""Asks, steps between two averages, and the rate and momentum of a step."""
_CLASSIFIER = Layout((("classifier", torch.Size([WIDTH])),), (), torch.float64)


_Change = Annotated[
    Tensor,
    "update",
    Form(
        lambda payload, layout: tuple(payload["classifiers"].shape[1:]),
        torch.float64,
        layout=lambda payload, layout: _CLASSIFIER,
    ),
]
_Accuracy = Annotated[
    Tensor,
    "other",
    Form(lambda payload, layout: (*payload["rows"].shape[1:], 2), within=(0.0, 1.0)),
]


class Telling(NamedTuple):
    """The change of each classifier by training [n, m, 2, 129], and the accuracy [n, m, 2] of those received on the other half."""

    delta: _Change
    accuracy: _Accuracy


@task
def tell_apart(
    cohort: Cohort,
    *,
    classifiers: Annotated[
        Tensor, Holds(("clients", 2, WIDTH), torch.float64, each=True)
    ],
    signs: Annotated[
        Tensor, Holds(("clients",), torch.float64, (-1.0, 1.0), each=True)
    ],
    rows: Annotated[Tensor, Holds(("clients",), torch.int64, (0, math.inf), each=True)],
) -> Telling:
    """Train the classifiers [n, m, 2, 129] of each client's pairs, of which it is the side 1 or -1, on so many rows of each half."""
    deltas, accuracies = [], []
    for i in range(len(cohort.names)):
        halves = _halves(cohort.only([i]))
        start, side = classifiers[i], signs[i][:, None]
        trained = torch.empty_like(start)
        accuracy = torch.empty(start.shape[:2], dtype=torch.float64)
        for half in (0, 1):
            train_rows, test_rows = halves[half], halves[1 - half]
            score = (start[:, half] @ test_rows.T) * side
            # A row on the border is told as often right as wrong.
            accuracy[:, half] = ((score > 0).double() + 0.5 * (score == 0)).mean(1)
            shown = torch.arange(len(train_rows))[None, :] < rows[i][:, None]
            share = shown / shown.sum(1, keepdim=True).clamp(min=1)
            weights, velocity = start[:, half].clone(), torch.zeros_like(start[:, half])
            for _ in range(STEPS):
                error = torch.sigmoid(-(weights @ train_rows.T) * side) * side * share
                velocity = MOMENTUM * velocity + error @ train_rows
                weights = weights + RATE * velocity
            trained[:, half] = weights
            cohort.spent["row_gradients"] += STEPS * int(shown.sum())
        deltas.append(trained - start)
        accuracies.append(accuracy)
    return Telling(torch.stack(deltas), torch.stack(accuracies))


def _halves(client: Cohort) -> tuple[Tensor, Tensor]:
    """The features [r, 129] of the rows of both halves of one client, in the order in which they are shown."""
    order = client.rng(0, "fedcollab").permutation(client.size(0))
    middle = (len(order) + 1) // 2
    first = _features(client, order[:middle])
    second = _features(client, order[middle:])
    if not len(second):  # a single row stands for both halves
        second = first
    return first, second


def _features(client: Cohort, numbers: NDArray[np.int64]) -> Tensor:
    """Features of input and label [r, 129] of some rows: half-waves of random sums, scaled to a mean square near 1, and a 1."""
    inputs, stored = client.training_rows(0, numbers)
    labels = client.workspace.loss.plain(stored)
    stream = Rng.named(client.seed, "fedcollab")
    total = stream_sum(inputs, stream.child("inputs")) + 2 * stream_sum(
        labels, stream.child("labels")
    )
    waves = total.clamp(min=0) * math.sqrt(2 / FEATURES)
    return torch.cat([waves, waves.new_ones(len(waves), 1)], dim=1).cpu()


def stream_sum(values: Inputs, stream: Rng) -> Tensor:
    """Random sums [r, 128] of the numbers of each row, with a mean square near 1; whole numbers are names, in any order."""
    if isinstance(values, dict):
        parts = [
            stream_sum(value, stream.child(key))
            for key, value in sorted(values.items())
        ]
        return torch.stack(parts).sum(0) / math.sqrt(len(parts))
    generator = stream.generator()
    flat = values.detach().cpu().reshape(len(values), -1)
    if values.is_floating_point():
        directions = torch.randn(
            flat.shape[1], FEATURES, generator=generator, dtype=torch.float64
        )
        return flat.double() @ directions / math.sqrt(flat.shape[1])
    angle, phase = (
        2 * math.pi * torch.rand(FEATURES, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    waves = [torch.cos(column[:, None].double() * angle + phase) for column in flat.T]
    return torch.stack(waves).sum(0) * math.sqrt(2 / len(waves))


def divergences(federation: Federation) -> Tensor:
    """Estimate D [N, N] of all clients, float64, 0 on the diagonal; 1 beside a client that fails. Costs N (N - 1) / 2 classifiers.

    Args:
        federation: Whom to ask. Each client is asked for `ROUNDS` + 1 replies, and tells two accuracies for each other client.
    """
    names = federation.everyone
    n = len(names)
    if n == 1:
        return torch.zeros(1, 1, dtype=torch.float64)
    facts = federation.engine.sizes("train")
    halves = torch.tensor([facts[name] // 2 for name in names]).clamp(min=1)
    rows = torch.minimum(halves[:, None], halves[None, :]).fill_diagonal_(0)
    signs = torch.ones(n, n, dtype=torch.float64).triu(1) - torch.ones(
        n, n, dtype=torch.float64
    ).tril(-1)
    shared = torch.zeros(n, n, 2, WIDTH, dtype=torch.float64)
    best = torch.zeros(n, n, 2, dtype=torch.float64)
    asked = torch.arange(n)
    for _ in range(ROUNDS + 1):
        replies = federation.ask(
            [names[i] for i in asked], tell_apart,
            classifiers=PerClient(shared[asked]), signs=PerClient(signs[asked]), rows=PerClient(rows[asked]),
        )  # fmt: skip
        asked = federation.positions(replies.clients)
        accuracy = torch.zeros(n, n, 2, dtype=torch.float64)
        accuracy[asked] = replies.accuracy
        best = torch.maximum(best, accuracy + accuracy.transpose(0, 1))
        change = torch.zeros_like(shared)
        change[asked] = replies.delta
        shared = shared + (change + change.transpose(0, 1)) / 2
    estimate = (best.mean(2) - 1).clamp(0, 1)
    failed = torch.ones(n, dtype=torch.bool).index_fill(0, asked, False)
    estimate[failed], estimate[:, failed] = 1.0, 1.0
    return estimate.fill_diagonal_(0.0)


class State(NamedTuple):
    """Names of all N clients, the coalition of each, int64 [N], their models [N, d + b], and the divergences [N, N]."""

    names: tuple[str, ...]
    cluster: Tensor
    x: Tensor
    divergences: Tensor


@options
class FedCollab(Method[State]):
    """Find coalitions of clients before training, and average by size in each of them.

    Attributes:
        local: settings of local training.
        complexity: C >= 0: how much few rows cost beside divergences; 0: all clients train alone.

    >>> import coterie as ct, torch
    >>> x = torch.randn(1200, 1, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> clients = ct.data.from_tensors({"a": (x[:400], y[:400]), "b": (x[400:800], y[400:800]), "c": (x[800:], 1 - y[800:])})
    >>> run = ct.fit(ct.FedCollab(complexity=5.0), clients, model="logistic", rounds=2)
    >>> run.weights["c"]  # its labels are opposite
    {'c': 1.0}
    >>> sorted(run.weights["a"])
    ['a', 'b']
    """

    local: LocalSGD = LocalSGD()
    complexity: Annotated[float, NOT_NEGATIVE] = 1.0

    exempt: ClassVar[Mapping[str, str]] = {
        "names": "rows are dealt into halves by name"
    }

    tasks = (asks(local_update), asks(tell_apart, models=ROUNDS + 1))

    def init(self, x: Tensor, federation: Federation) -> State:
        """Estimate divergences and find the coalitions; all models start from x."""
        names = federation.everyone
        distances = divergences(federation)
        facts = federation.engine.sizes("train")
        sizes = torch.tensor(
            [float(facts[name]) for name in names], dtype=torch.float64
        )
        stream = Rng.named(federation.seed, "fedcollab", "partition")
        cluster = partition(sizes, distances, self.complexity, stream.generator())
        return State(names, cluster, x.repeat(len(names), 1), distances)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        start = PerClient(state.x[federation.positions(federation.clients)])
        replies = federation.ask(
            federation.clients, local_update, x=start, local=self.local
        )
        x, weights = average_groups(federation, state.x, state.cluster, replies)
        return state._replace(x=x), {
            "weights": weights,
            "groups": len(state.cluster.unique()),
        }

    def models(self, state: State) -> dict[str, Tensor]:
        """The model of each client's coalition."""
        return dict(zip(state.names, state.x, strict=True))

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return 3 * per_round + 2 * clients
