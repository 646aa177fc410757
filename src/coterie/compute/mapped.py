"""Local steps of several clients as one, for models that no batched kernel knows: `torch.func.vmap` over their forward passes.

The loop over clients makes each call of a step once for each of them: ten times as many for ten clients, and on a GPU a call of a
small model takes as long as its arithmetic. Here the weights of a chunk of clients lie behind each other, and each call is made once
for all; convolutions of several clients are one grouped convolution. On a CPU that takes longer than the loop, so that it is used
only where it is asked for.

A client's result must not depend on who shares its chunk, to the last bit. So all chunks have the same width: where clients are fewer,
they fill the slots once more. `Mapped.steady` looks whether it holds on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from coterie.base.loss import Loss
from coterie.base.vector import Layout
from coterie.compute.kernels import Feed, StepRule
from coterie.compute.segments import Chunk, RowSource, chunks
from coterie.contract.exchange import HELD_BYTES

WIDTH = 16
"""Clients of a chunk at most."""


class Mapped:
    """Training of a model without buffers and random layers, under any loss of single rows.

    Attributes:
        slots: Clients of each chunk.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, loss: Loss, device: torch.device
    ) -> None:
        self._model, self._layout, self._loss = model, layout, loss
        self._device = device
        size = layout.dim * layout.dtype.itemsize
        self.slots = max(1, min(WIDTH, HELD_BYTES // size))

    def width(self, batch: int) -> int:
        """Clients of a chunk, whatever the size of their batches."""
        return self.slots

    def feed(self, chunk: Chunk, source: RowSource) -> Iterator[Feed]:
        """Give the steps of a chunk: inputs [c, B, ...], labels [c, B, ...] and the weight of each row [c, B]."""
        slots = np.arange(self.slots) % len(chunk.members)
        for numbers, counts in zip(chunk.rows, chunk.counts, strict=True):
            shape = (self.slots, numbers.shape[1])
            flat = torch.from_numpy(numbers[slots].reshape(-1)).to(self._device)
            # A row that counts has 1 / rows of its batch; one that fills up has 0, as has a client behind its last step.
            is_counted = np.arange(shape[1]) < counts[slots, None]
            weights = is_counted / np.maximum(counts[slots, None], 1)
            yield (
                source.inputs(flat).unflatten(0, shape),
                source.labels(flat).unflatten(0, shape),
                torch.from_numpy(weights).to(self._device, self._layout.dtype),
            )

    def train(
        self,
        x: Tensor,
        chunk: Chunk,
        steps: Iterable[Feed],
        rule: StepRule,
        result: Tensor,
        *,
        relative: bool = False,
    ) -> None:
        """As `coterie.compute.kernels.Batched.train`."""
        if not self._model.training:
            self._model.train()
        members = torch.from_numpy(np.resize(chunk.members, self.slots))
        members = members.to(self._device)
        start = _select(x, members)
        models = start.expand(self.slots, -1).clone()
        shift, shrink = rule.shift, rule.shrink
        if shift is not None:
            shift = _select(shift, members)
        if isinstance(shrink, Tensor):
            shrink = shrink.to(models)[members, None]
        alive = [*np.count_nonzero(chunk.counts, axis=1).tolist(), 0]
        for step, batch in enumerate(steps):
            gradients = self._gradients(models, *batch)
            # Of a client without decay the same bits as without the product.
            if isinstance(shrink, Tensor) or shrink != 1:
                models.mul_(shrink)
            for part, gradient in zip(self._split(models), gradients, strict=True):
                part.add_(gradient, alpha=-rule.lr)
            if shift is not None:
                models.add_(shift)
            # Clients with more steps come first.
            for slot in range(alive[step + 1], alive[step]):
                trained = models[slot]
                if relative:
                    trained = trained - start[slot % len(start)]
                result[chunk.members[slot]] = trained

    def steady(self, x: Tensor, inputs: Tensor, labels: Tensor) -> bool:
        """Return True if a client's result is the same bits alone and beside others, for these rows and models near x [d]."""
        draw = torch.Generator().manual_seed(0)
        noise = torch.randn(self.slots, len(x), generator=draw, dtype=x.dtype)
        starts = x + 0.01 * noise.to(x.device)
        source = RowSource(
            lambda numbers: inputs[numbers % len(inputs)],
            lambda numbers: labels[numbers % len(labels)],
        )

        def train(clients: range, batch: int) -> Tensor:
            rows = [[np.arange(k, k + batch)] * 2 for k in clients]
            models = torch.empty_like(starts[: len(clients)])
            (chunk,) = chunks(rows, self.width, lambda client, numbers: numbers)
            self.train(
                starts[clients.start : clients.stop],
                chunk,
                self.feed(chunk, source),
                StepRule(0.1),
                models,
            )
            return models

        for batch in (3, 8, 32):
            together = train(range(self.slots), batch)
            for group in (range(1), range(self.slots // 2, self.slots)):
                alone = train(group, batch)
                if not torch.equal(alone, together[group.start : group.stop]):
                    return False
        return True

    def _split(self, models: Tensor) -> list[Tensor]:
        """The parameters [c, ...] of models [c, d], as views."""
        shapes = [shape for _, shape in self._layout.parameters]
        sizes = [shape.numel() for shape in shapes]
        pieces = models.split_with_sizes(sizes, dim=1)
        return [
            piece.view(-1, *shape) for piece, shape in zip(pieces, shapes, strict=True)
        ]

    def _gradients(
        self, models: Tensor, inputs: Tensor, labels: Tensor, weights: Tensor
    ) -> tuple[Tensor, ...]:
        """Gradients [c, ...] of the weighted sums of losses, parameter by parameter."""
        names = [name for name, _ in self._layout.parameters]
        leaves = [part.detach().requires_grad_() for part in self._split(models)]

        def outputs_of(parameters: Mapping[str, Tensor], rows: Tensor) -> Tensor:
            outputs: Tensor = torch.func.functional_call(
                self._model, dict(parameters), (rows,)
            )
            return outputs

        with torch.enable_grad():
            outputs = torch.vmap(outputs_of)(
                dict(zip(names, leaves, strict=True)), inputs
            )
            losses = self._loss.rows(outputs.flatten(0, 1), labels.flatten(0, 1))
            total = (losses * weights.flatten()).sum()
        return torch.autograd.grad(total, leaves)


def _select(vectors: Tensor, members: Tensor) -> Tensor:
    """The vectors [c, d] of some clients, of [n, d]; one that all share stays [1, d]."""
    if len(vectors) == 1:
        return vectors
    return vectors.index_select(0, members)
