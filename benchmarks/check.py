"""`make bench-check`: is the library slower against L0 than when `benchmarks/results` was written, or slow to start? Two minutes.

Ratios against L0 are compared, not times, on one worker; on a busy machine those in CPU time. Exit status 1 if one fell by more than
the tolerance. Starting is compared with importing torch, in CPU time of fresh processes.
"""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Settings, decisive

__all__ = ["TOLERANCE", "main", "worse"]

TOLERANCE = 0.15
"""How far a ratio may fall below the committed one: five short pairs scatter by less on a machine with nothing else to do."""
NAMES = ("w1", "w2", "w3", "w5")


HELP = """
import contextlib
from coterie.cli.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None):
    main(["compare", "--help"])
"""
STARTS = {
    "coterie compare --help": (HELP, 0.5),
    "import coterie and its names, beyond torch": (
        "import coterie as ct; ct.fit, ct.MeritFed, ct.data.load, ct.models.MLP, ct.metrics.auc",
        0.5,
    ),
}
"""What is started, and the most that it may take as a multiple of importing torch."""


def _cpu_seconds(code: str, before: str = "") -> float:
    script = f"{before}\nimport time\nbegan = time.process_time()\n{code}\nprint(time.process_time() - began)"
    runs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(5)
    ]
    return statistics.median(float(done.stdout) for done in runs)


def slow_starts() -> int:
    """Print what each start costs as a multiple of importing torch; how many cost too much."""
    torch = _cpu_seconds("import torch")
    slow = 0
    for name, (code, most) in STARTS.items():
        ratio = _cpu_seconds(code, "" if code is HELP else "import torch") / torch
        slow += ratio > most
        print(f"{name}: {ratio:.2f} of importing torch, at most {most:g}{': SLOW' if ratio > most else ''}", flush=True)
    return slow


def worse(now: float, before: float) -> bool:
    """Whether a ratio fell by more than the tolerance."""
    return now < before * (1 - TOLERANCE)


def main(folder: Path = ROOT / "benchmarks" / "results", settings: Settings | None = None) -> int:
    """Measure and compare; the exit status."""
    fallen = slow_starts()
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
