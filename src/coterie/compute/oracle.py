"""Gradients and losses of many clients, each at a model of its own, in few calls.

Where a batched kernel knows the model, the rows of several clients go through one product each, filled up to a multiple of `ROWS` of
their own number. So what a client answers has the same bits whatever clients share the call. All others are asked one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from coterie.base.rows import ELEMENTS, row_size
from coterie.compute.cohort import Cohort
from coterie.compute.cohort_rows import pick_rows
from coterie.compute.kernels import GRADIENT, Batched
from coterie.compute.segments import LANES, Chunk, RowSource, chunks
from coterie.contract.task import Form, OneGradient

ROWS = 16
"""Rows of a client are filled up to a multiple of this."""
NUMBERS = 1 << 21
"""Numbers in the inputs of a call at most, unless they are one client's."""


class TargetGradient(NamedTuple):
    """Gradient of the target's loss."""

    gradient: OneGradient


class TargetLosses(NamedTuple):
    """Losses of candidates at the target."""

    losses: Annotated[Tensor, "loss", Form(lambda p, layout: (p["xs"].shape[1],))]


def gradient_each(
    cohort: Cohort,
    x: Tensor,
    parts: Sequence[str],
    *,
    batch_size: int | None = None,
    purpose: str = "round",
) -> Tensor:
    """Return the gradient of the mean loss of each client at its own model.

    Args:
        cohort: The n clients.
        x: Their models [n, d + b].
        parts: Whether each is asked about its `train`, `validation` or `fresh` rows.
        batch_size: As for `Cohort.gradient`.
        purpose: Likewise.

    Returns:
        [n, d + b], 0 on the buffers.
    """
    row_choice: dict[str, Any] = {"batch_size": batch_size, "purpose": purpose}
    result = torch.empty_like(x)
    for part, clients in _by_part(parts):
        in_kernel = _together(cohort, clients, part, batch_size)
        for i in sorted({*clients}.difference(in_kernel)):
            result[i] = cohort.only([i]).gradient(x[i], part=part, **row_choice)[0]
        for kernel, chunk, source in _kernel_calls(
            cohort, in_kernel, part, **row_choice
        ):
            kernel.train(x, chunk, kernel.feed(chunk, source), GRADIENT, result)
            if source.weights is not None and batch_size is None:
                for i in chunk.members:
                    result[i] *= cohort.size(i, part) / cohort.mass(i, part, None)
            cohort.spent["row_gradients"] += int(chunk.counts.sum())
    return result


@torch.no_grad()
def losses_each(
    cohort: Cohort,
    xs: Tensor,
    parts: Sequence[str],
    *,
    batch_size: int | None = None,
    purpose: str = "round",
) -> Tensor:
    """Return the mean losses of each client at candidates of its own, xs [n, q, d + b] -> float64 [n, q]; see `gradient_each`."""
    row_choice: dict[str, Any] = {"batch_size": batch_size, "purpose": purpose}
    result = torch.empty(xs.shape[:2], dtype=torch.float64)
    for part, clients in _by_part(parts):
        in_kernel: list[int] = []
        if cohort.workspace.veil is None:  # `Cohort.losses` hides what one row adds
            in_kernel = _together(cohort, clients, part, batch_size)
        for i in sorted({*clients}.difference(in_kernel)):
            result[i] = cohort.only([i]).losses(xs[i], part=part, **row_choice)[0]
        for kernel, chunk, source in _kernel_calls(
            cohort, in_kernel, part, **row_choice
        ):
            counts = chunk.counts[0].tolist()
            numbers = torch.from_numpy(chunk.rows[0].reshape(-1))
            labels = source.labels(numbers)
            weights = None if source.weights is None else source.weights(numbers)
            # Filled up to full vector registers, so that no row's loss depends on how many rows there are.
            spare = -len(labels) % LANES
            labels = torch.cat([labels, labels[torch.arange(spare) % len(labels)]])
            for q in range(xs.shape[1]):
                outputs = kernel.outputs(xs[:, q], chunk, source).flatten(0, 1)
                outputs = pad(outputs, (0, 0, 0, spare))
                losses = cohort.workspace.loss.plain_rows(outputs, labels)
                losses = losses[: len(labels) - spare].double().cpu()
                if weights is not None:
                    losses = losses * weights.cpu()
                by_client = losses.view(len(counts), -1)
                for i, count, values in zip(
                    chunk.members, counts, by_client, strict=True
                ):
                    mass = cohort.mass(i, part, batch_size)
                    result[i, q] = values[:count].sum() / mass
                cohort.spent["row_losses"] += sum(counts)
    return result


def _by_part(parts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Return which clients are asked about each part."""
    clients: dict[str, list[int]] = {}
    for i, part in enumerate(parts):
        clients.setdefault(part, []).append(i)
    return list(clients.items())


def _together(
    cohort: Cohort, clients: Sequence[int], part: str, batch_size: int | None
) -> list[int]:
    """Return the clients that a kernel can answer for. Whether it can for one has nothing to do with the others."""
    kernel = cohort.workspace.batched
    if kernel is None or part == "fresh" or not kernel.layers[0].inputs:
        return []
    per_row = row_size(cohort.rows_of(part, clients[0]).inputs)
    return [
        i
        for i in clients
        if 0 < cohort.batch_rows(i, part, batch_size) * per_row <= ELEMENTS
    ]


def _kernel_calls(
    cohort: Cohort,
    clients: Sequence[int],
    part: str,
    batch_size: int | None,
    purpose: str,
) -> Iterator[tuple[Batched, Chunk, RowSource]]:
    """Clients that are asked together, and where their rows come from."""
    if not clients:
        return
    all_rows = cohort.rows_of(part, clients[0])
    positions = [all_rows.positions(cohort.index[i]) for i in clients]

    def place(member: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return pick_rows(positions[member], numbers)

    # A single step of each client.
    chosen = []
    for i in clients:
        numbers = cohort.batch_numbers(i, part, batch_size, purpose)
        if numbers is None:
            numbers = np.arange(cohort.size(i, part))
        chosen.append([numbers])
    source = cohort.source_of(all_rows)
    kernel = cast("Batched", cohort.workspace.batched)
    per_row = row_size(all_rows.inputs)

    def width(rows: int) -> int:
        return max(1, min(kernel.width(rows), NUMBERS // (rows * per_row)))

    for chunk in chunks(chosen, width, place, ROWS):
        members = [clients[member] for member in chunk.members]
        yield kernel, chunk._replace(members=members), source
