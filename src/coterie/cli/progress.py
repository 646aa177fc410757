"""Progress on the screen: a live line in a terminal, plain lines elsewhere; on standard error, so that results can be piped."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from coterie.base.spelling import duration
from coterie.run.files import ALL
from coterie.study.progress import Event, Watched

SLOW = 5.0
"""Seconds after which a site that was asked is called slow."""
LINES = 10
"""Most lines of progress before an answer where there is no terminal, as in a log or a notebook."""
SILENCE = 600.0
"""Seconds after which a line is due, however many there were: a log must show that a long run is alive."""


class Progress:
    """Shows the events of an experiment."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live: Any = None
        self._bar: Any = None
        self._seen: Event | None = None
        self._shown = 0
        self._shown_at = 0.0
        self._waited: dict[tuple[str, int], float] = {}
        self._named: dict[str, set[str]] = {"slow": set(), "gone": set()}

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bars

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[left]}"),
            )
            self._live = Bars(
                *columns,
                console=Console(stderr=True),
                transient=True,
                refresh_per_second=8,
            )
            self._live.start()
            self._bar = self._live.add_task("loading data", total=None, left="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the screen to others."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def tuning(self, label: str, number: int, total: int) -> None:
        """One setting out of `total` is tried."""
        if self._live is not None:
            self._live.update(
                self._bar,
                description=f"tuning {label}",
                total=total,
                completed=number,
                left=f"{number}/{total}",
            )
        elif not self._quiet and number % 5 == 0:
            self._line(f"tuning: setting {number + 1} of {total} ({label})")

    def event(self, event: Event) -> None:
        """Show where an experiment stands."""
        status = f"{event.done}/{event.pairs} done"
        if event.seconds_left is not None and event.done < event.pairs:
            status += f", {duration(event.seconds_left)} left"
        if self._live is not None:
            completed = event.done * event.rounds
            if not event.finished:  # the rounds of one that finished are in `done`
                completed += event.round
            text = f"{_turn(event)}  {event.label}  round {event.round}/{event.rounds}"
            total = max(1, event.pairs * event.rounds)
            self._live.update(
                self._bar,
                description=text,
                total=total,
                completed=completed,
                left=status,
            )
        elif event.finished and not self._quiet and self._is_due(event):
            self._line(f"{status}  ({_turn(event)}, {event.label})")

    def _is_due(self, event: Event) -> bool:
        """Return True for the first run that ends, for each further ninth of the runs, and after a long silence."""
        share = 1 + event.done * (LINES - 1) // event.pairs
        # Nothing was shown before the first run ends, and so its share is a further one.
        is_further = share > self._shown
        long_silent = time.monotonic() - self._shown_at > SILENCE
        if not is_further and not long_silent:
            return False
        self._shown, self._shown_at = max(share, self._shown), time.monotonic()
        return True

    def show_sites(self, watched: Watched) -> None:
        """Show where a run on sites elsewhere stands; a site that is slow or gone is named once."""
        if watched.event is not None and watched.event != self._seen:
            self._seen = watched.event
            self.event(watched.event)
            if self._live is None and not watched.event.finished and not self._quiet:
                event = watched.event
                self._line(
                    f"{_turn(event)}  {event.label:<12} round {event.round}/{event.rounds}"
                )
        now = time.monotonic()
        slow = {
            n
            for n in watched.waiting
            if now - self._waited.setdefault((n, watched.ask), now) >= SLOW
        }
        self._waited = {
            key: since for key, since in self._waited.items() if key[1] == watched.ask
        }
        for state, names in (("slow", slow), ("gone", set(watched.gone))):
            for name in sorted(names - self._named[state]):
                self.say(
                    f"{name} is {state}: asked for {watched.task.rpartition('.')[2]}"
                )
            self._named[state] = names

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        elif not self._quiet:
            self._line(text)

    def _line(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _turn(event: Event) -> str:
    """Name the seed that runs, and its fold: `seed 0, fold 3`; the model for new rows is trained on all rows."""
    if event.fold == ALL:
        return f"seed {event.seed}, all rows"
    if event.fold:
        return f"seed {event.seed}, fold {event.fold}"
    return f"seed {event.seed}"
