"""Vectors as integers modulo 2^64, whose weighted sums are exact and can be hidden behind masks.

A number v is clipped to [-R, R] and rounded to a multiple of the step R / 2^31: u = rint(v / step), a signed integer in two's
complement, so that 0 is 0. A client sends w_k u_k, with its weight a whole number. The sum of all is exact as long as the sum of the
weights is below 2^31; it is divided once. Each number of a mean is off by at most half a step.

Sums of row gradients get noise as integers, too (`NoisyGrid`): P. Kairouz, Z. Liu and T. Steinke, "The Distributed Discrete Gaussian
Mechanism for Federated Learning with Secure Aggregation", ICML 2021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.base.errors import InputError, require
from coterie.config.row_noise import RowNoise
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


NOISE_BITS = 20
"""The deviation of one client's noise is 2^20 steps of the grid.

From 16 steps on, sums of such noise are as good as discrete normal ones (Kairouz et al., Theorem 1: apart by exp(-10 * 16^2) and less).
With 2^20 steps these are as good as normal ones: a step in probability differs from that of rounded normal noise by about 1e-13.
"""
_ROOM = 2.0**62
"""Half of what fits beside a sign in 64 bits; the other half is for noise."""


@dataclass(frozen=True)
class NoisyGrid:
    """The integers of sums of clipped row gradients, of which each client adds a part of the noise, so that the sum has it.

    A sum s of rows of length C at most is sent as rint(s / step) plus noise of deviation 2^20. With the noise of at least `parties`
    clients the sum of all has deviation 2^20 step sqrt(parties). One row moves it by C + step sqrt(d), since rounding moves each of
    d numbers by half a step in either table. The step makes the first `noise_multiplier` times the second:
    step = z C / (2^20 sqrt(parties) - z sqrt(d)).

    Attributes:
        noise: z > 0 of the whole sum, and C.
        parties: clients whose noise makes the whole.
        dim: d, numbers of a sum.

    Raises:
        InputError: So many numbers have so much noise that the grid is too coarse.

    >>> grid = NoisyGrid(RowNoise(4.0, clip=1.0), parties=4, dim=9)
    >>> deviation, reach = 2**NOISE_BITS * grid.step * 2, 1.0 + grid.step * 3
    >>> round(deviation / reach, 9)
    4.0
    """

    noise: RowNoise
    parties: int
    dim: int

    def __post_init__(self) -> None:
        noise, rounding = 2.0**NOISE_BITS * math.sqrt(self.parties), self._rounding
        if 2 * rounding > noise:
            raise InputError(
                f"noise_multiplier {self.noise.noise_multiplier:g} on {self.dim:,} numbers is too much for a sum behind masks; take "
                "less noise or a smaller model"
            )

    @property
    def _rounding(self) -> float:
        """The steps of noise that hide how a row changes the rounding, z sqrt(d)."""
        return self.noise.noise_multiplier * math.sqrt(self.dim)

    @property
    def step(self) -> float:
        """The distance between numbers that can be told apart."""
        # Noise is never without a bound of rows (`RowNoise`).
        clip = math.inf if self.noise.clip is None else self.noise.clip
        steps = 2.0**NOISE_BITS * math.sqrt(self.parties) - self._rounding
        return self.noise.noise_multiplier * clip / steps

    def check_room(self, rows: int) -> None:
        """Raise `InputError` if a sum over so many rows could leave 64 bits."""
        steps_of_row = 2.0**NOISE_BITS * math.sqrt(self.parties)
        if rows * steps_of_row >= _ROOM * self.noise.noise_multiplier:
            raise InputError(
                f"integers of a secure sum over {rows:,} rows have no room for noise_multiplier {self.noise.noise_multiplier:g}; take "
                "more noise, or leave out the noise or [secure]"
            )

    def encode(self, total: Tensor) -> Tensor:
        """Return the integers of a sum [d] before noise, int64."""
        return (total.double() / self.step).round().to(torch.int64)

    def decode(self, words: Words) -> Tensor:
        """Return the sum [d], float64, of added integers with their noise."""
        signed = words.view(np.int64).astype(np.float64)
        return torch.from_numpy(signed) * self.step
