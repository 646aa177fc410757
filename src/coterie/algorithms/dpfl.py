r"""DPFL: each client averages the models of a group of partners that it chooses by its own loss.

Paper: S. Kharrat, M. Canini, S. Horváth, "DPFL: Decentralized Personalized Federated Learning", AISTATS 2025, Algorithms 1 and 2.

Optimises: each client's own loss on its validation rows, over groups that share one model.
Sends: d up, d down (own_update); n up, n d + 1 down (choose_partners).
Shows: the models of all other clients.
Memory: none.
Use: each client wants a model of its own, and clients may see each other's models.
Avoid: clients have few validation rows, whose chance the groups would follow; or models must not be seen by other clients.
Formula: x_i = \frac{1}{|X_i|} \sum_{j \in X_i} y_j, \quad X_i = \operatorname{argmax}_{X \ni i} R_i(X), \quad R_i(X) = -f_i \Bigl(
\frac{1}{|X|} \sum_{j \in X} y_j \Bigr)

Symbols: y_j = theta_j trained, X = X_i and Y = Y_i of the greedy search, R, budget = B_c.

The search goes once through the others, in an order that the seed draws. It grows X from {i} and shrinks Y from all: with the gains
a = R(X + j) - R(X) and b = R(Y - j) - R(Y), j joins X with probability a+ / (a+ + b+), where a+ = max(a, 0), and leaves Y otherwise.
If neither is a gain, j joins. The search ends once X has `budget` members. `solver = "exhaustive"` tries all groups.

Differences from the paper: groups are chosen anew in each round, among the clients that replied in it. The paper chooses them first,
and again every few rounds. The server passes the models on, where the paper's clients exchange them. A client without validation rows
chooses by its training rows.

Laws:
- a budget of one is training alone, bit by bit:
  tests/methods/test_dpfl.py::test_a_budget_of_one_is_training_alone
- all groups are at least as good as those of the search, on the rows that choose:
  tests/methods/test_dpfl.py::test_the_best_of_all_groups_is_at_least_as_good
- a client whom the other harms stays alone:
  tests/methods/test_dpfl.py::test_whom_the_other_harms_stays_alone
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.compute.cohort import Cohort
from coterie.compute.tasks import own_update
from coterie.config.local import LocalSGD
from coterie.config.rules import SIZE, one_of, optional
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import Form, Holds, Models, task
from coterie.contract.wire import PerClient

MOST_EXHAUSTIVE = 10
"""Clients of a round whose 2^(n-1) groups are all tried."""
Group = tuple[int, ...]


class Partners(NamedTuple):
    """The models that the client averages: of m models each 0 or 1 [n, m]."""

    members: Annotated[
        Tensor,
        "choice",
        Form(lambda p, layout: (len(p["candidates"]),), within=(0.0, 1.0)),
    ]


@task
def choose_partners(
    cohort: Cohort,
    *,
    candidates: Models,
    place: Annotated[Tensor, Holds((), torch.int64, (0, 2**31), each=True)],
    budget: int | None,
    solver: str,
) -> Partners:
    """The group of each client, by its loss at means of the candidates [m, d + b]; `place` is which of them is its own."""
    members = torch.zeros(len(cohort.names), len(candidates), dtype=torch.float64)
    for i, chooser in enumerate(place.tolist()):
        client = cohort.only([i])
        part = "validation" if client.has(0, "validation") else "train"
        others = [j for j in range(len(candidates)) if j != chooser]
        most = len(candidates)
        if budget is not None:
            most = min(budget, most)

        def losses(
            groups: Sequence[Group], client: Cohort = client, part: str = part
        ) -> list[float]:
            means = torch.stack([candidates[list(group)].mean(0) for group in groups])
            highest = torch.finfo(torch.float64).max
            values: list[float] = (
                client.losses(means, part=part)[0]
                .nan_to_num(nan=highest, posinf=highest)
                .tolist()
            )
            return values

        if solver == "exhaustive":
            chosen: Group = (chooser,)
            if most > 1:
                groups = [
                    tuple(sorted((chooser, *c)))
                    for k in range(most)
                    for c in combinations(others, k)
                ]
                values = torch.tensor(losses(groups), dtype=torch.float64)
                chosen = groups[int(values.argmin())]
        else:
            stream = client.rng(0, "dpfl")
            order = [others[k] for k in stream.child("order").permutation(len(others))]
            coins = torch.rand(
                len(others),
                generator=stream.child("coins").generator(),
                dtype=torch.float64,
            ).tolist()
            chosen = grow(losses, chooser, order, coins, most)
        members[i, list(chosen)] = 1.0
    return Partners(members)


def grow(
    losses: Callable[[Sequence[Group]], list[float]],
    chooser: int,
    order: Sequence[int],
    coins: Sequence[float],
    most: int,
) -> Group:
    """The group that the randomised double greedy search finds (Buchbinder et al., FOCS 2012).

    Args:
        losses: Losses of groups, given as sorted positions.
        chooser: Position that is always in the group.
        order: The other positions, in the order in which the search decides about them.
        coins: A number in [0, 1) for each of them.
        most: Members of the group at most.

    >>> loss = {(0,): 1.0, (0, 1): 0.5, (0, 2): 3.0, (0, 1, 2): 2.0}
    >>> grow(lambda groups: [loss[g] for g in groups], 0, [2, 1], [0.5, 0.5], 3)
    (0, 1)
    """
    inside: Group = (chooser,)
    outside = tuple(sorted((chooser, *order)))
    if most == 1 or not order:
        return inside
    at_inside, at_outside = losses([inside, outside])
    for j, coin in zip(order, coins, strict=True):
        if len(inside) == most:
            return inside
        with_j, without_j = (
            tuple(sorted((*inside, j))),
            tuple(k for k in outside if k != j),
        )
        loss_with_j, loss_without_j = losses([with_j, without_j])
        gain, gain_without = (
            max(at_inside - loss_with_j, 0.0),
            max(at_outside - loss_without_j, 0.0),
        )
        # Neither is a gain: a partner that makes no difference joins, as in the paper's proof; the authors' code does either.
        if coin * (gain + gain_without) < gain or gain + gain_without == 0:
            inside, at_inside = with_j, loss_with_j
        else:
            outside, at_outside = without_j, loss_without_j
    return inside


class State(NamedTuple):
    """Names of all N clients, and their models [N, d + b]."""

    names: tuple[str, ...]
    x: Tensor


@options
class DPFL(Method[State]):
    """Average for each client the models of the partners that lower its own loss.

    Attributes:
        local: settings of local training.
        budget: members of a group at most, the client itself among them; None: all that help.
        solver: "greedy": the search of the paper; "exhaustive": all groups, of at most 10 clients a round.

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> clients = ct.data.from_tensors({"a": (x, x[:, 0]), "b": (x, x[:, 0]), "c": (x, -x[:, 0])})
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.zero_()
    >>> run = ct.fit(ct.DPFL(solver="exhaustive"), clients, model=model, rounds=1)
    >>> run.weights["c"]  # a and b go the other way
    {'c': 1.0}
    """

    local: LocalSGD = LocalSGD()
    budget: Annotated[int | None, optional(SIZE, "all that help")] = None
    solver: Annotated[str, one_of("greedy", "exhaustive")] = "greedy"

    @property
    def exempt(self) -> dict[str, str]:
        """Laws of `coterie.testing` that these settings do not keep, with the reason."""
        if self.solver != "greedy":
            return {}
        return {"names": "the order of the search is drawn over the clients by name"}

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates, and the choice of partners."""
        return asks(own_update), asks(choose_partners, models=lambda clients: clients)

    def init(self, x: Tensor, federation: Federation) -> State:
        """All clients start from x. Raises `InputError` where all groups are too many."""
        if self.solver == "exhaustive" and federation.per_round > MOST_EXHAUSTIVE:
            raise InputError(
                f'DPFL.solver = "exhaustive" tries 2^{federation.per_round - 1} groups of each client; from '
                f'{MOST_EXHAUSTIVE + 1} clients a round on take "greedy"'
            )
        return State(federation.everyone, x.repeat(len(federation.everyone), 1))

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
        chosen = federation.ask(
            replies.clients, choose_partners, candidates=trained, place=PerClient(torch.arange(len(replies))),
            budget=self.budget, solver=self.solver,
        )  # fmt: skip
        x, weights = state.x.clone(), {}
        x[positions] = trained  # of a client that did not choose, too
        columns = [replies.clients.index(name) for name in chosen.clients]
        chosen.members[range(len(columns)), columns] = (
            1.0  # whatever a client replies, its own model is one of its group
        )
        for name, position, members in zip(
            chosen.clients,
            federation.positions(chosen.clients),
            chosen.members,
            strict=True,
        ):
            x[position] = trained[members > 0].mean(0)
            weights[name] = {
                n: w for n, w in replies.by_client(members / members.sum()).items() if w
            }
        return State(state.names, x), {
            "weights": weights,
            "group_size": dict(zip(weights, map(len, weights.values()), strict=True)),
        }

    def models(self, state: State) -> dict[str, Tensor]:
        """A model for each client."""
        return dict(zip(state.names, state.x, strict=True))

    def keeps_validation(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """All clients: their validation rows choose partners and so are not trained on."""
        return names

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return 2 * clients + 3 * per_round
