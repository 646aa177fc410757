"""What the papers let one compute: examples of the texts, special cases by hand, and simulations that no bound may fall below."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.solvers import appeal, variance, waterfill
from coterie.theory import isfl, maxfl, meritfed, varsel

# MeritFed


def test_the_bound_of_theorem_1_holds_on_mean_estimation():
    """f(x) = ||x||^2 / d with the loss of the authors' code: L = mu = 2 / d, and a batch of B has the variance 4 / (d B)."""
    dim, batch, same, rate, rounds = 10, 100, 5, 0.1, 3000
    curve = 2 / dim
    noise = 4 / (dim * batch)
    random = np.random.default_rng(0)
    x = np.ones(dim)
    losses, gradients = [], []
    for _ in range(rounds):
        losses.append(x @ x / dim)
        gradients.append(curve**2 * (x @ x))
        means = random.normal(0, 1 / math.sqrt(same * batch), dim)
        x = x - rate * curve * (x - means)
    settled = np.mean(losses[-300:])
    convex = meritfed.theorem_1_convex(curve, curve, noise, same, rate, rounds, 1.0)
    assert settled <= convex.total
    assert convex.total < 20 * settled  # it says something
    bound = meritfed.theorem_1(curve, noise, same, rate, rounds, 1.0)
    assert np.mean(gradients) <= bound.total


def test_ten_times_the_clients_leave_a_tenth_of_the_noise():
    one, ten = (
        meritfed.theorem_1(1.0, 1.0, same, 0.1, 10, 1.0).remaining for same in (3, 30)
    )
    assert one == pytest.approx(10 * ten)


def test_near_clients_help_only_while_they_are_near():
    alone = meritfed.theorem_2(1.0, 1.0, 5, 1.0, 95, 1e9, 0.1, 100, 1.0)
    assert alone.remaining == pytest.approx(2 * 0.1 / 5)
    near = meritfed.theorem_2(1.0, 1.0, 5, 1.0, 95, 0.0, 0.1, 100, 1.0)
    assert near.remaining == pytest.approx(2 * 4 * 0.1 * 100 / 100**2)


@pytest.mark.parametrize(
    ("call", "limit"),
    [
        (lambda rate: meritfed.theorem_1(2.0, 1.0, 5, rate, 10, 1.0), 0.25),
        (lambda rate: meritfed.theorem_2(2.0, 1.0, 5, 1.0, 9, 0.1, rate, 10, 1.0), 1 / 16),
        (lambda rate: meritfed.theorem_1_local_steps(2.0, 1.0, 5, rate, 5, 10, 1.0), 1 / 120),
        (lambda rate: isfl.theorem_1(rate, [1.0, 3.0], [0.5, 0.5], [1.0], [1.0], [1.0], 1.0, 2, 10, 1.0), 0.5),
    ],
)  # fmt: skip
def test_rates_above_those_of_a_theorem_are_refused(call, limit):
    assert call(limit).total > 0
    with pytest.raises(ValueError, match="needs a rate of at most"):
        call(1.01 * limit)
    with pytest.raises(ValueError, match="rate must be above 0"):
        call(0.0)


# VaRSeL


@pytest.mark.parametrize("internal", [2, 3, 10])
def test_equation_8_draws_so_many_external_clients(internal):
    """Equal distances, as they are in expectation; the budget does not matter."""
    distance = 1 + 1 / internal
    for budget in (4, 10, 50):
        weights = variance.surrogate_weights(
            [distance] * 60, variance=internal - 1, num_internal=internal, budget=budget
        )
        expected = varsel.drawn_external_clients(internal)
        assert float(weights.sum()) == pytest.approx(expected)
    unbiased = variance.surrogate_weights(
        [distance] * 60, variance=internal, num_internal=internal, budget=50
    )
    assert float(unbiased.sum()) == pytest.approx(
        varsel.drawn_external_clients(internal, unbiased=True)
    )


def test_gradients_that_are_all_alike_draw_about_so_many_by_simulation():
    generator = torch.Generator().manual_seed(0)
    sums = []
    for _ in range(200):
        gradients = torch.randn(62, 200, generator=generator, dtype=torch.float64)
        inner, outer = gradients[:2], gradients[2:]
        center = inner.mean(0)
        spread = float((inner - center).square().sum())
        distances = (outer - center).square().sum(1)
        sums.append(float(variance.surrogate_weights(distances, spread, 2, 10).sum()))
    expected = varsel.drawn_external_clients(2)
    assert (
        expected < np.mean(sums) < 1.5 * expected
    )  # the smallest distances are filled first


def test_the_bound_of_lemma_1_is_above_what_it_bounds_and_the_printed_one_is_not():
    sigma, kappas, alignment, internal = 1.0, [1.0, 1.0], 1.0, 2
    external = len(kappas)
    # Two errors of equal size: h = 1 / (1 / sigma + N (1'e)^2 / sum kappa), appendix A.2.
    least = 1 / (1 / sigma + external * alignment / sum(kappas))
    bound = varsel.error_bound(internal, sigma, kappas, [0.0, 0.0], alignment)
    assert bound.slope >= least
    printed = (internal * sigma + sum(kappas) / alignment) / (internal + external) ** 2
    assert printed < least


def test_the_constants_of_theorem_3_exist_up_to_the_largest_rate():
    bound = varsel.ErrorBound(slope=0.2, level=0.1)
    limit = varsel.largest_rate_of_local_steps(2.0, bound.slope)
    assert varsel.theorem_3(bound, 2.0, 1.0, 0.999 * limit, 3, 10, 1.0, 1e-6).total > 0
    with pytest.raises(ValueError, match="needs a rate below"):
        varsel.theorem_3(bound, 2.0, 1.0, 1.001 * limit, 3, 10, 1.0, 1e-6)
    root = math.sqrt(bound.slope)
    assert limit < 2 * (1 - root) / (2.0 * (bound.slope + root))  # as printed


def test_the_bound_of_theorem_2_holds_for_gradient_descent_with_such_errors():
    """l = mu ||theta||^2 / 2 with errors of squared length A ||grad||^2 + B."""
    bound = varsel.ErrorBound(slope=0.1, level=0.01)
    rate = 0.05
    random = np.random.default_rng(0)
    squares = []
    for _ in range(200):
        x = np.array([1.0, 0.0])
        for _ in range(100):
            error = random.normal(size=2)
            error *= math.sqrt(bound.slope * (x @ x) + bound.level) / np.linalg.norm(
                error
            )
            x = x - rate * (x + error)
        squares.append(x @ x)
    assert np.mean(squares) <= varsel.theorem_2(bound, 1.0, 1.0, rate, 100, 1.0).total
    with pytest.raises(ValueError, match="below"):
        varsel.theorem_2(bound, 1.0, 1.0, 10.0, 100, 1.0)


# MaxFL


def test_no_second_derivative_of_the_objective_exceeds_its_smoothness():
    """Local losses a (x - c)^2 / 2 on [-1, 1]: continuous with 2 a, smooth with a. The objective's curvature by differences."""
    a, centres, rho = 3.0, torch.tensor([-1.0, 0.5, 1.0], dtype=torch.float64), 0.4
    grid = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    gaps = a * (grid[:, None] - centres) ** 2 / 2 - rho
    objective = torch.sigmoid(gaps).mean(1)
    step = float(grid[1] - grid[0])
    curvature = (objective[2:] - 2 * objective[1:-1] + objective[:-2]) / step**2
    weights = appeal.weights(gaps[1:-1].flatten()).reshape(-1, 3)
    limits = [maxfl.smoothness(w, 2 * a, a) for w in weights.tolist()]
    assert (curvature.abs() <= torch.tensor(limits, dtype=torch.float64)).all()


def test_the_epsilon_makes_the_server_rate_one_over_the_smoothness():
    weights, continuity, local = [0.25, 0.1, 0.02], 2.0, 5.0
    rate = len(weights) / (
        local * (sum(weights) + maxfl.epsilon(len(weights), continuity, local))
    )
    assert rate == pytest.approx(1 / maxfl.smoothness(weights, continuity, local))


def test_theorem_3_1_falls_with_the_root_of_the_rounds():
    def total(rounds):
        return maxfl.theorem_3_1(rounds, 10, 100, 5, 1.0, 1.0, 1.0, 1.0, 1.0).total

    assert total(10**8) / total(10**10) == pytest.approx(10, rel=0.01)
    everybody = maxfl.theorem_3_1(100, 10, 100, 100, 1.0, 1.0, 0.0, 0.0, 1.0)
    rates = maxfl.rates(100, 10, 100)
    assert everybody.total == pytest.approx(4 / (100 * rates.local * rates.server * 10))


# ISFL


def test_sampling_enters_theorem_1_by_rho_alone_and_not_with_one_step_a_round():
    p, constants = [0.5, 0.5], [1.0, 3.0]
    best, worse = (
        float(waterfill.bound(q, p, constants)) for q in ([0.9, 0.1], [0.5, 0.5])
    )

    def total(rho, steps):
        return isfl.theorem_1(
            0.1, constants, p, [rho, rho], [1.0, 1.0], p, 1.0, steps, 100, 1.0
        ).total

    difference = 2 * 0.1**2 * 5 * (worse - best) * isfl.drift([1.0, 1.0], p, 1.0, 5)[0]
    assert total(worse, 5) - total(best, 5) == pytest.approx(difference)
    assert total(worse, 1) == total(best, 1)


def test_phi_is_the_mean_of_equation_12_over_a_round():
    variances, sizes, gradient, local_steps = [0.5, 2.0], [0.25, 0.75], 1.5, 4
    mean = sum(s * v for s, v in zip(sizes, variances, strict=True))
    by_hand = []
    for v in variances:
        step = 2 * gradient**2 + v + mean
        by_hand.append(np.mean([t * step for t in range(local_steps)]))
    assert isfl.drift(variances, sizes, gradient, local_steps) == pytest.approx(by_hand)
