"""Updates of the models of T targets by two trainings of a client, whatever T is: MeritFed's `uploads = "anchored"`.

Each client trains from the anchor, the mean of the targets' models. For each target one client also trains from the target's own
model, with the same batches, and what that changes is kept as its offset: o_ti = delta_i(x_t) - delta_i(anchor). All others are taken
to send delta_i(anchor) + o_ti. Visited is the client whose weight, at least `least_weight`, times the distance that the target's model
has moved since its last visit is largest. In the first round all models are equal, and nobody is visited. At a fixed point offsets are
exact, so that it is one of T trainings, too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.compute.tasks import OwnUpdate, own_update
from coterie.config.local import LocalSGD
from coterie.contract.federation import Federation, QuorumError
from coterie.contract.replies import Replies
from coterie.contract.wire import PerClient

MOST_DIFFERENCES = 1 << 22
"""Numbers in the differences of models that are held at once: 32 MiB."""


def least_weight(clients: int) -> float:
    """Return the weight that each of so many clients has at least where it is decided whom a target visits.

    It is .01, and a fifth of an even weight beyond 20 clients: else visits go to all clients alike, and offsets of those that count
    are as old as there are clients.

    >>> least_weight(20), least_weight(100)
    (0.01, 0.002)
    """
    return min(0.01, 0.2 / clients)


class Offsets(NamedTuple):
    """Kept at the server for all N clients: offsets and, by target and client, the target's model at the last visit [T, N, d]."""

    values: Tensor
    visited: Tensor

    @classmethod
    def start(cls, x: Tensor, targets: int, clients: int) -> Offsets:
        """Return no offsets, as while all models are the parameters x [d]."""
        return cls(
            x.new_zeros(targets, clients, len(x)),
            x.expand(targets, clients, -1).clone(),
        )


def anchored_updates(
    federation: Federation,
    x: Tensor,
    weights: Tensor,
    offsets: Offsets,
    local: LocalSGD,
) -> tuple[Replies[OwnUpdate], Tensor, Tensor, Offsets]:
    """Train the clients of this round from the anchor, and one client for each target from its model.

    Args:
        federation: The participants.
        x: Models of the targets [T, d + b]; [1, d + b] while they are equal.
        weights: Weights of all N clients for each target [T, N].
        offsets: Those of the last round.
        local: Settings of local training.

    Returns:
        The replies of those that trained from the anchor, the targets' models [T, d + b] with the buffers of the anchor, for each
        target the updates of those clients [T, n, d + b], and the offsets.
    """
    dim, count = federation.dim, len(weights)
    anchor = x.mean(0)
    replies = federation.ask(federation.clients, own_update, x=anchor, local=local)
    positions = federation.positions(replies.clients)
    models = torch.cat(
        [x[:, :dim].expand(count, -1), anchor[dim:].expand(count, -1)], dim=1
    )
    values, visited = offsets.values.clone(), offsets.visited.clone()
    # A copy of what is kept for those that take part, which are mostly all.
    are_all = len(positions) == values.shape[1]
    if len(x) > 1:  # in the first round all models are the anchor
        own_weights, own_visited = weights, offsets.visited
        if not are_all:
            own_weights, own_visited = weights[:, positions], visited[:, positions]
        for visits in _turns(models[:, :dim], own_weights, own_visited):
            targets, clients, updates = _visit(
                federation, replies, models, visits, local
            )
            places = targets, positions[clients]
            values[places] = (updates - replies.delta[clients])[:, :dim]
            visited[places] = models[targets, :dim]
    deltas = replies.delta.expand(count, -1, -1).clone()
    if are_all:
        deltas[..., :dim] += values
    else:
        # Of all targets at once the gathered offsets would take as much memory as the updates.
        for t in range(count):
            deltas[t, :, :dim] += values[t, positions]
    return replies, models, deltas, Offsets(values, visited)


def _turns(x: Tensor, weights: Tensor, visited: Tensor) -> list[list[tuple[int, int]]]:
    """Visits (target, client), the largest weight times distance moved since then, in turns that visit a client once."""
    # A block of targets at a time: of all at once the differences of large models would take more memory than the offsets.
    at_once = max(1, MOST_DIFFERENCES // visited[0].numel())
    distances = []
    for low in range(0, len(x), at_once):
        block = slice(low, low + at_once)
        moved = (x[block, None] - visited[block]).double()
        distances.append(torch.linalg.vector_norm(moved, dim=2))
    distance_moved = torch.cat(distances).cpu()
    need = weights.clamp(min=least_weight(weights.shape[1])) * distance_moved
    turns: list[list[tuple[int, int]]] = []
    turn_counts = [0] * weights.shape[1]
    for target, client in enumerate(need.argmax(1).tolist()):
        if need[target, client] > 0:
            # A further visit of the same client is in a further turn.
            if turn_counts[client] == len(turns):
                turns.append([])
            turns[turn_counts[client]].append((target, client))
            turn_counts[client] += 1
    return turns


def _visit(
    federation: Federation,
    replies: Replies[OwnUpdate],
    models: Tensor,
    visits: list[tuple[int, int]],
    local: LocalSGD,
) -> tuple[Tensor, Tensor, Tensor]:
    """Targets [k], clients [k] and updates [k, d + b] of these visits; without those that fail now."""
    by_name = {replies.clients[client]: (target, client) for target, client in visits}
    starts = models[torch.tensor([target for target, _ in visits])]
    try:
        answers = federation.ask(
            list(by_name), own_update, need=0.0, x=PerClient(starts), local=local
        )
    except QuorumError:
        nobody = torch.zeros(0, dtype=torch.int64)
        return nobody, nobody, replies.delta[:0]
    answered = torch.tensor([by_name[name] for name in answers.clients])
    return answered[:, 0], answered[:, 1], answers.delta
