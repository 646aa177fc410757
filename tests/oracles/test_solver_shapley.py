"""Shapley values against their definition, and estimates from orders against exact values."""

from __future__ import annotations

from itertools import permutations as orders_of
from math import factorial

import pytest
import torch

from coterie.solvers import NotFiniteError, shapley


def random_game(players: int, seed: int) -> torch.Tensor:
    worths = torch.randn(
        2**players, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    worths[0] = 0.0
    return worths


def by_definition(worths: torch.Tensor, players: int) -> torch.Tensor:
    phi = torch.zeros(players, dtype=torch.float64)
    for order in orders_of(range(players)):
        mask = 0
        for j in order:
            phi[j] += worths[mask | 1 << j] - worths[mask]
            mask |= 1 << j
    return phi / factorial(players)


@pytest.mark.parametrize("players", [1, 2, 5])
def test_exact_values_are_the_mean_gain_over_all_orders(players):
    worths = random_game(players, players)
    torch.testing.assert_close(
        shapley.exact(worths), by_definition(worths, players), rtol=0, atol=1e-12
    )


def test_the_worth_of_all_is_shared_out():
    worths = random_game(6, 1)
    assert float(shapley.exact(worths).sum()) == pytest.approx(
        float(worths[-1]), abs=1e-12
    )


def test_who_adds_nothing_gets_exactly_nothing_and_twins_get_the_same():
    worths = torch.zeros(8, dtype=torch.float64)
    for mask in range(8):
        worths[mask] = (
            float((mask & 1) + (mask >> 1 & 1)) ** 2
        )  # players 0 and 1 are alike; player 2 adds nothing
    phi = shapley.exact(worths)
    assert phi.tolist() == [2.0, 2.0, 0.0]


def test_leaving_one_out_is_what_is_lost_without_it():
    worths = random_game(3, 2)
    without = worths[[0b110, 0b101, 0b011]]
    assert (
        shapley.leave_one_out(float(worths[7]), without).tolist()
        == (worths[7] - without).tolist()
    )


@pytest.mark.parametrize(
    ("worths", "error"),
    [
        ([0.0, 1.0, 2.0], ValueError),
        ([1.0, 2.0], ValueError),
        ([0.0, float("nan")], NotFiniteError),
    ],
)
def test_what_is_no_game_is_refused(worths, error):
    with pytest.raises(error):
        shapley.exact(worths)


def estimate(
    worths: torch.Tensor, players: int, seed: int, **settings
) -> shapley.Estimate:
    generator = torch.Generator().manual_seed(seed)
    return shapley.permutations(
        lambda sets: [float(worths[s]) for s in sets], players, generator, **settings
    )


def test_estimates_from_orders_lie_within_their_error_of_exact_values():
    players, inside = 6, 0
    for seed in range(30):
        worths = random_game(players, seed)
        found = estimate(worths, players, seed)
        inside += int(
            ((found.values - shapley.exact(worths)).abs() <= 3 * found.errors).sum()
        )
    assert inside >= 0.97 * 180


def test_every_order_of_an_estimate_shares_out_the_worth_of_all():
    worths = random_game(5, 3)
    assert float(estimate(worths, 5, 0).values.sum()) == pytest.approx(
        float(worths[-1]), abs=1e-12
    )


def test_a_set_is_asked_once():
    asked: list[int] = []
    worths = random_game(4, 0)

    def worth(sets):
        asked.extend(sets)
        return [float(worths[s]) for s in sets]

    found = shapley.permutations(worth, 4, torch.Generator().manual_seed(0))
    assert len(asked) == len(set(asked)) == found.asked <= 15


def test_an_order_ends_where_nothing_is_left_to_gain():
    worths = torch.ones(
        16, dtype=torch.float64
    )  # whoever comes first brings everything
    worths[0] = 0.0
    found = estimate(worths, 4, 0, truncate=1e-3)
    assert found.truncated == 0.75
    assert found.values.tolist() == pytest.approx([0.25] * 4, abs=1e-12)


def test_a_round_without_worth_is_skipped():
    found = estimate(random_game(3, 0) * 1e-9, 3, 0, skip=1e-3)
    assert found.values.tolist() == [0.0] * 3
    assert found.asked == 1
