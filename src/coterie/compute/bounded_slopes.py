"""Slopes that clients share, by steps under a fixed bound of the curvature: clients tell nothing but sums over rows behind noise.

What a client tells: once the products of its rows, then at each point that it is sent the sum of its rows' clipped gradients. Each is a
Gaussian event of mu = 1 / noise_multiplier. Nothing is chosen on the rows before: an intercept that suited them would move with one
row, and with it what all others say. So intercepts are columns that only one client fills, and move by the same noisy steps.

Each client adds its noise itself: in one process it is simulated, and a site draws it under a key that stays there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError, require
from coterie.base.loss import Loss
from coterie.base.vector import Layout
from coterie.compute.cohort import Cohort
from coterie.compute.linear import LinearRows, counts, linear_rows
from coterie.compute.row_noise import with_noise
from coterie.config.row_noise import RowNoise
from coterie.contract.federation import Federation
from coterie.contract.task import Form, Holds, Point, Rows, task
from coterie.contract.wire import PerClient
from coterie.solvers import bound, glm, pooling

BLOCKS = 2
"""A bound of slopes and intercepts together is at most twice that of either alone, which needs no products of the two."""


def _products(payload: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    slopes, intercepts = counts(layout)
    columns = slopes // intercepts
    return (columns * (columns + 1) // 2,)


def require_bounded(loss: Loss) -> None:
    """Raise `InputError` for a loss that bends without a bound, and for weights of rows."""
    require(
        loss.weighted is None,
        "fixed-effects behind row noise takes no weights of rows, which depend on other rows; take fedavg, or leave out [privacy]",
    )
    if loss.kind not in bound.FACTORS:
        raise InputError(
            f"fixed-effects behind row noise bounds the curvature of classes and numbers, and that of {loss.kind} has no bound; "
            "take fedavg, or leave out [privacy]"
        )


class Products(NamedTuple):
    """The noisy sum of products of a client's rows, as `bound.unfold` has them [n, d (d + 1) / 2], and training rows [n]."""

    products: Annotated[Tensor, "curvature", Form(_products, torch.float64)]
    sizes: Rows


class RowGradients(NamedTuple):
    """The noisy sum of a client's clipped row gradients [n, P], uphill."""

    gradient: Point


@task
def tell_products(cohort: Cohort, *, noise: RowNoise) -> Products:
    """The products x x' of rows of limited length, summed, with noise; the constant column is no part of them."""
    told = []
    for client in range(len(cohort.names)):
        rows = _rows(cohort, client, noise)
        summed = bound.unfold(rows.inputs.T @ rows.inputs)
        sigma = noise.noise_multiplier * longest(rows.inputs.shape[1], noise) ** 2
        said = ("products", noise, len(rows.labels), cohort.layout)
        told.append(_behind_noise(cohort, client, summed, sigma, said))
    return Products(torch.stack(told), cohort.sizes)


@task
def tell_row_gradients(
    cohort: Cohort,
    *,
    x: Annotated[Tensor, Holds(("parameters",), torch.float64, each=True)],
    noise: RowNoise,
) -> RowGradients:
    """The gradients of rows at slopes and intercepts x [n, P], clipped and summed, with noise."""
    told = []
    for client in range(len(cohort.names)):
        rows = _rows(cohort, client, noise)
        cohort.spent["row_gradients"] += len(rows.labels)
        clip = clip_of(noise)
        summed = bound.clipped_gradient(x[client].cpu(), *rows[:4], clip)
        sigma = noise.noise_multiplier * clip
        said = ("gradient", noise, len(rows.labels), cohort.layout)
        told.append(_behind_noise(cohort, client, summed, sigma, said, x[client]))
    return RowGradients(torch.stack(told))


def clip_of(noise: RowNoise) -> float:
    """The largest length of the gradient of a row; none where gradients have no limit."""
    return math.inf if noise.clip is None else noise.clip


def longest(columns: int, noise: RowNoise) -> float:
    """The length of the longest row of so many columns: that of a row of standard deviations; none where gradients have no limit."""
    return math.inf if noise.clip is None else math.sqrt(columns)


def _rows(cohort: Cohort, client: int, noise: RowNoise) -> LinearRows:
    """The client's training rows, each of limited length."""
    rows = linear_rows(cohort, client, hidden=True)
    reach = longest(rows.inputs.shape[1], noise)
    return rows._replace(inputs=bound.shorten_rows(rows.inputs, reach))


def _behind_noise(
    cohort: Cohort,
    client: int,
    total: Tensor,
    sigma: float,
    said: tuple[Any, ...],
    at: Tensor | None = None,
) -> Tensor:
    """A sum [k] at a point [P], if at any, with normal noise of this deviation on its grid; as it is without noise.

    What the client says beside them begins with what the sum is of, which names the stream of simulated noise.
    """
    if not sigma or math.isnan(sigma):
        return total

    def in_bytes(summed: Tensor) -> bytes:
        point = b""
        if at is not None:
            point = at.cpu().numpy().tobytes()
        return repr(said).encode() + point + summed.numpy().tobytes()

    simulated = cohort.rng(client, "row noise").child(said[0]).generator()
    return with_noise(cohort.workspace, total, sigma, in_bytes, simulated)


class State(NamedTuple):
    """What the server knows.

    Attributes:
        x: slopes, and the mean intercepts, that are served [d]: the means over the last half of all points.
        points: slopes after each round [t, D].
        intercepts: of each client [m, C], those of its last point.
        curvature: bound by which slopes step, for one output [d, d].
        sizes: training rows [m].
        clients: who told their products; the others take no part.
        variance: of the noise in the slopes of x [D].
    """

    x: Tensor
    points: Tensor
    intercepts: Tensor
    curvature: Tensor
    sizes: Tensor
    clients: tuple[str, ...]
    variance: Tensor

    @property
    def rounds(self) -> int:
        """Steps so far."""
        return len(self.points)


def start_bounded(x: Tensor, layout: Layout) -> State:
    """Slopes and intercepts of 0, before anything is told."""
    slopes, intercepts = counts(layout)
    columns = slopes // intercepts
    none = torch.zeros(0, dtype=torch.float64)
    return State(
        x=x,
        points=none.reshape(0, slopes),
        intercepts=none.reshape(0, intercepts),
        curvature=torch.zeros(columns, columns, dtype=torch.float64),
        sizes=none,
        clients=(),
        variance=torch.zeros(slopes, dtype=torch.float64),
    )


def bounded_round(
    state: State,
    federation: Federation,
    noise: RowNoise,
    ridge: float,
    intercept_ridge: float,
) -> State:
    """One step of slopes and intercepts under the bound; before the first, clients tell the products that make it.

    What is served is the mean over the last half of all points, in which the noise of single steps cancels (B. Polyak, A. Juditsky,
    "Acceleration of Stochastic Approximation by Averaging", SIAM J. Control and Optimization 1992).

    Args:
        state: what the server knows.
        federation: the clients.
        noise: of each event.
        ridge: >= 0, on slopes and the sum of all losses.
        intercept_ridge: >= 0.
    """
    factor = bound.FACTORS[federation.engine.loss.kind]
    if not state.clients:
        state = _with_bound(state, federation, noise, factor, ridge)
    slopes, outputs = counts(federation.layout)
    columns = slopes // outputs
    b = torch.zeros(slopes, dtype=torch.float64)
    if len(state.points):
        b = state.points[-1]

    points = torch.cat([b.expand(len(state.clients), -1), state.intercepts], 1)
    replies = federation.ask(
        state.clients, tell_row_gradients, x=PerClient(points), noise=noise
    )
    uphill = pooling.add_up(replies.gradient[:, :slopes]) - ridge * b
    of_outputs = uphill.view(outputs, columns)
    step = glm.newton_step(state.curvature.expand(outputs, -1, -1), of_outputs)
    b = b + step.flatten()

    places = {name: place for place, name in enumerate(state.clients)}
    replied = [places[name] for name in replies.clients]
    intercepts = state.intercepts.clone()
    own = intercepts[replied]
    own_uphill = replies.gradient[:, slopes:] - intercept_ridge * own
    # How many rows a client has is public, and the constant is 1 in each.
    own_curvature = BLOCKS * factor * state.sizes[replied] + intercept_ridge
    intercepts[replied] = own + own_uphill / own_curvature[:, None]

    all_points = torch.cat([state.points, b[None]])
    half = all_points[len(all_points) // 2 :]
    served = torch.cat([half.mean(0), intercepts.mean(0)])
    return state._replace(
        x=served.to(state.x),
        points=all_points,
        intercepts=intercepts,
        variance=_variance(state, noise, outputs, len(half)),
    )


def _with_bound(
    state: State, federation: Federation, noise: RowNoise, factor: float, ridge: float
) -> State:
    """The state with the bound that the clients' products make."""
    replies = federation.ask(federation.everyone, tell_products, noise=noise)
    columns = len(state.curvature)
    reach = longest(columns, noise)
    summed = bound.fold(pooling.add_up(replies.products), columns)
    sigma = 0.0
    if noise.noise_multiplier:
        sigma = noise.noise_multiplier * reach**2 * math.sqrt(len(replies))
    most = float(replies.sizes.sum()) * reach**2
    products = bound.raised(summed, sigma, most)
    penalty = ridge * torch.eye(columns, dtype=torch.float64)
    _, outputs = counts(federation.layout)
    return state._replace(
        curvature=BLOCKS * factor * products + penalty,
        sizes=replies.sizes.double(),
        intercepts=torch.zeros(len(replies), outputs, dtype=torch.float64),
        clients=replies.clients,
    )


def _variance(state: State, noise: RowNoise, outputs: int, averaged: int) -> Tensor:
    """The variance [D] of the noise in a mean of so many points, where the curvature is its bound; it is larger where that is lower."""
    if not noise.noise_multiplier:
        return torch.zeros_like(state.variance)
    of_sum = (noise.noise_multiplier * clip_of(noise)) ** 2 * len(state.clients)
    inverse = torch.linalg.inv(state.curvature / BLOCKS)
    of_output: Tensor = of_sum * (inverse @ inverse).diagonal() / averaged
    return of_output.repeat(outputs)
