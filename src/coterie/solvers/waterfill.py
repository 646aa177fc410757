"""Which classes a client should sample how often, so that label skew does less harm (ISFL).

Source: "ISFL: Federated Learning for Non-i.i.d. Data with Local Importance Sampling" (Eqs. 13 to 17, Algorithm 1).
Symbols: p the global class shares, p_local the client's own, q the class probabilities to sample with, all [C] with sum 1;
lipschitz [C] how fast the gradient of each class changes between the client's model and the average (only ratios matter).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.solvers._inputs import (
    Values,
    as_distribution,
    as_double,
    as_number,
    dtype_of,
)

__all__ = ["bound", "closed_form", "exact"]

NEAR_EQUAL = 1e-6
"""Relative spread of `lipschitz` below which it carries no information; `closed_form` would normalise noise to length 1."""

Array = npt.NDArray[np.float64]


def bound(q: Values, p: Values, lipschitz: Values) -> Tensor:
    """The factor `rho(q) = (1 + sum (p_i - q_i)^2) * sum q_i L_i^2` of the convergence bound (Eq. 13); small is good.

    Args:
        q: [C], the probabilities to judge.
        p: [C], global class shares.
        lipschitz: [C], >= 0.

    Returns:
        [] (a scalar tensor), in units of `lipschitz` squared.

    Raises:
        ValueError: an argument is no distribution, or shapes or signs are wrong.

    >>> bound([0.5, 0.5], [0.5, 0.5], [1.0, 2.0]), bound([0.75, 0.25], [0.5, 0.5], [1.0, 2.0])
    (tensor(2.5000, dtype=torch.float64), tensor(1.9688, dtype=torch.float64))
    """
    shares, sampled = as_distribution(p, "p"), as_distribution(q, "q")
    constants = _constants(lipschitz, shares.numel())
    if sampled.shape != shares.shape:
        raise ValueError(
            f"q must have as many classes as p ({shares.numel()}); got {sampled.numel()}"
        )
    distance = (shares - sampled).square().sum()
    return ((1 + distance) * (sampled @ constants.square())).to(dtype_of(q))


def closed_form(
    p: Values, p_local: Values, lipschitz: Values, floor: float
) -> tuple[Tensor, float]:
    """The paper's sampling probabilities `q = p + gamma * a` (Theorems 2 and 3, Algorithm 1).

    `a_i = 1 - C L_i^2 / sum L^2`, scaled to length 1, is positive for classes whose gradients change little; `gamma` is the
    largest step at which no probability falls below its floor. This is not the minimiser of `bound` (`exact` is).

    Args:
        p: [C], global class shares.
        p_local: [C], the client's class shares.
        lipschitz: [C], >= 0; all zeros where the client's model is the average.
        floor: the least multiple of `p_local` (the paper's varpi), in [0, 1]. Where `floor * p_local_i > p_i`, the floor
            of class i is p_i, so that gamma is never negative.

    Returns:
        q [C], >= its floor, with sum 1 over ALL classes, also those the client does not have; and gamma >= 0, which is 0
        with q = p if all of `lipschitz` are equal (relative spread below 1e-6) or a class with a_i < 0 is at its floor.

    Raises:
        ValueError: an argument is no distribution, or shapes, signs or `floor` are wrong.

    >>> q, gamma = closed_form([0.5, 0.3, 0.2], [0.2, 0.4, 0.4], [1.0, 1.0, 2.0], floor=0.1)
    >>> q, round(gamma, 4)
    (tensor([0.5800, 0.3800, 0.0400], dtype=torch.float64), 0.196)
    """
    shares, lower, constants = _check_inputs(p, p_local, lipschitz, floor)
    largest = float(constants.max())
    if largest - float(constants.min()) <= NEAR_EQUAL * largest:
        return shares.to(dtype_of(p), copy=True), 0.0
    squares = (constants / largest).square()
    a = 1 - squares / squares.mean()
    a = a / torch.linalg.vector_norm(a)
    falling = a < 0
    gamma = float(((shares - lower)[falling] / -a[falling]).min())
    return torch.maximum(shares + gamma * a, lower).to(dtype_of(p)), gamma


def exact(
    p: Values, p_local: Values, lipschitz: Values, floor: float, *, support: str = "all"
) -> Tensor:
    """The sampling probabilities that minimise `bound` over the constraints of Eq. 14: its global optimum, O(C^2).

    Every stationary point is the Euclidean projection of `p - nu * L^2` on `{q >= floor, sum q = 1}` for some nu >= 0. That
    path consists of at most C straight pieces, on each of which the bound is a cubic; the best point of all is taken.

    Args:
        p: [C], global class shares.
        p_local: [C], the client's class shares.
        lipschitz: [C], >= 0.
        floor: the least multiple of `p_local`, in [0, 1], lowered to p_i as in `closed_form`, so that both choose from the
            same set.
        support: "all" classes, or only the "local" ones (q = 0 where p_local = 0).

    Returns:
        q [C], >= its floor, with sum 1.

    Raises:
        ValueError: an argument is no distribution, or shapes, signs, `floor` or `support` are wrong.

    >>> exact([0.5, 0.3, 0.2], [0.2, 0.4, 0.4], [1.0, 1.2, 2.0], floor=0.1)
    tensor([0.6732, 0.2868, 0.0400], dtype=torch.float64)
    """
    shares, lower, constants = _check_inputs(p, p_local, lipschitz, floor)
    if support not in ("all", "local"):
        raise ValueError(f"support must be 'all' or 'local'; got {support!r}")
    allowed = torch.ones_like(shares, dtype=torch.bool)
    if support == "local":
        allowed = as_distribution(p_local, "p_local").to(shares.device) > 0
    present = allowed.cpu().numpy()
    target, lower_bound, slopes = (
        tensor.cpu().numpy()[present] for tensor in (shares, lower, constants)
    )
    # The absent classes keep q = 0 and so add a constant to the distance from p.
    missing = float(shares[~allowed].square().sum())
    q = torch.zeros_like(shares)
    q[allowed] = torch.from_numpy(
        _best_on_path(target, lower_bound, slopes, missing)
    ).to(shares.device)
    return q.to(dtype_of(p))


def _best_on_path(p: Array, lower: Array, constants: Array, missing: float) -> Array:
    squares: Array = (constants / max(constants.max(), np.finfo(float).tiny)) ** 2
    # At nu = 0: p itself, or p lifted evenly by what the absent classes leave over. As p >= lower, all are free.
    q: Array = p + (1.0 - p.sum()) / p.size
    free = np.ones(p.size, dtype=bool)
    best, lowest = q, math.inf
    while True:
        mean = squares[free].mean()
        velocity = np.where(free, mean - squares, 0.0)
        falling = velocity < -1e-14 * squares[free].max()
        if not falling.any():
            break
        # A class with L^2 above the mean of the free ones falls until it rests on its floor, and as that mean only
        # decreases it never rises again: C pieces at most.
        times = np.full(p.size, math.inf)
        times[falling] = np.maximum(q - lower, 0.0)[falling] / -velocity[falling]
        blocking = int(times.argmin())
        end = np.maximum(q + times[blocking] * velocity, lower)
        end[blocking] = lower[blocking]
        free[blocking] = False
        end[free] += (1.0 - end.sum()) / free.sum()
        share, value = _lowest_of_cubic(q, end, p, squares, missing)
        if value < lowest:
            best, lowest = q + share * (end - q), value
        q = end
    return np.maximum(best, lower)


def _lowest_of_cubic(
    start: Array, end: Array, p: Array, squares: Array, missing: float
) -> tuple[float, float]:
    """The s in [0, 1] with the least `rho(start + s * (end - start))`, and that value."""
    step, offset = end - start, start - p
    # rho(s) = (a0 + a1 s + a2 s^2) (b0 + b1 s).
    a0 = 1.0 + missing + float(offset @ offset)
    a1 = 2.0 * float(offset @ step)
    a2 = float(step @ step)
    b0, b1 = float(start @ squares), float(step @ squares)
    roots = _real_roots(3 * a2 * b1, 2 * (a2 * b0 + a1 * b1), a1 * b0 + a0 * b1)
    shares = [0.0, 1.0, *(root for root in roots if 0.0 < root < 1.0)]
    values = [(a0 + s * (a1 + s * a2)) * (b0 + s * b1) for s in shares]
    index = values.index(min(values))
    return shares[index], values[index]


def _real_roots(a: float, b: float, c: float) -> list[float]:
    """The real solutions of a s^2 + b s + c = 0 without cancellation, also for a or b = 0."""
    discriminant = b * b - 4 * a * c
    if discriminant < 0:
        return []
    half = -(b + math.copysign(math.sqrt(discriminant), b)) / 2
    return [top / bottom for top, bottom in ((half, a), (c, half)) if bottom != 0]


def _check_inputs(
    p: Values, p_local: Values, lipschitz: Values, floor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """p, the floors clipped to p, and the constants, on the device of p."""
    shares = as_distribution(p, "p")
    local = as_distribution(p_local, "p_local").to(shares.device)
    if local.shape != shares.shape:
        raise ValueError(
            f"p_local must have as many classes as p ({shares.numel()}); got {local.numel()}"
        )
    lower = torch.minimum(
        as_number(floor, "floor", least=0.0, most=1.0) * local, shares
    )
    return shares, lower, _constants(lipschitz, shares.numel()).to(shares.device)


def _constants(lipschitz: Values, classes: int) -> Tensor:
    constants = as_double(lipschitz, "lipschitz", ndim=1)
    if constants.numel() != classes:
        raise ValueError(
            f"lipschitz must have as many classes as p ({classes}); got {constants.numel()}"
        )
    if float(constants.min()) < 0:
        raise ValueError(
            f"lipschitz must be >= 0 everywhere; got {float(constants.min()):.6g}"
        )
    return constants
