"""Faults that are planted in a copy of coterie, to see that a campaign finds them: `python -m torture --planted`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MINUTES = 10
"""Within which a campaign must find a planted fault."""


class Planted(NamedTuple):
    """A term of a file under src/coterie, what stands there instead, and a word of the campaign that is to find it."""

    what: str
    file: str
    term: str
    instead: str
    campaign: str


FAULTS = (
    Planted(
        "server rows are not in the record",
        "run/provenance.py",
        "    if clients.server is not None:\n        tree[",
        "    if False:\n        tree[",
        "world",
    ),
    Planted(
        "a field is left out of the spelling",
        "config/schema.py",
        "    return {k: v for option in options_of(type(value)) for",
        '    return {k: v for option in options_of(type(value)) if option.name != "weight_decay" for',
        "interrupted",
    ),
    Planted(
        "the history of a saved round is not flushed to the disk",
        "run/checkpoint.py",
        "                os.fsync(file.fileno())\n",
        "                pass\n",
        "interrupted",
    ),
)


def hunt(fault: Planted) -> tuple[bool, float, str]:
    """Plant a fault in a copy and run its campaign until it finds something: whether it did, in how many seconds, and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "benchmarks"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        path = copy / "src" / "coterie" / fault.file
        text = path.read_text()
        if text.count(fault.term) != 1:
            raise ValueError(f"{fault.file} has the term of {fault.what!r} {text.count(fault.term)} times")
        path.write_text(text.replace(fault.term, fault.instead))
        started = time.monotonic()
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "torture",
                "--only",
                fault.campaign,
                "--minutes",
                str(MINUTES),
                "--first",
                "--no-page",
            ],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(copy / "src"), str(copy / "tests")))},
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode == 1, time.monotonic() - started, ended.stdout + ended.stderr


def hunt_all() -> Iterator[str]:
    """Lines that say how each planted fault was found."""
    for fault in FAULTS:
        found, seconds, text = hunt(fault)
        verdict = f"found after {seconds:.0f} s" if found else "NOT FOUND"
        yield f"{fault.what}: {verdict}\n{text}"
