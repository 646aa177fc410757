"""The rows of a cohort's clients: how many there are, and batches of them as the model takes them; and what the clients remember."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.clients import PARTS, Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.rows import (
    Inputs,
    Part,
    Rows,
)
from coterie.base.vector import Layout
from coterie.compute.outcomes import count_effective
from coterie.compute.row_transforms import transform_rows
from coterie.compute.workspace import Workspace
from coterie.contract.memory import ClientState, MemoryView

Batch = tuple[Inputs, Tensor]
BLOCK = 1 << 24
"""Elements gathered at once for several local steps."""


@dataclass(frozen=True)
class CohortRows:
    """The clients that a task is run for, with their rows. A client is named by its position among them.

    Attributes:
        names: Sorted names of the n clients.
        workspace: Model and loss of this process.
        clients: Holder of the rows.
        index: Positions of the cohort's clients in the holder.
        memory: What these clients keep between rounds.
        seed, round: Of the run; they name the randomness.
        spent: Rows through gradients and through forward passes, counted as work is done.
    """

    names: tuple[str, ...]
    workspace: Workspace
    clients: Clients
    index: tuple[int, ...]
    memory: MemoryView
    seed: int
    round: int
    spent: dict[str, int]

    @property
    def layout(self) -> Layout:
        """Layout of model vectors."""
        return self.workspace.layout

    @property
    def sizes(self) -> Tensor:
        """Training rows of each client, float64 [n]."""
        return torch.tensor(
            [self.size(i) for i in range(len(self.names))], dtype=torch.float64
        )

    def rng(self, client: int, purpose: str) -> Rng:
        """Return the stream of (seed, round, client, purpose)."""
        return self._streams.child(self.names[client], purpose)

    @cached_property
    def _streams(self) -> Rng:
        return Rng.named(self.seed, self.round)

    # ---- what they remember

    def state(self, key: str, default: Tensor) -> ClientState:
        """Return what the clients keep under `key`: values [n, ...], in which round each was written, whether the server counted it.

        The server counts a value when it accepts a reply of the task that wrote it (`replies.forgot`).

        Args:
            key: name of the state; without `/`.
            default: value of a client that keeps nothing, without client dimension.
        """
        return self.memory.state(key, default)

    def keep(self, key: str, values: Tensor) -> None:
        """Let the clients keep `values` [n, ...] under `key` for later rounds; they count only if the task ends well."""
        self.memory.put(key, values)

    def note(self, key: str, values: Tensor, *of: Any) -> None:
        """Keep `values` [n, ...] under `key` for later tasks of this round, which get them from `recall`.

        Args:
            key: key of the notes.
            values: of each client; they must not change any more.
            of: all that they were computed from beside the clients: tensors, numbers, settings.
        """
        self.memory.note(key, values, (self.seed, *of))

    # ---- how many

    def size(self, client: int, part: str = "train") -> int:
        """Return the number of rows that a client has in `train`, `validation` or `test`."""
        all_rows: Rows | None = getattr(self.clients, part)
        if all_rows is None:
            return 0
        # Not `all_rows.sizes`: its cost grows with the number of clients that exist.
        place = self.index[client]
        return int(all_rows.offsets[place + 1] - all_rows.offsets[place])

    def has(self, client: int, part: str) -> bool:
        """Return True if the client has rows of this part."""
        if part == "fresh":
            return self.clients.draw is not None
        return self.size(client, part) > 0

    def batch_rows(self, client: int, part: str, batch_size: int | None) -> int:
        """Return the number of rows of a batch of this size; None: of all rows."""
        if part == "fresh" and batch_size is not None:
            return batch_size
        size = self.size(client, part)
        if batch_size is None:
            return size
        return min(size, batch_size)

    def require_enough(
        self, client: int, numbers: NDArray[np.int64] | None, part: str = "train"
    ) -> None:
        """Raise `InputError` if a gradient or a loss would rest on too few different rows (None: all of the part).

        Where rows have weights it counts effective ones.
        """
        fewest = self.workspace.fewest_rows
        if fewest <= 1:
            return
        weights = self.weights(client, part)
        if weights is not None:
            chosen = np.arange(len(weights)) if numbers is None else numbers
            different = count_effective(chosen, weights.numpy()[chosen])
        elif numbers is None:
            different = self.size(client, part)
        else:
            different = len(np.unique(numbers))
        if different < fewest:
            raise InputError(
                f"client {self.names[client]!r} computes nothing of fewer than {fewest} different rows"
            )

    # ---- which

    def rows_of(self, part: str, client: int) -> Rows:
        """Return the rows of all clients in this part. Raises `InputError` if this client has none of them."""
        if part not in PARTS:
            raise InputError(f"part must be {', '.join(PARTS)}; got {part!r}")
        all_rows: Rows | None = getattr(self.clients, part)
        if all_rows is None or not self.size(client, part):
            raise InputError(f"client {self.names[client]!r} has no {part} rows")
        return all_rows

    def labels(self, client: int, part: str = "train") -> Tensor:
        """Return the labels of a client, without the weights of its rows."""
        stored = self.rows_of(part, client).part(self.index[client]).labels
        return self.workspace.loss.plain(stored)

    def weights(self, client: int, part: str = "train") -> Tensor | None:
        """Return the weight of each row of a client, float64 [rows]; None where all rows count alike."""
        if self.workspace.loss.weighted is None:
            return None
        stored = self.rows_of(part, client).part(self.index[client]).labels
        return self.workspace.loss.weights(stored)

    def mass(self, client: int, part: str, batch_size: int | None) -> float:
        """Return what the sum of losses over a batch is divided by for their mean: the rows, or of all rows the sum of weights."""
        weights = None
        if batch_size is None and part != "fresh":
            weights = self.weights(client, part)
        if weights is None:
            return self.batch_rows(client, part, batch_size)
        return float(weights.sum())

    def training_rows(self, client: int, numbers: NDArray[np.int64] | None) -> Batch:
        """Return a client's training rows of these numbers, or all, as the model takes them."""
        return self._ready(self._select(self.clients.train, client, numbers))

    def _select(
        self, part: Rows, client: int, numbers: NDArray[np.int64] | None
    ) -> Part:
        places = part.positions(self.index[client])
        if numbers is not None:
            places = pick_rows(places, numbers)
        all_rows = Part(part.inputs, part.labels)
        if isinstance(places, slice):
            return all_rows.select(places)
        return all_rows.select(torch.from_numpy(places))

    def _ready(self, part: Part) -> Batch:
        return self.workspace.prepare(part.read()), part.labels.to(
            self.workspace.device
        )

    def transform(
        self, client: int, inputs: Inputs, purpose: str, start: int = 0
    ) -> Inputs:
        """Return a client's rows as the clients' `transform` changes them, each with a stream of its own.

        Args:
            client: Position of the client.
            inputs: Rows as the model takes them.
            purpose: What they are read for.
            start: Place of the first of these rows among those that are read for it.
        """
        transform = self.clients.transform
        if transform is None:
            return inputs
        streams = self.rng(client, purpose).child("transform")
        changed = transform_rows(inputs, transform, streams, start)
        return self.workspace.prepare(changed)

    def restart_layers(self, client: int, purpose: str) -> None:
        """Begin anew what the layers draw and count, as it is the client's and named by the seed."""
        self.workspace.restart_counters()
        if self.workspace.random:
            self.workspace.seed_noise(self.rng(client, f"{purpose}/layers").seed())


def pick_rows(
    places: slice | NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return where a client's rows of these numbers are stored, of `Rows.positions`: a slice if they lie behind each other."""
    if isinstance(places, slice):
        first: int = places.start
        return numbers + first
    return places[numbers]
