r"""Partial pooling: the slopes of several linear models under a prior that is learnt from them, by empirical Bayes.

    slopes     b_k ~ N(mu, diag(t) / u_k),    mu ~ N(0, S2)
    intercepts a_k ~ N(m0, q0)

The standard deviation of a slope between clients has a half-Cauchy(.2) prior; u_k is the weight of a client as in a t distribution
with 4 degrees of freedom, so that one unlike client does not widen t for all. m clients, D slopes, C intercepts, P = D + C parameters
in the order of a linear layer's (`coterie.solvers.glm`).

What is known of a client's rows is a quadratic around a point: a gradient and a curvature. The steps are those of the evidence (REML):
MacKay, "Bayesian Interpolation", Neural Computation 1992; Harville, JASA 1977; weights: Lange, Little, Taylor, JASA 1989; quadratics
as in dPQL: Luo et al., "dPQL: a lossless distributed algorithm for generalized linear mixed model", JAMIA 2022.

Sums over clients are taken in the order of their values, so that the order of clients changes no bit. Several federations of as many
clients are solved side by side: all shapes may have leading dimensions.

Steps are on NumPy arrays, since a call of torch costs three times as much and there are some fifty to a step; the functions that others
call take and return tensors. Matrices are inverted by torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.solvers.glm import FAMILIES, Family, Mode, mode, residual_variance

__all__ = [
    "OWN_RIDGE",
    "Held",
    "Pooled",
    "Prior",
    "Quadratics",
    "Sums",
    "add_up",
    "distances",
    "draw_to",
    "modes",
    "noise",
    "own_precision",
    "pool",
    "robust_weights",
    "shares",
    "start",
    "sums_of",
    "update",
]

STEPS = 60
"""Of one pass. With clients that are alike 12 steps leave an error of .005 in loss, 20 of .003."""
OWN_RIDGE, OWN_INTERCEPT_RIDGE = 4.0, 0.001
"""Penalties of a client's own model, from which the steps start."""
LONGEST_STEP = 3.0
"""Norm of a Newton step of a client."""
MOST_MU_STEP = 0.5
LEAST_T = 1e-4
PSEUDO_CLIENTS = 5
"""Clients of the mean variance that are added to each column."""
CAUCHY = 0.04
"""Square of the scale .2 of the half-Cauchy prior."""
FREEDOM = 4
LEAST_WEIGHT, MOST_WEIGHT = 0.02, 2.0
LEAST_NOISE = 1e-6
"""Residual variance below which rows count as fitted without error; labels have variance 1 over all clients."""
LEAST_S2, MOST_S2 = 0.001, 4.0
VARIANCES = torch.logspace(-4, 1, 11, dtype=torch.float64)
"""Of a client's slopes about given ones, among which `draw_to` chooses: from as good as equal to as good as free."""


Array = NDArray[np.float64]
P = ParamSpec("P")
R = TypeVar("R")


def _arrays(value: Any) -> Any:
    """A tensor as an array; in a named tuple each; anything else as it is."""
    if isinstance(value, Tensor):
        return value.detach().numpy()
    if isinstance(value, tuple):
        return type(value)(*map(_arrays, value))
    return value


def _tensors(value: Any) -> Any:
    """An array or a number as a tensor; in a tuple each."""
    if isinstance(value, tuple):
        parts = [_tensors(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return torch.from_numpy(np.ascontiguousarray(value)).reshape(np.shape(value))


def _for_tensors(steps: Callable[P, R]) -> Callable[P, R]:
    """The function for tensors of one that is on arrays."""

    @functools.wraps(steps)
    def on_tensors(*args: P.args, **kwargs: P.kwargs) -> R:
        arrays = {name: _arrays(value) for name, value in kwargs.items()}
        with np.errstate(all="ignore"):
            told = cast("Any", steps)(*map(_arrays, args), **arrays)
        return cast("R", _tensors(told))

    return on_tensors


class Quadratics(NamedTuple):
    """The log likelihood of each client's rows around a point.

    Attributes:
        about: the point [m, P].
        gradient: there, uphill [m, P].
        curvature: minus the second derivative there [m, P, P].
    """

    about: Tensor
    gradient: Tensor
    curvature: Tensor


class Prior(NamedTuple):
    """What all clients share.

    Attributes:
        mu: mean of the slopes [D].
        t: their variance between clients [D].
        m0: mean of the intercepts [C].
        q0: their variance, a scalar.
        s2: variance of mu around 0, a scalar.
    """

    mu: Tensor
    t: Tensor
    m0: Tensor
    q0: Tensor
    s2: Tensor

    def centre(self) -> Tensor:
        """The parameters [P] of a client of which nothing is known."""
        return torch.cat([self.mu, self.m0], -1)

    def precision(self) -> Tensor:
        """The precision [P] of the parameters of a client with weight 1."""
        return torch.cat([1 / self.t, (1 / self.q0).expand(self.m0.shape)], -1)


class Held(NamedTuple):
    """Values that stay as they are given; None is learnt. For tests and limits: `t` [D], `u` [m], `q0` and `s2` scalars."""

    t: Tensor | None = None
    u: Tensor | None = None
    q0: Tensor | None = None
    s2: Tensor | None = None


NOTHING_HELD = Held()


class Sums(NamedTuple):
    """What the server needs of the clients: of each client [m, ...], or summed over them [...]; 5 D + C + 2 numbers.

    Attributes:
        offset: u (b - mu) [D].
        square: u (b - mu)^2 [D].
        shrunk: r = u V / t [D], the share of a slope that comes from the others.
        kept: u (1 - r) [D].
        kept_square: u (1 - r)^2 [D].
        weight: u [1].
        intercept: a [C].
        intercept_square: a^2 + V0, summed over the C intercepts [1].
    """

    offset: Tensor
    square: Tensor
    shrunk: Tensor
    kept: Tensor
    kept_square: Tensor
    weight: Tensor
    intercept: Tensor
    intercept_square: Tensor

    @classmethod
    def of_terms(cls, terms: Tensor, slopes: int) -> Sums:
        """Add up what each of m clients told, its terms one behind the other [m, 5 D + C + 2]."""
        return cast("Sums", _tensors(_summed(terms.numpy(), slopes)))


def _summed(terms: Any, slopes: int) -> Sums:
    """The sums over clients of their terms [m, 5 D + C + 2], in the order of the values."""
    total: Any = np.sort(terms, axis=-2).sum(-2)
    intercepts = terms.shape[-1] - 5 * slopes - 2
    widths = (*[slopes] * 5, 1, intercepts, 1)
    ends = np.cumsum(widths)
    pieces: Any = np.split(total, ends[:-1], axis=-1)
    return Sums(*pieces)


class Pooled(NamedTuple):
    """The result of the steps.

    Attributes:
        theta: mode of each client [m, P].
        variance: diagonal of its inverse curvature [m, P].
        u: weight of each client [m].
        prior: what they share.
    """

    theta: Tensor
    variance: Tensor
    u: Tensor
    prior: Prior


def own_precision(slopes: int, intercepts: int) -> Tensor:
    """The penalty [P] of a client's own model.

    >>> own_precision(2, 1).tolist()
    [4.0, 4.0, 0.001]
    """
    of_slopes = torch.full((slopes,), OWN_RIDGE, dtype=torch.float64)
    of_intercepts = torch.full((intercepts,), OWN_INTERCEPT_RIDGE, dtype=torch.float64)
    return torch.cat([of_slopes, of_intercepts])


def noise(own: Mode, rows: float) -> float:
    """The variance by which the log likelihood of a regression is divided, from a client's own model of `rows` rows."""
    return max(float(residual_variance(own, rows)), LEAST_NOISE)


def start(mean: Tensor, slopes: int) -> Prior:
    """The prior from which the steps start, from the mean [P] of the clients' own models; the start decides among optima."""
    ones = mean.new_ones(mean.shape[:-1])
    mu, m0 = mean[..., :slopes], mean[..., slopes:]
    return Prior(mu, torch.full_like(mu, 0.1), m0, ones, ones)


def draw_to(
    slopes: Tensor,
    inputs: Tensor,
    labels: Tensor,
    family: Family,
    outputs: int,
    weights: Tensor | None = None,
    known: Tensor | None = None,
) -> tuple[Tensor, float]:
    """The parameters [P] of one client whose slopes are drawn to given ones, as far as its own rows say, and by which variance.

    The slopes are b ~ N(slopes, t). Of `VARIANCES` that t is taken under which the rows are most probable, by Laplace's approximation
    (MacKay, "Bayesian Interpolation", Neural Computation 1992). It covers how clients differ, and the error or noise of the slopes.

    Args:
        slopes: to which the client's are drawn [D].
        inputs: [n, d].
        labels: [n, ...], as the family reads them.
        family: see `glm.FAMILIES`.
        outputs: C.
        weights: of rows [n]; None: 1 each.
        known: variance of noise in the given slopes [D], which is added to t; None: none is known.

    >>> from coterie.solvers.glm import FAMILIES
    >>> x = torch.linspace(-1, 1, 200, dtype=torch.float64)[:, None]
    >>> y = 0.7 * x[:, 0] + torch.cos(50 * x[:, 0])
    >>> near, far = (draw_to(torch.tensor([b]), x, y, FAMILIES["regression"], 1) for b in (0.7, 5.0))
    >>> near[1] < 0.001, far[1] > 5
    (True, True)
    """
    own = own_precision(len(slopes), outputs)
    scale = 1.0
    if family is FAMILIES["regression"]:
        fit = mode(inputs, labels, family, own, outputs, weights=weights)
        scale = 1 / noise(fit, len(labels))

    precision = own.expand(len(VARIANCES), -1).clone()
    variances = VARIANCES[:, None]
    if known is not None:
        variances = variances + known
    precision[:, : len(slopes)] = 1 / variances
    centre = torch.cat([slopes.double(), torch.zeros(outputs, dtype=torch.float64)])
    found = mode(
        inputs,
        labels,
        family,
        precision,
        outputs,
        centre=centre,
        weights=weights,
        scale=scale,
    )

    # log p(rows, theta) at the mode, plus the logarithm of the volume around it.
    off = found.theta - centre
    joint = found.rows.loglik - (precision * off.square()).sum(-1) / 2
    volume = precision.log().sum(-1) - torch.logdet(found.curvature)
    best = int((joint + volume / 2).argmax())
    return found.theta[best], float(VARIANCES[best])


@_for_tensors
def modes(
    quadratics: Quadratics, theta: Tensor, prior: Prior, u: Tensor
) -> tuple[Tensor, Tensor]:
    """One Newton step of each client towards its mode under the prior, of norm `LONGEST_STEP` at most.

    Args:
        quadratics: of the clients.
        theta: where they are [m, P].
        prior: the prior.
        u: their weights [m].

    Returns:
        Where they are then [m, P], and the diagonals of the inverse curvatures [m, P].
    """
    return _modes(quadratics, theta, prior, u)


def _modes(quadratics: Any, theta: Any, prior: Any, u: Any) -> tuple[Any, Any]:
    slopes, size = prior.mu.shape[-1], theta.shape[-1]
    precision = np.empty_like(theta)
    precision[..., :slopes] = u[..., None] / prior.t[..., None, :]
    precision[..., slopes:] = (1 / prior.q0)[..., None, None]
    centre = np.concatenate([prior.mu, prior.m0], -1)

    curvature = np.array(quadratics.curvature, order="C")
    # Every (P + 1)-th number of a matrix lies on its diagonal.
    curvature.reshape(*theta.shape[:-1], -1)[..., :: size + 1] += precision
    inverse = torch.linalg.inv(torch.from_numpy(curvature)).numpy()
    moved = (quadratics.curvature @ (theta - quadratics.about)[..., None])[..., 0]
    pull = precision * (theta - centre[..., None, :])
    uphill = quadratics.gradient - moved - pull
    step = (inverse @ uphill[..., None])[..., 0]
    length = np.sqrt((step * step).sum(-1, keepdims=True))
    # A step of length 0 is left as it is.
    step = step * (LONGEST_STEP / np.maximum(length, LONGEST_STEP))
    return theta + step, inverse.diagonal(axis1=-2, axis2=-1)


@_for_tensors
def sums_of(theta: Tensor, variance: Tensor, prior: Prior, u: Tensor) -> Sums:
    """What each of m clients adds to the sums, [m, ...]; arguments as for `modes`, with the variances that it returned."""
    return _sums_of(theta, variance, prior, u)


def _sums_of(theta: Any, variance: Any, prior: Any, u: Any) -> Sums:
    slopes = prior.mu.shape[-1]
    weight = u[..., None]
    off = theta[..., :slopes] - prior.mu[..., None, :]
    pulled = weight * off
    shrunk = weight * variance[..., :slopes] / prior.t[..., None, :]
    left = 1 - shrunk
    intercept = theta[..., slopes:]
    second_moment = intercept * intercept + variance[..., slopes:]
    return Sums(
        pulled,
        pulled * off,
        shrunk,
        weight * np.maximum(left, 0),
        weight * (left * left),
        weight,
        intercept,
        second_moment.sum(-1, keepdims=True),
    )


def add_up(values: Tensor, dim: int = 0) -> Tensor:
    """The sum of values over clients, which lie along `dim`, in the order of the values: no bit depends on the order of clients."""
    return values.sort(dim).values.sum(dim)


@_for_tensors
def update(old: Prior, sums: Sums, clients: int, held: Held = NOTHING_HELD) -> Prior:
    """The prior after one step, from the sums over m clients under the old one. `robust_weights` judge by its mu and the old t."""
    return _update(old, sums, clients, held)


def _update(old: Any, sums: Any, clients: int, held: Any) -> Prior:
    slopes, intercepts = old.mu.shape[-1], old.m0.shape[-1]
    s2 = old.s2[..., None]

    # The mean: a Newton step of the evidence, in which what a client took from the mean does not count.
    information = sums.kept / old.t + 1 / s2
    step = (sums.offset / old.t - old.mu / s2) / information
    step = _clip(step, -MOST_MU_STEP, MOST_MU_STEP)
    mu = old.mu + step
    w = 1 / information

    # The variance between clients: its fixed point, R of m degrees of freedom being used up.
    used = sums.shrunk + sums.kept_square * w / old.t
    used = _clip(used, 0, clients - 0.001)
    # sum u (b - mu)^2 around the new mu, from the sums around the old one.
    square = sums.square - 2 * step * sums.offset + step * step * sums.weight
    square = np.maximum(square, 0)
    free = clients - used
    common = square.sum(-1, keepdims=True) / free.sum(-1, keepdims=True)
    n = free + PSEUDO_CLIENTS
    z = square + PSEUDO_CLIENTS * common
    # Positive root of (n + 2) t^2 + (.04 n - z) t - .04 z = 0: the mode under a half-Cauchy(.2) prior of sqrt(t).
    linear = CAUCHY * n - z
    root = np.sqrt(linear * linear + 4 * (n + 2) * CAUCHY * z)
    t = np.maximum((root - linear) / (2 * (n + 2)), LEAST_T)

    new_s2 = ((mu * mu + w).sum(-1) + 1) / (slopes + 2)
    new_s2 = _clip(new_s2, LEAST_S2, MOST_S2)
    m0 = sums.intercept / clients
    spread = sums.intercept_square[..., 0] - clients * (m0 * m0).sum(-1)
    q0 = (np.maximum(spread, 0) + 2) / (clients * intercepts + 2)
    return _hold(Prior(mu, t, m0, q0, new_s2), held)


def _clip(values: Array, least: float, most: float) -> Any:
    """The values within limits, in a third of the time of np.clip."""
    return np.minimum(np.maximum(values, least), most)


def _hold(prior: Prior, held: Held) -> Prior:
    """The prior with the values that are held."""
    if held is NOTHING_HELD:
        return prior
    kept = {
        name: value
        for name, value in held._asdict().items()
        if name != "u" and value is not None
    }
    return prior._replace(**kept)


@_for_tensors
def robust_weights(theta: Tensor, variance: Tensor, mu: Tensor, t: Tensor) -> Tensor:
    """The weight u [m] of each client: small where its slopes are far from the mean mu [D], as t [D] measures it."""
    return cast("Tensor", _robust_weights(theta, variance, mu, t))


def _robust_weights(theta: Any, variance: Any, mu: Any, t: Any) -> Any:
    slopes = mu.shape[-1]
    off = theta[..., :slopes] - mu[..., None, :]
    square = off * off + variance[..., :slopes]
    distance = (square / t[..., None, :]).sum(-1)
    return _clip((FREEDOM + slopes) / (FREEDOM + distance), LEAST_WEIGHT, MOST_WEIGHT)


@_for_tensors
def pool(
    quadratics: Quadratics,
    own: Tensor,
    slopes: int,
    steps: int = STEPS,
    held: Held = NOTHING_HELD,
) -> Pooled:
    """Learn the prior of clients and the mode of each, from a quadratic of each.

    Args:
        quadratics: of m clients.
        own: their own models [m, P], each fitted with the penalty `own_precision`, from which the steps start.
        slopes: D; the other P - D parameters are intercepts.
        steps: number of steps.
        held: what is not learnt.
    """
    return _pool(quadratics, own, slopes, steps, held)


def _pool(quadratics: Any, own: Any, slopes: int, steps: int, held: Any) -> Pooled:
    clients = own.shape[-2]
    mean = np.sort(own, axis=-2).sum(-2) / clients
    prior: Any = _hold(_arrays(start(torch.from_numpy(mean), slopes)), held)
    u = held.u
    if u is None:
        u = np.ones(own.shape[:-1])
    theta = own
    for _ in range(steps):
        theta, variance = _modes(quadratics, theta, prior, u)
        sums = _sums_of(theta, variance, prior, u)
        summed = _summed(np.concatenate(sums, -1), slopes)
        new: Any = _update(prior, summed, clients, held)
        if held.u is None:
            u = _robust_weights(theta, variance, new.mu, prior.t)
        prior = new
    theta, variance = _modes(quadratics, theta, prior, u)
    return Pooled(theta, variance, u, prior)


def shares(pooled: Pooled) -> Tensor:
    """The share [m, m] of client k's own slopes in the model of client i, in row i; each row sums to 1.

    It is the derivative of i's slopes by those that k's rows alone call for, in the linear case, averaged over the columns.
    """
    slopes = len(pooled.prior.mu)
    u = pooled.u[:, None]
    shrunk = (u * pooled.variance[:, :slopes] / pooled.prior.t).clamp(max=1)  # [m, D]
    terms = u * (1 - shrunk) / pooled.prior.t
    information = add_up(terms) + 1 / pooled.prior.s2
    through_mean = shrunk @ (terms / information).T
    own = torch.diag((1 - shrunk).mean(1))
    weights = own + through_mean / slopes
    total = weights.sum(1, keepdim=True)
    return weights / total


def distances(
    own: Tensor, curvature: Tensor, slopes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """How far the slopes of two clients' own models are apart, measured by their errors.

    T = (b_i - b_k)' (C_i + C_k)^-1 (b_i - b_k), C = H^-1 F H^-1, with the curvature F of the rows and H that of the penalised fit.
    Where the clients do not differ it is about chi-square with the returned degrees of freedom.

    Args:
        own: own models [m, P], fitted with `own_precision`.
        curvature: of the rows there [m, P, P].
        slopes: D.

    Returns:
        T [m, m]; its degrees of freedom, int64 [m, m], fewer than D where several classes share one or a column has one value at both
        clients; and the variances [m, P] of the own models' parameters (diagonals of C).
    """
    clients, size = own.shape
    penalty = torch.diag(own_precision(slopes, size - slopes))
    inverse = torch.linalg.inv(curvature + penalty)
    covariance = inverse @ curvature @ inverse
    of_slopes = covariance[:, :slopes, :slopes]
    distance = own.new_zeros(clients, clients)
    degrees = torch.zeros(clients, clients, dtype=torch.int64)
    for i in range(clients - 1):
        apart = own[i, :slopes] - own[i + 1 :, :slopes]
        both = of_slopes[i] + of_slopes[i + 1 :]
        distance[i, i + 1 :], degrees[i, i + 1 :] = _lengths(apart, both)
    distance, degrees = distance + distance.T, degrees + degrees.T
    return distance, degrees, covariance.diagonal(dim1=-2, dim2=-1)


def _lengths(apart: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """The squared lengths [n] of vectors [n, D] in units of their covariances [n, D, D], and the ranks of these."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    singular = (failed != 0) | (pivots.amin(-1) < 1e-4 * pivots.amax(-1))
    along = torch.linalg.solve_triangular(factor, apart[..., None], upper=False)
    length = along.square().sum((-2, -1))
    rank = torch.full((len(apart),), apart.shape[1], dtype=torch.int64)
    if bool(singular.any()):
        # By eigenvectors, which take several times as long.
        sizes, directions = torch.linalg.eigh(covariance[singular])
        counted = sizes > 1e-9 * sizes[:, -1:]
        turned = directions.transpose(-1, -2) @ apart[singular][..., None]
        squares = turned[..., 0].square() / torch.where(counted, sizes, 1)
        length[singular] = torch.where(counted, squares, 0).sum(1)
        rank[singular] = counted.sum(1)
    return length, rank
