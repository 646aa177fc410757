"""How far the runs of an experiment are, and about how long they still take."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from coterie.run.progress import choose, show_in

Pair = tuple[str, int, str]
"""Label of a method, seed and fold."""


class Event(NamedTuple):
    """The state of an experiment: round `round` of `rounds` of one method, seed and fold (empty without folds); `done` of `pairs`
    runs are complete.
    """

    label: str
    seed: int
    fold: str
    round: int
    rounds: int
    done: int
    pairs: int
    seconds_left: float | None
    finished: bool


@dataclass(frozen=True)
class Watched:
    """The state of a run whose clients are elsewhere, as its server says it.

    Attributes:
        event: where the experiment stands, once it does.
        ask: number of the present ask.
        task: task of the present ask.
        waiting: clients whose reply is not there yet.
        gone: clients that let an ask time out and do not answer since.
    """

    event: Event | None
    ask: int
    task: str
    waiting: tuple[str, ...]
    gone: tuple[str, ...]


class Status:
    """Tells how far an experiment is and, from what rounds of each method took, about how long it still needs.

    Args:
        pairs: method and seed of each run.
        rounds: of each run.
        notify: is told; None: nobody is.
        jobs: how many pairs run at once.
    """

    def __init__(
        self,
        pairs: list[Pair],
        rounds: int,
        notify: Callable[[Event], None] | None,
        jobs: int = 1,
    ) -> None:
        self._left, self._pairs, self._rounds = list(pairs), len(pairs), rounds
        self._notify, self._jobs = notify, jobs
        self._seconds: dict[str, list[float]] = {}
        self._running: dict[Pair, _Started] = {}

    def of(
        self, label: str, seed: int, fold: str
    ) -> tuple[Callable[[int], None], Callable[[], None]]:
        """Begin a pair: what is to be called after each of its rounds, and at its end."""
        self._running[label, seed, fold] = _Started(time.perf_counter())
        return functools.partial(self.round, label, seed, fold), functools.partial(
            self.finish, label, seed, fold
        )

    def skip(self, label: str, seed: int, fold: str) -> None:
        """A pair was complete before."""
        self._end((label, seed, fold))

    def round(self, label: str, seed: int, fold: str, number: int) -> None:
        """A round of a pair that runs is complete; the first call tells where it begins."""
        self._running[label, seed, fold].see(number)
        self._tell((label, seed, fold), number, finished=False)

    def finish(self, label: str, seed: int, fold: str) -> None:
        """A pair that runs is complete."""
        started = self._running.pop((label, seed, fold))
        self._seconds.setdefault(label, []).append(time.perf_counter() - started.at)
        self._end((label, seed, fold))

    def _end(self, pair: Pair) -> None:
        self._left.remove(pair)
        self._tell(pair, self._rounds, finished=True)

    def _tell(self, pair: Pair, number: int, *, finished: bool) -> None:
        if self._notify is not None:
            done = self._pairs - len(self._left)
            self._notify(
                Event(
                    *pair,
                    number,
                    self._rounds,
                    done,
                    self._pairs,
                    self._seconds_left(),
                    finished,
                )
            )

    def _seconds_left(self) -> float | None:
        """From what rounds of each method took. None until one of each has been seen: some take sixty times as long as others."""
        mean_seconds = {
            label: sum(seconds) / len(seconds)
            for label, seconds in self._seconds.items()
        }
        for (label, *_), started in self._running.items():
            if started.per_round:
                mean_seconds.setdefault(label, started.per_round * self._rounds)
        if any(label not in mean_seconds for label, *_ in self._left):
            return None
        seconds_left = 0.0
        for pair in self._left:
            running = self._running.get(pair)
            if running is not None and running.per_round:
                seconds_left += running.per_round * (self._rounds - running.number)
            else:
                seconds_left += mean_seconds[pair[0]]
        return seconds_left / self._jobs


class _Started:
    """A pair that runs: when it began, and how long its rounds take."""

    def __init__(self, at: float) -> None:
        self.at, self.number, self.per_round = at, 0, 0.0
        self._first: tuple[int, float] | None = None

    def see(self, number: int) -> None:
        """Round `number` is complete."""
        now = time.perf_counter()
        self.number, self._first = number, self._first or (number, now)
        if number > self._first[0]:
            self.per_round = (now - self._first[1]) / (number - self._first[0])


def shown(progress: Any) -> Callable[[Event], None] | None:
    """Return a function that shows events, or the user's own; None for nothing.

    Args:
        progress: As `compare` takes it.
    """
    if callable(progress):
        own: Callable[[Event], None] = progress
        return own
    kind = choose(progress)
    if not kind:
        return None
    show = show_in(kind, at_once=True)

    def tell(event: Event) -> None:
        if kind == "log" and not event.finished:
            return
        passed: float = event.done
        if not event.finished:  # one that finished is counted in `done`
            passed += event.round / event.rounds
        text = f"{event.label}, round {event.round} of {event.rounds}; {event.done} of {event.pairs} runs done"
        show(text, passed / event.pairs, event.seconds_left)

    return tell
