"""MaxFL and FedAvg (Maximizing Global Model Appeal in Federated Learning), clients leaving or not, computed a second time.

Each client trains alone for some steps first; its own model's losses are what the global model has to beat. Where clients may leave,
after the mandatory rounds only those take part whose training loss it beats.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.independent.common import Problem, Values, generator, on, rows_of, sgd

WARM_UP_STEPS = 100
"""Steps that each client trains alone: "Example of rho_k"; Table 4 has others."""
EPS = 1e-8
Weigh = Callable[[Tensor, Tensor], Tensor]
"""From the gaps F_k(x) - rho_k and the numbers of rows of those who take part: their weights."""


def fedavg(problem: Problem) -> Values:
    """The average by rows."""
    return _learned(problem, "fedavg", lambda gaps, sizes: sizes / sizes.sum())


def maxfl(problem: Problem) -> Values:
    """Eqs. 4 and 6: q = s (1 - s) with s the sigmoid of the gap, over the sum of q."""
    return _learned(problem, "maxfl", lambda gaps, sizes: appeal_weights(gaps))


def appeal_weights(gaps: Tensor) -> Tensor:
    """Weights of updates by the gaps F_k(x) - rho_k: the slope of the sigmoid, over the sum."""
    q = gaps.sigmoid() * (-gaps).sigmoid()
    return q / (q.sum() + EPS)


def _learned(problem: Problem, method: str, weigh: Weigh) -> Values:
    random, start, train = generator(problem.seed, method), problem.start(), problem.train
    run = problem.tables["run"]
    warm_up = run["appeal"].get("warmup_steps", WARM_UP_STEPS)
    mandatory = run["appeal"]["mandatory_rounds"] if run["appeal"]["leave"] else problem.rounds
    test = [rows_of(client.test) for client in problem.clients]
    sizes = torch.tensor([float(len(rows.labels)) for rows in train])
    alone = [sgd(problem, start, rows, generator(problem.seed, f"alone-{k}"), warm_up)
             for k, rows in enumerate(train)]  # fmt: skip
    loss = problem.model.loss
    own_train = torch.stack([loss(x_k, rows) for x_k, rows in zip(alone, train, strict=True)])
    own_test = torch.stack([loss(x_k, rows) for x_k, rows in zip(alone, test, strict=True)])
    x, appeal = start, list[float]()
    for number in range(1, problem.rounds + 1):
        gaps = torch.stack([loss(x, rows) for rows in train]) - own_train
        stay = gaps < 0 if number > mandatory else torch.ones_like(gaps, dtype=torch.bool)
        pool = stay.nonzero().flatten()
        drawn = pool[torch.randperm(len(pool), generator=random)[: run["clients_per_round"]]]
        if len(drawn):
            updates = torch.stack([sgd(problem, x, train[k], random) - x for k in drawn])
            x = x + weigh(gaps[drawn], sizes[drawn]) @ updates
        if number % run["evaluate"] == 0 and 2 * number >= problem.rounds:
            ours = torch.stack([loss(x, rows) for rows in test])
            appeal.append(float((ours < own_test).double().mean()))
    accuracy = [problem.accuracy(x, [rows]) for rows in test]
    return {"GM-appeal, seen": sum(appeal) / len(appeal), "accuracy, seen": sum(accuracy) / len(accuracy)}


METHODS = {
    name: on(name, {"fedavg": fedavg, "maxfl": maxfl})
    for name in ("maxfl-leave", "maxfl-clusters", "maxfl-warmup-50", "maxfl-warmup-150")
}


def counted(problem: Problem) -> list[str]:
    """The clients whose rows count: all that train."""
    return list(problem.clients.names)
