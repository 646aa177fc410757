"""Models that are made to find rows, and the rows that are read off what a site says of them.

All functions are of numbers: `sites.attack` asks the site.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.config.local import LocalSGD, Steps

NEAR = 0.05
"""Deviations of each feature within which a row is found."""
STEEP = 200.0
STEEPER = 2000.0
"""Where weights are moved by 1 for a slope, which shall move no row over the threshold."""
SMALL = 1e-3
"""Weight behind each unit of an imprinted layer: what is trained hardly moves it."""

LOUD = 100.0
"""Weight behind a lone unit: the gradient of the one row that reaches it is as long as a clipped update may be."""

Updates = Callable[[Tensor], list[Tensor]]
Losses = Callable[[Tensor], list[float]]


def has_hidden_layer(layout: Any) -> bool:
    """Return True if the first layer of a model is followed by another."""
    return sum(len(shape) == 2 for _, shape in layout.parameters) > 1


def rows_of_a_round(local: Any, rows: int) -> int:
    """Return how many rows stand behind an update."""
    if (
        not isinstance(local, LocalSGD)
        or local.batch_size is None
        or not isinstance(local.steps, Steps)
    ):
        return rows
    return local.batch_size * local.accumulate * local.steps.count


def decay(x: Tensor, local: Any, round: int) -> Tensor:
    """Return how far the decay of weights moves a model by itself."""
    if not isinstance(local, LocalSGD) or not local.weight_decay:
        return torch.zeros_like(x)
    return x * ((1 - local.rate(round) * local.weight_decay) ** local.steps.count - 1)


def _thresholds(count: int, number: int, batch: int) -> Tensor:
    """Thresholds on a standardised column between which about one row of a batch lies; `number` moves them."""
    space = min(1 / count, 1 / batch)
    offset = number * 0.618 % 1
    start = (1 - count * space) * offset
    shares = (
        start + (torch.arange(count, dtype=torch.float64) + 0.05 + 0.9 * offset) * space
    )
    thresholds: Tensor = torch.special.ndtri(shares)
    return thresholds


def open_gates(
    column: int, layout: Any, most: int, number: int, batch: int, updates: Updates
) -> Tensor:
    """Rows between neighbouring thresholds of one column, from differences of updates of models that are steep there."""
    width = layout.parameters[0][1][1]
    thresholds = _thresholds(most, number, batch)
    models = torch.zeros(len(thresholds), layout.size, dtype=torch.float64)
    outputs = layout.parameters[0][1][0]
    models[:, column] = STEEP
    models[:, outputs * width] = -STEEP * thresholds
    answers = updates(models)
    if len(answers) < 2:
        return torch.zeros(0, width, dtype=torch.float64)
    differences = torch.stack(answers).diff(dim=0)
    return differences[:, :width] / differences[:, outputs * width, None]


def read_imprints(
    column: int, layout: Any, most: int, number: int, batch: int, updates: Updates
) -> Tensor:
    """Rows between neighbouring thresholds of the units of the first layer, from its own update."""
    units, width = layout.parameters[0][1]
    weights, biases = units * width, slice(units * width, units * width + units)
    guesses = [torch.zeros(0, width, dtype=torch.float64)]
    models = []
    for shift in range(most):
        x = torch.zeros(layout.size, dtype=torch.float64)
        first_row = torch.zeros(units, width, dtype=torch.float64)
        first_row[:, column] = 1.0
        x[:weights], x[biases] = (
            first_row.reshape(-1),
            -_thresholds(units, number * most + shift, batch),
        )
        x[weights + units :] = SMALL
        models.append(x)
    for answer in updates(torch.stack(models)):
        slopes = torch.cat(
            [answer[:weights].reshape(units, width), answer[biases, None]], dim=1
        )
        differences = torch.cat(
            [slopes, torch.zeros(1, width + 1, dtype=torch.float64)]
        ).diff(dim=0)
        guesses.append(differences[:, :width] / differences[:, width:])
    return torch.cat(guesses)


def lone_unit(column: int, layout: Any, number: int, batch: int, count: int) -> Tensor:
    """Models [count, d + b], almost alike, with one unit that about one row of a batch reaches; no row reaches the others.

    So clipping leaves of an update what that row adds, and noise is small beside it. `number` says from which side rows come, and of
    which class.
    """
    units, width = layout.parameters[0][1]
    biases, weights_out = units * width, units * width + units
    x = torch.zeros(layout.size, dtype=torch.float64)
    x[column] = 1.0 if number * 0.618 % 1 < 0.5 else -1.0
    x[biases:weights_out] = -1.0
    x[biases] = -torch.special.ndtri(torch.tensor(1 - 1 / batch, dtype=torch.float64))
    x[weights_out] = LOUD if number * 0.414 % 1 < 0.5 else -LOUD
    models = x.repeat(count, 1)
    # Each is another model to the site, with noise of its own.
    models[:, -1] += 1e-5 * torch.arange(count)
    return models


def read_lone_unit(layout: Any, update: Tensor) -> Tensor:
    """The row [features] that alone has reached the first unit, from a mean of updates [d + b]."""
    units, width = layout.parameters[0][1]
    return update[:width] / update[units * width]


def slopes_of_losses(
    column: int, layout: Any, most: int, rows: int, losses: Losses
) -> Tensor:
    """Rows between neighbouring thresholds of one column, from differences of losses, of which there are `most`.

    The slope of the mean loss of a steep model is the sum of the rows on its wrong side. Behind a hidden layer a single unit is steep.
    """
    outputs, width = layout.parameters[0][1]
    hidden = has_hidden_layer(layout)
    bias = outputs * width
    x = torch.zeros(layout.size, dtype=torch.float64)
    if hidden:
        x[column] = 1.0
        x[bias + outputs] = STEEPER  # the weight of the first unit in the next layer
        step = 1.0 / STEEPER
    else:
        x[column] = STEEPER
        step = 1.0
    places = [*range(width), bias]
    slopes: list[Tensor] = []
    # Each threshold takes a model, and one more for each entry of a row and the bias.
    thresholds = most // (width + 2)
    if thresholds < 2:
        return torch.zeros(0, width, dtype=torch.float64)
    for threshold in _thresholds(thresholds, 1, rows):
        models = x.repeat(width + 2, 1)
        models[:, bias] = -threshold * x[column]
        for number, place in enumerate(places):
            models[number + 1, place] += step
        answers = torch.tensor(losses(models), dtype=torch.float64)
        if len(answers) < width + 2:
            break
        slopes.append(answers[1:] - answers[0])
    if len(slopes) < 2:
        return torch.zeros(0, width, dtype=torch.float64)
    differences = torch.stack(slopes).diff(dim=0)
    return differences[:, :width] / differences[:, width:]


def count_near(guesses: Tensor, rows: Tensor) -> int:
    """Count the rows that are near one of the guesses in all features."""
    guesses = guesses[torch.isfinite(guesses).all(1)]
    if not len(guesses):
        return 0
    is_near = (guesses[:, None] - rows[None]).abs().amax(2) <= NEAR
    return int(is_near.any(0).sum())
