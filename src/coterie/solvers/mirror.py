"""Entropic mirror descent on the probability simplex, and gradients estimated from function values alone.

Sources: "Selective Collaboration for Robust Federated Learning" and its older text "Federated Learning Can Find Friends
That Are Beneficial" (MeritFed): Eqs. 7 to 9 and 12 of the newer text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.solvers._inputs import (
    NotFiniteError,
    Values,
    as_count,
    as_distribution,
    as_distributions,
    as_double,
    as_number,
    dtype_of,
)

__all__ = [
    "FLOOR",
    "duality_gap",
    "entropic_descent",
    "entropic_step",
    "two_point",
    "two_point_candidates",
    "two_point_estimate",
]

FLOOR = 1e-16
"""The smallest weight. It is below the rounding of a sum of ordinary numbers, so a floored weight changes nothing, and
yet it comes back once its gradient is lower than the others' for 37 units (`ln 1e16`) of step times difference."""

FIRST_TRIAL = 4.0
"""The line search first tries the step that changes the ratio of two weights by at most `exp(FIRST_TRIAL)`."""

SUFFICIENT, SHRINK, GROW, MOST_TRIALS = 0.3, 0.5, 4.0, 40
LEAST_SPREAD = 1e-200  # of slopes; below it the first trial step would overflow


def entropic_descent(
    gradient: Callable[[Tensor], Any],
    weights: Values,
    *,
    steps: int,
    step: float | str,
    value: Callable[[Tensor], Any] | None = None,
    damping: bool = False,
    accelerated: bool = False,
) -> Tensor:
    """Minimise a function phi over the probability simplex by entropic mirror descent.

    One step is `MD(w) = normalise(w * exp(-step * gradient(w)))`, computed from `log w` and shifted by the maximum, so
    that no size of step or gradient overflows. No weight falls below `FLOOR` (1e-16), because a weight of 0 could never
    grow again; starting weights of 0 are lifted to the floor as well.

    `step="line-search"` needs no tuning: the first trial step of a descent step is 4 / (max g - min g), or 4 times the
    step taken before if that is larger, halved until `phi(MD(w)) <= phi(w) + 0.3 * <g, MD(w) - w>` (Armijo). It ends
    early where no step descends: at the minimum, or where rounding hides the descent.

    Args:
        gradient: called with w [n], returns dphi/dw [n]; points uphill. Called once per step.
        weights: [n], the start, a distribution (>= 0, sum 1); or [T, n], T problems that are solved in step: `gradient` then
            returns [T, n] and `value` [T].
        steps: number of steps; 0 returns the start unchanged, bit by bit.
        step: the factor of the gradient, >= 0, or "line-search".
        value: called with w [n], returns phi(w); needed by the line search, which calls it once at the start and once
            per trial. A trial whose value is NaN or Inf counts as too long.
        damping: move only to `t / (t + 1) * w + 1 / (t + 1) * MD(w)`, where t is the number of steps already done by
            this call: the first step is a whole one, and w becomes the mean of all points that MD gave.
        accelerated: take Nesterov's steps with entropy as distance, for a number as `step` and without damping. If phi is convex
            and no second derivative along the simplex, |d'Hd| for |d|_1 = 1, is above 1 / step, then after K steps
            phi(w) - phi(v) <= 4 KL(v, start) / (step (K + 1)^2) for every distribution v (Tseng, "On accelerated proximal gradient
            methods for convex-concave optimization", 2008, Algorithm 1 and Corollary 1); plain steps have K in place of
            (K + 1)^2 / 4. `gradient` is called between the points that are reached; the first step is a plain one.

    Returns:
        [n], >= 0, with sum 1 to rounding. `gradient` and `value` see weights of the same dtype and device.

    Raises:
        ValueError: `weights` is no distribution, `steps` or `step` is out of range, `value` is missing, accelerated steps are to
            be damped or searched for, or `gradient` returns NaN, Inf or a wrong shape.

    >>> entropic_descent(lambda w: [1.0, 0.0], [0.5, 0.5], steps=1, step=1.0986123)
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    rows, single = as_distributions(weights, "weights")
    steps = as_count(steps, "steps", least=0)
    search = isinstance(step, str)
    if search and step != "line-search":
        raise ValueError(f"step must be a number >= 0 or 'line-search'; got {step!r}")
    if search and value is None:
        raise ValueError(
            "value must be a function w -> phi(w) when step is 'line-search'; got None"
        )
    if accelerated and (search or damping):
        raise ValueError("accelerated steps need a number as step, and no damping")
    length = 0.0
    if not search:
        length = as_number(step, "step", least=0.0)
    dtype = dtype_of(weights)

    def in_shape(w: Tensor) -> Tensor:
        if single:
            w = w[0]
        return w.to(dtype)

    if steps == 0:
        return in_shape(rows).clone()
    w = rows.clamp_min(FLOOR)
    if accelerated:

        def slope_at(w: Tensor) -> Tensor:
            return _slope(gradient(in_shape(w)), w, single)

        return in_shape(_accelerated(slope_at, w, steps, length))
    line: _Line | None = None
    if search and value is not None:
        line = _Line(lambda w: value(in_shape(w)), len(rows))
    share = 1.0
    for number in range(steps):
        slope = _slope(gradient(in_shape(w)), w, single)
        if damping:
            share = 1.0 / (number + 1)
        if line is None:
            w = entropic_step(w, slope, length, share)
            continue
        found = line.search(w, slope, share)
        if found is None:
            break
        w = found
    return in_shape(w)


def _accelerated(
    slope_at: Callable[[Tensor], Tensor], start: Tensor, steps: int, length: float
) -> Tensor:
    """Nesterov's steps with entropy as distance; one pair of points for each row of `start`."""
    reached = leading = start
    for number in range(steps):
        share = 2.0 / (number + 2)
        between = torch.lerp(reached, leading, share)
        leading = entropic_step(leading, slope_at(between), length / share)
        reached = torch.lerp(reached, leading, share)
    return reached


def _slope(raw: Any, w: Tensor, single: bool) -> Tensor:
    """The caller's gradient at w as a checked float64 matrix; tensors take a short way, as this is the inner loop."""
    if isinstance(raw, Tensor):
        slope = raw.detach().to(torch.float64)
    else:
        slope = as_double(raw, "gradient(w)", ndim=2 - single)
    expected = w.shape
    if single:
        expected = w[0].shape
    if slope.shape != expected:
        raise ValueError(
            f"gradient(w) must have the shape of weights {list(expected)}; got {list(slope.shape)}"
        )
    # A sum is finite only if its terms are; it may overflow alone.
    if not math.isfinite(slope.sum().item()) and not torch.isfinite(slope).all():
        raise NotFiniteError(
            f"gradient(w) must be finite; got {int((~torch.isfinite(slope)).sum())} NaN or Inf"
        )
    return slope.to(w.device).reshape(w.shape)


def entropic_step(
    weights: Tensor, slope: Tensor, length: float | Tensor, share: float = 1.0
) -> Tensor:
    """One step of `entropic_descent`, for one weight vector or many at once.

    Args:
        weights: [..., n] float64, each row positive with sum 1.
        slope: [..., n] float64, dphi/dw; points uphill.
        length: the step, >= 0; or [..., 1], one for each row.
        share: how far to go towards the new point, in (0, 1].

    Returns:
        [..., n], each row at least `FLOOR` everywhere.

    >>> entropic_step(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]]), 1.0986123)
    tensor([[0.2500, 0.7500],
            [0.5000, 0.5000]])
    """
    # Only differences of slopes matter: with the lowest at 0 a huge product can become Inf, but never Inf - Inf.
    logits = weights.log() - length * (slope - slope.amin(-1, keepdim=True))
    stepped = torch.softmax(logits, -1).clamp_min(FLOOR)
    if share == 1.0:
        return stepped
    return torch.lerp(weights, stepped, share)


def duality_gap(weights: Values, slope: Values) -> Tensor:
    """The Frank-Wolfe gap `max_i <w - e_i, slope>` of a function phi on the simplex (Jaggi, ICML 2013).

    With the gradient of a convex phi at w it is at least `phi(w) - min phi`, and equal to it where phi is linear.

    Args:
        weights: w [n], a distribution.
        slope: dphi/dw [n]; points uphill.

    Returns:
        [] (a scalar tensor), >= 0 to rounding; 0 where w is a minimum of a convex phi.

    Raises:
        ValueError: `weights` is no distribution, or `slope` is not finite or has another length.

    >>> duality_gap([0.25, 0.75], [2.0, -2.0])
    tensor(1., dtype=torch.float64)
    """
    w = as_distribution(weights, "weights")
    g = as_double(slope, "slope", ndim=1).to(w.device)
    if g.shape != w.shape:
        raise ValueError(
            f"slope must have an entry for each of the {len(w)} weights; got {len(g)}"
        )
    return (torch.dot(w, g) - g.min()).to(dtype_of(weights))


class _Line:
    """Backtracking along the mirror-descent path, row by row; remembers the values reached and the steps taken."""

    def __init__(self, value: Callable[[Tensor], Any], rows: int) -> None:
        self._value, self._rows = value, rows
        self._reached: Tensor | None = None
        self._taken = torch.zeros(rows, dtype=torch.float64)

    def _values(self, w: Tensor) -> Tensor:
        raw = self._value(w)
        if not isinstance(raw, Tensor):
            raw = torch.as_tensor(raw)
        values: Tensor = raw.detach().to("cpu", torch.float64)
        return values.reshape(self._rows)

    def search(self, w: Tensor, slope: Tensor, share: float) -> Tensor | None:
        """The next points; a row stays where no step along its path descends, and None says that all do."""
        if self._reached is None:
            self._reached = self._values(w)
            if not bool(torch.isfinite(self._reached).all()):
                raise ValueError(
                    f"value(w) must be finite at the start; got {float(self._reached[~torch.isfinite(self._reached)][0])}"
                )
        spread = (slope.amax(1) - slope.amin(1)).cpu()
        waiting = spread >= LEAST_SPREAD
        length = torch.maximum(
            FIRST_TRIAL / spread.clamp_min(LEAST_SPREAD),
            (GROW * self._taken).clamp_max(1 / LEAST_SPREAD),
        )
        next_w = w.clone()
        for _ in range(MOST_TRIALS):
            if not bool(waiting.any()):
                break
            trial = entropic_step(w, slope, length[:, None].to(w.device), share)
            reached = self._values(trial)
            # What the slope promises; it is above 0 by rounding only.
            promised = ((trial - w) * slope).sum(1).cpu().clamp_max(0.0)
            low_enough = reached <= self._reached + SUFFICIENT * promised
            improved = waiting & torch.isfinite(reached) & low_enough
            next_w[improved] = trial[improved]
            self._reached = torch.where(improved, reached, self._reached)
            self._taken = torch.where(improved, length, self._taken)
            waiting &= ~improved
            length = torch.where(waiting, length * SHRINK, length)
        if torch.equal(next_w, w):
            return None
        return next_w


def _number(value: Any) -> float:
    # torch warns when a tensor that requires a gradient becomes a float.
    if isinstance(value, Tensor):
        value = value.detach()
    return float(value)


def two_point_candidates(
    weights: Values, *, h: float, directions: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The points at which `two_point_estimate` needs function values.

    Args:
        weights: [n]. The candidates may leave the simplex by up to `h`.
        h: distance from `weights`, > 0.
        directions: number q of directions, >= 1.
        generator: the source of the directions, which are uniform on the unit sphere.

    Returns:
        candidates [2q, n]: first the q rows `weights + h * e`, then the q rows `weights - h * e`;
        e [q, n]: the directions, of length 1.

    Raises:
        ValueError: an argument is out of range.

    >>> start = torch.tensor([0.25, 0.75])
    >>> candidates, e = two_point_candidates(start, h=0.5, directions=1, generator=torch.Generator().manual_seed(0))
    >>> torch.allclose(candidates[0] - candidates[1], e[0]), round(float(e.norm()), 4)
    (True, 1.0)
    """
    start = as_double(weights, "weights", ndim=1)
    h = as_number(h, "h", above=0.0)
    directions = as_count(directions, "directions", least=1)
    if start.numel() == 0:
        raise ValueError("weights must have at least one entry; got none")
    size, drawn_on = (directions, start.numel()), generator.device
    e = torch.randn(size, generator=generator, dtype=torch.float64, device=drawn_on).to(
        start.device
    )
    e = e / torch.linalg.vector_norm(e, dim=1, keepdim=True)
    candidates = torch.cat([start + h * e, start - h * e])
    return candidates.to(dtype_of(weights)), e.to(dtype_of(weights))


def two_point_estimate(losses: Values, e: Values, h: float) -> Tensor:
    """The gradient estimated from the values at the points of `two_point_candidates`.

    The mean over the directions of `n * (phi(w + h e) - phi(w - h e)) / (2 h) * e`: unbiased for a linear or quadratic
    phi, as the mean of `n e e'` is the identity. MeritFed's Eq. 9 ff. drops the trailing `e`.

    Args:
        losses: [2q], phi at the candidates, in their order.
        e: [q, n], the directions, of length 1.
        h: the distance, > 0, as in `two_point_candidates`.

    Returns:
        [n], an estimate of dphi/dw; points uphill; of the dtype of `e`.

    Raises:
        ValueError: an argument is out of range or the shapes do not belong together.

    >>> two_point_estimate([3.0, 1.0], [[0.6, -0.8]], h=1.0)
    tensor([ 1.2000, -1.6000], dtype=torch.float64)
    """
    values = as_double(losses, "losses", ndim=1)
    unit = as_double(e, "e", ndim=2)
    h = as_number(h, "h", above=0.0)
    q, n = unit.shape
    if q == 0 or values.numel() != 2 * q:
        raise ValueError(
            f"losses must have 2 entries for each of the rows of e; got {values.numel()} for {q} rows"
        )
    slopes = (values[:q] - values[q:]).to(unit.device) / (2.0 * h)
    return (n / q * (slopes @ unit)).to(dtype_of(e))


def two_point(
    loss: Callable[[Tensor], Any],
    weights: Values,
    *,
    h: float,
    generator: torch.Generator,
) -> Tensor:
    """A gradient estimate from two values of `loss`, along one random direction (MeritFed, after Eq. 9).

    Args:
        loss: called with w [n], returns phi(w); called twice, at `weights + h * e` and at `weights - h * e`.
        weights: [n].
        h: half the distance of the two points, > 0.
        generator: the source of the direction.

    Returns:
        [n], an estimate of dphi/dw; points uphill.

    Raises:
        ValueError: an argument is out of range, or a loss is NaN or Inf.

    >>> estimate = two_point(lambda w: 3 * w[0], [0.5], h=0.1, generator=torch.Generator().manual_seed(0))
    >>> estimate.round(decimals=6)
    tensor([3.], dtype=torch.float64)
    """
    candidates, e = two_point_candidates(
        weights, h=h, directions=1, generator=generator
    )
    return two_point_estimate(
        [_number(loss(candidate)) for candidate in candidates], e, h
    )
