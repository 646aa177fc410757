"""MeritFed for one target (Tupitsa et al., Selective Collaboration for Robust Federated Learning, Figs. 22-25), computed a second time.

All clients train locally in each round; what differs is with which weights the target adds their updates.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from itertools import count

import torch
from torch import Tensor

from experiments.independent.common import Problem, Values, generator, on, rows_of, sgd
from experiments.independent.networks import Rows

TARGET = "target"
Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From the model, the updates [clients, d] and the weights so far: the weights of this round."""


def sgd_ideal(problem: Problem) -> Values:
    """Clients of the target's own distribution: the target, and its twin if it has one."""
    members = problem.entry("sgd-ideal").get("members", [TARGET])
    inside = torch.tensor([float(any(fnmatch(name, m) for m in members)) for name in problem.clients.names])
    return _learned(problem, "sgd-ideal", lambda x, updates, weights: inside / inside.sum())


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
        return gompertz(torch.cosine_similarity(updates, updates[target][None], dim=1).clamp(-1, 1).acos()).softmax(0)

    return _learned(problem, "fedadp", weighed)


def tawt(problem: Problem) -> Values:
    """In every so many rounds weights are multiplied by the exponential of the cosine between a client's update and the target's."""
    target, every = list(problem.clients.names).index(TARGET), problem.entry("tawt")["every"]
    rounds = count(1)

    def weighed(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
        if next(rounds) % every:
            return weights
        cosines = torch.cosine_similarity(updates, updates[target][None], dim=1)
        return (weights.clamp(min=1e-30).log() + cosines).softmax(0)

    return _learned(problem, "tawt", weighed)


def gompertz(angle: Tensor) -> Tensor:
    """FedAdp's map with its constant 5: from 5 at small angles to 0 at large ones."""
    return 5 * (1 - (-(-5 * (angle - 1)).exp()).exp())


def _descended(problem: Problem, label: str, held: Rows) -> Values:
    entry = problem.entry(label)

    def descended(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
        logs = weights.clamp(min=1e-30).log()
        for _ in range(entry["md_steps"]):
            slopes = updates @ problem.model.gradient(x + logs.softmax(0) @ updates, held)
            logs = (logs - entry["md_step"] * slopes).log_softmax(0)
        return logs.softmax(0)

    return _learned(problem, label, descended)


def _learned(problem: Problem, method: str, weigh: Weigh) -> Values:
    random, x = generator(problem.seed, method), problem.start()
    names = list(problem.clients.names)
    weights = torch.full((len(names),), 1 / len(names))
    pull, every = problem.entry(method).get("mu", 0.0), problem.tables["run"]["evaluate"]
    test = rows_of(problem.clients[TARGET].test)
    by_round, accuracies = [], [problem.accuracy(x, [test])]
    for number in range(1, problem.rounds + 1):
        updates = torch.stack([sgd(problem, x, rows, random, pull=pull) - x for rows in problem.train])
        weights = weigh(x, updates, weights)
        x = x + weights @ updates
        by_round.append(weights)
        if number % every == 0 or number == problem.rounds:
            accuracies.append(problem.accuracy(x, [test]))
    groups = {group: torch.tensor([name.startswith(group) for name in names]) for group in (TARGET, "near", "far")}
    evaluated = by_round[every - 1 :: every]
    late = torch.stack(evaluated[len(evaluated) // 2 :])
    effective = [float(1 / shares.square().sum()) for shares in by_round]
    return {
        "accuracy of the target": accuracies[-1],
        "best accuracy over rounds": max(accuracies),
        "loss of the target": float(problem.model.loss(x, test)),
        **{f"weight of {group}": float(late[:, inside].sum(1).mean()) for group, inside in groups.items()},
        "effective collaborators, first round": effective[0],
        "effective collaborators, first steps": sum(effective) / len(effective),
    }


BASIC = {"sgd-ideal": sgd_ideal, "sgd-full": sgd_full, "meritfed": meritfed}
GROUPS = {**BASIC, "meritfed-train": meritfed_train}
ALPHAS = (99, 50, 90, 70)
METHODS = {
    f"meritfed-{name}": on(f"meritfed-{name}", methods)
    for name, methods in {
        **{f"groups-{alpha}": {**GROUPS, "fedprox": fedprox, "fedadp": fedadp, "tawt": tawt} for alpha in ALPHAS},
        **{f"first-steps-{alpha}": {"meritfed": meritfed} for alpha in ALPHAS},
        **{f"goemotions-{alpha}": GROUPS for alpha in ALPHAS},
        **{f"copies-{alpha}": BASIC for alpha in (90, 50)},
    }.items()
}


def counted(problem: Problem) -> list[str]:
    """The clients whose rows count: the target."""
    return [TARGET]
