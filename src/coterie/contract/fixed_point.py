"""Vectors as integers modulo 2^64, whose weighted sums are exact and can be hidden behind masks.

A number v is clipped to [-R, R] and rounded to a multiple of the step R / 2^31: u = rint(v / step), a signed integer in two's
complement, so that 0 is 0. A client sends w_k u_k, with its weight a whole number. The sum of all is exact as long as the sum of the
weights is below 2^31; it is divided once. Each number of a mean is off by at most half a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.base.errors import InputError, require
from coterie.contract.masks import Words

BITS = 31
"""Of a number without its sign."""
MOST_WEIGHT = 2**31
"""The sum of weights: above it a sum of w_k u_k could leave 64 bits."""
WEIGHT_STEPS = 2**20
"""Weights that are no whole numbers are rounded to the largest over this."""


@dataclass(frozen=True)
class FixedPoint:
    """The integers of vectors whose numbers lie in [-range, range].

    Attributes:
        range: R > 0; what lies beyond is clipped, and counted.

    >>> import torch
    >>> code = FixedPoint(1.0)
    >>> words = code.encode(torch.tensor([0.5, -2.0, 0.0]), weight=3)
    >>> mean, clipped = code.decode(words, total=3)
    >>> mean.tolist(), clipped
    ([0.5, -1.0, 0.0], 1)
    """

    range: float

    @property
    def step(self) -> float:
        """The distance between numbers that can be told apart."""
        return self.range * 2.0**-BITS

    def encode(self, vector: Tensor, weight: int) -> Words:
        """Return the integers of a vector [d] times its weight, and how many of its numbers were clipped: uint64 [d + 1].

        Raises:
            InputError: A number is NaN or infinite, of which no mean could be told.
        """
        exact = vector.detach().cpu().double().numpy()
        require(
            bool(np.isfinite(exact).all()),
            "a vector with NaN or Inf cannot be summed",
        )
        clipped = int((np.abs(exact) > self.range).sum())
        units = np.rint(np.clip(exact, -self.range, self.range) / self.step)
        words = np.append(units.astype(np.int64) * weight, clipped)
        return words.astype(np.int64).view(np.uint64)

    def decode(self, words: Words, total: int) -> tuple[Tensor, int]:
        """Return the mean [d], float64, of a sum of encoded vectors with this total of weights, and how many numbers were clipped."""
        signed = words.view(np.int64)
        mean = signed[:-1].astype(np.float64) / total * self.step
        return torch.from_numpy(mean), int(signed[-1])


def whole_weights(weights: Mapping[str, float]) -> dict[str, int]:
    """Return weights as whole numbers: as they are if they are such, else in steps of the largest over `WEIGHT_STEPS`.

    >>> whole_weights({"a": 30.0, "b": 10.0}), whole_weights({"a": 1.0, "b": 0.5})["b"] == WEIGHT_STEPS // 2
    ({'a': 30, 'b': 10}, True)
    """
    if all(weight == math.floor(weight) for weight in weights.values()):
        whole = {name: int(weight) for name, weight in weights.items()}
    else:
        scale = WEIGHT_STEPS / max(weights.values())
        whole = {name: round(weight * scale) for name, weight in weights.items()}
    if sum(whole.values()) >= MOST_WEIGHT:
        raise InputError(
            f"the weights of a secure sum add up to {sum(whole.values()):,}, and its integers have room for less than {MOST_WEIGHT:,}; "
            "take smaller weights"
        )
    return whole
