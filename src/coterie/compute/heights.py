"""How many rows of several clients a model may read in one forward pass without a bit of any answer depending on the others.

A matrix product of another height may be computed by another routine, which sums in another order. So the heights that are used are
found by trial, on this machine and for this model.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from coterie.base.loss import Loss
from coterie.base.rows import (
    ELEMENTS,
    Inputs,
    Part,
    each_tensor,
    row_size,
    take,
    tensors_by_name,
)
from coterie.base.vector import Layout
from coterie.compute.probe import LoadedModel

HEIGHTS = {1024: 1 << 15, 256: 1 << 18, 64: 1 << 18, 16: ELEMENTS}
"""Rows of a forward pass that evaluates several clients, and the most numbers in them. A client's begin at a multiple of the least."""
_STEADY_HEIGHTS: dict[tuple[object, ...], tuple[int, ...]] = {}
"""What was found, by what decides it: the runs of an experiment open the same model again and again.

Only for models of which the classes of their modules say all."""


class EvaluatedModel(LoadedModel, Protocol):
    """A model with its loss and two rows of a client. `Workspace` says more of each."""

    loss: Loss
    layout: Layout
    two_rows: Part
    always_random: bool

    def answer(self, inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [rows, ...] and losses [rows]."""


def find_heights(loaded: EvaluatedModel) -> tuple[int, ...]:
    """Return the rows of a forward pass that evaluates several clients, falling; none where each client is evaluated by itself.

    In blocks of all these heights what the model says of a row has the same bits, whatever rows lie beside it.
    """
    # A user's own module or loss may do what its name does not say: its answer is not kept for others.
    modules = {type(module).__module__ for module in loaded.model.modules()}
    known = all(name.startswith(("torch.nn.", "coterie.")) for name in modules)
    if loaded.loss.own is not None or not known:
        return _steady_heights(loaded)
    inputs = tensors_by_name(loaded.two_rows.read()).values()
    forms = [
        (value.shape[1:], value.dtype) for value in (*inputs, loaded.two_rows.labels)
    ]
    key = (
        repr(loaded.model),
        str(forms),
        loaded.layout.dtype,
        loaded.device,
        loaded.loss.kind,
        loaded.loss.weighted,
        torch.get_num_threads(),
    )
    if key not in _STEADY_HEIGHTS:
        _STEADY_HEIGHTS[key] = _steady_heights(loaded)
    return _STEADY_HEIGHTS[key]


@torch.no_grad()
def _steady_heights(loaded: EvaluatedModel) -> tuple[int, ...]:
    """Find the heights by trial: four blocks of the least height, each by itself, filled up, and within larger blocks."""
    row_numbers = row_size(loaded.two_rows.inputs)
    possible = [
        height
        for height, most_numbers in HEIGHTS.items()
        if height * row_numbers <= most_numbers
    ]
    if loaded.always_random or not possible:
        return ()
    units, block_rows = 4, possible[-1]
    draw, start = torch.Generator().manual_seed(0), loaded.x.clone()
    # A model of zeros, and equal rows, would have no bits to differ.
    loaded.x.add_(torch.randn(loaded.x.shape, generator=draw).to(loaded.x), alpha=0.1)
    index = torch.arange(units * block_rows) % len(loaded.two_rows)

    def vary(value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        factors = torch.rand(value.shape, generator=draw) / 2 + 0.5
        return value * factors.to(value)

    prepared = loaded.prepare(loaded.two_rows.read())
    inputs = each_tensor(vary, take(prepared, index.to(loaded.device)))
    labels = loaded.two_rows.labels[index].to(loaded.device)

    def answers(rows_at: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows_at.to(loaded.device)
        chosen = each_tensor(lambda value: loaded.prepare(value[rows]), inputs)
        return loaded.answer(chosen, labels[rows])

    try:
        places = torch.arange(len(index)).view(units, block_rows)
        by_block = [answers(block) for block in places]
        expected_outputs = torch.cat([outputs for outputs, _ in by_block])
        expected_losses = torch.cat([losses for _, losses in by_block])

        def are_steady(rows_at: Tensor, count: int) -> bool:
            outputs, losses = answers(rows_at)
            rows_at = rows_at[:count]
            return torch.equal(
                outputs[:count], expected_outputs[rows_at]
            ) and torch.equal(losses[:count], expected_losses[rows_at])

        # A client's first row fills up what its rows leave of a block.
        half = block_rows // 2
        filled = places[0] * (places[0] < half)
        if not are_steady(filled, half):
            return ()
        turned = places.roll(1, 0).view(-1)
        heights = []
        for height in possible:
            repeated = turned.repeat(height // len(index))
            if height == block_rows or are_steady(repeated, height):
                heights.append(height)
        return tuple(heights)
    except Exception:  # these are not rows that the model was made for
        return ()
    finally:
        loaded.load(start)
