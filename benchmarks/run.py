"""Run benchmarks: `python benchmarks/run.py [NAME ...]`. Writes benchmarks/results/NAME.json and the tables of the documentation."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if (
    str(ROOT) not in sys.path
):  # `python benchmarks/run.py` puts this folder there, not its parent
    sys.path.insert(0, str(ROOT))

SPEED = ("w1", "w2", "w3", "w4", "w5", "cost", "start", "tables", "scaling", "heart")
"""In the order of the table of docs/performance.md."""

LONG = (
    "scale",
    "growth",
    "mean_estimation",
    "mean_printed",
    "byzantine",
    "contribution",
    "many_targets",
)
"""Case by case, or seed by seed; each that is finished is written and kept."""

BENCHMARKS = (*SPEED, "engines", "row_costs", "gpu", "functional", *LONG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks named on the command line; all about speed if none is."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help=f"how long {', '.join(LONG)} may begin another case or seed",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="how many seeds' runs go at once (2)"
    )
    parser.add_argument(
        "--anew",
        action="store_true",
        help=f"forget the cases and seeds that {', '.join(LONG)} finished earlier",
    )

    from benchmarks import measure, pages

    given, folder, docs = measure.read_arguments(
        parser, arguments, "benchmark", BENCHMARKS
    )
    settings = (
        measure.Settings(given.quick, given.minutes, 1, 0.0)
        if given.quick
        else measure.Settings(minutes=given.minutes, jobs=given.jobs)
    )
    for name in given.names or SPEED:
        module: Any = importlib.import_module(f"benchmarks.{name}")
        path = folder / f"{name}.json"
        if name in LONG:
            earlier = (
                json.loads(path.read_text())["runs"]
                if path.exists() and not (given.anew or given.quick)
                else []
            )
            stages = module.run(settings._replace(earlier=earlier))
        else:
            stages = [module.run(settings)]
        for found in stages:
            result = measure.document(name, module.WHAT.strip(), found)
            measure.write(path, result)
        for line in result.get("rows", ()):
            print(
                f"{line['work']}: {line['measured']} (goal: {line['goal']}, load {line['load']})"
            )
        for line in result.get("summary", ()):
            print(", ".join(f"{key} {value}" for key, value in line.items()))
    if docs is not None:
        results = {
            n: json.loads(p.read_text())
            for n in BENCHMARKS
            if (p := folder / f"{n}.json").exists()
        }
        pages.write(docs, results, SPEED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
