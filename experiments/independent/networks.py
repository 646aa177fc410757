"""The models of the second computations, each a function of one vector of all its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d, cross_entropy, interpolate, max_pool2d
from torch.nn.utils import parameters_to_vector


class Rows(NamedTuple):
    """Images [n, pixels] in [0, 1] and labels [n]."""

    inputs: Tensor
    labels: Tensor

    def at(self, rows: Tensor) -> Rows:
        """Some of them."""
        return Rows(self.inputs[rows], self.labels[rows])


class Network:
    """A model as a function of one vector x of all weights and biases."""

    @property
    def layers(self) -> Sequence[tuple[int, int]]:
        """Inputs of each output, and outputs, of each layer."""
        raise NotImplementedError

    def start(self, random: torch.Generator) -> Tensor:
        """The vector that torch's own layers start from: uniform within 1 / sqrt(fan-in)."""
        layers = [torch.empty((wide + 1) * narrow).uniform_(-(wide**-0.5), wide**-0.5, generator=random)
                  for wide, narrow in self.layers]  # fmt: skip
        return torch.cat(layers)

    @property
    def classes(self) -> int:
        """How many."""
        return self.layers[-1][1]

    def _split(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Weights [narrow, wide] and biases [narrow] of each layer."""
        for wide, narrow in self.layers:
            weight, bias, x = x.split(
                [wide * narrow, narrow, len(x) - (wide + 1) * narrow]
            )
            yield weight.view(narrow, wide), bias

    def scores(
        self, x: Tensor, inputs: Tensor, random: torch.Generator | None = None
    ) -> Tensor:
        """Scores of the classes [n, classes]; with random numbers as in training, else as in use."""
        raise NotImplementedError

    def representation(self, x: Tensor, inputs: Tensor) -> Tensor:
        """What the last layer reads [n, units]."""
        raise NotImplementedError

    def loss(
        self, x: Tensor, rows: Rows, random: torch.Generator | None = None
    ) -> Tensor:
        """Mean cross-entropy."""
        return cross_entropy(self.scores(x, rows.inputs, random), rows.labels)

    def gradient(
        self, x: Tensor, rows: Rows, random: torch.Generator | None = None
    ) -> Tensor:
        """Of the loss, by x."""
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.loss(x, rows, random), x)[0]

    def hits(self, x: Tensor, rows: Rows) -> int:
        """Rows whose class has the highest score."""
        return int((self.scores(x, rows.inputs).argmax(1) == rows.labels).sum())


@dataclass(frozen=True)
class Perceptron(Network):
    """Linear layers with ReLU between them.

    Attributes:
        widths: pixels, hidden units of each layer, classes; without hidden units it is logistic regression.
        dropout: probability with which training leaves a hidden unit out.
    """

    widths: Sequence[int]
    dropout: float = 0.0

    @property
    def layers(self) -> Sequence[tuple[int, int]]:
        """Inputs and outputs of each."""
        return list(pairwise(self.widths))

    def scores(
        self, x: Tensor, inputs: Tensor, random: torch.Generator | None = None
    ) -> Tensor:
        """Scores of the classes."""
        *_, (_, scores) = self._layers(x, inputs, random)
        return scores

    def representation(self, x: Tensor, inputs: Tensor) -> Tensor:
        """What the last layer reads."""
        *_, (representation, _) = self._layers(x, inputs, None)
        return representation

    def _layers(
        self, x: Tensor, inputs: Tensor, random: torch.Generator | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for number, (weight, bias) in enumerate(self._split(x)):
            read = self._hidden(inputs, random) if number else inputs
            inputs = read @ weight.T + bias
            yield read, inputs

    def _hidden(self, values: Tensor, random: torch.Generator | None) -> Tensor:
        if random is None or not self.dropout:
            return values.relu()
        kept = torch.rand(values.shape, generator=random) >= self.dropout
        return values.relu() * kept / (1 - self.dropout)


@dataclass(frozen=True)
class Convolutional(Network):
    """Two convolutions of 5 x 5 with 2 x 2 max pooling behind each, a layer of hidden units, and the scores.

    Attributes:
        image: channels, height and width of an image.
        channels: of both convolutions.
        units: hidden ones.
        narrow: number of classes.
    """

    image: Sequence[int]
    channels: Sequence[int]
    units: int
    narrow: int

    @property
    def layers(self) -> Sequence[tuple[int, int]]:
        """Inputs and outputs of each; of a convolution those of one place."""
        before, height, width = self.image
        first, second = self.channels
        pooled = second * (height // 4) * (width // 4)
        return [
            (25 * before, first),
            (25 * first, second),
            (pooled, self.units),
            (self.units, self.narrow),
        ]

    def scores(
        self, x: Tensor, inputs: Tensor, random: torch.Generator | None = None
    ) -> Tensor:
        """Scores of the classes."""
        *_, (weight, bias) = self._split(x)
        return self.representation(x, inputs) @ weight.T + bias

    def representation(self, x: Tensor, inputs: Tensor) -> Tensor:
        """What the last layer reads."""
        *convolutions, (weight, bias), _ = self._split(x)
        values = inputs.view(-1, *self.image)
        for kernel, shift in convolutions:
            values = conv2d(
                values, kernel.view(len(shift), -1, 5, 5), shift, padding=2
            ).relu()
            values = max_pool2d(values, 2)
        return (values.flatten(1) @ weight.T + bias).relu()


@dataclass(frozen=True)
class Layered(Network):
    """Any module, whose outputs are [n, classes, ...].

    Attributes:
        module: gives the names and shapes of the pieces of x.
    """

    module: nn.Module

    def start(self, random: torch.Generator) -> Tensor:
        """The vector that torch's own layers start from."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=random)))
            for layer in self.module.modules():
                if hasattr(layer, "reset_parameters"):
                    layer.reset_parameters()
        return parameters_to_vector(self.module.parameters()).detach()

    def scores(
        self, x: Tensor, inputs: Tensor, random: torch.Generator | None = None
    ) -> Tensor:
        """Scores of the classes."""
        shapes = dict(self.module.named_parameters())
        pieces = x.split([values.numel() for values in shapes.values()])
        weights = {
            name: piece.view_as(shapes[name])
            for name, piece in zip(shapes, pieces, strict=True)
        }
        scores: Tensor = functional_call(self.module, weights, (inputs,))
        return scores


class Characters(nn.Module):
    """A character's eight numbers, 64 LSTM units, and scores of the next of 97 characters [n, 97, length]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.last = (
            nn.Embedding(97, 8),
            nn.LSTM(8, 64, batch_first=True),
            nn.Linear(64, 97),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Of the numbers of characters [n, length]."""
        scores: Tensor = self.last(self.lstm(self.embedding(inputs.long()))[0])
        return scores.mT


class Membranes(nn.Module):
    """A U-Net of 8, 16 and 32 channels; a block is twice a convolution, a norm of each channel, and ReLU."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((1, 8), (8, 16), (16, 32), (32 + 16, 16), (16 + 8, 8))
        self.blocks = nn.ModuleList([
            nn.Sequential(*(layer for before in (wide, narrow) for layer in (
                nn.Conv2d(before, narrow, 3, padding=1), nn.GroupNorm(narrow, narrow), nn.ReLU())))
            for wide, narrow in widths
        ])  # fmt: skip
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores [n, 2, side, side] of squares [n, side * side]."""
        side = isqrt(inputs.shape[1])
        high = self.blocks[0](inputs.view(-1, 1, side, side))
        middle = self.blocks[1](max_pool2d(high, 2))
        low = self.blocks[2](max_pool2d(middle, 2))
        middle = self.blocks[3](
            torch.cat([interpolate(low, scale_factor=2.0), middle], 1)
        )
        scores: Tensor = self.last(
            self.blocks[4](torch.cat([interpolate(middle, scale_factor=2.0), high], 1))
        )
        return scores
