"""SGD Full, SGD Ideal, target only: plain averages over all clients, over a group that an oracle names, and over one client.

Papers: N. Tupitsa, S. Horváth, M. Takáč, E. Gorbunov, "Federated Learning Can Find Friends That Are Beneficial", 2024, and its
newer text "Selective Collaboration for Robust Federated Learning": SGD Full and SGD Ideal of the experiments, Adam and Adam Ideal
of Appendix D.4.

Optimises: the mean loss of the clients of a group, each counting alike.
Sends: d up, d down (own_update).
Memory: none.

Symbols: x = x^k, delta_i = -g_i (an update, added; accumulated over local steps), lr = gamma, moments = (m, v) of Adam.

x <- x + lr * mean of the deltas of those that take part, or a step of Adam along it; clients count alike, whatever their sizes.

Differences from the paper: SGD Ideal takes any group by name or pattern. Where the run draws clients, m of the group are drawn,
all of it if it has no more, since a group that an oracle names is a federation of its own. Buffers are averaged, and Adam does
not see them.

Laws:
- SGD Full is FedAvg where sizes are equal:
  tests/methods/test_sgd.py::test_sgd_full_is_fedavg_where_sizes_are_equal
- SGD Ideal of all clients is SGD Full:
  tests/methods/test_sgd.py::test_the_group_of_everybody_is_everybody
- of one client it is target only, and Local:
  tests/methods/test_sgd.py::test_target_only_is_the_group_of_one_and_local
- the server's Adam is torch's:
  tests/methods/test_sgd.py::test_adam_at_the_server_is_torchs
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.base.errors import InputError, nearest
from coterie.base.names import match_clients
from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.tasks import own_update
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.rules import BETAS, NAMES, POSITIVE, TEXT, one_of
from coterie.config.schema import options
from coterie.contract.federation import Federation, Need
from coterie.contract.method import Log, Method
from coterie.solvers import adam

MEMBERS = NAMES._replace(
    allowed='a client\'s name, several names, or patterns such as "near-*"'
)
"""Rule of a field that names the members of a group."""


_BOUNDED = {"diverges": "the length of Adam's steps is bounded"}


class State(NamedTuple):
    """The model [d + b], Adam's moments [2, d], and its number of steps."""

    x: Tensor
    moments: Tensor
    steps: int


@options
class _ServerOptimiser(Method[State]):
    """Fields and steps of all three.

    Attributes:
        local: settings of local training; `Steps(1)` is the papers' SGD.
        lr: server learning rate gamma > 0.
        server_optimiser: "sgd", or "adam" on the averaged update (the papers' Adam), whose steps have the length of lr.
        betas: decay of Adam's first and second moment, each in [0, 1).
        eps: > 0, added to the root of Adam's second moment.
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    server_optimiser: Annotated[str, one_of("sgd", "adam")] = "sgd"
    betas: Annotated[tuple[float, float], BETAS] = (0.9, 0.999)
    eps: Annotated[float, POSITIVE] = 1e-8

    needs = "sum"
    tasks = (own_update,)

    @property
    def exempt(self) -> dict[str, str]:
        """Laws of `coterie.testing` that these settings do not keep, with the reason."""
        return _BOUNDED if self.server_optimiser == "adam" else {}

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        self.check(federation.everyone)
        return State(x, torch.zeros(2, federation.dim, dtype=torch.float64), 0)

    def models(self, state: State) -> Tensor | Mapping[str, Tensor]:
        """One model for all clients."""
        return state.x

    def _step(
        self,
        state: State,
        federation: Federation,
        clients: tuple[str, ...],
        need: Need = 0.5,
    ) -> tuple[State, Log]:
        """Go along the mean update of these clients."""
        equal = torch.ones(len(clients))
        average = federation.average(
            clients, own_update, weights=equal, need=need, x=state.x, local=self.local
        )
        mean, log = average.delta, Log(weights=average.by_client(average.weights))
        if self.server_optimiser == "sgd":
            return state._replace(
                x=shift(
                    state.x, mean, rate_of(self.lr, federation.round), federation.dim
                )
            ), log
        uphill = -mean[: federation.dim].double()
        step = adam.step(
            uphill,
            state.moments,
            state.steps,
            lr=rate_of(self.lr, federation.round),
            betas=self.betas,
            eps=self.eps,
        )
        change = torch.cat([step.change.to(mean.dtype), mean[federation.dim :]])
        return State(state.x + change, step.moments.cpu(), state.steps + 1), log


@options
class SGDFull(_ServerOptimiser):
    r"""Average the updates of all clients that take part, each counting alike.

    Use: each client should count alike, whatever its size.
    Avoid: clients differ much in size and rows should count alike: that is `fedavg`.
    Formula: x \leftarrow x + \frac{\eta}{|S|} \sum_{k \in S} \delta_k

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30)), (torch.ones(60, 1), torch.zeros(60))], task="regression")
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.SGDFull(local), clients, ct.models.Logistic(), rounds=40)
    >>> round(float(run.x.sum()), 2)  # half of the clients, not a third of the rows
    0.5
    """

    newcomers = True

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        return self._step(state, federation, federation.clients)


@options
class SGDIdeal(_ServerOptimiser):
    r"""Average the updates of a group of clients that an oracle names, e.g. those with the target's distribution.

    Use: it is known which clients belong together, as in an experiment.
    Avoid: the group is not known: `meritfed` looks for it.
    Formula: x \leftarrow x + \frac{\eta}{|G|} \sum_{k \in G} \delta_k

    Attributes:
        members: names of clients, or patterns of names such as "near-*".

    >>> import coterie as ct, torch
    >>> rows = {name: (torch.ones(30, 1), torch.full((30,), v)) for name, v in {"near-1": 1.0, "near-2": 2.0, "far": 9.0}.items()}
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.SGDIdeal(local, members="near-*"), ct.data.from_tensors(rows), ct.models.Logistic(), rounds=40)
    >>> round(float(run.x.sum()), 2)
    1.5
    """

    members: Annotated[str | tuple[str, ...], MEMBERS] = ()

    participation = "own"

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for a member that fits no client."""
        self.group(everyone)

    def group(self, everyone: tuple[str, ...]) -> tuple[str, ...]:
        """The group among these clients. Raises `InputError` for a member that fits no client."""
        patterns = self.members
        if isinstance(patterns, str):
            patterns = (patterns,)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in everyone):
                hint = nearest(pattern, everyone)
                raise InputError(
                    f"SGDIdeal.members has {pattern!r}, which fits no client; {hint}"
                )
        return tuple(n for n in everyone if any(fnmatchcase(n, p) for p in patterns))

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with the group, or with as many of it as a round has clients."""
        group = self.group(federation.everyone)
        m = min(federation.per_round, len(group))
        drawn = Rng.named(
            federation.seed, "participants", federation.round
        ).permutation(len(group), m)
        return self._step(
            state, federation, tuple(group[i] for i in np.sort(drawn).tolist())
        )


@options
class TargetOnly(_ServerOptimiser):
    r"""Train on one client alone, for itself: what `local` does, with the server's optimiser.

    Use: you need a yardstick for one target, with the server's optimiser.
    Avoid: each client needs its yardstick: that is `local`.
    Formula: x \leftarrow x + \eta \, \delta_t

    Attributes:
        target: name of the client.

    >>> import coterie as ct, torch
    >>> rows = {name: (torch.ones(30, 1), torch.full((30,), v)) for name, v in {"a": 1.0, "b": 2.0}.items()}
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.TargetOnly(local, target="b"), ct.data.from_tensors(rows), ct.models.Logistic(), rounds=40)
    >>> round(float(run.x.sum()), 2)
    2.0
    """

    target: Annotated[str, TEXT._replace(allowed="a client's name")] = ""

    participation = "own"

    @property
    def exempt(self) -> dict[str, str]:
        """Laws of `coterie.testing` that these settings do not keep, with the reason."""
        laws = {"failures": "without its only client nothing is trained"}
        if self.server_optimiser == "adam":
            laws |= _BOUNDED
        return laws

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for a target that does not exist."""
        match_clients(self, "target", everyone)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with the target."""
        state, log = self._step(state, federation, (self.target,), "all")
        return state, {"weights": {self.target: log["weights"]}}

    def models(self, state: State) -> dict[str, Tensor]:
        """One model, which serves the target only."""
        return {self.target: state.x}

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return 1
