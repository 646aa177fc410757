"""What the models of a cohort give at its rows: gradients, losses and metrics at given models, by client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.loss import Kind
from coterie.base.rng import Rng
from coterie.base.rows import Inputs, Part, Rows, row_size, take, take_rows
from coterie.compute import cohort_rows
from coterie.compute.cohort_rows import CohortRows
from coterie.compute.local_training import of_client
from coterie.compute.row_gradients import row_gradients
from coterie.compute.segments import Segments
from coterie.compute.workspace import Workspace

GROUP = 1 << 22
"""Numbers in the inputs, or labels, of clients that are evaluated together."""


class CohortLosses(CohortRows):
    """The clients that a task is run for, with gradients and losses of models at their rows."""

    def gradient(
        self,
        x: Tensor,
        *,
        part: str = "train",
        batch_size: int | None = None,
        purpose: str = "round",
        mode: str = "eval",
    ) -> Tensor:
        """Gradient of the mean loss at x, per client.

        Args:
            x: model [d + b], or one per client [n, d + b].
            part: `train`, `validation` or `test`; or `fresh`: rows that are drawn for this batch where the data can (`Clients.draw`).
            batch_size: rows of a random batch; None: all rows.
            purpose: name of the random batch: the same purpose gives the same batch in every ask of a round.
            mode: `eval`, or `train` for layers that behave differently in training.

        Returns:
            [n, d + b], 0 on the buffers.
        """
        return self._gradient(x, part, batch_size, purpose, mode, None)

    def gradients(
        self,
        x: Tensor,
        *,
        parts: int,
        part: str = "train",
        batch_size: int | None = None,
        purpose: str = "round",
        mode: str = "eval",
    ) -> Tensor:
        """Gradients of the mean losses of `parts` disjoint shares of the batch that `gradient` takes; sizes differ by at most one.

        Args:
            x: as for `gradient`, like all that follows but `parts`.
            parts: number of shares, >= 1 and at most the rows of a batch.
            part: part of the client's rows.
            batch_size: rows of all shares together; None: all rows.
            purpose: name of the random batch.
            mode: `eval` or `train`.

        Returns:
            [n, parts, d + b], 0 on the buffers.
        """
        for i, name in enumerate(self.names):
            rows = self.batch_rows(i, part, batch_size)
            if not 1 <= parts <= rows:
                raise InputError(
                    f"client {name!r}: a batch of {rows} rows cannot have {parts} parts"
                )
        # Every `parts`-th row of the batch; the whole batch is drawn and read as by `gradient`.
        shares: list[slice | None] = [None]
        if parts > 1:
            shares = [slice(k, None, parts) for k in range(parts)]
        gradients = [
            self._gradient(x, part, batch_size, purpose, mode, share)
            for share in shares
        ]
        return torch.stack(gradients, dim=1)

    def _gradient(
        self,
        x: Tensor,
        part: str,
        batch_size: int | None,
        purpose: str,
        mode: str,
        share: slice | None,
    ) -> Tensor:
        workspace, dim = self.workspace, self.layout.dim
        result = torch.empty(
            len(self.names),
            self.layout.size,
            dtype=self.layout.dtype,
            device=workspace.device,
        )
        if self.layout.size > dim:
            result[:, dim:] = 0
        kernel = workspace.batched
        if kernel is not None:
            x = x.to(workspace.x)
        mode_of_layers: contextlib.AbstractContextManager[None]
        mode_of_layers = contextlib.nullcontext()
        if mode == "train":
            mode_of_layers = workspace.training()
        # A client's batch comes in pieces: the gradient of the mean is the sum of theirs, by their shares of the rows.
        last_client = -1
        with mode_of_layers:
            for i, inputs, labels in self.chunks(
                x, part, batch_size, purpose, mode, share, load=kernel is None
            ):
                head = result[i, :dim]
                is_first = i > last_client
                count = self.batch_rows(i, part, batch_size)
                if share is not None:
                    count = len(range(count)[share])
                weight = len(labels) / count
                if share is None:
                    weight = len(labels) / self.mass(i, part, batch_size)
                if kernel is None:
                    grad = workspace.flat_gradient(inputs, labels)
                else:
                    # A kernel is found for no other inputs than a tensor; it may write straight into the result.
                    out = None
                    if is_first:
                        out = head
                    loss = workspace.loss
                    grad = kernel.gradient(
                        of_client(x, i),
                        cast("Tensor", inputs),
                        loss.plain(labels),
                        out=out,
                        weights=loss.weights(labels),
                    )
                if weight != 1:
                    grad = grad.mul_(weight)
                if not is_first:
                    head.add_(grad)
                elif grad is not head:
                    head.copy_(grad)
                last_client = i
                self.spent["row_gradients"] += len(labels)
        return result

    def sample_gradients(
        self, xs: Tensor, *, part: str = "train"
    ) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Gradient of each row at each of several models, in eval mode.

        Args:
            xs: models [q, d + b]. Some rows come at each model in turn, so that models can be compared in little memory.
            part: `train`, `validation` or `test`.

        Yields:
            Position of the client, number of the model, labels [r] of some of the client's rows, and their gradients [r, d].
        """
        rows_at_once = max(1, cohort_rows.BLOCK // (2 * self.layout.dim))
        for i, inputs, labels in self.chunks(xs[0], part, None, "round", "eval"):
            for low in range(0, len(labels), rows_at_once):
                piece_inputs = take(inputs, slice(low, low + rows_at_once))
                piece_labels = labels[low : low + rows_at_once]
                for number, x in enumerate(xs):
                    self.workspace.load(x)
                    self.spent["row_gradients"] += len(piece_labels)
                    yield (
                        i,
                        number,
                        self.workspace.loss.plain(piece_labels),
                        row_gradients(self.workspace, piece_inputs, piece_labels),
                    )

    @torch.no_grad()
    def loss(
        self,
        x: Tensor,
        *,
        part: str = "train",
        batch_size: int | None = None,
        purpose: str = "round",
    ) -> Tensor:
        """Mean loss at x over rows, float64 [n]; arguments as for `gradient`."""
        result = torch.zeros(len(self.names), dtype=torch.float64)
        for i, inputs, labels in self.chunks(x, part, batch_size, purpose, "eval"):
            mass = self.mass(i, part, batch_size)
            result[i] += self._sum_losses(inputs, labels) / mass
        veil = self.workspace.veil
        if veil is not None:
            for i in range(len(self.names)):
                count = self.batch_rows(i, part, batch_size)
                result[i] = veil.loss(float(result[i]), count, of_client(x, i))
        return result

    def _sum_losses(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """Sum of the losses of some rows at the loaded model, float64 []."""
        self.spent["row_losses"] += len(labels)
        outputs = self.workspace.model(inputs)
        losses = self.workspace.loss.rows(outputs, labels).double()
        if self.workspace.veil is not None:
            losses = self.workspace.veil.bound_losses(losses)
        return losses.sum().cpu()

    @torch.no_grad()
    def losses(
        self,
        xs: Tensor,
        *,
        part: str = "train",
        batch_size: int | None = None,
        purpose: str = "round",
    ) -> Tensor:
        """Mean losses of many candidate models, float64 [n, q]: candidates [q, d + b], or [n, q, d + b] for each client its own."""
        result = torch.zeros(len(self.names), xs.shape[-2], dtype=torch.float64)
        # Common candidates of several clients are each loaded once; else the rows of a client are each read once.
        if xs.ndim == 2 and len(self.names) > 1:
            for q, x in enumerate(xs):
                result[:, q] = self.loss(
                    x, part=part, batch_size=batch_size, purpose=purpose
                )
            return result
        own_candidates = xs.expand(len(self.names), *xs.shape[-2:])
        for i, inputs, labels in self.chunks(
            xs, part, batch_size, purpose, "eval", load=False
        ):
            mass = self.mass(i, part, batch_size)
            for q, x in enumerate(own_candidates[i]):
                self.workspace.load(x)
                result[i, q] += self._sum_losses(inputs, labels) / mass
        veil = self.workspace.veil
        if veil is not None:
            for i, candidates in enumerate(own_candidates):
                count = self.batch_rows(i, part, batch_size)
                for q, x in enumerate(candidates):
                    result[i, q] = veil.loss(float(result[i, q]), count, x)
        return result

    def evaluate(
        self,
        x: Tensor,
        metrics: Mapping[str, Callable[[Tensor, Tensor, Kind], float | None]],
        *,
        part: str = "test",
    ) -> dict[str, Tensor]:
        """Loss and metrics of x, per client.

        Losses are summed in float64. Metrics of a regression are in the unit of the label, its loss is that of the stored labels.

        Args:
            x: model [d + b], or one per client [n, d + b].
            metrics: by name, functions (outputs, labels, kind of task) -> number, or None where undefined. Their attribute `each`, if
                they have one, is a function (outputs, labels, kind, `Segments`) -> numbers [n] of many clients, NaN where undefined.
            part: `train`, `validation` or `test`. A client without such rows has n = 0 and no metric.

        Returns:
            `n` [n], `loss` [n] and one entry per metric, float64 [n]; NaN where undefined.
        """
        count, loss = len(self.names), self.workspace.loss
        scale, veil = self.clients.label_scale, self.workspace.veil
        measures = {
            name: torch.full((count,), nan, dtype=torch.float64)
            for name in ("loss", *metrics)
        }
        row_counts = torch.zeros(count, dtype=torch.float64)
        for group in self.groups(part):
            labels, segments = self.labels_of(group, part)
            outputs, losses = self.answers(group, x, part)
            rows = Segments(segments.place, segments.count)
            row_counts[group] = rows.sizes
            # Losses are multiplied by weights already.
            measures["loss"][group] = rows.sum(losses) / segments.sizes
            if loss.kind == "regression":
                outputs, labels = scale.undo(outputs), scale.undo(labels)
            outputs = loss.read(outputs)
            sizes = rows.sizes.long().tolist()
            for name, metric in metrics.items():
                by_segment = getattr(metric, "each", None)
                if by_segment is not None:
                    measured = by_segment(outputs, labels, loss.kind, segments)
                else:
                    kinds: list[Any] = [loss.kind] * len(sizes)
                    columns = [outputs.split(sizes), labels.split(sizes), kinds]
                    if segments.weights is not None:
                        columns.append(segments.weights.split(sizes))
                    measured = _as_column(
                        metric(*values) for values in zip(*columns, strict=True)
                    )
                if measured is not None:
                    measures[name][group] = measured
            if veil is None:
                continue
            for i, client_labels in zip(group, labels.split(sizes), strict=True):
                values = {name: float(column[i]) for name, column in measures.items()}
                veiled = veil.evaluation(values, client_labels, of_client(x, i))
                for name, value in veiled.items():
                    measures[name][i] = value
        return {**measures, "n": row_counts}

    @torch.no_grad()
    def answers(
        self, group: Sequence[int], x: Tensor, part: str
    ) -> tuple[Tensor, Tensor]:
        """Outputs and losses of all rows of some clients, one client behind the other, on the CPU."""
        workspace, all_rows = self.workspace, getattr(self.clients, part)
        for i in group:
            self.require_enough(i, None, part)
        # Clients of one model are read together, each of several models by itself.
        readings: list[tuple[Tensor, Sequence[int]]] = [(x, group)]
        if x.ndim > 1:
            readings = [(x[i], [i]) for i in group]
        pairs = []
        for start, readers in readings:
            workspace.load(start)
            if not workspace.always_random:
                places = [self.index[i] for i in readers]
                pairs.append(answers_of(workspace, all_rows, places))
                continue
            # Layers that draw also in evaluation draw by the client, so that it does not matter who is read before it.
            with workspace.noise():
                for i in readers:
                    self.restart_layers(i, "round")
                    pairs.append(answers_of(workspace, all_rows, [self.index[i]]))
        outputs = torch.cat([of_readers for of_readers, _ in pairs])
        losses = torch.cat([of_readers for _, of_readers in pairs])
        self.spent["row_losses"] += len(losses)
        if workspace.veil is not None:
            return outputs.nan_to_num(), workspace.veil.bound_losses(losses)
        return outputs, losses

    # ---- rows, as they are read for this

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
        """Return the labels of some clients on the CPU without weights, and whose they are; these have the weights."""
        stored, segments = self.stored_labels_of(group, part)
        loss = self.workspace.loss
        weighted = Segments(segments.place, segments.count, loss.weights(stored))
        return loss.plain(stored), weighted

    def stored_labels_of(
        self, group: Sequence[int], part: str
    ) -> tuple[Tensor, Segments]:
        """Return the labels of some clients on the CPU as the loss takes them, and whose they are."""
        all_rows: Rows = getattr(self.clients, part)
        places = np.array([self.index[i] for i in group])
        low = all_rows.offsets[places]
        sizes = all_rows.offsets[places + 1] - low
        row_numbers = _stored_numbers(all_rows, _runs(low, sizes))
        labels = take_rows(all_rows.labels, row_numbers)
        return labels.cpu(), Segments.of(sizes)

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
        noise: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if noisy:
            noise = workspace.noise()
        # Each share of a batch draws by itself.
        start, layers_purpose = 0, purpose
        if share is not None:
            start, layers_purpose = share.start or 0, f"{purpose}/{share.start}"
        with noise:
            for i in range(len(self.names)):
                if load and x.ndim > 1:
                    workspace.load(x[i])
                if mode == "train" or noisy:
                    self.restart_layers(i, layers_purpose)
                read = start
                for piece in self._batch(i, part, batch_size, purpose, share).chunks():
                    inputs, labels = self._ready(piece)
                    if mode == "train" and part == "train":
                        inputs = self.transform(i, inputs, purpose, read)
                    read += len(labels)
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
            rng = self.rng(client, purpose).child(part)
            fresh_rows = self._draw(client, batch_size, rng)
            if share is not None:
                fresh_rows = fresh_rows.select(share)
            return fresh_rows
        part_rows = self.rows_of(part, client)
        numbers = self.batch_numbers(client, part, batch_size, purpose, share)
        return self._select(part_rows, client, numbers)

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
        size = self.size(client, part)
        is_all = batch_size is None or batch_size >= size
        # Shares of all rows are drawn, too: rows may lie in an order, by which shares would differ.
        if share is not None or not is_all:
            rng = self.rng(client, purpose).child(part)
            numbers = rng.permutation(size, batch_size)
        if numbers is not None and share is not None:
            numbers = numbers[share]
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
            labels = part.labels.to(workspace.device)
            losses.append(workspace.loss.rows(outputs[-1], labels).cpu())
        return torch.cat([answer.cpu() for answer in outputs]), torch.cat(losses)

    # Every client gets a multiple of the lowest height: its own rows, then its first row again (number 0, not counted).
    owners, lowest_height = np.asarray(clients), workspace.heights[-1]
    low = all_rows.offsets[owners]
    sizes = all_rows.offsets[owners + 1] - low
    padded_sizes = -(-sizes // lowest_height) * lowest_height
    number = _runs(np.zeros_like(padded_sizes), padded_sizes)
    is_counted = number < np.repeat(sizes, padded_sizes)
    row_numbers = np.repeat(low, padded_sizes) + number * is_counted
    places = _stored_numbers(all_rows, row_numbers)
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
    counted = torch.from_numpy(is_counted)
    return torch.cat(outputs)[counted], torch.cat(losses)[counted]


def _stored_numbers(all_rows: Rows, positions: NDArray[np.int64]) -> Tensor:
    """Return where the rows at these positions, client by client, are stored."""
    if all_rows.index is not None:
        positions = all_rows.index[positions]
    return torch.from_numpy(positions)


def _runs(low: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return low[0], low[0] + 1, ..., so many numbers as sizes[0] says, then those from low[1] on."""
    return np.repeat(low - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


def _as_column(values: Iterable[float | None]) -> Tensor:
    """Values of some clients as float64, NaN where undefined."""
    numbers = []
    for value in values:
        if value is None:
            value = nan
        numbers.append(value)
    return torch.tensor(numbers, dtype=torch.float64)
