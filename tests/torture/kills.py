"""Runs of generated experiments get a signal at a random moment, or lose what had not reached the disk; then they go on."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from coterie.base.files import read_toml
from torture.apart import Ended, Setup, Tries, command, real_command
from torture.generated import Generated
from torture.worlds import COMPARE, RESUME, complaint, first_run, numbers

SIGNALS = {
    "KILL": signal.SIGKILL,
    "TERM": signal.SIGTERM,
    "INT": signal.SIGINT,
    "HUP": signal.SIGHUP,
    "QUIT": signal.SIGQUIT,
    "STOP and CONT": signal.SIGSTOP,
    "power loss": signal.SIGKILL,
}
"""What happens to a run; a power loss is SIGKILL after which each file is as it was when it reached the disk last."""
DISK = ".disk"
"""Folder beside a run with each of its files as it reached the disk."""


class Try(NamedTuple):
    """One interruption of a run: by the clock, or at a step, the replacing of a file; the run that goes on may be killed, too.

    Attributes:
        fixture: the experiment.
        signal: which of `SIGNALS`.
        moment: seconds after which it comes.
        group: whether workers and jobs get it, too.
        real: whether the run is a process of its own and not forked.
        step: at which step of a process the signal comes instead; 0: at none. It is negative where the file is not yet replaced.
        second: seconds after which the run that goes on is killed; 0: it is not.
    """

    fixture: Generated
    signal: str
    moment: float
    group: bool
    real: bool
    step: int
    second: float


def remember_disk() -> None:
    """Let this process copy each file beside the run when it reaches the disk, by `os.fsync` and after that by `os.replace`."""
    fsync, replace, unlink, here = os.fsync, os.replace, os.unlink, Path.cwd()

    def place(path: str | os.PathLike[str]) -> Path | None:
        absolute = Path(path).resolve()
        return (
            here / DISK / absolute.relative_to(here / "run")
            if absolute.is_relative_to(here / "run")
            else None
        )

    def watched_fsync(number: int) -> None:
        fsync(number)
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        copy = place(path)
        if copy is not None and path.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            half = copy.with_name(copy.name + ".half")
            shutil.copyfile(path, half)
            replace(half, copy)

    def watched_replace(
        source: str | os.PathLike[str], target: str | os.PathLike[str]
    ) -> None:
        copies = place(source), place(target)
        replace(source, target)
        if copies[0] is not None and copies[1] is not None and copies[0].exists():
            replace(copies[0], copies[1])

    def watched_unlink(path: str | os.PathLike[str], **options: int) -> None:
        copy = place(path) if not options else None
        unlink(path, **options)
        if copy is not None and copy.is_file():
            unlink(copy)

    os.fsync, os.replace = watched_fsync, watched_replace
    os.unlink = watched_unlink  # type: ignore[assignment]


def kill_at(step: int, group: bool) -> None:
    """Let a process of this group kill all of them, or the first, at its step: after it, or before it if the number is negative."""
    replace, steps = os.replace, itertools.count(1)
    killed = -os.getpgrp() if group else os.getpgrp()

    def watched_replace(
        source: str | os.PathLike[str], target: str | os.PathLike[str]
    ) -> None:
        number = next(steps)
        if number == -step:
            os.kill(killed, signal.SIGKILL)
        replace(source, target)
        if number == step:
            os.kill(killed, signal.SIGKILL)

    os.replace = watched_replace


def lose_power(folder: Path) -> None:
    """Put every file of a run back to what had reached the disk."""
    for path in [path for path in (folder / "run").rglob("*") if path.is_file()]:
        copy = folder / DISK / path.relative_to(folder / "run")
        if copy.is_file():
            shutil.copyfile(copy, path)
        else:
            path.unlink()
    shutil.rmtree(folder / DISK, ignore_errors=True)


def saved_rounds(run: Path) -> dict[str, bytes]:
    """What the pairs of a run have saved of each round, without its seconds and bytes.

    A resumed run ends with the rows that it has in memory. What it has saved must be the same, or it could not go on once more.
    """
    found = {}
    for path in sorted((run / "checkpoint").glob("*/history.jsonl")):
        # A line for each save, which comes by the clock: what it holds counts, not how it is divided.
        kept: dict[str, Any] = {}
        for line in map(json.loads, path.read_bytes().splitlines()):
            for key, value in line.items():
                if key in ("seconds", "asks"):
                    continue
                if isinstance(value, list):
                    kept.setdefault(key, []).extend(value)
                else:
                    kept[key] = value
        found[str(path.relative_to(run))] = json.dumps(kept).encode()
    return found


def interrupt(one: Try, folder: Path, expected: dict[str, bytes]) -> str:
    """Begin a run, interrupt it, let it go on, and say what is wrong, or nothing."""
    shutil.rmtree(folder / "run", ignore_errors=True)

    def watch() -> None:
        if one.signal == "power loss":
            remember_disk()
        if one.step:
            kill_at(one.step, one.group)

    setup, moment = Setup(watch), None if one.step else one.moment
    call = real_command if one.real else command
    ended = call(
        folder,
        *COMPARE,
        signal_after=moment,
        number=SIGNALS[one.signal],
        group=one.group,
        setup=setup,
    )
    if wrong := _after_signal(one, ended):
        return wrong
    if one.signal == "power loss":
        lose_power(folder)
    saved = folder / "run" / "experiment.toml"
    by_file = saved.exists() and (folder / "run" / "checkpoint").is_dir() and one.group
    again = (
        ("run", "run/experiment.toml", "--resume", "--no-report") if by_file else RESUME
    )
    if one.second and (
        wrong := complaint(command(folder, *again, signal_after=one.second))
    ):
        return wrong
    resumed = command(folder, *again)
    if wrong := complaint(resumed):
        return wrong
    if resumed.status != 0:
        return f"data lost: status {resumed.status}: {resumed.err[-300:]}"
    if left := [path.name for path in (folder / "run").rglob(".*.tmp*")]:
        return f"other: {left} left behind"
    found = numbers(folder / "run") | saved_rounds(folder / "run")
    differ = sorted(
        name for name in {*found, *expected} if found.get(name) != expected.get(name)
    )
    return f"silently different: {differ[:4]}" if differ else ""


def _after_signal(one: Try, ended: Ended) -> str:
    if wrong := complaint(ended):
        return wrong
    allowed = {"STOP and CONT": (0,), "INT": (0, 130, -2), "power loss": (0, -9)}.get(
        one.signal, (0, -int(SIGNALS[one.signal]))
    )
    return (
        ""
        if ended.status in allowed
        else f"other: status {ended.status} after {one.signal}: {ended.err[-300:]}"
    )


def _unexpected_end(whole: Ended) -> str:
    """Say how a first run ended that was neither refused nor stopped for want of an attacker's replies, or nothing."""
    stopped = whole.status == 2 or "Correct or remove these clients" in whole.err
    return "" if stopped else f"other: status {whole.status}: {whole.err[-300:]}"


def compare_settings(fixture: Generated, written: Path) -> str:
    """Say which settings a run has not written down as they were given, or nothing."""
    tables = read_toml(written)
    given = [
        (table, key, value)
        for table in ("local", "run", "data")
        for key, value in fixture.tables[table].items()
        if key != "jobs"
    ]
    differing = [
        f"{table}.{key}"
        for table, key, value in given
        if tables.get(table, {}).get(key) != value
    ]
    return (
        f"silently different: experiment.toml has not {differing}" if differing else ""
    )


def kills(rng: random.Random, folder: Path, methods: list[str], until: float) -> Tries:
    """Interruptions of generated experiments, five of each."""
    number = 0
    names = [*SIGNALS]
    turn = rng.randrange(len(names))
    while time.monotonic() < until:
        number += 1
        base = folder / f"kill-{number}"
        fixture, whole, seconds = first_run(
            rng, base, methods[(number - 1) % len(methods)]
        )
        if whole.status == 0:
            expected = numbers(base / "run") | saved_rounds(base / "run")
            if wrong := compare_settings(fixture, base / "run" / "experiment.toml"):
                yield fixture.tables, wrong, fixture.methods
            run = fixture.tables["run"]
            pairs = 1 if "jobs" in run else len(fixture.methods) * len(run["seeds"])
            for _ in range(5):
                if time.monotonic() > until:
                    break
                turn += 1
                name = names[turn % len(names)]
                real = rng.random() < 0.08 and name != "power loss"
                moment = rng.uniform(0, seconds * 1.1 + (2.5 if real else 0.0))
                group = rng.random() < (0.25 if "jobs" in fixture.covers else 0.5)
                at_step = (
                    SIGNALS[name] == signal.SIGKILL and not real and rng.random() < 0.75
                )
                step = (
                    rng.choice((-1, -1, 1)) * rng.randint(1, 12 + 9 * pairs)
                    if at_step
                    else 0
                )
                second = rng.uniform(0, seconds) if rng.random() < 0.3 else 0.0
                one = Try(fixture, name, moment, group, real, step, second)
                wrong = interrupt(one, base, expected)
                covers = (
                    *fixture.methods,
                    *fixture.covers,
                    f"signal: {name}",
                    *(["real command"] if real else []),
                )
                yield (*one[1:], fixture.tables), wrong, covers
        elif wrong := complaint(whole) or _unexpected_end(whole):
            yield fixture.tables, wrong, fixture.methods
        shutil.rmtree(base)
