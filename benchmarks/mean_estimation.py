"""Mean estimation, the synthetic task of the MeritFed papers: where ||x - x*||^2 settles for each method.

150 clients with 1,000 samples each: 5 have the target's distribution, 95 one whose mean lies mu away, 50 one at distance 1.
5,000 rounds of one gradient on 100 samples, server rate .01; MeritFed takes 10 mirror-descent steps on 1,000 more samples of
the target, or in the stochastic variant each on 100 of them, or asks for losses alone. The plateau is the mean over the last
fifth of the rounds. Whole seeds run while the time lasts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

import coterie as ct
from benchmarks.measure import Settings, over_seeds, replace_round
from coterie.data.sets.mean_estimation import TARGET

WHAT = __doc__ or ""
MD_STEP = {0.001: 3.5, 0.01: 4.5, 0.1: 12.5}
"""The step of mirror descent for each mu."""

REFERENCE: Mapping[str, Mapping[float, float]] = {
    "MeritFed": {0.001: 0.00013, 0.01: 0.00015, 0.1: 0.0023},
    "SGD Full": {0.001: 0.11, 0.01: 0.12, 0.1: 0.15},
    "SGD Ideal": {0.001: 0.0024, 0.01: 0.0024, 0.1: 0.0024},
}
"""Plateaus of the authors' code."""

LOCAL = ct.LocalSGD(lr=1.0, steps=ct.Steps(1), batch_size=100)
LR = 0.01
MOST_SEEDS = 10
EVERYBODY = (5, 95, 50)


class Contestant(NamedTuple):
    """How a method is run.

    Attributes:
        groups: clients of the target's distribution, of the one close by and of the one far away that take part.
        rounds: a round brings x closer to its limit by a factor .998, so 3,000 leave 1/400 of the way: nothing against plateaus
            of .01 and more.
        drawn: clients of each round; None: all.
    """

    groups: tuple[int, int, int] = EVERYBODY
    rounds: int = 5000
    drawn: int | None = None


CONTESTANTS: Mapping[str, Contestant] = {
    "MeritFed": Contestant(),
    "SGD Full": Contestant(rounds=3000),
    "SGD Ideal": Contestant((5, 0, 0)),
    "target only": Contestant((1, 0, 0)),
    "FedAvg of 5": Contestant(rounds=3000, drawn=5),
    "FedAvg of 10": Contestant(rounds=3000, drawn=10),
    "FedAdp": Contestant(rounds=3000),
    "TAWT": Contestant(rounds=3000),
    "MeritFed, stochastic": Contestant(),
    "MeritFed, losses alone": Contestant(),
}
AVERAGING = ct.FedAvg(LOCAL, lr=LR)  # equal sizes: the plain mean
FEDADP = ct.FedAdp(local=LOCAL, lr=LR, reference=TARGET, running_mean=False)
TAWT = ct.TAWT(targets=TARGET, local=LOCAL, lr=LR, every=2)
MERITFED = ct.MeritFed(targets=TARGET, local=LOCAL, lr=LR, md_steps=10)


def method_of(label: str, mu: float) -> Any:
    """A contestant's method; the step of mirror descent follows mu."""
    variants = {
        "stochastic": {"oracle_batch_size": 100},
        "losses alone": {"oracle": "loss"},
    }
    if label.startswith("MeritFed"):
        return replace(
            MERITFED,
            md_step=MD_STEP[mu],
            **variants.get(label.removeprefix("MeritFed, "), {}),
        )
    return {"FedAdp": FEDADP, "TAWT": TAWT}.get(label, AVERAGING)


class Job(NamedTuple):
    """One run."""

    method: str
    mu: float
    seed: int
    rounds: int
    samples: int = 1000


class Settled(NamedTuple):
    """What a run ended with.

    Attributes:
        plateau: mean of ||x - x*||^2 over the last fifth of the rounds.
        weights: of the last round, by client.
        curves: ||x - x*||^2 over the rounds, and for MeritFed the bound on the descent's gap: rounds and values.
    """

    plateau: float
    weights: Mapping[str, float]
    curves: Mapping[str, list[list[float]]]


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    """All methods and all mu, seed by seed while the time lasts; all results so far after each seed."""

    def jobs(seed: int) -> list[Job]:
        if settings.quick:
            return [Job(m, 0.01, seed, 3, 100) for m in CONTESTANTS]
        return [
            Job(m, mu, seed, one.rounds)
            for m, one in CONTESTANTS.items()
            for mu in MD_STEP
        ]

    for found in over_seeds(
        jobs, plateau, settings, 2 if settings.quick else MOST_SEEDS
    ):
        yield {**found, "summary": summary(found["runs"])}


def plateau(job: Job) -> dict[str, Any]:
    """The plateau of one run, and for MeritFed the weight of each group at the end."""
    started = time.perf_counter()
    one = CONTESTANTS[job.method]
    clients = ct.data.load(
        "mean-estimation",
        seed=job.seed,
        mu=job.mu,
        groups=list(one.groups),
        samples=job.samples,
        test=0,
    )
    settled = settle(
        method_of(job.method, job.mu), clients, job.rounds, job.seed, drawn=one.drawn
    )
    by_group = [
        sum(w for name, w in settled.weights.items() if name.startswith(g))
        for g in ("d1", "d2", "d3")
    ]
    found = {
        "plateau": settled.plateau,
        "weight_by_group": by_group,
        "curves": settled.curves,
    }
    return {
        **job._asdict(),
        **found,
        "seconds": round(time.perf_counter() - started, 1),
    }


def settle(
    method: Any,
    clients: ct.Clients,
    rounds: int,
    seed: int,
    attack: Any = None,
    drawn: int | None = None,
    loss: Any = "auto",
) -> Settled:
    """Run a method on clients whose mean is estimated; by default the loss is averaged over the coordinates."""
    distances, gaps = list[float](), list[float]()

    def watch(
        round: Callable[..., tuple[Any, Any]], *arguments: Any
    ) -> tuple[Any, Any]:
        state, log = round(*arguments)
        models = method.models(state)
        x: Tensor = models if isinstance(models, Tensor) else models[TARGET]
        distances.append(float(x.double().square().sum()))  # x* = 0
        if "gap_bound" in log:
            gaps.append(log["gap_bound"][TARGET])
        return state, log

    done = ct.fit(
        replace_round(method, watch), clients, ct.models.Mean(), rounds, seed, attack=attack,
        settings=ct.RunSettings(
            clients_per_round=drawn, evaluate=rounds, metrics=(), loss=loss, merge_validation=False, strict_wire=False
        ),
    )  # fmt: skip
    late = distances[-max(1, rounds // 5) :]
    curves = {"distance": _thinned(distances), "gap bound": _thinned(gaps)}
    return Settled(
        statistics.fmean(late),
        next(iter(done.weights.values())),
        {k: c for k, c in curves.items() if c},
    )


def _thinned(values: Sequence[float], points: int = 50) -> list[list[float]]:
    """About so many rounds and what was seen there, four digits; none if nothing was."""
    if not values:
        return []
    rounds = sorted(
        {*range(0, len(values), -(-len(values) // points)), len(values) - 1}
    )
    return [[i + 1 for i in rounds], [float(f"{values[i]:.4g}") for i in rounds]]


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds for each method and mu, beside the authors' numbers."""
    lines = []
    for method in CONTESTANTS:
        for mu in sorted({r["mu"] for r in results if r["method"] == method}):
            values = [
                r["plateau"] for r in results if (r["method"], r["mu"]) == (method, mu)
            ]
            spread = statistics.stdev(values) if len(values) > 1 else None
            reference = REFERENCE.get(method, {}).get(mu)
            line = {
                "method": method,
                "mu": mu,
                "seeds": len(values),
                "mean": statistics.fmean(values),
            }
            lines.append({**line, "std": spread, "reference": reference})
    return lines
