"""Run what is missing of the papers' experiments, in order of worth, and write docs/results.md: `make papers MINUTES=60`."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence

from coterie.base.files import write_atomically
from experiments.documents import RESULTS, ROOT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing unless `--page`, then write the pages."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("--only", default="", metavar="A,B", help="these experiments alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing later")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once (2)")
    parser.add_argument("--page", action="store_true", help="write the pages, run nothing")
    arguments = parser.parse_args(arguments)
    os.chdir(ROOT)  # FILE.py:NAME of a TOML file counts from the root
    if not arguments.page:
        from experiments import maxfl_landscape, maxfl_toy
        from experiments.running import plan, run_missing, select

        for toy in (maxfl_toy, maxfl_landscape):
            if not (RESULTS / f"{toy.NAME}.json").is_file():
                toy.main()
        kinds, steps = plan()
        named = [name for name in arguments.only.split(",") if name]
        for line in run_missing(kinds, select(steps, named), minutes=arguments.minutes, jobs=arguments.jobs):
            print(line, flush=True)
    from experiments.page import pages

    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary, text=text: temporary.write_text(text, encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
