r"""Centralised: trained on all rows pooled, for comparison only; a linear model has an intercept of each client, and a ridge.

Optimises: the loss over all rows; for a linear model its sum, and \tfrac{ridge}{2} |b|^2 + \tfrac{ridge}{40} \sum_k a_k^2.
Sends: nothing: the rows of all clients lie at the server.
Memory: none.
Use: you want to know what all rows in one place would give. It is for comparison only.
Avoid: partners may not share rows, which is why they federate.
Formula: x \leftarrow x - \eta \, \nabla \frac{1}{n} \sum_k \sum_{j=1}^{n_k} \ell(x; z_{kj})

The run loop puts the training rows of all clients where the server's rows are (`pooled`).

One linear layer with bias under a loss of the library is solved for in the first round: slopes b that all share, an intercept a_k
of each client, which pooled rows without a column for the client would deny them, and the same ridge as in `fixed-effects`, whose
model it is. A hospital outside is served the mean intercept. Squared errors count half.

Any other model, a loss of one's own, several labels, an attack or `exact = False`: a round takes the same number of steps as any
client does in other methods, with a batch that is n times as large for n participating clients: the same rounds, local steps and row
gradients as FedAvg.

Laws:
- of a linear model it is what fixed-effects comes to:
  tests/methods/test_centralised.py::test_of_a_linear_model_it_is_what_fixed_effects_comes_to
- by steps, one step on all rows is that of FedAvg:
  tests/methods/test_centralised.py::test_centralised_with_one_step_on_all_rows_is_fedavg
- by steps, with one client it is Local:
  tests/methods/test_centralised.py::test_centralised_with_one_client_is_local
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.base.rng import Rng
from coterie.base.vector import Layout
from coterie.compute.cohort import Cohort
from coterie.compute.linear import linear_rows
from coterie.compute.ridge import find_linear
from coterie.compute.tasks import own_update
from coterie.config.local import LocalSGD
from coterie.config.rules import POSITIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import Flag, Form, Holds, task
from coterie.solvers import glm
from coterie.solvers.profile import fit_shared_slopes

INTERCEPTS = 20
"""The ridge of intercepts is so many times smaller than that of slopes, as in `fixed-effects`."""


class Solvable(NamedTuple):
    """Whether the model is linear, under a loss whose best parameters can be solved for [n]."""

    yes: Flag


def _a_model_each(payload: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    return len(payload["sizes"]), layout.dim


class Solved(NamedTuple):
    """A model for each client whose rows the server holds [n, clients, d]."""

    models: Annotated[Tensor, "curvature", Form(_a_model_each)]


@task
def can_solve(cohort: Cohort) -> Solvable:
    """Whether `solve_pooled` can be asked."""
    linear = find_linear(cohort.workspace, cohort.clients)
    solvable = False
    if linear is not None and linear.kind in glm.FAMILIES:
        # Of other families a row has one label, and so the model one output.
        takes_several = linear.kind in ("classes", "hazards", "count")
        solvable = takes_several or linear.outputs == 1
    return Solvable(torch.full((len(cohort.names),), solvable))


@task
def solve_pooled(
    cohort: Cohort,
    *,
    sizes: Annotated[Tensor, Holds(("clients",), torch.int64)],
    ridge: float,
) -> Solved:
    """Shared slopes and the intercept of each client, whose rows lie behind each other, `sizes` [clients] of each."""
    ends = np.cumsum(sizes.numpy())
    pieces = np.split(np.arange(ends[-1]), ends[:-1])
    of_clients = [linear_rows(cohort, 0, numbers) for numbers in pieces]
    cohort.spent["row_gradients"] += int(ends[-1])
    first = of_clients[0]
    parts = [(rows.inputs, rows.labels) for rows in of_clients]
    slopes, intercepts = fit_shared_slopes(
        parts,
        first.family,
        first.outputs,
        ridge,
        ridge / INTERCEPTS,
        [rows.weights for rows in of_clients],
    )
    shared = slopes.expand(len(parts), -1)
    return Solved(torch.cat([shared, intercepts], 1)[None])


class State(NamedTuple):
    """What the server knows.

    Attributes:
        x: the model that is served where there is no other [d + b].
        clients: names of those that have a model with an intercept of their own.
        models: these [clients, d].
        solves: whether the model is solved for: 1 or 0; -1 before the first round.
    """

    x: Tensor
    clients: tuple[str, ...]
    models: Tensor
    solves: int


@options
class Centralised(Method[State]):
    """Train one model on the rows of all clients, which no federation may do; of a linear model each client has its own intercept.

    Attributes:
        local: settings of training by steps; its batch size is multiplied by the number of participants.
        exact: whether a linear model is solved for; else it takes steps like any other, and has one intercept.
        ridge: > 0, on the slopes of a linear model and the sum of all losses; a twentieth of it is on intercepts.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30)), (torch.ones(60, 1), torch.zeros(60))], task="regression")
    >>> local = ct.LocalSGD(lr=0.5, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.Centralised(local=local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=40)
    >>> round(float(run.x), 2)
    0.33
    """

    local: LocalSGD = LocalSGD()
    exact: bool = True
    ridge: Annotated[float, POSITIVE] = 1.0

    pooled = True
    is_reference = True

    @property
    def solves_linear(self) -> bool:
        """Return what `exact` says."""
        return self.exact

    @property
    def exempt(self) -> dict[str, str]:
        """Laws of methods that this one does not keep."""
        laws = {"failures": "all rows lie at the server, so no client fails"}
        if self.exact:
            laws["diverges"] = "a linear model is solved for, without a learning rate"
        return laws

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x, (), x.new_zeros(0, len(x)), -1)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round of training on all rows; the first solves, where that can be done."""
        if state.solves < 0:
            state = state._replace(solves=int(self._solves(federation)))
            if state.solves:
                state = self._solve(state, federation)
        if state.solves:
            return state, {}
        # A step then sees as many rows as that step of all participants together.
        local, size = self.local, self.local.batch_size
        if size is not None:
            local = replace(local, batch_size=size * len(federation.clients))
        replies = federation.ask(
            ["server"], own_update, need="all", x=state.x, local=local
        )
        return state._replace(x=state.x + replies.delta[0]), {}

    def _solves(self, federation: Federation) -> bool:
        # What an attack does to training can be compared with training alone.
        if not self.exact or federation.engine.honest is not None:
            return False
        return bool(federation.ask(["server"], can_solve, need="all").yes[0])

    def _solve(self, state: State, federation: Federation) -> State:
        of_everyone = federation.engine.sizes("train")
        names = federation.everyone
        sizes = torch.tensor([of_everyone[name] for name in names])
        ridge = float(self.ridge)
        replies = federation.ask(
            ["server"], solve_pooled, need="all", sizes=sizes, ridge=ridge
        )
        models = replies.models[0]
        return state._replace(
            x=models.mean(0).to(state.x), clients=names, models=models.to(state.x)
        )

    def models(self, state: State) -> Tensor | dict[str, Tensor]:
        """One model for all clients, or one with its own intercept for each."""
        if not state.clients:
            return state.x
        return {"*": state.x, **dict(zip(state.clients, state.models, strict=True))}

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return clients if self.exact else 1
