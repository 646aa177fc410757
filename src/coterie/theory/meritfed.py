"""MeritFed: the right-hand sides of Theorems 1 and 2, the largest rates, and how many validation rows a step needs.

Source: N. Tupitsa, S. Horváth, M. Takáč, E. Gorbunov, "Selective Collaboration for Robust Federated Learning", section 3.
f is L-smooth, sigma^2 bounds the variance of a stochastic gradient of the G clients with the target's distribution, and delta is the
accuracy to which the weights are found (the log's `gap_bound` bounds it).
"""

from __future__ import annotations

import math

from coterie.theory.bounds import Bound, check_positive

__all__ = [
    "largest_local_rate",
    "largest_rate",
    "theorem_1",
    "theorem_1_convex",
    "theorem_1_local_steps",
    "theorem_2",
    "validation_rows",
]


def largest_rate(smoothness: float, *, near: bool = False) -> float:
    """Return the largest gamma of Theorem 1, 1 / (2 L), or of Theorem 2, 1 / (8 L).

    Args:
        smoothness: L, the Lipschitz constant of the target's gradient.
        near: the rate of Theorem 2, which counts on a second group with similar data.

    >>> largest_rate(2.0), largest_rate(2.0, near=True)
    (0.25, 0.0625)
    """
    check_positive(smoothness=smoothness)
    return 1 / ((8 if near else 2) * smoothness)


def largest_local_rate(smoothness: float, local_steps: int) -> float:
    """Return the largest gamma_l of Theorem 1 for K > 1 local steps, 1 / (12 L K); the server's gamma is then 2.

    Args:
        smoothness: L.
        local_steps: K.

    >>> round(largest_local_rate(2.0, 5), 4)
    0.0083
    """
    check_positive(smoothness=smoothness, local_steps=local_steps)
    return 1 / (12 * smoothness * local_steps)


def theorem_1(
    smoothness: float,
    variance: float,
    same: int,
    rate: float,
    rounds: int,
    excess: float,
    inexactness: float = 0.0,
) -> Bound:
    """Return the bound of Theorem 1 for one local step on the mean of ||grad f||^2 over the rounds.

    It is 2 (f(x^0) - f*) / (T gamma) + 2 sigma^2 gamma L / G + 2 delta / gamma, a squared gradient.

    Args:
        smoothness: L.
        variance: sigma^2, of one client's stochastic gradient.
        same: G, clients with the target's distribution, the target included.
        rate: gamma, at most `largest_rate`.
        rounds: T.
        excess: f(x^0) - f*, a loss.
        inexactness: delta, a loss: how far phi at the weights is above its minimum.

    Raises:
        ValueError: a rate above the theorem's, or a constant that is not above 0.

    >>> theorem_1(smoothness=1.0, variance=1.0, same=5, rate=0.1, rounds=100, excess=1.0)
    Bound(vanishing=0.2, remaining=0.04)
    """
    check_positive(smoothness=smoothness, same=same, rate=rate, rounds=rounds)
    _check_rate(rate, largest_rate(smoothness), "Theorem 1")
    remaining = 2 * variance * rate * smoothness / same + 2 * inexactness / rate
    return Bound(2 * excess / (rounds * rate), remaining)


def theorem_1_convex(
    smoothness: float,
    convexity: float,
    variance: float,
    same: int,
    rate: float,
    rounds: int,
    excess: float,
    inexactness: float = 0.0,
) -> Bound:
    """Return the bound of Theorem 1 under the PL condition on f(x^T) - f*, a loss.

    It is (1 - gamma mu)^T (f(x^0) - f*) + sigma^2 gamma L / (mu G) + delta / (gamma mu).

    Args:
        smoothness: L.
        convexity: mu of the PL condition; of a strongly convex f its modulus.
        variance: sigma^2.
        same: G.
        rate: gamma, at most `largest_rate`.
        rounds: T.
        excess: f(x^0) - f*.
        inexactness: delta.

    >>> bound = theorem_1_convex(0.2, 0.2, 0.4, 5, 0.01, 5000, 0.1)
    >>> round(bound.remaining, 5)
    0.0008
    """
    check_positive(smoothness=smoothness, convexity=convexity, same=same, rate=rate)
    _check_rate(rate, largest_rate(smoothness), "Theorem 1")
    noise = variance * rate * smoothness / (convexity * same)
    vanishing = (1 - rate * convexity) ** rounds * excess
    return Bound(vanishing, noise + inexactness / (rate * convexity))


def theorem_1_local_steps(
    smoothness: float,
    variance: float,
    same: int,
    local_rate: float,
    local_steps: int,
    rounds: int,
    excess: float,
    inexactness: float = 0.0,
) -> Bound:
    """Return the bound of Theorem 1 for K > 1 local steps, gamma = 2, on the mean of ||grad f||^2.

    It is 4 (f(x^0) - f*) / (gamma_l K T) + 24 gamma_l^2 K L^2 sigma^2 + 32 gamma_l L sigma^2 / G + 4 delta / (gamma_l K).

    Args:
        smoothness: L.
        variance: sigma^2.
        same: G.
        local_rate: gamma_l, at most `largest_local_rate`.
        local_steps: K.
        rounds: T.
        excess: f(x^0) - f*.
        inexactness: delta.

    >>> bound = theorem_1_local_steps(1.0, 1.0, 5, 0.01, 5, 100, 1.0)
    >>> round(bound.vanishing, 3), round(bound.remaining, 3)
    (0.8, 0.076)
    """
    check_positive(smoothness=smoothness, same=same, local_rate=local_rate)
    _check_rate(local_rate, largest_local_rate(smoothness, local_steps), "Theorem 1")
    progress = local_rate * local_steps
    drift = 24 * local_rate**2 * local_steps * smoothness**2 * variance
    noise = 32 * local_rate * smoothness * variance / same
    return Bound(
        4 * excess / (progress * rounds), drift + noise + 4 * inexactness / progress
    )


def theorem_2(
    smoothness: float,
    variance: float,
    same: int,
    near_variance: float,
    near: int,
    dissimilarity: float,
    rate: float,
    rounds: int,
    excess: float,
    inexactness: float = 0.0,
) -> Bound:
    """Return the bound of Theorem 2 on the mean of ||grad f||^2, with F more clients whose mean gradient is near the target's.

    It is 4 (f(x^0) - f*) / (T gamma) plus twice the smaller of what the G clients give alone,
    sigma_G^2 gamma L / G + delta / gamma, and of what all give,
    4 gamma L (G sigma_G^2 + F sigma_F^2) / (G + F)^2 + rho^2 F / (G + F) + 2 delta / gamma.
    So near clients help where rho^2 is small against gamma L sigma^2 / G.

    Args:
        smoothness: L.
        variance: sigma_G^2.
        same: G.
        near_variance: sigma_F^2.
        near: F.
        dissimilarity: rho^2 of assumption 2, a squared gradient (its nu must be at most G / F).
        rate: gamma, at most `largest_rate` with `near`.
        rounds: T.
        excess: f(x^0) - f*.
        inexactness: delta.

    >>> theorem_2(1.0, 1.0, 5, 1.0, 95, 0.0, 0.1, 1000, 1.0).remaining
    0.008
    >>> theorem_2(1.0, 1.0, 5, 1.0, 95, 1.0, 0.1, 1000, 1.0).remaining
    0.04
    """
    check_positive(smoothness=smoothness, same=same, near=near, rate=rate)
    _check_rate(rate, largest_rate(smoothness, near=True), "Theorem 2")
    everybody = same + near
    alone = variance * rate * smoothness / same + inexactness / rate
    noise = 4 * rate * smoothness * (same * variance + near * near_variance)
    bias = dissimilarity * near / everybody
    together = noise / everybody**2 + bias + 2 * inexactness / rate
    return Bound(4 * excess / (rounds * rate), 2 * min(alone, together))


def validation_rows(lipschitz: float, clients: int, accuracy: float) -> int:
    """Return the order of validation rows, one for each evaluation of phi, for weights accurate to delta: (M log n / delta)^2.

    The text after Eq. 9 gives the order O(M_2^2 log^2 n / delta^2) of fresh samples for mirror descent with losses alone on
    the simplex, without its constant: so the result tells how the need grows, not how many rows suffice.

    Args:
        lipschitz: M_2, the Lipschitz constant of a row's loss.
        clients: n.
        accuracy: delta, a loss.

    >>> validation_rows(1.0, 20, 0.1), validation_rows(1.0, 20, 0.05)
    (898, 3590)
    """
    check_positive(lipschitz=lipschitz, clients=clients, accuracy=accuracy)
    return math.ceil((lipschitz * math.log(clients) / accuracy) ** 2)


def _check_rate(rate: float, largest: float, theorem: str) -> None:
    if rate > largest * (1 + 1e-12):
        raise ValueError(f"{theorem} needs a rate of at most {largest:.6g}; got {rate}")
