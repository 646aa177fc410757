r"""Fixed-effects regression: slopes that all clients share, and an intercept of each, which is eliminated.

The penalised log likelihood of a client's rows, with its best intercepts for given slopes b, is a function of b alone (its profile):

    f_k(b) = max_a  loglik_k(b, a) - ridge_a / 2 |a|^2

Its curvature is the Schur complement of that of the intercepts. S. A. Murphy, A. W. van der Vaart, "On Profile Likelihood", JASA 2000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.solvers import glm, newton, one_output

__all__ = ["Profile", "fit_shared_slopes", "own_intercepts", "profile"]


class Profile(NamedTuple):
    """A client's penalised log likelihood as a function of the slopes, at some of them.

    Attributes:
        gradient: by the slopes, uphill [D].
        curvature: minus the second derivative [D, D].
        value: number.
        intercepts: the client's best ones there [C].
    """

    gradient: Tensor
    curvature: Tensor
    value: Tensor
    intercepts: Tensor


def own_intercepts(
    slopes: Tensor,
    inputs: Tensor,
    labels: Tensor,
    family: glm.Family,
    outputs: int,
    ridge: float,
    start: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """The parameters [D + C] of the slopes [D] with the intercepts that suit these rows best; arguments as for `profile`."""
    of_one = glm.rows_of_one_output(inputs, labels, family, outputs, weights)
    if of_one is not None:
        with np.errstate(all="ignore"):
            theta = one_output.intercept(
                of_one, slopes.double().numpy(), ridge, float(start)
            )
        return torch.from_numpy(theta)
    without = torch.cat([slopes.double(), slopes.new_zeros(outputs).double()])
    shared = glm.shares_slopes(family)
    offset = glm.scores(without, inputs, outputs, shared=shared)
    own = glm.intercepts(offset, labels, family, ridge, start, weights=weights)
    return torch.cat([slopes.double(), own])


def profile(
    slopes: Tensor,
    inputs: Tensor,
    labels: Tensor,
    family: glm.Family,
    outputs: int,
    ridge: float,
    start: Tensor,
    weights: Tensor | None = None,
) -> Profile:
    """The profile of a client at these slopes.

    Args:
        slopes: [D], D = C d, or d where outputs share them.
        inputs: [n, d].
        labels: [n].
        family: see `glm.FAMILIES`.
        outputs: C.
        ridge: of intercepts, >= 0.
        start: intercepts from which those of the client are looked for [C].
        weights: of rows [n]; None: 1 each.
    """
    of_one = glm.rows_of_one_output(inputs, labels, family, outputs, weights)
    if of_one is not None:
        with np.errstate(all="ignore"):
            told = one_output.profile(
                of_one, slopes.double().numpy(), ridge, float(start)
            )
        return Profile(*(torch.from_numpy(np.asarray(part)) for part in told))
    theta = own_intercepts(
        slopes, inputs, labels, family, outputs, ridge, start, weights
    )
    moments = glm.moments(theta, inputs, labels, family, outputs, weights=weights)
    size = len(slopes)
    own = theta[size:]
    value = moments.loglik - ridge * own.square().sum() / 2
    of_slopes = moments.curvature[:size, :size]
    mixed = moments.curvature[size:, :size]
    of_own = moments.curvature[size:, size:] + ridge * torch.eye(len(own)).double()
    # Each column of `mixed` is a right-hand side. At the best intercepts the gradient by these is 0.
    followed = glm.newton_step(of_own.expand(size, -1, -1), mixed.T)
    curvature = of_slopes - mixed.T @ followed.T
    return Profile(moments.gradient[:size], curvature, value, own)


def fit_shared_slopes(
    parts: Sequence[tuple[Tensor, Tensor]],
    family: glm.Family,
    outputs: int,
    ridge: float,
    intercept_ridge: float,
    weights: Sequence[Tensor | None] | None = None,
) -> tuple[Tensor, Tensor]:
    """The slopes [D] and the intercepts of each client [m, C] of the highest penalised log likelihood of all rows, to 1e-8.

    Args:
        parts: inputs [n, d] and labels [n] of each of the m clients.
        family: see `glm.FAMILIES`.
        outputs: C.
        ridge: of slopes, above 0.
        intercept_ridge: of intercepts, >= 0.
        weights: of the rows of each client [n]; None: 1 each.

    >>> x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    >>> parts = [(x, 2 * x[:, 0] + shift) for shift in (1.0, 3.0)]
    >>> slopes, intercepts = fit_shared_slopes(parts, glm.FAMILIES["regression"], 1, 1e-9, 0.0)
    >>> [round(v, 6) for v in (*slopes.tolist(), *intercepts.flatten().tolist())]
    [2.0, 1.0, 3.0]
    """
    size = parts[0][0].shape[1]
    if not glm.shares_slopes(family):
        size *= outputs
    slopes = torch.zeros(size, dtype=torch.float64)
    intercepts = torch.zeros(len(parts), outputs, dtype=torch.float64)
    penalty = ridge * torch.eye(size, dtype=torch.float64)
    if weights is None:
        weights = [None] * len(parts)

    def look(at: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Value, gradient and curvature over all clients, and their intercepts."""
        profiles = [
            profile(at, *part, family, outputs, intercept_ridge, start, own_weights)
            for part, start, own_weights in zip(parts, starts, weights, strict=True)
        ]
        gradients, curvatures, values, own = map(
            torch.stack, zip(*profiles, strict=True)
        )
        value = values.sum() - ridge * at.square().sum() / 2
        return value, gradients.sum(0) - ridge * at, curvatures.sum(0) + penalty, own

    value, gradient, curvature, intercepts = look(slopes, intercepts)
    for _ in range(newton.MOST_STEPS):
        step = glm.newton_step(curvature, gradient)
        for _ in range(newton.MOST_HALVINGS):
            tried = look(slopes + step, intercepts)
            if tried[0] >= value - 1e-12 * (1 + value.abs()):
                break
            step = step / 2
        slopes = slopes + step
        value, gradient, curvature, intercepts = tried
        if float(step.abs().max()) <= newton.TOLERANCE:
            break
    return slopes, intercepts
