r"""Local: each client alone, with the same rounds, local steps and batches as in any other method.

Optimises: each client's own mean loss.
Sends: d up, d down (own_update).
Memory: none.
Use: you need the yardstick, with which every verdict compares; or a client with many rows resembles no other.
Avoid: a client has few rows: its own model then fits chance.
Formula: x_k \leftarrow x_k + \delta_k

The yardstick of every claim that federating helps or harms. It asks each client to go on training the client's own model; nothing of
one client reaches another. Everybody trains in every round, also where other methods draw some clients a round: who works alone
need not wait to be drawn. The models are kept with the server's state, so a run can be resumed and evaluated like any other; on a
real federation the models of this yardstick are thereby seen by the server.

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

from torch import Tensor

from coterie.base.rng import Rng
from coterie.compute.tasks import own_update
from coterie.config.local import LocalSGD
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.wire import PerClient

__all__ = ["Local", "State"]


class State(NamedTuple):
    """Names of all N clients and their models [N, d + b]."""

    names: tuple[str, ...]
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

    tasks = (own_update,)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Everybody starts from x."""
        return State(federation.everyone, x.repeat(len(federation.everyone), 1))

    def round(self, state: State, federation: Federation, rng: Rng) -> tuple[State, Log]:
        """One round of everybody; the model of a client that failed stays."""
        start = PerClient(state.x[federation.positions(federation.clients)])
        replies = federation.ask(federation.clients, own_update, x=start, local=self.local)
        x = state.x.clone()
        x[federation.positions(replies.clients)] += replies.delta
        return State(state.names, x), {"weights": {n: {n: 1.0} for n in replies.clients}}

    def models(self, state: State) -> dict[str, Tensor]:
        """A model for each client."""
        return dict(zip(state.names, state.x, strict=True))

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return 3 * clients
