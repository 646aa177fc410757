"""Run what is missing of the papers' experiments, in order of worth, and write docs/results.md: `make papers MINUTES=60`."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence

from coterie.base.files import write_atomically
from experiments.documents import RESULTS, ROOT, read_json
from experiments.page import ORDER, kinds, pages


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and write the page after every run."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("--only", default="", metavar="A,B", help="these experiments alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing later")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once (2)")
    parser.add_argument("--page", action="store_true", help="write docs/results.md, run nothing")
    given = parser.parse_args(arguments)
    os.chdir(ROOT)  # FILE.py:NAME of a TOML file counts from the root
    if not given.page:
        from experiments.running import chosen, run_missing

        _toys()
        steps = chosen(ORDER, [name for name in given.only.split(",") if name])
        for said in run_missing(kinds(), steps, minutes=given.minutes, jobs=given.jobs):
            print(said, flush=True)
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary, text=text: temporary.write_text(text, encoding="utf-8"))
    return 0


def _toys() -> None:
    from experiments import maxfl_landscape, maxfl_toy

    for toy, name in ((maxfl_toy, "maxfl_toy"), (maxfl_landscape, "maxfl_landscape")):
        if read_json(RESULTS / f"{name}.json") is None:
            toy.main()


if __name__ == "__main__":
    sys.exit(main())
