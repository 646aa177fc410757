"""The rows of a cohort's clients: how many there are, and batches of them as the model takes them; and what the clients remember."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.clients import PARTS, Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng, fork_generators, seed_noise
from coterie.base.rows import Inputs, Part, Rows, row_size, rows, take_rows
from coterie.base.vector import Layout
from coterie.compute.segments import Segments
from coterie.compute.workspace import Workspace
from coterie.contract.memory import ClientState, MemoryView

Batch = tuple[Inputs, Tensor]
BLOCK = 1 << 24
"""Elements gathered at once for several local steps."""
GROUP = 1 << 22
"""Numbers in the inputs, or labels, of clients that are evaluated together."""


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
        return (
            self.clients.draw is not None
            if part == "fresh"
            else self.size(client, part) > 0
        )

    def batch_rows(self, client: int, part: str, batch_size: int | None) -> int:
        """Return the number of rows of a batch of this size; None: of all rows."""
        if part == "fresh" and batch_size is not None:
            return batch_size
        size = self.size(client, part)
        return size if batch_size is None else min(size, batch_size)

    def require_enough(
        self, client: int, numbers: NDArray[np.int64] | None, part: str = "train"
    ) -> None:
        """Raise `InputError` if a gradient or a loss would rest on too few different rows (None: all of the part)."""
        fewest = self.workspace.fewest_rows
        if (
            fewest > 1
            and (
                self.size(client, part) if numbers is None else len(np.unique(numbers))
            )
            < fewest
        ):
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
        """Return the labels of a client."""
        return self.rows_of(part, client).part(self.index[client]).labels

    def groups(self, part: str) -> Iterator[list[int]]:
        """Yield the clients that have rows of this part, as many at a time as have few numbers in all."""
        all_rows: Rows | None = getattr(self.clients, part)
        if all_rows is None:
            return
        places = np.asarray(self.index, dtype=np.int64)
        sizes = all_rows.offsets[places + 1] - all_rows.offsets[places]
        (present,) = np.nonzero(sizes)
        per_row = max(row_size(all_rows.inputs), all_rows.labels[:1].numel())
        group = (np.cumsum(sizes[present]) * per_row) // GROUP
        for number in np.unique(group):
            yield present[group == number].tolist()

    def labels_of(self, group: Sequence[int], part: str) -> tuple[Tensor, Segments]:
        """Return the labels of some clients on the CPU, and whose they are."""
        all_rows: Rows = getattr(self.clients, part)
        places = np.array([self.index[i] for i in group])
        low, sizes = (
            all_rows.offsets[places],
            all_rows.offsets[places + 1] - all_rows.offsets[places],
        )
        row_numbers = (
            _runs(low, sizes)
            if all_rows.index is None
            else all_rows.index[_runs(low, sizes)]
        )
        return take_rows(
            all_rows.labels, torch.from_numpy(row_numbers)
        ).cpu(), Segments.of(sizes)

    def training_rows(self, client: int, numbers: NDArray[np.int64] | None) -> Batch:
        """Return a client's training rows of these numbers, or all, as the model takes them."""
        return self._ready(self._select(self.clients.train, client, numbers))

    def _select(
        self, part: Rows, client: int, numbers: NDArray[np.int64] | None
    ) -> Part:
        places = part.positions(self.index[client])
        if numbers is not None:
            places = (
                numbers + places.start if isinstance(places, slice) else places[numbers]
            )
        return Part(part.inputs, part.labels).select(
            places if isinstance(places, slice) else torch.from_numpy(places)
        )

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
        changed = []
        with fork_generators():
            for k in range(rows(inputs)):
                stream = streams.child(start + k)
                seed_noise(
                    stream.seed()
                )  # for transforms that draw from a global generator
                changed.append(transform(_row(inputs, k), stream))
        return self.workspace.prepare(
            {
                key: _stack([row[key] for row in changed], value)
                for key, value in inputs.items()
            }
            if isinstance(inputs, dict)
            else _stack(changed, inputs)
        )

    def restart_layers(self, client: int, purpose: str) -> None:
        """Begin anew what the layers draw and count, as it is the client's and named by the seed."""
        self.workspace.restart_counters()
        if self.workspace.random:
            self.workspace.seed_noise(self.rng(client, f"{purpose}/layers").seed())

    def chunks(
        self,
        x: Tensor,
        part: str,
        batch_size: int | None,
        purpose: str,
        mode: str,
        share: slice | None = None,
        *,
        load: bool = True,
    ) -> Iterator[tuple[int, Inputs, Tensor]]:
        """Read the batch of every client in turn, with the client's model loaded.

        Args:
            x: Model [d + b], or one per client [n, d + b].
            part: Part of the rows, or `fresh`.
            batch_size: Rows of a random batch; None: all rows.
            purpose: Name of the random batch.
            mode: `eval` or `train`.
            share: Some rows of the batch.
            load: Leave the model as it is if false.

        Yields:
            Position of the client, inputs and labels of some rows at once (`Part.chunks`).
        """
        if mode not in ("eval", "train"):
            raise InputError(f"mode must be eval or train; got {mode!r}")
        workspace = self.workspace
        # Only on a change: it walks through all modules.
        if workspace.model.training != (mode == "train"):
            workspace.train(mode == "train")
        if load and x.ndim == 1:
            workspace.load(x)
        noisy = mode == "eval" and workspace.always_random
        with workspace.noise() if noisy else contextlib.nullcontext():
            for i in range(len(self.names)):
                if load and x.ndim > 1:
                    workspace.load(x[i])
                if mode == "train" or noisy:
                    self.restart_layers(
                        i, purpose if share is None else f"{purpose}/{share.start}"
                    )
                start = 0 if share is None else share.start or 0
                for piece in self._batch(i, part, batch_size, purpose, share).chunks():
                    inputs, labels = self._ready(piece)
                    if mode == "train" and part == "train":
                        inputs = self.transform(i, inputs, purpose, start)
                    start += len(labels)
                    yield i, inputs, labels

    def _batch(
        self,
        client: int,
        part: str,
        batch_size: int | None,
        purpose: str,
        share: slice | None,
    ) -> Part:
        if part == "fresh":
            fresh_rows = self._draw(
                client, batch_size, self.rng(client, purpose).child(part)
            )
            return fresh_rows if share is None else fresh_rows.select(share)
        part_rows = self.rows_of(part, client)
        return self._select(
            part_rows,
            client,
            self.batch_numbers(client, part, batch_size, purpose, share),
        )

    def batch_numbers(
        self,
        client: int,
        part: str,
        batch_size: int | None,
        purpose: str,
        share: slice | None = None,
    ) -> NDArray[np.int64] | None:
        """Return the row numbers of a batch among the client's own rows; None: all rows in their order. Arguments as for `chunks`."""
        numbers = None
        if share is not None or (
            batch_size is not None and batch_size < self.size(client, part)
        ):
            numbers = (
                self.rng(client, purpose)
                .child(part)
                .permutation(self.size(client, part), batch_size)
            )
            numbers = numbers if share is None else numbers[share]
        self.require_enough(client, numbers, part)
        return numbers

    def _draw(self, client: int, batch_size: int | None, rng: Rng) -> Part:
        if self.clients.draw is None or batch_size is None:
            raise InputError(
                f"fresh rows of client {self.names[client]!r} cannot be drawn: that takes data whose distribution is known, as "
                "mean-estimation or clients made with `with_draw`, and a batch size; take validation or train rows"
            )
        return self.clients.draw(self.names[client], batch_size, rng)


@torch.no_grad()
def answers_of(
    workspace: Workspace, all_rows: Rows, clients: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Outputs and losses that the loaded model gives for all rows of some clients, one client behind the other, on the CPU.

    Rows are read in blocks of one of the workspace's heights. A client's begin at a multiple of the least; where they end before one,
    its first row fills up. Without heights each client is read by itself.

    Args:
        workspace: With the model.
        all_rows: Rows of all clients in one part.
        clients: Positions of the clients, which have rows of this part.
    """
    outputs, losses = [], []
    if not workspace.heights:
        workspace.train(False)
        for client in clients:
            part = all_rows.part(client)
            # A model whose output is its parameter would give that parameter.
            chunks = [
                workspace.model(workspace.prepare(chunk.read())).detach()
                for chunk in part.chunks()
            ]
            outputs.append(torch.cat(chunks))
            losses.append(
                workspace.loss.rows(outputs[-1], part.labels.to(workspace.device)).cpu()
            )
        return torch.cat([answer.cpu() for answer in outputs]), torch.cat(losses)
    owners, lowest_height = np.asarray(clients), workspace.heights[-1]
    low, sizes = (
        all_rows.offsets[owners],
        all_rows.offsets[owners + 1] - all_rows.offsets[owners],
    )
    padded_sizes = -(-sizes // lowest_height) * lowest_height
    number = _runs(np.zeros_like(padded_sizes), padded_sizes)
    counts = number < np.repeat(sizes, padded_sizes)
    row_numbers = np.repeat(low, padded_sizes) + number * counts
    places = torch.from_numpy(
        row_numbers if all_rows.index is None else all_rows.index[row_numbers]
    )
    counted = torch.from_numpy(counts)
    begin, end, part = 0, len(number), Part(all_rows.inputs, all_rows.labels)
    while begin < end:
        height = next(h for h in workspace.heights if h <= end - begin)
        piece = part.select(places[begin : begin + height])
        answer, values = workspace.answer(
            workspace.prepare(piece.read()), piece.labels.to(workspace.device)
        )
        outputs.append(answer.cpu())
        losses.append(values.cpu())
        begin += height
    return torch.cat(outputs)[counted], torch.cat(losses)[counted]


def _runs(low: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return low[0], low[0] + 1, ..., so many numbers as sizes[0] says, then those from low[1] on."""
    return np.repeat(low - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


def _row(inputs: Inputs, k: int) -> Any:
    return (
        {key: value[k] for key, value in inputs.items()}
        if isinstance(inputs, dict)
        else inputs[k]
    )


def _stack(changed: list[Tensor], inputs: Tensor) -> Tensor:
    for row in changed:
        if not isinstance(row, Tensor) or (row.shape, row.dtype) != (
            inputs.shape[1:],
            inputs.dtype,
        ):
            shape = (
                f"{tuple(row.shape)} and {row.dtype}"
                if isinstance(row, Tensor)
                else type(row).__name__
            )
            form = f"{tuple(inputs.shape[1:])} and {inputs.dtype}"
            raise InputError(f"the transform of rows gave {shape}; it must keep {form}")
    return torch.stack(changed)
