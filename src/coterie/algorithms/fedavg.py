r"""FedAvg: average the clients' updates by size.

Paper: H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", AISTATS 2017, Algorithm 1.

Optimises: the mean loss over all rows.
Sends: d + 1 up, d down (local_update).
Memory: none.
Use: clients have similar data, and one model should serve all rows.
Avoid: clients differ: a small client with data of its own kind is then served badly. `meritfed`, `scaffold` or
`fedavg+bias` help there.
Formula: x \leftarrow x + \eta \sum_{k \in S} \frac{n_k}{\sum_{j \in S} n_j} \, \delta_k

Symbols: x = w_t, delta_k = w^k_{t+1} - w_t, sizes = n_k, local = (B, E or a number of steps, eta), lr: a server learning rate
(1 in the paper).

Differences from the paper: `lr`; `Steps` beside `Epochs`.

Laws:
- one local step on all rows is gradient descent on the size-weighted loss:
  tests/methods/test_fedavg.py::test_one_step_on_all_rows_is_gradient_descent_on_the_size_weighted_loss
- FedProx without a penalty is FedAvg:
  tests/methods/test_fedprox.py::test_fedprox_without_a_penalty_is_fedavg_bit_by_bit
- a client that exists twice counts twice:
  tests/methods/test_fedavg.py::test_a_client_that_exists_twice_counts_twice
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from torch import Tensor

from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.tasks import local_update
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@options
class FedAvg(Method[State]):
    """Average updates by the number of training rows.

    Attributes:
        local: settings of local training: B, E (or a number of steps) and eta of ClientUpdate in Algorithm 1.
        lr: server learning rate > 0 on the mean update sum_k n_k / n (w^k_{t+1} - w_t); 1 is the average of Algorithm 1.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30)), (torch.ones(60, 1), torch.zeros(60))], task="regression")
    >>> local = ct.LocalSGD(lr=0.5, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.FedAvg(local=local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=40)
    >>> round(float(run.x), 2)  # the mean label, since a third of all rows has label 1
    0.33
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0

    needs = "sum"
    newcomers = True

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates."""
        return (asks(local_update),)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        average = federation.average(
            federation.clients, local_update, x=state.x, local=self.local
        )  # by n_k / n
        x = shift(
            state.x, average.delta, rate_of(self.lr, federation.round), federation.dim
        )
        return State(x), {"weights": average.by_client(average.weights)}

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x
