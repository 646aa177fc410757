r"""Local: each client alone, with the same rounds, local steps and batches as in any other method.

Optimises: each client's own mean loss.
Sends: 0 up, d down (train_alone).
Memory: d numbers: its own model.
Use: you need the yardstick, with which every verdict compares; or a client with many rows resembles no other.
Avoid: a client has few rows: its own model then fits chance.
Formula: x_k \leftarrow x_k + \delta_k

The yardstick of every claim that federating helps or harms. It asks each client to go on training the client's own model, which the
client keeps; nothing of one client reaches another. All clients train in every round, also where other methods draw some clients a
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

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError, nearest
from coterie.base.rng import Rng
from coterie.compute.cohort import Cohort
from coterie.compute.tasks import OwnModel
from coterie.config.local import LocalSGD
from coterie.config.rules import NOT_NEGATIVE, Rule
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import Flag, OneModel, task

_DECAYS = Rule(
    lambda v: isinstance(v, Mapping) and all(map(NOT_NEGATIVE.test, v.values())),
    "numbers >= 0 by client, such as {hungary = 0.1}",
)


OWN = "alone"
"""Name of the own model in client memory."""


class Trained(NamedTuple):
    """True of each client that has trained [n]."""

    done: Flag


@task
def train_alone(
    cohort: Cohort,
    *,
    x: OneModel,
    local: LocalSGD,
    decays: tuple[tuple[str, float], ...] = (),
) -> Trained:
    """Go on training the own model, which begins at x; with a weight decay of its own where `decays` names the client."""
    own_models = cohort.state(OWN, x).values
    by_name = dict(decays)
    client_decays = (
        [by_name.get(name, local.weight_decay) for name in cohort.names]
        if decays
        else None
    )
    update = cohort.updates(own_models, local, weight_decays=client_decays)
    own_models = own_models + update
    if cohort.workspace.veil is None and not bool(torch.isfinite(own_models).all()):
        raise FloatingPointError("its own model is not finite")
    cohort.keep(OWN, own_models)
    return Trained(torch.ones(len(cohort.names), dtype=torch.bool))


@task
def model_alone(cohort: Cohort, *, x: OneModel) -> OwnModel:
    """The own model; x where there is none yet. It counts whether the server has heard of it or not."""
    return OwnModel(cohort.state(OWN, x).values)


class State(NamedTuple):
    """The model [d + b] from which all clients began."""

    x: Tensor


@options
class Local(Method[State]):
    """Each client alone.

    Attributes:
        local: settings of local training.
        weight_decays: by client, in place of that of `local`; `coterie compare` with folds chooses them on validation rows.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30)), (torch.ones(60, 1), torch.zeros(60))], task="regression")
    >>> local = ct.LocalSGD(lr=0.5, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.Local(local=local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=40)
    >>> [round(abs(float(x)), 2) for x in run.models.values()]
    [1.0, 0.0]
    """

    is_reference = True

    local: LocalSGD = LocalSGD()
    weight_decays: Annotated[Mapping[str, float], _DECAYS] = field(default_factory=dict)

    participation = "own"

    keeps = 1
    tasks = (train_alone, model_alone)

    @property
    def decays(self) -> tuple[tuple[str, float], ...]:
        """The weight decays as they travel."""
        return tuple(
            sorted((name, float(decay)) for name, decay in self.weight_decays.items())
        )

    def init(self, x: Tensor, federation: Federation) -> State:
        """All clients start from x."""
        return State(x)

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for a weight decay of a client that does not exist."""
        for name in self.weight_decays:
            if name not in everyone:
                raise InputError(
                    f"weight_decays names {name!r}, and there is no such client; {nearest(name, everyone)}"
                )

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round of all clients; the model of a client that failed stays."""
        decay_payload: dict[str, Any] = (
            {"decays": self.decays} if self.weight_decays else {}
        )
        trained = federation.ask(
            federation.clients,
            train_alone,
            x=state.x,
            local=self.local,
            **decay_payload,
        ).clients
        return state, {"weights": {name: {name: 1.0} for name in trained}}

    def models(self, state: State) -> dict[str, Tensor]:
        """None that the server has."""
        return {}

    def personalised(
        self, state: State, federation: Federation
    ) -> dict[str, Tensor | None]:
        """The model of each client, where it is."""
        return federation.own_models(federation.everyone, model_alone, x=state.x)

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Models of all, as they are evaluated."""
        return clients
