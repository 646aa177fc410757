"""Rows as a user's `transform` changes them: each by itself, and with a stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng, fork_generators, seed_noise
from coterie.base.rows import Inputs, each_tensor, rows


def transform_rows(
    inputs: Inputs, transform: Callable[[Any, Rng], Any], streams: Rng, start: int
) -> Inputs:
    """Return rows that `transform` has changed.

    Args:
        inputs: Rows as the model takes them, [rows, ...] or a dict of such tensors.
        transform: Changes one row, given its stream.
        streams: Has a child for each row.
        start: Number of the first row among those that these streams are for.

    Raises:
        InputError: A changed row has another form.
    """
    changed = []
    with fork_generators():
        for k in range(rows(inputs)):
            stream = streams.child(start + k)
            # A transform may also draw from a global generator.
            seed_noise(stream.seed())
            row = _row(inputs, k)
            changed.append(transform(row, stream))
    if not isinstance(inputs, dict):
        return _stack(changed, inputs)
    columns = {}
    for key, value in inputs.items():
        changed_values = [row[key] for row in changed]
        columns[key] = _stack(changed_values, value)
    return columns


def _row(inputs: Inputs, k: int) -> Any:
    return each_tensor(lambda value: value[k], inputs)


def _stack(changed: list[Any], inputs: Tensor) -> Tensor:
    """Changed rows as one tensor. Raises `InputError` for a row of another form than those of `inputs`."""
    shape, dtype = inputs.shape[1:], inputs.dtype
    for row in changed:
        if not isinstance(row, Tensor):
            given = type(row).__name__
        elif (row.shape, row.dtype) != (shape, dtype):
            given = f"{tuple(row.shape)} and {row.dtype}"
        else:
            continue
        form = f"{tuple(shape)} and {dtype}"
        raise InputError(f"the transform of rows gave {given}; it must keep {form}")
    return torch.stack(changed)
