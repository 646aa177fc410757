r"""FedFomo: each client moves towards those models that do better on its own validation rows.

Paper: M. Zhang, K. Sapra, S. Fidler, S. Yeung, J. M. Alvarez, "Personalized Federated Learning with First Order Model Optimization",
ICLR 2021, Eqs. 4 to 7.

Optimises: each client's own loss on its validation rows.
Sends: d up, d down (own_update); n + 1 up, (n + 1) d down (judge: n participants).
Memory: none.
Use: each client wants a model of its own, and clients may see each other's models.
Avoid: models must stay private, there are many clients, or validation rows are few.
Formula: x_i \leftarrow x_i + \sum_n w_{in} \, (x_n' - x_i), \quad w_{in} \propto \max \Bigl( 0, \frac{L_i(x_i) -
L_i(x_n')}{\|x_n' - x_i\|} \Bigr)

Symbols: previous = theta_i^{l(t-1)}, trained = theta_n^{l(t)}: the model of client n after local training from its own, losses = L_i on
the client's validation rows, w_n ~ max(0, (L_i(previous) - L_i(trained_n)) / ||trained_n - previous||),
x_i = previous + sum_n w_n (trained_n - previous).

Differences from the paper: all participants are candidates, the client's own trained model among them, where the paper draws some by
learned affinities; weights are of the present round alone.

Who sees what: each target is sent the trained models of all participants of the round, in the order of their names, and returns n + 1
losses; the server holds every client's model. So this excludes secure aggregation. A model at which a loss is not finite pulls none.
A client without validation rows judges by its training rows, which favours its own model. Targets that do not take part keep theirs.

Laws:
- a client with the target's rows pulls it as its own does, an opposite one gets weight 0:
  tests/methods/test_fedfomo.py::test_a_client_like_the_target_pulls_and_an_opposite_one_does_not
- a client that exists twice pulls twice:
  tests/methods/test_fedfomo.py::test_a_model_that_exists_twice_pulls_twice
- one client alone is local training while that lowers its loss:
  tests/methods/test_fedfomo.py::test_fedfomo_with_one_client_is_local_training_while_that_helps
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.base.names import match_clients
from coterie.base.rng import Rng
from coterie.base.vector import move
from coterie.compute.cohort import Cohort
from coterie.compute.tasks import own_update
from coterie.config.local import LocalSGD
from coterie.config.rules import TARGETS, one_of
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import Form, Holds, Models, task
from coterie.contract.wire import PerClient


class Judged(NamedTuple):
    """Losses [n, 1 + m] of the client's own model before the round, and of the m candidates."""

    losses: Annotated[
        Tensor, "loss", Form(lambda p, layout: (1 + len(p["candidates"]),))
    ]


@task
def judge(
    cohort: Cohort,
    *,
    previous: Annotated[Tensor, Holds(("model",), each=True, model=True)],
    candidates: Models,
    rows: str,
) -> Judged:
    """L_i at `previous` [n, d + b] and at the candidates [m, d + b] that every client is shown."""
    losses = []
    for i, x in enumerate(previous):
        client = cohort.only([i])
        part = "train"
        if rows != "train" and cohort.has(i, "validation"):
            part = "validation"
        losses.append(client.losses(torch.cat([x[None], candidates]), part=part))
    highest = torch.finfo(torch.float64).max
    return Judged(torch.cat(losses).nan_to_num(nan=highest, posinf=highest))


class State(NamedTuple):
    """Names of the targets and of all N clients, and their models [N, d + b]."""

    targets: tuple[str, ...]
    names: tuple[str, ...]
    x: Tensor


@options
class FedFomo(Method[State]):
    """Give each target a model of its own, moved towards the models that lower its loss most per distance.

    Attributes:
        targets: "all", the name of one client, or several names: who combines models; the others go on with their own alone.
        local: settings of local training.
        validation: rows of L_i: the target's "validation" rows (its training rows if it has none), or its "train" rows.

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> clients = ct.data.from_tensors({"a": (x, x[:, 0]), "b": (x, x[:, 0]), "c": (x, -x[:, 0])})
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.zero_()
    >>> run = ct.fit(ct.FedFomo(validation="train"), clients, model=model, rounds=1)
    >>> {k: round(w, 1) for k, w in run.weights["a"].items()}  # c goes the other way
    {'a': 0.5, 'b': 0.5, 'c': 0.0}
    """

    targets: Annotated[str | tuple[str, ...], TARGETS] = "all"
    local: LocalSGD = LocalSGD()
    validation: Annotated[str, one_of("validation", "train")] = "validation"

    exempt: ClassVar[Mapping[str, str]] = {
        "diverges": "a client takes nothing of a model that raises its loss"
    }

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates, and losses of all candidates."""
        return asks(own_update), asks(
            judge, models=lambda clients: clients, rows=self.validation
        )

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for a target that does not exist."""
        self.target_names(everyone)

    def target_names(self, everyone: tuple[str, ...]) -> tuple[str, ...]:
        """The targets among these clients."""
        return match_clients(self, "targets", everyone, everybody="all")

    def init(self, x: Tensor, federation: Federation) -> State:
        """All clients start from x."""
        everyone = federation.everyone
        return State(self.target_names(everyone), everyone, x.repeat(len(everyone), 1))

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        start = PerClient(state.x[federation.positions(federation.clients)])
        replies = federation.ask(
            federation.clients, own_update, x=start, local=self.local
        )
        positions = federation.positions(replies.clients)
        trained = state.x[positions] + replies.delta
        x = state.x.clone()
        not_judging = torch.tensor([n not in state.targets for n in replies.clients])
        x[positions[not_judging]] = trained[not_judging]
        judges = tuple(n for n in replies.clients if n in state.targets)
        if not judges:
            return state._replace(x=x), {}
        previous = PerClient(state.x[federation.positions(judges)])
        judged = federation.ask(
            judges, judge, previous=previous, candidates=trained, rows=self.validation
        )
        weights: dict[str, dict[str, float]] = {}
        for name, own, losses in zip(
            judged.clients,
            federation.positions(judged.clients),
            judged.losses,
            strict=True,
        ):
            differences = trained - state.x[own]
            pull = _pulls(
                losses,
                torch.linalg.vector_norm(
                    differences[:, : federation.dim], dim=1, dtype=torch.float64
                ).cpu(),
            )
            if float(pull.sum()) > 0:
                pull = pull / pull.sum()
                x[own] = move(
                    state.x[own], pull, differences, dim=federation.dim
                )  # Eq. 6
                weights[name] = replies.by_client(pull)
        log: Log = {"kept": len(judged) - len(weights)}
        if weights:
            log["weights"] = weights
        return state._replace(x=x), log

    def models(self, state: State) -> dict[str, Tensor]:
        """A model for each target."""
        return {
            n: x
            for n, x in zip(state.names, state.x, strict=True)
            if n in state.targets
        }

    def keeps_validation(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Targets whose validation rows weigh the others and so are not trained on."""
        if self.validation != "validation":
            return ()
        return self.target_names(names)

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return 2 * clients + 3 * per_round


def _pulls(losses: Tensor, distances: Tensor) -> Tensor:
    """max(0, (L(previous) - L(candidate)) / distance) [m], 0 at distance 0 (Eq. 7 before it is normalised)."""
    gain = (losses[0] - losses[1:]).clamp(min=0)
    pulls = (
        gain / gain.max() / distances
    )  # divided by the largest, since a loss may be near the end of the range
    return torch.where((gain > 0) & (distances > 0), pulls, torch.zeros_like(pulls))
