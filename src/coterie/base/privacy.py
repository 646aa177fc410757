"""Gaussian differential privacy: what noise promises, in mu, and what that is in epsilon and delta.

Neighbours are two tables of which one lacks a row; how many rows there are, and how many of each class, is public. A
number told behind Gaussian noise is an event of mu = sensitivity / sigma. Events compose exactly, also where one is chosen
after another has been read: mu of all is the root of the sum of squares (J. Dong, A. Roth and W. Su, "Gaussian Differential
Privacy", JRSS B 2022, Corollary 2). What is mu-private is (epsilon, delta)-private for all pairs of `delta_of`, and for no
better ones (there, Corollary 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from coterie.base.errors import InputError

_LARGE = 8.0
"""From here on the continued fraction of the Mills ratio is exact to rounding with `_TERMS` terms."""
_TERMS = 60


def total_mu(events: Iterable[float]) -> float:
    """Return mu of all events [mu >= 0], in whichever order and however chosen.

    >>> total_mu([3.0, 4.0])
    5.0
    """
    return math.sqrt(math.fsum(mu * mu for mu in events))


def mills_ratio(x: float) -> float:
    """Return Phi(-x) / phi(x), the tail of the normal distribution over its density; it neither under- nor overflows for x > -37."""
    if x < _LARGE:
        return (
            math.sqrt(math.pi / 2) * math.erfc(x / math.sqrt(2)) * math.exp(x * x / 2)
        )
    # Laplace's continued fraction 1 / (x + 1 / (x + 2 / (x + ...))), from the inside out.
    tail = x
    for k in range(_TERMS, 0, -1):
        tail = x + k / tail
    return 1 / tail


def delta_of(mu: float, epsilon: float) -> float:
    """Return the smallest delta with which mu-privacy is (epsilon, delta)-privacy.

    That is Phi(-a) - exp(epsilon) Phi(-b) with a = epsilon / mu - mu / 2 and b = a + mu. Since exp(epsilon) phi(b) = phi(a), it is
    phi(a) (R(a) - R(b)) with the Mills ratio R, and no term overflows or cancels against a larger one.

    >>> round(delta_of(1.0, 1.0), 6)
    0.126937
    """
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    a = epsilon / mu - mu / 2
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if a > 0:
        return density * (mills_ratio(a) - mills_ratio(a + mu))
    # Here Phi(-a) is at least 1 / 2, while R(a) could overflow.
    return math.erfc(a / math.sqrt(2)) / 2 - density * mills_ratio(a + mu)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 with which mu-privacy is (epsilon, delta)-privacy; infinity for infinite mu.

    >>> round(epsilon_of(1.0, 1e-5), 4), round(epsilon_of(60**0.5 / 4, 1e-5), 4)
    (4.3772, 9.6084)
    """
    _check_delta(delta)
    if math.isinf(mu):
        return math.inf
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return _first_true(lambda epsilon: delta_of(mu, epsilon) <= delta, 0.0, high)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu that is (epsilon, delta)-private.

    >>> round(epsilon_of(mu_of(8.0, 1e-5), 1e-5), 9)
    8.0
    """
    _check_delta(delta)
    if math.isnan(epsilon) or epsilon < 0:
        raise InputError(f"epsilon must be a number >= 0; got {epsilon:g}")
    if math.isinf(epsilon):
        return math.inf
    high = 1.0
    while delta_of(high, epsilon) <= delta:
        high *= 2
    # The last float below is kept, so that the claim holds to the last bit.
    first_too_large = _first_true(lambda mu: delta_of(mu, epsilon) > delta, 0.0, high)
    return math.nextafter(first_too_large, 0.0)


def noise_multiplier(epsilon: float, delta: float, steps: int) -> float:
    """Return z, so that `steps` sums of rows of length C at most, each with noise of deviation z C, are (epsilon, delta)-private.

    >>> round(noise_multiplier(8.0, 1e-5, 60), 4)
    4.6494
    """
    if steps < 1:
        raise InputError(f"noise is for at least 1 step; got {steps}")
    return math.sqrt(steps) / mu_of(epsilon, delta)


def usual_delta(rows: int) -> float:
    """Return the delta that is taken where none is named, a tenth of one in so many rows."""
    return 1 / (10 * max(1, rows))


def check_delta(delta: float, rows: int, where: str) -> None:
    """Raise `InputError` for a delta with which one of so many rows could be told outright."""
    _check_delta(delta)
    if delta >= 1 / rows:
        raise InputError(
            f"{where} = {delta:g} lets one of {rows} rows be told outright; take less than 1 / {rows}, such as {usual_delta(rows):.2g}"
        )


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError(f"delta must be a number between 0 and 1; got {delta:g}")


def _first_true(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least float at which `holds`, which is false at `low`, true at `high` and changes once between them."""
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        if holds(middle):
            high = middle
        else:
            low = middle
