"""The first round of W1 from the start of the process, with data on disk, and the most memory that the process ever held."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.measure import ROOT, Settings, on_a_quiet_machine, row

WHAT = __doc__ or ""
SECONDS, MEGABYTES = (4.0, 2.5), (700, 450)

SCRIPT = """
import json, sys, time
import coterie as ct
from benchmarks import w1
work = w1.Work(6, 2, 4, 8, 1, 3, 1) if sys.argv[1] == "quick" else w1.Work()
clients = (w1.synthetic(work, 240) if sys.argv[1] == "quick" else w1.load(work))[0]
at = {}
local = ct.LocalSGD(lr=0.1, steps=ct.Steps(work.steps), batch_size=work.batch_size)
settings = ct.RunSettings(work.per_round, 2, metrics=(), callbacks=[lambda number: at.setdefault(number, time.time())])
ct.fit(ct.FedAvg(local), clients, ct.models.MLP(), 2, settings=settings)
# Not getrusage: a child begins with the peak of the process that started it.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([at[1], int(peak.split()[1]) / 1000]))
"""


def run(settings: Settings) -> dict[str, Any]:
    """Measure both."""
    repeats = 2 if settings.quick else 5
    found = on_a_quiet_machine(
        lambda: _measure(repeats, "quick" if settings.quick else "whole"), settings
    )
    rows = [
        row("first round of W1 from process start", f"{found['seconds']:.1f} s",
            f"{SECONDS[0]:g} s, aim {SECONDS[1]:g} s", found["seconds"] <= SECONDS[0], found),
        row("peak memory of W1", f"{found['megabytes']:.0f} MB",
            f"{MEGABYTES[0]} MB, aim {MEGABYTES[1]} MB", found["megabytes"] <= MEGABYTES[0], found),
    ]  # fmt: skip
    return {**found, "rows": rows}


def _measure(repeats: int, size: str) -> dict[str, Any]:
    times, peaks = [], []
    for _ in range(repeats):
        started = time.time()
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, size],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        first, peak = json.loads(done.stdout.splitlines()[-1])
        times.append(first - started)
        peaks.append(peak)
    return {
        "seconds": statistics.median(times),
        "megabytes": statistics.median(peaks),
        "repeats": repeats,
    }
