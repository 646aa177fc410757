"""A site's own log: one line of JSON for each request, each carrying a hash of itself and of the line before it.

A line that is changed, removed or put in between breaks the chain at that place. Lines removed from the end are noticed by whoever
has noted the last hash, which `coterie site log` prints.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.core.errors import InputError

__all__ = ["Log", "entries", "verified"]

_START = "0" * 64


class Log:
    """An append-only log. Several processes may write it: a new worker may start before an old one has ended.

    Args:
        path: the file; a file that is there is continued.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end, self._chain = 0, _START

    def write(self, **values: Any) -> None:
        """Append one entry, with the time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if file.seek(0, os.SEEK_END) != self._end:  # somebody else has written since
                last = deque(entries(self.path), maxlen=1)
                self._chain = str(last[0].get("chain")) if last else _START
            entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **values}
            self._chain = _link(self._chain, entry)
            file.write(json.dumps({**entry, "chain": self._chain}) + "\n")
            file.flush()
            self._end = file.tell()


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a log, oldest first; a line that is not an entry comes as {}."""
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            yield entry if isinstance(entry, dict) else {}


def verified(path: Path) -> tuple[int, str]:
    """Number of entries and the last hash. Raises `InputError` that names the first line that breaks the chain."""
    chain, count = _START, 0
    for count, entry in enumerate(entries(path), start=1):
        said = entry.pop("chain", None)
        chain = _link(chain, entry)
        if said != chain:
            raise InputError(
                f"{path}: line {count} does not continue the line before it; somebody has changed, removed or added a line there"
            )
    return count, chain


def _link(before: str, entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{before}\n{json.dumps(entry)}".encode()).hexdigest()
