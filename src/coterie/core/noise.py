"""Whatever draws from a global generator (random layers, the noise of a user's `forward`): seeded by name, and put back behind it.

Torch's generator of the CPU, numpy's and Python's are meant; nothing else in coterie touches one of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Generators", "forked", "seed_noise"]


class Generators(NamedTuple):
    """Where the global generators stand."""

    torch: Tensor
    numpy: Any
    python: Any

    @classmethod
    def now(cls) -> Generators:
        """As they stand."""
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate())  # noqa: NPY002

    def restore(self) -> None:
        """Let them stand there again."""
        torch.set_rng_state(self.torch)
        np.random.set_state(self.numpy)  # noqa: NPY002
        random.setstate(self.python)

    def moved(self) -> bool:
        """Whether anything was drawn since."""
        now = Generators.now()
        same_numpy = all(np.array_equal(a, b) for a, b in zip(self.numpy, now.numpy, strict=True))
        return not (torch.equal(self.torch, now.torch) and same_numpy and self.python == now.python)


def seed_noise(seed: int) -> None:
    """Seed the global generators; only within `forked`."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


@contextmanager
def forked(seed: int | None = None) -> Iterator[None]:
    """Within it the global generators are of this `seed` (None: go on as they are); behind it they stand where they stood."""
    before = Generators.now()
    try:
        if seed is not None:
            seed_noise(seed)
        yield
    finally:
        before.restore()
