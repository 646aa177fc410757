"""Newton's method for the modes of concave log likelihoods under quadratic penalties: B problems with P parameters side by side.

It is on NumPy arrays, whose calls cost a third of torch's: at a client of some hundred rows a call costs more than its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Array", "Solved", "Sums", "climb", "step"]

Array = NDArray[np.float64]

TOLERANCE = 1e-9
"""A Newton step shorter than this in each parameter is the last one; what is left is its square."""
MOST_STEPS = 100
MOST_HALVINGS = 30
SUFFICIENT = 1e-4
"""Share of the predicted gain that a step must bring (Armijo)."""
LEAST_PIVOT = 1e-6
"""Square root of the least share of a column's curvature that the columns before it may leave."""
MOST_AT_ONCE = 64
"""Parameters up to which NumPy's solver stays in one thread, so that no bit depends on how many there are."""


class Sums(NamedTuple):
    """Sums over rows: log likelihood [B], its gradient [B, P], and minus the second derivative [B, P, P]."""

    loglik: Array
    gradient: Array
    curvature: Array


class Solved(NamedTuple):
    """Modes [B, P], the sums of the rows there, whether the steps ended [B], and how often all rows were looked at."""

    theta: Array
    rows: Sums
    converged: NDArray[np.bool_]
    looks: int


def climb(look: Callable[[Array], Sums], precision: Array, centre: Array) -> Solved:
    """Step from 0 to the modes, halving a step that brings too little.

    Args:
        look: the sums over rows at parameters [B, P].
        precision: of the penalties, >= 0 [B, P].
        centre: of the penalties [B, P].
    """
    theta = np.zeros_like(precision)
    diagonal = np.arange(precision.shape[-1])

    def with_penalty(at: Array) -> tuple[Sums, Array, Array]:
        """Sums, penalised log likelihood and its gradient."""
        sums = look(at)
        off = at - centre
        pull = precision * off
        return sums, sums.loglik - (pull * off).sum(-1) / 2, sums.gradient - pull

    sums, value, gradient = with_penalty(theta)
    looks = 1
    converged = np.zeros(len(theta), dtype=bool)
    for _ in range(MOST_STEPS):
        curvature = sums.curvature.copy()
        curvature[:, diagonal, diagonal] += precision
        whole = step(curvature, gradient)
        # A problem that has ended stays: no bit of it depends on how long those beside it take.
        whole[converged] = 0.0
        converged = np.abs(whole).max(-1) <= TOLERANCE
        gain = (gradient * whole).sum(-1)
        length = np.ones_like(value)
        tried = theta + whole
        for _ in range(MOST_HALVINGS):
            new_sums, new_value, new_gradient = with_penalty(tried)
            looks += 1
            # Near the maximum values differ by rounding alone, which must not shorten a step.
            rounding = 1e-12 * (1 + np.abs(value))
            too_low = ~(new_value >= value + SUFFICIENT * length * gain - rounding)
            if not too_low.any():
                break
            length = np.where(too_low, length / 2, length)
            tried = theta + length[:, None] * whole
        theta, sums, value, gradient = tried, new_sums, new_value, new_gradient
        if converged.all():
            break
    return Solved(theta, sums, converged, looks)


@np.errstate(all="ignore")  # a curvature may be singular, which is looked for
def step(curvature: Array, gradient: Array) -> Array:
    """curvature^-1 gradient [B, P]; the shortest solution, in units of the parameters' errors, where the curvature is singular."""
    size = gradient.shape[-1]
    if len(gradient) == 1 and size <= MOST_AT_ONCE:
        found = _step_of_one(curvature, gradient)
        if found is not None:
            return found
    diagonal = curvature.diagonal(axis1=-2, axis2=-1)
    # With a diagonal of ones, what is singular does not depend on the units of columns.
    scale = np.sqrt(np.maximum(diagonal, 0))
    scale = np.where(scale > 0, scale, 1.0)
    scaled = torch.from_numpy(curvature / (scale[:, :, None] * scale[:, None, :]))
    uphill = torch.from_numpy(gradient / scale)
    factor, failed = torch.linalg.cholesky_ex(scaled)
    solution = torch.cholesky_solve(uphill[..., None], factor)[..., 0]
    # A factor with a pivot near 0 gives steps that rounding alone decides.
    pivots = factor.numpy().diagonal(axis1=-2, axis2=-1).min(-1)
    singular = (failed.numpy() != 0) | (pivots < LEAST_PIVOT)
    if singular.any():
        where = torch.from_numpy(singular)
        inverse = torch.linalg.pinv(scaled[where], rtol=1e-11, hermitian=True)
        solution[where] = (inverse @ uphill[where][..., None])[..., 0]
    steps: Array = solution.numpy() / scale
    return steps


def _step_of_one(curvature: Array, gradient: Array) -> Array | None:
    """The same for one problem in a third of the time; None where the curvature is close to singular, or no curvature."""
    scale = np.sqrt(curvature.diagonal(axis1=-2, axis2=-1))
    scaled = curvature / (scale[:, :, None] * scale[:, None, :])
    try:
        factor = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return None
    pivots = factor.diagonal(axis1=-2, axis2=-1)
    if not pivots.min() >= LEAST_PIVOT:
        return None
    uphill = (gradient / scale)[..., None]
    solution: Array = np.linalg.solve(scaled, uphill)[..., 0] / scale
    return solution
