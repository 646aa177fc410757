"""VaRSeL: how many external clients Eq. 8 draws, and the constants of Lemma 1 and Theorems 2 and 3.

Source: "Rethinking Client Reweighting for Selfish Federated Learning", sections 4.2 and 4.3, appendices A and B. M internal and N
external clients; Phi is the expected squared error of the gradient that VaRSeL follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from coterie.theory.bounds import Bound, check_positive

__all__ = [
    "ErrorBound",
    "drawn_external_clients",
    "error_bound",
    "largest_rate",
    "largest_rate_of_local_steps",
    "theorem_2",
    "theorem_3",
]


def drawn_external_clients(internal: int, *, unbiased: bool = False) -> float:
    """Return how many external clients Eq. 8 draws in a round if their gradients are distributed as the internal ones.

    Let one gradient have the error sigma^2. The internal variance is V = (M - 1) sigma^2 in expectation, and each external client is
    d = sigma^2 (1 + 1 / M) away from the internal mean. For equal distances Eq. 7 is (V + s^2 d) / (M + s)^2, which is least at the sum
    of weights s = V / (M d) = (M - 1) / (M + 1), whatever the budget K and the number N of external clients are. Distances that differ
    by chance are filled from the smallest, which gives somewhat more; clients that are less alike give less.

    Args:
        internal: M >= 1, with virtual clients counted.
        unbiased: V is multiplied by M / (M - 1), as `unbiased_variance` and `debias` do; then the sum is M / (M + 1).

    >>> [round(drawn_external_clients(m), 2) for m in (2, 3, 10)]
    [0.33, 0.5, 0.82]
    """
    check_positive(internal=internal)
    return (internal if unbiased else internal - 1) / (internal + 1)


class ErrorBound(NamedTuple):
    """Lemma 1: Phi(w*) <= slope ||grad l||^2 + level.

    Attributes:
        slope: A, without unit.
        level: B, a squared gradient.

    >>> ErrorBound(slope=0.25, level=0.1).slope
    0.25
    """

    slope: float
    level: float


def error_bound(
    internal: int,
    sigma: float,
    kappas: Sequence[float],
    nus: Sequence[float],
    alignment: float,
) -> ErrorBound:
    """Return A and B of Lemma 1 (Eq. 11), by the weighted inequality of means that the proof calls for.

    The proof bounds 1 / (M / a + N / b), where a and b are the internal and the external error. The inequality of arithmetic and
    harmonic means gives (M a + N b) / (M + N)^2. Eq. 11 prints (a + b) / (M + N)^2, which is below what it shall bound already for
    M = N = 2 and equal errors; here the factors M and N stand. The lemma's weights ignore that no weight exceeds 1 and that their sum
    is at most K, so it speaks of an ideal that VaRSeL need not reach.

    Args:
        internal: M >= 1.
        sigma: of assumption 1, E ||grad l_I - grad l||^2 <= sigma ||grad l||^2, > 0.
        kappas: kappa_j of assumption 1 for each of the N external clients, E ||grad l_j - grad l||^2 <= kappa_j ||grad l||^2 + nu_j.
        nus: nu_j of the same assumption, squared gradients.
        alignment: (1'e)^2 in (0, N], e the unit eigenvector to the least eigenvalue of the external errors' Gram matrix; N where all
            external clients err alike.

    Raises:
        ValueError: a constant is out of its range.

    >>> error_bound(2, sigma=0.5, kappas=[1.0, 1.0], nus=[0.2, 0.2], alignment=2.0)
    ErrorBound(slope=0.25, level=0.025)
    """
    external = len(kappas)
    check_positive(internal=internal, sigma=sigma, alignment=alignment)
    if not external or len(nus) != external or alignment > external:
        raise ValueError(
            "kappas and nus need one number for each external client, and alignment is at most their number"
        )
    everybody = (internal + external) ** 2
    outer = external / (alignment * everybody)
    return ErrorBound(
        slope=internal**2 * sigma / everybody + outer * sum(kappas),
        level=outer * sum(nus),
    )


def largest_rate(smoothness: float, convexity: float, slope: float) -> float:
    """Return the bound on eta of Theorem 2, (1 / L - A / mu) / (2 sqrt A); not positive where A is too large for any rate.

    Args:
        smoothness: L of assumption 2a.
        convexity: mu of assumption 3, at most L.
        slope: A of Lemma 1.

    >>> largest_rate(smoothness=1.0, convexity=0.5, slope=0.25)
    0.5
    """
    check_positive(smoothness=smoothness, convexity=convexity, slope=slope)
    return (1 / smoothness - slope / convexity) / (2 * math.sqrt(slope))


def theorem_2(
    bound: ErrorBound,
    smoothness: float,
    convexity: float,
    rate: float,
    steps: int,
    distance: float,
) -> Bound:
    """Return both terms of Theorem 2 (Eq. 5), the bound on E ||theta* - theta^t||^2.

    Xi_1 = mu - 1 / gamma_1 and Xi_2 = (eta / gamma_2 + gamma_1) / Xi_1 (appendix A.3), with gamma_2 = sqrt A, which asks least of the
    rate, and the largest gamma_1 that 1 / L >= A gamma_1 + 2 eta sqrt A allows, which makes the first term fall fastest.

    Args:
        bound: A and B of Lemma 1.
        smoothness: L.
        convexity: mu.
        rate: eta, below `largest_rate`.
        steps: t >= 0.
        distance: ||theta* - theta^0||^2.

    Raises:
        ValueError: eta is not below the theorem's bound.

    >>> bound = theorem_2(ErrorBound(0.25, 0.1), smoothness=1.0, convexity=0.5, rate=0.1, steps=100, distance=1.0)
    >>> round(bound.vanishing, 3), round(bound.remaining, 3)
    (0.106, 1.71)
    """
    limit = largest_rate(smoothness, convexity, bound.slope)
    if not 0 < rate < limit:
        raise ValueError(f"Theorem 2 needs a rate above 0 and below {limit:.6g}")
    root = math.sqrt(bound.slope)
    first = (1 / smoothness - 2 * rate * root) / bound.slope
    speed = convexity - 1 / first
    noise = (rate / root + first) / speed * bound.level
    return Bound((1 - rate * speed) ** steps * distance, noise)


def largest_rate_of_local_steps(smoothness: float, slope: float) -> float:
    """Return below which eta the constants of Theorem 3's proof exist: 2 (1 - sqrt A) / (L (1 + sqrt A)^2).

    Gamma_3 > 0 is what the proof needs (appendix B.2). With gamma_1 = sqrt A / 2 and gamma_2 = sqrt A, which ask least, and gamma_3
    near 0 it is 1 - sqrt A - eta L (1 + sqrt A)^2 / 2. The theorem prints the larger 2 (1 - sqrt A) / (L (A + sqrt A)).

    Args:
        smoothness: L of assumptions 2a and 2b.
        slope: A of Lemma 1; from 1 on there is no such rate, and the result is not positive.

    >>> round(largest_rate_of_local_steps(smoothness=1.0, slope=0.25), 3)
    0.444
    """
    check_positive(smoothness=smoothness, slope=slope)
    root = math.sqrt(slope)
    return 2 * (1 - root) / (smoothness * (1 + root) ** 2)


def theorem_3(
    bound: ErrorBound,
    smoothness: float,
    gradient: float,
    rate: float,
    local_steps: int,
    rounds: int,
    excess: float,
    slack: float = 0.1,
) -> Bound:
    """Return both terms of Theorem 3, the bound on the mean squared gradient over tau T steps (appendix B.2).

    Args:
        bound: A and B of Lemma 1.
        smoothness: L.
        gradient: G, the bound on the root mean square of every client's gradient (assumption 4).
        rate: eta, below `largest_rate_of_local_steps`.
        local_steps: tau >= 1.
        rounds: T >= 1.
        excess: l(theta^0) - l(theta*), a loss.
        slack: gamma_3 > 0 of the proof; a small one leaves room for the rate, a large one lessens the share of the local steps.

    Raises:
        ValueError: no constants of the proof exist for this rate and slack.

    >>> bound = theorem_3(ErrorBound(0.25, 0.1), 1.0, 1.0, rate=0.01, local_steps=3, rounds=1000, excess=1.0)
    >>> round(bound.vanishing, 3), round(bound.remaining, 3)
    (0.072, 0.257)
    """
    check_positive(rate=rate, local_steps=local_steps, rounds=rounds, slack=slack)
    limit = largest_rate_of_local_steps(smoothness, bound.slope)
    root = math.sqrt(bound.slope)
    start = (1 - root / 2) - (1 + root) * smoothness * rate / 2  # Gamma_0
    first = 1 / (2 * root) + (1 + 1 / root) * smoothness * rate / 2  # Gamma_1
    third = start - (1 + slack) * bound.slope * first  # Gamma_3
    if third <= 0:
        raise ValueError(
            f"Theorem 3 needs a rate below {limit:.6g}, and the smaller the larger slack is; lower either"
        )
    tau = local_steps
    drift = (smoothness * rate * gradient) ** 2 * (2 * tau**3 - 3 * tau**2 + tau)
    second = (1 + slack) * tau * bound.level + (2 / 3) * (1 + 1 / slack) * drift
    return Bound(excess / (rate * third * tau * rounds), first * second / (third * tau))
