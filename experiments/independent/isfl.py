"""ISFL and the samplers that it is compared with (Zhu, Shi, Fan: ISFL, Table III), computed a second time.

Every client trains with Adam, anew in each round, on rows that samplers draw with replacement; models are averaged by the number of
rows. Methods differ in how probable each row is. The last batch of an epoch may be short; the library fills it with further draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.functional import cosine_similarity

from experiments.independent.common import (
    Problem,
    Values,
    batches,
    generator,
    on,
    rows_of,
)
from experiments.independent.networks import Rows
from experiments.measures import shares_of

Numbers = NDArray[np.float64]
Chances = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor | None]]
"""From the global model and the local models of the round before (none at first): how probable each row of each client is [n].

None: every row once an epoch.
"""
Term = Callable[[Tensor, Tensor, Tensor, Rows], Tensor]
"""From a local model, the global one, that client's last one (at first the global one) and a batch: what is added to the loss."""


def fedavg(problem: Problem) -> Values:
    """No sampling."""
    return _learned(problem, "fedavg", _every_row(problem))


def fedprox(problem: Problem) -> Values:
    """No sampling; local losses have mu / 2 times the squared distance to the global model beside them."""
    mu = problem.entry("fedprox")["mu"]
    return _learned(
        problem,
        "fedprox",
        _every_row(problem),
        lambda y, x, last, rows: mu / 2 * (y - x).square().sum(),
    )


def moon(problem: Problem) -> Values:
    """Eqs. 19 and 20: no sampling; local models are held to the global one's representations, and away from those of their last."""
    entry = problem.entry("moon")

    def contrast(y: Tensor, x: Tensor, last: Tensor, rows: Rows) -> Tensor:
        own, ours, before = (
            problem.model.representation(model, rows.inputs) for model in (y, x, last)
        )
        alike = (
            torch.stack(
                [cosine_similarity(own, ours), cosine_similarity(own, before)], 1
            )
            / entry["temperature"]
        )
        loss: Tensor = -entry["mu"] * alike.log_softmax(1)[:, 0].mean()
        return loss

    return _learned(problem, "moon", _every_row(problem), contrast)


def random_rows(problem: Problem) -> Values:
    """As many rows as the method's steps take, each at most once, drawn without regard to their class."""
    local = problem.tables["local"]
    once = replace(problem, tables={**problem.tables, "local": {**local, "epochs": 1}})
    ratio = local["steps"] * local["batch_size"] / len(problem.train[0].labels)
    return _learned(once, "random", _every_row(problem), ratio=ratio)


def _every_row(problem: Problem) -> Chances:
    return lambda x, local: [None] * len(problem.clients)


def uniform_is(problem: Problem) -> Values:
    """Each class that a client has is equally probable."""
    chances = [
        by_class(torch.ones(problem.model.classes), rows.labels)
        for rows in problem.train
    ]
    return _learned(
        problem,
        "uniform-is",
        lambda x, local: chances,
        ratio=_ratio(problem, "uniform-is"),
    )


def pj_is(problem: Problem) -> Values:
    """Each class is as probable as among all clients' rows."""
    p = shares(
        torch.cat([rows.labels for rows in problem.train]), problem.model.classes
    )
    chances = [by_class(p, rows.labels) for rows in problem.train]
    return _learned(
        problem, "pj-is", lambda x, local: chances, ratio=_ratio(problem, "pj-is")
    )


def isfedavg(problem: Problem) -> Values:
    """Each row is as probable as the norm of its gradient at the global model is large."""
    norms, entropy, follow = list[list[Tensor]](), list[float](), list[float]()

    def chances(x: Tensor, local: Sequence[Tensor]) -> Sequence[Tensor]:
        of_rows = [
            row_gradients(problem, x, rows).norm(dim=1) for rows in problem.train
        ]
        known = [
            (chance, rows.labels)
            for chance, rows in zip(of_rows, problem.train, strict=True)
        ]
        norms.append(
            [
                torch.stack([chance[labels == i].mean() for i in labels.unique()])
                for chance, labels in known
            ]
        )
        drawn = [draws(*each) for each in known]
        extra = [
            d / shares(labels, 0) for d, (_, labels) in zip(drawn, known, strict=True)
        ]  # nan: not there
        follow.append(
            fmean(
                same_order(e[~e.isnan()], norm)
                for e, norm in zip(extra, norms[-1], strict=True)
            )
        )
        entropy.append(fmean(float(torch.special.entr(d).sum()) for d in drawn))
        return of_rows

    learned = _learned(problem, "isfedavg", chances)
    pairs = [
        pair
        for before, after in pairwise(norms)
        for pair in zip(before, after, strict=True)
    ]
    return {
        **learned,
        "rank correlation of class gradients with the round before": fmean(
            same_order(*pair) for pair in pairs
        ),
        "entropy of draws by class": entropy[1:],
        "rank correlation of class gradients and extra draws": follow[1:],
    }


def isfl(problem: Problem, label: str = "isfl") -> Values:
    """Algorithm 2: classes by the closed form of Theorems 2 and 3."""
    train, held = problem.train, rows_of(problem.clients.server)
    p = shares(torch.cat([rows.labels for rows in train]), problem.model.classes)
    own = [shares(rows.labels, len(p)) for rows in train]
    floor = problem.entry(label)["floor"]
    closed, least, entropy, of_draws = (
        list[float](),
        list[float](),
        list[float](),
        list[float](),
    )
    less, more, follow = list[float](), list[float](), list[float]()
    shown = {0: problem.clients.names[0], len(train) - 1: problem.clients.names[-1]}
    by_name: dict[str, list[float]] = {
        f"{shares_of(name)}{i}": [] for name in shown.values() for i in range(len(p))
    }

    def chances(x: Tensor, local: Sequence[Tensor]) -> Sequence[Tensor | None]:
        if not local:
            return [torch.ones(len(rows.labels)) for rows in train]  # w = 1
        known = [
            (p, p_k, L, floor)
            for p_k, L in zip(
                own, gradient_lipschitz(problem, x, local, held), strict=True
            )
        ]
        drawn = [closed_form(*given) for given in known]
        closed.append(
            fmean(bound(q, p, given[2]) for q, given in zip(drawn, known, strict=True))
        )
        least.append(fmean(bound(minimiser(*given), p, given[2]) for given in known))
        entropy.append(
            fmean(float(torch.special.entr(q.clamp(min=0)).sum()) for q in drawn)
        )  # rounding goes below 0
        for k, name in shown.items():
            for i, share in enumerate(drawn[k].tolist()):
                by_name[f"{shares_of(name)}{i}"].append(share)
        odds = [by_class(q, rows.labels) for q, rows in zip(drawn, train, strict=True)]
        found = [
            (draws(chance, rows.labels, len(p)), p_k)
            for chance, rows, p_k in zip(odds, train, own, strict=True)
        ]
        of_draws.append(
            fmean(float(torch.special.entr(drawn_k).sum()) for drawn_k, _ in found)
        )
        even = 1 / len(p)
        less.append(fmean(float(((d < p_k) & (d > even)).any()) for d, p_k in found))
        constants = [
            (d[p_k > 0], L[p_k > 0])
            for (d, p_k), (_, _, L, _) in zip(found, known, strict=True)
        ]
        follow.append(fmean(same_order(*each) for each in constants))
        more.append(
            fmean(
                float(((p_k > 0) & (p_k < even / 2) & (d > 5 * p_k)).any())
                for d, p_k in found
            )
        )
        return odds

    return {
        **_learned(problem, label, chances, ratio=_ratio(problem, label)),
        "rho, closed form, first round": closed[0],
        "rho, closed form": closed,
        "rho, optimum": least,
        "entropy of q": entropy,
        "excess of the closed form's rho": closed[-1] / least[-1] - 1,
        "entropy of draws by class": of_draws,
        "clients with a large class drawn less and yet more than evenly": less,
        "clients with a small class drawn over five times its share": more,
        "rank correlation of class constants and draws": follow,
        "gradients on the server's rows": float(
            len(held.labels) * (1 + len(train))
        ),  # at the mean and at each model
        **by_name,
    }


def same_order(one: Tensor, other: Tensor) -> float:
    """Spearman's correlation, 0 where all numbers of one are equal."""
    return (
        float(spearmanr(one, other).statistic)
        if min(len(one.unique()), len(other.unique())) > 1
        else 0.0
    )


def shares(labels: Tensor, classes: int) -> Tensor:
    """Share of each class [classes]."""
    return torch.bincount(labels, minlength=classes) / len(labels)


def by_class(q: Tensor, labels: Tensor) -> Tensor:
    """How probable each row is [n]: its class by q, renormalised over the classes present, then any of its rows."""
    counts = torch.bincount(labels, minlength=len(q))
    chance = (q / counts)[labels]
    return chance / chance.sum()


def draws(chance: Tensor, labels: Tensor, classes: int = 0) -> Tensor:
    """How probable it is to draw a row of each class [classes]."""
    return torch.bincount(labels, weights=chance / chance.sum(), minlength=classes)


def row_gradients(problem: Problem, x: Tensor, rows: Rows) -> Tensor:
    """The gradient of the loss of each row alone [n, d]."""

    def loss(x: Tensor, one: Tensor, label: Tensor) -> Tensor:
        return problem.model.loss(x, Rows(one[None], label[None]))

    gradients: Tensor = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(
        x, rows.inputs, rows.labels
    )
    return gradients


def gradient_lipschitz(
    problem: Problem, x: Tensor, local: Sequence[Tensor], held: Rows
) -> Tensor:
    """Eq. 8: how much the gradient of a row of each class moves at most per move from x to the model of client k [clients, classes]."""
    table = torch.zeros(len(local), problem.model.classes)
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
        return (
            2 * (q - shares) * (q @ squares) + (1 + ((shares - q) ** 2).sum()) * squares
        )

    starts = [shares, *(low + (1 - low.sum()) * np.eye(len(low)))]
    whole = {"type": "eq", "fun": lambda q: q.sum() - 1, "jac": np.ones_like}
    ends = [minimize(value, start, jac=slope, method="SLSQP", bounds=[(end, 1) for end in low], constraints=whole,
                     options={"ftol": 1e-12, "maxiter": 500}).x for start in starts]  # fmt: skip
    return torch.from_numpy(min(ends, key=value)).to(p.dtype)


def _ratio(problem: Problem, method: str) -> float:
    """Share of its rows that a client draws in a local epoch."""
    return float(problem.entry(method).get("sample_ratio", 1.0))


def _trained(
    problem: Problem,
    start: Tensor,
    last: Tensor,
    rows: Rows,
    drawn: Callable[[], Tensor],
    random: torch.Generator,
    term: Term,
) -> tuple[Tensor, float]:
    """A client's model after its epochs, and the mean loss of the last epoch's batches, each before its step and without the term."""
    local, logged = problem.tables["local"], list[float]()
    x = start.clone().requires_grad_()
    optimiser = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[
        local.get("optimiser", "sgd")
    ]([x], lr=local["lr"])
    size = local["batch_size"]
    for _ in range(local["epochs"]):
        chosen, logged = drawn(), []
        for batch in islice(
            batches(len(chosen), size, random), -(-len(chosen) // size)
        ):
            part = rows.at(chosen[batch])
            plain = problem.model.loss(x, part)
            logged.append(plain.item())
            x.grad = torch.autograd.grad(plain + term(x, start, last, part), x)[0]
            optimiser.step()
    return x.detach(), fmean(logged)


def draw(
    n: int, chance: Tensor | None, ratio: float, random: torch.Generator
) -> Tensor:
    """A share of n rows with replacement, or without chances each at most once."""
    if chance is None:
        return (
            torch.arange(n)
            if ratio == 1
            else torch.randperm(n, generator=random)[: round(ratio * n)]
        )
    return chance.multinomial(round(ratio * n), replacement=True, generator=random)


def _no_term(y: Tensor, x: Tensor, last: Tensor, rows: Rows) -> Tensor:
    return torch.zeros(())


def _learned(
    problem: Problem,
    method: str,
    chances: Chances,
    term: Term = _no_term,
    *,
    ratio: float = 1.0,
) -> Values:
    train, random = problem.train, generator(problem.seed, method)
    sizes = torch.tensor([float(len(rows.labels)) for rows in train])
    x = problem.start()
    local = [x] * len(train)
    odds = chances(x, [])
    standard = rows_of(problem.clients[0].test)  # the same for every client
    accuracy, as_drawn = list[float](), list[float]()
    for _ in range(problem.rounds):
        trained = [
            _trained(
                problem,
                x,
                last,
                rows,
                partial(draw, len(rows.labels), chance, ratio, random),
                random,
                term,
            )
            for last, rows, chance in zip(local, train, odds, strict=True)
        ]
        local = [y for y, _ in trained]
        as_drawn.append(
            float(
                (sizes / sizes.sum()) @ torch.tensor([logged for _, logged in trained])
            )
        )
        x = (sizes / sizes.sum()) @ torch.stack(local)
        odds = chances(x, local)
        accuracy.append(problem.accuracy(x, [standard]))
    losses = torch.stack([problem.model.loss(x, rows) for rows in train])
    every = problem.tables["run"]["evaluate"]
    evaluated = accuracy[
        every - 1 :: every
    ]  # the rounds of coterie's curves, so that falls are between the same ones
    return {
        "accuracy on D_S": accuracy,
        "best accuracy on D_S over rounds": max(evaluated),
        "largest fall of accuracy on D_S": max(
            [0.0, *(one - two for one, two in pairwise(evaluated))]
        ),
        "accuracy on D_G": problem.accuracy(x, train),
        "training loss": float((sizes / sizes.sum()) @ losses),
        "training loss, as drawn": as_drawn,
    }


ISFL_ALONE = (
    "isfl-figure-6-sgd",
    "isfl-figure-8-250",
    "isfl-figure-8-1000",
    "isfl-work-500",
    "isfl-work-1000",
    "isfl-work-table-2",
    "own-isfl-table-3-98",
)
METHODS = {
    "isfl-table-3-98": on(
        "isfl-table-3-98",
        {
            "fedavg": fedavg,
            "uniform-is": uniform_is,
            "pj-is": pj_is,
            "isfedavg": isfedavg,
            "isfl": isfl,
            "isfl-.01": partial(isfl, label="isfl-.01"),
        },
    ),
    "isfl-table-3-dirichlet-4": on(
        "isfl-table-3-dirichlet-4",
        {
            "fedavg": fedavg,
            "uniform-is": uniform_is,
            "pj-is": pj_is,
            "isfedavg": isfedavg,
            "isfl": isfl,
        },
    ),
    "isfl-table-3-dirichlet-2": on(
        "isfl-table-3-dirichlet-2",
        {"fedavg": fedavg, "fedprox": fedprox, "moon": moon, "isfl": isfl},
    ),
    "isfl-cifar10": on("isfl-cifar10", {"fedavg": fedavg, "isfl": isfl}),
    "isfl-figure-9": on(
        "isfl-figure-9",
        {"random": random_rows, "uniform-is": uniform_is, "pj-is": pj_is, "isfl": isfl},
    ),
    "isfl-figure-9-all": on(
        "isfl-figure-9-all", {"random": fedavg, "uniform-is": uniform_is, "isfl": isfl}
    ),
    **{name: on(name, {"isfl": isfl}) for name in ISFL_ALONE},
}


def counted(problem: Problem) -> list[str]:
    """The clients whose rows count: all."""
    return list(problem.clients.names)
