"""MaxFL: smoothness of its objective, the epsilon and rates that follow, and the bound of Theorem 3.1.

Source: Y. J. Cho, D. Jhunjhunwala, T. Li, V. Smith, G. Joshi, "Maximizing Global Model Appeal in Federated Learning", sections 3 and
appendix B. Each local loss is L_c-continuous (its gradient is at most L_c long) and L_s-smooth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from coterie.theory.bounds import Bound, check_positive

__all__ = ["Rates", "epsilon", "rates", "smoothness", "theorem_3_1"]


def smoothness(
    weights: Sequence[float], continuity: float, local_smoothness: float
) -> float:
    """Return a smoothness of the objective, L_s mean(q) + L_c^2 / 4 (Lemma B.2).

    The text of section 3 prints L_c / 4 for L_c^2 / 4. Lemma B.2 has the square, and so have the units: the Hessian of sigmoid(F - rho)
    has the part sigma'' grad F grad F', a squared gradient. |sigma''| is below .0963, so that 1 / 4 is safe.

    Args:
        weights: q_k = s (1 - s) of the clients.
        continuity: L_c, of each local loss.
        local_smoothness: L_s, of each local loss.

    >>> smoothness([0.25, 0.25], continuity=2.0, local_smoothness=4.0)
    2.0
    """
    check_positive(continuity=continuity, local_smoothness=local_smoothness)
    mean = sum(weights) / len(weights)
    return local_smoothness * mean + continuity**2 / 4


def epsilon(clients: int, continuity: float, local_smoothness: float) -> float:
    """Return the epsilon of the optimal server rate, M L_c^2 / (4 L_s): with it 1 / `smoothness` is M / (L_s (sum q + epsilon)).

    Section 3 prints M L_c / (4 L_s), with the same slip as for the smoothness. `MaxFL.eps` is far smaller by default.

    Args:
        clients: M.
        continuity: L_c.
        local_smoothness: L_s.

    >>> epsilon(10, continuity=2.0, local_smoothness=4.0)
    2.5
    """
    check_positive(clients=clients, local_smoothness=local_smoothness)
    return clients * continuity**2 / (4 * local_smoothness)


class Rates(NamedTuple):
    """The rates of Theorem 3.1.

    Attributes:
        local: eta_l = 1 / (sqrt T tau).
        server: eta_g = sqrt(tau m).

    >>> Rates(local=0.1, server=2.0).server
    2.0
    """

    local: float
    server: float


def rates(rounds: int, local_steps: int, clients_per_round: int) -> Rates:
    """Return the rates of Theorem 3.1, eta_l = 1 / (sqrt T tau) and eta_g = sqrt(tau m).

    Args:
        rounds: T.
        local_steps: tau.
        clients_per_round: m.

    >>> rates(rounds=100, local_steps=4, clients_per_round=9)
    Rates(local=0.025, server=6.0)
    """
    check_positive(rounds=rounds, local_steps=local_steps, clients=clients_per_round)
    return Rates(
        1 / (math.sqrt(rounds) * local_steps),
        math.sqrt(local_steps * clients_per_round),
    )


def theorem_3_1(
    rounds: int,
    local_steps: int,
    clients: int,
    clients_per_round: int,
    continuity: float,
    local_smoothness: float,
    variance: float,
    dissimilarity: float,
    excess: float,
) -> Bound:
    """Return the bound of Theorem 3.1 on the least ||grad F~||^2 over the rounds, with the constants of appendix B.3.

    With epsilon = m, the rates of `rates` and nu = L_s + L_c^2 / 4, it is Eq. 125: 4 (F~(0) - inf F~) / (T eta_l eta_g tau)
    + 4 sigma^2 eta_l (eta_g nu / m + 5 L_s^2 eta_l tau / 3) + 80 L_s^2 eta_l^2 tau^2 kappa'^2 / 3
    + 48 eta_l eta_g nu (M - m) L_c^2 / (tau m (M - 1)). Eq. 123 has one eta_l less in the noise of local steps than Eq. 98, from
    which it comes; with it the orders of Eq. 7 follow, which the theorem prints alone. All parts vanish as T grows: nothing remains.

    Args:
        rounds: T.
        local_steps: tau.
        clients: M >= 2.
        clients_per_round: m, at most M.
        continuity: L_c.
        local_smoothness: L_s.
        variance: sigma_g^2, of a stochastic gradient (assumption 3.2).
        dissimilarity: kappa'^2 of Lemma B.1, 2 kappa^2 + 4 beta^2 L_c^2.
        excess: F~ at the start less its infimum, at most 1, since F~ is a share.

    >>> few, many = (theorem_3_1(t, 10, 100, 5, 1.0, 1.0, 1.0, 1.0, 1.0).total for t in (100, 10_000))
    >>> round(few / many)
    20
    """
    check_positive(rounds=rounds, local_steps=local_steps, clients=clients - 1)
    if not 0 < clients_per_round <= clients:
        raise ValueError(f"clients_per_round must be between 1 and {clients}")
    m, tau, total = clients_per_round, local_steps, clients
    local, server = rates(rounds, tau, m)
    nu = local_smoothness + continuity**2 / 4
    start = 4 * excess / (rounds * local * server * tau)
    steps = 2 * local_smoothness**2 * local * tau / 3
    noise = server * nu / m + local_smoothness**2 * local * tau + steps
    drift = 80 * (local_smoothness * local * tau) ** 2 * dissimilarity / 3
    absent = 48 * local * server * nu * (total - m) * continuity**2
    drawn = absent / (tau * m * (total - 1))
    return Bound(start + 4 * variance * local * noise + drift + drawn, 0.0)
