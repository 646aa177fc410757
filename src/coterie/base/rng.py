"""Randomness by name, never by order.

A stream is named by (seed, round, client, purpose, ...). Its numbers are hashes of counters, so any of them can be had without the
others: batches do not depend on who else was asked, in which order, how often, or in which process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Rng", "batches", "normal"]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


@lru_cache(maxsize=65536)
def _name_key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _mix(key: int, counter: int) -> int:
    # The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    z = (key + _GOLDEN * (counter + 1)) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


_GOLDEN_64, _FIRST_64, _SECOND_64 = np.array([_GOLDEN, _FIRST, _SECOND], np.uint64)
_30, _27, _31 = np.array([30, 27, 31], np.uint64)


def _mix_first(key: int, count: int) -> NDArray[np.uint64]:
    """`_mix` of the counters 0..count-1."""
    z = np.arange(1, count + 1, dtype=np.uint64)
    z *= _GOLDEN_64
    z += np.uint64(key)
    shifted = z >> _30
    z ^= shifted
    z *= _FIRST_64
    z ^= np.right_shift(z, _27, out=shifted)
    z *= _SECOND_64
    z ^= np.right_shift(z, _31, out=shifted)
    return z


@dataclass(frozen=True)
class Rng:
    """A stream of random numbers with a name.

    >>> a = Rng.named(0, "client", "hungary")
    >>> a == Rng.named(0, "client", "hungary"), a == Rng.named(0, "client", "cleveland")
    (True, False)
    >>> a.permutation(5).tolist(), a.child("epoch", 1).permutation(5).tolist()
    ([1, 4, 2, 0, 3], [2, 3, 0, 4, 1])
    """

    key: int

    @classmethod
    def named(cls, seed: int, *names: str | int) -> Rng:
        """The stream of `seed` with these names; ints are counters, strings are hashed with blake2b."""
        return cls(_mix(0, seed & _MASK)).child(*names)

    def child(self, *names: str | int) -> Rng:
        """A stream of its own below this one."""
        key = self.key
        for name in names:
            key = _mix(key, _name_key(name) if isinstance(name, str) else name & _MASK)
        return Rng(key)

    def integers(self, count: int) -> NDArray[np.uint64]:
        """The first `count` 64-bit numbers of the stream; a longer draw begins with the shorter one."""
        return _mix_first(self.key, count)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """The first `count` numbers in [0, 1), float64."""
        return (self.integers(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def permutation(self, count: int, first: int | None = None) -> NDArray[np.int64]:
        """The numbers 0..count-1 in random order, int64; with `first`, only that many of them."""
        hashes = self.integers(count)
        if first is None or first >= count:
            return hashes.argsort(kind="stable")
        chosen = hashes.argpartition(first)[:first]
        return chosen[hashes[chosen].argsort(kind="stable")]

    def seed(self) -> int:
        """A seed for a library's own generator, in [0, 2**63)."""
        return self.key >> 1

    def generator(self) -> torch.Generator:
        """A torch generator of this name, on the CPU."""
        return torch.Generator().manual_seed(self.seed())


def batches(
    rng: Rng,
    count: int,
    batch_size: int | None,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    smallest: int = 1,
) -> Iterator[NDArray[np.int64]]:
    """Row numbers of the batches of one local training.

    An epoch is an argsort of hashes of the row numbers. `steps` walks through as many epochs as it needs. A short last batch is kept
    unless it has fewer rows than `smallest`.

    Args:
        rng: stream of (seed, round, client, purpose).
        count: rows of the client.
        batch_size: rows per batch; None means all rows.
        steps: number of batches; exclusive with `epochs`.
        epochs: number of passes.
        smallest: smallest batch that the model can train on (2 with batch norm).

    >>> [b.tolist() for b in batches(Rng.named(0, "a"), 5, 2, steps=4)]
    [[1, 4], [0, 2], [3], [1, 3]]
    """
    size = count if batch_size is None else min(batch_size, count)
    left = steps if steps is not None else -1
    epoch = 0
    while left != 0 and (epochs is None or epoch < epochs):
        wanted = left * size if left > 0 else count
        order = rng.child(epoch).permutation(count, wanted)
        for low in range(0, len(order), size):
            batch = order[low : low + size]
            if len(batch) < smallest:
                continue
            yield batch
            left -= 1
            if left == 0:
                return
        epoch += 1


def normal(like: Tensor, rngs: Sequence[Rng]) -> Tensor:
    """N(0, I) in the form of `like`, a row from each stream."""
    drawn = [
        torch.randn(row.shape, generator=rng.generator(), dtype=row.dtype) for row, rng in zip(like, rngs, strict=True)
    ]
    return torch.stack(drawn).to(like.device)
