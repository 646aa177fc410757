"""The story of the README, measured: `coterie compare heart-disease` over 20 seeds, and over 20 others.

Writes benchmarks/results/heart_disease.json and the table between the `claims` markers of README.md. Settings come from
src/coterie/run/presets/heart-disease.toml, which were chosen on validation rows.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.state import write_atomically
from coterie.report.results import Results
from coterie.run.experiment import Experiment
from coterie.run.sweep import run_experiment
from coterie.run.tables import preset

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "heart_disease.json"
SEEDS = {"seeds 0 to 19": range(20), "seeds 100 to 119": range(100, 120)}
METHODS = ("local", "fedavg", "meritfed")


def measure(seeds: range, folder: Path) -> Results:
    """Run the preset with these seeds."""
    experiment = Experiment.from_tables(preset("heart-disease"), "the preset")
    run_experiment(replace(experiment, run=replace(experiment.run, seeds=tuple(seeds))), folder)
    return Results.load(folder)


def difference(results: Results, method: str, client: str | None, metric: str) -> tuple[float, float]:
    """Mean and standard error of the paired differences from `local` over seeds."""
    paired = results.values(method, client, metric) - results.values("local", client, metric)
    return float(np.nanmean(paired)), float(np.nanstd(paired, ddof=1) / len(paired) ** 0.5)


def check(results: Results) -> dict[str, bool]:
    """Each claim and whether it holds."""
    harm = {client: difference(results, "meritfed", client, "accuracy") for client in results.clients}
    loss = {method: results.mean(method, None, "loss") for method in METHODS}
    accuracy = difference(results, "meritfed", "long-beach", "accuracy")[0]
    auc = difference(results, "meritfed", "long-beach", "auc")[0]
    return {
        "Switzerland loses at least 5 points of accuracy from local to fedavg": difference(
            results, "fedavg", "switzerland", "accuracy"
        )[0]
        <= -0.05,
        "meritfed costs no hospital more than 1 point of accuracy (or one standard error) against local": all(
            mean >= -max(0.01, error) for mean, error in harm.values()
        ),
        "meritfed has a lower mean log-loss than local and than fedavg": loss["meritfed"]
        < min(loss["local"], loss["fedavg"]),
        "Long Beach gains at least 1 point of accuracy or .02 AUC from local to meritfed": accuracy >= 0.01
        or auc >= 0.02,
    }


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


def table(found: dict[str, Any]) -> str:
    """The README's table, from the first set of seeds."""
    first = next(iter(found.values()))
    clients = [c for c in next(iter(first["summary"]["accuracy"].values())) if c != "mean"]
    lines = [
        "| | " + " | ".join(c.replace("-", " ").title() for c in clients) + " | mean AUC | mean log-loss |",
        "| --- |" + " ---: |" * (len(clients) + 2),
    ]
    for method in METHODS:
        shown = [f"{first['summary']['accuracy'][method][c]:.3f}".lstrip("0") for c in clients]
        shown += [f"{first['summary'][k][method]['mean']:.3f}".lstrip("0") for k in ("auc", "loss")]
        lines.append(f"| {method} | " + " | ".join(shown) + " |")
    lines += ["", "Test accuracy, mean over 20 splits (seeds 0 to 19). On these and on 20 other splits:", ""]
    for claim in first["claims"]:
        held = [run["claims"][claim] for run in found.values()]
        lines.append(
            f"- {claim}: {'holds on both' if all(held) else 'holds on ' + str(sum(held)) + ' of ' + str(len(held))}."
        )
    return "\n".join(lines)


def insert(path: Path, name: str, text: str) -> None:
    """Replace what lies between `<!-- NAME -->` and `<!-- /NAME -->`."""
    whole = path.read_text()
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = whole.split(begin)
    after = rest.split(end)[1]
    write_atomically(path, lambda p: p.write_text(f"{before}{begin}\n{text}\n{end}{after}"))


def main() -> int:
    """Measure, write, and say whether every claim holds."""
    found: dict[str, Any] = {}
    for name, seeds in SEEDS.items():
        with tempfile.TemporaryDirectory() as folder:
            results = measure(seeds, Path(folder) / "run")
        found[name] = {"claims": check(results), "summary": summary(results)}
        for claim, holds in found[name]["claims"].items():
            print(f"{name}: {'holds' if holds else 'FAILS'}: {claim}", flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(RESULTS, lambda p: p.write_text(json.dumps(found, indent=1) + "\n"))
    insert(ROOT / "README.md", "claims", table(found))
    return 0 if all(all(run["claims"].values()) for run in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
