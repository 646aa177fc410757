"""What the second computations share: the rows of an experiment, a perceptron as a function of one vector, batches, local SGD.

Of coterie these files use only the data and their splits, so that both computations see the same rows; models, training, random
numbers and methods are written anew. For one figure of each paper data and splits are, too (own.py).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, max_pool2d

import coterie as ct
from experiments.independent import own

EXPERIMENTS = Path(__file__).resolve().parent.parent
HIDDEN = {"2nn": (200, 200)}
"""Hidden units of the models whose name says them."""
Values = Mapping[str, float | Sequence[float]]
"""A number by quantity, under the names of experiments/measures.py; or one for each round, of which the last counts."""


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
            weight, bias, x = x.split([wide * narrow, narrow, len(x) - (wide + 1) * narrow])
            yield weight.view(narrow, wide), bias

    def scores(self, x: Tensor, inputs: Tensor, random: torch.Generator | None = None) -> Tensor:
        """Scores of the classes [n, classes]; with random numbers as in training, else as in use."""
        raise NotImplementedError

    def representation(self, x: Tensor, inputs: Tensor) -> Tensor:
        """What the last layer reads [n, units]."""
        raise NotImplementedError

    def loss(self, x: Tensor, rows: Rows, random: torch.Generator | None = None) -> Tensor:
        """Mean cross-entropy."""
        return cross_entropy(self.scores(x, rows.inputs, random), rows.labels)

    def gradient(self, x: Tensor, rows: Rows, random: torch.Generator | None = None) -> Tensor:
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

    def scores(self, x: Tensor, inputs: Tensor, random: torch.Generator | None = None) -> Tensor:
        """Scores of the classes."""
        *_, (_, scores) = self._layers(x, inputs, random)
        return scores

    def representation(self, x: Tensor, inputs: Tensor) -> Tensor:
        """What the last layer reads."""
        *_, (representation, _) = self._layers(x, inputs, None)
        return representation

    def _layers(self, x: Tensor, inputs: Tensor, random: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
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
        return [(25 * before, first), (25 * first, second), (pooled, self.units), (self.units, self.narrow)]

    def scores(self, x: Tensor, inputs: Tensor, random: torch.Generator | None = None) -> Tensor:
        """Scores of the classes."""
        *_, (weight, bias) = self._split(x)
        return self.representation(x, inputs) @ weight.T + bias

    def representation(self, x: Tensor, inputs: Tensor) -> Tensor:
        """What the last layer reads."""
        *convolutions, (weight, bias), _ = self._split(x)
        values = inputs.view(-1, *self.image)
        for kernel, shift in convolutions:
            values = conv2d(values, kernel.view(len(shift), -1, 5, 5), shift, padding=2).relu()
            values = max_pool2d(values, 2)
        return (values.flatten(1) @ weight.T + bias).relu()


@dataclass(frozen=True)
class Problem:
    """One experiment with one seed: the tables of its TOML file, its clients and a model."""

    tables: Mapping[str, Any]
    seed: int
    clients: Any
    model: Network

    @property
    def rounds(self) -> int:
        """How many."""
        return int(self.tables["run"]["rounds"])

    @cached_property
    def train(self) -> list[Rows]:
        """Training rows of each client."""
        return [rows_of(client.train) for client in self.clients]

    def entry(self, label: str) -> Mapping[str, Any]:
        """The [[methods]] table of this label."""
        (table,) = [m for m in self.tables["methods"] if m.get("label", m["name"]) == label]
        return dict(table)

    def start(self) -> Tensor:
        """The first model, the same for all methods of a seed."""
        return self.model.start(generator(self.seed, "start"))

    def accuracy(self, x: Tensor, parts: Sequence[Rows]) -> float:
        """Share of right answers on several parts together."""
        return sum(self.model.hits(x, rows) for rows in parts) / sum(len(rows.labels) for rows in parts)


def problem_of(tables: Mapping[str, Any], seed: int, clients: Any) -> Problem:
    """An experiment on given clients."""
    rows = [rows_of(client.train) for client in clients]
    classes = 1 + max(int(part.labels.max()) for part in rows)
    model = tables["model"]
    if model.get("name") == "cnn":
        image = clients[0].train.inputs.shape[1:]
        return Problem(tables, seed, clients, Convolutional(image, model["channels"], model["units"], classes))
    hidden = HIDDEN.get(model.get("name"), model.get("hidden", []))
    widths = [rows[0].inputs.shape[1], *hidden, classes]
    return Problem(tables, seed, clients, Perceptron(widths, model.get("dropout", 0.0)))


@lru_cache(maxsize=1)
def read_problem(name: str, seed: int) -> Problem:
    """The experiment of a TOML file, with the rows that coterie's own run of this seed has, or after "own-" with own ones."""
    plain = name.removeprefix(own.PREFIX)
    tables = tomllib.loads((EXPERIMENTS / f"{plain}.toml").read_text(encoding="utf-8"))
    if plain != name:
        return problem_of(tables, seed, own.deal(tables, seed))
    data = dict(tables["data"])
    return problem_of(tables, seed, ct.data.load(data.pop("name"), seed=seed, split=tables.get("split"), **data))


def rows_of(part: Any) -> Rows:
    """A part of coterie's data, with bytes as numbers in [0, 1]."""
    scale = 255 if part.inputs.dtype == torch.uint8 else 1
    return Rows(part.inputs.flatten(1).float() / scale, part.labels)


def generator(seed: int, method: str) -> torch.Generator:
    """Random numbers of one seed and method."""
    state = np.random.SeedSequence([seed, *method.encode()]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def batches(n: int, size: int, random: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of one batch after the other, epoch after epoch, each in a new order; the last of an epoch may be short."""
    while True:
        yield from torch.randperm(n, generator=random).split(size)


def sgd(
    problem: Problem,
    x: Tensor,
    rows: Rows,
    random: torch.Generator,
    steps: int | None = None,
    shift: Tensor | float = 0.0,
) -> Tensor:
    """The model after so many local steps, by default those of the [local] table; a shift is added to each gradient."""
    local = problem.tables["local"]
    taken = local["steps"] if steps is None else steps
    for batch in islice(batches(len(rows.labels), local["batch_size"], random), taken):
        x = x - local["lr"] * (problem.model.gradient(x, rows.at(batch), random) + shift)
    return x


def on(experiment: str, methods: Mapping[str, Callable[[Problem], Values]]) -> dict[str, Callable[[int], Values]]:
    """Methods of an experiment as functions of the seed."""
    return {label: partial(_perform, method, experiment) for label, method in methods.items()}


def _perform(method: Callable[[Problem], Values], experiment: str, seed: int) -> Values:
    return method(read_problem(experiment, seed))
