"""VaRSeL and two rivals (Rethinking Client Reweighting for Selfish Federated Learning, Table 2), computed a second time.

Some clients are internal, and only they count. g is a client's accumulated update (x - x_k) / lr, as if it were a gradient. Both
problems for the weights are left to general solvers of scipy.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, minimize, minimize_scalar
from torch import Tensor

from experiments.independent.common import Problem, Values, generator, on, rows_of, sgd

Numbers = NDArray[np.float64]


def internal_only(problem: Problem) -> Values:
    """The paper's Local Training: the internal clients' average alone."""
    random, x = generator(problem.seed, "internal-only"), problem.start()
    internal = _internal(problem)
    for _ in range(problem.rounds):
        x = torch.stack([sgd(problem, x, problem.train[k], random) for k in internal]).mean(0)
    return _accuracy(problem, x)


def fedavg(problem: Problem) -> Values:
    """In each round the average, by rows, of clients drawn without regard to who is internal."""
    random, x = generator(problem.seed, "fedavg"), problem.start()
    for _ in range(problem.rounds):
        drawn = torch.randperm(len(problem.train), generator=random)[: problem.tables["run"]["clients_per_round"]]
        sizes = torch.tensor([float(len(problem.train[k].labels)) for k in drawn])
        local = torch.stack([sgd(problem, x, problem.train[k], random) for k in drawn])
        x = (sizes / sizes.sum()) @ local
    return _accuracy(problem, x)


def varsel(problem: Problem) -> Values:
    """Algorithm 1, with the gradient of the internal clients in the place of the unseen true one."""
    random, x = generator(problem.seed, "varsel"), problem.start()
    internal, lr = _internal(problem), problem.tables["local"]["lr"]
    external = [k for k in range(len(problem.train)) if k not in internal]
    m, budget = len(internal), problem.entry("varsel")["budget"]
    sums = []
    for _ in range(problem.rounds):
        g = torch.stack([(x - sgd(problem, x, rows, random)) / lr for rows in problem.train])
        mean = g[internal].mean(0)
        variance = float((g[internal] - mean).square().sum())
        away = g[external] - mean
        likely = surrogate_weights(variance, m, away.square().sum(1).double().numpy(), budget)
        chosen = torch.rand(len(external), generator=random).numpy() < likely
        weights = torch.tensor(exact_weights(variance, m, away[chosen].double().numpy(), budget), dtype=x.dtype)
        x = x - lr * (m * mean + weights @ g[external][chosen]) / (m + weights.sum())
        sums.append(float(weights.sum()))
    fifth = max(1, len(sums) // 5)
    return {
        **_accuracy(problem, x),
        "sum of weights, first fifth": float(np.mean(sums[:fifth])),
        "sum of weights, last fifth": float(np.mean(sums[-fifth:])),
    }


def surrogate_weights(variance: float, m: int, distances: Numbers, budget: float) -> Numbers:
    """Eq. 8: minimise (V + (sum w) (sum w_j d_j)) / (M + sum w)^2 over w in [0, 1]^N with a sum of at most the budget.

    For a given sum the smallest d_j get weight first. Between whole sums the value is a quadratic of 1 / (M + sum), so that a bounded
    search of each such piece finds its minimum.
    """
    order = np.argsort(distances)
    ascending = distances[order]

    def filled(total: float) -> Numbers:
        return np.clip(total - np.arange(len(ascending)), 0, 1)

    def value(total: float) -> float:
        return float((variance + total * (filled(total) @ ascending)) / (m + total) ** 2)

    last = min(budget, len(distances))
    ends = np.arange(int(np.ceil(last)))
    inside = [minimize_scalar(value, bounds=(low, min(low + 1, last)), method="bounded").x for low in ends]
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


def _internal(problem: Problem) -> list[int]:
    names = list(problem.clients.names)
    return [names.index(name) for name in counted(problem)]


def _accuracy(problem: Problem, x: Tensor) -> Values:
    tests = [rows_of(problem.clients[name].test) for name in counted(problem)]
    return {"accuracy of the internal clients": problem.accuracy(x, tests)}


OURS = {"internal-only": internal_only, "varsel": varsel}
METHODS = {
    **{name: on(name, {**OURS, "fedavg": fedavg})
       for name in ("varsel-shards-3-3", "varsel-shards-1-3", "varsel-shards-3-5", "varsel-shards-long",
                    "varsel-small-shards-twins", "own-varsel-shards-1-3")},
}  # fmt: skip


def counted(problem: Problem) -> list[str]:
    """The clients whose rows count: the internal ones."""
    return list(problem.entry("varsel")["internal"])
