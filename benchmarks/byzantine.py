"""Mean estimation under attack (MeritFed, appendix D.5): where ||x - x*||^2 settles with 5 honest clients and 50 attackers.

All 55 clients have 1,000 samples of the target's distribution. 4,000 rounds of one gradient on 100 samples, server rate .01;
MeritFed takes 10 mirror-descent steps of 3.5 on 1,000 more samples of the target, or, as "fresh validation", each on 100 new
ones. Attacks use statistics over all 55 clients, as the authors' code does; noise replaces what is sent, as there, or is added to
it, as the papers print. The plateau is the mean over the last fifth of the
rounds; the ideal group are the 5 honest clients alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import coterie as ct
from benchmarks import mean_estimation
from benchmarks.mean_estimation import AVERAGING, settle
from benchmarks.measure import Settings, over_seeds

WHAT = __doc__ or ""
ROUNDS = 4000
SEEDS = 20
HONEST, MALICIOUS = 5, 50
MD_STEP = 3.5

ATTACKS: Mapping[str, Any] = {
    "IPM": ct.attacks.IPM(eps=0.1, statistics="all"),
    "ALIE": ct.attacks.ALIE(z=100.0, statistics="all", correction=1),
    "bit flipping": ct.attacks.SignFlip(),
    "random noise": ct.attacks.Noise(sigma=10.0, mode="replace"),
    "added noise": ct.attacks.Noise(sigma=1.0, mode="add"),
}
MERITFED = replace(mean_estimation.MERITFED, md_step=MD_STEP)
FRESH = "MeritFed, fresh validation"
METHODS: Mapping[str, Any] = {
    "MeritFed": MERITFED,
    FRESH: replace(MERITFED, validation="fresh", oracle_batch_size=100),
    "averaging": AVERAGING,
    "FedAdp": mean_estimation.FEDADP,
    "TAWT": mean_estimation.TAWT,
    "MeritFed, stochastic": replace(MERITFED, oracle_batch_size=100),
}
IDEAL = "ideal group"
THEIRS = ("IPM", "ALIE", "bit flipping", "random noise")
"""Attacks that the authors' code has."""

REFERENCE: Mapping[str, Mapping[str, str]] = {
    "MeritFed": dict.fromkeys(THEIRS, ".0030 to .0037"),
    FRESH: {},
    "TAWT": {},
    "MeritFed, stochastic": {},
    IDEAL: dict.fromkeys(THEIRS, ".0036"),
    "averaging": {
        "IPM": ".99",
        "ALIE": "820",
        "bit flipping": "2e5",
        "random noise": "3.1",
    },
    "FedAdp": {
        "IPM": ".009",
        "ALIE": "3.9",
        "bit flipping": ".03",
        "random noise": ".03",
    },
}
"""Plateaus of the authors' code over three seeds."""


class Job(NamedTuple):
    """One run; the ideal group knows no attack."""

    method: str
    attack: str | None
    seed: int
    rounds: int


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    """Every method under every attack, seed by seed while the time lasts; all results so far after each seed."""
    rounds, seeds = (3, 2) if settings.quick else (ROUNDS, SEEDS)

    def jobs(seed: int) -> list[Job]:
        attacked = [Job(m, a, seed, rounds) for m in METHODS for a in ATTACKS]
        return [*attacked, Job(IDEAL, None, seed, rounds)]

    for found in over_seeds(jobs, plateau, settings, seeds):
        yield {**found, "summary": summary(found["runs"])}


def plateau(job: Job) -> dict[str, Any]:
    """The plateau of one run, None if it diverged, and the weight of the honest at the end."""
    started = time.perf_counter()
    count = HONEST + (0 if job.attack is None else MALICIOUS)
    clients = ct.data.load(
        "mean-estimation", seed=job.seed, mu=0.0, groups=[count, 0, 0], test=0
    )
    attackers = clients.names[HONEST:]
    value: float | None = None
    honest: float | None = None
    attack = None if job.attack is None else replace(ATTACKS[job.attack], on=attackers)
    try:
        settled = settle(
            METHODS.get(job.method, AVERAGING), clients, job.rounds, job.seed, attack
        )
        value, honest = (
            settled.plateau,
            sum(w for name, w in settled.weights.items() if name not in attackers),
        )
    except ct.RunError:
        pass
    seconds = round(time.perf_counter() - started, 1)
    return {
        **job._asdict(),
        "plateau": value,
        "honest_weight": honest,
        "seconds": seconds,
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean over seeds of each method under each attack, None where a seed diverged, beside the authors' numbers."""
    lines = []
    for method in (*METHODS, IDEAL):
        for attack in ATTACKS:
            values = [
                r["plateau"]
                for r in runs
                if r["method"] == method and r["attack"] in (attack, None)
            ]
            if not values:
                continue
            known = [v for v in values if v is not None]
            mean = statistics.fmean(known) if len(known) == len(values) else None
            spread = (
                statistics.stdev(known) if mean is not None and len(known) > 1 else None
            )
            reference = REFERENCE[method].get(attack)
            line = {
                "method": method,
                "attack": attack,
                "seeds": len(values),
                "mean": mean,
                "std": spread,
            }
            lines.append({**line, "reference": reference})
    return lines
