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
"""

from __future__ import annotations

from typing import NamedTuple

import torch
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

    def precision(self, u: Tensor) -> Tensor:
        """The precision [m, P] of the parameters of clients with these weights [m]."""
        slopes = u[..., None] / self.t[..., None, :]
        intercepts = (1 / self.q0)[..., None, None]
        intercepts = intercepts.expand(*u.shape, self.m0.shape[-1])
        return torch.cat([slopes, intercepts], -1)


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
        intercepts = terms.shape[-1] - 5 * slopes - 2
        summed = add_up(terms, -2)
        return cls(*summed.split([slopes] * 5 + [1, intercepts, 1], -1))


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
    precision = prior.precision(u)
    inverse = torch.linalg.inv(quadratics.curvature + torch.diag_embed(precision))
    moved = (quadratics.curvature @ (theta - quadratics.about)[..., None])[..., 0]
    pull = precision * (theta - prior.centre()[..., None, :])
    uphill = quadratics.gradient - moved - pull
    step = (inverse @ uphill[..., None])[..., 0]
    length = torch.linalg.vector_norm(step, dim=-1, keepdim=True)
    # A step of length 0 is left as it is.
    step = step * (LONGEST_STEP / length.clamp(min=LONGEST_STEP))
    return theta + step, inverse.diagonal(dim1=-2, dim2=-1)


def sums_of(theta: Tensor, variance: Tensor, prior: Prior, u: Tensor) -> Sums:
    """What each of m clients adds to the sums, [m, ...]; arguments as for `modes`, with the variances that it returned."""
    slopes = prior.mu.shape[-1]
    weight = u[..., None]
    off = theta[..., :slopes] - prior.mu[..., None, :]
    shrunk = weight * variance[..., :slopes] / prior.t[..., None, :]
    left = 1 - shrunk.clamp(max=1)
    intercept = theta[..., slopes:]
    second_moment = intercept.square() + variance[..., slopes:]
    return Sums(
        weight * off,
        weight * off.square(),
        shrunk,
        weight * left,
        weight * (1 - shrunk).square(),
        weight,
        intercept,
        second_moment.sum(-1, keepdim=True),
    )


def add_up(values: Tensor, dim: int = 0) -> Tensor:
    """The sum of values over clients, which lie along `dim`, in the order of the values: no bit depends on the order of clients."""
    return values.sort(dim).values.sum(dim)


def update(old: Prior, sums: Sums, clients: int, held: Held = NOTHING_HELD) -> Prior:
    """The prior after one step, from the sums over m clients under the old one. `robust_weights` judge by its mu and the old t."""
    slopes, intercepts = old.mu.shape[-1], old.m0.shape[-1]
    s2 = old.s2[..., None]

    # The mean: a Newton step of the evidence, in which what a client took from the mean does not count.
    information = sums.kept / old.t + 1 / s2
    step = (sums.offset / old.t - old.mu / s2) / information
    step = step.clamp(-MOST_MU_STEP, MOST_MU_STEP)
    mu = old.mu + step
    w = 1 / information

    # The variance between clients: its fixed point, R of m degrees of freedom being used up.
    used = sums.shrunk + sums.kept_square * w / old.t
    used = used.clamp(0, clients - 0.001)
    # sum u (b - mu)^2 around the new mu, from the sums around the old one.
    square = sums.square - 2 * step * sums.offset + step.square() * sums.weight
    square = square.clamp(min=0)
    common = square.sum(-1, keepdim=True) / (clients - used).sum(-1, keepdim=True)
    n = clients - used + PSEUDO_CLIENTS
    z = square + PSEUDO_CLIENTS * common
    # Positive root of (n + 2) t^2 + (.04 n - z) t - .04 z = 0: the mode under a half-Cauchy(.2) prior of sqrt(t).
    linear = CAUCHY * n - z
    root = (linear.square() + 4 * (n + 2) * CAUCHY * z).sqrt()
    t = ((root - linear) / (2 * (n + 2))).clamp(min=LEAST_T)

    new_s2 = ((mu.square() + w).sum(-1) + 1) / (slopes + 2)
    new_s2 = new_s2.clamp(LEAST_S2, MOST_S2)
    m0 = sums.intercept / clients
    spread = sums.intercept_square[..., 0] - clients * m0.square().sum(-1)
    q0 = (spread.clamp(min=0) + 2) / (clients * intercepts + 2)
    return _hold(Prior(mu, t, m0, q0, new_s2), held)


def _hold(prior: Prior, held: Held) -> Prior:
    """The prior with the values that are held."""
    kept = {
        name: value
        for name, value in held._asdict().items()
        if name != "u" and value is not None
    }
    return prior._replace(**kept)


def robust_weights(theta: Tensor, variance: Tensor, mu: Tensor, t: Tensor) -> Tensor:
    """The weight u [m] of each client: small where its slopes are far from the mean mu [D], as t [D] measures it."""
    slopes = mu.shape[-1]
    off = theta[..., :slopes] - mu[..., None, :]
    square = off.square() + variance[..., :slopes]
    distance = (square / t[..., None, :]).sum(-1)
    u = (FREEDOM + slopes) / (FREEDOM + distance)
    return u.clamp(LEAST_WEIGHT, MOST_WEIGHT)


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
    clients = own.shape[-2]
    prior = _hold(start(add_up(own, -2) / clients, slopes), held)
    u = held.u
    if u is None:
        u = own.new_ones(own.shape[:-1])
    theta = own
    for _ in range(steps):
        theta, variance = modes(quadratics, theta, prior, u)
        terms = torch.cat(sums_of(theta, variance, prior, u), -1)
        new = update(prior, Sums.of_terms(terms, slopes), clients, held)
        if held.u is None:
            u = robust_weights(theta, variance, new.mu, prior.t)
        prior = new
    theta, variance = modes(quadratics, theta, prior, u)
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
