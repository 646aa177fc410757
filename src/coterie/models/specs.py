"""Plain models as settings: `build` makes an `nn.Module` for inputs of a shape and a number of outputs."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from coterie.base.errors import InputError
from coterie.config.rules import BELOW_ONE, SIZE, Rule, list_of
from coterie.config.schema import options


@options
class Logistic:
    """Logistic regression (linear regression for float labels), from all weights 0.

    >>> sum(p.numel() for p in Logistic().build((13,), 1).parameters())
    14
    """

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A linear layer on flattened inputs."""
        layer = nn.Linear(_flat(shape), outputs)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        if len(shape) > 1:
            return nn.Sequential(nn.Flatten(), layer)
        return layer


@options
class MLP:
    """Multi-layer perceptron with ReLU.

    Attributes:
        hidden: widths of the hidden layers.
        dropout: probability in [0, 1) after each hidden layer.

    >>> sum(p.numel() for p in MLP().build((28, 28), 10).parameters())
    52500
    """

    hidden: Annotated[tuple[int, ...], list_of(SIZE, "a list of ints > 0")] = (64, 30)
    dropout: Annotated[float, BELOW_ONE] = 0.0

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Linear layers with ReLU (and dropout) between them."""
        layers: list[nn.Module] = []
        if len(shape) > 1:
            layers.append(nn.Flatten())
        width = _flat(shape)
        for size in self.hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            if self.dropout > 0:
                layers.append(nn.Dropout(self.dropout))
            width = size
        return nn.Sequential(*layers, nn.Linear(width, outputs))


@options
class TwoNN:
    """2NN of McMahan et al.: two hidden layers of 200 units with ReLU.

    >>> sum(p.numel() for p in TwoNN().build((28, 28), 47).parameters())
    206647
    """

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """An `MLP` of these widths."""
        return MLP(hidden=(200, 200)).build(shape, outputs)


_TWO = Rule(
    lambda v: isinstance(v, tuple) and len(v) == 2 and all(map(SIZE.test, v)),
    "a list of two ints > 0",
)


@options
class CNN:
    """CNN of McMahan et al.: 5x5 convolutions to 32 and 64 channels, each with 2x2 max pooling, and 512 units.

    Attributes:
        channels: of both convolutions.
        units: units of the layer behind them.

    >>> sum(p.numel() for p in CNN().build((28, 28), 10).parameters())
    1663370
    """

    channels: Annotated[tuple[int, ...], _TWO] = (32, 64)
    units: Annotated[int, SIZE] = 512

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Convolutions keep the size of the image; pooling halves it."""
        image, channels, height, width = images(self, shape, 4)
        conv1, conv2 = self.channels
        features = conv2 * (height // 4) * (width // 4)
        return nn.Sequential(
            *image,
            nn.Conv2d(channels, conv1, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(conv1, conv2, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(features, self.units),
            nn.ReLU(),
            nn.Linear(self.units, outputs),
        )


class _Characters(nn.Module):
    def __init__(self, embedding: int, hidden: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(outputs, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(inputs))
        logits: Tensor = self.head(states)
        return logits.transpose(1, 2)


@options
class CharLSTM:
    """LSTM that predicts the next character at every position: inputs [rows, time] of class numbers, outputs [rows, classes, time].

    Attributes:
        embedding: width of a character.
        hidden: units of a layer.
        layers: number of layers.

    >>> sum(p.numel() for p in CharLSTM().build((80,), 97).parameters())
    26025
    """

    embedding: Annotated[int, SIZE] = 8
    hidden: Annotated[int, SIZE] = 64
    layers: Annotated[int, SIZE] = 1

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """For sequences of class numbers."""
        if len(shape) != 1:
            raise InputError(
                f"CharLSTM needs sequences [time] of class numbers; inputs are {shape}"
            )
        return _Characters(self.embedding, self.hidden, self.layers, outputs)


class _Constant(nn.Module):
    constant_output = "mean"  # by which the batched kernel knows it

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.full((dim,), dim**-0.5))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.mean.expand(inputs.shape[0], -1)


@options
class Mean:
    """The model of mean estimation: one vector, the same output for every row; starts at ones / sqrt(dim).

    >>> import coterie as ct
    >>> run = ct.fit("fedavg", ct.data.load("mean-estimation", dim=4), "mean", rounds=1)
    >>> tuple(run.x.shape)
    (4,)
    """

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A module whose output is its parameter."""
        return _Constant(outputs)


def _flat(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def images(
    model: object, shape: Any, smallest: int
) -> tuple[list[nn.Module], int, int, int]:
    """Layers that give images a channel dimension if they have none; channels, height and width."""
    is_image = isinstance(shape, tuple) and len(shape) in (2, 3)
    if not is_image or min(shape[-2:]) < smallest:
        raise InputError(
            f"{type(model).__name__} needs images [height, width] or [channels, height, width] of at least {smallest} x "
            f"{smallest}; inputs are {shape}"
        )
    *channels, height, width = shape
    if channels:
        return [], channels[0], height, width
    return [nn.Unflatten(1, (1, height))], 1, height, width
