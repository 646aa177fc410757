"""FedAvg over clients that an oracle names: `name = "experiments/ideal_group.py:IdealGroup"`, the papers' "SGD Ideal"."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from coterie.algorithms import fedavg
from coterie.core.errors import InputError
from coterie.core.federation import Federation
from coterie.core.rng import Rng
from coterie.core.training import LocalSGD
from coterie.core.vector import move


@dataclass(frozen=True)
class IdealGroup:
    """FedAvg among `members` only; a round without any of them changes nothing.

    Attributes:
        members: names of clients, or patterns of names such as "near-*".
        local, lr: of FedAvg.
    """

    members: tuple[str, ...] = ()
    local: LocalSGD = LocalSGD()
    lr: float = 1.0

    def check(self, everyone: tuple[str, ...]) -> tuple[str, ...]:
        """Nobody is asked apart from participants. Raises `InputError` for a member that fits no client."""
        for pattern in self.members or ("",):
            if not any(fnmatchcase(name, pattern) for name in everyone):
                raise InputError(f"IdealGroup.members has {pattern!r}, which fits no client; name some of them")
        return ()

    def init(self, x: Tensor, federation: Federation) -> fedavg.State:
        """Start from x."""
        self.check(federation.everyone)
        return fedavg.State(x)

    def round(self, state: fedavg.State, federation: Federation, rng: Rng) -> tuple[fedavg.State, dict[str, Any]]:
        """FedAvg's round with the members among `federation.clients`."""
        here = tuple(n for n in federation.clients if any(fnmatchcase(n, p) for p in self.members))
        if not here:
            return state, {}
        got = federation.ask(here, fedavg.local_update, x=state.x, local=self.local)
        weights = got.sizes / got.sizes.sum()
        moved = move(state.x, weights, got.delta, self.lr, federation.dim)
        return fedavg.State(moved), {"weights": got.named(weights)}

    def models(self, state: fedavg.State) -> Tensor:
        """One model for everybody."""
        return state.x
