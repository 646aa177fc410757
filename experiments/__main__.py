"""Run what is missing of the papers' experiments, in order of worth, and write docs/results.md: `make papers MINUTES=60`."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence

from experiments import maxfl_landscape, maxfl_toy, page
from experiments.documents import RESULTS, ROOT
from experiments.running import plan, run_missing, select


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write the pages."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="A,B", help="these experiments alone"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin nothing later"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once (2)")
    arguments = parser.parse_args(arguments)
    os.chdir(ROOT)  # FILE.py:NAME of a TOML file counts from the root
    for toy in (maxfl_toy, maxfl_landscape):
        if not (RESULTS / f"{toy.NAME}.json").is_file():
            toy.main()
    kinds, steps = plan()
    named = [name for name in arguments.only.split(",") if name]
    for line in run_missing(
        kinds, select(steps, named), minutes=arguments.minutes, jobs=arguments.jobs
    ):
        print(line, flush=True)
    page.write(page.pages())
    return 0


if __name__ == "__main__":
    sys.exit(main())
