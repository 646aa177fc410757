"""MeritFed for one target (Tupitsa et al., Selective Collaboration for Robust Federated Learning, Figs. 16, 17 and 22-29), computed a
second time.

Clients train locally in each round; what differs is with which weights the target adds their updates, and whether by Adam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import partial
from itertools import count
from statistics import fmean

import torch
from torch import Tensor

from experiments.independent.common import Problem, Values, generator, on, rows_of, sgd
from experiments.independent.networks import Rows

TARGET = "target"
Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From the model, the updates [clients, d] and the weights so far: the weights of this round."""


def sgd_ideal(problem: Problem, label: str = "sgd-ideal") -> Values:
    """The mean of these clients, by default of the target alone; Adam takes it where the entry says so."""
    patterns = problem.entry(label).get("members", [TARGET])
    members = [
        k
        for k, name in enumerate(problem.clients.names)
        if any(fnmatch(name, p) for p in patterns)
    ]
    even = torch.zeros(len(problem.train))
    even[members] = 1 / len(members)
    adam = (
        Adam.of(problem, label) if "server_optimiser" in problem.entry(label) else None
    )
    return _learned(problem, label, lambda x, updates, weights: even, adam, members)


def sgd_full(problem: Problem) -> Values:
    """All clients alike."""
    return _learned(problem, "sgd-full", lambda x, updates, weights: weights)


def fedprox(problem: Problem) -> Values:
    """The same, where local training is pulled back to the round's model."""
    return _learned(problem, "fedprox", lambda x, updates, weights: weights)


def meritfed(problem: Problem) -> Values:
    """Algorithm 1: entropic mirror descent on the target's validation loss, from the weights of the round before."""
    return _descended(problem, "meritfed", rows_of(problem.clients[TARGET].validation))


def meritfed_train(problem: Problem) -> Values:
    """The same on the rows that the target trains on."""
    return _descended(problem, "meritfed-train", rows_of(problem.clients[TARGET].train))


def fedadp(problem: Problem) -> Values:
    """Weights by the angle to the target's update, through FedAdp's Gompertz map."""
    target = list(problem.clients.names).index(TARGET)

    def weighed(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
        return gompertz(
            torch.cosine_similarity(updates, updates[target][None], dim=1)
            .clamp(-1, 1)
            .acos()
        ).softmax(0)

    return _learned(problem, "fedadp", weighed)


def tawt(problem: Problem) -> Values:
    """In every so many rounds weights are multiplied by the exponential of the cosine between a client's update and the target's."""
    target, every = (
        list(problem.clients.names).index(TARGET),
        problem.entry("tawt")["every"],
    )
    rounds = count(1)

    def weighed(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
        if next(rounds) % every:
            return weights
        cosines = torch.cosine_similarity(updates, updates[target][None], dim=1)
        return (weights.clamp(min=1e-30).log() + cosines).softmax(0)

    return _learned(problem, "tawt", weighed)


def meritfed_a(problem: Problem) -> Values:
    """Appendix D.4: mirror descent on the validation loss of the model that Adam's step from the weighted sum leads to."""
    entry, adam = problem.entry("meritfed-a"), Adam.of(problem, "meritfed-a")
    held = rows_of(problem.clients[TARGET].validation)

    def descended(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
        logs = weights.clamp(min=1e-30).log()
        for _ in range(entry["md_steps"]):
            w = logs.softmax(0).requires_grad_()
            (slopes,) = torch.autograd.grad(
                problem.model.loss(x + adam.step(w @ updates), held), w
            )
            logs = (logs - entry["md_step"] * slopes).log_softmax(0)
        return logs.softmax(0)

    return _learned(problem, "meritfed-a", descended, adam)


class Adam:
    """Kingma and Ba (2015), Algorithm 1, with its usual constants, along updates [d]."""

    def __init__(self, rate: float, size: int) -> None:
        self.rate, self.m, self.v, self.t = (
            rate,
            torch.zeros(size),
            torch.zeros(size),
            0,
        )

    @classmethod
    def of(cls, problem: Problem, label: str) -> Adam:
        """For the model of a problem, with the rate of one method."""
        return cls(problem.entry(label)["lr"], len(problem.start()))

    def _moments(self, update: Tensor) -> tuple[Tensor, Tensor]:
        return 0.9 * self.m + 0.1 * update, 0.999 * self.v + 0.001 * update.square()

    def step(self, update: Tensor) -> Tensor:
        """What would be added if this update came next; gradients go through."""
        m, v = self._moments(update)
        root = (
            (v / (1 - 0.999 ** (self.t + 1))).clamp(min=1e-30).sqrt()
        )  # the root of 0 has no slope
        return self.rate * m / (1 - 0.9 ** (self.t + 1)) / (root + 1e-8)

    def take(self, update: Tensor) -> Tensor:
        """What is added; the moments remember."""
        step = self.step(update)
        (self.m, self.v), self.t = self._moments(update), self.t + 1
        return step


def gompertz(angle: Tensor) -> Tensor:
    """FedAdp's map with its constant 5: from 5 at small angles to 0 at large ones."""
    return 5 * (1 - (-(-5 * (angle - 1)).exp()).exp())


def _descended(problem: Problem, label: str, held: Rows) -> Values:
    entry = problem.entry(label)

    def descended(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
        logs = weights.clamp(min=1e-30).log()
        for _ in range(entry["md_steps"]):
            slopes = updates @ problem.model.gradient(
                x + logs.softmax(0) @ updates, held
            )
            logs = (logs - entry["md_step"] * slopes).log_softmax(0)
        return logs.softmax(0)

    return _learned(problem, label, descended)


def _learned(
    problem: Problem,
    method: str,
    weigh: Weigh,
    adam: Adam | None = None,
    members: Sequence[int] = (),
) -> Values:
    random, x = generator(problem.seed, method), problem.start()
    names = list(problem.clients.names)
    weights = torch.full((len(names),), 1 / len(names))
    pull, every = (
        problem.entry(method).get("mu", 0.0),
        problem.tables["run"]["evaluate"],
    )
    test = rows_of(problem.clients[TARGET].test)
    by_round, accuracies = [], [problem.accuracy(x, [test])]
    for number in range(1, problem.rounds + 1):
        updates = torch.zeros(len(names), len(x))
        for k in members or range(len(names)):  # clients without weight need not train
            updates[k] = sgd(problem, x, problem.train[k], random, pull=pull) - x
        weights = weigh(x, updates, weights)
        x = x + (adam.take(weights @ updates) if adam else weights @ updates)
        by_round.append(weights)
        if number % every == 0 or number == problem.rounds:
            accuracies.append(problem.accuracy(x, [test]))
    kinds = dict.fromkeys(name.partition("-")[0] for name in names)
    groups = {
        kind: torch.tensor([name.startswith(kind) for name in names]) for kind in kinds
    }
    of_classes = [test.at(test.labels == i) for i in test.labels.unique()]
    evaluated = by_round[every - 1 :: every]
    late = torch.stack(evaluated[len(evaluated) // 2 :])
    effective = [float(1 / shares.square().sum()) for shares in by_round]
    return {
        "accuracy of the target": accuracies[-1],
        "best accuracy over rounds": max(accuracies),
        "balanced accuracy of the target": fmean(
            problem.model.hits(x, rows) / len(rows.labels) for rows in of_classes
        ),
        "loss of the target": float(problem.model.loss(x, test)),
        **{
            f"weight of {group}": float(late[:, inside].sum(1).mean())
            for group, inside in groups.items()
        },
        "effective collaborators, first round": effective[0],
        "effective collaborators, first steps": sum(effective) / len(effective),
    }


BASIC = {"sgd-ideal": sgd_ideal, "sgd-full": sgd_full, "meritfed": meritfed}
GROUPS = {**BASIC, "meritfed-train": meritfed_train}
ALPHAS = (99, 50, 90, 70)
METHODS = {
    f"meritfed-{name}": on(f"meritfed-{name}", methods)
    for name, methods in {
        **{
            f"groups-{alpha}": {
                **GROUPS,
                "fedprox": fedprox,
                "fedadp": fedadp,
                "tawt": tawt,
            }
            for alpha in ALPHAS
        },
        **{f"first-steps-{alpha}": {"meritfed": meritfed} for alpha in ALPHAS},
        **{f"goemotions-{alpha}": GROUPS for alpha in ALPHAS},
        **{f"copies-{alpha}": BASIC for alpha in (90, 50)},
        "xrays": {"meritfed-a": meritfed_a}
        | {
            name: partial(sgd_ideal, label=name)
            for name in ("adam-ideal", "adam-related")
        },
    }.items()
}


def counted(problem: Problem) -> list[str]:
    """The clients whose rows count: the target."""
    return [TARGET]
