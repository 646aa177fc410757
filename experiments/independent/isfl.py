"""ISFL and the samplers that it is compared with (Zhu, Shi, Fan: ISFL, Table III), computed a second time.

Every client trains with Adam, anew in each round, on rows drawn with replacement; models are averaged by the number of rows. Methods
differ in how probable each row is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import torch
from torch import Tensor

from experiments.independent.common import Problem, Rows, Values, batches, generator, on, rows_of

Chances = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor | None]]
"""From the global model and the local models of the round before (none at first): how probable each row of each client is [n].

None: every row once an epoch.
"""


def fedavg(problem: Problem) -> Values:
    """No sampling."""
    return _learned(problem, "fedavg", lambda x, local: [None] * len(problem.clients))


def uniform_is(problem: Problem) -> Values:
    """Each class that a client has is equally probable."""
    chances = [by_class(torch.ones(_classes(problem)), rows.labels) for rows in problem.train]
    return _learned(problem, "uniform-is", lambda x, local: chances)


def pj_is(problem: Problem) -> Values:
    """Each class is as probable as among all clients' rows."""
    p = shares(torch.cat([rows.labels for rows in problem.train]), _classes(problem))
    chances = [by_class(p, rows.labels) for rows in problem.train]
    return _learned(problem, "pj-is", lambda x, local: chances)


def isfedavg(problem: Problem) -> Values:
    """Each row is as probable as the norm of its gradient at the global model is large."""
    train = problem.train
    return _learned(
        problem, "isfedavg", lambda x, local: [row_gradients(problem, x, rows).norm(dim=1) for rows in train]
    )


def isfl(problem: Problem) -> Values:
    """Algorithm 2: classes by the closed form of Theorems 2 and 3, after each round; the first round has w = 1."""
    train, held = problem.train, rows_of(problem.clients.server)
    p = shares(torch.cat([rows.labels for rows in train]), _classes(problem))
    floor = problem.entry("isfl")["floor"]

    def chances(x: Tensor, local: Sequence[Tensor]) -> Sequence[Tensor | None]:
        if not local:
            return [None] * len(train)
        lipschitz = gradient_lipschitz(problem, x, local, held)
        own = [shares(rows.labels, len(p)) for rows in train]
        return [by_class(closed_form(p, p_k, L, floor), rows.labels)
                for p_k, L, rows in zip(own, lipschitz, train, strict=True)]  # fmt: skip

    return _learned(problem, "isfl", chances)


def shares(labels: Tensor, classes: int) -> Tensor:
    """Share of each class [classes]."""
    return torch.bincount(labels, minlength=classes) / len(labels)


def by_class(q: Tensor, labels: Tensor) -> Tensor:
    """How probable each row is [n]: its class by q, renormalised over the classes present, then any of its rows."""
    counts = torch.bincount(labels, minlength=len(q))
    chance = (q / counts)[labels]
    return chance / chance.sum()


def row_gradients(problem: Problem, x: Tensor, rows: Rows) -> Tensor:
    """The gradient of the loss of each row alone [n, d]."""

    def loss(x: Tensor, one: Tensor, label: Tensor) -> Tensor:
        return problem.model.loss(x, Rows(one[None], label[None]))

    gradients: Tensor = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(x, rows.inputs, rows.labels)
    return gradients


def gradient_lipschitz(problem: Problem, x: Tensor, local: Sequence[Tensor], held: Rows) -> Tensor:
    """Eq. 8: how much the gradient of a row of each class moves at most per move from x to the model of client k [clients, classes]."""
    table = torch.zeros(len(local), _classes(problem))
    for label in range(table.shape[1]):
        rows = held.at(held.labels == label)
        at_mean = row_gradients(problem, x, rows)
        for k, x_k in enumerate(local):
            moved = row_gradients(problem, x_k, rows) - at_mean
            table[k, label] = moved.norm(dim=1).max() / (x_k - x).norm()
    return table


def closed_form(p: Tensor, p_k: Tensor, lipschitz: Tensor, floor: float) -> Tensor:
    """Theorems 2 and 3: q = p + Gamma a, with a as long as 1 and Gamma as large as q >= floor p_k allows.

    Gamma is 0 where all numbers are equal, or none is defined, as for one client alone.
    """
    a = 1 - len(p) * lipschitz**2 / (lipschitz**2).sum()
    if not a.norm() > 1e-6:
        return p
    a = a / a.norm()
    falling = a < 0
    room = (p - floor * p_k).clamp(min=0)
    return p + (room[falling] / -a[falling]).min() * a


def _classes(problem: Problem) -> int:
    return problem.model.widths[-1]


def _trained(problem: Problem, x: Tensor, rows: Rows, chance: Tensor | None, random: torch.Generator) -> Tensor:
    local, n = problem.tables["local"], len(rows.labels)
    x = x.clone()
    adam = torch.optim.Adam([x], lr=local["lr"])
    size = local["batch_size"]
    for _ in range(local["epochs"]):
        drawn = torch.arange(n) if chance is None else chance.multinomial(n, replacement=True, generator=random)
        for batch in islice(batches(n, size, random), -(-n // size)):
            x.grad = problem.model.gradient(x, rows.at(drawn[batch]))
            adam.step()
    return x


def _learned(problem: Problem, method: str, chances: Chances) -> Values:
    train, random = problem.train, generator(problem.seed, method)
    sizes = torch.tensor([float(len(rows.labels)) for rows in train])
    x, local = problem.start(), list[Tensor]()
    for _ in range(problem.rounds):
        odds = chances(x, local)
        local = [_trained(problem, x, rows, chance, random) for rows, chance in zip(train, odds, strict=True)]
        x = (sizes / sizes.sum()) @ torch.stack(local)
    standard = rows_of(problem.clients[0].test)  # the same for every client
    return {"accuracy on D_S": problem.accuracy(x, [standard]), "accuracy on D_G": problem.accuracy(x, train)}


METHODS = {
    "isfl-fashion-98": on(
        "isfl-fashion-98",
        {"fedavg": fedavg, "uniform-is": uniform_is, "pj-is": pj_is, "isfedavg": isfedavg, "isfl": isfl},
    )
}


def counted(problem: Problem) -> list[str]:
    """The clients whose rows count: all."""
    return list(problem.clients.names)
