"""VaRSeL and six rivals (Rethinking Client Reweighting for Selfish Federated Learning, Tables 2 to 4), computed a second time.

Some clients are internal, and only they count. g is a client's accumulated update (x - x_k) / lr, as if it were a gradient. Both
problems for the weights are left to general solvers of scipy.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, minimize, minimize_scalar
from torch import Tensor

from experiments.independent.common import (
    Problem,
    Values,
    generator,
    meta_sgd,
    on,
    rows_of,
    sgd,
)
from experiments.independent.networks import Rows

Numbers = NDArray[np.float64]


def internal_only(problem: Problem) -> Values:
    """The paper's Local Training: the internal clients' average alone."""
    random, x = generator(problem.seed, "internal-only"), problem.start()
    internal = _internal(problem)
    for _ in range(problem.rounds):
        x = torch.stack(
            [sgd(problem, x, problem.train[k], random) for k in internal]
        ).mean(0)
    return _measured(problem, x)


def fedavg(problem: Problem, label: str = "fedavg") -> Values:
    """In each round the average, by rows, of clients drawn without regard to who is internal."""
    random, x = generator(problem.seed, label), problem.start()
    pull = problem.entry(label).get("mu", 0.0)
    for _ in range(problem.rounds):
        drawn = torch.randperm(len(problem.train), generator=random)[
            : problem.tables["run"]["clients_per_round"]
        ]
        x = _average(problem, x, drawn.tolist(), random, pull)
    return _measured(problem, x)


fedprox = partial(fedavg, label="fedprox")
"""The same, where local training is pulled back to the round's model."""


def selective(problem: Problem) -> Values:
    """SL: the average, by rows, of the internal clients and of those external ones whose loss is lowest before they train."""
    random, x = generator(problem.seed, "selective"), problem.start()
    internal, budget = _internal(problem), problem.entry("selective")["budget"]
    external = [k for k in range(len(problem.train)) if k not in internal]
    for _ in range(problem.rounds):
        losses = [
            float(problem.model.loss(x, problem.train[k]).detach()) for k in external
        ]
        kept = [external[i] for i in np.argsort(losses, kind="stable")[:budget]]
        x = _average(problem, x, internal + kept, random)
    return _measured(problem, x)


def ocs(problem: Problem) -> Values:
    """Optimal client sampling: all train, and a client's weighted update arrives more likely the longer it is, at most surely."""
    random, x = generator(problem.seed, "ocs"), problem.start()
    sizes = torch.tensor([float(len(rows.labels)) for rows in problem.train])
    for _ in range(problem.rounds):
        local = torch.stack([sgd(problem, x, rows, random) for rows in problem.train])
        updates = (sizes / sizes.sum()).unsqueeze(1) * (local - x)
        likely = chances(
            updates.norm(dim=1), problem.tables["run"]["clients_per_round"]
        )
        arrived = torch.rand(len(likely), generator=random) < likely
        x = x + (updates[arrived] / likely[arrived].unsqueeze(1)).sum(0)
    return _measured(problem, x)


def perfedavg(problem: Problem) -> Values:
    """Per-FL, first order: the average of models that learn to be good after one more step, which internal clients take on all rows."""
    random, x = generator(problem.seed, "perfedavg"), problem.start()
    local, count = problem.tables["local"], problem.tables["run"]["clients_per_round"]
    for _ in range(problem.rounds):
        drawn = torch.randperm(len(problem.train), generator=random)[:count]
        x = torch.stack(
            [meta_sgd(problem, x, problem.train[k], random) for k in drawn]
        ).mean(0)
    return _measured(
        problem,
        *(
            x - local["lr"] * problem.model.gradient(x, problem.train[k])
            for k in _internal(problem)
        ),
    )


def chances(lengths: Tensor, expected: int) -> Tensor:
    """Chances of at most 1 that add up to the expected number and are proportional to the lengths below 1 (Chen et al. 2020, eq. 7)."""
    sure = torch.zeros(len(lengths), dtype=torch.bool)
    while True:
        likely = (expected - int(sure.sum())) * lengths / lengths[~sure].sum()
        likely[sure] = 1
        if (likely <= 1).all():
            return likely
        sure |= likely > 1


def varsel(problem: Problem) -> Values:
    """Algorithm 1, with the gradient of the internal clients in the place of the unseen true one."""
    random, x = generator(problem.seed, "varsel"), problem.start()
    internal, lr = _internal(problem), problem.tables["local"]["lr"]
    external = [k for k in range(len(problem.train)) if k not in internal]
    m, budget = len(internal), problem.entry("varsel")["budget"]
    sums = []
    for _ in range(problem.rounds):
        g = torch.stack(
            [(x - sgd(problem, x, rows, random)) / lr for rows in problem.train]
        )
        mean = g[internal].mean(0)
        variance = float((g[internal] - mean).square().sum())
        away = g[external] - mean
        likely = surrogate_weights(
            variance, m, away.square().sum(1).double().numpy(), budget
        )
        chosen = torch.rand(len(external), generator=random).numpy() < likely
        weights = torch.tensor(
            exact_weights(variance, m, away[chosen].double().numpy(), budget),
            dtype=x.dtype,
        )
        x = x - lr * (m * mean + weights @ g[external][chosen]) / (m + weights.sum())
        sums.append(float(weights.sum()))
    fifth = max(1, len(sums) // 5)
    return {
        **_measured(problem, x),
        "sum of weights, first fifth": float(np.mean(sums[:fifth])),
        "sum of weights, last fifth": float(np.mean(sums[-fifth:])),
    }


def surrogate_weights(
    variance: float, m: int, distances: Numbers, budget: float
) -> Numbers:
    """Eq. 8: minimise (V + (sum w) (sum w_j d_j)) / (M + sum w)^2 over w in [0, 1]^N with a sum of at most the budget.

    For a given sum the smallest d_j get weight first. Between whole sums the value is a quadratic of 1 / (M + sum), so that a bounded
    search of each such piece finds its minimum.
    """
    order = np.argsort(distances)
    ascending = distances[order]

    def filled(total: float) -> Numbers:
        return np.clip(total - np.arange(len(ascending)), 0, 1)

    def value(total: float) -> float:
        return float(
            (variance + total * (filled(total) @ ascending)) / (m + total) ** 2
        )

    last = min(budget, len(distances))
    ends = np.arange(int(np.ceil(last)))
    inside = [
        minimize_scalar(value, bounds=(low, min(low + 1, last)), method="bounded").x
        for low in ends
    ]
    weights = np.empty_like(distances)
    weights[order] = filled(min([*ends, *inside, last], key=value))
    return weights


def exact_weights(variance: float, m: int, away: Numbers, budget: float) -> Numbers:
    """Eq. 4: minimise (V + ||w' away||^2) / (M + sum w)^2 over the same set, where `away` has a row for each chosen client.

    With t = 1 / (M + sum w) and y = t w it is a convex quadratic problem, which SLSQP solves.
    """
    n = len(away)
    if n == 0 or variance == 0:
        return np.zeros(n)
    gram = m**2 / variance * away @ away.T

    def value(z: Numbers) -> float:
        return float(m**2 * z[n] ** 2 + z[:n] @ gram @ z[:n])

    def slope(z: Numbers) -> Numbers:
        return 2 * np.append(gram @ z[:n], m**2 * z[n])

    total = LinearConstraint(np.append(np.ones(n), float(m)), 1, 1)
    box = LinearConstraint(np.hstack([np.eye(n), -np.ones((n, 1))]), -np.inf, 0)
    limit = LinearConstraint(np.append(np.ones(n), -float(budget)), -np.inf, 0)
    start = np.append(np.zeros(n), 1 / m)  # no external client
    solved = minimize(value, start, jac=slope, method="SLSQP", bounds=[(0, None)] * (n + 1),
                      constraints=[total, box, limit], options={"ftol": 1e-12, "maxiter": 500})  # fmt: skip
    weights: Numbers = np.clip(solved.x[:n] / solved.x[n], 0, 1)
    return weights


def _average(
    problem: Problem,
    x: Tensor,
    clients: Sequence[int],
    random: torch.Generator,
    pull: float = 0.0,
) -> Tensor:
    """What clients make of the model, averaged by their rows."""
    sizes = torch.tensor([float(len(problem.train[k].labels)) for k in clients])
    local = torch.stack(
        [sgd(problem, x, problem.train[k], random, pull=pull) for k in clients]
    )
    return (sizes / sizes.sum()) @ local


def _internal(problem: Problem) -> list[int]:
    names = list(problem.clients.names)
    return [names.index(name) for name in counted(problem)]


def _measured(problem: Problem, *models: Tensor) -> Values:
    """Of one model, or of one for each internal client."""
    tests = [rows_of(problem.clients[name].test) for name in counted(problem)]
    if problem.tables["run"].get("metrics") == ["experiments/membranes.py:dice"]:
        return {
            "Dice": fmean(_dice(problem, x, tests[0]) for x in models)
        }  # the internal clients have the same test rows
    each = models if len(models) > 1 else models * len(tests)
    hits = sum(problem.model.hits(x, rows) for x, rows in zip(each, tests, strict=True))
    return {
        "accuracy of the internal clients": hits
        / sum(int((rows.labels >= 0).sum()) for rows in tests)
    }


def _dice(problem: Problem, x: Tensor, rows: Rows) -> float:
    """Twice the pixels that are membrane and are called so, by those that are plus those that are called so; mean over squares."""
    scores = problem.model.scores(x, rows.inputs)
    called, true = scores[:, 1] > scores[:, 0], rows.labels == 1
    shares = [
        2 * float((a & b).sum()) / max(1, int(a.sum() + b.sum()))
        for a, b in zip(called, true, strict=True)
    ]
    return float(np.mean(shares))


FEW = {"internal-only": internal_only, "varsel": varsel, "fedavg": fedavg}
METHODS = {
    **{name: on(name, FEW) for name in ("varsel-shards-long", "own-varsel-shards-1-3")},
    **{name: on(name, {**FEW, "fedprox": fedprox, "selective": selective, "ocs": ocs, "perfedavg": perfedavg})
       for name in ("varsel-shards-1-3", "varsel-shards-3-3", "varsel-shards-3-5", "varsel-small-shards-twins", "varsel-cifar10",
                    "varsel-plays", "varsel-shakespeare", "varsel-membranes")},
}  # fmt: skip


def counted(problem: Problem) -> list[str]:
    """The clients whose rows count: the internal ones."""
    patterns = problem.entry("varsel")["internal"]
    return [
        name
        for name in problem.clients.names
        if any(fnmatch(name, pattern) for pattern in patterns)
    ]
