"""ISFL and the samplers that it is compared with (Zhu, Shi, Fan: ISFL, Table III), computed a second time.

Every client trains with Adam, anew in each round, on rows drawn with replacement; models are averaged by the number of rows. Methods
differ in how probable each row is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from experiments.independent.common import Problem, Rows, Values, batches, generator, on, rows_of

Numbers = NDArray[np.float64]
Chances = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor | None]]
"""From the global model and the local models of the round before (none at first): how probable each row of each client is [n].

None: every row once an epoch.
"""


def fedavg(problem: Problem) -> Values:
    """No sampling."""
    return _learned(problem, "fedavg", lambda x, local: [None] * len(problem.clients))


def fedprox(problem: Problem) -> Values:
    """No sampling; local losses have mu / 2 times the squared distance to the global model beside them."""
    pull = problem.entry("fedprox")["mu"]
    return _learned(problem, "fedprox", lambda x, local: [None] * len(problem.clients), pull)


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
    """Algorithm 2: classes by the closed form of Theorems 2 and 3."""
    return _by_lipschitz(problem, "isfl", closed_form)


def isfl_exact(problem: Problem) -> Values:
    """Ours: classes by the least value of the bound that the closed form is derived from."""
    return _by_lipschitz(problem, "isfl-exact", minimiser)


def _by_lipschitz(problem: Problem, method: str, solve: Callable[[Tensor, Tensor, Tensor, float], Tensor]) -> Values:
    train, held = problem.train, rows_of(problem.clients.server)
    p = shares(torch.cat([rows.labels for rows in train]), _classes(problem))
    own = [shares(rows.labels, len(p)) for rows in train]
    floor = problem.entry(method)["floor"]
    closed, least = list[float](), list[float]()

    def chances(x: Tensor, local: Sequence[Tensor]) -> Sequence[Tensor | None]:
        if not local:
            return [None] * len(train)  # w = 1
        known = [(p, p_k, L, floor) for p_k, L in zip(own, gradient_lipschitz(problem, x, local, held), strict=True)]
        closed.append(fmean(bound(closed_form(*given), p, given[2]) for given in known))
        least.append(fmean(bound(minimiser(*given), p, given[2]) for given in known))
        return [by_class(solve(*given), rows.labels) for given, rows in zip(known, train, strict=True)]

    return {
        **_learned(problem, method, chances),
        "rho, closed form, first round": closed[0],
        "rho, closed form": closed[-1],
        "rho, optimum": least[-1],
        "excess of the closed form's rho": closed[-1] / least[-1] - 1,
    }


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


def bound(q: Tensor, p: Tensor, lipschitz: Tensor) -> float:
    """Eq. 13, the factor of Theorem 1 that the choice of q changes."""
    return float((1 + (p - q).square().sum()) * (q * lipschitz**2).sum())


def minimiser(p: Tensor, p_k: Tensor, lipschitz: Tensor, floor: float) -> Tensor:
    """The q of least `bound` with sum 1 and q >= floor p_k: the best end of SLSQP from p and from every single class."""
    low = torch.minimum(floor * p_k, p).double().numpy()
    shares, squares = p.double().numpy(), lipschitz.double().square().numpy()
    squares = squares / squares.max()

    def value(q: Numbers) -> float:
        return float((1 + ((shares - q) ** 2).sum()) * (q @ squares))

    def slope(q: Numbers) -> Numbers:
        return 2 * (q - shares) * (q @ squares) + (1 + ((shares - q) ** 2).sum()) * squares

    starts = [shares, *(low + (1 - low.sum()) * np.eye(len(low)))]
    whole = {"type": "eq", "fun": lambda q: q.sum() - 1, "jac": np.ones_like}
    ends = [minimize(value, start, jac=slope, method="SLSQP", bounds=[(end, 1) for end in low], constraints=whole,
                     options={"ftol": 1e-12, "maxiter": 500}).x for start in starts]  # fmt: skip
    return torch.from_numpy(min(ends, key=value)).to(p.dtype)


def _classes(problem: Problem) -> int:
    return problem.model.widths[-1]


def _trained(
    problem: Problem, start: Tensor, rows: Rows, chance: Tensor | None, random: torch.Generator, pull: float = 0.0
) -> Tensor:
    local, n = problem.tables["local"], len(rows.labels)
    x = start.clone()
    adam = torch.optim.Adam([x], lr=local["lr"])
    size = local["batch_size"]
    for _ in range(local["epochs"]):
        drawn = torch.arange(n) if chance is None else chance.multinomial(n, replacement=True, generator=random)
        for batch in islice(batches(n, size, random), -(-n // size)):
            x.grad = problem.model.gradient(x, rows.at(drawn[batch])) + pull * (x - start)
            adam.step()
    return x


def _learned(problem: Problem, method: str, chances: Chances, pull: float = 0.0) -> Values:
    train, random = problem.train, generator(problem.seed, method)
    sizes = torch.tensor([float(len(rows.labels)) for rows in train])
    x = problem.start()
    odds = chances(x, [])
    for _ in range(problem.rounds):
        local = [_trained(problem, x, rows, chance, random, pull) for rows, chance in zip(train, odds, strict=True)]
        x = (sizes / sizes.sum()) @ torch.stack(local)
        odds = chances(x, local)
    standard = rows_of(problem.clients[0].test)  # the same for every client
    return {"accuracy on D_S": problem.accuracy(x, [standard]), "accuracy on D_G": problem.accuracy(x, train)}


TABLE_III = {
    "fedavg": fedavg,
    "uniform-is": uniform_is,
    "pj-is": pj_is,
    "isfedavg": isfedavg,
    "isfl": isfl,
    "fedprox": fedprox,
}
METHODS = {
    "isfl-fashion-98": on("isfl-fashion-98", {**TABLE_III, "isfl-exact": isfl_exact}),
    **{name: on(name, TABLE_III)
       for name in ("isfl-fashion-dirichlet-2", "isfl-fashion-95", "isfl-fashion-dirichlet-4", "isfl-fashion-75")},
}  # fmt: skip


def counted(problem: Problem) -> list[str]:
    """The clients whose rows count: all."""
    return list(problem.clients.names)
