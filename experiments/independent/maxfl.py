"""MaxFL and its rivals (Maximizing Global Model Appeal in Federated Learning), computed a second time.

Each client trains alone for some steps first; its own model's losses are what the global model has to beat. Where clients may leave,
after the mandatory rounds only those take part whose training loss it beats. Attackers report a gap of their own and add noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch
from scipy.stats import spearmanr
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

WARM_UP_STEPS, TUNING_STEPS = 100, 5
"""Steps that each client trains alone, and from the global model before it judges it ("Example of rho_k"; Tables 3 and 4)."""
EPS = 1e-8
Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From the gaps F_k(x) - rho_k, the numbers of rows and the numbers of those who take part: their weights."""


def fedavg(problem: Problem) -> Values:
    """The average by rows."""
    return _learned(problem, "fedavg", lambda gaps, sizes, who: sizes / sizes.sum())


def fedprox(problem: Problem) -> Values:
    """The same, where local training is pulled back to the round's model."""
    return _learned(problem, "fedprox", lambda gaps, sizes, who: sizes / sizes.sum())


def maxfl(problem: Problem) -> Values:
    """Eqs. 4 and 6: q = s (1 - s) with s the sigmoid of the gap, over the sum of q."""
    return _learned(problem, "maxfl", lambda gaps, sizes, who: appeal_weights(gaps))


def maxfl_tuning(problem: Problem) -> Values:
    """Table 3: the gap is that of a model some local steps away."""
    steps = problem.entry("maxfl-tuning")["tuning_steps"]
    return _learned(
        problem,
        "maxfl-tuning",
        lambda gaps, sizes, who: appeal_weights(gaps),
        tuning=steps,
    )


def mwfed(problem: Problem) -> Values:
    """Multiplicative weights, by which local steps are shared out too."""
    return _learned(
        problem, "mwfed", multiplicative(len(problem.train)), shared_steps=True
    )


def alike(gaps: Tensor, sizes: Tensor, who: Tensor) -> Tensor:
    """All clients count the same."""
    return torch.full_like(gaps, 1 / len(gaps))


def scaffold(problem: Problem) -> Values:
    """Karimireddy et al. (2020), Algorithm 1, option II: all clients count the same, steps are corrected by control variates."""
    return _learned(problem, "scaffold", alike, controlled=True)


def perfedavg(problem: Problem) -> Values:
    """Fallah et al. (2020), first order: all clients count the same."""
    return _learned(problem, "perfedavg", alike, meta=True)


def qffl(problem: Problem, label: str = "qffl") -> Values:
    """Li et al. (2020), Algorithm 2: the higher a client's loss, the more it counts."""
    q, curvature = problem.entry(label)["q"], 1 / problem.tables["local"]["lr"]
    return _learned(
        problem,
        label,
        alike,
        fair=lambda F, updates: fair_weights(F, updates, q, curvature),
    )


def fair_weights(losses: Tensor, updates: Tensor, q: float, curvature: float) -> Tensor:
    """Weights of updates [n, d] by losses F [n]: L F^q over the sum of q F^(q - 1) |L update|^2 + L F^q, with L the curvature."""
    F = losses.double()
    h = (
        q * F ** (q - 1) * (curvature * updates.double()).square().sum(1)
        + curvature * F**q
    )
    return (curvature * F**q / h.sum()).float()


class Controls:
    """Control variates c_i, and their mean c, by which local steps are corrected."""

    def __init__(self, clients: int, size: int) -> None:
        self.own, self.mean = torch.zeros(clients, size), torch.zeros(size)

    def shift(self, k: Tensor) -> Tensor:
        """What is added to each gradient of client k: c - c_k."""
        return self.mean - self.own[k]

    def move(self, drawn: Tensor, updates: Tensor, path: float) -> None:
        """c_i <- c_i - c + (x - y_i) / (K eta_l), and c by a mean over all clients; `path` is K eta_l."""
        change = -self.mean - updates / path
        self.own[drawn] += change
        self.mean = self.mean + change.sum(0) / len(self.own)


def multiplicative(clients: int) -> Weigh:
    """Weights that are multiplied by exp(.1) where the gap is above 0."""
    logs = torch.zeros(clients)

    def weigh(gaps: Tensor, sizes: Tensor, who: Tensor) -> Tensor:
        logs[who] += 0.1 * (gaps > 0)
        return logs[who].softmax(0)

    return weigh


def appeal_weights(gaps: Tensor) -> Tensor:
    """Weights of updates by the gaps F_k(x) - rho_k: the slope of the sigmoid, over the sum."""
    q = gaps.sigmoid() * (-gaps).sigmoid()
    return q / (q.sum() + EPS)


def attackers(problem: Problem) -> Tensor:
    """Who attacks [clients]."""
    lies = torch.zeros(len(problem.train), dtype=torch.bool)
    if attack := problem.tables.get("attack"):
        drawn = torch.randperm(
            len(lies), generator=generator(problem.seed, "attackers")
        )
        lies[drawn[: round(attack["on"] * len(lies))]] = True
    return lies


def _learned(
    problem: Problem,
    method: str,
    weigh: Weigh,
    *,
    tuning: int = 0,
    shared_steps: bool = False,
    controlled: bool = False,
    meta: bool = False,
    fair: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Values:
    random, x = generator(problem.seed, method), problem.start()
    train, run = problem.train, problem.tables["run"]
    test = [rows_of(client.test) for client in problem.clients]
    steps, rate, pull = _rates(problem, method)
    controls = Controls(len(train), len(x))  # all 0 unless they move
    judges = {"seen": _Judges(problem, problem.clients, "alone")}
    if problem.clients.unseen is not None:
        judges["unseen"] = _Judges(problem, problem.clients.unseen, "unseen")
    own = torch.stack(
        [
            problem.model.loss(x_k, rows)
            for x_k, rows in zip(judges["seen"].alone, train, strict=True)
        ]
    )
    sizes = torch.tensor([float(len(rows.labels)) for rows in train])
    mandatory = (
        run["appeal"]["mandatory_rounds"] if run["appeal"]["leave"] else problem.rounds
    )
    attack, lies = problem.tables.get("attack", {}), attackers(problem)
    appeal: dict[str, list[float]] = {}
    preferred, losses = list[float](), list[tuple[float, float]]()
    for number in range(1, problem.rounds + 1):
        stay = torch.ones_like(lies)
        if number > mandatory:
            stay = lies | (
                torch.stack([problem.model.loss(x, rows) for rows in train]) < own
            )
        pool = stay.nonzero().flatten()
        drawn = pool[
            torch.randperm(len(pool), generator=random)[: run["clients_per_round"]]
        ]
        if len(drawn):
            near = [sgd(problem, x, train[k], random, tuning) for k in drawn]
            gaps = (
                torch.stack(
                    [
                        problem.model.loss(y, train[k])
                        for y, k in zip(near, drawn, strict=True)
                    ]
                )
                - own[drawn]
            )
            if attack:
                gaps[lies[drawn]] = attack["gap"]
            weights = weigh(gaps, sizes[drawn], drawn)
            taken = (
                (steps * len(drawn) * weights).round().clamp(min=1).int()
                if shared_steps
                else [steps] * len(drawn)
            )
            updates = torch.stack(
                [
                    meta_sgd(problem, x, train[k], random) - x
                    if meta
                    else sgd(
                        problem, x, train[k], random, int(n), controls.shift(k), pull
                    )
                    - x
                    for k, n in zip(drawn, taken, strict=True)
                ]
            )
            if fair:
                weights = fair(gaps + own[drawn], updates)
            if controlled:
                controls.move(drawn, updates, steps * problem.tables["local"]["lr"])
            if attack:
                updates[lies[drawn]] += (
                    attack["sigma"]
                    * torch.randn(updates.shape, generator=random)[lies[drawn]]
                )
            x = x + rate * weights @ updates
        if number % run["evaluate"] == 0:
            preferred.append(judges["seen"].preferred(x))
            losses.append((mean_loss(problem, x, train), mean_loss(problem, x, test)))
            for who, judge in judges.items():
                appeal.setdefault(f"GM-appeal, {who}", []).append(judge.appeal(x))
                if 2 * number >= problem.rounds:
                    appeal.setdefault(f"GM-appeal after 5 steps, {who}", []).append(
                        judge.appeal(x, TUNING_STEPS)
                    )
    late = len(appeal["GM-appeal after 5 steps, seen"])
    return {
        **{name: fmean(values[-late:]) for name, values in appeal.items()},
        **{f"accuracy, {who}": judge.accuracy(x) for who, judge in judges.items()},
        **{f"preferred-model accuracy{after}, {who}": judge.preferred(x, tuned) for who, judge in judges.items()
           for after, tuned in (("", 0), (" after 5 steps", TUNING_STEPS))},
        "training loss": mean_loss(problem, x, train),
        "test loss": mean_loss(problem, x, test),
        "largest factor between training and test loss": max(max(a / b, b / a) for a, b in losses),
        "clients in the pool, last round": float(len(pool)),
        **together(appeal["GM-appeal, seen"], preferred),
    }  # fmt: skip


def together(appeal: Sequence[float], preferred: Sequence[float]) -> dict[str, float]:
    """How appeal and the accuracy of the preferred model go together over the rounds; empty where one never changes."""
    if min(len(set(appeal)), len(set(preferred))) < 2:
        return {}
    return {
        "rank correlation of appeal and preferred accuracy": float(
            spearmanr(appeal, preferred).statistic
        )
    }


def mean_loss(problem: Problem, x: Tensor, parts: Sequence[Rows]) -> float:
    """Mean over all rows of the clients."""
    sizes = [len(rows.labels) for rows in parts]
    return fmean((float(problem.model.loss(x, rows)) for rows in parts), weights=sizes)


def _rates(problem: Problem, method: str) -> tuple[int, float, float]:
    """Local steps, the server's rate eta_g and FedProx's mu; the local rate is the same for all: it decides what clients require."""
    entries = [
        m for m in problem.tables["methods"] if m.get("label", m["name"]) == method
    ]
    entry = entries[0] if entries else {}
    steps = (problem.tables["local"] | entry.get("local", {}))["steps"]
    return steps, entry.get("lr", 1.0), entry.get("mu", 0.0)


class _Judges:
    """Clients that compare a model with what each has learned alone."""

    def __init__(self, problem: Problem, clients: Sequence[Any], name: str) -> None:
        steps = problem.tables["run"]["appeal"].get("warmup_steps", WARM_UP_STEPS)
        self._problem, self._name = problem, name
        self._train = [rows_of(client.train) for client in clients]
        self._test = [rows_of(client.test) for client in clients]
        self.alone = [sgd(problem, problem.start(), rows, generator(problem.seed, f"{name}-{k}"), steps)
                      for k, rows in enumerate(self._train)]  # fmt: skip
        self._own = [
            float(self._loss(x, rows))
            for x, rows in zip(self.alone, self._test, strict=True)
        ]

    def _loss(self, x: Tensor, rows: Rows) -> Tensor:
        return self._problem.model.loss(x, rows)

    def _tuned(self, x: Tensor, steps: int) -> list[Tensor]:
        if not steps:
            return [x] * len(self._train)
        return [sgd(self._problem, x, rows, generator(self._problem.seed, f"{self._name}-tuned-{k}"), steps)
                for k, rows in enumerate(self._train)]  # fmt: skip

    def _appealing(self, models: Sequence[Tensor]) -> list[bool]:
        return [
            bool(self._loss(y, rows) < own)
            for y, rows, own in zip(models, self._test, self._own, strict=True)
        ]

    def appeal(self, x: Tensor, steps: int = 0) -> float:
        """Share whose test loss is lower with the model, after so many local steps, than with their own."""
        return fmean(self._appealing(self._tuned(x, steps)))

    def accuracy(self, x: Tensor) -> float:
        """Mean over the clients."""
        return fmean(self._problem.accuracy(x, [rows]) for rows in self._test)

    def preferred(self, x: Tensor, steps: int = 0) -> float:
        """Mean over the clients, each with the model, after so many local steps, if it appeals to it, else with its own."""
        tuned = self._tuned(x, steps)
        chosen = [
            y if likes else own
            for y, likes, own in zip(
                tuned, self._appealing(tuned), self.alone, strict=True
            )
        ]
        return fmean(
            self._problem.accuracy(y, [rows])
            for y, rows in zip(chosen, self._test, strict=True)
        )


RIVALS = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "perfedavg": perfedavg,
    "qffl": qffl,
    "mwfed": mwfed,
    "maxfl": maxfl,
}
METHODS = {
    "maxfl-table-1": on("maxfl-table-1", RIVALS),
    "maxfl-figures-3-4": on(
        "maxfl-figures-3-4",
        {
            **RIVALS,
            "qffl-10": partial(qffl, label="qffl-10"),
            "maxfl-tuning": maxfl_tuning,
        },
    ),
    "own-maxfl-figures-3-4": on(
        "own-maxfl-figures-3-4", {"fedavg": fedavg, "maxfl": maxfl}
    ),
    **{
        name: on(name, {"fedavg": fedavg, "fedprox": fedprox, "maxfl": maxfl})
        for name in ("maxfl-warmup-50", "maxfl-warmup-150")
    },
    **{
        name: on(name, {"mwfed": mwfed, "maxfl": maxfl})
        for name in ("maxfl-liars-05", "maxfl-liars-10")
    },
    "maxfl-liars-gap-0": on("maxfl-liars-gap-0", {"maxfl": maxfl}),
}


def counted(problem: Problem) -> list[str]:
    """The clients whose rows count: all that train."""
    return list(problem.clients.names)
