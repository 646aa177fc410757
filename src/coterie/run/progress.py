"""Progress of a call from Python: a bar in terminals and notebooks, lines of the logger `coterie`, or nothing."""

from __future__ import annotations

import html
import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from coterie.base.spelling import duration
from coterie.config.rules import Rule

logger = logging.getLogger("coterie")

PROGRESS = Rule(
    lambda v: v is None or isinstance(v, bool) or v in ("bar", "log"),
    'None, true, false, "bar" or "log"',
    ("bar", "log"),
)
WIDTH = 20
"""Characters of a bar."""
PERIOD = 0.1
"""Seconds between two pictures of a bar: more would be seen by nobody."""
AFTER = 1.0
"""Seconds after which a bar of `fit` appears: a shorter run needs none."""
LINES = 20
"""About so many lines of a run."""

Show = Callable[[str, float, float | None], None]
"""Shows what runs, which share of it is done, and seconds left where they are known."""


def choose(progress: bool | str | None) -> str:
    """Return "bar", "log" or "" for nothing: by default a bar where somebody types and looks, and nothing in a script."""
    if progress in ("bar", "log"):
        return str(progress)
    looked_at = _notebook() is not None or is_terminal()
    if progress is None:
        # A script has no prompt. A notebook's or an interpreter's user waits for this call.
        somebody_waits = hasattr(sys, "ps1") or _notebook() is not None
        progress = looked_at and somebody_waits
    if not progress:
        return ""
    if looked_at:
        return "bar"
    return "log"


def is_terminal() -> bool:
    """Return True if standard error is a terminal."""
    return sys.stderr.isatty()


def show_in(kind: str, *, at_once: bool = False) -> Show:
    """Return what shows progress of this kind. A bar waits, and moves now and then, unless it is to show all at once."""
    if kind == "log":
        return _log_line
    after, period = AFTER, PERIOD
    if at_once:
        after, period = 0.0, 0.0
    begun = time.monotonic()
    last = -math.inf
    line: Callable[[str], None] | None = None

    def show(what: str, share: float, seconds_left: float | None) -> None:
        nonlocal last, line
        now = time.monotonic()
        is_early = now - begun < after or now - last < period
        if line is None and (is_early or share >= 1):
            return
        line = line or _notebook_line() or _terminal_line()
        if share >= 1:
            line("")
        elif not is_early:
            last = now
            line(_text(what, share, seconds_left, bar=True))

    return show


class Rounds:
    """A callback of rounds that shows one run.

    Args:
        show: Shows progress.
        label: What the run is called.
        rounds: How many there will be.
    """

    def __init__(self, show: Show, label: str, rounds: int) -> None:
        self._show, self._label, self._rounds = show, label, rounds
        self._first: tuple[int, float] | None = None

    def __call__(self, number: int) -> None:
        """Round `number` is complete."""
        now = time.perf_counter()
        begun, at = self._first = self._first or (number, now)
        left: float | None = None
        if number > begun:
            left = (now - at) / (number - begun) * (self._rounds - number)
        share = 1.0
        if self._rounds:
            share = number / self._rounds
        is_due = number % max(1, self._rounds // LINES) == 0
        if self._show is _log_line and not is_due and share < 1:
            return
        self._show(f"{self._label}, round {number} of {self._rounds}", share, left)


def _text(what: str, share: float, seconds_left: float | None, *, bar: bool) -> str:
    text = what
    if bar:
        text = f"[{'#' * round(WIDTH * share):<{WIDTH}}] {what}"
    if seconds_left is not None:
        text += f", {duration(seconds_left)} left"
    return text


def _log_line(what: str, share: float, seconds_left: float | None) -> None:
    # Where the logger is open at INFO, the loop's own lines say it.
    if not logger.isEnabledFor(logging.INFO):
        sys.stderr.write(_text(what, share, seconds_left, bar=False) + "\n")


def _terminal_line() -> Callable[[str], None]:
    longest = 0

    def line(text: str) -> None:
        nonlocal longest
        longest = max(longest, len(text))
        # Blanks cover what a longer line has left there.
        sys.stderr.write(f"\r{text:<{longest}}")
        if not text:
            sys.stderr.write("\r")
        sys.stderr.flush()

    return line


def _notebook() -> Any:
    """The shell of a notebook; None elsewhere. A terminal's IPython is none."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return None
    shell = ipython.get_ipython()
    if shell is None or "IPKernelApp" not in shell.config:
        return None
    return shell


def _notebook_line() -> Callable[[str], None] | None:
    if _notebook() is None:
        return None
    from IPython.display import HTML, display

    place = display(HTML(""), display_id=True)

    def line(text: str) -> None:
        shown = ""
        if text:
            shown = f"<small>{html.escape(text)}</small>"
        place.update(HTML(shown))

    return line
