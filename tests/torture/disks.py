"""Disks that refuse what a usual one grants: runs there end with the same bytes or one sentence, go on elsewhere, and lose no file.

The command of a try is a process of its own, in which the calls of the system are replaced; see `KINDS`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torture.apart import PLAIN, Ended, Setup, Tries, command
from torture.generated import Generated
from torture.worlds import COMPARE, RESUME, complaint, first_run, numbers

ROOM = 48 * 1024
"""Bytes that are free on the smallest disk; a finished run takes more."""
FOREIGN = {
    "notes.txt": b"what a user wrote beside the run",
    "report/mine.html": b"<p>a page of the user</p>",
    ".run.tmp/kept": b"a folder that has the name of something temporary",
    "checkpoint/mine.bin": bytes(range(256)),
}
"""Files of a user in the folder of a run, by name."""


def refused(number: int) -> Callable[..., Any]:
    """A call of the system that always fails."""

    def refuse(*arguments: object, **options: object) -> Any:
        raise OSError(number, os.strerror(number))

    return refuse


def without_sync(number: int) -> Callable[[], None]:
    def replace() -> None:
        os.fsync = refused(number)

    return replace


def without_sync_of_folders() -> None:
    """A folder cannot be opened, as on some network drives."""
    grant = os.open

    def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if not isinstance(path, int) and os.path.isdir(path):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        return grant(path, flags, *more, **options)

    os.open = opened


def without_locks() -> None:
    fcntl.lockf = refused(errno.ENOLCK)
    fcntl.flock = refused(errno.ENOLCK)


def without_links() -> None:
    os.link = refused(errno.EPERM)
    os.symlink = refused(errno.EPERM)


def without_replacing() -> None:
    """A rename cannot take the place of a file that is there."""
    grant = os.replace

    def replaced(source: Any, target: Any, **options: Any) -> None:
        if os.path.lexists(target):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        grant(source, target, **options)

    os.replace = replaced
    os.rename = replaced


def with_little_room() -> None:
    """Nothing reaches the disk once the folder of the run holds `ROOM` bytes."""
    grant, run = os.fsync, Path.cwd() / "run"

    def synced(file: int) -> None:
        if stat.S_ISREG(os.fstat(file).st_mode) and size_of(run) > ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        grant(file)

    os.fsync = synced


def size_of(folder: Path) -> int:
    """Bytes of all files of a folder; what another process takes away meanwhile is not counted."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue
    return total


class Disk(NamedTuple):
    """What a disk does to a process, and whether a run can end there."""

    before: Callable[[], object]
    carries: bool


KINDS: Mapping[str, Disk] = {
    "no fsync (EINVAL)": Disk(without_sync(errno.EINVAL), True),
    "no fsync (ENOSYS)": Disk(without_sync(errno.ENOSYS), True),
    "no folder can be opened": Disk(without_sync_of_folders, True),
    "no locks": Disk(without_locks, True),
    "no links": Disk(without_links, True),
    "no replacing": Disk(without_replacing, False),
    "48 kB free": Disk(with_little_room, False),
}
USUAL = Disk(lambda: None, True)
FILES_OF_OTHERS = "files of a user"
CASES = "names that differ in case alone"


def expected_end(ended: Ended, disk: Disk) -> str:
    """Say what is wrong with how a whole run on a disk ended, or nothing."""
    if wrong := complaint(ended):
        return wrong
    if disk.carries:
        return f"other: status {ended.status}: {ended.err[-300:]}" * (ended.status != 0)
    told = ended.status in (1, 2) and "coterie: " in ended.err
    if ended.status == 0 or told:
        return ""
    return f"other: status {ended.status} and no sentence: {ended.err[-300:]}"


def differing(folder: Path, expected: Mapping[str, bytes]) -> str:
    found = numbers(folder / "run")
    names = [name for name in expected if found.get(name) != expected[name]]
    return f"silently different: {names[:4]}" if names else ""


def run_on(disk: Disk, folder: Path, expected: Mapping[str, bytes]) -> str:
    """Run an experiment on a disk, then let it go on where all is granted; say what is wrong, or nothing."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    first = command(folder, *COMPARE, setup=Setup(disk.before))
    if wrong := expected_end(first, disk):
        return wrong
    if first.status == 0:
        return differing(folder, expected)
    begun = (folder / "run").exists()
    again = command(folder, *(RESUME if begun else COMPARE), setup=PLAIN)
    if wrong := complaint(again):
        return wrong
    if again.status != 0:
        return f"data lost: status {again.status}: {again.err[-300:]}"
    return differing(folder, expected)


def interrupted_on(
    disk: Disk, folder: Path, expected: Mapping[str, bytes], moment: float
) -> str:
    """Kill a run on a disk that carries it, and let it go on there."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    killed = command(
        folder,
        *COMPARE,
        signal_after=moment,
        number=signal.SIGKILL,
        setup=Setup(disk.before),
    )
    if wrong := complaint(killed):
        return wrong
    begun = (folder / "run").exists()
    again = command(folder, *(RESUME if begun else COMPARE), setup=Setup(disk.before))
    if wrong := expected_end(again, disk):
        return wrong
    return differing(folder, expected)


def beside_foreign_files(
    folder: Path, expected: Mapping[str, bytes], late: bool
) -> str:
    """A user's files lie in the folder of a run, from before it or since it ended: each is there afterwards, byte for byte."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    if late:
        ended = command(folder, *COMPARE)
        if wrong := expected_end(ended, USUAL):
            return wrong
    for name, content in FOREIGN.items():
        path = folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    ended = command(folder, *(RESUME if late else COMPARE))
    if wrong := complaint(ended):
        return wrong
    lost = [
        name
        for name, content in FOREIGN.items()
        if not (folder / "run" / name).is_file()
        or (folder / "run" / name).read_bytes() != content
    ]
    if lost:
        return f"data lost: {lost}, which were the user's"
    if ended.status == 0:
        return differing(folder, expected)
    if ended.status != 2:
        return f"other: status {ended.status}: {ended.err[-300:]}"
    return ""


def alike_but_for_case(folder: Path) -> list[str]:
    """Names in one folder of a run that some disks take for the same."""
    found: list[str] = []
    for place, folders, files in os.walk(folder / "run"):
        folded: dict[str, str] = {}
        for name in [*folders, *files]:
            if (other := folded.setdefault(name.casefold(), name)) != name:
                found.append(f"{Path(place, other)} and {name}")
    return found


def with_names_in_both_cases(fixture: Generated, folder: Path) -> str:
    """Clients `a` and `A`: no two files of a run may need a disk that tells them apart."""
    rows = folder / "rows"
    (rows / "A.csv").write_bytes((rows / "b.csv").read_bytes())
    shutil.rmtree(folder / "run", ignore_errors=True)
    ended = command(folder, *COMPARE)
    (rows / "A.csv").unlink()
    if wrong := complaint(ended):
        return wrong
    if ended.status not in (0, 1, 2):
        return f"other: status {ended.status}: {ended.err[-300:]}"
    alike = alike_but_for_case(folder)
    return f"data lost: {alike[:2]} are one file where case does not count" * bool(
        alike
    )


def tries_of(
    fixture: Generated,
    folder: Path,
    expected: Mapping[str, bytes],
    seconds: float,
    rng: random.Random,
) -> Iterator[tuple[str, str]]:
    """Each kind of disk once, and on one of those that carry a run a kill; what was tried, and what is wrong."""
    for name, disk in KINDS.items():
        yield name, run_on(disk, folder, expected)
    name = rng.choice([name for name, disk in KINDS.items() if disk.carries])
    moment = rng.uniform(0, seconds)
    yield f"{name}, killed", interrupted_on(KINDS[name], folder, expected, moment)
    for late in (False, True):
        yield FILES_OF_OTHERS, beside_foreign_files(folder, expected, late)
    yield CASES, with_names_in_both_cases(fixture, folder)


def disks(rng: random.Random, folder: Path, methods: list[str], until: float) -> Tries:
    """Generated experiments on every kind of disk."""
    number = 0
    while time.monotonic() < until:
        number += 1
        base = folder / f"disk-{number}"
        fixture, whole, seconds = first_run(
            rng, base, methods[(number - 1) % len(methods)]
        )
        if whole.status == 0:
            expected = numbers(base / "run")
            for what, wrong in tries_of(fixture, base, expected, seconds, rng):
                covers = (*fixture.methods, *fixture.covers, f"disk: {what}")
                yield (what, fixture.tables), wrong, covers
                if time.monotonic() > until:
                    break
        elif wrong := complaint(whole):
            yield fixture.tables, wrong, fixture.methods
        shutil.rmtree(base)
