"""The state of a method that learns a model for each of several targets, and its division by targets (MeritFed)."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from coterie.contract.method import Log


class State(NamedTuple):
    """Targets, their models [T, d + b] ([1, d + b] while they are equal), and weights over all N clients [T, N].

    Adam's moments [T, 2, d] ([T, 2, 0] with SGD), how many steps each target's model has taken [T], and of anchored uploads the
    offsets and the models at the last visits [T, N, d] (else [0, 0, d]).
    """

    targets: tuple[str, ...]
    x: Tensor
    weights: Tensor
    moments: Tensor
    taken: Tensor
    offsets: Tensor
    visited: Tensor

    def only(self, span: slice) -> State:
        """The state of some of the targets."""
        x = self.x
        if len(x) > 1:
            x = x[span]
        return self._replace(
            targets=self.targets[span],
            x=x,
            weights=self.weights[span],
            moments=self.moments[span],
            taken=self.taken[span],
        )


def join_rounds(rounds: list[tuple[State, Log]]) -> tuple[State, Log]:
    """Join the rounds of some targets each, states and logs by target. The list is emptied, so that no model is held twice."""
    if len(rounds) == 1:
        return rounds[0]
    states = [state for state, _ in rounds]
    log: dict[str, dict[str, Any]] = {}
    for _, part in rounds:
        for key, by_target in part.items():
            log.setdefault(key, {}).update(cast("dict[str, Any]", by_target))
    targets = tuple(name for state in states for name in state.targets)
    weights = torch.cat([state.weights for state in states])
    moments = torch.cat([state.moments for state in states])
    taken = torch.cat([state.taken for state in states])
    offsets, visited = states[0].offsets, states[0].visited
    width = states[0].x.shape[1]
    # Models are copied one group at a time, and each group is let go: `torch.cat` would hold all of them twice.
    rounds.clear()
    x, low = states[0].x.new_empty(len(targets), width), 0
    while states:
        models = states.pop(0).x
        x[low : low + len(models)] = models
        low += len(models)
    joined = State(targets, x, weights, moments, taken, offsets, visited)
    return joined, cast("Log", log)
