r"""VaRSeL: a few internal clients use those external gradients that lower the variance of their own.

Paper: "Rethinking Client Reweighting for Selfish Federated Learning" (anonymous, under review), Algorithm 1 and Eqs. 4, 7, 8.

Optimises: the mean loss of the M internal clients.
Sends: d up, d down (local_updates: internal and chosen clients); 1 up, 2 d down (distances: external clients).
Memory: none; within a round the update of an external client.
Use: a few internal clients have few rows, and many external clients can lend gradients.
Avoid: all clients should be served, or there is one internal client and `internal_splits` is 1: its variance is then
unknown.
Formula: x \leftarrow x - \eta \, \frac{\sum_{i \in I} g_i + \sum_{j \in S} w_j g_j}{M + \sum_{j \in S} w_j}, \quad w
= \operatorname{argmin}_w \frac{V + \bigl\| \sum_j w_j (g_j - g_I) \bigr\|^2}{\bigl( M + \sum_j w_j \bigr)^2}

Symbols: x = theta^t; M internal clients with gradients g_i, mean g_I and V = sum_i ||g_i - g_I||^2; N external clients with g_j;
d_j = ||g_j - g_I||^2; budget = K; w~ minimises the bound of Eq. 7 (Eq. 8), S is drawn by w~, w* minimises Eq. 4 over S; lr = eta.
Clients send updates delta = -g (added). With local steps g is accumulated: g = (x - x_k) / (local learning rate).

Differences from the paper: the unobserved gradient is replaced by g_I, also in V; there is no 1 / w~ correction after the draw;
an empty S leaves g_I. `internal_splits`, `unbiased_variance`, `debias` and `preselect="smallest"` are ours. A gradient is taken as in
training (dropout on); a model with batch norm, or any setting beyond one plain step, goes through local training, whose buffers are
averaged with the same weights. A chosen client sends the gradient that it has noted; if it was lost, it computes the same once more.

The budget seldom binds. Eq. 8 draws few external clients: where their gradients differ from the true one only by the noise of their
rows, it draws (M - 1) / (M + 1) of them in expectation whatever K and N are (`coterie.theory.varsel.drawn_external_clients`), .33 of a
client for M = 2. So compare with `budget = 0`, the internal clients alone, before a gain over FedAvg is put down to the weights.

Logged: sum of w*, |S|, V and Phi(w*) / Phi(0), which with `debias` is an estimate that can be negative. Individual updates are needed,
which excludes secure aggregation.

Laws:
- without external clients, or with budget 0, this is gradient descent on the internal clients:
  tests/methods/test_varsel.py::test_without_external_clients_it_is_descent_on_the_internal_ones
- copies of g_I reach the cap:
  tests/methods/test_varsel.py::test_copies_of_the_internal_mean_reach_the_cap
- a client at a great distance gets nothing:
  tests/methods/test_varsel.py::test_a_client_at_a_great_distance_gets_nothing
- both exchanges see the same batch:
  tests/methods/test_varsel.py::test_the_gradient_that_is_sent_is_the_one_whose_distance_was
- permuting clients permutes weights:
  tests/contract/test_testing.py::test_every_method_keeps_the_laws_of_methods
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.names import match_clients
from coterie.base.rng import Rng
from coterie.base.vector import move
from coterie.compute.cohort import Cohort
from coterie.config.local import LocalSGD, Steps
from coterie.config.rules import NAMES, NOT_NEGATIVE, POSITIVE, SIZE, one_of, optional
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method, Sampler
from coterie.contract.requests import Among, Asks, asks
from coterie.contract.task import Form, Holds, OneModel, Size, task
from coterie.solvers.variance import exact_weights, objective, surrogate_weights
from coterie.theory.varsel import drawn_external_clients


class LocalUpdates(NamedTuple):
    """Minus the (accumulated) gradient on each part of a client's batch; behind it the change of the buffers."""

    delta: Annotated[
        Tensor, "update", Form(lambda p, layout: (p["parts"], layout.size), None)
    ]


class Distances(NamedTuple):
    """d_j, the only number that an external client sends unless it is chosen."""

    squared: Size


@task
def local_updates(
    cohort: Cohort, *, x: OneModel, local: LocalSGD, parts: int
) -> LocalUpdates:
    """Lines 3 and 12: the gradients of internal clients, and those of chosen external ones (parts = 1)."""
    if parts > 1:
        return LocalUpdates(_updates(cohort, x, local, parts))

    def compute(clients: Cohort) -> Tensor:
        return _updates(clients, x, local, 1)

    return LocalUpdates(cohort.recall("varsel", compute, x, local))


@task
def distances(
    cohort: Cohort,
    *,
    x: OneModel,
    center: Annotated[Tensor, Holds(("model",))],
    local: LocalSGD,
) -> Distances:
    """Lines 6 and 7: how far the client's gradient is from g_I; center = -g_I [d + b]."""
    updates = _updates(cohort, x, local, 1)
    # Those that are chosen need not train again.
    cohort.note("varsel", updates, x, local)
    squared = [_square_norm(row - center, cohort.layout.dim) for row in updates[:, 0]]
    return Distances(torch.stack(squared))


def _updates(cohort: Cohort, x: Tensor, local: LocalSGD, parts: int) -> Tensor:
    """Minus the (accumulated) gradients on each part of a batch [n, parts, d + b]."""
    size, dim = local.batch_size, cohort.layout.dim
    fewest_rows = parts * cohort.workspace.smallest_batch
    for name, rows in zip(cohort.names, cohort.sizes.long().tolist(), strict=True):
        have = min(rows, size or rows)
        if have < fewest_rows:
            raise InputError(
                f"client {name!r} has {have} rows in a batch, and {parts} parts of it need {fewest_rows}; lower internal_splits or "
                "take larger batches"
            )
    if local == LocalSGD(local.lr, Steps(1), size) and dim == cohort.layout.size:
        return -cohort.gradients(
            x, parts=parts, batch_size=size, purpose="round", mode="train"
        )
    if parts == 1:
        delta = cohort.updates(x, local, purpose="round")[:, None]
    else:
        deltas = [cohort.updates(x, local, sampler=_Share(0, parts), purpose="round")]
        # Each part draws its order, and layers their noise, by itself.
        for k in range(1, parts):
            share, purpose = _Share(k, parts), f"round/{k}"
            deltas.append(cohort.updates(x, local, sampler=share, purpose=purpose))
        delta = torch.stack(deltas, dim=1)
    # x_k - x = -lr * sum of gradients.
    delta[..., :dim] /= local.rate(cohort.round)
    return delta


def _square_norm(difference: Tensor, dim: int) -> Tensor:
    """Squared length, float64 [], of vectors [..., d + b] together, without the buffers."""
    flat = difference[..., :dim].double().reshape(-1)
    return torch.dot(flat, flat)


@dataclass(frozen=True)
class _Share(Sampler):
    """A sampler of one of `parts` disjoint parts of a client's rows, and of its share of every batch."""

    number: int
    parts: int

    def rows(
        self, cohort: Cohort, client: int, rng: Rng, steps: int, batch_size: int
    ) -> NDArray[Any]:
        """Row numbers [steps, size]; batches go on from one epoch to the next."""
        # All parts divide the same order of the rows, so that they are disjoint.
        everything = cohort.rng(client, "round").permutation(len(cohort.labels(client)))
        own = everything[self.number :: self.parts]
        size = min(len(own), len(range(self.number, batch_size, self.parts)))
        orders = []
        for epoch in range(-(-steps * size // len(own))):
            order = rng.child("share", epoch).permutation(len(own))
            orders.append(own[order])
        return np.concatenate(orders)[: steps * size].reshape(steps, size)


class State(NamedTuple):
    """Names of the internal clients and their model [d + b]."""

    internal: tuple[str, ...]
    x: Tensor


@options
class VaRSeL(Method[State]):
    """Learn one model for a few internal clients, with the help of external ones.

    Attributes:
        internal: name or names of the internal clients (1..M, line 3); the model is evaluated on them only.
        budget: K >= 0, largest sum of external weights, and so of clients that send a gradient (Eq. 3); None: all N external ones. It
            seldom binds: Eq. 8 draws about (M - 1) / (M + 1) clients by itself.
        local: settings of local training; `Steps(1)` is tau = 1 of Algorithm 1, a gradient on a batch; tau > 1 as in Theorem 3.
        lr: learning rate eta > 0 of the step of line 16; None: that of `local`, so that models are averaged as in Theorem 3.
        internal_splits: each internal client counts as so many virtual ones, with disjoint parts of its batch (3 in Section 5.3).
        debias: (ours) remove from Eq. 4 the bias that the error of g_I puts into all g_j - g_I, with the unbiased V; with
            internal_splits = 2, V is estimated within each internal client, sum_i ||g_ia - g_ib||^2 / 4, and they count once.
        unbiased_variance: multiply V of Eqs. 4 and 7 by M / (M - 1) (ours).
        preselect: draw S by the weights of Eq. 8 ("bernoulli", line 10), or take the K "smallest" distances d_j (ours).

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> noise = torch.randn(60, generator=torch.Generator().manual_seed(0))
    >>> rows = {"a": x[:, 0] + noise, "b": x[:, 0] - noise, "c": x[:, 0], "d": -3 * x[:, 0]}
    >>> clients = ct.data.from_tensors({name: (x, y) for name, y in rows.items()})
    >>> method = ct.VaRSeL(internal=("a", "b"), local=ct.LocalSGD(lr=0.5, batch_size=None, steps=ct.Steps(1)))
    >>> run = ct.fit(method, clients, model=torch.nn.Linear(1, 1, bias=False), rounds=20)
    >>> {k: round(w, 2) for k, w in run.weights["a"].items()}  # d would pull the other way
    {'a': 0.33, 'b': 0.33, 'c': 0.33}
    """

    internal: Annotated[str | tuple[str, ...], NAMES] = ()
    budget: Annotated[float | None, optional(NOT_NEGATIVE)] = None
    local: LocalSGD = LocalSGD()
    lr: Annotated[float | None, optional(POSITIVE)] = None
    internal_splits: Annotated[int, SIZE] = 1
    debias: bool = False
    unbiased_variance: bool = False
    preselect: Annotated[str, one_of("bernoulli", "smallest")] = "bernoulli"

    participation = "own"
    packages = ("clarabel", "scipy")  # of the quadratic program

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates, and distances of external ones where some are drawn."""
        updates = asks(local_updates, parts=Among(self.internal_splits, 1))
        if self.budget == 0:
            return (updates,)
        return updates, asks(distances)

    def __post_init__(self) -> None:
        size = self.local.batch_size
        cure = ""
        if self.local.sampler is not None:
            cure = "take no local.sampler"
        elif size is not None and self.internal_splits > size:
            cure = f"take local.batch_size = {size} larger"
        if self.internal_splits > 1 and cure:
            raise InputError(
                f"VaRSeL.internal_splits = {self.internal_splits} splits each batch; {cure}"
            )

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for fields that do not fit these clients, and without clarabel."""
        internal = match_clients(self, "internal", everyone)
        if len(internal) * self.internal_splits < 2:
            raise InputError(
                f"VaRSeL.internal names {internal[0]!r} alone, and one gradient shows no variance; set internal_splits = 2 "
                "to split its batches, or name a second client"
            )
        external = len(everyone) - len(internal)
        if self.budget is not None and self.budget > external:
            raise InputError(
                f"VaRSeL.budget = {self.budget} is more than the {external} external clients; lower it, or leave it out for all"
            )
        if find_spec("clarabel") is None:
            raise InputError(
                'VaRSeL solves Eq. 4 with clarabel, which is missing: pip install "coterie[varsel]"'
            )

    def notes(self, everyone: tuple[str, ...]) -> tuple[str, ...]:
        """Say where the budget is so large that Eq. 8 hardly ever reaches it."""
        internal = match_clients(self, "internal", everyone)
        budget = self._budget(len(everyone) - len(internal))
        unbiased = self.debias or self.unbiased_variance
        drawn = drawn_external_clients(
            len(internal) * self.internal_splits, unbiased=unbiased
        )
        if self.preselect != "bernoulli" or budget < 1 or budget <= drawn:
            return ()
        sentence = (
            f"VaRSeL draws about {drawn:.2f} external clients a round where all are like the internal ones (Eq. 8), so its budget of "
            f'{budget:g} hardly limits it; preselect = "smallest" takes so many'
        )
        return (sentence,)

    @property
    def exempt(self) -> dict[str, str]:
        """Laws of `coterie.testing` that these settings do not keep, with the reason."""
        reasons = {
            "failures": "the variance of the internal gradients needs all of them",
            "participants": "internal clients take part in every round",
        }
        if self.internal_splits > 1:
            reasons["names"] = (
                "the parts of a batch are drawn by the name of the client"
            )
        else:
            reasons["alone"] = "one gradient shows no variance"
        return reasons

    def _budget(self, external: int) -> float:
        """K with so many external clients."""
        if self.budget is None:
            return float(external)
        return self.budget

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        self.check(federation.everyone)
        return State(match_clients(self, "internal", federation.everyone), x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round: internal gradients, external distances, gradients of the chosen."""
        payload: dict[str, Any] = {"x": state.x, "local": self.local}
        dim = federation.dim
        # Line 3.
        splits = self.internal_splits
        replies = federation.ask(
            state.internal, local_updates, need="all", parts=splits, **payload
        )
        inner, variance = self._internal(replies.delta, dim)

        # Lines 4 to 10.
        external = [name for name in federation.clients if name not in state.internal]
        budget = self._budget(len(external))
        chosen: list[str] = []
        if external and budget > 0:
            near = federation.ask(external, distances, center=inner.mean(0), **payload)
            chosen = self._choose(
                near.clients, near.squared, variance, len(inner), budget, rng
            )

        # Lines 11 to 13.
        outer = inner[:0]
        if chosen:
            outer_replies = federation.ask(
                chosen, local_updates, need="all", parts=1, **payload
            )
            outer = outer_replies.delta[:, 0]

        # Line 14. Signs do not matter here, as all vectors are minus a gradient.
        heads = inner[:, :dim].double(), outer[:, :dim].double()
        form: dict[str, Any] = {"variance": variance, "debias": self.debias}
        weights = exact_weights(*heads, budget, **form)
        phi_start = float(objective(torch.zeros_like(weights), *heads, **form))
        phi_end = float(objective(weights, *heads, **form))

        # Lines 15 and 16.
        shares = torch.cat([weights.new_ones(len(inner)), weights])
        lr = self.lr
        if lr is None:
            lr = self.local.rate(federation.round)
        gradients = torch.cat([inner, outer])
        x = move(state.x, shares / shares.sum(), gradients, lr, dim)

        phi_ratio = 1.0
        if phi_start > 0:
            phi_ratio = phi_end / phi_start
        log: Log = {
            "sum_weights": float(weights.sum()),
            "selected": len(chosen),
            "variance": variance,
            "phi_ratio": phi_ratio,
        }
        internal_weights = dict.fromkeys(
            state.internal, len(inner) / len(state.internal)
        )
        named = {**internal_weights, **dict(zip(chosen, weights.tolist(), strict=True))}
        log["weights"] = {target: dict(named) for target in state.internal}
        return State(state.internal, x), log

    def models(self, state: State) -> dict[str, Tensor]:
        """One model, which serves the internal clients only."""
        return dict.fromkeys(state.internal, state.x)

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds: one of each client, and those that are weighed in their own and in double precision."""
        internal = len(self.internal)
        if isinstance(self.internal, str):
            internal = 1
        external = math.ceil(self._budget(clients - internal))
        return clients + 3 * (internal * self.internal_splits + external)

    def _internal(self, delta: Tensor, dim: int) -> tuple[Tensor, float]:
        """The internal rows [M, d + b], virtual ones among them, and V, from what they sent [clients, parts, d + b]."""
        if self.debias and self.internal_splits == 2:
            halves = delta.double()
            square = float(_square_norm(halves[:, 0] - halves[:, 1], dim))
            return delta.mean(1), square / 4
        rows = delta.flatten(0, 1)
        exact_rows, m = rows.double(), len(rows)
        variance = float(_square_norm(exact_rows - exact_rows.mean(0), dim))
        if self.debias or self.unbiased_variance:
            variance *= m / (m - 1)
        return rows, variance

    def _choose(
        self,
        names: tuple[str, ...],
        squared: Tensor,
        variance: float,
        m: int,
        budget: float,
        rng: Rng,
    ) -> list[str]:
        """Lines 9 and 10: S, by name."""
        if self.preselect == "smallest":
            nearest = squared.argsort(stable=True)[: int(budget)].tolist()
            return [names[i] for i in sorted(nearest)]
        probabilities = surrogate_weights(squared, variance, m, budget)  # Eq. 8
        chosen = []
        for name, p in zip(names, probabilities.tolist(), strict=True):
            # By name, so that nobody's draw depends on who else takes part.
            if rng.child("draw", name).uniform(1)[0] < p:
                chosen.append(name)
        return chosen
