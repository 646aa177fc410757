r"""Local: each client alone, with the same rounds, local steps and batches as in any other method.

Optimises: each client's own mean loss.
Sends: 0 up, d down (train_alone).
Memory: d numbers: its own model.
Use: you need the yardstick, with which every verdict compares; or a client with many rows resembles no other.
Avoid: a client has few rows: its own model then fits chance.
Formula: x_k \leftarrow x_k + \delta_k

The yardstick of every claim that federating helps or harms. It asks each client to go on training the client's own model, which the
client keeps; nothing of one client reaches another. Everybody trains in every round, also where other methods draw some clients a
round: who works alone need not wait to be drawn. A client that has lost its model begins anew, and is named.

Laws:
- other clients change nothing:
  tests/methods/test_local.py::test_local_models_do_not_depend_on_other_clients
- a federation of one client gives FedAvg's model:
  tests/methods/test_local.py::test_fedavg_with_one_client_is_local
- rounds of steps are one long training:
  tests/methods/test_local.py::test_local_rounds_of_steps_are_one_long_training
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.base.rng import Rng
from coterie.compute.cohort import Cohort
from coterie.compute.tasks import OwnModel
from coterie.config.local import LocalSGD
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import Flag, OneModel, task

__all__ = ["Local", "State"]


OWN = "alone"
"""Name of the own model in client memory."""


class Trained(NamedTuple):
    """True of each client that has trained [n]."""

    done: Flag


@task
def train_alone(cohort: Cohort, *, x: OneModel, local: LocalSGD) -> Trained:
    """Go on training the own model, which begins at x."""
    own = cohort.state(OWN, x).values
    own = own + cohort.updates(own, local)
    if not bool(torch.isfinite(own).all()):
        raise FloatingPointError("its own model is not finite")
    cohort.keep(OWN, own)
    return Trained(torch.ones(len(cohort.names), dtype=torch.bool))


@task
def model_alone(cohort: Cohort, *, x: OneModel) -> OwnModel:
    """The own model; x where there is none yet. It counts whether the server has heard of it or not."""
    return OwnModel(cohort.state(OWN, x).values)


class State(NamedTuple):
    """The model [d + b] from which everybody began."""

    x: Tensor


@options
class Local(Method[State]):
    """Each client alone.

    Attributes:
        local: settings of local training.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30)), (torch.ones(60, 1), torch.zeros(60))], task="regression")
    >>> local = ct.LocalSGD(lr=0.5, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.Local(local=local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=40)
    >>> [round(abs(float(x)), 2) for x in run.models.values()]
    [1.0, 0.0]
    """

    is_reference = True

    local: LocalSGD = LocalSGD()

    participation = "own"

    tasks = (train_alone, model_alone)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Everybody starts from x."""
        return State(x)

    def round(self, state: State, federation: Federation, rng: Rng) -> tuple[State, Log]:
        """One round of everybody; the model of a client that failed stays."""
        replies = federation.ask(federation.clients, train_alone, x=state.x, local=self.local)
        return state, {"weights": {n: {n: 1.0} for n in replies.clients}}

    def models(self, state: State) -> dict[str, Tensor]:
        """None that the server has."""
        return {}

    def personalised(self, state: State, federation: Federation) -> dict[str, Tensor | None]:
        """The model of each client, where it is."""
        return federation.own_models(federation.everyone, model_alone, x=state.x)

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return 3 * clients
