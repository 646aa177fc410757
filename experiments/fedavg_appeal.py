"""FedAvg that also logs MaxFL's metrics, so that both are measured alike: `name = "experiments/fedavg_appeal.py:FedAvgAppeal"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from coterie.algorithms import fedavg
from coterie.core.appeal import measure_appeal
from coterie.core.federation import Federation
from coterie.core.rng import Rng
from coterie.core.training import LocalSGD


class State(NamedTuple):
    """Global and initial model [d + b]."""

    x: Tensor
    start: Tensor


@dataclass(frozen=True)
class FedAvgAppeal:
    """FedAvg, bit by bit, and `measure_appeal` at evaluation rounds.

    Attributes:
        local, lr: of FedAvg.
        warmup_steps: local steps to each client's own model.
    """

    local: LocalSGD = LocalSGD()
    lr: float = 1.0
    warmup_steps: int = 100

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x, x)

    def round(self, state: State, federation: Federation, rng: Rng) -> tuple[State, dict[str, Any]]:
        """FedAvg's round."""
        new, log = fedavg.FedAvg(self.local, self.lr).round(fedavg.State(state.x), federation, rng)
        return State(new.x, state.start), log

    def models(self, state: State) -> Tensor:
        """One model for everybody."""
        return state.x

    def measure(self, state: State, federation: Federation) -> dict[str, Any]:
        """MaxFL's metrics."""
        return measure_appeal(state.x, state.start, federation, self.local, warmup_steps=self.warmup_steps)
