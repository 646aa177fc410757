"""An engineer's task: a method of one's own that type-checks, compared with two that coterie brings."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import coterie as ct


class Trained(NamedTuple):
    delta: ct.Update


class Moving(NamedTuple):
    x: Tensor
    speed: Tensor


@ct.task
def trained(cohort: ct.Cohort, *, x: Tensor, local: ct.LocalSGD) -> Trained:
    return Trained(cohort.updates(x, local))


@ct.options
class Momentum(ct.Method[Moving]):
    """Averaging whose server keeps half of its last step."""

    local: ct.LocalSGD = ct.LocalSGD(lr=0.1, steps=ct.Steps(5), batch_size=16)
    keep: float = 0.5

    def init(self, x: Tensor, federation: ct.Federation) -> Moving:
        return Moving(x, torch.zeros_like(x))

    def round(
        self, state: Moving, federation: ct.Federation, rng: ct.Rng
    ) -> tuple[Moving, dict[str, float]]:
        replies = federation.ask(
            federation.clients, trained, x=state.x, local=self.local
        )
        speed = self.keep * state.speed + replies.delta.mean(dim=0)
        return Moving(state.x + speed, speed), {"speed": float(speed.norm())}

    def models(self, state: Moving) -> Tensor:
        return state.x


if __name__ == "__main__":
    methods = {"local": ct.Local(), "fedavg": ct.FedAvg(), "momentum": Momentum()}
    comparison = ct.compare(methods, "heart-disease", rounds=10, seeds=3)
    print(comparison.table("AUC"))
