"""Mean estimation under attack (MeritFed, appendix D.5): where ||x - x*||^2 settles with 5 honest clients and 50 attackers.

All 55 clients have 1,000 samples of the target's distribution. 4,000 rounds of one gradient on 100 samples, server rate .01; MeritFed
takes 10 mirror-descent steps of 3.5 on 1,000 more samples of the target. Attacks use statistics over all 55 clients, as the authors'
code does. The plateau is the mean over the last fifth of the rounds; the ideal group are the 5 honest clients alone.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import coterie as ct
from benchmarks.mean_estimation import LOCAL, LR, MOST_SEEDS, settle
from benchmarks.measure import Settings
from coterie.data.mean_estimation import TARGET

WHAT = __doc__ or ""
ROUNDS = 4000
HONEST, MALICIOUS = 5, 50
MD_STEPS, MD_STEP = 10, 3.5
TIMES = 1.5
"""MeritFed's plateau may be this many times the ideal group's."""
STALLED = 0.5
"""Above it an average has hardly left its start, whose distance is 1."""

ATTACKS: Mapping[str, Any] = {
    "IPM": ct.attacks.IPM(eps=0.1, statistics="all"),
    "ALIE": ct.attacks.ALIE(z=100.0, statistics="all"),
    "bit flipping": ct.attacks.SignFlip(),
    "random noise": ct.attacks.Noise(sigma=10.0, mode="replace"),
}
METHODS: Mapping[str, Any] = {
    "MeritFed": ct.MeritFed(targets=TARGET, local=LOCAL, lr=LR, md_steps=MD_STEPS, md_step=MD_STEP),
    "averaging": ct.FedAvg(LOCAL, lr=LR),
    "FedAdp": ct.FedAdp(local=LOCAL, lr=LR, reference=TARGET, running_mean=False),
}
IDEAL = "ideal group"

REFERENCE: Mapping[str, Mapping[str, str]] = {
    "MeritFed": dict.fromkeys(ATTACKS, ".0030 to .0037"),
    IDEAL: dict.fromkeys(ATTACKS, ".0036"),
    "averaging": {"IPM": ".99", "ALIE": "820", "bit flipping": "2e5", "random noise": "3.1"},
    "FedAdp": {"IPM": ".009", "ALIE": "3.9", "bit flipping": ".03", "random noise": ".03"},
}
"""Plateaus of the authors' code over three seeds."""


def run(settings: Settings) -> dict[str, Any]:
    """Every method under every attack, seed by seed while the time lasts."""
    started, load = time.perf_counter(), os.getloadavg()[0]
    rounds, seeds = (3, 2) if settings.quick else (ROUNDS, MOST_SEEDS)
    found: list[dict[str, Any]] = []
    for seed in range(seeds):
        for method, attack in [(IDEAL, None), *((m, a) for a in ATTACKS for m in METHODS)]:
            found.append(plateau(method, attack, seed, rounds))
            print(found[-1], flush=True)  # a seed takes many minutes
        if (time.perf_counter() - started) * (seed + 2) / (seed + 1) > 60 * settings.minutes:
            break
    minutes = (time.perf_counter() - started) / 60
    return {
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "minutes": minutes,
        "summary": summary(found),
        "runs": found,
    }


def plateau(method: str, attack: str | None, seed: int, rounds: int) -> dict[str, Any]:
    """The plateau of one run, None if it diverged, and the weight of the honest at the end."""
    started = time.perf_counter()
    count = HONEST + (0 if attack is None else MALICIOUS)
    clients = ct.data.load("mean-estimation", seed=seed, mu=0.0, groups=[count, 0, 0], test=0)
    attackers = clients.names[HONEST:]
    value: float | None = None
    honest: float | None = None
    try:
        chosen = METHODS.get(method, METHODS["averaging"])
        value, weights = settle(chosen, clients, rounds, seed, attack=ATTACKS.get(attack or ""), attackers=attackers)
        honest = sum(w for name, w in weights.items() if name not in attackers)
    except ct.RunError:
        pass
    return {
        "method": method, "attack": attack, "seed": seed, "rounds": rounds, "plateau": value, "honest_weight": honest,
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def summary(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean over seeds of each method under each attack; None where a seed diverged."""
    lines = []
    for method in (*METHODS, IDEAL):
        for attack in ATTACKS:
            values = [r["plateau"] for r in runs if r["method"] == method and r["attack"] in (attack, None)]
            known = [v for v in values if v is not None]
            mean = statistics.fmean(known) if len(known) == len(values) else None
            spread = statistics.stdev(known) if mean is not None and len(known) > 1 else None
            lines.append({"method": method, "attack": attack, "seeds": len(values), "mean": mean, "std": spread})
    return lines


def verdicts(result: Mapping[str, Any]) -> list[str]:
    """What must hold, and whether it does."""
    mean = {(line["method"], line["attack"]): line["mean"] for line in result["summary"]}
    said = []
    for attack in ATTACKS:
        mine, ideal, average = (mean[m, attack] for m in ("MeritFed", IDEAL, "averaging"))
        near = mine is not None and mine <= TIMES * ideal
        lost = average is None or average > STALLED
        ratio = "diverges" if mine is None else f"{mine / ideal:.2f} times"
        said.append(
            f"{attack}: MeritFed settles within {TIMES} times the ideal group's plateau: **{'yes' if near else 'no'}** ({ratio}); "
            f"averaging diverges or stalls: **{'yes' if lost else 'no'}**."
        )
    return said


def table(result: Mapping[str, Any]) -> str:
    """The summary as Markdown."""
    text = ["| method | " + " | ".join(ATTACKS) + " |", "| --- " * (len(ATTACKS) + 1) + "|"]
    for method in (*METHODS, IDEAL):
        lines = {line["attack"]: line for line in result["summary"] if line["method"] == method}
        text.append("| " + " | ".join([method, *(_cell(method, lines[attack]) for attack in ATTACKS)]) + " |")
    seeds = max(line["seeds"] for line in result["summary"])
    note = (
        f"Mean ± standard deviation over {seeds} seed{'s' * (seeds > 1)}, in brackets the numbers of the authors' code over three. "
        f"Commit {result['commit']}, {result['minutes']:.0f} minutes."
    )
    return "\n".join([*text, "", note, "", *(f"- {said}" for said in verdicts(result))])


def _cell(method: str, line: Mapping[str, Any]) -> str:
    value = "diverged" if line["mean"] is None else f"{line['mean']:.2g}"
    spread = "" if line["std"] is None else f" ± {line['std']:.2g}"
    return f"{value}{spread} ({REFERENCE[method][line['attack']]})"
