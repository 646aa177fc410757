"""Clients that a batched kernel trains together, and where their rows come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.int64]
Gather = Callable[[Tensor], Tensor]
"""Row numbers [r] -> what these rows hold [r, ...]."""


class RowSource(NamedTuple):
    """Where rows come from: inputs as the model takes them, and labels."""

    inputs: Gather
    labels: Gather


class Chunk(NamedTuple):
    """Clients that train together; those with more steps come first.

    Attributes:
        members: their positions [c].
        rows: row numbers of every step, int64 [T, c, B]; a short batch is filled up with rows that do not count.
        counts: rows of every step that count, int64 [T, c]; 0 behind a client's last step.
        steps: number of steps of each [c], falling.
    """

    members: list[int]
    rows: Array
    counts: Array
    steps: list[int]


def chunks(
    chosen: Sequence[Sequence[Array]],
    width: Callable[[int], int],
    place: Callable[[int, Array], Array],
    filled: int = 1,
) -> Iterator[Chunk]:
    """Clients by batch size, then by steps, in chunks of at most `width(batch size)`; a chunk has single steps alone or none.

    Args:
        chosen: row numbers of each client's steps, among its own rows.
        width: most clients of a chunk by batch size.
        place: (client, its row numbers) -> row numbers among all rows.
        filled: Batches are filled up to a multiple of so many rows, so that clients of unlike batches share a chunk.
    """
    forms = [(-(-max(map(len, batches)) // filled) * filled, len(batches) == 1) for batches in chosen]
    for form in sorted(set(forms)):
        size, alike = form[0], [i for i, positions in enumerate(forms) if positions == form]
        alike.sort(key=lambda i: -len(chosen[i]))
        # Of about equal width: a step of a narrow chunk costs nearly as many calls as one of a wide one.
        count = -(-len(alike) // width(size))
        for number in range(count):
            members = alike[len(alike) * number // count : len(alike) * (number + 1) // count]
            steps = [len(chosen[i]) for i in members]
            rows = np.empty((steps[0], len(members), size), dtype=np.int64)
            counts = np.zeros((steps[0], len(members)), dtype=np.int64)
            for slot, i in enumerate(members):
                positions = place(i, np.concatenate(chosen[i]))
                counts[: steps[slot], slot] = [len(batch) for batch in chosen[i]]
                if len(positions) == steps[0] * size:
                    rows[:, slot] = positions.reshape(-1, size)
                else:
                    rows[:, slot] = positions[:1]
                    rows[:, slot][np.arange(size) < counts[:, slot, None]] = positions
            yield Chunk(members, rows, counts, steps)
