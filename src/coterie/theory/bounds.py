"""The two parts that the bounds of all four papers have."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Bound", "check_positive"]


class Bound(NamedTuple):
    """The right-hand side of a theorem.

    Attributes:
        vanishing: the part that more steps or rounds bring to 0.
        remaining: the part that stays, from noise, other clients' data and inexact weights.

    >>> Bound(vanishing=0.5, remaining=0.25).total
    0.75
    """

    vanishing: float
    remaining: float

    @property
    def total(self) -> float:
        """The bound."""
        return self.vanishing + self.remaining


def check_positive(**values: float) -> None:
    """Raise `ValueError` for a constant that is not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be above 0; got {value}")
