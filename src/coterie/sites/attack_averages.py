"""Averages of losses at models that differ in their last bits: the numbers of an attack on the noise of evaluations.

Noise as large as what one row can move a loss hides that row in one loss, and in the mean of n losses with noise of their own it is
only 1 / sqrt(n) as large. All here is of numbers: `sites.attack` asks the site.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

SURE = 20.0
"""Logit of a model that is sure: its loss is 0, or beyond the largest that a site tells of a row."""


class Candidate(NamedTuple):
    """A patient of whom an attack asks whether it is there: a direction in which nobody else is near.

    Attributes:
        slope: weights [features] of a steep model that looks along the direction.
        place: of the patient on it.
        label: class of the patient; -1 for one that nobody has.
        features: of the patient.
    """

    slope: Tensor
    place: float
    label: int
    features: Tensor


def candidates(
    patients: Tensor, labels: Tensor, known: Tensor, count: int
) -> list[Candidate]:
    """The patients that are told best from all that are known, at most `count`.

    Args:
        patients: features [k, width].
        labels: classes [k].
        known: features [n, width] of the rows at the site, as somebody knows them who doubts one alone.
        count: how many are chosen.
    """
    centre = known.mean(0)
    spread = torch.cov(known.T) + 1e-3 * torch.eye(known.shape[1], dtype=known.dtype)
    directions = torch.linalg.solve(spread, (patients - centre).T).T
    by_gap = []
    for direction, patient, label in zip(
        directions, patients, labels.tolist(), strict=True
    ):
        place = float(direction @ patient)
        distances = (known @ direction - place).abs()
        others = distances[(known != patient).any(1)]
        gap = float(others.min() / direction.norm().clamp(min=1e-9))
        steep = 2 * SURE / max(1e-12, float(others.min()))
        by_gap.append(
            (gap, Candidate(steep * direction, steep * place, int(label), patient))
        )
    by_gap.sort(key=lambda pair: -pair[0])
    return [candidate for _, candidate in by_gap[:count]]


def side_model(candidate: Candidate, layout: Any, side: int, number: int) -> Tensor:
    """A model [d + b] that calls the patient ill (side 0) or healthy (side 1), and all others the same on both sides.

    So its mean loss differs between the sides by what this row adds. `number` moves last bits: each is another model to a site.
    """
    x = torch.zeros(layout.size, dtype=torch.float64)
    weights = [shape for _, shape in layout.parameters if len(shape) == 2]
    width, hidden = weights[0][1], len(weights) > 1
    bias = -candidate.place + (SURE if side == 0 else -SURE)
    start = 0
    for depth, shape in enumerate(weights):
        if depth == 0:
            x[:width] = candidate.slope
        else:
            x[start] = 1.0
        start += shape[0] * shape[1]
        if depth == 0:
            x[start] = bias + SURE * hidden
        start += shape[0]
    if hidden:  # a unit is never below 0, so what lies behind it begins as low as a sure "healthy"
        x[start - 1] = -SURE
    place = number % width
    x[place] *= 1 + 2.0**-22 * (1 + number // width)
    return x


class Sums:
    """What was told of candidates on each of two sides, in units of what one row can add to a mean loss."""

    def __init__(self, count: int) -> None:
        self._sums, self._counts = torch.zeros(2, count, 2, dtype=torch.float64)
        self._differences, self._weights = torch.zeros(2, count, dtype=torch.float64)

    def add(self, which: int, side: int, value: float) -> None:
        """Note an answer."""
        self._sums[which, side] += value
        self._counts[which, side] += 1

    def join(self, other: Sums) -> None:
        """Add the differences between the sides of another training, whose losses lie elsewhere."""
        means = other._sums / other._counts.clamp(min=1)
        # A difference of two means has the variance 1/n + 1/m, and weighs by its inverse.
        weights = other._counts.prod(1) / other._counts.sum(1).clamp(min=1)
        self._differences += weights * (means[:, 0] - means[:, 1])
        self._weights += weights

    def guesses(self) -> list[int | None]:
        """Return the class of each candidate; None for one that does not seem to be there."""
        guesses: list[int | None] = []
        for difference, weight in zip(
            self._differences.tolist(), self._weights.tolist(), strict=True
        ):
            guess = None
            if weight:
                mean, noise = difference / weight, weight**-0.5
                is_there = abs(mean) > max(0.5, 2 * noise)
                guess = int(mean < 0) if is_there else None
            guesses.append(guess)
        return guesses
