"""What the second computations share: the rows of an experiment, batches, local SGD.

Of coterie these files use only the data and their splits, so that both computations see the same rows; models, training, random
numbers and methods are written anew. For one figure of each paper data and splits are, too (own.py).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.run.tables import read_experiment
from experiments.independent import own
from experiments.independent.networks import (
    Characters,
    Convolutional,
    Layered,
    Membranes,
    Network,
    Perceptron,
    Rows,
)

EXPERIMENTS = Path(__file__).resolve().parent.parent
HIDDEN = {"2nn": (200, 200)}
"""Hidden units of the models whose name says them."""
LAYERED = {"char-lstm": Characters, "experiments/membranes.py:UNet": Membranes}
"""Models of torch's own layers."""
Values = Mapping[str, float | Sequence[float]]
"""A number by quantity, under the names of experiments/measures.py; or one for each round, of which the last counts."""


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
        (table,) = [
            m for m in self.tables["methods"] if m.get("label", m["name"]) == label
        ]
        return dict(table)

    def of(self, label: str) -> Problem:
        """With the [local] table of one method."""
        local = self.tables["local"] | self.entry(label).get("local", {})
        return replace(self, tables={**self.tables, "local": local})

    def start(self) -> Tensor:
        """The first model, the same for all methods of a seed."""
        return self.model.start(generator(self.seed, "start"))

    def accuracy(self, x: Tensor, parts: Sequence[Rows]) -> float:
        """Share of right answers on several parts together; a label below 0 asks for none."""
        return sum(self.model.hits(x, rows) for rows in parts) / sum(
            int((rows.labels >= 0).sum()) for rows in parts
        )


def problem_of(tables: Mapping[str, Any], seed: int, clients: Any) -> Problem:
    """An experiment on given clients."""
    model = tables["model"]
    if model.get("name") in LAYERED:
        return Problem(tables, seed, clients, Layered(LAYERED[model["name"]]()))
    rows = [rows_of(client.train) for client in clients]
    classes = 1 + max(int(part.labels.max()) for part in rows)
    if model.get("name") == "cnn":
        image = (1, *clients[0].train.inputs.shape[1:])[-3:]
        return Problem(
            tables,
            seed,
            clients,
            Convolutional(image, model["channels"], model["units"], classes),
        )
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
    return problem_of(
        tables, seed, read_experiment(EXPERIMENTS / f"{name}.toml").load_data(seed)
    )


def rows_of(part: Any) -> Rows:
    """A part of coterie's data, with bytes as numbers in [0, 1]."""
    scale = 255 if part.inputs.dtype == torch.uint8 else 1
    return Rows(part.inputs.flatten(1).float() / scale, part.labels)


def generator(seed: int, method: str) -> torch.Generator:
    """Random numbers of one seed and method."""
    state = np.random.SeedSequence([seed, *method.encode()]).generate_state(
        1, np.uint64
    )[0]
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
    pull: float = 0.0,
) -> Tensor:
    """The model after so many local steps, by default those of the [local] table.

    A shift is added to each gradient, and so is a pull times the way from the start (FedProx).
    """
    local, start = problem.tables["local"], x
    taken = local["steps"] if steps is None else steps
    for batch in islice(batches(len(rows.labels), local["batch_size"], random), taken):
        x = x - local["lr"] * (
            problem.model.gradient(x, rows.at(batch), random)
            + shift
            + pull * (x - start)
        )
    return x


def meta_sgd(
    problem: Problem, x: Tensor, rows: Rows, random: torch.Generator
) -> Tensor:
    """The model after local steps by the gradient one step ahead, on another batch (Fallah et al. 2020, first order)."""
    local = problem.tables["local"]
    own = len(rows.labels), local["batch_size"], random
    for inner, outer in islice(
        zip(batches(*own), batches(*own), strict=True), local["steps"]
    ):
        ahead = x - local["lr"] * problem.model.gradient(x, rows.at(inner), random)
        x = x - local["lr"] * problem.model.gradient(ahead, rows.at(outer), random)
    return x


def on(
    experiment: str, methods: Mapping[str, Callable[[Problem], Values]]
) -> dict[str, Callable[[int], Values]]:
    """Methods of an experiment as functions of the seed."""
    return {
        label: partial(_perform, method, experiment, label)
        for label, method in methods.items()
    }


def _perform(
    method: Callable[[Problem], Values], experiment: str, label: str, seed: int
) -> Values:
    return method(read_problem(experiment, seed).of(label))
