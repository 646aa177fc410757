"""The sums of `coterie.solvers.glm` over rows, for models of one output: two classes, a number, or a count.

They are in NumPy, as `coterie.solvers.newton` is, and nothing is made for outputs that are not there. Matrices are multiplied by
torch, as they are for other models.

B problems over the same rows are solved side by side: theta [B, P], slopes and then the intercept, and row weights [B, n].
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.solvers.newton import MOST_HALVINGS, MOST_STEPS, TOLERANCE, Array, Sums

EVERY = slice(None)
KNEE = 2.0
"""Output from which on a rate grows as its tangent does (`coterie.base.hazards.rates_of`)."""


class Slopes(NamedTuple):
    """Log likelihood of rows, its derivative by the output, and minus the second one, each [..., n]."""

    loglik: Array
    gradient: Array
    curvature: Array


OneFamily = Callable[[Array, Array], Slopes]
"""(z [..., n], labels [n, ...]) -> derivatives of each row."""


def binary(z: Array, labels: Array) -> Slopes:
    """One logit for labels 0 and 1."""
    # exp(-|z|) never overflows, and gives both probabilities without cancellation.
    small = np.exp(-np.abs(z))
    total = 1 + small
    # Not np.where(z >= 0, 1, small), which takes longer than all else here.
    p = np.exp(np.minimum(z, 0)) / total
    # log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|))
    loglik = labels * z - np.maximum(z, 0) - np.log1p(small)
    return Slopes(loglik, labels - p, small / (total * total))


def squared(z: Array, labels: Array) -> Slopes:
    """Numbers with variance 1: minus half the squared error."""
    residual = labels - z
    return Slopes(residual * residual / -2, residual, np.ones_like(residual))


def count(z: Array, labels: Array) -> Slopes:
    """The log rate of one interval; labels [n, 2] are the events that are usual in it, and those seen."""
    usual, seen = labels[:, 0], labels[:, 1]
    # lam(z) = slope * beyond: exp(z) times 1 up to the knee, exp(knee) times (1 + z - knee) from there on.
    low = np.minimum(z, KNEE)
    slope, beyond = np.exp(low), z - low + 1
    expected = usual * slope
    loglik = seen * (low + np.log(beyond)) - expected * beyond
    # Beyond the knee the rate is straight, and its logarithm bends.
    bend = np.where(z <= KNEE, expected, seen / (beyond * beyond))
    return Slopes(loglik, seen / beyond - expected, bend)


class Rows:
    """Rows of one client, at which is looked again and again.

    Args:
        inputs: [n, d].
        labels: [n, ...], as the family reads them.
        family: of one output.
        weights: of rows [B, n] or [n]; None: 1 each.
        block: numbers in the largest table of products of two inputs that is held at once.
    """

    def __init__(
        self,
        inputs: Array,
        labels: Array,
        family: OneFamily,
        weights: Array | None,
        block: int,
    ) -> None:
        n, columns = inputs.shape
        size = columns + 1
        self._labels, self._family, self._weights = labels, family, weights
        self._with_one = np.ones((n, size))
        self._with_one[:, :-1] = inputs
        self._first, self._second, self._place = _triangle(size)
        at_once = max(block // size**2, 1)
        self._parts = [slice(low, low + at_once) for low in range(0, n, at_once)]
        self._products: Array | None = None

    @property
    def inputs(self) -> Array:
        """As they were given."""
        return self._with_one[:, :-1]

    def of_rows(self, z: Array, part: slice = EVERY) -> Slopes:
        """Log likelihood and its derivatives of rows with outputs z [..., n], times their weights."""
        rows = self._family(z, self._labels[part])
        if self._weights is None:
            return rows
        weights = self._weights[..., part]
        # Those of a row of weight 0 are 0.
        return Slopes(*(values * weights for values in rows))

    def look(self, theta: Array) -> Sums:
        """The sums at theta [B, P]."""
        sums = [self._look(theta, part) for part in self._parts]
        loglik, gradient, triangle = sums[0]
        for more in sums[1:]:
            loglik = loglik + more[0]
            gradient = gradient + more[1]
            triangle = triangle + more[2]
        return Sums(loglik, gradient, triangle[:, self._place])

    def _look(self, theta: Array, part: slice) -> tuple[Array, Array, Array]:
        """Log likelihood, gradient and the upper triangle of the curvature of some rows."""
        across = self._with_one[part]
        rows = self.of_rows(multiply(theta, across.T), part)
        return (
            rows.loglik.sum(-1),
            multiply(rows.gradient, across),
            multiply(rows.curvature, self._products_of(part)),
        )

    def _products_of(self, part: slice) -> Array:
        """Each row's products of two columns, kept where they are of all rows."""
        if self._products is not None:
            return self._products
        across = self._with_one[part]
        products = across[:, self._first] * across[:, self._second]
        if len(self._parts) == 1:
            self._products = products
        return products


@functools.cache
def _triangle(
    size: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The pairs of columns in a triangle, since two have one product in either order, and the place of each pair [size, size] in it."""
    first, second = np.triu_indices(size)
    place = np.empty((size, size), dtype=np.int64)
    place[first, second] = np.arange(len(first))
    place[second, first] = np.arange(len(first))
    return first, second, place


def multiply(left: Array, right: Array) -> Array:
    """The product of two matrices, by torch, as it is elsewhere."""
    return (torch.from_numpy(left) @ torch.from_numpy(right)).numpy()


def intercept(rows: Rows, slopes: Array, ridge: float, start: float) -> Array:
    """The parameters [P] of the slopes [d] with the intercept a of most log likelihood, minus ridge / 2 a^2."""
    offset = multiply(slopes[None], rows.inputs.T)

    def look(at: float) -> tuple[Slopes, float]:
        of_rows = rows.of_rows(offset + at)
        return of_rows, float(of_rows.loglik.sum()) - ridge * at * at / 2

    a = start
    of_rows, value = look(a)
    for _ in range(MOST_STEPS):
        gradient = float(of_rows.gradient.sum()) - ridge * a
        curvature = float(of_rows.curvature.sum()) + ridge
        step = 0.0
        if curvature > 0:
            step = gradient / curvature
        if abs(step) <= TOLERANCE:
            a += step
            break
        for _ in range(MOST_HALVINGS):
            new_rows, new_value = look(a + step)
            if new_value >= value - 1e-12 * (1 + abs(value)):
                break
            step /= 2
        a, of_rows, value = a + step, new_rows, new_value
    return np.append(slopes, a)


def profile(
    rows: Rows, slopes: Array, ridge: float, start: float
) -> tuple[Array, Array, Array, Array]:
    """Gradient [d], curvature [d, d], value and intercept [1] of `coterie.solvers.profile.Profile`."""
    theta = intercept(rows, slopes, ridge, start)
    sums = rows.look(theta[None])
    own = theta[-1:]
    value = sums.loglik[0] - ridge * own[0] ** 2 / 2
    of_own = sums.curvature[0, -1, -1] + ridge
    mixed = sums.curvature[0, -1, :-1]
    # At the best intercept the gradient by it is 0.
    followed = np.zeros_like(mixed)
    if of_own > 0:
        followed = mixed / of_own
    curvature = sums.curvature[0, :-1, :-1] - mixed[:, None] * followed
    return sums.gradient[0, :-1], curvature, value, own
