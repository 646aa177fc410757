"""Run benchmarks: `python benchmarks/run.py [NAME ...]`. Writes benchmarks/results/NAME.json, of which the site makes tables."""

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

from benchmarks import measure, pages  # noqa: E402 - found by the path above
from benchmarks.pages import SPEED  # noqa: E402

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

BENCHMARKS = (*SPEED, "engines", "row_costs", "gpu", *LONG)


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

    given, folder = measure.read_arguments(parser, arguments, "benchmark", BENCHMARKS)
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
    if given.out is None:
        pages.write_summary()
    return 0


if __name__ == "__main__":
    sys.exit(main())
