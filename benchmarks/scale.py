"""What grows around a step: memory as peak Pss of all processes above the start, in multiples of the model; CPU time of what many
clients cost.

Each case is a process of its own, which says when its start is over. Memory of the kernel's check, of workers and of evaluation counts.
Before: commit 6d50194, and 077c77d3 for the rows from that of 100,000 clients a round on.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from subprocess import PIPE
from typing import Any, NamedTuple

from benchmarks.measure import LIMIT, ROOT, Settings, commit, machine, row

WHAT = __doc__ or ""
PAUSE = 0.004
"""Seconds between two looks at the memory of a case."""

SLOW = ("loop-256", "compare", "million")
"""Cases that are measured after the others."""


class Row(NamedTuple):
    """A row of the table: what is measured, what it was before, the most that it may be now and that is aimed at (None: not
    said), its unit, and by which case.
    """

    work: str
    before: str
    most: float
    aim: float | None
    unit: str
    case: str
    key: str = "seconds"

    def meets(self, value: float, goal: float | None) -> bool:
        """Return True if a value reaches a goal: it is at most that, or at least where the unit says so."""
        if goal is None:
            return False
        if self.unit == AT_LEAST:
            return value >= goal
        return value <= goal


MODELS, AT_LEAST = "models", "at least"
ROWS = (
    Row("`from_tensors`, 1,000 clients", ".9 s", 0.1, 0.03, "s CPU", "tensors"),
    Row("last evaluation, 1,000 clients", ".44 s", 0.1, 0.03, "s CPU", "last"),
    Row(
        "10,000 clients, two splits: one evaluation",
        "4.5 s",
        1.0,
        0.15,
        "s CPU",
        "evaluation",
    ),
    Row(
        "... in rounds of 100 clients",
        "290",
        60.0,
        10.0,
        "rounds",
        "evaluation",
        "rounds",
    ),
    Row(
        "FedAvg, 10 clients, 12 M parameters, loop",
        "15 to 17",
        9.0,
        6.0,
        MODELS,
        "loop",
        "models",
    ),
    Row("... kernel", "48 to 58", 14.0, 12.0, MODELS, "kernel", "models"),
    Row("... loop, two workers", "51", 14.0, 10.0, MODELS, "loop-two", "models"),
    Row("... kernel, two workers", "95", 28.0, 20.0, MODELS, "kernel-two", "models"),
    Row(
        "... loop, 256 clients over 10 clients",
        "4.2",
        1.3,
        1.05,
        "times",
        "loop-256",
        "growth",
    ),
    Row(
        "SCAFFOLD, 10 clients, 1 M parameters",
        "76 to 97",
        35.0,
        25.0,
        MODELS,
        "scaffold",
        "models",
    ),
    Row(
        "median, 10 clients, 1 M parameters",
        "111",
        25.0,
        16.0,
        MODELS,
        "median",
        "models",
    ),
    Row(
        "MeritFed for all, 10 clients, 1 M parameters",
        "250",
        60.0,
        30.0,
        MODELS,
        "meritfed",
        "models",
    ),
    Row(
        "the preflight's forecast of these nine, at worst off by",
        "11",
        1.3,
        1.2,
        "times",
        "loop-256",
        "forecast_off",
    ),
    Row(
        "MeritFed for all, n = 100: first round, of FedAvg's",
        "15",
        8.0,
        4.0,
        "times",
        "targets",
        "first",
    ),
    Row("... a later round", "64 to 78", 55.0, 45.0, "times", "targets", "later"),
    Row(
        "SCAFFOLD, 1 M parameters, of bare FedAvg's speed",
        ".15 to .24",
        0.4,
        0.5,
        "at least",
        "speed",
        "scaffold",
    ),
    Row(
        "median, 1 M parameters, of bare FedAvg's speed",
        ".18",
        0.4,
        0.5,
        "at least",
        "speed",
        "median",
    ),
    Row(
        "`compare` of five methods, 49 clients, 1,495 rows, one seed",
        "63 s",
        10.0,
        4.0,
        "s CPU",
        "compare",
    ),
    Row("... of it MeritFed", "58 s", 6.0, None, "s CPU", "compare", "meritfed"),
    Row("100,000 clients: build", "90 s", 3.0, 1.0, "s CPU", "many", "build"),
    Row("... start", "18 s", 3.0, 1.0, "s CPU", "many", "start"),
    Row("... evaluation of all", "17 s", 4.0, 1.5, "s CPU", "many", "evaluation"),
    Row("... summary", "14 s", 1.0, 0.5, "s CPU", "many", "summary"),
    Row(
        "a million clients, 50 rounds of 100, 20 evaluations of 1,000",
        "-",
        120.0,
        60.0,
        "s CPU",
        "million",
    ),
    Row("... memory", "-", 4.0, 2.0, "GB", "million", "gigabytes"),
    Row("report of 500 clients", "1.9 s", 1.0, None, "s CPU", "files"),
    Row("... its size", "5.2 MB", 2.0, None, "MB", "files", "megabytes"),
    Row("... files of its run", "1,029", 50.0, None, "files", "files", "files"),
    Row(
        "a round of 10 of 100,000 clients, of one of 10 of 1,000",
        "6",
        1.2,
        1.05,
        "times",
        "names",
        "times",
    ),
    Row(
        "MeritFed for all, paper's form, n = 10: of the least arithmetic",
        "13",
        4.0,
        2.5,
        "times",
        "columns",
        "n10",
    ),
    Row("... n = 50", "16", 4.0, 2.5, "times", "columns", "n50"),
    Row("... n = 100", "13", 4.0, 2.5, "times", "columns", "n100"),
    Row("... n = 300", "10", 4.0, 2.5, "times", "columns", "n300"),
    Row(
        "... grows from n = 100 to 300 by n to the power",
        "1.8 to 2.1",
        1.8,
        1.5,
        "",
        "columns",
        "growth",
    ),
    Row(
        "MeritFed for all, cheap form, n = 300: a round of FedAvg's",
        "9.3",
        4.5,
        3.0,
        "times",
        "cheap",
        "times",
    ),
    Row("saving a run of short rounds", "48", 10.0, 3.0, "% more", "saves", "percent"),
    Row("`compare nhefs`, after imports", "26 s", 20.0, None, "s CPU", "nhefs"),
    Row(
        "49 hospitals of 30 rows: `local`, `fixed-effects`, `partial`",
        "26 s",
        5.0,
        None,
        "s CPU",
        "hospitals",
    ),
    Row(
        'CNN, `precision = "bf16"`: share of the gain of plain torch',
        "-",
        0.85,
        1.0,
        "at least",
        "precision",
        "share",
    ),
    Row("... its gain", "-", 1.5, 1.8, "at least", "precision", "gain"),
    Row(
        "held at a server of 50 sites x 100 M parameters",
        "20 GB",
        1.5,
        0.8,
        "GB",
        "bytes",
        "held",
    ),
    Row("bytes up, `bf16`, of float32", "1", 0.5, None, "times", "bytes", "bf16"),
    Row("... `int8`", "1", 0.35, None, "times", "bytes", "int8"),
    Row('bytes down, `down = "bf16"`', "1", 0.51, None, "times", "bytes", "down"),
    Row("... with `bf16` up, of a round", "1", 0.51, None, "times", "bytes", "both"),
)


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    """Measure the cases of the table; yield all after each."""
    names = sorted(dict.fromkeys(line.case for line in ROWS), key=SLOW.__contains__)
    for found in measure_missing([{"case": name} for name in names], settings):
        yield {**found, "rows": _rows(found["runs"], found["load"])}


def measure_missing(
    cases: Iterable[Mapping[str, Any]], settings: Settings
) -> Iterator[dict[str, Any]]:
    """Measure the cases that no earlier run has, one process after the other, while the minutes last; yield all after each.

    The values of a case are the words by which its process knows it.
    """
    begun, load, runs = (
        time.perf_counter(),
        os.getloadavg()[0],
        [dict(earlier) for earlier in settings.earlier],
    )
    for case in cases:
        if any(case.items() <= run.items() for run in runs):
            continue
        if time.perf_counter() - begun > 60 * settings.minutes:
            break
        found = measure_case(" ".join(map(str, case.values())), quick=settings.quick)
        runs.append({**case, "cpu": machine()["cpu"], "commit": commit(), **found})
        loads = [round(load, 2), round(os.getloadavg()[0], 2)]
        yield {"load": loads, "busy": max(loads) > LIMIT, "runs": runs}


def _rows(
    runs: Sequence[Mapping[str, Any]], load: Sequence[float]
) -> list[dict[str, Any]]:
    """The rows of the table whose case was measured. Neither CPU time nor memory needs a quiet machine."""
    cases = {run["case"]: dict(run) for run in runs}
    if "loop" in cases and "loop-256" in cases:
        cases["loop-256"]["growth"] = (
            cases["loop-256"]["models"] / cases["loop"]["models"]
        )
    held = [
        case["models"] / case["forecast"]
        for case in cases.values()
        if "forecast" in case
    ]
    if "loop-256" in cases and held:
        cases["loop-256"]["forecast_off"] = max(*held, *(1 / times for times in held))
    lines = []
    for line in ROWS:
        value = cases.get(line.case, {}).get(line.key)
        if value is None:
            continue
        least = line.unit == AT_LEAST
        reached = [line.meets(value, goal) for goal in (line.most, line.aim)]
        goals = [
            "-" if goal is None else f"{'at least ' * least}{goal:g}"
            for goal in (line.most, line.aim)
        ]
        unit = "" if least else f" {line.unit}"
        shown = f"{value:.2g}" if value < 10 else f"{value:,.0f}"
        found = {"load": load, "busy": False}
        lines.append(
            {
                **row(line.work, shown + unit, goals[0], reached[0], found),
                "aim": goals[1],
                "aim_met": reached[1],
                "before": line.before,
                "at": cases[line.case]["commit"],
            }
        )
    return lines


def table(result: Mapping[str, Any]) -> str:
    """The table of the site."""
    lines = [
        "| work | before | must | aim | now | reached | commit |",
        "| --- " * 7 + "|",
    ]
    for line in result["rows"]:
        reached = "aim" if line["aim_met"] else "yes" if line["met"] else "no"
        cells = (
            line["work"],
            line["before"],
            line["goal"],
            line["aim"],
            line["measured"],
            reached,
            line["at"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", measured_on(result["runs"])])


def measured_on(runs: Iterable[Mapping[str, Any]]) -> str:
    """Say which commits were measured on which processors."""
    commits: dict[str, set[str]] = {}
    for run in runs:
        commits.setdefault(run["cpu"], set()).add(run["commit"])
    places = [f"{cpu} at {', '.join(sorted(of))}" for cpu, of in commits.items()]
    return f"Measured on {'; '.join(places)}."


def measure_case(name: str, *, quick: bool = False) -> dict[str, float]:
    """Run a case in a process of its own; what it says, and its peak memory above its start in bytes and in models."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-m",
        "benchmarks.scale_cases",
        name,
        *(["quick"] if quick else []),
    ]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=PIPE, stdout=PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        seen = [_memory(child.pid)]
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(PAUSE):
                seen.append(_memory(child.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        text, _ = child.communicate("go\n")
        ended.set()
        watcher.join()
    if child.returncode:
        raise RuntimeError(f"case {name} ended with {child.returncode}")
    found: dict[str, float] = json.loads(text)
    found["bytes"] = max(seen) - seen[0]
    if "model" in found:
        found["models"] = found["bytes"] / found["model"]
    found["gigabytes"] = found["bytes"] / 1e9
    return found


def _memory(pid: int) -> int:
    """Pss of a process and of its descendants, in bytes."""
    total = 0
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            total = 1024 * sum(
                int(line.split()[1]) for line in lines if line.startswith("Pss:")
            )
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                total += sum(map(_memory, map(int, children.read().split())))
    return total
