"""ISFL: Theorem 1 whole, with psi, phi_k and rho.

Source: Z. Zhu, Y. Shi, P. Fan, C. Peng, K. B. Letaief, "ISFL: Federated Learning for Non-i.i.d. Data with Local Importance Sampling",
Eqs. 10 to 13. K clients with shares pi_k, C classes, E_l steps between two averages; the stochastic gradient of client k has the
variance sigma_k^2 and a mean length of at most G, here the same in all steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from coterie.theory.bounds import Bound, check_positive

__all__ = ["drift", "largest_rate", "psi", "theorem_1"]


def largest_rate(constants: Sequence[float], shares: Sequence[float]) -> float:
    """Return the largest eta of Theorem 1's proof, 1 / L with L = sum_i p_i L_i (appendix A).

    Args:
        constants: [C], L_i of each class (Eq. 7).
        shares: [C], p_i, global class shares.

    >>> largest_rate([1.0, 3.0], [0.5, 0.5])
    0.5
    """
    return 1 / _mean(constants, shares)


def psi(
    rate: float,
    constants: Sequence[float],
    shares: Sequence[float],
    variances: Sequence[float],
    sizes: Sequence[float],
    gradient: float,
) -> float:
    """Return psi of Eq. 11, eta L sum_k pi_k sigma_k^2 + 2 C G^2, a squared gradient.

    It does not fall with the number of steps, and its second part is at least 2 C times a squared gradient: so the bound is above the
    gradient that it bounds, whatever q is. It orders ways of sampling by rho, and says nothing of convergence.

    Args:
        rate: eta.
        constants: [C], L_i.
        shares: [C], p_i.
        variances: [K], sigma_k^2.
        sizes: [K], pi_k, shares of the clients in all rows.
        gradient: G.

    >>> psi(0.1, [1.0, 3.0], [0.5, 0.5], [1.0, 1.0], [0.5, 0.5], gradient=1.0)
    4.2
    """
    noise = rate * _mean(constants, shares) * _mean(variances, sizes)
    return noise + 2 * len(constants) * gradient**2


def drift(
    variances: Sequence[float],
    sizes: Sequence[float],
    gradient: float,
    local_steps: int,
) -> list[float]:
    """Return the mean over the steps of a round of phi_k of Eq. 12 for each client, a squared gradient.

    Since the last average there have been 0, 1, ..., E_l - 1 steps, so the mean of phi_k is (E_l - 1) / 2 times one step's
    2 G^2 + sigma_k^2 + sum_l pi_l sigma_l^2. With one step a round it is 0, and no way of sampling changes the bound.

    Args:
        variances: [K], sigma_k^2.
        sizes: [K], pi_k.
        gradient: G.
        local_steps: E_l >= 1.

    >>> drift([1.0, 3.0], [0.5, 0.5], gradient=1.0, local_steps=5)
    [10.0, 14.0]
    """
    check_positive(local_steps=local_steps)
    mean = _mean(variances, sizes)
    steps = (local_steps - 1) / 2
    return [steps * (2 * gradient**2 + variance + mean) for variance in variances]


def theorem_1(
    rate: float,
    constants: Sequence[float],
    shares: Sequence[float],
    rhos: Sequence[float],
    variances: Sequence[float],
    sizes: Sequence[float],
    gradient: float,
    local_steps: int,
    steps: int,
    excess: float,
) -> Bound:
    """Return the bound of Theorem 1 (Eq. 10) on the mean of ||grad l||^2 over T steps.

    It is 2 (l - l*) / (eta T) + psi + 2 eta^2 E_l sum_k pi_k rho_k mean(phi_k).

    Args:
        rate: eta, at most `largest_rate`.
        constants: [C], L_i.
        shares: [C], p_i.
        rhos: [K], rho of each client's sampling probabilities (Eq. 13; `ct.solvers.waterfill.bound`).
        variances: [K], sigma_k^2.
        sizes: [K], pi_k.
        gradient: G.
        local_steps: E_l.
        steps: T, whole rounds.
        excess: l - l* at the start, a loss.

    Raises:
        ValueError: a rate above `largest_rate`, or lists of different lengths.

    >>> bound = theorem_1(0.1, [1.0, 3.0], [0.5, 0.5], [5.0, 5.0], [1.0, 1.0], [0.5, 0.5], 1.0, 5, 1000, 1.0)
    >>> round(bound.vanishing, 3), round(bound.remaining, 3)
    (0.02, 8.2)
    """
    check_positive(rate=rate, steps=steps)
    if rate > largest_rate(constants, shares) * (1 + 1e-12):
        limit = largest_rate(constants, shares)
        raise ValueError(f"Theorem 1 needs a rate of at most {limit:.6g}; got {rate}")
    phis = drift(variances, sizes, gradient, local_steps)
    moved = [rho * phi for rho, phi in zip(rhos, phis, strict=True)]
    of_sampling = 2 * rate**2 * local_steps * _mean(moved, sizes)
    stays = psi(rate, constants, shares, variances, sizes, gradient) + of_sampling
    return Bound(2 * excess / (rate * steps), stays)


def _mean(values: Sequence[float], shares: Sequence[float]) -> float:
    return sum(share * value for share, value in zip(shares, values, strict=True))
