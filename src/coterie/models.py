"""Models by name: each a frozen dataclass of settings whose `build` makes an `nn.Module` for given inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coterie.core.clients import Clients
from coterie.core.errors import InputError, check_field, is_number, require
from coterie.core.rng import Rng

__all__ = ["MLP", "MODELS", "Logistic", "Mean", "ModelSpec", "build_model", "build_shape", "outputs_of"]


class ModelSpec(Protocol):
    """Settings of a model that is built once the shapes are known."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A module for inputs of `shape` (without rows) and this many outputs."""
        ...


@dataclass(frozen=True)
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
        return nn.Sequential(nn.Flatten(), layer) if len(shape) > 1 else layer


@dataclass(frozen=True)
class MLP:
    """Multi-layer perceptron with ReLU.

    Attributes:
        hidden: widths of the hidden layers.
        dropout: probability in [0, 1) after each hidden layer.

    >>> sum(p.numel() for p in MLP().build((28, 28), 10).parameters())
    52500
    """

    hidden: tuple[int, ...] = (64, 30)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        listed = isinstance(self.hidden, tuple | list) and bool(self.hidden)
        good = listed and all(type(h) is int and h > 0 for h in self.hidden)
        check_field(self, "hidden", self.hidden, good, "a list of ints > 0")
        check_field(self, "dropout", self.dropout, is_number(self.dropout) and 0 <= self.dropout < 1, "in [0, 1)")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Linear layers with ReLU (and dropout) between them."""
        layers: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
        width = _flat(shape)
        for size in self.hidden:
            layers += [nn.Linear(width, size), nn.ReLU(), *([nn.Dropout(self.dropout)] if self.dropout else [])]
            width = size
        return nn.Sequential(*layers, nn.Linear(width, outputs))


class _Constant(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.full((dim,), dim**-0.5))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.mean.expand(inputs.shape[0], -1)


@dataclass(frozen=True)
class Mean:
    """The model of mean estimation: one vector, the same output for every row; starts at ones / sqrt(dim)."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A module whose output is its parameter."""
        return _Constant(outputs)


def _flat(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


MODELS: dict[str, type[Any]] = {"logistic": Logistic, "mlp": MLP, "mean": Mean}
"""Models by name."""


def outputs_of(clients: Clients) -> int:
    """Number of outputs that `loss="auto"` expects: 1 for two classes or one float label, C for C classes, or the labels' width.

    Raises `InputError` if all labels are of one class.
    """
    labels = clients.train.labels
    if labels.is_floating_point():
        return 1 if labels.ndim == 1 else int(labels.shape[1])
    seen = [rows.labels for rows in (clients.train, clients.validation, clients.test) if rows is not None]
    lowest = min(int(v.min()) for v in seen)
    highest = max(int(v.max()) for v in seen)
    require(lowest >= 0, f"labels must be classes 0, 1, ...; got {lowest}")
    count = max(highest + 1, len(clients.classes))
    if lowest == highest:
        name = clients.classes[lowest] if clients.classes else lowest
        raise InputError(f"all labels of {clients.name!r} are of one class ({name}); there is nothing to learn")
    return 1 if count == 2 else count


def build_model(model: nn.Module | ModelSpec | Callable[..., nn.Module], clients: Clients, seed: int) -> nn.Module:
    """The module to train: a module as it is, or one built for these clients with named randomness.

    Args:
        model: an `nn.Module`, a `ModelSpec`, or a function (shape, outputs) -> module.
        clients: give the shape of inputs and the number of outputs.
        seed: of the run; the same for all methods.
    """
    if isinstance(model, nn.Module):
        return model
    inputs = clients.train.inputs
    shape: Any = (
        {k: tuple(v.shape[1:]) for k, v in inputs.items()} if isinstance(inputs, dict) else tuple(inputs.shape[1:])
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(Rng.named(seed, "model").seed())
        return build_shape(model, shape, outputs_of(clients))


def build_shape(model: Any, shape: Any, outputs: int) -> nn.Module:
    """The module that a `ModelSpec` or a function makes for inputs of `shape` and this many outputs."""
    build = getattr(model, "build", model)
    if not callable(build):
        raise InputError(f"model must be an nn.Module, or build one from (shape, outputs); got {type(model).__name__}")
    try:
        made = build(shape, outputs)
    except InputError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"the model cannot be built for inputs {shape} and {outputs} outputs: {why}") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"the model's build returned a {type(made).__name__}, not an nn.Module")
    return made
