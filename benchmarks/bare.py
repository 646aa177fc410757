"""L0, the barest honest loop: what a careful person would write by hand for one model, one loss and nothing else.

Tensors are preloaded as floats, there is one gather per client (`index_select`, ten times as fast as indexing), then
`F.linear`, `relu`, the loss, `autograd.grad` and SGD in place, in one thread. No module, no names, no checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie import Clients, Part
from coterie.base.rows import Inputs


class BareLoop:
    """FedAvg over clients of equal size with an MLP (or a linear model) whose parameters are W_1, b_1, W_2, b_2, ..."""

    def __init__(
        self,
        clients: Clients,
        parameters: Sequence[Tensor],
        *,
        lr: float,
        steps: int,
        batch_size: int,
        decay: float = 0.0,
    ) -> None:
        parts, self.dtype = [client.train for client in clients], parameters[0].dtype
        self.inputs = [self.floats(part.inputs) for part in parts]
        self.binary = parameters[-1].numel() == 1
        self.labels = [
            part.labels.to(self.dtype) if self.binary else part.labels for part in parts
        ]
        self.parameters = [p.detach().clone() for p in parameters]
        self.lr, self.steps, self.batch_size, self.decay = lr, steps, batch_size, decay
        self.generator = torch.Generator().manual_seed(0)

    def round(
        self, participants: Sequence[int], rows: Sequence[Tensor] | None = None
    ) -> None:
        """One round with these clients; `rows` are row numbers for each of them, drawn here if None."""
        total = [torch.zeros_like(p) for p in self.parameters]
        for j, client in enumerate(participants):
            local = self.train(
                client, self.parameters, self.draw(client) if rows is None else rows[j]
            )
            for t, p in zip(total, local, strict=True):
                t.add_(p)
        self.parameters = [t.div_(len(participants)) for t in total]

    def draw(self, client: int) -> Tensor:
        """Row numbers of all steps of one local training: epoch after epoch without replacement."""
        wanted, count = self.steps * self.batch_size, len(self.labels[client])
        epochs = [
            torch.randperm(count, generator=self.generator)
            for _ in range(-(-wanted // count))
        ]
        return torch.cat(epochs)[:wanted].to(self.labels[client].device)

    def train(self, client: int, start: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
        """Parameters after local training."""
        parameters = self.begin(start)
        inputs, labels = (
            self.inputs[client].index_select(0, rows),
            self.labels[client].index_select(0, rows),
        )
        for low in range(0, len(rows), self.batch_size):
            some = slice(low, low + self.batch_size)
            gradients = torch.autograd.grad(
                self.loss(parameters, inputs[some], labels[some]), parameters
            )
            with torch.no_grad():
                for p, g in zip(parameters, gradients, strict=True):
                    p.sub_(
                        g.add_(p, alpha=self.decay) if self.decay else g, alpha=self.lr
                    )
        return [p.detach() for p in parameters]

    def begin(self, start: Sequence[Tensor]) -> list[Tensor]:
        """Parameters that local training changes."""
        return [p.clone().requires_grad_() for p in start]

    def loss(
        self, parameters: Sequence[Tensor], inputs: Tensor, labels: Tensor
    ) -> Tensor:
        """Mean loss of some rows."""
        outputs = self.outputs(parameters, inputs)
        if self.binary:
            return F.binary_cross_entropy_with_logits(outputs.squeeze(1), labels)
        return F.cross_entropy(outputs, labels)

    def outputs(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """The model."""
        for k in range(0, len(parameters) - 2, 2):
            inputs = F.relu(F.linear(inputs, parameters[k], parameters[k + 1]))
        return F.linear(inputs, parameters[-2], parameters[-1])

    def accuracy(self, part: Part) -> float:
        """Share of right classes."""
        with torch.no_grad():
            outputs = self.outputs(
                self.parameters, self.floats(part.inputs).to(self.labels[0].device)
            )
        return float((outputs.argmax(1).cpu() == part.labels).double().mean())

    @property
    def vector(self) -> Tensor:
        """All parameters as one vector, in the order of the library's."""
        return torch.cat([p.reshape(-1) for p in self.parameters])

    def floats(self, inputs: Inputs) -> Tensor:
        """Inputs as floats, one vector per row."""
        if isinstance(inputs, dict):
            raise TypeError("L0 takes one tensor of inputs")
        flat = inputs.flatten(1)
        return (
            flat.to(self.dtype) / 255
            if flat.dtype == torch.uint8
            else flat.to(self.dtype)
        )


class BareCNN(BareLoop):
    """The same for two 5x5 convolutions with ReLU and 2x2 max pooling, and one linear layer, on images [3, h, w]."""

    def floats(self, inputs: Inputs) -> Tensor:
        """Images as floats."""
        if isinstance(inputs, dict):
            raise TypeError("L0 takes one tensor of inputs")
        return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs

    def outputs(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """The model."""
        for k in (0, 2):
            inputs = F.max_pool2d(
                F.relu(F.conv2d(inputs, parameters[k], parameters[k + 1], padding=2)), 2
            )
        return F.linear(inputs.flatten(1), parameters[4], parameters[5])


class BareModule(BareCNN):
    """The same for any module of images that has no buffers: each client trains the one module, from the parameters of the round."""

    def __init__(self, clients: Clients, module: nn.Module, **options: Any) -> None:
        self.module = module
        super().__init__(clients, list(module.parameters()), **options)

    def begin(self, start: Sequence[Tensor]) -> list[Tensor]:
        """The parameters of the module."""
        parameters = list(self.module.parameters())
        with torch.no_grad():
            for p, value in zip(parameters, start, strict=True):
                p.copy_(value)
        return parameters

    def outputs(self, parameters: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """The module, which holds the parameters."""
        return self.module(inputs)


class BareMeritFed(BareLoop):
    """MeritFed for one target: a gradient step of every client on one batch, then mirror descent on rows of the target.

    A model with one parameter is mean estimation: its output is the parameter, and the loss the mean squared distance.
    """

    def loss(
        self, parameters: Sequence[Tensor], inputs: Tensor, labels: Tensor
    ) -> Tensor:
        """Mean loss of some rows."""
        if len(parameters) > 1:
            return super().loss(parameters, inputs, labels)
        return (parameters[0] - inputs).square().mean()

    def descend(
        self,
        weights: Tensor,
        *,
        steps: int,
        step: float,
        server_lr: float,
        batch: int | None,
    ) -> Tensor:
        """One round with all clients from the present model; the new weights. The last inputs and labels are the target's."""
        start, shapes = self.vector, [p.shape for p in self.parameters]
        sizes = [prod(shape) for shape in shapes]
        updates = torch.stack(
            [
                torch.cat(
                    [
                        p.reshape(-1)
                        for p in self.train(k, self.parameters, self.draw(k))
                    ]
                )
                - start
                for k in range(len(weights))
            ]
        )
        inputs, labels = self.inputs[-1], self.labels[-1]
        for _ in range(steps):
            candidate = start + server_lr * (weights @ updates)
            parts = [
                p.view(s).requires_grad_()
                for p, s in zip(candidate.split(sizes), shapes, strict=True)
            ]
            some = inputs, labels
            if batch is not None:
                rows = torch.randperm(len(labels), generator=self.generator)[:batch].to(
                    labels.device
                )
                some = inputs.index_select(0, rows), labels.index_select(0, rows)
            slope = torch.cat(
                [
                    g.reshape(-1)
                    for g in torch.autograd.grad(self.loss(parts, *some), parts)
                ]
            )
            weights = torch.softmax(
                weights.log() - step * server_lr * (updates @ slope), 0
            )
        self.parameters = [
            p.view(s)
            for p, s in zip(
                (start + server_lr * (weights @ updates)).split(sizes),
                shapes,
                strict=True,
            )
        ]
        return weights
