"""What the README says of four hospitals, measured: `coterie compare heart-disease --folds 0` over 20 seeds, and over 20 others.

Every claim is a paired difference with its 95 % interval over seeds and patients, judged by the rule of docs/statistics.md. It must
hold on both sets of seeds; one that fails is printed, and its sentence leaves the README. Writes benchmarks/results/heart_disease.json
and what stands between the `claims` markers of README.md. Runs are kept in build/claims, so that a measurement that was stopped goes
on. Settings come from src/coterie/run/presets/heart-disease.toml, which were chosen on validation rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.pages import between
from coterie.base.files import write_atomically
from coterie.report.results import Results
from coterie.report.text import number, with_sign
from coterie.run.experiment import Experiment
from coterie.run.tables import preset
from coterie.study.layout import is_run
from coterie.study.sweep import run_experiment

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "build" / "claims"
RESULTS = ROOT / "benchmarks" / "results" / "heart_disease.json"
SEEDS = {"seeds 0 to 19": range(20), "seeds 100 to 119": range(100, 120)}
METHODS = ("local", "fedavg", "fedavg+bias", "meritfed")


class Claim(NamedTuple):
    """`method` is better or worse than `other` for a client (None: mean over clients), or is not shown to differ."""

    text: str
    method: str
    other: str
    client: str | None
    metric: str
    expected: Literal["better", "worse", "no difference"]


CLAIMS = (
    Claim("Averaging makes the log-loss of Switzerland worse", "fedavg", "local", "switzerland", "loss", "worse"),
    Claim("Tuning the bias there afterwards makes it better than averaging", "fedavg+bias", "fedavg", "switzerland", "loss",
          "better"),
    Claim("With it Switzerland is not shown to differ from training alone", "fedavg+bias", "local", "switzerland", "loss",
          "no difference"),
    Claim("MeritFed's mean log-loss is better than that of training alone", "meritfed", "local", None, "loss", "better"),
    Claim("MeritFed's mean log-loss is better than that of averaging", "meritfed", "fedavg", None, "loss", "better"),
    Claim("Long Beach's AUC is better under MeritFed than alone", "meritfed", "local", "long-beach", "auc", "better"),
)  # fmt: skip


class Found(NamedTuple):
    """The difference behind a claim on one set of seeds, what the rule calls it, and whether the claim holds."""

    mean: float
    low: float | None
    high: float | None
    words: str
    holds: bool


def check(claim: Claim, results: Results) -> Found:
    """Whether a claim holds for a run: its interval lies on the claimed side of 0, or for "no difference" holds 0."""
    found = results.difference(claim.method, claim.other, claim.client, claim.metric)
    if found is None or found.low is None:
        return Found(float("nan"), None, None, "no verdict", False)
    seen = ("better" if found.better else "worse") if found.excludes_zero else "no difference"
    return Found(found.mean, found.low, found.high, found.words or seen, seen == claim.expected)


def measure(seeds: range, folder: Path) -> Results:
    """Run the preset with these seeds, or go on with what was stopped."""
    # One split a seed, and training alone as it is set: forty repeats of five folds with tuned references would take an hour.
    experiment = Experiment.from_tables({**preset("heart-disease"), "split": {"folds": 0}}, "the preset")
    run_experiment(replace(experiment, run=replace(experiment.run, seeds=tuple(seeds))), folder, resume=is_run(folder))
    return Results.load(folder)


def summary(results: Results) -> dict[str, Any]:
    """Means over seeds, by metric, method and client."""
    return {
        metric: {
            method: {client: round(results.mean(method, client, metric), 4) for client in results.clients}
            | {"mean": round(results.mean(method, None, metric), 4)}
            for method in results.methods
        }
        for metric in ("accuracy", "auc", "loss")
    }


def page(found: Mapping[str, Mapping[str, Any]], claims: Sequence[Claim] = CLAIMS) -> str:
    """The README's table, from the first set of seeds, and the claims that hold on every set."""
    loss = next(iter(found.values()))["summary"]["loss"]
    auc = next(iter(found.values()))["summary"]["auc"]
    clients = [c for c in loss["local"] if c != "mean"]
    lines = [
        "| log-loss | " + " | ".join(c.replace("-", " ").title() for c in clients) + " | mean | mean AUC |",
        "| --- |" + " ---: |" * (len(clients) + 2),
    ]
    for method in METHODS:
        cells = [loss[method][c] for c in (*clients, "mean")] + [auc[method]["mean"]]
        lines.append(f"| {method} | " + " | ".join(number(v) for v in cells) + " |")
    lines += [
        "",
        f"Mean over 20 single splits (`--folds 0`, {next(iter(found))}); lower is better. Differences on these and on 20 other splits:",
        "",
    ]
    for claim in claims:
        sides = [run["claims"][claim.text] for run in found.values()]
        if all(side["holds"] for side in sides):
            intervals = " and ".join(
                f"{with_sign(s['mean'])} [{with_sign(s['low'])}, {with_sign(s['high'])}]" for s in sides
            )
            lines.append(f"- {claim.text}: {intervals}.")
    return "\n".join(lines)


def main() -> int:
    """Measure, write, and say whether every claim holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where runs are kept")
    runs = parser.parse_args().runs
    found: dict[str, Any] = {}
    for name, seeds in SEEDS.items():
        results = measure(seeds, runs / name.replace(" ", "-"))
        claims = {claim.text: check(claim, results)._asdict() for claim in CLAIMS}
        found[name] = {"claims": claims, "summary": summary(results)}
        for text, side in claims.items():
            interval = f"{with_sign(side['mean'])} [{with_sign(side['low'])}, {with_sign(side['high'])}]"
            print(f"{name}: {'holds' if side['holds'] else 'FAILS'}: {text}: {interval}, {side['words']}", flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(RESULTS, lambda p: p.write_text(json.dumps(found, indent=1) + "\n"))
    between(ROOT / "README.md", page(found), "claims")
    return 0 if all(side["holds"] for run in found.values() for side in run["claims"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
