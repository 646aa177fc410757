"""L0, the barest honest loop: what a careful person would write by hand for one model, one loss and nothing else.

Tensors are preloaded as floats, there is one gather per client (`index_select`, ten times as fast as indexing), then
`F.linear`, `relu`, the loss, `autograd.grad` and SGD in place, in one thread. No module, no names, no checks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie import Clients, Part
from coterie.core.clients import Inputs

__all__ = ["BareLoop"]


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
        parts = [client.train for client in clients]
        self.inputs = [_floats(part.inputs) for part in parts]
        self.binary = parameters[-1].numel() == 1
        self.labels = [part.labels.float() if self.binary else part.labels for part in parts]
        self.parameters = [p.detach().clone() for p in parameters]
        self.lr, self.steps, self.batch_size, self.decay = lr, steps, batch_size, decay
        self.generator = torch.Generator().manual_seed(0)

    def round(self, participants: Sequence[int], rows: Sequence[Tensor] | None = None) -> None:
        """One round with these clients; `rows` are row numbers for each of them, drawn here if None."""
        total = [torch.zeros_like(p) for p in self.parameters]
        for j, client in enumerate(participants):
            local = self.train(client, self.parameters, self.draw(client) if rows is None else rows[j])
            for t, p in zip(total, local, strict=True):
                t.add_(p)
        self.parameters = [t.div_(len(participants)) for t in total]

    def draw(self, client: int) -> Tensor:
        """Row numbers of all steps of one local training: epoch after epoch without replacement."""
        wanted, count = self.steps * self.batch_size, len(self.labels[client])
        epochs = [torch.randperm(count, generator=self.generator) for _ in range(-(-wanted // count))]
        return torch.cat(epochs)[:wanted]

    def train(self, client: int, start: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
        """Parameters after local training."""
        parameters = [p.clone().requires_grad_() for p in start]
        inputs, labels = self.inputs[client].index_select(0, rows), self.labels[client].index_select(0, rows)
        for low in range(0, len(rows), self.batch_size):
            some = slice(low, low + self.batch_size)
            gradients = torch.autograd.grad(self.loss(parameters, inputs[some], labels[some]), parameters)
            with torch.no_grad():
                for p, g in zip(parameters, gradients, strict=True):
                    p.sub_(g.add_(p, alpha=self.decay) if self.decay else g, alpha=self.lr)
        return [p.detach() for p in parameters]

    def loss(self, parameters: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
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
            outputs = self.outputs(self.parameters, _floats(part.inputs))
        return float((outputs.argmax(1) == part.labels).double().mean())

    @property
    def vector(self) -> Tensor:
        """All parameters as one vector, in the order of the library's."""
        return torch.cat([p.reshape(-1) for p in self.parameters])


def _floats(inputs: Inputs) -> Tensor:
    if isinstance(inputs, dict):
        raise TypeError("L0 takes one tensor of inputs")
    flat = inputs.flatten(1)
    return flat.float() / 255 if flat.dtype == torch.uint8 else flat
