r"""FedProx: FedAvg whose local models are held near the global one.

Paper: T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, Algorithm 2 and Eq. 2.

Optimises: the mean loss over all rows.
Sends: d + 1 up, d down (proximal_update).
Memory: none.
Use: clients take many local steps on data that differ, so that their models drift apart.
Avoid: clients take few steps: the penalty then only makes training slower.
Formula: h_k(w) = F_k(w) + \frac{\mu}{2} \|w - x\|^2, \quad x \leftarrow x + \eta \sum_{k \in S} \frac{n_k}{\sum_{j
\in S} n_j} \, \delta_k

Symbols: x = w^t, mu of h_k(w; w^t) = F_k(w) + mu / 2 ||w - w^t||^2.

Differences from the paper: all clients do the number of steps that `local` says; participants are weighted by size, where the
paper draws them by size and averages uniformly (the same in expectation).

Laws:
- mu = 0 is FedAvg, bit by bit:
  tests/methods/test_fedprox.py::test_fedprox_without_a_penalty_is_fedavg_bit_by_bit
- a larger mu keeps updates shorter:
  tests/methods/test_fedprox.py::test_a_larger_penalty_keeps_updates_shorter
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from torch import Tensor

from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.cohort import Cohort
from coterie.compute.step_hooks import Quadratic
from coterie.compute.tasks import LocalUpdate
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.rules import NOT_NEGATIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import OneModel, task


@task
def proximal_update(
    cohort: Cohort, *, x: OneModel, local: LocalSGD, mu: float
) -> LocalUpdate:
    """Minimise F_k(y) + mu / 2 ||y - x||^2 for some local steps (Eq. 2)."""
    penalty = Quadratic(mu) if mu else None
    return LocalUpdate(cohort.updates(x, local, penalty=penalty), cohort.sizes)


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@options
class FedProx(Method[State]):
    """Average by size the updates of clients that are held near the global model.

    Attributes:
        local: settings of local training: how long and with which rate h_k is minimised (the gamma-inexact solver of Algorithm 2).
        mu: mu >= 0 of the proximal term mu / 2 ||w - w^t||^2 in h_k (Eq. 2); 0 is FedAvg.
        lr: server learning rate > 0 on the mean update; 1 is the average of Algorithm 2.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30))], task="regression")
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(50))
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.zero_()
    >>> far, near = (ct.fit(ct.FedProx(local=local, mu=mu), clients, model=model, rounds=1) for mu in (0.0, 2.0))
    >>> round(float(far.x), 2), round(float(near.x), 2)  # argmin of (w - 1)^2 + mu / 2 w^2 is 2 / (2 + mu)
    (1.0, 0.5)
    """

    local: LocalSGD = LocalSGD()
    mu: Annotated[float, NOT_NEGATIVE] = 0.1
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0

    needs = "sum"
    newcomers = True
    tasks = (proximal_update,)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        average = federation.average(
            federation.clients, proximal_update, x=state.x, local=self.local, mu=self.mu
        )
        x = shift(
            state.x, average.delta, rate_of(self.lr, federation.round), federation.dim
        )
        return State(x), {"weights": average.by_client(average.weights)}

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x
