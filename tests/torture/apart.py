"""Tries in processes of their own: a try that hangs, takes too much memory or leaves a process behind is known by its name."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 60.0
"""Seconds after which a try hangs."""
MOST_MEMORY = 2 * 2**30
"""Bytes that a process may hold."""

Try = Callable[[Any], str]
"""What is tried; it returns what is wrong, or nothing."""


class Ended(NamedTuple):
    """How a command ended; `wrong` says what must never happen: a hang, an orphan, too much memory."""

    status: int
    err: str
    out: str
    wrong: str


def command(cwd: Path, *argv: str, kill_after: float | None = None) -> Ended:
    """Run the command in a process group of its own, and kill that after some time if it is told to."""
    out, err = cwd / ".out", cwd / ".err"
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _become(cwd, argv, out, err)
    deadline, wrong = started + (PATIENCE if kill_after is None else kill_after), ""
    while True:
        done, code, used = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            wrong = "hang" if kill_after is None else ""
            os.killpg(pid, signal.SIGKILL) if _leads(pid) else os.kill(pid, signal.SIGKILL)
            _, code, used = os.wait4(pid, 0)
            break
        time.sleep(0.005)
    if not wrong and used.ru_maxrss * 1024 > MOST_MEMORY:
        wrong = "memory above 2 GB"
    if _left(pid) and not wrong:
        wrong = "orphan"
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (err, out)]
    for path in (out, err):
        path.unlink(missing_ok=True)
    return Ended(os.waitstatus_to_exitcode(code), texts[0], texts[1], wrong)


def _become(cwd: Path, argv: Sequence[str], out: Path, err: Path) -> None:
    status = 70
    try:
        os.setsid()
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(cwd)
        from coterie.cli.main import main

        status = main(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _leads(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.getpgid(pid) == pid
    return False


def _left(group: int) -> bool:
    """Whether a process of this group lives on a second after its leader; it is killed."""
    for _ in range(50):
        if not _living(group):
            return False
        time.sleep(0.02)
    os.killpg(group, signal.SIGKILL)
    return True


def _living(group: int) -> bool:
    """Whether a process of this group lives; one that has ended may wait for whoever inherited it."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                return True
    return False


def tried(tries: Sequence[Any], attempt: Try, until: float) -> Iterator[tuple[Any, str]]:
    """Each try with what is wrong with it, until the clock shows `until`; a process makes many tries, until one hangs or ends it."""
    left = list(tries)
    while left and time.monotonic() < until:
        mine, theirs = multiprocessing.Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            _attempt(left, attempt, theirs)
        theirs.close()
        count, wrong = 0, ""
        while count < len(left) and (count == 0 or time.monotonic() < until):
            if not mine.poll(PATIENCE):
                wrong = "hang"
                break
            try:
                said = mine.recv_bytes().decode()
            except EOFError:
                wrong = "ended the process"
                break
            yield left[count], said
            count += 1
        mine.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if wrong:
            yield left[count], wrong
            count += 1
        left = left[count:]


def _attempt(tries: Sequence[Any], attempt: Try, pipe: Connection) -> None:
    """Make the tries in this process; what they print goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for one in tries:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wrong = attempt(one)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if not wrong and grown * 1024 > MOST_MEMORY > before * 1024:
            wrong = "memory above 2 GB"
        pipe.send_bytes(wrong.encode())
    os._exit(0)
