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

from coterie.base.rows import ELEMENTS, row_size, take
from coterie.compute.cohort import Cohort
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
        veiled = cohort.workspace.veil is not None  # which `Cohort.losses` puts on
        in_kernel = [] if veiled else _together(cohort, clients, part, batch_size)
        for i in sorted({*clients}.difference(in_kernel)):
            result[i] = cohort.only([i]).losses(xs[i], part=part, **row_choice)[0]
        for kernel, chunk, source in _kernel_calls(
            cohort, in_kernel, part, **row_choice
        ):
            counts = chunk.counts[0].tolist()
            labels = source.labels(torch.from_numpy(chunk.rows[0].reshape(-1)))
            spare = -len(labels) % LANES
            labels = torch.cat([labels, labels[torch.arange(spare) % len(labels)]])
            for q in range(xs.shape[1]):
                outputs = pad(
                    kernel.outputs(xs[:, q], chunk, source).flatten(0, 1),
                    (0, 0, 0, spare),
                )
                losses = (
                    cohort.workspace.loss.rows(outputs, labels)
                    .double()
                    .cpu()[: len(labels) - spare]
                )
                by_client = losses.view(len(counts), -1)
                for i, count, values in zip(
                    chunk.members, counts, by_client, strict=True
                ):
                    result[i, q] = values[:count].sum() / count
                cohort.spent["row_losses"] += sum(counts)
    return result


def _by_part(parts: Sequence[str]) -> list[tuple[str, list[int]]]:
    return [
        (part, [i for i, name in enumerate(parts) if name == part])
        for part in dict.fromkeys(parts)
    ]


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
    all_rows, workspace = cohort.rows_of(part, clients[0]), cohort.workspace
    positions = [all_rows.positions(cohort.index[i]) for i in clients]

    def place(member: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = positions[member]
        return numbers + rows.start if isinstance(rows, slice) else rows[numbers]

    def all_or(numbers: NDArray[np.int64] | None, client: int) -> NDArray[np.int64]:
        return np.arange(cohort.size(client, part)) if numbers is None else numbers

    chosen = [
        [all_or(cohort.batch_numbers(i, part, batch_size, purpose), i)] for i in clients
    ]
    source = RowSource(
        lambda rows: cast(
            "Tensor", workspace.prepare(take(all_rows.inputs, rows))
        ),  # no kernel takes a dict
        lambda rows: all_rows.labels.index_select(
            0, rows.to(all_rows.labels.device)
        ).to(workspace.device),
    )
    kernel, per_row = cast("Batched", workspace.batched), row_size(all_rows.inputs)

    def width(rows: int) -> int:
        return max(1, min(kernel.width(rows), NUMBERS // (rows * per_row)))

    for chunk in chunks(chosen, width, place, ROWS):
        yield (
            kernel,
            chunk._replace(members=[clients[member] for member in chunk.members]),
            source,
        )
