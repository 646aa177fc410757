"""Randomness by name, never by order.

A stream is named by (seed, round, client, purpose, ...). Its numbers are hashes of counters, so any of them can be
had without the others: batches do not depend on who else was asked, in which order, how often, or in which process.

What draws numbers in a model's `forward` or in a transform is seeded by name too, and put back behind it: the global
generators of torch (of the CPU, and of the device where the model is), numpy and Python, which nothing else in
coterie touches, and the generators that the modules of a model hold as attributes.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_HASH_A, _HASH_B = (0x43B0D7E5, 0x931E8875), (0x8B51F9DD, 0x58F38DED)
_MASK_128, _PCG = (1 << 128) - 1, 0x2360ED051FC65DA44385DF649FCCF645
_HASHES = 1 << 16
"""Row numbers of several short epochs that are put in order at once."""


@lru_cache(maxsize=65536)
def _name_key(name: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"
    )


def _mix(key: int, counter: int) -> int:
    # The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    z = (key + _GOLDEN * (counter + 1)) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


_GOLDEN_64, _FIRST_64, _SECOND_64 = np.array([_GOLDEN, _FIRST, _SECOND], np.uint64)
_30, _27, _31 = np.array([30, 27, 31], np.uint64)


def _mix_arrays(
    keys: NDArray[np.uint64], counters: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return `_mix` of arrays, broadcast."""
    z: NDArray[np.uint64] = counters + np.uint64(1)
    z = np.multiply(z, _GOLDEN_64, out=z) + keys
    shifted = z >> _30
    z ^= shifted
    z *= _FIRST_64
    z ^= np.right_shift(z, _27, out=shifted)
    z *= _SECOND_64
    z ^= np.right_shift(z, _31, out=shifted)
    return z


MANY = 10_000
"""Numbers up to which `Rng.sample` gives each of them a hash."""


@dataclass(frozen=True)
class Rng:
    """A stream of random numbers with a name.

    Attributes:
        key: Hash of the name; `Rng.named` makes it.

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
            part = _name_key(name) if isinstance(name, str) else name & _MASK
            key = _mix(key, part)
        return Rng(key)

    def integers(self, count: int) -> NDArray[np.uint64]:
        """The first `count` 64-bit numbers of the stream; a longer draw begins with the shorter one."""
        return _mix_arrays(
            np.array([self.key], np.uint64), np.arange(count, dtype=np.uint64)
        )

    def uniform(self, count: int) -> NDArray[np.float64]:
        """The first `count` numbers in [0, 1), float64."""
        return (self.integers(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def permutation(self, count: int, limit: int | None = None) -> NDArray[np.int64]:
        """The numbers 0..count-1 in random order, int64; with `limit`, only that many of them."""
        hashes = self.integers(count)
        if limit is None or limit >= count:
            return hashes.argsort(kind="stable")
        # Below this share of all numbers lie `limit` of `count` uniform ones, but for once in many thousand draws.
        share = (limit + 6 * math.sqrt(limit) + 16) / count
        chosen = np.arange(0)
        if share < 1:
            chosen = np.flatnonzero(hashes < np.uint64(share * 2.0**64))
        if len(chosen) < limit:
            chosen = hashes.argpartition(limit)[:limit]
        return chosen[hashes[chosen].argsort(kind="stable")][:limit]

    def sample(self, count: int, size: int) -> NDArray[np.int64]:
        """Return `size` different numbers below `count`, ascending, int64; each set of them is as probable as any other.

        They are the first of `permutation`, except where few of more than `MANY` are drawn: then the cost grows with `size` alone.

        >>> Rng.named(0, "a").sample(1_000_000, 3).tolist()
        [63600, 786512, 822450]
        """
        if count <= MANY or size > count // 4:
            return np.sort(self.permutation(count, size))
        drawn: list[int] = []
        length = size + 16
        while len(drawn) < size:
            # A longer draw begins with the shorter one, so only numbers that were drawn twice are replaced.
            length *= 2
            numbers = (self.uniform(length) * count).astype(np.int64)
            drawn = list(dict.fromkeys(numbers.tolist()))
        return np.sort(np.array(drawn[:size]))

    def permutations(self, low: int, high: int, count: int) -> NDArray[np.int64]:
        """Return what `child(k).permutation(count)` gives for each k from `low` to `high` - 1, int64 [high - low, count]."""
        numbers = np.arange(max(high, count), dtype=np.uint64)
        keys = _mix_arrays(np.array([self.key], np.uint64), numbers[low:high])
        return _mix_arrays(keys[:, None], numbers[:count]).argsort(
            axis=1, kind="stable"
        )

    def seed(self) -> int:
        """A seed for a library's own generator, in [0, 2^63)."""
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
) -> list[NDArray[np.int64]]:
    """Return the row numbers of the batches of one local training.

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
    size = count
    if batch_size is not None:
        size = min(batch_size, count)
    batches_per_epoch = -(-count // size) - (0 < count % size < smallest)
    if epochs is None:
        epochs = -(-(steps or 0) // batches_per_epoch)
    drawn: list[NDArray[np.int64]] = []
    open_steps = epochs * batches_per_epoch if steps is None else steps
    group = max(1, _HASHES // count)
    for low in range(0, epochs, group):
        high = min(epochs, low + group)
        orders = (
            rng.permutations(low, high, count)
            if high - low > 1
            else [rng.child(low).permutation(count, open_steps * size)]
        )
        for order in orders:
            present = min(batches_per_epoch, open_steps)
            for start in range(0, present * size, size):
                drawn.append(order[start : start + size])
            open_steps -= present
    return drawn


def generator(seed: int, *names: str) -> np.random.Generator:
    """A random generator that belongs to (seed, names) and to nothing else.

    Args:
        seed: An integer >= 0.
        names: Names of what is drawn.

    >>> bool(generator(0, "split", "a").random() == generator(0, "split", "a").random())
    True
    """
    return np.random.default_rng(int.from_bytes(name_digest(seed, *names), "little"))


def name_digest(seed: int, *names: str) -> bytes:
    """Return what a seed and names are as 16 bytes."""
    return hashlib.blake2b(
        "\x1f".join([str(int(seed)), *names]).encode(), digest_size=16
    ).digest()


def numpy_generators(digests: Iterable[bytes]) -> Iterator[np.random.Generator]:
    """Yield what `numpy.random.default_rng(int.from_bytes(digest, "little"))` gives for each digest of 16 bytes, until the next one.

    A seed is mixed as numpy's `SeedSequence` does, for all digests at once, since making one takes longer than a client's draws.
    """
    words = (
        np.frombuffer(b"".join(digests), dtype="<u4").reshape(-1, 4).T.astype(np.uint32)
    )
    state, word = np.uint32(_HASH_A[0]), np.uint32

    def mix(values: NDArray[np.uint32], multiplier: int) -> NDArray[np.uint32]:
        nonlocal state
        values = values ^ state
        state = word(int(state) * multiplier & 0xFFFFFFFF)
        values = values * state
        return values ^ (values >> word(16))

    pool = [mix(word, _HASH_A[1]) for word in words]
    for source in range(4):
        for target in range(4):
            if source != target:
                value = pool[target] * word(0xCA01F9DD) - mix(
                    pool[source], _HASH_A[1]
                ) * word(0x4973F715)
                pool[target] = value ^ (value >> word(16))
    state = word(_HASH_B[0])
    halves = [mix(pool[k % 4], _HASH_B[1]).astype(np.uint64) for k in range(8)]
    numbers = [
        (halves[k] | halves[k + 1] << np.uint64(32)).tolist() for k in (0, 2, 4, 6)
    ]
    bits = np.random.PCG64(0)
    generator, form = np.random.Generator(bits), bits.state
    for high, low, increment_high, increment_low in zip(*numbers, strict=True):
        increment = ((increment_high << 64 | increment_low) << 1 | 1) & _MASK_128
        first_state = ((increment + (high << 64 | low)) * _PCG + increment) & _MASK_128
        bits.state = {**form, "state": {"state": first_state, "inc": increment}}
        yield generator


def normal(like: Tensor, rngs: Sequence[Rng]) -> Tensor:
    """N(0, I) in the form of `like`, a row from each stream."""
    drawn = [
        torch.randn(row.shape, generator=rng.generator(), dtype=row.dtype)
        for row, rng in zip(like, rngs, strict=True)
    ]
    return torch.stack(drawn).to(like.device)


Generator = (
    torch.Generator | np.random.Generator | np.random.RandomState | random.Random
)

_GLOBAL: tuple[Generator, ...] = (
    torch.default_generator,
    np.random.mtrand._rand,
    random._inst,
)


class Generators(NamedTuple):
    """The state of the global generators, and of some more."""

    states: tuple[tuple[Generator, Any], ...]

    @classmethod
    def now(cls, generators: tuple[Generator, ...] = ()) -> Generators:
        """As they stand."""
        return cls(
            tuple(
                (generator, _state(generator)) for generator in (*_GLOBAL, *generators)
            )
        )

    def restore(self) -> None:
        """Let them stand there again."""
        for generator, state in self.states:
            _set_state(generator, state)

    def differ(self) -> bool:
        """Return True if anything was drawn since."""
        return not all(
            _same(state, _state(generator)) for generator, state in self.states
        )


def generators_of(model: nn.Module, device: torch.device) -> tuple[Generator, ...]:
    """The generators, beside the global ones of a CPU, that a model on this device can draw from: the device's, and those it holds."""
    seeded: dict[int, Generator] = {}  # each once
    for module in model.modules():
        for value in vars(module).values():
            # A `SystemRandom` has no seed.
            if isinstance(value, Generator) and not isinstance(
                value, random.SystemRandom
            ):
                seeded[id(value)] = value
    if device.type != "cuda":
        return tuple(seeded.values())
    number: int | None = device.index
    if number is None:
        number = torch.cuda.current_device()
    return (torch.cuda.default_generators[number], *seeded.values())


def seed_noise(seed: int, generators: tuple[Generator, ...] = ()) -> None:
    """Seed the global generators, and some more each in its own way; only within `fork_generators`."""
    for generator in _GLOBAL:
        _seed(generator, seed)
    for number, generator in enumerate(generators, 1):
        _seed(generator, seed + number)


@contextmanager
def fork_generators(
    seed: int | None = None, generators: tuple[Generator, ...] = ()
) -> Iterator[None]:
    """Within it the generators are of this `seed` (None: go on as they are); behind it they stand where they stood."""
    old_states = Generators.now(generators)
    try:
        if seed is not None:
            seed_noise(seed, generators)
        yield
    finally:
        old_states.restore()


def _state(generator: Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state(legacy=False)


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
    if isinstance(a, np.ndarray | torch.Tensor):
        return bool(np.array_equal(a, b))
    return bool(a == b)
