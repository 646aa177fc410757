"""Mean estimation as the newer MeritFed paper prints it (section 4, appendix D.2): where ||x - x*||^2 settles for each method.

Three things differ from `mean_estimation`, which follows the authors' code. The loss is ||x - xi||^2, not its mean over the 10
coordinates, so that every gradient is ten times as large. MeritFed takes 50 steps of mirror descent a round, not 10. The second
group's mean is mu in each coordinate, and the third is drawn from the sphere. Rates, batches and clients are the same, and the
steps of mirror descent are those under the older paper's Figures 1 to 3. With this loss a round brings x closer to its limit by a
factor .98: 1,000 rounds are many times enough for averaging, and MeritFed and SGD Ideal have 3,000, since weights move, too. The
paper does not state the number of rounds. MeritFed's descent is computed at the target ("delegated"), which gives the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

import coterie as ct
from benchmarks import mean_estimation
from benchmarks.mean_estimation import CONTESTANTS, MD_STEP, Job, settle
from benchmarks.measure import Settings, over_seeds

WHAT = __doc__ or ""
SEEDS = 7
MD_STEPS = 50
ROUNDS: Mapping[str, int] = {
    "MeritFed": 3000,
    "SGD Ideal": 3000,
    "SGD Full": 1000,
    "FedAvg of 5": 1000,
    "FedAvg of 10": 1000,
    "FedAdp": 1000,
    "TAWT": 1000,
}


def squared_distance(outputs: Tensor, labels: Tensor) -> Tensor:
    """The printed loss of each row, ||x - xi||^2; outputs and labels are [rows, d]."""
    return (outputs - labels).square().sum(dim=1)


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    """All methods and all mu, seed by seed while the time lasts; all results so far after each seed."""

    def jobs(seed: int) -> list[Job]:
        if settings.quick:
            return [Job(method, 0.01, seed, 3, 100) for method in ROUNDS]
        return [
            Job(method, mu, seed, rounds)
            for method, rounds in ROUNDS.items()
            for mu in MD_STEP
        ]

    seeds = 2 if settings.quick else SEEDS
    for found in over_seeds(jobs, plateau, settings, seeds):
        yield {**found, "summary": summary(found["runs"])}


def plateau(job: Job) -> dict[str, Any]:
    """The plateau of one run."""
    started = time.perf_counter()
    contestant = CONTESTANTS[job.method]
    clients = ct.data.load(
        "mean-estimation",
        seed=job.seed,
        mu=job.mu,
        groups=list(contestant.groups),
        samples=job.samples,
        test=0,
        printed=True,
    )
    method = mean_estimation.method_of(job.method, job.mu)
    if job.method == "MeritFed":
        method = replace(method, md_steps=MD_STEPS, oracle="delegated")
    settled = settle(
        method,
        clients,
        job.rounds,
        job.seed,
        drawn=contestant.drawn,
        loss=squared_distance,
    )
    return {
        **job._asdict(),
        "plateau": settled.plateau,
        "curves": settled.curves,
        "seconds": round(time.perf_counter() - started, 1),
    }


def summary(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds for each method and mu; the paper prints no numbers."""
    lines = mean_estimation.summary(list(results))
    return [{key: line[key] for key in line if key != "reference"} for line in lines]
