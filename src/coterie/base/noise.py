"""Whatever draws random numbers in a model's `forward` or in a transform: seeded by name, and put back behind it.

Meant are the global generators of torch (of the CPU, and of the device where the model is), numpy and Python, which nothing else in
coterie touches, and the generators that the modules of a model hold as attributes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

__all__ = ["Generator", "Generators", "forked", "generators_of", "seed_noise"]

Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random

_GLOBAL: tuple[Generator, ...] = (torch.default_generator, np.random.mtrand._rand, random._inst)


class Generators(NamedTuple):
    """Where the global generators, and some more, stand."""

    states: tuple[tuple[Generator, Any], ...]

    @classmethod
    def now(cls, more: tuple[Generator, ...] = ()) -> Generators:
        """As they stand."""
        return cls(tuple((generator, _state(generator)) for generator in (*_GLOBAL, *more)))

    def restore(self) -> None:
        """Let them stand there again."""
        for generator, state in self.states:
            _set_state(generator, state)

    def moved(self) -> bool:
        """Whether anything was drawn since."""
        return not all(_same(state, _state(generator)) for generator, state in self.states)


def generators_of(model: nn.Module, device: torch.device) -> tuple[Generator, ...]:
    """The generators, beside the global ones of a CPU, that a model on this device can draw from: the device's, and those it holds."""
    held = [v for module in model.modules() for v in vars(module).values() if isinstance(v, Generator)]
    seeded = {id(v): v for v in held if not isinstance(v, random.SystemRandom)}
    if device.type != "cuda":
        return tuple(seeded.values())
    number = torch.cuda.current_device() if device.index is None else device.index
    return (torch.cuda.default_generators[number], *seeded.values())


def seed_noise(seed: int, more: tuple[Generator, ...] = ()) -> None:
    """Seed the global generators, and some more each in its own way; only within `forked`."""
    for generator in _GLOBAL:
        _seed(generator, seed)
    for number, generator in enumerate(more, 1):
        _seed(generator, seed + number)


@contextmanager
def forked(seed: int | None = None, more: tuple[Generator, ...] = ()) -> Iterator[None]:
    """Within it the generators are of this `seed` (None: go on as they are); behind it they stand where they stood."""
    before = Generators.now(more)
    try:
        if seed is not None:
            seed_noise(seed, more)
        yield
    finally:
        before.restore()


def _state(generator: Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state(legacy=False)


def _set_state(generator: Generator, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _seed(generator: Generator, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed if isinstance(generator, random.Random) else seed % 2**32)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_same(value, b[key]) for key, value in a.items())
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray | torch.Tensor) else bool(a == b)
