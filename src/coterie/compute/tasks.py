"""Tasks that many methods send."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.vector import average, shift
from coterie.compute.cohort import Cohort
from coterie.compute.row_noise import noisy_row_sums
from coterie.config.local import LocalSGD, RowNoise
from coterie.contract.federation import Federation
from coterie.contract.replies import Replies
from coterie.contract.task import (
    Form,
    Holds,
    Integers,
    ModelOfEach,
    Models,
    OneModel,
    OneUpdate,
    Rows,
    Task,
    task,
)
from coterie.contract.task import OwnModel as Model


class LocalUpdate(NamedTuple):
    """delta [n, d + b] and training rows [n]."""

    delta: OneUpdate
    sizes: Rows


class OwnUpdate(NamedTuple):
    """delta [n, d + b]."""

    delta: OneUpdate


class LocalUpdates(NamedTuple):
    """One update for each of T models, delta [n, T, d + b]."""

    delta: Annotated[
        Tensor, "update", Form(lambda p, layout: (len(p["x"]), layout.size), None)
    ]


class OwnModel(NamedTuple):
    """A model of its own for each client [n, d + b]."""

    model: Model


class RowSum(NamedTuple):
    """The integers [n, d] of sums of clipped row gradients with a part of the noise, and training rows [n]."""

    words: Integers
    sizes: Rows


@task
def row_sum(
    cohort: Cohort,
    *,
    x: OneModel,
    noise: RowNoise,
    parties: int,
    factors: Annotated[Tensor, Holds(dtype=torch.float64, within=(0, 1), each=True)],
) -> RowSum:
    """What clients add to a sum behind masks: clipped row gradients at x [d], times a factor of each client [n], with noise.

    The noise of `parties` clients makes that of the sum.
    """
    words = noisy_row_sums(cohort, x, noise, parties, factors)
    return RowSum(words, cohort.sizes)


@task
def local_update(cohort: Cohort, *, x: ModelOfEach, local: LocalSGD) -> LocalUpdate:
    """Local training from x [d + b], or from a model of each client [n, d + b], with the number of training rows."""
    return LocalUpdate(cohort.updates(x, local), cohort.sizes)


@task
def own_update(cohort: Cohort, *, x: ModelOfEach, local: LocalSGD) -> OwnUpdate:
    """Local training from x [d + b], or from a model of each client [n, d + b]; sizes are not told."""
    return OwnUpdate(cohort.updates(x, local))


local_update.row_sum = own_update.row_sum = row_sum


@task
def local_updates(cohort: Cohort, *, x: Models, local: LocalSGD) -> LocalUpdates:
    """Local training from each of the models x [T, d + b]."""
    return LocalUpdates(cohort.updates_from(x, local))


@task
def own_model(cohort: Cohort, *, x: OneModel, key: str) -> OwnModel:
    """The model [d + b] that each client keeps under `key`; x for one that keeps none."""
    return OwnModel(cohort.state(key, x).or_else(x))


def own_models(federation: Federation, key: str, x: Tensor) -> dict[str, Tensor | None]:
    """Ask all seen and unseen clients for the models that they keep under `key`; a client that does not reply is left with x."""
    return federation.own_models(
        (*federation.everyone, *federation.unseen), own_model, x=x, key=key
    )


def step_by_average(
    federation: Federation, x: Tensor, task: Task[Any], **payload: Any
) -> tuple[Tensor, dict[str, dict[str, float]]]:
    """FedAvg's step by a task whose clients also keep a model of their own; a client that has lost its own is named.

    Args:
        federation: The participants.
        x: The global model [d + b], which the task is sent.
        task: Local training; it replies `delta`.
        payload: What else the task is sent.

    Returns:
        The global model after the step, and what a round logs of it.
    """
    average = federation.average(federation.clients, task, x=x, **payload)
    for name in average.forgot:
        federation.report(name, "its own model was lost, so it begins anew", task)
    return shift(x, average.delta, dim=federation.dim), {
        "weights": average.by_client(average.weights)
    }


def average_groups(
    federation: Federation, x: Tensor, cluster: Tensor, replies: Replies[LocalUpdate]
) -> tuple[Tensor, dict[str, dict[str, float]]]:
    """Average the updates of each group of clients by training rows.

    Args:
        federation: All N clients.
        x: Their models [N, d + b], equal within a group.
        cluster: Group of each, int64 [N].
        replies: Updates of some of them.

    Returns:
        The models after the round [N, d + b], where groups without a reply keep theirs, and by client the shares of the others in its
        group's average.
    """
    positions = federation.positions(replies.clients)
    new_models, weights = x.clone(), {}
    for group in cluster[positions].unique().tolist():
        replied, members = cluster[positions] == group, cluster == group
        sizes = replies.sizes * replied
        mean = average(sizes[replied], replies.delta[replied])
        new_models[members] = shift(x[members], mean.expand(int(members.sum()), -1))
        shares = {n: w for n, w in replies.by_client(sizes / sizes.sum()).items() if w}
        weights.update(
            {
                federation.everyone[i]: shares
                for i in members.nonzero().flatten().tolist()
            }
        )
    return new_models, weights
