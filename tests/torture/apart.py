"""Tries in processes of their own: a try that hangs, takes too much memory or leaves a process behind is known by its name."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 900.0
"""Seconds after which a try hangs: many, since other programs may have most of the machine."""
SHORT_PATIENCE = 300.0
"""Seconds after which a try within a process hangs."""
MOST_MEMORY = 2 * 2**30
"""Bytes that a process may hold."""

Try = Callable[[Any], str]
"""What is tried; it returns what is wrong, or nothing."""
Tries = Generator[tuple[Any, str, tuple[str, ...]], None, None]
"""Each try, what is wrong with it, and words for what it covers."""


class Ended(NamedTuple):
    """How a command ended; `wrong` says what must never happen: a hang, an orphan, too much memory."""

    status: int
    err: str
    out: str
    wrong: str


class Setup(NamedTuple):
    """The surroundings of a command: what is done before it in its process, and variables of its environment."""

    before: Callable[[], object] | None = None
    environment: tuple[tuple[str, str], ...] = ()


PLAIN = Setup()


def command(
    cwd: Path,
    *argv: str,
    signal_after: float | None = None,
    number: int = signal.SIGKILL,
    group: bool = True,
    setup: Setup = PLAIN,
) -> Ended:
    """Run the command in a process group of its own, forked from this process.

    Args:
        cwd: Its folder.
        argv: Its arguments.
        signal_after: Seconds after which it gets a signal; None: none.
        number: Which signal; after SIGSTOP comes SIGCONT.
        group: Whether its workers get the signal too.
        setup: Its surroundings.
    """
    out, err = cwd / ".out", cwd / ".err"
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _become(cwd, argv, out, err, setup)
    return _wait(pid, started, out, err, signal_after, number, group)


def real_command(
    cwd: Path,
    *argv: str,
    signal_after: float | None = None,
    number: int = signal.SIGKILL,
    group: bool = True,
    setup: Setup = PLAIN,
) -> Ended:
    """Run `python -m coterie` as a process of its own; arguments of `command`."""
    out, err = cwd / ".out", cwd / ".err"
    started = time.monotonic()
    with open(out, "wb") as out_file, open(err, "wb") as err_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "coterie", *argv],
            cwd=cwd,
            env={**os.environ, **dict(setup.environment)},
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=err_file,
            start_new_session=True,
        )
    ended = _wait(process.pid, started, out, err, signal_after, number, group)
    process.returncode = ended.status
    return ended


def _wait(
    pid: int,
    started: float,
    out: Path,
    err: Path,
    signal_after: float | None,
    number: int,
    group: bool,
) -> Ended:
    due = None if signal_after is None else started + signal_after
    deadline, wrong = started + PATIENCE, ""
    while True:
        done, code, used = os.wait4(pid, os.WNOHANG)
        if done:
            break
        if due is not None and time.monotonic() > due:
            due = None
            _send(pid, number, group)
            if number == signal.SIGSTOP:
                time.sleep(0.3)
                _send(pid, signal.SIGCONT, group)
        if time.monotonic() > deadline:
            wrong = "hang"
            _send(pid, signal.SIGKILL, True)
            _, code, used = os.wait4(pid, 0)
            break
        time.sleep(0.005)
    if not wrong and used.ru_maxrss * 1024 > MOST_MEMORY:
        wrong = "memory above 2 GB"
    while _living(pid, dying=True):
        time.sleep(0.002)
    run = out.parent / "run"
    saved = _times(run)
    if _left(pid) and not wrong:
        wrong = "orphan"
    if (
        late := [name for name, when in _times(run).items() if saved.get(name) != when]
    ) and not wrong:
        wrong = f"orphan: something wrote {late[:3]} after its command had ended"
    texts = [
        path.read_text(errors="replace") if path.exists() else "" for path in (err, out)
    ]
    for path in (out, err):
        path.unlink(missing_ok=True)
    return Ended(os.waitstatus_to_exitcode(code), texts[0], texts[1], wrong)


def _send(pid: int, number: int, group: bool) -> None:
    os.killpg(pid, number) if group and _leads(pid) else os.kill(pid, number)


def _become(cwd: Path, argv: Sequence[str], out: Path, err: Path, setup: Setup) -> None:
    status, began = 70, False
    try:
        os.setsid()
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(cwd)
        sys.path.insert(0, str(cwd))  # as of `python -m coterie`
        sys.argv = ["coterie", *argv]
        from coterie.__main__ import main

        os.environ.update(setup.environment)
        if setup.before is not None:
            setup.before()
        began = True
        status = main()
    except BaseException as error:
        status = 130 if isinstance(error, KeyboardInterrupt) and not began else status
        if status != 130:
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
    """Whether a process of this group lives on five seconds after its leader; it is killed."""
    for _ in range(250):
        if not _living(group):
            return False
        time.sleep(0.02)
    os.killpg(group, signal.SIGKILL)
    return True


def _times(folder: Path) -> dict[str, int]:
    """When each file of a folder was written last."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found[str(path)] = path.stat().st_mtime_ns
    return found


def _living(group: int, *, dying: bool = False) -> bool:
    """Whether a process of this group lives; one that has ended may wait for whoever inherited it.

    With `dying` only one counts for which SIGKILL waits: the system kills jobs together with their command, and they write no more.
    """
    for process in filter(
        str.isdigit, os.listdir("/proc")
    ):  # a glob asks of each whether it exists, and fails with one that ends
        with contextlib.suppress(OSError):
            state, _, its_group = (
                Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:3]
            )
            if (
                int(its_group) == group
                and state != "Z"
                and (not dying or _killed(process))
            ):
                return True
    return False


def _killed(process: str) -> bool:
    """Whether SIGKILL waits for a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    pending = [
        int(line.split()[1], 16)
        for line in lines
        if line.startswith(("SigPnd", "ShdPnd"))
    ]
    return any(signals >> (signal.SIGKILL - 1) & 1 for signals in pending)


def attempt_all(
    tries: Sequence[Any], attempt: Try, until: float
) -> Generator[tuple[Any, str], None, None]:
    """Each try with what is wrong with it, until the clock shows `until`; a process makes many tries, until one hangs or ends it."""
    left = list(tries)
    while left and time.monotonic() < until:
        mine, theirs = multiprocessing.Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            _attempt(left, attempt, theirs)
        theirs.close()
        count, wrong = 0, ""
        try:
            while count < len(left) and (count == 0 or time.monotonic() < until):
                if not mine.poll(SHORT_PATIENCE):
                    wrong = "hang"
                    break
                try:
                    said = mine.recv_bytes().decode()
                except EOFError:
                    wrong = "ended the process"
                    break
                yield left[count], said
                count += 1
        finally:  # also where whoever takes the tries wants no more
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
