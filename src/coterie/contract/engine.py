"""What carries asks to where the clients are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from coterie.base.loss import Loss
from coterie.base.vector import Layout
from coterie.contract.envelopes import Answer, Ask

__all__ = ["Engine"]


class Engine(Protocol):
    """Carries asks to where the clients are. Everything else (order, checks, quorum) is the federation's.

    An engine derives from this class, and so has the values that are given here where it says nothing else.

    Attributes:
        clients: names, sorted.
        unseen: names of clients that never train, sorted.
        layout: of model vectors.
        has_server: whether the server holds rows.
        x: initial model [d + b].
        model: the module that vectors belong to.
        loss: of a row, as it was made for this model and these clients.
        needs_all: whether a reply depends on who else is asked, as under some attacks, so that no ask may be divided.
        simulated: whether replies are made on this machine, so that attacks can be simulated.
    """

    clients: tuple[str, ...]
    unseen: tuple[str, ...]
    layout: Layout
    has_server: bool
    x: Tensor
    model: nn.Module
    loss: Loss
    needs_all: bool = False
    simulated: bool = False

    @property
    def honest(self) -> Engine:
        """The engine whose replies nobody falsifies, by which models are evaluated."""
        return self

    def sizes(self, part: str) -> Mapping[str, int]:
        """Rows of each client in `train`, `validation` or `test`, unseen ones behind the others."""
        ...

    def fingerprint(self) -> str:
        """A short hash of every row and name (`Clients.fingerprint`), equal on all engines."""
        ...

    def ask(self, ask: Ask) -> Answer:
        """Run the task of `ask` where its clients are."""
        ...

    def save_memory(self) -> dict[str, Tensor]:
        """What clients remember, where the engine can tell; else empty."""
        ...

    def load_memory(self, saved: dict[str, Tensor]) -> None:
        """Undo `save_memory`."""
        ...

    def close(self) -> None:
        """End processes and free what the engine holds."""
        ...
