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
        x = self.x[span] if len(self.x) > 1 else self.x
        return State(
            self.targets[span],
            x,
            self.weights[span],
            self.moments[span],
            self.taken[span],
            *self[5:],
        )


def join_rounds(rounds: list[tuple[State, Log]]) -> tuple[State, Log]:
    """Join the rounds of some targets each, states and logs by target. The list is emptied, so that no model is held twice."""
    if len(rounds) == 1:
        return rounds[0]
    states, log = [state for state, _ in rounds], dict[str, dict[str, Any]]()
    for _, part in rounds:
        for key, by_target in part.items():
            log.setdefault(key, {}).update(cast("dict[str, Any]", by_target))
    targets = tuple(name for state in states for name in state.targets)
    weights, moments, taken = (
        torch.cat(values) for values in list(zip(*states, strict=True))[2:5]
    )
    first_state = states[0]
    rounds.clear()
    x, low = first_state.x.new_empty(len(targets), first_state.x.shape[1]), 0
    while states:
        models = states.pop(0).x
        x[low : low + len(models)] = models
        low += len(models)
    return State(
        targets, x, weights, moments, taken, first_state.offsets, first_state.visited
    ), cast("Log", log)
