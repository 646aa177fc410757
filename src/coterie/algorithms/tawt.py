r"""TAWT: a target gives more weight to those whose updates point where its own does.

Paper: S. Chen, K. Crammer, H. He, D. Roth, W. J. Su, "Weighted Training for Cross-Task Learning", ICLR 2022, Algorithm 1 with the
cosine in place of the hypergradient; as a comparator of "Selective Collaboration for Robust Federated Learning" (MeritFed),
Appendix A.3, Eq. 12.

Optimises: the loss of each of T targets.
Sends: T d up, T d down (local_updates: T = 1 in the first round); d up, d down (own_update: targets that take no part).
Memory: none.
Use: one target wants a cheap rule: TAWT needs no validation rows and no further gradient.
Avoid: the target has few rows and needs help for long: its own weight grows most, so training ends near `local`.
Formula: w_i \leftarrow \frac{w_i \, e^{c \cos(\delta_t, \delta_i)}}{\sum_j w_j \, e^{c \cos(\delta_t, \delta_j)}},
\quad x \leftarrow x + \eta \sum_i w_i \delta_i

Symbols: x = x^k, delta_i = -g_i (an update, added), weights = w^k on the simplex, step = c eta^k.

weights <- normalise(weights * exp(step * cos(delta_target, delta_i))); x <- x + lr * sum_i weights_i delta_i.

Differences from the paper: the cosine itself, where Appendix A.3 prints its arc cosine, which would up-weight opposite gradients.
One run serves one target, several or all, each with a model and weights of its own. The target's direction is that of its own
update, asked of it also in rounds in which it takes no part. With partial participation the weights of those that replied are
renormalised, and absent clients keep theirs. The cosine of a target with itself is 1 in every round, so its own weight grows
most: TAWT ends near training alone.

Models differ after the first round, so T targets cost each client T local trainings a round. Individual updates are needed, which
excludes secure aggregation.

Laws:
- step = 0 is the uniform average:
  tests/methods/test_tawt.py::test_tawt_without_a_step_is_the_uniform_average
- the logarithms of the weights are sums of the cosines:
  tests/methods/test_tawt.py::test_tawt_by_hand
- all targets = each alone:
  tests/methods/test_tawt.py::test_tawt_all_targets_are_each_target_alone
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.names import match_clients
from coterie.base.rng import Rng
from coterie.base.vector import move
from coterie.compute.tasks import local_updates, own_update
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.rules import NOT_NEGATIVE, SIZE, TARGETS
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, as_many, asks
from coterie.contract.wire import PerClient
from coterie.solvers.angles import angles
from coterie.solvers.mirror import entropic_step


class State(NamedTuple):
    """Targets, their models [T, d + b] ([1, d + b] while they are equal), and weights over all N clients [T, N]."""

    targets: tuple[str, ...]
    x: Tensor
    weights: Tensor


@options
class TAWT(Method[State]):
    """Learn, for each target, with those whose updates resemble its own.

    Attributes:
        targets: "all", the name of one client, or several names: who gets a model of its own.
        local: settings of local training.
        lr: server learning rate > 0 on the weighted sum of updates.
        step: factor >= 0 of the cosine in the exponent (c eta of Eq. 12); 0 keeps the weights uniform.
        every: weights move in every so many rounds, >= 1: 1 as printed, 2 as in the MeritFed authors' code.

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> clients = ct.data.from_tensors({"a": (x, x[:, 0]), "b": (x, x[:, 0]), "c": (x, -x[:, 0])})
    >>> run = ct.fit(ct.TAWT(targets="a"), clients, model=ct.models.Logistic(), rounds=5)
    >>> run.weights["a"]["c"] < 0.01  # c pulls the other way
    True
    """

    targets: Annotated[str | tuple[str, ...], TARGETS] = "all"
    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    step: Annotated[float, NOT_NEGATIVE] = 1.0
    every: Annotated[int, SIZE] = 1

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates of the model of each target, and of targets that take no part."""
        return asks(local_updates, models=as_many(self.targets)), asks(own_update)

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for a target that does not exist."""
        self.target_names(everyone)

    @property
    def exempt(self) -> dict[str, str]:
        """Laws of `coterie.testing` that these settings do not keep, with the reason."""
        if self.targets != "all":
            return {}
        return {
            "participants": "each target is asked for its own update in every round"
        }

    def target_names(self, everyone: tuple[str, ...]) -> tuple[str, ...]:
        """The targets among these clients."""
        return match_clients(self, "targets", everyone, everybody="all")

    def init(self, x: Tensor, federation: Federation) -> State:
        """Uniform weights, once."""
        targets, total = (
            self.target_names(federation.everyone),
            len(federation.everyone),
        )
        return State(
            targets,
            x[None],
            torch.full((len(targets), total), 1 / total, dtype=torch.float64),
        )

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`; a target whose own update failed keeps its model and weights."""
        replies = federation.ask(
            federation.clients, local_updates, x=state.x, local=self.local
        )
        total, dim = len(state.targets), federation.dim
        start = state.x.expand(total, -1)
        deltas = replies.delta.expand(-1, total, -1).transpose(0, 1)  # [T, n, d + b]
        axes = {
            n: deltas[state.targets.index(n), i]
            for i, n in enumerate(replies.clients)
            if n in state.targets
        }
        axes |= self._absent_directions(state, federation, start, bool(axes))
        positions = federation.positions(replies.clients)
        x, weights = start.clone(), state.weights.clone()
        used, cosines = torch.empty(total, len(positions), dtype=torch.float64), {}
        for t, name in enumerate(state.targets):
            # Clients that sent nothing keep their weights; those that did share out the weight that they had together.
            mass = weights[t, positions].sum()
            used[t] = weights[t, positions] / mass
            if name not in axes:
                continue
            cosine = torch.cos(
                angles(deltas[t, :, :dim].double(), axes[name][:dim]).cpu()
            )
            if federation.round % self.every == 0:
                used[t] = entropic_step(used[t], -cosine, self.step)
            x[t] = move(
                start[t], used[t], deltas[t], rate_of(self.lr, federation.round), dim
            )
            weights[t, positions] = used[t] * mass
            cosines[name] = float(used[t] @ cosine)
        log: Log = {
            "weights": {
                t: replies.by_client(w)
                for t, w in zip(state.targets, used, strict=True)
            },
            "effective_collaborators": dict(
                zip(state.targets, (1 / used.square().sum(1)).tolist(), strict=True)
            ),
            "mean_cosine": cosines,
        }
        return State(state.targets, x, weights), log

    def _absent_directions(
        self, state: State, federation: Federation, start: Tensor, has_axes: bool
    ) -> dict[str, Tensor]:
        """Directions of targets that take no part. A single target must answer; of several, one that failed is left out."""
        absent = [t for t in state.targets if t not in federation.clients]
        # A single target that took part and did not reply is asked once more.
        if not has_axes and len(state.targets) == 1:
            absent = list(state.targets)
        if not absent:
            return {}
        x = start[[state.targets.index(t) for t in absent]]
        replies = federation.ask(
            absent, own_update, need=1 / len(absent), x=PerClient(x), local=self.local
        )
        return dict(zip(replies.clients, replies.delta, strict=True))

    def models(self, state: State) -> dict[str, Tensor]:
        """A model per target."""
        return dict(
            zip(state.targets, state.x.expand(len(state.targets), -1), strict=True)
        )

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        targets = len(self.targets)
        if self.targets in ("all", ("all",), ["all"]):
            targets = clients
        elif isinstance(self.targets, str):
            targets = 1
        return per_round * targets
