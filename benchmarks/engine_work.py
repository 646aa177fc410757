"""What `benchmarks/engines.py` has every engine do, on this machine and in the processes of NVIDIA FLARE's sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import coterie as ct
from coterie.config.registry import METHODS
from coterie.contract.task import Update

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "varsel": {"internal": ("cleveland", "hungary")},
    "selective": {"internal": ("cleveland", "hungary")},
    "sgd-ideal": {"members": "*"},
    "target-only": {"target": "switzerland"},
}
"""What a method cannot be made without, on the four hospitals."""


class Work(NamedTuple):
    """Sizes: numbers of a model and how often each is asked; rounds of each method, and of how many turns; () for all methods."""

    floats: Mapping[int, int] = {50_000: 30, 10_000_000: 5}
    rounds: int = 12
    turns: int = 3
    methods: tuple[str, ...] = ()


class Flat(nn.Module):
    """A model of any number of parameters, which it does nothing with."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, inputs: Tensor) -> Tensor:
        """One logit per row."""
        return self.weight[0] * inputs


@dataclass(frozen=True)
class Sized:
    """Settings of `Flat`, which is built where a client is.

    Attributes:
        size: numbers of the model.
    """

    size: int

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model, whatever the inputs."""
        return Flat(self.size)


class Sent(NamedTuple):
    """A vector of each client [n, d]."""

    delta: Update


@ct.task
def echo(cohort: ct.Cohort, *, x: Tensor) -> Sent:
    """Send a vector of the size of the model back."""
    return Sent(x.repeat(len(cohort.names), 1))


def methods(work: Work) -> Iterator[tuple[str, Any]]:
    """Names of the methods and the methods, as they are measured."""
    local = ct.LocalSGD(lr=0.05, steps=ct.Steps(10), batch_size=16)
    for name, made in METHODS.items():
        if work.methods and name not in work.methods:
            continue
        fields = made.__dataclass_fields__  # type: ignore[attr-defined]
        yield (
            name,
            made(
                **ARGUMENTS.get(name, {}),
                **({"local": local} if "local" in fields else {}),
            ),
        )
