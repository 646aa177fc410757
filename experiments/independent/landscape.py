"""MaxFL's optimum for three clients that estimate means (Fig. 6), its minima and rate for two (Figs. 5 and 8), and its weight (Fig. 2),
computed a second time.

Client k's gap at w is (w - mean_k)^2, so the objective is the mean of the sigmoids of these, and its slope a sum of three terms. Its
minima are the roots at which the slope rises, found between the points of a grid; MaxFL's optimum is the lowest of them. For two
clients it is the first root above the smaller mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit
from scipy.stats import spearmanr

from experiments.independent.common import Values

NAME, RUNS = "maxfl_landscape", 1000
TOY, TOY_RUNS, SQUARED = "maxfl_toy", 10_000, (0, 1, 2, 5, 10, 20)
TRUE_MEANS = {"near": (0.0, 0.1, 0.2), "two near": (0.0, 0.1, 10.0)} | {
    f"far (0, {a}, {b})": (0.0, float(a), float(b))
    for a in (3, 4, 5)
    for b in (10, 12, 15)
}
HALVES, BEYOND = (0.25, 0.5, 1.0, 1.1, 2.0, 4.0, 9.0), 4.0
"""Squared distances of two clients from their middle, and how far beyond them the objective is looked at."""
POINTS, TOLERANCE = 400, 1e-3
"""Points of the grid, and by how much a client's loss may be higher that is served as well as by its own mean."""
Numbers = NDArray[np.float64]


def objective(w: float, means: Numbers) -> float:
    """Mean of the sigmoids of the gaps."""
    return float(np.mean(1 / (1 + np.exp(-((w - means) ** 2)))))


def slope(w: float, means: Numbers) -> float:
    """Its derivative by w, times the number of clients over 2."""
    decay = np.exp(-((w - means) ** 2))
    return float(np.sum(decay / (1 + decay) ** 2 * (w - means)))


def optimum(means: Numbers) -> float:
    """The lowest minimum of the objective for these empirical means."""
    grid = np.unique(
        np.concatenate(
            [np.linspace(means.min() - 0.1, means.max() + 0.1, POINTS), means]
        )
    )
    slopes = [slope(w, means) for w in grid]
    roots = [
        brentq(slope, low, high, args=(means,), xtol=1e-15)
        for (low, high), (before, after) in zip(
            pairwise(grid), pairwise(slopes), strict=True
        )
        if before <= 0 < after
    ]
    return float(min(roots, key=partial(objective, means=means)))


def chosen(method: str, means: Numbers) -> float:
    """The model of MaxFL, of averaging all, or of averaging the first two."""
    if method == "maxfl":
        return optimum(means)
    return float(means.mean() if method == "average" else means[:2].mean())


def of_weight() -> Values:
    """The gap at which the slope of the sigmoid, s (1 - s), is largest."""
    bounds = (-10, 7)  # their middle is not the answer
    largest = minimize_scalar(
        lambda gap: -expit(gap) * expit(-gap),
        bounds=bounds,
        method="bounded",
        options={"xatol": 1e-9},
    )
    return {"gap of the largest weight": float(largest.x)}


def of_rates() -> Values:
    """How many minima two clients' objective has, and how its rate goes with slope and curvature, by their squared half distance."""
    values: dict[str, float] = {}
    for squared in HALVES:
        means = np.array([-1.0, 1.0]) * squared**0.5
        grid = np.linspace(
            means[0] - BEYOND, means[1] + BEYOND, 2 * POINTS
        )  # none of its points is the middle
        slopes = np.array([slope(w, means) for w in grid])
        gap = (grid - means[:, None]) ** 2
        s = expit(gap)
        curvature = (s * (1 - s) * (2 + 4 * (1 - 2 * s) * gap)).mean(0)
        rate = 1 / (s * (1 - s)).sum(0)
        values |= {
            f"minima, g² = {squared:g}": float(
                ((slopes[:-1] < 0) & (slopes[1:] > 0)).sum()
            ),
            f"rate and slope, g² = {squared:g}": float(
                spearmanr(rate, abs(slopes)).statistic
            ),
            f"rate and curvature, g² = {squared:g}": float(
                spearmanr(rate, abs(curvature)).statistic
            ),
        }
    return values


def without_draws(seed: int) -> Values:
    """What is the same for every seed."""
    return {**of_weight(), **of_rates()}


def computed(method: str, seed: int) -> Values:
    """In which share of draws how many clients are satisfied, and how far the model lies from the average."""
    values = {}
    for case, truth in TRUE_MEANS.items():
        random = np.random.default_rng([seed, *case.encode()])
        noise = random.standard_normal((RUNS, len(truth)))
        drawn = noise + truth
        shift = np.array([chosen(method, means) for means in drawn])[:, None] - drawn
        more = shift * (
            shift + 2 * noise
        )  # loss at the true mean, less that of the client's own mean
        values |= {
            f"at least one satisfied, {case}": float((more < 0).any(1).mean()),
            f"at least one as good, {case}": float((more <= TOLERANCE).any(1).mean()),
            f"both of the first two satisfied, {case}": float(
                (more < 0)[:, :2].all(1).mean()
            ),
            f"at the average, {case}": float((np.abs(shift.mean(1)) < 0.1).mean()),
            f"at the average of the first two, {case}": float(
                (np.abs(shift[:, :2].mean(1)) < 0.1).mean()
            ),
            f"at one client's own mean, {case}": float(
                (np.abs(shift).min(1) < 0.1).mean()
            ),
        }
    return values


def first_minimum(distance: Numbers) -> Numbers:
    """Offset from the smaller of two means [runs] of the first minimum above it, by the slope on a grid and bisection."""

    def rises(offset: Numbers) -> NDArray[np.bool_]:
        near, far = np.exp(-(offset**2)), np.exp(-((distance - offset) ** 2))
        return near / (1 + near) ** 2 * offset >= far / (1 + far) ** 2 * (
            distance - offset
        )  # the middle rises always

    grid = np.linspace(0, 0.5, POINTS)
    first = 1 + rises(grid[1:, None] * distance).argmax(axis=0)
    low, high = grid[first - 1] * distance, grid[first] * distance
    for _ in range(200):
        middle = (low + high) / 2
        rising = rises(middle)
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
    return high


def relu_minimum(distance: Numbers) -> Numbers:
    """The same [runs] of the objective with ReLU in the place of the sigmoid, by gradient descent from a tenth of the way."""
    offset = 0.1 * distance
    for _ in range(100):
        near, far = offset**2, (distance - offset) ** 2
        offset = offset - 0.4 * ((near > 0) * offset - (far > 0) * (distance - offset))
    return offset


def of_two(method: str, seed: int) -> Values:
    """Appeal by the squared half distance of the true means."""
    values = {}
    for squared in SQUARED:
        noise = np.random.default_rng([seed, squared, 5]).standard_normal((TOY_RUNS, 2))
        means = noise + np.array([0.0, 2 * squared**0.5])
        order = means.argsort(axis=1)
        sorted_means, error = (
            np.take_along_axis(means, order, 1),
            np.take_along_axis(noise, order, 1),
        )
        distance = sorted_means[:, 1] - sorted_means[:, 0]
        offset = {
            "maxfl": first_minimum,
            "maxfl-relu": relu_minimum,
            "average": lambda d: d / 2,
        }[method](distance)
        shift = np.stack([offset, offset - distance], axis=1)
        values[f"appeal, gamma² = {squared}"] = float(
            (shift * (shift + 2 * error) < 0).mean()
        )
    return values


METHODS: Mapping[str, Mapping[str, Callable[[int], Values]]] = {
    NAME: {"two clients": without_draws}
    | {label: partial(computed, label) for label in ("maxfl", "average", "first two")},
    TOY: {
        label: partial(of_two, label) for label in ("maxfl", "maxfl-relu", "average")
    },
}
TABLES: Mapping[str, Mapping[str, Any]] = {
    name: {"run": {"rounds": 0}, "methods": [{"name": label} for label in methods]}
    for name, methods in METHODS.items()
}
"""In the place of TOML files."""
