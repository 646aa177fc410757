"""A method of the tests' own whose clients remember something: momentum on updates, kept where the client is.

In round 4 it fails if there is a file `fail`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import coterie as ct

LOCAL = ct.LocalSGD()


class Sent(NamedTuple):
    delta: ct.Update


class State(NamedTuple):
    x: Tensor


@ct.task
def update(cohort: ct.Cohort, *, x: Tensor, local: ct.LocalSGD) -> Sent:
    if cohort.round == 4 and Path("fail").exists():
        raise OSError("the disk is full")
    delta = (
        cohort.train(x, local)
        - x
        + 0.5 * cohort.memory.get("delta", torch.zeros_like(x))
    )
    cohort.memory.put("delta", delta)
    return Sent(delta)


@dataclass(frozen=True)
class Momentum(ct.Method):
    local: ct.LocalSGD = LOCAL

    def init(self, x: Tensor, federation: ct.Federation) -> State:
        return State(x)

    def round(
        self, state: State, federation: ct.Federation, rng: ct.Rng
    ) -> tuple[State, dict[str, object]]:
        return State(
            state.x
            + federation.ask(
                federation.clients, update, x=state.x, local=self.local
            ).delta.mean(0)
        ), {}

    def models(self, state: State) -> Tensor:
        return state.x
