"""Many clients side by side: `Segments` say whose rows these are, `Chunk` which clients a batched kernel trains together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from coterie.base.loss import IGNORED, Kind

LANES = 64
"""A multiple of the numbers that a vector unit takes at once; the few left over behind are rounded otherwise."""


@dataclass(frozen=True)
class Segments:
    """The clients to which rows belong: those of `count` clients lie behind each other in the order of the clients.

    Sums run one row after the other, so that a client's does not depend on who lies beside it.

    Attributes:
        place: The client of each row, int64 [rows].
        count: Number of clients.
        weights: By which each row counts, float64 [rows]; None: once.
    """

    place: Tensor
    count: int
    weights: Tensor | None = None

    @classmethod
    def of(cls, sizes: Sequence[int] | NDArray[np.int64]) -> Segments:
        """Return those of clients with so many rows each."""
        return cls(
            torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)), len(sizes)
        )

    @cached_property
    def sizes(self) -> Tensor:
        """Rows of each client, or the sum of their weights, float64 [n]."""
        if self.weights is not None:
            return torch.bincount(self.place, self.weights, self.count)
        return torch.bincount(self.place, minlength=self.count).double()

    def sum(self, values: Tensor) -> Tensor:
        """Sum values [rows], times their weights, by client, float64 [n]."""
        values = values.double()
        if self.weights is not None:
            values = values * self.weights
        return torch.bincount(self.place, values, self.count)

    def mean(self, values: Tensor) -> Tensor:
        """Average values [rows] by client, float64 [n]; NaN where there are no rows."""
        return self.sum(values) / self.sizes

    def repeat(self, labels: Tensor) -> Segments:
        """Return whose the labels [rows, ...] are, one after the other."""
        if labels.ndim == 1:
            return self
        per_row = labels[:1].numel()
        weights = self.weights
        if weights is not None:
            weights = weights.repeat_interleave(per_row)
        return Segments(self.place.repeat_interleave(per_row), self.count, weights)

    def divide(self, classes: Tensor, width: int) -> Segments:
        """Return the rows of each client by their class [rows], one of `width`; sums are [n * width]."""
        place = self.place * width + classes
        return Segments(place, self.count * width, self.weights)

    def ties(self, score: Tensor) -> tuple[Tensor, Tensor]:
        """Return to which group of equal scores each row belongs [rows], and of which client each group is, ascending."""
        # By score, then by client: the second sort is stable, so that a client's scores stay in order.
        order = score.argsort(stable=True)
        order = order[self.place[order].argsort(stable=True)]
        scores, clients = score[order], self.place[order]
        begins_tie = torch.ones(len(order), dtype=torch.bool)
        begins_tie[1:] = (scores[1:] != scores[:-1]) | (clients[1:] != clients[:-1])
        ties_in_order = begins_tie.cumsum(0) - 1
        ties = torch.empty_like(order).scatter_(0, order, ties_in_order)
        return ties, clients[begins_tie]

    def cumulate(self, values: Tensor) -> Tensor:
        """Add up numbers [rows] from the first row of each client on, float64 [rows]."""
        if not bool((values == values.round()).all()):
            # What was added up before a client would round its own sums.
            own = values.double().split(self.sizes.long().tolist())
            return torch.cat([part.cumsum(0) for part in own])
        total = values.double().cumsum(0)
        earlier_sum = self.sum(values).cumsum(0) - self.sum(values)
        return total - earlier_sum[self.place]


def pad_and_apply(function: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """Apply a function number by number, so that what it gives for one does not depend on how many there are."""
    shape, count = values[0].shape, values[0].numel()
    spare = -count % LANES
    padded = [pad(value.reshape(-1), (0, spare)) for value in values]
    return function(*padded)[:count].view(shape)


def probabilities(kind: str, outputs: Tensor) -> Tensor:
    """Return class probabilities [rows, C, ...]; for one logit C = 2.

    Args:
        kind: How the outputs are read: binary, classes or multilabel. Own losses are read as C logits in dimension 1.
        outputs: Outputs of the model for some rows, [rows, ...].

    >>> probabilities("binary", torch.tensor([0.0, 2.0]))
    tensor([[0.5000, 0.5000],
            [0.1192, 0.8808]])
    """
    if kind == "binary":
        logit = outputs
        if outputs.ndim > 1 and outputs.shape[1] == 1:
            logit = outputs.squeeze(1)
        positive = pad_and_apply(torch.sigmoid, logit)
        return torch.stack([1 - positive, positive], dim=1)
    if kind == "multilabel":
        return torch.sigmoid(outputs)
    return torch.softmax(outputs, dim=1)


def count_hits(
    outputs: Tensor, labels: Tensor, kind: Kind, segments: Segments
) -> tuple[Tensor, Tensor, Segments]:
    """Return which predictions are right, the labels, and whose they are, flat, without positions that are ignored."""
    predicted = probabilities(kind, outputs).argmax(dim=1).reshape(-1)
    cells, classes = segments.repeat(labels), labels.reshape(-1)
    counted = classes != IGNORED
    if not bool(counted.all()):
        predicted, classes = predicted[counted], classes[counted]
        weights = cells.weights
        if weights is not None:
            weights = weights[counted]
        cells = Segments(cells.place[counted], segments.count, weights)
    return (predicted == classes).double(), classes.long(), cells


def areas(score: Tensor, positive: Tensor, segments: Segments) -> Tensor:
    """Share of pairs of a positive and a negative row of a client that `score` [rows] puts in order, ties counted half.

    By ranks (Mann and Whitney): with n1 positive rows of rank sum R and n0 others it is (R - n1 (n1 + 1) / 2) / (n1 n0). Of rows
    with weights a pair counts the product of both.
    """
    tie, client = segments.ties(score)
    if segments.weights is not None:
        return _weighted_areas(tie, client, positive, segments)
    counts = Segments(tie, len(client)).sum(torch.ones(len(tie)))
    last_ranks = Segments(client, segments.count).cumulate(counts)
    ranks = (last_ranks - (counts - 1) / 2)[tie]  # the mean rank of a tie
    n1 = segments.sum(positive)
    won_pairs = segments.sum(ranks * positive) - n1 * (n1 + 1) / 2
    return won_pairs / (n1 * (segments.sizes - n1))


def _weighted_areas(
    tie: Tensor, client: Tensor, positive: Tensor, segments: Segments
) -> Tensor:
    by_tie = Segments(tie, len(client), segments.weights)
    negative = by_tie.sum(1.0 - positive.double())
    # Weight of negative rows below a tie, and half of those in it.
    below = Segments(client, segments.count).cumulate(negative) - negative / 2
    n1, n0 = segments.sum(positive), segments.sum(1.0 - positive.double())
    # A sum of products may be rounded above the product of sums.
    return (segments.sum(below[tie] * positive) / (n1 * n0)).clamp(0.0, 1.0)


# ---- chunks of clients

Array = NDArray[np.int64]
Gather = Callable[[Tensor], Tensor]
"""Row numbers [r] -> what these rows hold [r, ...]."""


class RowSource(NamedTuple):
    """A source of rows: inputs as the model takes them, labels, and weights, where rows do not count alike."""

    inputs: Gather
    labels: Gather
    weights: Gather | None = None


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
    # The form of a client: rows of its batches, and whether it has a single step.
    forms = []
    for batches in chosen:
        longest = max(map(len, batches))
        forms.append((-(-longest // filled) * filled, len(batches) == 1))
    for form in sorted(set(forms)):
        size, _ = form
        same_form = [i for i, own_form in enumerate(forms) if own_form == form]
        same_form.sort(key=lambda i: -len(chosen[i]))
        # Of about equal width: a step of a narrow chunk costs nearly as many calls as one of a wide one.
        total = len(same_form)
        count = -(-total // width(size))
        for number in range(count):
            first, last = total * number // count, total * (number + 1) // count
            members = same_form[first:last]
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
