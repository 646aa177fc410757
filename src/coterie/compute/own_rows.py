"""The rows of a cohort's clients: how many there are, and batches of them as the model takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError, require
from coterie.base.rng import Rng, forked, seed_noise
from coterie.base.rows import Inputs, Part, Rows, rows
from coterie.compute import layers

if TYPE_CHECKING:
    from coterie.compute.cohort import Cohort

__all__ = ["Batch", "count_of", "gather", "part_of", "require_enough", "row_chunks", "size_of", "split", "transformed"]

Batch = tuple[Inputs, Tensor]
BLOCK = 1 << 24
"""Elements gathered at once for several local steps."""


def part_of(cohort: Cohort, part: str, client: int) -> Rows:
    """Train, validation or test rows of all clients. Raises `InputError` if the client at position `client` has none of them."""
    require(part in ("train", "validation", "test"), f"part must be train, validation or test; got {part!r}")
    all_rows: Rows | None = getattr(cohort.clients, part)
    if all_rows is None or not size_of(cohort, client, part):
        raise InputError(f"client {cohort.names[client]!r} has no {part} rows")
    return all_rows


def size_of(cohort: Cohort, client: int, part: str) -> int:
    """Number of rows of this part."""
    all_rows: Rows | None = getattr(cohort.clients, part)
    # Not `all_rows.sizes`: its cost grows with the number of clients that exist.
    at = cohort.index[client]
    return 0 if all_rows is None else int(all_rows.offsets[at + 1] - all_rows.offsets[at])


def count_of(cohort: Cohort, client: int, part: str, batch_size: int | None) -> int:
    """Number of rows of a batch of this size; None: of all."""
    if part == "fresh" and batch_size is not None:
        return batch_size
    size = size_of(cohort, client, part)
    return size if batch_size is None else min(size, batch_size)


def gather(cohort: Cohort, part: Rows, i: int, chosen: NDArray[np.int64] | None) -> Batch:
    """The client's rows of these numbers among its own; None: all."""
    return _ready(cohort, _chosen(cohort, part, i, chosen))


def _chosen(cohort: Cohort, part: Rows, i: int, chosen: NDArray[np.int64] | None) -> Part:
    where = part.positions(cohort.index[i])
    at = where if chosen is None else chosen + where.start if isinstance(where, slice) else where[chosen]
    return Part(part.inputs, part.labels).select(at if isinstance(at, slice) else torch.from_numpy(at))


def _ready(cohort: Cohort, part: Part) -> Batch:
    return cohort.workspace.prepare(part.read()), part.labels.to(cohort.workspace.device)


def transformed(cohort: Cohort, i: int, inputs: Inputs, purpose: str, first: int = 0) -> Inputs:
    """Rows of the client at position `i` as the clients' `transform` changes them, each with a stream of its own.

    Args:
        cohort: whose clients may have a transform.
        i: position of the client.
        inputs: of rows, as the model takes them.
        purpose: for which they are read.
        first: place of the first of these rows among those that are read for it.
    """
    transform = cohort.clients.transform
    if transform is None:
        return inputs
    streams = cohort.rng(i, purpose).child("transform")
    changed = []
    with forked():
        for k in range(rows(inputs)):
            own = streams.child(first + k)
            seed_noise(own.seed())  # for transforms that draw from a global generator
            changed.append(transform(_row(inputs, k), own))
    return cohort.workspace.prepare(
        {key: _stacked([row[key] for row in changed], value) for key, value in inputs.items()}
        if isinstance(inputs, dict)
        else _stacked(changed, inputs)
    )


def _row(inputs: Inputs, k: int) -> Any:
    return {key: value[k] for key, value in inputs.items()} if isinstance(inputs, dict) else inputs[k]


def _stacked(changed: list[Tensor], given: Tensor) -> Tensor:
    for row in changed:
        same = isinstance(row, Tensor) and (row.shape, row.dtype) == (given.shape[1:], given.dtype)
        shape = f"{tuple(row.shape)} and {row.dtype}" if isinstance(row, Tensor) else type(row).__name__
        require(same, f"the transform of rows gave {shape}; it must keep {tuple(given.shape[1:])} and {given.dtype}")
    return torch.stack(changed)


def row_chunks(
    cohort: Cohort,
    x: Tensor,
    part: str,
    batch_size: int | None,
    purpose: str,
    mode: str,
    share: slice | None = None,
    *,
    load: bool = True,
) -> Iterator[tuple[int, Inputs, Tensor]]:
    """Position, inputs and labels of some rows at once (`Part.chunks`) of every client's batch, with the client's model loaded.

    Args:
        cohort: its clients in order.
        x: model [d + b], or one per client [n, d + b].
        part: of the rows, or `fresh`.
        batch_size: rows of a random batch; None: all rows.
        purpose: name of the random batch.
        mode: `eval` or `train`.
        share: some of the batch.
        load: leave the model as it is if false.
    """
    require(mode in ("eval", "train"), f"mode must be eval or train; got {mode!r}")
    # Only on a change: it walks through all modules.
    if cohort.workspace.model.training != (mode == "train"):
        cohort.workspace.train(mode == "train")
    if load and x.ndim == 1:
        cohort.workspace.load(x)
    noisy = mode == "eval" and cohort.workspace.always_random
    with cohort.workspace.noise() if noisy else contextlib.nullcontext():
        for i in range(len(cohort.names)):
            if load and x.ndim > 1:
                cohort.workspace.load(x[i])
            if mode == "train" or noisy:
                layers.restart(cohort, i, purpose if share is None else f"{purpose}/{share.start}")
            first = 0 if share is None else share.start or 0
            for some in _batch(cohort, i, part, batch_size, purpose, share).chunks():
                inputs, labels = _ready(cohort, some)
                if mode == "train" and part == "train":
                    inputs = transformed(cohort, i, inputs, purpose, first)
                first += len(labels)
                yield i, inputs, labels


def _batch(cohort: Cohort, i: int, part: str, batch_size: int | None, purpose: str, share: slice | None) -> Part:
    if part == "fresh":
        drawn = _fresh(cohort, i, batch_size, cohort.rng(i, purpose).child(part))
        return drawn if share is None else drawn.select(share)
    where, chosen = part_of(cohort, part, i), None
    if share is not None or (batch_size is not None and batch_size < size_of(cohort, i, part)):
        chosen = cohort.rng(i, purpose).child(part).permutation(size_of(cohort, i, part), batch_size)
        chosen = chosen if share is None else chosen[share]
    require_enough(cohort, i, chosen, part)
    return _chosen(cohort, where, i, chosen)


def _fresh(cohort: Cohort, i: int, batch_size: int | None, rng: Rng) -> Part:
    if cohort.clients.draw is None or batch_size is None:
        raise InputError(
            f"fresh rows of client {cohort.names[i]!r} cannot be drawn: that takes data whose distribution is known, as "
            "mean-estimation or clients made with `with_draw`, and a batch size; take validation or train rows"
        )
    return cohort.clients.draw(cohort.names[i], batch_size, rng)


def require_enough(cohort: Cohort, i: int, numbers: NDArray[np.int64] | None, part: str = "train") -> None:
    """Raise `InputError` if a gradient or a loss would rest on too few different rows (None: all of the part)."""
    fewest = cohort.workspace.fewest_rows
    if fewest > 1 and (size_of(cohort, i, part) if numbers is None else len(np.unique(numbers))) < fewest:
        raise InputError(f"client {cohort.names[i]!r} computes nothing of fewer than {fewest} different rows")


def split(inputs: Inputs, sizes: list[int]) -> list[Inputs]:
    """Inputs in pieces of these sizes, as views."""
    if isinstance(inputs, dict):
        pieces = zip(*(v.split(sizes) for v in inputs.values()), strict=True)
        return [dict(zip(inputs, some, strict=True)) for some in pieces]
    return list(inputs.split(sizes))
