"""Normal noise on the integers: each integer k has a probability in proportion to exp(-k^2 / (2 sigma^2)).

C. Canonne, G. Kamath and T. Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, Algorithms 1 to 3, for sigma a
power of two. All is arithmetic of integers, so that no low bit of a float tells what the noise hides. Each decision compares a
random word of 64 bits with a threshold that is rounded down, and is off by less than 2^-64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

DrawWords = Callable[[int], NDArray[np.uint64]]
"""Gives as many random words of 64 bits, each used once."""
_EXP_MINUS_ONE = np.uint64(6_786_177_901_268_885_274)
"""exp(-1) 2^64, rounded down."""
_WORD_BITS = 64


def discrete_gaussian(count: int, bits: int, draw: DrawWords) -> NDArray[np.int64]:
    """Return independent integers [count] whose deviation sigma is 2^bits.

    Args:
        count: how many.
        bits: from 0 to 24, for which nothing below leaves 64 bits.
        draw: the random words.
    """
    drawn = np.zeros(count, dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        candidates = _discrete_laplace(len(missing), bits, draw)
        # Accepted with probability exp(-(|y| - sigma)^2 / (2 sigma^2)).
        distance = np.abs(candidates) - (1 << bits)
        accepted = _is_exp(distance * distance, 2 * bits + 1, draw)
        drawn[missing[accepted]] = candidates[accepted]
        missing = missing[~accepted]
    return drawn


def _discrete_laplace(count: int, bits: int, draw: DrawWords) -> NDArray[np.int64]:
    """Integers [count], each with a probability in proportion to exp(-|y| / 2^bits) (Algorithm 2)."""
    drawn = np.zeros(count, dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        low = _uniform(len(missing), bits, draw)
        accepted = _is_exp(low, bits, draw)
        size = low + (_geometric(len(missing), draw) << bits)
        is_negative = draw(len(missing)) >> np.uint64(_WORD_BITS - 1) == 1
        # Zero has two signs, and would be drawn twice as often as it should.
        accepted &= ~(is_negative & (size == 0))
        signed = np.where(is_negative, -size, size)
        drawn[missing[accepted]] = signed[accepted]
        missing = missing[~accepted]
    return drawn


def _uniform(count: int, bits: int, draw: DrawWords) -> NDArray[np.int64]:
    """Integers [count] from 0 to 2^bits - 1."""
    if not bits:
        return np.zeros(count, dtype=np.int64)
    return (draw(count) >> np.uint64(_WORD_BITS - bits)).astype(np.int64)


def _geometric(count: int, draw: DrawWords) -> NDArray[np.int64]:
    """How often in a row something of probability exp(-1) happens, [count]."""
    times = np.zeros(count, dtype=np.int64)
    going = np.arange(count)
    while len(going):
        going = going[draw(len(going)) < _EXP_MINUS_ONE]
        times[going] += 1
    return times


def _is_exp(
    numerators: NDArray[np.int64], bits: int, draw: DrawWords
) -> NDArray[np.bool_]:
    """True with probability exp(-numerator / 2^bits) for each numerator [n] >= 0; bits from 0 to 63 (Algorithm 1)."""
    whole = numerators >> bits
    going = np.arange(len(numerators))
    # exp(-gamma) is exp(-1) once for each whole part of gamma, and exp of the rest.
    for done in range(int(whole.max(initial=0))):
        due = whole[going] > done
        failed = due & (draw(len(going)) >= _EXP_MINUS_ONE)
        going = going[~failed]
        if not len(going):
            break
    rest = (numerators[going] & ((1 << bits) - 1)).astype(np.uint64)
    result = np.zeros(len(numerators), dtype=np.bool_)
    result[going] = _is_exp_of_fraction(rest << np.uint64(_WORD_BITS - bits), draw)
    return result


def _is_exp_of_fraction(
    fractions: NDArray[np.uint64], draw: DrawWords
) -> NDArray[np.bool_]:
    """True with probability exp(-gamma) for each gamma [n] in [0, 1), in units of 2^-64.

    The first k at which something of probability gamma / k fails is odd with probability exp(-gamma).
    """
    first_failure = np.zeros(len(fractions), dtype=np.int64)
    going, k = np.arange(len(fractions)), 0
    while len(going):
        k += 1
        succeeded = draw(len(going)) < fractions[going] // np.uint64(k)
        first_failure[going[~succeeded]] = k
        going = going[succeeded]
    is_odd: NDArray[np.bool_] = first_failure % 2 == 1
    return is_odd
