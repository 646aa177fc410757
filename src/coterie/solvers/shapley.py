"""Shapley values: what each player of a game adds, on average over all orders in which the players may come.

A set of players is a bit mask: bit j stands for player j. A game gives every set a worth, and the empty set 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.solvers._inputs import Values, as_double, dtype_of

__all__ = ["Estimate", "exact", "leave_one_out", "permutations"]

LEAST, WINDOW, TOLERANCE = 30, 10, 0.05
"""Orders before the estimate may end, and how many of its last means must differ by less than what share."""


def exact(worths: Values) -> Tensor:
    """Shapley values from the worth of every set of players.

    phi_j is the sum over all sets S without j of |S|! (n - |S| - 1)! / n! (U(S + j) - U(S)) (L. S. Shapley, "A value for
    n-person games", 1953).

    Args:
        worths: [2^n], the worth U of the set with each bit mask; `worths[0]`, of the empty set, is 0.

    Returns:
        [n], with sum `worths[-1]` to rounding.

    Raises:
        ValueError: The length is not a power of two, the empty set has a worth, or a worth is not finite.

    >>> exact([0.0, 1.0, 2.0, 5.0]).tolist()  # alone 1 and 2; together 2 more than that, of which each gets half
    [2.0, 3.0]
    """
    values = as_double(worths, "worths", ndim=1)
    players = values.numel().bit_length() - 1
    if values.numel() != 2**players:
        raise ValueError(f"worths must have 2^n entries; got {values.numel()}")
    if values[0] != 0:
        raise ValueError(
            f"worths[0], of the empty set, must be 0; got {float(values[0])}"
        )
    masks = torch.arange(values.numel(), device=values.device)
    members = (
        masks[:, None] >> torch.arange(players, device=values.device)
    ) & 1  # [2^n, n]
    sizes = members.sum(1)
    share = [
        math.factorial(s) * math.factorial(players - s - 1) / math.factorial(players)
        for s in range(players)
    ]
    weights = torch.tensor([*share, 0.0], dtype=torch.float64, device=values.device)[
        sizes
    ]
    phi = torch.zeros(players, dtype=torch.float64, device=values.device)
    for j in range(players):
        masks_without = masks[members[:, j] == 0]
        phi[j] = (
            weights[masks_without]
            * (values[masks_without | (1 << j)] - values[masks_without])
        ).sum()
    return phi.to(dtype_of(worths))


def leave_one_out(worth_of_all: float, worths_without: Values) -> Tensor:
    """Return what is lost when one player stays away: U(all) - U(all without j).

    Args:
        worth_of_all: Worth of the set of all players.
        worths_without: [n], worth of the set of all players but j.

    Returns:
        [n]. Unlike Shapley values these have no fixed sum.

    >>> leave_one_out(5.0, [2.0, 1.0]).tolist()
    [3.0, 4.0]
    """
    return (worth_of_all - as_double(worths_without, "worths_without", ndim=1)).to(
        dtype_of(worths_without)
    )


class Estimate(NamedTuple):
    """Estimated Shapley values.

    Attributes:
        values: [n], float64.
        errors: [n], the standard error over orders.
        asked: How many different sets were asked for their worth.
        truncated: Share of the orders' places whose gain was taken to be 0.
        orders: How many orders were drawn.
        remainder: Worth of all players less the sum of the values.

    >>> worths = [0.0, 1.0, 2.0, 5.0]
    >>> estimate = permutations(lambda sets: [worths[s] for s in sets], 2, torch.Generator().manual_seed(0))
    >>> estimate.asked, estimate.truncated
    (3, 0.0)
    """

    values: Tensor
    errors: Tensor
    asked: int
    truncated: float
    orders: int
    remainder: float


def most_orders(players: int) -> int:
    """Return how many orders `permutations` draws at most."""
    return 30 * players


def permutations(
    worth: Callable[[Sequence[int]], Sequence[float]],
    players: int,
    generator: torch.Generator,
    *,
    skip: float = 0.0,
    truncate: float = 0.0,
    most: int | None = None,
) -> Estimate:
    """Shapley values estimated from random orders of the players (GTG-Shapley).

    Each player leads equally many orders. An order ends early once what is left to gain is below `truncate`. Orders are drawn, one
    led by each player at a time, until there are 30 of them and each of the last 10 running means differs by less than 5 % from the
    present one, averaged over players (Z. Liu, Y. Chen, H. Yu, Y. Liu, L. Cui, "GTG-Shapley: Efficient and Accurate Participant
    Contribution Evaluation in Federated Learning", ACM TIST 2022; constants of its public code).

    Args:
        worth: Worths of sets, given as bit masks; asked once for each set, several at a time.
        players: Number n >= 1 of players.
        generator: Draws the orders.
        skip: Below this worth of all players all values are 0, and no order is drawn.
        truncate: An order ends where less than this is left to gain; 0: none does.
        most: Orders at most; None: 30 n.

    >>> worths = [0.0, 1.0, 2.0, 5.0]
    >>> permutations(lambda sets: [worths[s] for s in sets], 2, torch.Generator().manual_seed(0)).values.tolist()
    [2.0, 3.0]
    """
    full_mask = 2**players - 1
    worths: dict[int, float] = {0: 0.0}

    def ask(sets: Sequence[int]) -> None:
        new_sets = sorted({s for s in sets if s not in worths})
        if new_sets:
            worths.update(zip(new_sets, map(float, worth(new_sets)), strict=True))

    ask([full_mask])
    if abs(worths[full_mask]) < skip:
        zeros = torch.zeros(players, dtype=torch.float64)
        return Estimate(zeros, zeros.clone(), 1, 1.0, 0, worths[full_mask])
    gains: list[Tensor] = []
    means: list[Tensor] = []
    truncated = 0
    if most is None:
        most = most_orders(players)
    while len(gains) < most and not _is_stable(means):
        orders = [
            _order_led_by(leader, players, generator) for leader in range(players)
        ]
        prefixes = [0] * players
        gain = torch.zeros(players, players, dtype=torch.float64)  # [order, player]
        for place in range(players):
            running = [
                k
                for k in range(players)
                if abs(worths[full_mask] - worths[prefixes[k]]) >= truncate
            ]
            truncated += players - len(running)
            extended = {k: prefixes[k] | (1 << orders[k][place]) for k in running}
            ask(list(extended.values()))
            for k, mask in extended.items():
                gain[k, orders[k][place]] = worths[mask] - worths[prefixes[k]]
                prefixes[k] = mask
        gains += gain.unbind()
        means += _running_means(gains)[-players:]
    drawn = torch.stack(gains)
    errors = torch.full((players,), math.nan)
    if len(drawn) > 1:
        errors = drawn.std(0) / math.sqrt(len(drawn))
    values = drawn.mean(0)
    remainder = worths[full_mask] - float(values.sum())
    return Estimate(
        values,
        errors,
        len(worths) - 1,
        truncated / drawn.numel(),
        len(drawn),
        remainder,
    )


def _order_led_by(leader: int, players: int, generator: torch.Generator) -> list[int]:
    """A random order of the players, with the leader first."""
    followers = [j for j in range(players) if j != leader]
    order = torch.randperm(players - 1, generator=generator).tolist()
    return [leader, *(followers[i] for i in order)]


def _running_means(gains: Sequence[Tensor]) -> list[Tensor]:
    drawn = torch.stack(list(gains))
    return list((drawn.cumsum(0) / torch.arange(1, len(drawn) + 1)[:, None]).unbind())


def _is_stable(means: Sequence[Tensor]) -> bool:
    if len(means) < LEAST:
        return False
    latest = means[-1]
    before = torch.stack(list(means[-1 - WINDOW : -1]))
    changes = (before - latest).abs() / (latest.abs() + 1e-12)
    return bool((changes.mean(1) < TOLERANCE).all())
