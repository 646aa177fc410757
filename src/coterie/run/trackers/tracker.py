"""The common part of loggers: a run is followed by sending the numbers of each evaluation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from coterie.run.callbacks import Callback, Metrics


class Sink(NamedTuple):
    """The destination of the numbers of one run.

    Attributes:
        number: takes a name such as `test/hungary/auc`, a value and a round.
        close: ends it.
    """

    number: Callable[[str, float, int], object]
    close: Callable[[], object]


class Tracker(Callback):
    """A logger: what it needs is imported when a run begins."""

    decides = False

    @abstractmethod
    def open(self, label: str, seed: int, rounds: int) -> Sink:
        """Open the destination of one run. Raises `InputError` if the package is missing."""

    def begin(self, label: str, seed: int, rounds: int) -> Callback:
        """Follow one run."""
        return _Following(self.open(label, seed, rounds))


class _Following(Callback):
    decides = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def on_evaluation(self, round: int, metrics: Metrics) -> None:
        for name, value in metrics.numbers():
            self._sink.number(name, value, round)

    def on_end(self) -> None:
        self._sink.close()
