r"""APFL: each client uses a mixture of a model of its own and the global one, and learns how much of each.

Paper: Y. Deng, M. M. Kamani, M. Mahdavi, "Adaptive Personalized Federated Learning", 2020, arXiv 2003.13461, Algorithm 1 and Eq. 10.

Optimises: the global model as FedAvg does; at each client the loss of its mixture.
Sends: d + 1 up, d down (apfl_update).
Shows: the average.
Memory: d + 1 numbers: its own model v and its share a.
Use: each client wants a model of its own, and how much it should rely on the others is not known.
Avoid: clients cannot remember anything, or training twice is too costly.
Formula: m = a v + (1 - a) w, \quad v \leftarrow v - \eta \, a \nabla f_i(m), \quad a \leftarrow a - \eta \langle \nabla f_i(m), v - w
\rangle

Symbols: x = w^t, w = w_i, v = v_i, a = alpha_i, m = v-bar_i, delta = w - x (added).

Each local step computes the gradients at w and at m on one batch; w, v and, in the first step of a round, a then move from their old
values. Clients use a v + (1 - a) x with the newest x.

Differences from the paper: clients count by their rows, as in FedAvg. v takes plain steps of SGD, so momentum, clipping and other
optimisers are refused; weight decay is part of the loss of both. A client that has lost v and a begins anew at x, and log and failures
name it. Statistics of batch norm are those that the mixture's own batches left.

What is evaluated, saved and used for predictions are the mixtures. Those of other parties stay with them.

Laws:
- the global model is FedAvg's, whatever a is:
  tests/methods/test_apfl.py::test_the_global_model_is_that_of_fedavg
- a fixed share of 1 is training alone, and one of 0 the global model:
  tests/methods/test_apfl.py::test_a_fixed_share_of_one_is_training_alone_and_of_none_fedavg
- one round by hand:
  tests/methods/test_apfl.py::test_a_round_by_hand
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.vector import dot
from coterie.compute.cohort import Cohort
from coterie.compute.server_averages import step_by_average
from coterie.compute.tasks import LocalUpdate, OwnModel
from coterie.config.local import LocalSGD
from coterie.config.rules import Rule, is_number
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import OneModel, task

OWN, SHARE = "apfl", "apfl-share"
"""Names of v and of a in client memory."""
UNIT = Rule(lambda v: is_number(v) and 0 <= v <= 1, "a number in [0, 1]")


class _Mixture:
    """v [d + b] and a of one client, which move with each step of w: a rule for its gradients."""

    def __init__(
        self,
        cohort: Cohort,
        v: Tensor,
        share: float,
        local: LocalSGD,
        *,
        adaptive: bool,
    ) -> None:
        self.cohort, self.v, self.share = cohort, v, share
        self._lr, self._decay, self._adapts = (
            local.rate(cohort.round),
            local.weight_decay,
            adaptive,
        )

    def __call__(self, gradient: Callable[[Tensor, int], Tensor], w: Tensor) -> Tensor:
        d, vector, share = len(w), self.cohort.workspace.x, self.share
        at_w = gradient(w, 0)
        statistics = vector[d:].clone()
        vector[d:] = self.v[d:]
        mixed = share * self.v[:d] + (1 - share) * w
        at_mixed = gradient(mixed, 0) + self._decay * mixed
        head = self.v[:d] - self._lr * share * at_mixed
        if self._adapts:  # Eq. 10, in the first step of a round
            self.share = min(
                1.0, max(0.0, share - self._lr * float(dot(at_mixed, self.v[:d] - w)))
            )
            self._adapts = False
        self.v = torch.cat([head, vector[d:]])
        vector[d:] = statistics
        return at_w


@task
def apfl_update(
    cohort: Cohort, *, x: OneModel, local: LocalSGD, alpha: float, adaptive: bool
) -> LocalUpdate:
    """Lines 4 to 8: local training from x, beside which v and a move."""
    models, shares = _models_and_shares(cohort, x, alpha)
    deltas, mixtures = [], []
    for i in range(len(cohort.names)):
        single_client = cohort.only([i])
        mixtures.append(
            _Mixture(
                single_client, models[i], float(shares[i]), local, adaptive=adaptive
            )
        )
        deltas.append(single_client.updates(x, local, gradient_rule=mixtures[i]))
    cohort.keep(OWN, torch.stack([m.v for m in mixtures]))
    cohort.keep(SHARE, torch.tensor([m.share for m in mixtures], dtype=torch.float64))
    return LocalUpdate(torch.cat(deltas), cohort.sizes)


@task
def mixture(cohort: Cohort, *, x: OneModel, alpha: float) -> OwnModel:
    """The mixture with x that each client uses; x for one that has no model of its own."""
    models, shares = _models_and_shares(cohort, x, alpha)
    d, share = cohort.layout.dim, shares[:, None].to(models)
    return OwnModel(
        torch.cat([share * models[:, :d] + (1 - share) * x[:d], models[:, d:]], dim=1)
    )


def _models_and_shares(
    cohort: Cohort, x: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    start = torch.tensor(alpha, dtype=torch.float64)
    return cohort.state(OWN, x).or_else(x), cohort.state(SHARE, start).or_else(start)


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@options
class APFL(Method[State]):
    """Train the global model as FedAvg does, and at each client a model of its own to be mixed with it.

    Attributes:
        local: settings of local training with plain "sgd".
        alpha: share in [0, 1] of the own model in the mixture, at the beginning.
        adaptive: let each client learn its share (Eq. 10), once a round.

    >>> import coterie as ct, torch
    >>> ones = torch.ones(30, 1)
    >>> clients = ct.data.from_tensors({"a": (ones, torch.zeros(30)), "b": (ones, torch.full((30,), 4.0))})
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(5))
    >>> run = ct.fit(ct.APFL(local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=30)
    >>> {name: round(abs(float(x)), 1) for name, x in run.models.items()}
    {'*': 2.0, 'a': 0.0, 'b': 4.0}
    """

    local: LocalSGD = LocalSGD()
    alpha: Annotated[float, UNIT] = 0.5
    adaptive: bool = True

    needs = "sum"
    newcomers = True
    keeps = 1
    tasks = (apfl_update, mixture)

    def __post_init__(self) -> None:
        is_plain_sgd = self.local.optimiser == "sgd" and not self.local.momentum
        if not is_plain_sgd or self.local.clip is not None:
            raise InputError(
                'APFL needs local optimiser = "sgd" without momentum and clip, since the own model takes plain steps; leave them out'
            )

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        x, log = step_by_average(
            federation,
            state.x,
            apfl_update,
            local=self.local,
            alpha=self.alpha,
            adaptive=self.adaptive,
        )
        return State(x), log

    def models(self, state: State) -> Tensor:
        """The global model."""
        return state.x

    def personalised(
        self, state: State, federation: Federation
    ) -> dict[str, Tensor | None]:
        """The mixture of each seen and unseen client, where it is."""
        all_clients = (*federation.everyone, *federation.unseen)
        return federation.own_models(all_clients, mixture, x=state.x, alpha=self.alpha)

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates and own models."""
        return 2 * per_round
