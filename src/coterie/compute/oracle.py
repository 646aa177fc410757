"""Gradients and losses of many clients, each at a model of its own, in few calls.

Where a batched kernel knows the model, the rows of several clients go through one product each, filled up to a multiple of `ROWS` of
their own number. So what a client answers has the same bits whatever clients share the call. All others are asked one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from coterie.base.rows import ELEMENTS, row_size
from coterie.compute.cohort import Cohort
from coterie.compute.cohort_rows import pick_rows
from coterie.compute.kernels import GRADIENT, Batched, Feed
from coterie.compute.row_source import source_of
from coterie.compute.segments import LANES, Chunk, RowSource, chunks
from coterie.contract.exchange import HELD_BYTES
from coterie.contract.task import Form, OneGradient

ROWS = 16
"""Rows of a client are filled up to a multiple of this."""
NUMBERS = 1 << 21
"""Numbers in the inputs of a call at most, unless they are one client's."""


@dataclass(frozen=True)
class _Call:
    """Clients that are asked together, with the rows that they answer about.

    Attributes:
        kernel: Makes the products.
        chunk: The clients, and one batch of each.
        source: Where its rows are read.
    """

    kernel: Batched
    chunk: Chunk
    source: RowSource

    @cached_property
    def feed(self) -> Feed:
        """The rows as the kernel takes them."""
        return next(self.kernel.feed(self.chunk, self.source))

    @cached_property
    def labels(self) -> Tensor:
        """Labels of all rows, one client behind the other.

        Filled up to full vector registers, so that no row's loss depends on how many rows there are.
        """
        labels = self.source.labels(torch.from_numpy(self.chunk.rows[0].reshape(-1)))
        spare = -len(labels) % LANES
        return labels[torch.arange(len(labels) + spare) % len(labels)]

    @property
    def weights(self) -> Tensor | None:
        """Weights of all rows, likewise but not filled up; None where rows count alike."""
        if self.source.weights is None:
            return None
        return self.source.weights(torch.from_numpy(self.chunk.rows[0].reshape(-1)))


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
        calls, others = _calls(cohort, clients, part, **row_choice)
        for i in others:
            result[i] = cohort.only([i]).gradient(x[i], part=part, **row_choice)[0]
        for call in calls:
            call.kernel.train(x, call.chunk, [call.feed], GRADIENT, result)
            if call.weights is not None and batch_size is None:
                for i in call.chunk.members:
                    result[i] *= cohort.size(i, part) / cohort.mass(i, part, None)
            cohort.spent["row_gradients"] += int(call.chunk.counts.sum())
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
        calls, others = _calls(cohort, clients, part, **row_choice)
        if cohort.workspace.veil is not None:  # `Cohort.losses` hides what one row adds
            calls, others = (), clients
        for i in others:
            result[i] = cohort.only([i]).losses(xs[i], part=part, **row_choice)[0]
        for call in calls:
            counts = call.chunk.counts[0].tolist()
            row_count = call.chunk.rows[0].size
            for q in range(xs.shape[1]):
                outputs = call.kernel.outputs(xs[:, q], call.chunk, call.feed[0])
                outputs = outputs.flatten(0, 1)
                outputs = pad(outputs, (0, 0, 0, len(call.labels) - row_count))
                losses = cohort.workspace.loss.plain_rows(outputs, call.labels)
                losses = losses[:row_count].double().cpu()
                if call.weights is not None:
                    losses = losses * call.weights.cpu()
                by_client = losses.view(len(counts), -1)
                means = []
                for i, count, values in zip(
                    call.chunk.members, counts, by_client.unbind(), strict=True
                ):
                    mass = cohort.mass(i, part, batch_size)
                    means.append(values[:count].sum() / mass)
                result[call.chunk.members, q] = torch.stack(means)
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


def _calls(
    cohort: Cohort,
    clients: Sequence[int],
    part: str,
    batch_size: int | None,
    purpose: str,
) -> tuple[Iterable[_Call], Sequence[int]]:
    """Return the calls that ask these clients about their batches, and the clients that must be asked one by one.

    A descent asks about all rows of the same targets in each of its steps: where these are few, they are read once in a run.
    """
    workspace = cohort.workspace
    # A call names clients by their positions in the cohort.
    asked = cohort.index, tuple(clients)
    kept: tuple[Sequence[_Call], Sequence[int]]
    kept_rows, kept_asked, kept = workspace.kept_calls.get(part, (None, None, None))
    asks_all = batch_size is None and workspace.fewest_rows <= 1
    if (
        asks_all
        and kept_asked == asked
        and kept_rows is cohort.rows_of(part, clients[0])
    ):
        return kept

    in_kernel = _together(cohort, clients, part, batch_size)
    others = sorted({*clients}.difference(in_kernel))
    if not in_kernel:
        return (), others
    numbers = [cohort.batch_numbers(i, part, batch_size, purpose) for i in in_kernel]
    calls = _make_calls(cohort, in_kernel, part, numbers)

    all_rows = cohort.rows_of(part, clients[0])
    row_count = sum(cohort.size(i, part) for i in in_kernel)
    byte_count = row_count * row_size(all_rows.inputs) * cohort.layout.dtype.itemsize
    if asks_all and isinstance(all_rows.inputs, Tensor) and byte_count <= HELD_BYTES:
        kept = list(calls), others
        workspace.kept_calls[part] = all_rows, asked, kept
        return kept
    return calls, others


def _make_calls(
    cohort: Cohort,
    clients: Sequence[int],
    part: str,
    numbers: Sequence[NDArray[np.int64] | None],
) -> Iterator[_Call]:
    """Yield the calls that ask these clients about the rows of these numbers among their own; None: all."""
    all_rows = cohort.rows_of(part, clients[0])
    positions = [all_rows.positions(cohort.index[i]) for i in clients]

    def place(member: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return pick_rows(positions[member], numbers)

    # A single step of each client.
    chosen = []
    for i, of_client in zip(clients, numbers, strict=True):
        if of_client is None:
            of_client = np.arange(cohort.size(i, part))
        chosen.append([of_client])
    source = source_of(cohort.workspace, all_rows)
    kernel = cast("Batched", cohort.workspace.batched)
    per_row = row_size(all_rows.inputs)

    def width(rows: int) -> int:
        return max(1, min(kernel.width(rows), NUMBERS // (rows * per_row)))

    for chunk in chunks(chosen, width, place, ROWS):
        members = [clients[member] for member in chunk.members]
        yield _Call(kernel, chunk._replace(members=members), source)
