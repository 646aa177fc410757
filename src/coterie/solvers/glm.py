r"""Penalised generalised linear models, solved by Newton's method: one linear layer with bias, exact to 1e-8.

What is maximised, over the parameters theta of one linear layer, is

    sum_i w_i log p(y_i | z_i)  -  1/2 sum_j precision_j (theta_j - centre_j)^2,    z_i = W x_i + b.

Parameters lie as `torch.nn.Linear(d, C)` has them in a model's vector: the slopes W row by row [C, d], then the
intercepts b [C]; P = C d + C numbers. Several problems over the same rows (folds, penalties) are solved side by side: theta,
precision and row weights then have leading dimensions.

A family says what a row's log likelihood is. `FAMILIES` has those of one logit, of C logits, of numbers with variance 1, and of hazards
that are constant within C intervals of time, whose outputs share their slopes; counts are those of one interval. Another
one is another function `(z [..., n, C], labels [n, ...]) -> Derivatives`; labels are handed to it as they are, so that they may hold an
exposure or times.

Newton's method with step halving: McCullagh, Nelder, "Generalized Linear Models", 2nd edition, section 2.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.solvers import newton, one_output
from coterie.solvers.newton import MOST_HALVINGS, MOST_STEPS, TOLERANCE
from coterie.solvers.one_output import KNEE, OneFamily

__all__ = [
    "FAMILIES",
    "Derivatives",
    "Family",
    "Mode",
    "Moments",
    "intercepts",
    "mode",
    "moments",
    "newton_step",
    "positions",
    "residual_variance",
    "rows_of_one_output",
    "scores",
    "shares_slopes",
    "weigh",
]

TINY = torch.finfo(torch.float64).tiny
BLOCK = 1 << 22
"""Numbers in the largest table of products of two inputs that is held at once: 32 MiB."""


class Derivatives(NamedTuple):
    """Log likelihood of rows, and its first two derivatives by the outputs z.

    Attributes:
        loglik: [..., n].
        gradient: [..., n, C], d loglik / d z.
        curvature: [..., n, C, C], minus the second derivative, positive semidefinite.
    """

    loglik: Tensor
    gradient: Tensor
    curvature: Tensor


Family = Callable[[Tensor, Tensor], Derivatives]
"""(z [..., n, C], labels [n, ...]) -> derivatives of each row."""


def weigh(rows: Derivatives, weights: Tensor) -> Derivatives:
    """Derivatives times the weight of each row [..., n]; of weight 0 they are 0."""
    return Derivatives(
        rows.loglik * weights,
        rows.gradient * weights[..., None],
        rows.curvature * weights[..., None, None],
    )


def _binary(z: Tensor, labels: Tensor) -> Derivatives:
    """One logit for labels 0 and 1."""
    logits = z[..., 0]
    y = labels.to(z.dtype)
    p = torch.sigmoid(logits)
    loglik = y * logits - F.softplus(logits)
    # sigmoid(-z) and not 1 - p, which is 0 from z = 37 on.
    curvature = p * torch.sigmoid(-logits)
    return Derivatives(loglik, (y - p)[..., None], curvature[..., None, None])


def _squared(z: Tensor, labels: Tensor) -> Derivatives:
    """Numbers with variance 1: minus half the squared error."""
    residual = labels.to(z.dtype) - z[..., 0]
    curvature = torch.ones_like(residual)
    return Derivatives(
        -residual.square() / 2, residual[..., None], curvature[..., None, None]
    )


def _classes(z: Tensor, labels: Tensor) -> Derivatives:
    """C logits for labels 0 to C - 1 (softmax): the gradient is y - p, the curvature diag(p) - p p'."""
    y = F.one_hot(labels.long(), z.shape[-1]).to(z.dtype)
    # Not log(softmax(z)): the probability of a class far behind the others is 0 in floating point.
    log_p = torch.log_softmax(z, -1)
    p = log_p.exp()
    loglik = (y * log_p).sum(-1)
    outer = p[..., :, None] * p[..., None, :]  # p p'
    return Derivatives(loglik, y - p, torch.diag_embed(p) - outer)


def _hazards(z: Tensor, labels: Tensor) -> Derivatives:
    """Log rates of C intervals; labels [n, 2 C] are the events that are usual in each interval for so long a time, and those seen.

    The log likelihood is sum_k seen_k log lam(z_k) - usual_k lam(z_k), lam = exp up to the knee.
    """
    usual, seen = labels.to(z.dtype).chunk(2, -1)
    # lam(z) = slope * beyond: exp(z) times 1 up to the knee, exp(knee) times (1 + z - knee) from there on.
    low = z.clamp(max=KNEE)
    slope, beyond = low.exp(), z - low + 1
    loglik = seen * (low + beyond.log()) - usual * slope * beyond
    gradient = seen / beyond - usual * slope
    # Beyond the knee the rate is straight, and its logarithm bends.
    bend = torch.where(z <= KNEE, usual * slope, seen / beyond.square())
    return Derivatives(loglik.sum(-1), gradient, torch.diag_embed(bend))


FAMILIES: dict[str, Family] = {
    "binary": _binary,
    "classes": _classes,
    "regression": _squared,
    "hazards": _hazards,
    "count": _hazards,
}
"""By the kind of a loss (`coterie.base.loss.Loss.kind`)."""


_OF_ONE_OUTPUT: dict[Family, OneFamily] = {
    _binary: one_output.binary,
    _squared: one_output.squared,
    _hazards: one_output.count,
}
"""The same for models of one output."""


def rows_of_one_output(
    inputs: Tensor,
    labels: Tensor,
    family: Family,
    outputs: int,
    weights: Tensor | None = None,
) -> one_output.Rows | None:
    """The rows as `one_output` has them, where the model has one output and the family is one of `FAMILIES`; else None.

    Args:
        inputs: [n, d].
        labels: [n, ...].
        family: of the model.
        outputs: C.
        weights: of rows [B, n] or [n]; None: 1 each.
    """
    of_one = _OF_ONE_OUTPUT.get(family)
    if of_one is None or outputs != 1:
        return None
    return one_output.Rows(
        inputs.detach().double().numpy(),
        labels.detach().double().numpy(),
        of_one,
        None if weights is None else weights.detach().double().numpy(),
        BLOCK,
    )


def _problems(parameters: Tensor, weights: Tensor | None) -> torch.Size:
    """The leading dimensions of problems with parameters [..., P] and weights of rows [..., n] or [n]."""
    if weights is None:
        return parameters.shape[:-1]
    # That of torch imports a quarter of a second's worth of modules.
    shape = np.broadcast_shapes(parameters.shape[:-1], weights.shape[:-1])
    return torch.Size(shape)


def _flat(weights: Tensor | None, leading: torch.Size) -> Tensor | None:
    """Weights of rows [..., n] for problems with these leading dimensions, which become one [B, n]."""
    if weights is None:
        return None
    return weights.expand(*leading, -1).reshape(-1, weights.shape[-1])


def _unflatten(sums: newton.Sums, leading: torch.Size) -> Moments:
    """The sums [B, ...] of problems with these leading dimensions [..., ...]."""
    return Moments(
        *(torch.from_numpy(part).view((*leading, *part.shape[1:])) for part in sums)
    )


def shares_slopes(family: Family) -> bool:
    """Return True if all outputs of a family have the same slopes: theta is then d slopes and C intercepts."""
    return family is _hazards


class Moments(NamedTuple):
    """Sums over rows at a theta: what a client tells of its rows.

    Attributes:
        loglik: [...].
        gradient: [..., P], uphill.
        curvature: [..., P, P], minus the second derivative, positive semidefinite.
    """

    loglik: Tensor
    gradient: Tensor
    curvature: Tensor


class Mode(NamedTuple):
    """The maximum of a penalised log likelihood.

    Attributes:
        theta: [..., P].
        rows: moments of the rows alone, without the penalty, at theta.
        curvature: [..., P, P], with the penalty.
        converged: bool [...]: whether the steps ended. Classes that a plane separates have no maximum without a penalty:
            theta then grows until rounding ends it.
        looks: how often all rows were looked at.
    """

    theta: Tensor
    rows: Moments
    curvature: Tensor
    converged: Tensor
    looks: int


def positions(columns: int, outputs: int = 1, *, shared: bool = False) -> Tensor:
    """The place in theta of each number of the table [C, d + 1] of slopes and intercepts, row by row: int64 [C (d + 1)].

    Args:
        columns: d.
        outputs: C.
        shared: whether all outputs have the same slopes, as intervals of time have: theta is then d slopes and C intercepts.

    >>> positions(2, 2).tolist()  # slopes 0 to 3, intercepts 4 and 5
    [0, 1, 4, 2, 3, 5]
    >>> positions(2, 2, shared=True).tolist()
    [0, 1, 2, 0, 1, 3]
    """
    rows = outputs
    if shared:
        rows = 1
    slopes = torch.arange(rows * columns).view(rows, columns).expand(outputs, columns)
    intercepts = rows * columns + torch.arange(outputs)[:, None]
    return torch.cat([slopes, intercepts], 1).reshape(-1)


def scores(
    theta: Tensor, inputs: Tensor, outputs: int = 1, *, shared: bool = False
) -> Tensor:
    """The outputs z [..., n, C] of the linear layers theta [..., P] for inputs [n, d]."""
    table = _table(theta, inputs.shape[1], outputs, shared)
    slopes, intercepts = table[..., :-1], table[..., -1]
    z: Tensor = inputs @ slopes.transpose(-1, -2) + intercepts[..., None, :]
    return z


def _table(theta: Tensor, columns: int, outputs: int, shared: bool) -> Tensor:
    """The slopes and the intercept of each output [..., C, d + 1]."""
    if outputs == 1:
        return theta[..., None, :]
    place = positions(columns, outputs, shared=shared)
    table: Tensor = theta[..., place].unflatten(-1, (outputs, columns + 1))
    return table


def moments(
    theta: Tensor,
    inputs: Tensor,
    labels: Tensor,
    family: Family,
    outputs: int = 1,
    *,
    weights: Tensor | None = None,
    shared: bool = False,
) -> Moments:
    """Log likelihood, gradient and curvature of rows at theta, summed over rows, in float64.

    Args:
        theta: [..., P].
        inputs: [n, d].
        labels: [n, ...], as the family reads them.
        family: see `FAMILIES`.
        outputs: C.
        weights: of rows [..., n] or [n], 0 for a row that is left out; None: 1 each.
        shared: see `positions`; as the family says.

    >>> rows = torch.tensor([[1.0], [3.0]])
    >>> m = moments(torch.zeros(2), rows, torch.tensor([0.0, 1.0]), FAMILIES["regression"])
    >>> m.gradient.tolist(), m.curvature.tolist()
    ([3.0, 1.0], [[10.0, 4.0], [4.0, 2.0]])
    """
    inputs, size = inputs.double(), theta.shape[-1]
    leading = _problems(theta, weights)
    theta = theta.double().expand(*leading, size)
    of_one = rows_of_one_output(
        inputs, labels, family, outputs, _flat(weights, leading)
    )
    if of_one is not None:
        at = theta.detach().reshape(-1, size).numpy()
        with np.errstate(all="ignore"):
            return _unflatten(of_one.look(at), leading)
    shared = shared or shares_slopes(family)
    n, columns = inputs.shape
    table = _table(theta, columns, outputs, shared)

    at_once = max(BLOCK // (columns + 1) ** 2, 1)
    sums: list[Moments] = []
    for low in range(0, n, at_once):
        part = slice(low, low + at_once)
        with_one = F.pad(inputs[part], (0, 1), value=1.0)
        rows = family(with_one @ table.transpose(-1, -2), labels[part])
        if weights is not None:
            rows = weigh(rows, weights[..., part].double())
        # [n, (d + 1)^2]: each row's products, computed once for all problems.
        products = (with_one[:, :, None] * with_one[:, None, :]).flatten(1)
        by_pair = rows.curvature.flatten(-2).transpose(-1, -2)
        sums.append(
            Moments(
                rows.loglik.sum(-1),
                (rows.gradient.transpose(-1, -2) @ with_one).flatten(-2),
                by_pair @ products,
            )
        )
    loglik, gradient, curvature = sums[0]
    for more in sums[1:]:
        loglik = loglik + more.loglik
        gradient = gradient + more.gradient
        curvature = curvature + more.curvature

    # From blocks [C, C] of tables [d + 1, d + 1] to one table over (output, input).
    blocks = curvature.unflatten(-1, (columns + 1, columns + 1))
    blocks = blocks.unflatten(-3, (outputs, outputs))
    full = blocks.transpose(-3, -2).flatten(-4, -3).flatten(-2)
    if outputs == 1:
        return Moments(loglik, gradient, full)
    place = positions(columns, outputs, shared=shared)
    in_theta = theta.new_zeros(*leading, size).index_add(-1, place, gradient)
    by_rows = theta.new_zeros(*leading, size, len(place)).index_add(-2, place, full)
    square = theta.new_zeros(*leading, size, size).index_add(-1, place, by_rows)
    return Moments(loglik, in_theta, square)


def mode(
    inputs: Tensor,
    labels: Tensor,
    family: Family,
    precision: Tensor,
    outputs: int = 1,
    *,
    centre: Tensor | None = None,
    weights: Tensor | None = None,
    scale: float = 1.0,
    shared: bool = False,
) -> Mode:
    """The theta that maximises the penalised log likelihood; its gradient is 0 to rounding, so it is exact to 1e-8.

    Args:
        inputs: [n, d].
        labels: [n, ...].
        family: see `FAMILIES`.
        precision: of the penalty [..., P], at least 0; infinite is not allowed.
        outputs: C.
        centre: of the penalty [..., P]; None: 0.
        weights: of rows [..., n] or [n]; None: 1 each.
        scale: number > 0 by which the log likelihood is multiplied, as 1 / variance.
        shared: see `positions`.

    Returns:
        The mode. Its `rows` and `curvature` are multiplied by `scale`, too. Without a penalty and with columns that depend on each
        other it is the shortest theta.

    >>> rows, labels = torch.tensor([[-1.0], [1.0]]), torch.tensor([-1.0, 1.0])
    >>> alone = mode(rows, labels, FAMILIES["regression"], torch.tensor([2.0, 0.0]))
    >>> [round(v, 9) for v in alone.theta.tolist()]  # x'x / (x'x + 2) and the mean
    [0.5, 0.0]
    """
    precision = precision.double()
    inputs = inputs.double()
    leading = _problems(precision, weights)
    row_weights = weights
    if scale != 1:
        if row_weights is None:
            row_weights = torch.ones(len(inputs))
        row_weights = scale * row_weights.double()
    of_one = rows_of_one_output(
        inputs, labels, family, outputs, _flat(row_weights, leading)
    )
    size = precision.shape[-1]
    shape = (*leading, size)

    def look(at: newton.Array) -> newton.Sums:
        if of_one is not None:
            return of_one.look(at)
        theta = torch.from_numpy(at).view(shape)
        found = moments(
            theta, inputs, labels, family, outputs, weights=row_weights, shared=shared
        )
        return newton.Sums(
            found.loglik.reshape(-1).numpy(),
            found.gradient.reshape(-1, size).numpy(),
            found.curvature.reshape(-1, size, size).numpy(),
        )

    about = torch.zeros_like(precision)
    if centre is not None:
        about = centre.double()
    penalties = precision.expand(shape).reshape(-1, size).numpy()
    centres = about.expand(shape).reshape(-1, size).numpy()
    with np.errstate(all="ignore"):
        solved = newton.climb(look, penalties, centres)
    rows = _unflatten(solved.rows, leading)
    return Mode(
        torch.from_numpy(solved.theta).view(shape),
        rows,
        rows.curvature + torch.diag_embed(precision),
        torch.from_numpy(solved.converged).view(tuple(leading)),
        solved.looks,
    )


def intercepts(
    offset: Tensor,
    labels: Tensor,
    family: Family,
    ridge: float,
    start: Tensor,
    *,
    weights: Tensor | None = None,
) -> Tensor:
    """The intercepts a [C] that maximise the log likelihood of rows with outputs offset + a, minus ridge / 2 |a|^2.

    Args:
        offset: what the slopes give [n, C].
        labels: [n, ...].
        family: see `FAMILIES`.
        ridge: >= 0.
        start: where the steps begin [C].
        weights: of rows [n]; None: 1 each.

    >>> intercepts(torch.zeros(4, 1), torch.tensor([1, 1, 1, 0]), FAMILIES["binary"], 0.0, torch.zeros(1)).exp()
    tensor([3.0000], dtype=torch.float64)
    """
    offset, a = offset.double(), start.double()

    def look(at: Tensor) -> tuple[Derivatives, Tensor]:
        rows = family(offset + at, labels)
        if weights is not None:
            rows = weigh(rows, weights.double())
        return rows, rows.loglik.sum() - ridge * at.square().sum() / 2

    penalty = ridge * torch.eye(len(a), dtype=torch.float64)
    rows, value = look(a)
    for _ in range(MOST_STEPS):
        gradient = rows.gradient.sum(0) - ridge * a
        step = newton_step(rows.curvature.sum(0) + penalty, gradient)
        if float(step.abs().max()) <= TOLERANCE:
            return a + step
        for _ in range(MOST_HALVINGS):
            new_rows, new_value = look(a + step)
            if new_value >= value - 1e-12 * (1 + value.abs()):
                break
            step = step / 2
        a, rows, value = a + step, new_rows, new_value
    return a


def residual_variance(fit: Mode, rows: float) -> Tensor:
    """The residual variance [...] of a fit of the family "regression", over its rows minus its degrees of freedom.

    These are the trace of (H + penalty)^-1 H (Hastie, Tibshirani, Friedman, "The Elements of Statistical Learning", section 3.4.1).

    Args:
        fit: a mode with `scale` 1.
        rows: number n of rows (of weights that sum to it).
    """
    used = torch.linalg.solve(fit.curvature, fit.rows.curvature)
    degrees = used.diagonal(dim1=-2, dim2=-1).sum(-1)
    variance: Tensor = -2 * fit.rows.loglik / (rows - degrees)
    return variance


def newton_step(curvature: Tensor, gradient: Tensor) -> Tensor:
    """curvature^-1 gradient [..., P]; the shortest solution, in units of the parameters' errors, where the curvature is singular."""
    if gradient.shape[-1] == 1:
        # One parameter, as the intercept of a client: a division, in a tenth of the time.
        slope = curvature[..., 0]
        return torch.where(slope > 0, gradient / slope.clamp(min=TINY), 0.0)
    size = gradient.shape[-1]
    steps = newton.step(
        curvature.reshape(-1, size, size).numpy(), gradient.reshape(-1, size).numpy()
    )
    return torch.from_numpy(steps).view(gradient.shape)
