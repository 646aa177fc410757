"""How far the runs of an experiment are, and about how long they still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

__all__ = ["Event", "Status"]


class Event(NamedTuple):
    """Where an experiment stands: round `round` of `rounds` of one pair of method and seed; `done` pairs of `pairs` before it."""

    label: str
    seed: int
    round: int
    rounds: int
    done: int
    pairs: int
    seconds_left: float | None
    finished: bool


class Status:
    """Tells how far an experiment is and, from what rounds of each method took, about how long it still needs."""

    def __init__(self, pairs: list[tuple[str, int]], rounds: int, notify: Callable[[Event], None] | None) -> None:
        self._left, self._pairs, self._rounds, self._notify = list(pairs), len(pairs), rounds, notify
        self._seconds: dict[str, list[float]] = {}
        self._pair = pairs[0]
        self._begun = self._first = 0.0
        self._first_round = -1

    def start(self, label: str, seed: int) -> None:
        """A pair begins."""
        self._pair, self._begun, self._first_round = (label, seed), time.perf_counter(), -1

    def skip(self, label: str, seed: int) -> None:
        """A pair was complete before."""
        self._end(label, seed)

    def round(self, number: int) -> None:
        """A round of the pair that runs is complete; the first call tells where it begins."""
        if self._first_round < 0:
            self._first_round, self._first = number, time.perf_counter()
        self._tell(self._pair, number, finished=False)

    def finish(self, label: str, seed: int) -> None:
        """The pair that runs is complete."""
        self._seconds.setdefault(label, []).append(time.perf_counter() - self._begun)
        self._end(label, seed)

    def _end(self, label: str, seed: int) -> None:
        self._left.remove((label, seed))
        self._tell((label, seed), self._rounds, finished=True)

    def _tell(self, pair: tuple[str, int], number: int, *, finished: bool) -> None:
        if self._notify is not None:
            done = self._pairs - len(self._left)
            seconds_left = self._seconds_left(number, finished)
            self._notify(Event(*pair, number, self._rounds, done, self._pairs, seconds_left, finished))

    def _seconds_left(self, number: int, finished: bool) -> float | None:
        usual_of: Mapping[str, float] = {k: sum(v) / len(v) for k, v in self._seconds.items()}
        here = 0.0
        if not finished:
            ran = number - self._first_round
            if ran:
                per_round = (time.perf_counter() - self._first) / ran
                usual_of = {self._pair[0]: per_round * self._rounds, **usual_of}
                here = per_round * (self._rounds - number)
        waiting = [p for p in self._left if finished or p != self._pair]
        if not usual_of:
            return None if waiting else 0.0
        usual = sum(usual_of.values()) / len(usual_of)
        return here + sum(usual_of.get(label, usual) for label, _ in waiting)
