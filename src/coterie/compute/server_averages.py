"""Steps of a server by averages of updates, which several methods take."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from coterie.base.vector import average, shift
from coterie.compute.tasks import LocalUpdate
from coterie.contract.federation import Federation
from coterie.contract.replies import Replies
from coterie.contract.task import Task


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
