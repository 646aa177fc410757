"""The refusals of the gate, as counted lines of a log: one a minute and sender, so that nobody fills the disk."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from coterie.base.errors import visible
from coterie.sites.log import Log

MINUTE = 60.0
LONGEST = 200
"""Characters of a text in a line."""


@dataclass
class _Sender:
    """Refusals of one sender: how many no line speaks of yet, when the last line was written, and the latest reason."""

    unsaid: int = 0
    said_at: float = field(default=-MINUTE)
    what: str = ""
    why: str = ""


class Refusals:
    """Counts refusals by sender: the name that the sender has proven, of which there are as many as certificates.

    Args:
        log: the file that gets the lines.
        wait: called with seconds until lines of the next minute are written; a test does not wait.

    Attributes:
        total: how many there were.
    """

    def __init__(self, log: Path, wait: Callable[[float], None] = time.sleep) -> None:
        self.total = 0
        self._log, self._wait = log, wait
        self._senders: dict[str, _Sender] = {}
        self._lock = threading.RLock()  # a signal may come while a line is written
        self._is_waiting = False

    def note(self, sender: str, what: str, why: str) -> None:
        """Count a refusal, and write the line of this sender if the last one is a minute old."""
        now = time.monotonic()
        with self._lock:
            self.total += 1
            refused = self._senders.setdefault(sender, _Sender())
            refused.unsaid, refused.what, refused.why = refused.unsaid + 1, what, why
            if now >= refused.said_at + MINUTE:
                self._write(sender, refused, now)
            elif not self._is_waiting:
                self._is_waiting = True
                threading.Thread(
                    target=self._write_later, name="coterie-refusals", daemon=True
                ).start()

    def _write_later(self) -> None:
        """Write what was counted within a minute of a line."""
        self._wait(MINUTE)
        self.flush()

    def flush(self) -> None:
        """Write a line for each sender with refusals that no line speaks of."""
        now = time.monotonic()
        with self._lock:
            self._is_waiting = False
            for sender, refused in self._senders.items():
                if refused.unsaid:
                    self._write(sender, refused, now)

    def _write(self, sender: str, refused: _Sender, now: float) -> None:
        line: dict[str, Any] = {
            "caller": _short(sender),
            "what": _short(refused.what),
            "outcome": "refused",
            "refused": _short(refused.why),
            "calls": refused.unsaid,
        }
        refused.unsaid, refused.said_at = 0, now
        try:
            Log(self._log).write(**line)
        except (
            OSError
        ) as error:  # it stays refused; a full disk must not open or end anything
            sys.stderr.write(
                f"coterie: {self._log} cannot be written ({error.strerror}): {line}\n"
            )


def flush_at_the_end(refusals: Refusals) -> None:
    """Let what was counted be written before this process ends: by itself, by FLARE's `os._exit`, or by a request to end (SIGTERM)."""
    leave = os._exit

    def flush_and_leave(status: int) -> NoReturn:
        refusals.flush()
        leave(status)

    def flush_and_end(number: int, _: Any) -> None:
        refusals.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    atexit.register(refusals.flush)
    os._exit = flush_and_leave
    signal.signal(signal.SIGTERM, flush_and_end)


def _short(text: str) -> str:
    """A text of at most `LONGEST` characters, escapes included."""
    return visible(text[:LONGEST])[:LONGEST]
