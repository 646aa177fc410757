r"""Partial pooling: a linear model for each client, whose slopes are drawn to the others' as far as they are alike.

Paper: C. Luo et al., "dPQL: a lossless distributed algorithm for generalized linear mixed model with application to privacy-preserving
hospital profiling", JAMIA 2022; by empirical Bayes, as in C. N. Morris, "Parametric Empirical Bayes Inference: Theory and
Applications", JASA 1983.

Optimises: each client's own log likelihood under a prior that is learnt from all clients; intercepts are a client's own.
Sends: d + d (d + 1) / 2 up, 0 down (tell_mode: once); d + d (d + 1) / 2 up, d down (tell_quadratic: once); d up, 0
down (begin_sums: once); d + 4 d_s + 2 up, 3 d down (step_sums).
Memory: none; with sums 2 d + 1 numbers: where it is and its weight.
Use: a table with a linear model, of clients that are alike in part. It is exact: no rate, no seed, nothing to tune.
Avoid: images, text, other models; or the server must not know a client's model, which it does in this form.
Formula: b_k \sim N(\mu, \operatorname{diag}(t) / u_k), \quad a_k \sim N(m_0, q_0), \quad \mu \sim N(0, S_2), \quad
(a_k, b_k) = \operatorname{mode}

Symbols: a_k, b_k = intercept and slopes of client k, d_s = number of slopes of a model of d numbers, mu, t, u_k, m0, q0, S2 as in the
formula; the steps are in `solvers/pooling.py`.

The form of passes (the default): in pass 1 each client tells the mode of its own rows (ridge 4, intercept .001) and the
curvature there, in pass 2 the gradient and the curvature at the mode that the server sent it. Each pass starts afresh,
with 60 steps on these quadratics; further passes go on in the same way. Rounds after the last pass change nothing. A
client is served its mode, and one that is outside, or that failed in a pass, the mean (m0, mu).

The form of sums: each client makes a Newton step a round and tells what it adds to sums over clients, 5 D + C + 2 numbers
for D slopes and C intercepts; 8 to 20 rounds. Only the sums are used, so it goes with secure aggregation; without that the
server could compute a client's model from what it tells.

Regression: the log likelihood is divided by the residual variance at the client's own ridge 4.

Differences from the papers: the variance of a slope has a half-Cauchy prior and five clients of the mean variance; clients have weights
as in a t distribution with 4 degrees of freedom; the mean is drawn to 0 by a variance S2 that is learnt.

Laws:
- one client has the ridge 1 / (S2 + t / u), and an intercept without one:
  tests/methods/test_partial.py::test_one_client_has_the_ridge_of_its_prior
- two clients with equal rows are served equal models:
  tests/methods/test_partial.py::test_two_clients_with_equal_rows_are_served_equal_models
- t to 0 is a fixed-effects regression of ridge 1 / S2, t to infinity maximum likelihood of the slopes:
  tests/methods/test_partial.py::test_the_limits_of_the_variance_between_clients
- the order of clients changes no bit:
  tests/methods/test_partial.py::test_the_order_of_clients_changes_no_bit
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError, RunError
from coterie.base.rng import Rng
from coterie.base.vector import Layout
from coterie.compute.cohort import Cohort
from coterie.compute.linear import (
    LinearRows,
    counts,
    linear_rows,
    require_linear,
    symmetric,
    too_long,
    upper,
)
from coterie.compute.tasks import OwnModel
from coterie.config.rules import SIZE, one_of
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.replies import Replies
from coterie.contract.requests import Among, asks
from coterie.contract.task import (
    Curvature,
    Form,
    Holds,
    ModelOfEach,
    OneModel,
    Point,
    Task,
    task,
)
from coterie.contract.wire import PerClient
from coterie.solvers import glm, pooling

UNIT = torch.ones(1, dtype=torch.float64)


class OwnMode(NamedTuple):
    """The client's own model [n, d], and the curvature of its rows there [n, d (d + 1) / 2]."""

    mode: Point
    curvature: Curvature


class Quadratic(NamedTuple):
    """Gradient [n, d] and curvature [n, d (d + 1) / 2] of the client's log likelihood at the model that it was sent."""

    gradient: Point
    curvature: Curvature


def _own_mode(rows: LinearRows) -> tuple[glm.Mode, float]:
    """The client's own model, and the variance by which its log likelihood is divided: 1 but for a regression."""
    precision = pooling.own_precision(rows.slopes, rows.outputs)
    inputs, labels, family, outputs, weights = rows
    fit = glm.mode(inputs, labels, family, precision, outputs, weights=weights)
    if family is not glm.FAMILIES["regression"]:
        return fit, 1.0
    variance = pooling.noise(fit, len(labels))
    scaled = glm.mode(
        inputs,
        labels,
        family,
        precision,
        outputs,
        weights=weights,
        scale=1 / variance,
    )
    return scaled, variance


def _moments(rows: LinearRows, theta: Tensor) -> glm.Moments:
    """Gradient and curvature at theta of the client's log likelihood, divided by the variance of its residuals."""
    inputs, labels, family, outputs, weights = rows
    moments = glm.moments(theta, inputs, labels, family, outputs, weights=weights)
    if family is not glm.FAMILIES["regression"]:
        return moments
    _, variance = _own_mode(rows)
    return glm.Moments(*(part / variance for part in moments))


@task
def tell_mode(cohort: Cohort) -> OwnMode:
    """The mode of the client's own rows under ridge 4, and their curvature there; its gradient there is the ridge times the mode."""
    told = []
    for client in range(len(cohort.names)):
        rows = linear_rows(cohort, client)
        fit, _ = _own_mode(rows)
        cohort.spent["row_gradients"] += fit.looks * len(rows.labels)
        told.append((fit.theta, upper(fit.rows.curvature)))
    return OwnMode(*_stack(told))


@task
def tell_quadratic(cohort: Cohort, *, x: ModelOfEach) -> Quadratic:
    """Gradient and curvature of the client's log likelihood at x [d], or at a model of its own [n, d]."""
    told = []
    for client in range(len(cohort.names)):
        rows = linear_rows(cohort, client)
        at = x if x.ndim == 1 else x[client]
        moments = _moments(rows, at.cpu())
        cohort.spent["row_gradients"] += len(rows.labels)
        told.append((moments.gradient, upper(moments.curvature)))
    return Quadratic(*_stack(told))


def _stack(told: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    points, curvatures = zip(*told, strict=True)
    return torch.stack(points), torch.stack(curvatures)


def _terms(payload: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    """The shape of a client's `Terms`."""
    slopes, intercepts = counts(layout)
    return (5 * slopes + intercepts + 2,)


class Terms(NamedTuple):
    """What the client adds to the sums of `solvers/pooling.py`, one behind the other [n, 5 D + C + 2]."""

    terms: Annotated[Tensor, "curvature", Form(_terms)]


class Start(NamedTuple):
    """The client's own model [n, d], of which the sum is needed."""

    mode: Point


KEY = "partial"
"""In client memory: theta [d], its variances [d] and the weight u, one behind the other [2 d + 1]."""


@task
def begin_sums(cohort: Cohort) -> Start:
    """Begin at the mode of the client's own rows under ridge 4, with weight 1."""
    kept = []
    for client in range(len(cohort.names)):
        rows = linear_rows(cohort, client)
        fit, _ = _own_mode(rows)
        cohort.spent["row_gradients"] += fit.looks * len(rows.labels)
        kept.append(torch.cat([fit.theta, torch.zeros_like(fit.theta), UNIT]))
    memory = torch.stack(kept)
    cohort.keep(KEY, memory)
    return Start(memory[:, : cohort.layout.dim])


@task
def step_sums(
    cohort: Cohort,
    *,
    prior: Annotated[Tensor, Holds((3, "parameters"), torch.float64)],
    first: bool,
) -> Terms:
    """One Newton step under the prior: its centre (mu, m0), variances (t, q0), and those under which the last step was made."""
    slopes, _ = counts(cohort.layout)
    size = cohort.layout.dim
    centre, spread, old_spread = prior
    shared = pooling.Prior(
        centre[:slopes],
        spread[:slopes],
        centre[slopes:],
        spread[-1],
        torch.ones((), dtype=torch.float64),  # which no client needs
    )
    nothing = torch.zeros(2 * size + 1, dtype=torch.float64)
    state = cohort.state(KEY, nothing)
    kept, told = [], []
    for client, memory in enumerate(state.values):
        if state.rounds[client] < 0:
            raise InputError("it took no part in the first round, or lost its state")
        theta, variance = memory[None, :size], memory[None, size : 2 * size]
        u = memory[-1:]
        if not first:
            u = pooling.robust_weights(theta, variance, shared.mu, old_spread[:slopes])
        rows = linear_rows(cohort, client)
        moments = _moments(rows, theta[0])
        cohort.spent["row_gradients"] += len(rows.labels)
        here = pooling.Quadratics(
            theta, moments.gradient[None], moments.curvature[None]
        )
        theta, variance = pooling.modes(here, theta, shared, u)
        kept.append(torch.cat([theta[0], variance[0], u]))
        told.append(torch.cat([*pooling.sums_of(theta, variance, shared, u)], 1)[0])
    cohort.keep(KEY, torch.stack(kept))
    return Terms(torch.stack(told))


@task
def model_of_sums(cohort: Cohort, *, x: OneModel) -> OwnModel:
    """The model that the client has made; x for one that has none."""
    size = cohort.layout.dim
    begun = torch.cat([x.double(), torch.zeros(size + 1, dtype=torch.float64)])
    return OwnModel(cohort.state(KEY, begun).values[:, :size].to(x.dtype))


class State(NamedTuple):
    """What the server knows; models have d = D + C parameters, D slopes and C intercepts.

    Attributes:
        x: the model that is served where nothing else is known [d]: (mu, m0) once there was a pass.
        done: passes that are done, or steps in the form of sums.
        clients: names of the m clients that took part in the last pass.
        own, own_curvature: their own models [m, d] and the curvature of their rows there [m, d, d], of the first pass.
        about, gradient, curvature: the quadratics of the last pass [m, d], [m, d], [m, d, d].
        theta, variance: modes, and the diagonals of their inverse curvatures, both [m, d].
        u: weights [m].
        mu, t, m0, q0, s2: the prior [D], [D], [C], scalars.
        old_t: the variances under which clients made their last step, in the form of sums [D].
    """

    x: Tensor
    done: int
    clients: tuple[str, ...]
    own: Tensor
    own_curvature: Tensor
    about: Tensor
    gradient: Tensor
    curvature: Tensor
    theta: Tensor
    variance: Tensor
    u: Tensor
    mu: Tensor
    t: Tensor
    m0: Tensor
    q0: Tensor
    s2: Tensor
    old_t: Tensor

    def prior(self) -> pooling.Prior:
        """The prior as the solver has it."""
        return pooling.Prior(self.mu, self.t, self.m0, self.q0, self.s2)


@options
class Partial(Method[State]):
    """Draw the slopes of each client's linear model to those of the others, as far as the clients are alike.

    Attributes:
        sends: "curvature": each client's model and curvature, in `passes` rounds; or "sums": what it adds to sums, in every round.
        passes: passes over the clients, one a round: 2, or 1 where a site may tell no more (about .03 away in loss).

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> slopes = {"a": 1.0, "b": 1.2, "c": 1.1}
    >>> clients = ct.data.from_tensors({k: (x, v * x[:, 0] + 0.3 * torch.cos(9 * x[:, 0])) for k, v in slopes.items()})
    >>> run = ct.fit(ct.Partial(), clients, rounds=2)
    >>> {name: round(float(model[0]), 2) for name, model in run.models.items()}  # `*`: a hospital outside
    {'*': 1.08, 'a': 1.04, 'b': 1.12, 'c': 1.11}
    """

    sends: Annotated[str, one_of("curvature", "sums")] = "curvature"
    passes: Annotated[int, SIZE] = 2

    participation = "own"
    linear_only = True
    exempt: ClassVar[Mapping[str, str]] = {
        "diverges": "it is solved, without a learning rate"
    }

    @property
    def tells_quadratics(self) -> bool:
        """Return True in the form of passes."""
        return self.sends == "curvature"

    @property
    def tasks(self) -> tuple[Any, ...]:
        """What the form asks."""
        if self.sends == "sums":
            return (
                asks(begin_sums, rounds=1),
                asks(step_sums, first=Among(True, False)),
                model_of_sums,
            )
        if self.passes == 1:
            return (asks(tell_mode, rounds=1),)
        return (
            asks(tell_mode, rounds=1),
            asks(tell_quadratic, rounds=self.passes - 1),
        )

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x, of which nothing is used: the first pass starts from the clients' own models."""
        require_linear(federation.engine.model, federation.engine.loss, "partial")
        slopes, intercepts = counts(federation.layout)
        size = slopes + intercepts
        rows = torch.zeros(0, size, dtype=torch.float64)
        tables = torch.zeros(0, size, size, dtype=torch.float64)
        prior = pooling.start(x.double().cpu(), slopes)
        return State(
            x=x,
            done=0,
            clients=(),
            own=rows,
            own_curvature=tables,
            about=rows,
            gradient=rows,
            curvature=tables,
            theta=rows,
            variance=rows,
            u=rows.new_zeros(0),
            **prior._asdict(),
            old_t=prior.t,
        )

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One pass over all clients, or one step of the sums; nothing after the last pass."""
        if self.sends == "sums":
            state = _step_of_sums(state, federation)
        elif state.done == 0:
            state = _first_pass(state, federation)
        elif state.done < self.passes:
            state = _next_pass(state, federation)
        return state, _log(state)

    def models(self, state: State) -> dict[str, Tensor]:
        """The mode of each client that took part; (mu, m0) for all others."""
        served = state.theta.to(state.x)
        return {"*": state.x, **dict(zip(state.clients, served, strict=True))}

    def personalised(
        self, state: State, federation: Federation
    ) -> Mapping[str, Tensor | None]:
        """In the form of sums the model of each client, where it is."""
        if self.sends != "sums" or state.done == 0:
            return {}
        return federation.own_models(federation.everyone, model_of_sums, x=state.x)

    def finished(self, state: State) -> bool:
        """After the last pass."""
        return self.sends == "curvature" and state.done >= self.passes

    def prior(self, state: State) -> Mapping[str, Any]:
        """The prior, the clients of the last pass, and in the form of passes their weights, shares, distances and quadratics."""
        if state.done == 0:
            return {}
        shared = state.prior()._asdict()
        if not state.clients:
            return shared
        slopes = len(state.mu)
        distance, degrees, own_variance = pooling.distances(
            state.own, state.own_curvature, slopes
        )
        return {
            **shared,
            "clients": state.clients,
            "weights": dict(zip(state.clients, state.u.tolist(), strict=True)),
            "degrees": degrees,
            "u": state.u,
            "shares": pooling.shares(_pooled(state)),
            "distance": distance,
            "own": state.own,
            "own_variance": own_variance,
            "about": state.about,
            "gradient": state.gradient,
            "curvature": state.curvature,
        }


def _first_pass(state: State, federation: Federation) -> State:
    """Ask for own models and the curvature there, and solve."""
    replies = federation.ask(federation.everyone, tell_mode)
    curvature = symmetric(replies.curvature, federation.dim)
    replies, curvature = _convex(replies, curvature, federation, tell_mode)
    own = replies.mode
    slopes, intercepts = counts(federation.layout)
    # At the mode the gradient of the rows is that of the penalty.
    gradient = pooling.own_precision(slopes, intercepts) * own
    quadratics = pooling.Quadratics(own, gradient, curvature)
    state = state._replace(clients=replies.clients, own=own, own_curvature=curvature)
    return _solve(state, quadratics)


def _next_pass(state: State, federation: Federation) -> State:
    """Ask for gradient and curvature at the models that are served, and solve afresh."""
    served = state.theta.to(state.x)
    replies = federation.ask(state.clients, tell_quadratic, x=PerClient(served))
    curvature = symmetric(replies.curvature, federation.dim)
    replies, curvature = _convex(replies, curvature, federation, tell_quadratic)
    took_part = [state.clients.index(name) for name in replies.clients]
    quadratics = pooling.Quadratics(
        served[took_part].double().cpu(), replies.gradient, curvature
    )
    state = state._replace(
        clients=replies.clients,
        own=state.own[took_part],
        own_curvature=state.own_curvature[took_part],
    )
    return _solve(state, quadratics)


def _convex(
    replies: Replies[Any], curvature: Tensor, federation: Federation, asked: Task[Any]
) -> tuple[Replies[Any], Tensor]:
    """The replies without those whose curvature is that of no log likelihood, which are named, as clients that failed are."""
    slopes, intercepts = counts(federation.layout)
    penalty = torch.diag(pooling.own_precision(slopes, intercepts))
    _, bad = torch.linalg.cholesky_ex(curvature + penalty)
    refused = {
        name: "its curvature is that of no log likelihood"
        for name, code in zip(replies.clients, bad.tolist(), strict=True)
        if code
    }
    if asked is tell_mode:
        refused |= too_long(replies, "mode", federation.max_norm)
    for name, why in refused.items():
        federation.report(name, why, asked)
    if len(refused) == len(replies):
        raise RunError(f"{asked.name}: no client told a curvature that can be used")
    kept = [i for i, name in enumerate(replies.clients) if name not in refused]
    return replies.without(refused), curvature[kept]


def _solve(state: State, quadratics: pooling.Quadratics) -> State:
    """The state after a pass with these quadratics; the steps start afresh from the own models."""
    pooled = pooling.pool(quadratics, state.own, len(state.mu))
    return state._replace(
        x=pooled.prior.centre().to(state.x),
        done=state.done + 1,
        **quadratics._asdict(),
        theta=pooled.theta,
        variance=pooled.variance,
        u=pooled.u,
        **pooled.prior._asdict(),
    )


def _step_of_sums(state: State, federation: Federation) -> State:
    """One step of all clients, and of the prior from their sums; the first round also begins."""
    slopes, intercepts = counts(federation.layout)
    prior, first = state.prior(), state.done == 0
    if first:
        own = federation.ask(federation.everyone, begin_sums).mode
        prior = pooling.start(pooling.add_up(own) / len(own), slopes)
    q0 = prior.q0.expand(intercepts)
    packed = torch.stack(
        [
            prior.centre(),
            torch.cat([prior.t, q0]),
            torch.cat([state.old_t, q0]),
        ]
    )
    replies = federation.ask(federation.everyone, step_sums, prior=packed, first=first)
    sums = pooling.Sums.of_terms(replies.terms, slopes)
    new = pooling.update(prior, sums, len(replies))
    return state._replace(
        x=new.centre().to(state.x),
        done=state.done + 1,
        **new._asdict(),
        old_t=prior.t,
    )


def _pooled(state: State) -> pooling.Pooled:
    return pooling.Pooled(state.theta, state.variance, state.u, state.prior())


def _log(state: State) -> Log:
    """The share of each client's own slopes in each model, the weights u, and the mean deviation of a slope between clients."""
    log: Log = {"between": float(state.t.sqrt().mean())}
    if not state.clients:
        return log
    shares = pooling.shares(_pooled(state))
    log["weights"] = {
        name: dict(zip(state.clients, row.tolist(), strict=True))
        for name, row in zip(state.clients, shares, strict=True)
    }
    log["u"] = dict(zip(state.clients, state.u.tolist(), strict=True))
    return log
