"""`make bench-check`: is the library slower against L0 than when `benchmarks/results` was written? About two minutes.

Ratios against L0 are compared, not times, on one worker; on a busy machine those in CPU time. Exit status 1 if one fell by more than
the tolerance.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Settings, decisive

__all__ = ["TOLERANCE", "main", "worse"]

TOLERANCE = 0.15
"""How far a ratio may fall below the committed one: five short pairs scatter by less on a machine with nothing else to do."""
NAMES = ("w1", "w2", "w3", "w5")


def worse(now: float, before: float) -> bool:
    """Whether a ratio fell by more than the tolerance."""
    return now < before * (1 - TOLERANCE)


def main(folder: Path = ROOT / "benchmarks" / "results", settings: Settings | None = None) -> int:
    """Measure and compare; the exit status."""
    fallen = 0
    for name in NAMES:
        if not (folder / f"{name}.json").exists():
            print(f"{name}: no committed result; write one with `python benchmarks/run.py {name}`")
            continue
        before: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
        module: Any = importlib.import_module(f"benchmarks.{name}")
        found = module.run(settings or Settings(attempts=2, patience=10.0, short=True))
        key = "cpu_ratio" if found["busy"] else "ratio"
        bad = worse(decisive(found), before[key])
        fallen += bad
        what = "in CPU time" if found["busy"] else "on the wall"
        print(f"{name}: {found[key]:.2f} of L0 {what}, was {before[key]:.2f}{': SLOWER' if bad else ''}", flush=True)
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
