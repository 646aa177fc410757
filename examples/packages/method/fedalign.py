r"""FedALIGN: train for a few clients with priority, and let others help while the model fits them as well.

Paper: "Utilizing Free Clients in Federated Learning for Focused Model Enhancement", 2023, arXiv 2310.04515.

Optimises: the mean loss of the clients with priority, by rows.
Sends: d up, d down (update: those that count); 2 up, d down (standing).
Memory: none.
Use: a few clients pay for the model, and others offer their rows.
Avoid: all clients should be served alike: that is `fedavg`.
Formula: x \leftarrow x + \frac{\sum_{k \in C} p_k \delta_k}{\sum_{k \in C} p_k}, \quad C = P \cup \{k : |f_k(x) - F(x)| < \epsilon\}

Symbols: P = priority, p_k = share of all rows, F = mean of f_k over P by rows, eps = epsilon_t.
"""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import torch

import coterie as ct
from coterie.base.names import match_clients
from coterie.config.rules import NOT_NEGATIVE, TARGETS


class Standing(NamedTuple):
    """f_k(x) and training rows of each client, [n]."""

    loss: torch.Tensor
    rows: torch.Tensor


class Trained(NamedTuple):
    """delta [n, d + b]."""

    delta: ct.Update


@ct.task
def standing(cohort: ct.Cohort, *, x: torch.Tensor) -> Standing:
    """How well the model fits each client before it trains."""
    return Standing(cohort.loss(x), cohort.sizes)


@ct.task
def update(cohort: ct.Cohort, *, x: torch.Tensor, local: ct.LocalSGD) -> Trained:
    """Local training from x."""
    return Trained(cohort.updates(x, local))


class State(NamedTuple):
    """The model [d + b]."""

    x: torch.Tensor


@ct.options
class FedALIGN(ct.Method[State]):
    """Average by rows the updates of clients with priority, and of all others whose loss is close to theirs.

    Attributes:
        local: settings of local training.
        priority: name or names of the clients with priority; "all" is FedAvg.
        eps: how far the loss of another client may be from that of the clients with priority, >= 0; 0: they alone train.
    """

    local: ct.LocalSGD = ct.LocalSGD()
    priority: Annotated[str | tuple[str, ...], TARGETS] = "all"
    eps: Annotated[float, NOT_NEGATIVE] = 0.1

    @property
    def tasks(self) -> Sequence[Any]:
        """What clients are asked."""
        return (standing, update)

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for a name that no client has."""
        match_clients(self, "priority", everyone, everybody="all")

    def init(self, x: torch.Tensor, federation: ct.Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: ct.Federation, rng: ct.Rng
    ) -> tuple[State, dict[str, Any]]:
        """One round: who fits, then the updates of those."""
        replies = federation.ask(federation.clients, standing, x=state.x)
        names = match_clients(self, "priority", federation.everyone, everybody="all")
        first = torch.tensor([name in names for name in replies.clients])
        if not first.any():
            return state, {
                "selected": 0
            }  # no client with priority takes part in this round
        target = (replies.rows * replies.loss)[first].sum() / replies.rows[first].sum()
        counts = first | ((replies.loss - target).abs() < self.eps)
        clients = [
            name
            for name, count in zip(replies.clients, counts.tolist(), strict=True)
            if count
        ]
        average = federation.average(
            clients, update, weights=replies.rows[counts], x=state.x, local=self.local
        )
        log = {"weights": average.by_client(average.weights), "selected": len(clients)}
        return State(state.x + average.delta), log

    def models(self, state: State) -> torch.Tensor:
        """One model, which the others may use as well."""
        return state.x
