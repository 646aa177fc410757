r"""SL: the internal clients learn with those external ones whose loss is lowest.

Paper: Y. Song, L. Yu, B. Lei, K.-S. Choi, J. Qin, "Selective Learning from External Data for CT Image Segmentation", MICCAI 2021;
as a comparator of "Rethinking Client Reweighting for Selfish Federated Learning" (VaRSeL), whose reading is built: external
clients with a high loss under the model are left out.

Optimises: the mean loss over the rows of the internal clients and of K external ones.
Sends: d + 1 up, d down (local_update: internal and kept clients); 1 up, d down (losses: external clients).
Memory: none.
Use: a few internal clients matter, and external ones with a low loss are probably alike.
Avoid: internal clients need what they do not know yet: a low loss means that there is little to learn.
Formula: x \leftarrow x + \eta \, \frac{\sum_{k \in I \cup S} n_k \delta_k}{\sum_{k \in I \cup S} n_k}, \quad S =
\text{the } K \text{ external clients with the smallest } F_k(x)

Symbols: internal = the M clients that matter, budget = K external ones kept in a round.

x <- x + lr * (average by rows of the updates of the internal clients and of the K external ones with the lowest loss at x).

Differences from the paper: it weighs single images of an external set while it trains, and alternates between weights and model.
Here a client is kept or not, in every round anew, by the mean loss of the present model on all its training rows. `budget` None
leaves what the run's `clients_per_round` does not need for the internal clients.

A round asks the N external clients for one number (a forward pass over their rows), and M + K clients for an update. A low loss
also means that there is little to learn: SL prefers clients that the model serves already.

Laws:
- K = N is FedAvg, K = 0 FedAvg among the internal clients:
  tests/methods/test_selective.py::test_selective_with_all_or_none_is_fedavg
- an external client with a high loss never counts:
  tests/methods/test_selective.py::test_selective_never_keeps_a_client_with_a_high_loss
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.names import match_clients
from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.cohort import Cohort
from coterie.compute.tasks import local_update
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.rules import COUNT, NAMES, optional
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import MeanLoss, OneModel, task


class Losses(NamedTuple):
    """Mean loss at x, float64 [n]."""

    loss: MeanLoss


@task
def losses(cohort: Cohort, *, x: OneModel) -> Losses:
    """Loss of the model at an external client, before it trains."""
    return Losses(cohort.loss(x))


class State(NamedTuple):
    """Names of the internal clients and their model [d + b]."""

    internal: tuple[str, ...]
    x: Tensor


@options
class SelectiveLearning(Method[State]):
    """Learn one model for a few internal clients, with the external ones that it serves best.

    Attributes:
        internal: name or names of the internal clients, which always train; the model is evaluated on them only.
        budget: K >= 0, how many external clients train in a round; None: as many as the run's clients_per_round leaves.
        local: settings of local training.
        lr: server learning rate > 0.

    >>> import coterie as ct, torch
    >>> rows = {name: (torch.ones(9, 1), torch.full((9,), label)) for name, label in {"a": 0.0, "b": 0.1, "c": 5.0}.items()}
    >>> run = ct.fit(ct.SelectiveLearning("a", budget=1), ct.data.from_tensors(rows), ct.models.Logistic(), rounds=3)
    >>> run.weights["a"]
    {'a': 0.5, 'b': 0.5}
    """

    internal: Annotated[str | tuple[str, ...], NAMES] = ()
    budget: Annotated[int | None, optional(COUNT)] = None
    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0

    participation = "own"
    exempt: ClassVar[Mapping[str, str]] = {
        "failures": "updates of all internal and chosen clients are needed"
    }

    needs = "sum"

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates, and losses of external clients where some are drawn."""
        if self.budget == 0:
            return (asks(local_update),)
        return asks(local_update), asks(losses)

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for fields that do not fit these clients."""
        external = len(everyone) - len(match_clients(self, "internal", everyone))
        if self.budget is not None and self.budget > external:
            raise InputError(
                f"SelectiveLearning.budget = {self.budget} is more than the {external} external clients; lower it, or leave it "
                "out for as many as clients_per_round leaves"
            )

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        self.check(federation.everyone)
        return State(match_clients(self, "internal", federation.everyone), x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round: losses of the external clients, updates of the internal ones and of those that are kept."""
        external_clients = tuple(
            n for n in federation.everyone if n not in state.internal
        )
        budget = self.budget
        if budget is None:
            budget = max(0, federation.per_round - len(state.internal))
        external = external_clients
        log = Log()
        if budget == 0:
            external = ()
        elif budget < len(external_clients):
            replies = federation.ask(external_clients, losses, x=state.x)
            external = tuple(
                replies.clients[i]
                for i in sorted(replies.loss.argsort(stable=True)[:budget].tolist())
            )
            log["external_loss"] = replies.by_client(replies.loss)
        chosen = (*state.internal, *external)
        average = federation.average(
            chosen, local_update, need="all", x=state.x, local=self.local
        )
        x = shift(
            state.x, average.delta, rate_of(self.lr, federation.round), federation.dim
        )
        named = average.by_client(average.weights)
        log["weights"] = {target: dict(named) for target in state.internal}
        return State(state.internal, x), log

    def models(self, state: State) -> dict[str, Tensor]:
        """One model, which serves the internal clients only."""
        return dict.fromkeys(state.internal, state.x)
