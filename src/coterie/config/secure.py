"""The [secure] table of an experiment: updates are summed behind masks, so that the server sees the sum alone."""

from __future__ import annotations

import math
from typing import Annotated

from coterie.base.errors import InputError
from coterie.config.rules import POSITIVE, SIZE, Rule, optional
from coterie.config.schema import options

FEWEST = 3
"""Clients of a secure sum: of two, each learns the other's vector by subtraction."""
_THRESHOLD = Rule(lambda v: type(v) is int and v >= FEWEST, f"an int >= {FEWEST}")


@options
class SecureSums:
    """The [secure] table: vectors that a method only averages are added as integers behind masks that cancel in the sum.

    A mean differs from the plain one by rounding alone, less than clip / 2^31. References stay as they are: their models do not leave.
    On one machine the protocol runs as it would between parties, and hides nothing from who owns the machine. Sites sign keys and
    survivors, and take a threshold above (n + curious) / 2 alone.

    Where training has noise by row (`RowNoise`), the sum alone gets it: each client adds a part, so that those of `threshold` clients
    make the whole.

    Source: K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017 (`contract.masks`).

    Attributes:
        threshold: clients that must send their masked vector for the sum to be opened, more than half of those that are asked; None:
            two thirds of them.
        clip: the largest size of a number of an update; what lies beyond is clipped, and counted. Sums with noise by row have the clip
            of their noise.
        curious: clients that might tell the server their own part of the noise by row, fewer than `threshold`; an epsilon counts the
            noise of the others.

    >>> SecureSums().survivors(10)
    7
    """

    threshold: Annotated[int | None, optional(_THRESHOLD, "two thirds")] = None
    clip: Annotated[float, POSITIVE] = 10.0
    curious: Annotated[int, SIZE] = 1

    def __post_init__(self) -> None:
        if self.threshold is not None and self.curious >= self.threshold:
            raise InputError(
                f"SecureSums.curious must be below threshold = {self.threshold}, or nobody's noise is left; got {self.curious}"
            )

    def survivors(self, asked: int) -> int:
        """Return how many of the clients that are asked must send their vector."""
        if self.threshold is not None:
            return self.threshold
        return max(FEWEST, math.ceil(2 * asked / 3))

    @property
    def hidden_noise(self) -> float:
        """The share of the noise's deviation that the curious do not know, sqrt((t - c) / t). Raises `InputError` without threshold.

        >>> round(SecureSums(threshold=4).hidden_noise ** 2, 9)
        0.75
        """
        if self.threshold is None:
            raise InputError(
                "[secure] beside [privacy] deals the noise among the clients of threshold; say how many, such as threshold = 3"
            )
        return math.sqrt((self.threshold - self.curious) / self.threshold)
