"""Who follows a run: the callbacks that the loop tells of rounds and evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coterie.base.errors import InputError, cut
from coterie.run.callbacks import Callback, Metrics


def keeps_validation(callbacks: Sequence[Any]) -> bool:
    """Return True if one of the callbacks needs validation rows that no client trains on."""
    return any(
        isinstance(callback, Callback) and callback.keeps_validation
        for callback in callbacks
    )


class Followers:
    """The callbacks of one run: functions of a round's number, and `Callback`s.

    Args:
        callbacks: as `RunSettings` has them.
        about: label, seed and rounds of the run.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback | Callable[[int], object]],
        about: tuple[str, int, int],
    ) -> None:
        self._all = list(callbacks)
        for i, callback in enumerate(self._all):
            if isinstance(callback, Callback):
                begun = callback.begin(*about)
                if not isinstance(begun, Callback):
                    raise InputError(
                        f"{type(callback).__name__}.begin must return a callback, such as itself; got {cut(begun)}"
                    )
                self._all[i] = begun

    @property
    def look(self) -> bool:
        """True if any of them may look at models."""
        return any(isinstance(callback, Callback) for callback in self._all)

    def tell(self, number: int, metrics: Metrics | None) -> bool:
        """Tell that a round is complete, with its metrics if it was evaluated; return True if the run ends with it."""
        ends = False
        for callback in self._all:
            if not isinstance(callback, Callback):
                callback(number)
                continue
            callback.on_round(number)
            # One that ends the run does not keep the others from being told.
            if metrics is not None and callback.on_evaluation(number, metrics):
                ends = True
        return ends

    def end(self) -> None:
        """Tell that the run is over."""
        for callback in self._all:
            if isinstance(callback, Callback):
                callback.on_end()
