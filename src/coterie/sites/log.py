"""A site's own log: one line of JSON for each request, each carrying a hash of itself and of the line before it.

A line that is changed, removed or put in between breaks the chain at that place. Lines removed from the end are noticed by whoever
has noted the last hash, which `coterie site log` prints. What a power cut leaves of a line stays where it is: the next entry names its
hash, and continues the last whole line. An entry is on the disk before anybody is answered.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from coterie.base.errors import InputError

TORN = "torn"
_START = "0" * 64
_PIECE = 1 << 20
"""Bytes of the reserve that are given back when the disk is full, and that are read at once."""


def cannot_write(error: OSError) -> str:
    """Return the sentence with which a site refuses whatever it cannot log."""
    return f"its site cannot write its log ({error.strerror}), and refuses every request until it can"


def heads_file(log: Path) -> Path:
    """Return where the heads of a log lie that the server has signed."""
    return log.with_name(f"{log.name}.heads")


class Log:
    """An append-only log. Several processes may write it: a new worker may start before an old one has ended.

    Args:
        path: the file; a file that is there is continued.
        reserve: bytes of disk that are kept beside it for urgent lines, where there is room.
    """

    def __init__(self, path: Path, reserve: int = 0) -> None:
        self.path = path
        self._reserve = path.with_name(f"{path.name}.reserve")
        if reserve:
            self._keep(reserve)
        self._end, self._chain = 0, _START

    def _keep(self, size: int) -> None:
        """Take room on the disk while there is some; a log without reserve refuses earlier, and nothing else."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._reserve, "ab") as file:
                if file.tell() < size:
                    os.posix_fallocate(file.fileno(), 0, size)

    def write(self, *, urgent: bool = False, **values: Any) -> None:
        """Append one entry, with the time; it is on the disk when this returns.

        Where the disk is full, an urgent entry takes its room from the reserve. Raises `OSError` where the file cannot be written.
        """
        with self.locked() as file:
            self.append(file, urgent=urgent, **values)

    @contextmanager
    def locked(self) -> Iterator[FileIO]:
        """The file, for `append`, while no other process writes it. Raises `OSError` where it can be neither opened nor locked."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            is_new = not self.path.exists()
            # Without a buffer: what a full disk has not taken must not be written again when the file is closed.
            with open(self.path, "a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not self._is_current(file):
                    continue
                if is_new:
                    _sync_folder(self.path.parent)
                yield file
                return

    def _is_current(self, file: FileIO) -> bool:
        """Return False if somebody has moved the file away while this process waited for the lock."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
        except FileNotFoundError:
            return False

    def append(
        self, file: FileIO, *, urgent: bool = False, durable: bool = True, **values: Any
    ) -> None:
        """Append one entry to the file that `locked` gave; otherwise as `write`. If not `durable`, the next that is takes it along."""
        try:
            self._append(file, values, durable)
        except OSError as error:
            if not urgent or error.errno != errno.ENOSPC or not self._reserve.exists():
                raise
            os.truncate(self._reserve, max(0, self._reserve.stat().st_size - _PIECE))
            self._append(file, values, durable)

    def _append(self, file: FileIO, values: Mapping[str, Any], durable: bool) -> None:
        torn, chain = b"", self._chain
        if file.seek(0, os.SEEK_END) != self._end:  # somebody else has written since
            chain, torn = _read_end(self.path)
        addition = b""
        if torn:
            addition, chain = _line(
                chain,
                what=TORN,
                bytes=len(torn),
                sha256=hashlib.sha256(torn).hexdigest(),
            )
        line, chain = _line(chain, **values)
        remaining = b"\n" * bool(torn) + addition + line
        while remaining:
            remaining = remaining[file.write(remaining) :]
        if durable:
            os.fsync(file.fileno())
        self._end, self._chain = file.tell(), chain


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a log, oldest first; a line that is not an entry comes as {}."""
    if path.exists():
        with open(path, "rb") as lines:
            yield from map(entry_of, lines)


class Verified(NamedTuple):
    """The result of verifying a log.

    Attributes:
        entries: how many there are.
        last: the last hash.
        torn: number, and bytes, of each line of which something is missing at its end.
    """

    entries: int
    last: str
    torn: tuple[tuple[int, int], ...]


def verify_log(path: Path) -> Verified:
    """The entries that continue each other. Raises `InputError` that names the first line that breaks the chain."""
    lines = [b""]
    if path.exists():
        lines = path.read_bytes().split(b"\n")
    chain, count, torn = _START, 0, []
    for number, (line, next_line) in enumerate(pairwise(lines), start=1):
        if _names_torn(entry_of(next_line), line):
            torn.append((number, len(line)))
            continue
        entry = entry_of(line)
        line_chain = entry.pop("chain", None)
        chain, count = _link(chain, entry), count + 1
        if line_chain != chain:
            raise InputError(
                f"{path}: line {number} does not continue the line before it; somebody has changed, removed or added a line there"
            )
    if lines[-1]:
        torn.append((len(lines), len(lines[-1])))
    return Verified(count, chain, tuple(torn))


def _sync_folder(folder: Path) -> None:
    """Let the name of a new file outlive a power cut. Some file systems refuse that for folders; lines are synced in any case."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _line(chain: str, **values: Any) -> tuple[bytes, str]:
    """A line that continues a chain, and its hash."""
    entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **values}
    chain = _link(chain, entry)
    return json.dumps({**entry, "chain": chain}).encode() + b"\n", chain


def entry_of(line: bytes) -> dict[str, Any]:
    """Return the entry in a line of a log; {} for a line that holds none."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(entry, dict):
        return {}
    return entry


def _names_torn(entry: Mapping[str, Any], line: bytes) -> bool:
    """Return True if an entry says that the line before it is torn."""
    return (
        entry.get("what") == TORN
        and entry.get("sha256") == hashlib.sha256(line).hexdigest()
    )


def last_hash(path: Path) -> str:
    """Return the hash in the last line of a log."""
    return _read_end(path)[0]


def _read_end(path: Path) -> tuple[str, bytes]:
    """Return the hash in the last line that has an end, and what follows it, without reading the file from its beginning."""
    if not path.exists():
        return _START, b""
    with open(path, "rb") as file:
        begin = file.seek(0, os.SEEK_END)
        end = b""
        while begin and end.count(b"\n") < 2:
            length = min(_PIECE, begin)
            begin -= length
            file.seek(begin)
            end = file.read(length) + end
    *lines, torn = end.split(b"\n")
    if not lines:
        return _START, torn
    return str(entry_of(lines[-1]).get("chain")), torn


def _link(last_chain: str, entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{last_chain}\n{json.dumps(entry)}".encode()).hexdigest()
