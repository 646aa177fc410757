r"""Local: each client alone: a linear model is solved with a ridge of its own, any other takes the steps of other methods.

Optimises: each client's own loss, for a linear model with a ridge that its own folds choose.
Sends: 0 up, d down (train_alone).
Memory: d numbers: its own model.
Use: you need the yardstick, with which every verdict compares; or a client with many rows resembles no other.
Avoid: a client has few rows: its own model then fits chance.
Formula: x_k \leftarrow \arg\min_{w, b} \sum_{j=1}^{n_k} \ell(w, b; z_{kj}) + \tfrac{l_k}{2} |w|^2 + \tfrac{.001}{2} b^2
Symbols: l_k: ridge of client k, of .01, 1, 3, 10, 30 and 100

The yardstick of every claim that federating helps or harms. Nothing of one client reaches another.

One linear layer with bias under a loss of the library has a best model, and it is solved for in the first round, whatever `local`
says (squared errors count half). The ridge l_k is chosen by folds: while a fold is tested, without its rows. The loss of each other
fold is that of models that were fitted without both, so the yardstick is not flattered by its tests. Where no fold is tested there are
five inner folds; a client of fewer than 5 rows (patients), or of one class, has ridge 10. Validation rows join, where they train.

Any other model, a loss of one's own, augmented rows, an attack or `exact = False`: each client goes on training its own model with
the same rounds, local steps and batches as in other methods, x_k \leftarrow x_k + \delta_k.

All clients train in every round, also where other methods draw some clients a round: who works alone need not wait to be drawn. A
client that has lost its model begins anew, and is named.

Laws:
- other clients change nothing:
  tests/methods/test_local.py::test_local_models_do_not_depend_on_other_clients
- the ridge of a tested fold has not seen its rows:
  tests/methods/test_local.py::test_the_ridge_of_a_tested_fold_does_not_see_its_labels
- it is scikit-learn's model at the chosen ridge:
  tests/methods/test_local.py::test_the_model_is_that_of_scikit_learn_at_the_chosen_ridge
- by steps, a federation of one client gives FedAvg's model:
  tests/methods/test_local.py::test_fedavg_with_one_client_is_local
- by steps, rounds of them are one long training:
  tests/methods/test_local.py::test_local_rounds_of_steps_are_one_long_training
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError, nearest
from coterie.base.rng import Rng
from coterie.compute.cohort import Cohort
from coterie.compute.ridge import find_linear, solve_alone
from coterie.compute.tasks import OwnModel
from coterie.config.local import LocalSGD
from coterie.config.rules import NOT_NEGATIVE, Rule
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.memory import NEVER
from coterie.contract.method import Log, Method
from coterie.contract.replies import Replies
from coterie.contract.requests import Among, asks
from coterie.contract.task import Flag, OneModel, task

_DECAYS = Rule(
    lambda v: isinstance(v, Mapping) and all(map(NOT_NEGATIVE.test, v.values())),
    "numbers >= 0 by client, such as {hungary = 0.1}",
)


OWN = "alone"
"""Name of the own model in client memory."""


class Trained(NamedTuple):
    """Of each client that has trained, whether its model was solved for, so that no further round changes it [n]."""

    solved: Flag


@task
def train_alone(
    cohort: Cohort,
    *,
    x: OneModel,
    local: LocalSGD,
    decays: tuple[tuple[str, float], ...] = (),
    exact: bool = False,
) -> Trained:
    """Go on training the own model, which begins at x; with a weight decay of its own where `decays` names the client.

    Where it is to be `exact` and the model is linear, it is solved for instead, once.
    """
    own_models = _solve(cohort, x) if exact else None
    solved = own_models is not None
    if own_models is None:
        own_models = _train(cohort, x, local, dict(decays))
    cohort.keep(OWN, own_models)
    return Trained(torch.full((len(cohort.names),), solved))


def _train(
    cohort: Cohort, x: Tensor, local: LocalSGD, decays: Mapping[str, float]
) -> Tensor:
    """The own models [n, d + b] after one more round of steps."""
    own_models = cohort.state(OWN, x).values
    client_decays = None
    if decays:
        client_decays = [decays.get(name, local.weight_decay) for name in cohort.names]
    update = cohort.updates(own_models, local, weight_decays=client_decays)
    own_models = own_models + update
    if cohort.workspace.veil is None and not bool(torch.isfinite(own_models).all()):
        raise FloatingPointError("its own model is not finite")
    return own_models


def _solve(cohort: Cohort, x: Tensor) -> Tensor | None:
    """The own models [n, d + b], solved for at clients that keep none; None where the model is not linear."""
    linear = find_linear(cohort.workspace, cohort.clients)
    if linear is None:
        return None
    state = cohort.state(OWN, x)
    own_models = state.values.clone()
    for i in (state.rounds == NEVER).nonzero().flatten().tolist():
        cohort.require_enough(i, None)
        own_models[i] = solve_alone(cohort, i, linear)
    return own_models


@task
def model_alone(cohort: Cohort, *, x: OneModel, again: bool = False) -> OwnModel:
    """The own model; x where there is none yet. It counts whether the server has heard of it or not.

    Where it is to be solved for `again`, a client that has lost its model has the same one, and not x.
    """
    own_models = _solve(cohort, x) if again else None
    if own_models is None:
        own_models = cohort.state(OWN, x).values
    return OwnModel(own_models)


class State(NamedTuple):
    """The model [d + b] from which all clients began, and whether the model of each was solved for."""

    x: Tensor
    solved: bool


@options
class Local(Method[State]):
    """Each client alone.

    Attributes:
        local: settings of local training.
        weight_decays: of steps, by client, in place of that of `local`; `coterie compare` with folds chooses them on validation rows.
        exact: whether a linear model is solved for, with a ridge that folds choose; else it takes steps like any other.

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
    exact: bool = True

    participation = "own"

    keeps = 1
    newcomers = True
    tasks = (train_alone, asks(model_alone, again=Among(False, True)))

    @property
    def solves_linear(self) -> bool:
        """Return what `exact` says."""
        return self.exact

    @property
    def exempt(self) -> dict[str, str]:
        """Laws of methods that a solved model does not keep."""
        if not self.exact:
            return {}
        return {
            "names": "inner folds are dealt by the name of the client, and choose its ridge",
            "diverges": "a linear model is solved for, without a learning rate",
        }

    @property
    def decays(self) -> tuple[tuple[str, float], ...]:
        """The weight decays as they travel."""
        return tuple(
            sorted((name, float(decay)) for name, decay in self.weight_decays.items())
        )

    def init(self, x: Tensor, federation: Federation) -> State:
        """All clients start from x."""
        return State(x, solved=False)

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
        clients: Iterable[str] = federation.everyone
        if not state.solved:
            trained = self._train(state, federation)
            clients = trained.clients
            # A site is asked in every round: one that has lost its memory solves again.
            asked_all = clients == federation.everyone
            if federation.engine.simulated and asked_all:
                state = state._replace(solved=bool(trained.solved.all()))
        return state, {"weights": {name: {name: 1.0} for name in clients}}

    def _train(self, state: State, federation: Federation) -> Replies[Trained]:
        decay_payload: dict[str, Any] = {}
        if self.weight_decays:
            decay_payload["decays"] = self.decays
        # What an attack does to training can be compared with training alone.
        is_attacked = federation.engine.honest is not None
        return federation.ask(
            federation.clients,
            train_alone,
            x=state.x,
            local=self.local,
            exact=self.exact and not is_attacked,
            **decay_payload,
        )

    def finished(self, state: State) -> bool:
        """Once the model of each client was solved for."""
        return state.solved

    def models(self, state: State) -> dict[str, Tensor]:
        """None that the server has."""
        return {}

    def personalised(
        self, state: State, federation: Federation
    ) -> dict[str, Tensor | None]:
        """The model of each client, where it is."""
        return federation.own_models(
            federation.everyone, model_alone, x=state.x, again=state.solved
        )

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Models of all, as they are evaluated."""
        return clients
