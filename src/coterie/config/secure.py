"""The [secure] table of an experiment: updates are summed behind masks, so that the server sees the sum alone."""

from __future__ import annotations

import math
from typing import Annotated

from coterie.config.rules import POSITIVE, Rule, optional
from coterie.config.schema import options

FEWEST = 3
"""Clients of a secure sum: of two, each learns the other's vector by subtraction."""
_THRESHOLD = Rule(lambda v: type(v) is int and v >= FEWEST, f"an int >= {FEWEST}")


@options
class SecureSums:
    """The [secure] table: vectors that a method only averages are added as integers behind masks that cancel in the sum.

    A mean differs from the plain one by rounding alone, less than clip / 2^31. References stay as they are: their models do not leave.
    On one machine the protocol runs as it would between parties, and hides nothing from who owns the machine.

    Source: K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017 (`contract.masks`).

    Attributes:
        threshold: clients that must send their masked vector for the sum to be opened, more than half of those that are asked; None:
            two thirds of them.
        clip: the largest size of a number of an update; what lies beyond is clipped, and counted.

    >>> SecureSums().survivors(10)
    7
    """

    threshold: Annotated[int | None, optional(_THRESHOLD, "two thirds")] = None
    clip: Annotated[float, POSITIVE] = 10.0

    def survivors(self, asked: int) -> int:
        """Return how many of the clients that are asked must send their vector."""
        if self.threshold is not None:
            return self.threshold
        return max(FEWEST, math.ceil(2 * asked / 3))
