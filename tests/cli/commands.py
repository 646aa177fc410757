"""How the tests of the command run it: in this process, or in forked children of one warm process (`driver.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import coterie

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TIMED = {"timing.csv", "environment.json", "report.html"}
"""Files that a clock has a part in."""


class Ended(NamedTuple):
    status: int
    out: str
    err: str
    seconds: float


def one_split(argv: Sequence[str]) -> list[str]:
    """A comparison of one split a seed, unless it says how many folds there are: these tests are about what stands in files."""
    compares = argv[:1] == ("compare",) and not {"--folds", "--help"} & {*argv}
    return [*argv, *(("--folds", "0") if compares else ())]


class Driver:
    """The warm process. A negative status is the signal that ended the command."""

    def __init__(self, logs: Path) -> None:
        self._log = logs / "job"
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "driver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def __call__(
        self,
        cwd: Path,
        *argv: str,
        arm: dict[str, Any] | None = None,
        delay: float | None = None,
    ) -> Ended:
        job = {
            "argv": one_split(argv),
            "cwd": str(cwd),
            "log": str(self._log),
            "arm": arm,
            "delay": delay,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        ended = json.loads(self._process.stdout.readline())
        out, err = (Path(f"{self._log}.{end}").read_text() for end in ("out", "err"))
        return Ended(ended["status"], out, err, ended["seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def environment() -> dict[str, str]:
    """The environment of a user's shell in which this checkout is installed."""
    source = str(Path(coterie.__file__).parent.parent)
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COVERAGE"))
    }
    return {
        **kept,
        "PYTHONPATH": source,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error",
    }


def subprocess_run(
    cwd: Path, *argv: str, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "coterie", *argv],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def contents(run: Path) -> dict[str, bytes]:
    """All files of a run directory that are functions of the seed, without the checkpoints."""
    files = sorted(
        p
        for p in run.rglob("*")
        if p.is_file() and "checkpoint" not in p.relative_to(run).parts
    )
    return {
        str(p.relative_to(run)): p.read_bytes() for p in files if p.name not in TIMED
    }
