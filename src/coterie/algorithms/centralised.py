r"""Centralised: trained on all rows pooled, for comparison only: partners cannot share rows.

Optimises: the mean loss over all rows.
Sends: nothing: the rows of all clients lie at the server.
Memory: none.
Use: you want to know what all rows in one place would give. It is for comparison only.
Avoid: partners may not share rows, which is why they federate.
Formula: x \leftarrow x - \eta \, \nabla \frac{1}{n} \sum_k \sum_{j=1}^{n_k} \ell(x; z_{kj})

The run loop puts the training rows of all clients where the server's rows are (`pooled`), and the server trains on them. A round takes
the same number of steps as any client does in other methods, with a batch that is n times as large for n participating clients: the
same rounds, local steps and row gradients as FedAvg.

Laws:
- one step on all rows is that of FedAvg:
  tests/methods/test_centralised.py::test_centralised_with_one_step_on_all_rows_is_fedavg
- with one client it is Local:
  tests/methods/test_centralised.py::test_centralised_with_one_client_is_local
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple

from torch import Tensor

from coterie.base.rng import Rng
from coterie.compute.tasks import own_update
from coterie.config.local import LocalSGD
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method


class State(NamedTuple):
    """The model [d + b]."""

    x: Tensor


@options
class Centralised(Method[State]):
    """Train one model on the rows of all clients, which no federation may do.

    Attributes:
        local: settings of training; its batch size is multiplied by the number of participants.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30)), (torch.ones(60, 1), torch.zeros(60))], task="regression")
    >>> local = ct.LocalSGD(lr=0.5, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.Centralised(local=local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=40)
    >>> round(float(run.x), 2)
    0.33
    """

    local: LocalSGD = LocalSGD()

    pooled = True
    is_reference = True
    exempt: ClassVar[Mapping[str, str]] = {
        "failures": "all rows lie at the server, so no client fails"
    }

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round of training on all rows."""
        # A step then sees as many rows as that step of all participants together.
        size = self.local.batch_size
        local = replace(
            self.local,
            batch_size=None if size is None else size * len(federation.clients),
        )
        replies = federation.ask(
            ["server"], own_update, need="all", x=state.x, local=local
        )
        return State(state.x + replies.delta[0]), {}

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return 1
