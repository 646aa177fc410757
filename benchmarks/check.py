"""`make bench-check`: is the library slower against L0 than when `benchmarks/results` was written, or slow to start? Three minutes.

Ratios against L0 are compared, not times, on one worker; on a busy machine those in CPU time. Ratios differ from one kind of machine
to another, too: where the results come from another kind, the commits that they name are measured here, which takes as long again.
Starting is compared with importing torch, in CPU time of fresh processes; memory in models, and an evaluation in rounds, with what
`benchmarks/results/scale.json` says of them. What grows with names and targets is held to what it must be at most.

Exit status: 0 as before, 1 if a ratio fell, a cost grew by more than the tolerance, or a must was missed, each twice; 2 if there is
nothing to compare with.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Settings, machine
from benchmarks.scale import MODELS, ROWS, Row, measure_case
from benchmarks.trees import GitError, commit_of, worktree

TOLERANCE = 0.15
"""How far a ratio may fall below the committed one: five short pairs scatter by less on a machine with nothing else to do."""
NAMES = ("w1", "w2", "w3", "w5")
GUARDED = tuple(
    row
    for row in ROWS
    if (row.case in ("evaluation", "loop", "kernel") and row.unit in ("rounds", MODELS))
    or row.case == "bytes"
)
"""Costs that are multiples of something measured beside them, as they may not grow either."""

HELD = ("names", "columns", "cheap", "saves", "precision")
"""Cases of `benchmarks/scale.py` that are ratios of works measured in turns, and so hold on any machine."""

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
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        for _ in range(5)
    ]
    return statistics.median(float(done.stdout) for done in runs)


def slow_starts() -> int:
    """Print what each start costs as a multiple of importing torch; how many cost too much."""
    torch = _cpu_seconds("import torch")
    slow = 0
    for name, (code, most) in STARTS.items():
        ratio = _cpu_seconds(code, "" if code is HELP else "import torch") / torch
        slow += ratio > most
        print(
            f"{name}: {ratio:.2f} of importing torch, at most {most:g}{': SLOW' if ratio > most else ''}",
            flush=True,
        )
    return slow


class NotComparableError(Exception):
    """A result was recorded on another kind of machine, and its commit cannot be measured on this one."""


def worse(now: float, before: float) -> bool:
    """Whether a ratio fell by more than the tolerance."""
    return now < before * (1 - TOLERANCE)


def comparable(record: Mapping[str, Any]) -> bool:
    """Whether the ratio of a result can be expected of this machine."""
    return bool(record["machine"] == machine())


def check_commits(records: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `NotComparableError` for a result of another kind of machine whose commit cannot be measured here."""
    for name, record in records.items():
        if comparable(record):
            continue
        try:
            commit_of(record["commit"])
        except GitError as error:
            raise NotComparableError(
                f"{name} was recorded on another kind of machine ({record['machine']['cpu']}) at commit {record['commit']}, which this "
                f"clone does not have; fetch it (git fetch --unshallow), or record anew with `python benchmarks/run.py {name}`"
            ) from error


def at_commit(commit: str, name: str, settings: Settings) -> dict[str, Any]:
    """What a benchmark finds by the library and the benchmarks of a commit, in a process of its own.

    Raises `NotComparableError` if it fails there.
    """
    given = {
        key: getattr(settings, key)
        for key in ("quick", "attempts", "patience", "short")
    }
    script = (
        f"import json; from benchmarks import {name}; from benchmarks.measure import Settings; "
        f"print(json.dumps({name}.run(Settings(**{given!r}))))"
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        worktree(commit_of(commit), Path(folder) / "tree") as tree,
    ):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(tree / "src"), str(tree))),
        }
        command = [sys.executable, "-c", script]
        ended = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if ended.returncode:
        raise NotComparableError(
            f"{name} fails at commit {commit} here, as written above; record anew with `python benchmarks/run.py {name}`"
        )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def slower(name: str, record: Mapping[str, Any], settings: Settings) -> bool:
    """Measure and print how a ratio compares with a result, or with its commit measured here; whether it fell."""
    same = comparable(record)
    before = record if same else at_commit(record["commit"], name, settings)
    module: Any = importlib.import_module(f"benchmarks.{name}")
    found = module.run(settings)
    busy = found["busy"] or before["busy"]
    key = "cpu_ratio" if busy else "ratio"
    bad = worse(found[key], before[key])
    where = "in CPU time" if busy else "on the wall"
    was = "was" if same else f"at commit {record['commit']} on this machine"
    print(
        f"{name}: {found[key]:.2f} of L0 {where}, {was} {before[key]:.2f}{': SLOWER' if bad else ''}",
        flush=True,
    )
    return bad


def dearer(row: Row, before: float) -> bool:
    """Measure and print how a cost compares with what was recorded; whether it grew."""
    now = measure_case(row.case)[row.key]
    bad = now > before * (1 + TOLERANCE)
    print(
        f"{row.case}: {now:.1f} {row.unit}, was {before:.1f}{': MORE' if bad else ''}",
        flush=True,
    )
    return bad


def misses(case: str) -> int:
    """Measure a case and print its rows beside what they must be; how many miss it."""
    found = measure_case(case)
    count = 0
    for row in ROWS:
        if row.case != case:
            continue
        value = found[row.key]
        missed = not row.meets(value, row.most)
        count += missed
        print(
            f"{case} {row.key}: {value:.2g} {row.unit}, must {row.most:g}{': MISSED' if missed else ''}",
            flush=True,
        )
    return count


def main(
    folder: Path = ROOT / "benchmarks" / "results", settings: Settings | None = None
) -> int:
    """Measure and compare; the exit status."""
    paths = {name: folder / f"{name}.json" for name in NAMES}
    records = {
        name: json.loads(path.read_text())
        for name, path in paths.items()
        if path.exists()
    }
    for name in NAMES:
        if name not in records:
            print(
                f"{name}: no committed result; write one with `python benchmarks/run.py {name}`"
            )
    settings = settings or Settings(attempts=2, patience=10.0, short=True)
    try:
        check_commits(records)
        fallen = slow_starts()
        for (
            name,
            record,
        ) in (
            records.items()
        ):  # a fall counts if it is seen twice: ratios scatter on a busy machine
            fallen += slower(name, record, settings) and slower(name, record, settings)
    except NotComparableError as error:
        print(error, file=sys.stderr)
        return 2
    scale = folder / "scale.json"
    cases = (
        {run["case"]: run for run in json.loads(scale.read_text())["runs"]}
        if scale.exists()
        else {}
    )
    for row in GUARDED:
        if row.case in cases:
            fallen += dearer(row, cases[row.case][row.key]) and dearer(
                row, cases[row.case][row.key]
            )
    for case in HELD:
        if case in cases:
            fallen += misses(case) and misses(case)
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
