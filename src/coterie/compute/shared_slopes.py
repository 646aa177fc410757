"""Slopes that clients share, by Newton's method on sums: what a client tells at the slopes that it is sent, and the server's step.

`fixed-effects` and `cox` differ in the likelihood of which a client tells; both halves of that lie in their files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.vector import Layout
from coterie.compute.linear import counts, symmetric, too_long
from coterie.contract.federation import Federation
from coterie.contract.task import Form, Task
from coterie.solvers import glm, newton, pooling

MOST_ROUNDS = 20
"""Rounds after which the steps end even where they have not converged: they take 3 to 7, unless a column tells the labels apart."""


def _slopes(payload: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    return (counts(layout)[0],)


def _triangle(payload: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    slopes, _ = counts(layout)
    return (slopes * (slopes + 1) // 2,)


def _intercepts(payload: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    return (counts(layout)[1],)


class Likelihood(NamedTuple):
    """A client's log likelihood as a function of the slopes, at those that it was sent.

    Attributes:
        gradient: [n, D], uphill.
        curvature: upper triangle of minus the second derivative [n, D (D + 1) / 2].
        value: [n].
        intercepts: its own [n, C].
    """

    gradient: Annotated[Tensor, "curvature", Form(_slopes)]
    curvature: Annotated[Tensor, "curvature", Form(_triangle)]
    value: Annotated[Tensor, "curvature", Form()]
    intercepts: Annotated[Tensor, "curvature", Form(_intercepts)]


class State(NamedTuple):
    """What the server knows.

    Attributes:
        x: slopes and the mean intercepts [d], as they are served outside.
        b: slopes that the clients are asked about next [D].
        last: slopes of the highest likelihood so far [D].
        step: from there to b [D].
        value: the penalised log likelihood at `last`; of no use before the first round.
        curvature: minus its second derivative there [D, D].
        mean: mean intercepts [C].
        clients: who told it.
        rounds: that were needed so far.
        done: whether the steps have ended.
    """

    x: Tensor
    b: Tensor
    last: Tensor
    step: Tensor
    value: float
    curvature: Tensor
    mean: Tensor
    clients: tuple[str, ...]
    rounds: int
    done: bool


def start_at_zero(x: Tensor, layout: Layout) -> State:
    """Slopes and intercepts of 0: where one starts does not matter to where one ends."""
    slopes, intercepts = counts(layout)
    b = torch.zeros(slopes, dtype=torch.float64)
    mean = torch.zeros(intercepts, dtype=torch.float64)
    curvature = torch.zeros(slopes, slopes, dtype=torch.float64)
    return State(x, b, b, b, 0.0, curvature, mean, (), 0, False)


def newton_round(
    state: State,
    federation: Federation,
    tell: Task[Any],
    ridge: float,
    /,
    **payload: Any,
) -> State:
    """One Newton step of the slopes, or half of the last one where that went too far; nothing once they stand.

    Args:
        state: what the server knows.
        federation: all clients are asked.
        tell: what they are asked; it replies a `Likelihood` at x [d], slopes and mean intercepts.
        ridge: >= 0, on the slopes and the sum of all log likelihoods.
        payload: further arguments of the task.
    """
    if state.done:
        return state
    x = torch.cat([state.b, state.mean])
    replies = federation.ask(federation.everyone, tell, x=x, **payload)
    refused = too_long(replies, "gradient", federation.max_norm)
    for name, why in refused.items():
        federation.report(name, why, tell)
    replies = replies.without(refused)
    mean = pooling.add_up(replies.intercepts) / len(replies)
    penalty = ridge * state.b.square().sum() / 2
    value = float(pooling.add_up(replies.value) - penalty)
    rounds = state.rounds + 1
    worse = value < state.value - 1e-12 * (1 + abs(state.value))
    comparable = replies.clients == state.clients
    if comparable and worse and not _stands(state.step):
        step = state.step / 2
        halved = state._replace(
            b=state.last + step, step=step, rounds=rounds, done=rounds == MOST_ROUNDS
        )
        return _served(halved)
    curvature = symmetric(pooling.add_up(replies.curvature), len(state.b))
    curvature = curvature + ridge * torch.eye(len(state.b)).double()
    gradient = pooling.add_up(replies.gradient) - ridge * state.b
    step = glm.newton_step(curvature, gradient)
    moved = State(
        x=state.x,
        b=state.b + step,
        last=state.b,
        step=step,
        value=value,
        curvature=curvature,
        mean=mean,
        clients=replies.clients,
        rounds=rounds,
        done=(comparable and _stands(step)) or rounds == MOST_ROUNDS,
    )
    return _served(moved)


def _stands(step: Tensor) -> bool:
    return float(step.abs().max()) <= newton.TOLERANCE


def _served(state: State) -> State:
    return state._replace(x=torch.cat([state.b, state.mean]).to(state.x))
