"""Clients and their rows: what every engine, method and report reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from coterie.core.errors import InputError, nearest, require

__all__ = ["Client", "Clients", "Inputs", "Part", "rows", "take"]

Inputs = Tensor | dict[str, Tensor]
"""A tensor [rows, ...], or a dict of tensors with a common first dimension."""


def rows(inputs: Inputs) -> int:
    """Number of rows of `inputs`."""
    return int(next(iter(inputs.values())).shape[0] if isinstance(inputs, dict) else inputs.shape[0])


def take(inputs: Inputs, index: Tensor | slice) -> Inputs:
    """The rows `index` of `inputs`."""
    return {k: v[index] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[index]


class Part(NamedTuple):
    """Some rows of one client: inputs [rows, ...] and labels [rows, ...]."""

    inputs: Inputs
    labels: Tensor

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def select(self, index: Tensor | slice) -> Part:
        """The rows `index` of this part."""
        return Part(take(self.inputs, index), self.labels[index])


@dataclass(frozen=True)
class Client:
    """One partner: a unique `name` and its rows. A part that it does not have is None.

    Raises `InputError` if a part has inputs and labels of different length, no training row, or a value that is not finite.
    """

    name: str
    train: Part
    validation: Part | None = None
    test: Part | None = None

    def __post_init__(self) -> None:
        require(bool(self.name), "a client needs a name that is not empty")
        for part_name, part in self.parts():
            where = f"client {self.name!r}, {part_name} rows"
            counts = {k: rows(v) for k, v in _named(part.inputs).items()}
            require(
                all(n == len(part) for n in counts.values()),
                f"{where}: inputs have {counts} rows but there are {len(part)} labels; give one label per row",
            )
            for key, value in {**_named(part.inputs), "labels": part.labels}.items():
                if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                    raise InputError(f"{where}: {key} contain NaN or Inf; impute or drop those rows first")
        require(len(self.train) > 0, f"client {self.name!r} has no training rows; remove it or give it rows")

    def parts(self) -> Iterator[tuple[str, Part]]:
        """The parts that this client has, by name."""
        for name in ("train", "validation", "test"):
            part = getattr(self, name)
            if part is not None:
                yield name, part

    def part(self, name: str) -> Part:
        """The part `name`; an error that says which client lacks it."""
        part = getattr(self, name, None)
        if not isinstance(part, Part):
            raise InputError(f"client {self.name!r} has no {name} rows")
        return part


def _named(inputs: Inputs) -> Mapping[str, Tensor]:
    return inputs if isinstance(inputs, dict) else {"inputs": inputs}


@dataclass(frozen=True)
class Clients(Sequence[Client]):
    """A sequence of clients, sorted by name, with what they have in common.

    Attributes:
        name: of the data set, as a user would type it.
        classes: names of the classes in the order of their numbers; empty for regression or where classes have no names.
        recipe: how raw rows become inputs (`preprocess.json`), or None.
        notes: sentences about how the data was handled, for the report.
        server: rows held by the server (client `server` of the federation), or None.
        unseen: clients that never train and are only evaluated.

    Raises `InputError` for no clients, names that repeat, a client called `server`, or inputs of different shapes.

    >>> part = Part(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> Clients([Client("b", part), Client("a", part)]).names
    ('a', 'b')
    """

    clients: Sequence[Client]
    name: str = "own"
    classes: tuple[str, ...] = ()
    recipe: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    server: Part | None = None
    unseen: Sequence[Client] = field(default=())

    def __post_init__(self) -> None:
        require(len(self.clients) > 0, "there are no clients; give at least one")
        object.__setattr__(self, "clients", tuple(sorted(self.clients, key=lambda c: c.name)))
        names = [c.name for c in (*self.clients, *self.unseen)]
        repeated = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
        require(not repeated, f"client names repeat: {', '.join(repeated)}; every client needs a name of its own")
        require("server" not in names, "a client is called 'server', which is the name of the server's own rows; rename it")
        shapes = {c.name: {k: tuple(v.shape[1:]) for k, v in _named(c.train.inputs).items()} for c in self.clients}
        first = self.clients[0].name
        odd = next((n for n in shapes if shapes[n] != shapes[first]), None)
        if odd is not None:
            raise InputError(f"client {odd!r} has inputs of shape {shapes[odd]}, client {first!r} of {shapes[first]}")

    @overload
    def __getitem__(self, key: int | str) -> Client: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Client]: ...
    def __getitem__(self, key: int | str | slice) -> Client | Sequence[Client]:
        if isinstance(key, str):
            for client in self.clients:
                if client.name == key:
                    return client
            raise InputError(f"there is no client {key!r}; {nearest(key, self.names)}")
        return self.clients[key]

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients, sorted."""
        return tuple(c.name for c in self.clients)

    def fingerprint(self) -> str:
        """A short hash of every row and name: a checkpoint refuses to go on with other data."""
        digest = hashlib.blake2b(digest_size=16)
        for client in (*self.clients, *self.unseen):
            for name, part in client.parts():
                digest.update(f"{client.name}/{name}".encode())
                for key, value in {**_named(part.inputs), "labels": part.labels}.items():
                    digest.update(f"{key}{tuple(value.shape)}{value.dtype}".encode())
                    digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
        return digest.hexdigest()
