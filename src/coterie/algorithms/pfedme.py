r"""pFedMe: each client finds the model that lowers its loss near the global one, and the global one moves towards these.

Paper: C. T. Dinh, N. H. Tran, T. D. Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1.

Optimises: the mean over clients of the least of f_i(theta) + lam / 2 ||theta - w||^2, a smoothed loss.
Sends: d up, d down (moreau_update).
Shows: the average.
Memory: d numbers: its own model.
Use: each client wants a model of its own, not far from a common one.
Avoid: `lam`, both learning rates and `inner_steps` cannot be tuned: they depend on each other.
Formula: \theta_i \approx \operatorname{argmin}_\theta f_i(\theta) + \frac{\lambda}{2} \|\theta - w\|^2, \quad w \leftarrow w - \eta
\lambda (w - \theta_i)

Symbols: x = w^t, w = w^t_{i,r}, theta = theta-tilde_i, lam = lambda, local lr = eta, beta, delta = w - x (added).

Each local step takes `inner_steps` gradient steps of theta on one batch, then moves w. theta starts at x in every round and goes
on from step to step.

Differences from the paper: none are known; the authors' code adds a weight decay of .001, which is not here. Momentum, clipping
and weight decay, if set, act on the steps of w. Statistics of batch norm are those that theta's batches left.

What is evaluated, saved and used for predictions is theta. That of another party stays there.

Laws:
- lam = 0 never moves the global model:
  tests/methods/test_pfedme.py::test_without_a_pull_the_global_model_stays
- one step with lr lam = 1 ends at theta:
  tests/methods/test_pfedme.py::test_a_whole_step_ends_at_the_own_model
- one round by hand:
  tests/methods/test_pfedme.py::test_a_round_by_hand
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.cohort import Cohort
from coterie.compute.tasks import OwnUpdate, own_model, own_models
from coterie.config.local import LocalSGD
from coterie.config.rules import NOT_NEGATIVE, POSITIVE, SIZE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import OneModel, task

OWN = "pfedme"
"""Name of theta in client memory."""


class _Envelope:
    """theta [d] of one client: a rule that first brings it near its minimum, and then draws w towards it."""

    def __init__(
        self, theta: Tensor, lam: float, inner_steps: int, inner_lr: float
    ) -> None:
        self.theta = theta
        self._lam, self._steps, self._lr = lam, inner_steps, inner_lr

    def __call__(self, gradient: Callable[[Tensor, int], Tensor], w: Tensor) -> Tensor:
        for _ in range(self._steps):
            slope = gradient(self.theta, 0) + self._lam * (self.theta - w)
            self.theta = self.theta - self._lr * slope
        return self._lam * (w - self.theta)  # line 8


@task
def moreau_update(
    cohort: Cohort,
    *,
    x: OneModel,
    local: LocalSGD,
    lam: float,
    inner_steps: int,
    inner_lr: float,
) -> OwnUpdate:
    """Lines 5 to 8."""
    d, deltas, thetas = cohort.layout.dim, [], []
    for i in range(len(cohort.names)):
        envelope = _Envelope(x[:d], lam, inner_steps, inner_lr)
        deltas.append(cohort.only([i]).updates(x, local, gradient_rule=envelope))
        thetas.append(torch.cat([envelope.theta, x[d:] + deltas[i][0, d:]]))
    cohort.keep(OWN, torch.stack(thetas))
    return OwnUpdate(torch.cat(deltas))


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@options
class PFedMe(Method[State]):
    """Average uniformly the updates of models that are drawn to what each client has found for itself near them.

    Attributes:
        local: settings of local training: R steps of w at rate eta.
        lam: lambda >= 0: how strongly own models are held near the global one.
        inner_steps: gradient steps of theta for each step of w (K of the paper).
        inner_lr: > 0, their learning rate; below 2 / lam.
        beta: > 0: how far the server goes towards the mean; 1 is the mean.

    >>> import coterie as ct, torch
    >>> ones = torch.ones(30, 1)
    >>> clients = ct.data.from_tensors({"a": (ones, torch.zeros(30)), "b": (ones, torch.full((30,), 4.0))})
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(5))
    >>> method = ct.PFedMe(local, lam=2.0, inner_lr=0.25)
    >>> run = ct.fit(method, clients, model=torch.nn.Linear(1, 1, bias=False), rounds=30)
    >>> {name: round(float(x), 1) for name, x in run.models.items()}  # about half the way from 0 or 4 to 2
    {'*': 2.0, 'a': 0.7, 'b': 3.3}
    """

    local: LocalSGD = LocalSGD()
    lam: Annotated[float, NOT_NEGATIVE] = 15.0
    inner_steps: Annotated[int, SIZE] = 5
    inner_lr: Annotated[float, POSITIVE] = 0.05
    beta: Annotated[float, POSITIVE] = 1.0

    needs = "sum"
    newcomers = True
    keeps = 1

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates, and the models that clients keep."""
        return asks(moreau_update), asks(own_model, key=OWN)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        average = federation.average(
            federation.clients, moreau_update, weights=torch.ones(len(federation.clients)), x=state.x, local=self.local,
            lam=self.lam, inner_steps=self.inner_steps, inner_lr=self.inner_lr,
        )  # fmt: skip
        x = shift(state.x, average.delta, self.beta, federation.dim)  # line 12
        return State(x), {"weights": average.by_client(average.weights)}

    def models(self, state: State) -> Tensor:
        """The global model."""
        return state.x

    def personalised(
        self, state: State, federation: Federation
    ) -> dict[str, Tensor | None]:
        """The model of each client, where it is; the global one for those that have none."""
        return own_models(federation, OWN, state.x)

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates and own models."""
        return 2 * per_round
