"""How much each external gradient should count for the gradient of a few internal clients (VaRSeL).

Source: "Rethinking Client Reweighting for Selfish Federated Learning" (Eqs. 4, 7 and 8). Symbols: M internal gradients
g_i with mean g_I; N external gradients g_j, d_j = ||g_j - g_I||^2; V = sum_i ||g_i - g_I||^2; weights w in [0, 1]^N with sum
<= the budget K. The mean `(M g_I + sum w_j g_j) / (M + sum w_j)` replaces g_I. The unseen true gradient is replaced by g_I.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.solvers._inputs import Values, as_count, as_double, as_number, dtype_of
from coterie.solvers._variance_qp import Array, solve

__all__ = ["exact_weights", "objective", "surrogate_objective", "surrogate_weights"]

BLOCK = (
    1 << 12
)  # columns that are factorised at a time: they stay in the cache, and no second copy is made of all


def objective(
    weights: Values,
    internal: Values,
    external: Values,
    *,
    variance: Any = None,
    debias: bool = False,
) -> Tensor:
    """The estimated squared error of the reweighted gradient (Eq. 4); small is good.

    `Phi(w) = (V + ||sum w_j (g_j - g_I)||^2) / (M + s)^2` with s = sum(w). `debias=True` subtracts `s^2 V / M^2` from the
    numerator with the unbiased V: the error of g_I itself, which all differences `g_j - g_I` share. That estimate can be
    negative.

    Args:
        weights: [N], any weights with M + sum > 0, also such as `exact_weights` would not return.
        internal: [M, d], gradients.
        external: [N, d], gradients.
        variance: V, >= 0. By default computed from `internal`: the plain sum of squares (the paper's), or with `debias`
            the unbiased one, M / (M - 1) times as large; both need M >= 2.
        debias: see above.

    Returns:
        [] (a scalar tensor), in units of a squared gradient.

    Raises:
        ValueError: shapes do not belong together, values are not finite, or V is unknown because M = 1.

    >>> internal, external = [[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0]]
    >>> objective([0.0], internal, external), objective([1.0], internal, external)
    (tensor(0.5000, dtype=torch.float64), tensor(0.3333, dtype=torch.float64))
    """
    inner, outer = _gradients(internal, external)
    spread = _spread(inner, variance, debias)
    w = as_double(weights, "weights", ndim=1).to(inner.device)
    if w.numel() != outer.shape[0]:
        raise ValueError(
            f"weights must have one entry for each row of external ({outer.shape[0]}); got {w.numel()}"
        )
    m, total = inner.shape[0], w.sum()
    if float(m + total) <= 0:
        raise ValueError(
            f"weights must have a sum > -{m}, minus the number of internal rows; got {float(total):.6g}"
        )
    shift = w @ (outer - inner.mean(0))
    # The error of g_I is in all g_j - g_I, and so its square, V / M^2 in expectation, in that of their sum.
    shared: Tensor | float = 0.0
    if debias:
        shared = (total / m).square() * spread
    value = (spread + shift @ shift - shared) / (m + total).square()
    return value.to(dtype_of(weights))


def exact_weights(
    internal: Values,
    external: Values,
    budget: float,
    *,
    variance: Any = None,
    debias: bool = False,
) -> Tensor:
    """The weights that minimise `objective` over w in [0, 1]^N, sum(w) <= budget (Eq. 4).

    With `u = M / (M + s)` and `y = w / (M + s)` this is a convex quadratic program, solved by clarabel: minimise
    `V u^2 / M^2 + ||sum y_j (g_j - g_I)||^2` (with `debias`, `2 V u / M^2` in place of the first term) subject to
    `u + sum y = 1`, `0 <= y <= u / M`, `sum y <= budget u / M`. Where several w are optimal, one of them is returned.

    Args:
        internal: [M, d], gradients.
        external: [N, d], gradients, N >= 0.
        budget: K >= 0, any number.
        variance: V as in `objective`. 0 gives w = 0.
        debias: minimise the objective without the bias that the error of g_I puts into it.

    Returns:
        [N], of the dtype and on the device of `internal`.

    Raises:
        ValueError: shapes do not belong together, values are not finite, the budget is negative, or V is unknown because
            M = 1.
        ImportError: clarabel is not installed.
        RuntimeError: clarabel found no solution.

    >>> exact_weights([[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, -2.0], [5.0, 5.0]], budget=2).round(decimals=4)
    tensor([1.0000, 0.8429, 0.0800], dtype=torch.float64)
    """
    inner, outer = _gradients(internal, external)
    budget = as_number(budget, "budget", least=0.0)
    spread = _spread(inner, variance, debias)
    m, n = inner.shape[0], outer.shape[0]
    if n == 0 or budget == 0.0 or spread == 0.0:
        return torch.zeros(n, dtype=dtype_of(internal), device=inner.device)
    # In units of the error of g_I everything is of order 1 but for clients that are far away.
    factor = _triangular(inner, outer) / (math.sqrt(spread) / m)
    w = solve(factor, m, budget, linear=debias)
    return torch.from_numpy(w).to(dtype_of(internal)).to(inner.device)


def surrogate_objective(
    weights: Values, distances: Values, variance: Any, num_internal: int
) -> Tensor:
    """The upper bound of Eq. 7, `(V + s * sum w_j d_j) / (M + s)^2` with s = sum(w), which needs distances only.

    Args:
        weights: [N], >= 0.
        distances: [N], the SQUARED distances d_j, >= 0.
        variance: V >= 0.
        num_internal: M >= 1.

    Returns:
        [] (a scalar tensor), in units of `distances`.

    Raises:
        ValueError: shapes do not belong together or a number is out of range.

    >>> surrogate_objective([0.0], [1.0], 2.0, 2), surrogate_objective([1.0], [1.0], 2.0, 2)
    (tensor(0.5000, dtype=torch.float64), tensor(0.3333, dtype=torch.float64))
    """
    d, v, m = _distances(distances, variance, num_internal)
    w = as_double(weights, "weights", ndim=1).to(d.device)
    if w.shape != d.shape or (w.numel() > 0 and float(w.min()) < 0):
        raise ValueError(
            f"weights must be {d.numel()} numbers >= 0, as many as distances; got {w.tolist()}"
        )
    total = w.sum()
    return ((v + total * (w @ d)) / (m + total).square()).to(dtype_of(weights))


def surrogate_weights(
    distances: Values, variance: Any, num_internal: int, budget: float
) -> Tensor:
    """The weights that minimise `surrogate_objective` over w in [0, 1]^N, sum(w) <= budget (Eq. 8). Exact, O(N log N).

    For a given sum s it is best to fill up the smallest distances first. With F(s) their filled-up sum, the bound
    `(V + s F(s)) / (M + s)^2` falls as long as `h(s) = F(s) (M - s) + s F'(s) (M + s) - 2 V` is negative, and h increases:
    the best s is where h changes sign, or the budget. So at most one weight is neither 0 nor 1.

    Args:
        distances: [N], the SQUARED distances d_j, >= 0, N >= 0. Of equal ones the first are filled first.
        variance: V >= 0; 0 gives w = 0.
        num_internal: M >= 1.
        budget: K >= 0, any number.

    Returns:
        [N].

    Raises:
        ValueError: a number is out of range.

    >>> surrogate_weights([5.0, 1.0, 2.0], variance=4.0, num_internal=2, budget=3)
    tensor([0.0000, 1.0000, 0.1111], dtype=torch.float64)
    """
    d, v, m = _distances(distances, variance, num_internal)
    budget = as_number(budget, "budget", least=0.0)
    n = d.numel()
    if n == 0 or v == 0.0:
        return torch.zeros(n, dtype=dtype_of(distances), device=d.device)
    order = d.argsort(stable=True)
    ordered = d[order]
    full = torch.arange(n, dtype=torch.float64, device=d.device)
    # On [k, k + 1], F(s) = c_k + d_k s, so h(s) = M c_k - 2 V + s (2 M d_k - c_k) with c_k <= 0 is a straight line.
    c = ordered.cumsum(0) - ordered - full * ordered
    slope = 2 * m * ordered - c
    root = torch.where(slope > 0, (2 * v - m * c) / slope, math.inf)
    # Before the change of sign the roots lie beyond their segments, after it before them.
    filled = int((root > full + 1).sum())
    s = float(n)
    if filled < n:
        s = max(float(root[filled]), float(filled))
    ordered_weights = (min(s, budget) - full).clamp(0.0, 1.0)
    weights = torch.empty_like(d).scatter_(0, order, ordered_weights)
    return weights.to(dtype_of(distances))


def _gradients(internal: Values, external: Values) -> tuple[Tensor, Tensor]:
    inner = as_double(internal, "internal", ndim=2)
    outer = as_double(external, "external", ndim=2).to(inner.device)
    if inner.shape[0] == 0:
        raise ValueError("internal must have at least one row; got none")
    if outer.shape[1] != inner.shape[1]:
        raise ValueError(
            f"external must have as many columns as internal ({inner.shape[1]}); got {outer.shape[1]}"
        )
    return inner, outer


def _spread(internal: Tensor, variance: Any, debias: bool) -> float:
    """V, as given or of the internal gradients."""
    if variance is not None:
        return as_number(variance, "variance", least=0.0)
    m = internal.shape[0]
    if m == 1:
        raise ValueError(
            "internal must have at least 2 rows, as one gradient shows no variance (pass `variance`, or split the internal "
            "client's rows in two or more parts and pass one gradient of each); got 1"
        )
    plain = float((internal - internal.mean(0)).square().sum())
    if debias:
        return plain * m / (m - 1)
    return plain


def _distances(
    distances: Values, variance: Any, num_internal: int
) -> tuple[Tensor, float, int]:
    d = as_double(distances, "distances", ndim=1)
    if d.numel() > 0 and float(d.min()) < 0:
        raise ValueError(
            f"distances must be >= 0 everywhere (they are squared); got {float(d.min()):.6g}"
        )
    return (
        d,
        as_number(variance, "variance", least=0.0),
        as_count(num_internal, "num_internal", least=1),
    )


def _triangular(internal: Tensor, external: Tensor) -> Array:
    """R [min(d, N), N] with `||R y|| = ||sum y_j (g_j - g_I)||` for all y. A Gram matrix would lose half of the digits."""
    center = internal.mean(0)
    n, d = external.shape
    factor = torch.zeros(0, n, dtype=torch.float64, device=internal.device)
    for start in range(0, d, BLOCK):
        block = (external[:, start : start + BLOCK] - center[start : start + BLOCK]).T
        factor = torch.cat([factor, block])
        if factor.shape[0] > n:
            factor = torch.linalg.qr(factor, mode="r").R
    return np.asarray(factor.cpu().numpy(), dtype=np.float64)
