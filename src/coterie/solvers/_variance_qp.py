"""The quadratic program behind `variance.exact_weights`, for clarabel."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# Rows of length n are given to clarabel divided by n ** SCALING. Of 0 to 1 the middle is best by far where rows 1e4 times
# longer than others cancel each other; the next value is tried where the last is not proven to be good enough.
SCALINGS = (0.5, 0.25, 0.0)
PROVEN = 1e-7

NEAR, CLEAN = 1e-7, 1e-9
"""Weights this near to a bound are put on it, unless that raises the objective by more than a share of `CLEAN`."""


def solve(factor: Array, m: int, budget: float, *, linear: bool) -> Array:
    """Minimise `q(u) + ||factor @ y||^2`, q(u) = u^2 or (`linear`) 2 u, and return w = y m / u [N].

    Subject to `u + sum(y) = 1`, `0 <= y <= u / m`, `sum(y) <= budget * u / m`.
    """
    best: Array = np.zeros(factor.shape[1])
    lowest = _value(best, factor, m, linear)
    statuses = []
    for scaling in SCALINGS:
        w, status = _clarabel(factor, m, budget, linear, scaling)
        if w is None:
            statuses.append(status)
            continue
        # The interior-point method stops just short of the bounds.
        margin = NEAR * min(1.0, budget)
        rounded = np.where(w < margin, 0.0, np.where(w > 1 - margin, 1.0, w))
        for candidate, slack in ((w, 0.0), (rounded, CLEAN)):
            total = float(candidate.sum())
            feasible = candidate
            if total > budget:
                feasible = candidate * (budget / total)
            value = _value(feasible, factor, m, linear)
            if value <= lowest * (1 + slack):
                best, lowest = feasible, value
        if _proven(best, factor, m, budget, linear, lowest):
            break
    if len(statuses) == len(SCALINGS):
        raise RuntimeError(
            f"exact_weights found no solution: clarabel ended with {' and '.join(statuses)}"
        )
    return best


def _value(w: Array, factor: Array, m: int, linear: bool) -> float:
    u = m / (m + w.sum())
    residual = factor @ (w * (u / m))
    q = u * u
    if linear:
        q = 2 * u
    return float(q + residual @ residual)


def _proven(
    w: Array, factor: Array, m: int, budget: float, linear: bool, value: float
) -> bool:
    """Return True if weak duality shows that `value`, reached at w, exceeds the minimum by a share of at most `PROVEN`.

    For any vector r, `q(u) + ||factor @ y||^2 >= 2 (a u + r' factor @ y) - a^2 - r'r` with a = u at w (`linear`: a = 1 and
    no a^2), and the right side is linear in (u, y) and so least at a vertex. First r = factor @ y at w is tried. Where rows
    are long its rounding swamps the bound; then the r nearest to it that gives equal slopes to the free weights.
    """
    u = m / (m + w.sum())
    r = factor @ (w * (u / m))
    a, constant = u, u * u
    if linear:
        a, constant = 1.0, 0.0

    def proves(r: Array) -> bool:
        bound = _least_vertex(a, r @ factor, m, budget) - constant - r @ r
        return bool(value - bound <= PROVEN * value)

    if proves(r):
        return True
    slopes = r @ factor
    free = (w > 0) & (w < 1)
    if not free.any():
        return False
    level = np.median(slopes[free])
    unproven = free | ((w == 0) & (slopes < level)) | ((w == 1) & (slopes > level))
    missing = level - slopes[unproven]
    change, *_ = np.linalg.lstsq(factor[:, unproven].T, missing, rcond=None)
    return proves(r + change)


def _least_vertex(a: float, slopes: Array, m: int, budget: float) -> float:
    """The minimum of `2 (a u + slopes @ y)`; the vertices fill up the smallest slopes."""
    ordered = np.sort(slopes)
    whole_vertices = min(ordered.size, int(budget))
    sums = np.concatenate([[0.0], np.cumsum(ordered[:whole_vertices])])
    lowest = ((a * m + sums) / (m + np.arange(whole_vertices + 1))).min()
    if whole_vertices < ordered.size:
        # The whole budget: the last slope is filled in part.
        partial_slope = (budget - whole_vertices) * ordered[whole_vertices]
        lowest = min(lowest, (a * m + sums[-1] + partial_slope) / (m + budget))
    return float(2 * lowest)


def _clarabel(
    factor: Array, m: int, budget: float, linear: bool, scaling: float
) -> tuple[Array | None, str]:
    """The w or None, and clarabel's status. Its variables are (u, y * scale, residual = factor @ y); the last keeps all digits."""
    try:
        clarabel: Any = importlib.import_module("clarabel")
    except ImportError as error:
        raise ImportError(
            'exact_weights needs clarabel: pip install "coterie[varsel]"'
        ) from error
    from scipy import sparse

    rows, n = factor.shape
    scale = np.maximum(1.0, np.linalg.norm(factor, axis=0)) ** scaling
    inverse = 1.0 / scale
    # clarabel minimises x' cost x / 2 + line' x: q(u) = u^2 or 2 u, and the squares of the residual.
    of_square, of_line = 2.0, 0.0
    if linear:
        of_square, of_line = 0.0, 2.0
    diagonal = np.concatenate([[of_square], np.zeros(n), np.full(rows, 2.0)])
    cost = sparse.diags(diagonal).tocsc()
    line = np.concatenate([[of_line], np.zeros(n + rows)])
    each_bound, whole_bound = np.full((n, 1), -1.0 / m), np.full((1, 1), -budget / m)
    constraints = sparse.bmat(
        [
            [None, factor * inverse, -sparse.identity(rows)],  # residual = factor @ y
            [np.ones((1, 1)), inverse[None], None],  # u + sum y = 1
            [None, -sparse.identity(n), None],  # y >= 0
            [each_bound, sparse.diags(inverse), None],  # y <= u / m
            [whole_bound, inverse[None], None],  # sum y <= budget * u / m
        ],
        format="csc",
    )
    right = np.concatenate([np.zeros(rows), [1.0], np.zeros(2 * n + 1)])
    cones = [clarabel.ZeroConeT(rows + 1), clarabel.NonnegativeConeT(2 * n + 1)]
    solution = clarabel.DefaultSolver(
        cost, line, constraints, right, cones, _settings(clarabel)
    ).solve()
    x = np.asarray(solution.x, dtype=np.float64)
    if not np.isfinite(x).all() or x[0] <= 0:
        return None, str(solution.status)
    return np.clip(x[1 : 1 + n] * inverse * (m / x[0]), 0.0, 1.0), str(solution.status)


def _settings(clarabel: Any) -> Any:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    # From 0.10 on; before, there was one thread only.
    if hasattr(settings, "max_threads"):
        settings.max_threads = 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    # The default regularisation of 1e-8 hides directions in which long rows cancel.
    settings.static_regularization_constant = 1e-10
    settings.iterative_refinement_reltol = settings.iterative_refinement_abstol = 1e-16
    settings.iterative_refinement_max_iter = 50
    return settings
