"""`make same-bits BASE=<commit>`: does this tree compute the bits that another commit computes, for every method?

Both trees are run on this machine by the cases of `same_bits_cases.py`: every method on three small problems, every attack and
sampler, personalisation, many clients, one and two workers, Ray where it is installed, `coterie compare` and `coterie run`. Compared
are values by case, method, seed, client, split, round and column as hex floats, and tensors of models by name, never bytes of files,
so that files, columns and code may move. What only the present tree has is counted and passed over.

It is in neither `make test` nor CI: other instruction sets, and other versions of torch, sum in another order and give other bits, so
that nothing recorded elsewhere could be compared with. Recordings of a base are kept in `build/same-bits` of the main checkout, for
all its worktrees.

    python -m benchmarks.same_bits BASE [--only PATTERN]
    python -m benchmarks.same_bits record OUT.json [--only PATTERN]    # the tree whose `src` is on PYTHONPATH

Exit status: 0 the same bits, 1 others, 2 the base could not be recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

import coterie
from benchmarks import same_bits_cases
from benchmarks.same_bits_cases import GROUPS, Key, Recording, record
from benchmarks.trees import ROOT, GitError, commit_of, git, worktree

SHOWN = 20
"""Differences that are printed."""


class RecordingError(Exception):
    """A tree cannot be recorded."""


# ---- compare


class Compared(NamedTuple):
    """Keys of the base with what is wrong with each, how much is equal, and how much only the present tree has."""

    failures: dict[Key, str]
    values: int
    tensors: int
    new: int


def compare(base: Recording, present: Recording) -> Compared:
    """Look for everything of the base in the present recording."""
    failures: dict[Key, str] = {}
    count = Counter[bool]()
    for key, was in base.found.items():
        now = present.found.get(key)
        if now is None:
            failures[key] = f"MISSING, was {_readable(was)}"
        elif now != was:
            failures[key] = f"{_readable(was)} became {_readable(now)}"
        else:
            count[key.place == "model"] += 1
    return Compared(
        failures,
        count[False],
        count[True],
        len(present.found.keys() - base.found.keys()),
    )


def _readable(text: str) -> str:
    """A hex float with its decimal form, other values as they are."""
    return f"{text} ({float.fromhex(text):.17g})" if "0x" in text else text


def show(found: Compared) -> None:
    """Print what was compared: some of the differences and in which cases they are, or that there are none."""
    if found.failures:
        for key, what in list(found.failures.items())[:SHOWN]:
            print(
                f"{', '.join(f'{k} {v}' for k, v in key._asdict().items() if v)}: {what}"
            )
        hidden = len(found.failures) - SHOWN
        if hidden > 0:
            print(f"... and {hidden} more")
        print("by case:")
        for case, number in Counter(key.case for key in found.failures).items():
            print(f"  {number:6d}  {case}")
    new = (
        f"; {found.new} are new in the present tree and were passed over"
        if found.new
        else ""
    )
    print(
        f"equal: {found.values} values and {found.tensors} tensors; MISSING or different: {len(found.failures)}{new}"
    )


# ---- record


def record_here(
    out: Path, groups: Iterable[str], pattern: str, source: Path | None
) -> None:
    """Record the tree whose `src` is on PYTHONPATH, which must be `source`."""
    present = Path(coterie.__file__).resolve().parent.parent
    if source is not None and present != source.resolve():
        raise SystemExit(f"coterie comes from {present}, not from {source}")
    recording, broken = record(groups, pattern)
    sys.stderr.writelines(f"{text}\n" for text in broken)
    recording.write(out, {"broken": len(broken), **_conditions()})


def _conditions() -> dict[str, Any]:
    """What else the bits, or what is recorded of them, depend on."""
    versions = {}
    for package in ("torch", "numpy", "scipy", "scikit-learn", "clarabel", "ray"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    cases = hashlib.blake2b(
        Path(same_bits_cases.__file__).read_bytes(), digest_size=16
    ).hexdigest()
    machine = [platform.node(), torch.backends.cpu.get_cpu_capability()]
    return {
        "python": platform.python_version(),
        "machine": machine,
        "versions": versions,
        "cases": cases,
    }


def _record_tree(tree: Path, pattern: str) -> tuple[Recording, int]:
    """Record a tree by the cases of this one, each group in a process of its own; also how many cases broke."""
    begun = time.perf_counter()
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "OMP_NUM_THREADS": "1",
    }
    found, broken = Recording(), 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.same_bits", "record"]
        started = {}
        for group in GROUPS:
            out = Path(folder) / f"{group}.json"
            words = [
                *command,
                str(out),
                "--group",
                group,
                "--only",
                pattern,
                "--source",
                str(tree / "src"),
            ]
            started[out] = subprocess.Popen(words, cwd=ROOT, env=environment)
        statuses = [process.wait() for process in started.values()]
        if any(statuses):
            raise RecordingError(
                f"recording ended with {', '.join(map(str, statuses))}"
            )
        for out in started:
            part, about = Recording.read(out)
            found.found.update(part.found)
            broken += about["broken"]
    print(
        f"recorded {len(found.found)} values and tensors in {time.perf_counter() - begun:.0f} s",
        flush=True,
    )
    return found, broken


def _base(name: str, pattern: str) -> Recording:
    """The recording of a commit: the one that is kept, if nothing that it depends on has changed, or a new one of all cases."""
    commit = commit_of(name)
    path = _build() / f"{commit}.json"
    if path.exists():
        found, about = Recording.read(path)
        if about == {"broken": 0, **_conditions()}:
            return found.matching(pattern)
    with worktree(commit, _build() / f"tree-{commit[:12]}-{os.getpid()}") as tree:
        print(f"recording the base {commit[:12]}", flush=True)
        found, broken = _record_tree(tree, "*")
    if broken:
        raise RecordingError(
            f"{broken} cases break; mend them in {Path(same_bits_cases.__file__).name}"
        )
    found.write(path, {"broken": 0, **_conditions()})
    return found.matching(pattern)


def _build() -> Path:
    return (
        Path(git("rev-parse", "--path-format=absolute", "--git-common-dir")).parent
        / "build"
        / "same-bits"
    )


# ---- the command


def main() -> int:
    """Compare the present tree with a base, or record one tree."""
    parser = argparse.ArgumentParser(
        prog="same_bits", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument(
        "base", help="a commit; or `record`, to write the recording OUT of one tree"
    )
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="cases, e.g. 'attacks/*'"
    )
    parser.add_argument(
        "--group", choices=GROUPS, action="append", help="of cases; left out: all"
    )
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.base == "record":
        if arguments.out is None:
            parser.error("say where to write the recording")
        record_here(
            arguments.out, arguments.group or GROUPS, arguments.only, arguments.source
        )
        return 0
    try:
        base = _base(arguments.base, arguments.only)
    except (GitError, RecordingError) as error:
        print(f"the base: {error}", file=sys.stderr)
        return 2
    print("recording the present tree", flush=True)
    try:
        present, _ = _record_tree(ROOT, arguments.only)
    except RecordingError as error:
        print(f"the present tree: {error}", file=sys.stderr)
        return 1
    if not base.found:
        print(f"no case fits {arguments.only!r}", file=sys.stderr)
        return 2
    found = compare(base, present)
    show(found)
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
