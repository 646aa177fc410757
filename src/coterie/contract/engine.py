"""`Engine` carries asks to where the clients are; beside it stand the settings by which a user chooses it, an
`EngineSpec`.

Settings are a value, such as `ct.InProcess(workers=2)`, that opens the engine once there are clients and a model. An
engine of one's own is one file with such a class, named as FILE.py:NAME.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from coterie.config.rules import Kind

if TYPE_CHECKING:
    from torch import Tensor, nn

    from coterie.base.clients import Clients
    from coterie.base.loss import Loss, RowLoss
    from coterie.base.vector import Layout
    from coterie.contract.elsewhere import AskedSum
    from coterie.contract.masks import Words
    from coterie.contract.wire import Answer, Ask


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
        loss: loss of a row, as it was made for this model and these clients.
        needs_all: whether a reply depends on who else is asked, as under some attacks, so that no ask may be divided.
        sends_own: whether clients' own models come to the server; not from other parties, who keep and evaluate them themselves.
        simulated: whether replies are made on this machine, so that attacks can be simulated.
        serves: Number of clients that it serves at the same time.
        honest: the engine by which models are evaluated, where the replies of this one may be attacked.
    """

    clients: tuple[str, ...]
    unseen: tuple[str, ...]
    layout: Layout
    has_server: bool
    x: Tensor
    model: nn.Module
    loss: Loss
    needs_all: bool = False
    sends_own: bool = True
    simulated: bool = False
    serves: int = 1
    honest: Engine | None = None

    def width(self) -> int:
        """Return how many clients a batched kernel trains side by side at most; 0: they train one after the other."""
        return 0

    def sizes(self, part: str) -> Mapping[str, int]:
        """Rows of each client in `train`, `validation` or `test`, unseen ones behind the others."""

    def ask(self, ask: Ask) -> Answer:
        """Run the task of `ask` where its clients are."""

    def borrow(self, ask: Ask) -> Answer:
        """As `ask`, for who is done with the answer before the next ask, which may overwrite its tensors."""
        return self.ask(ask)

    def sum_elsewhere(self, asked: AskedSum) -> Words | None:
        """Return the sum of the vectors of clients that are other parties, opened behind masks; None: they are on this machine.

        Raises:
            InputError: Too few clients sent their vector, or let the sum be opened.
        """
        return None

    def save_memory(self) -> dict[str, Tensor]:
        """Return what clients remember, where the engine can tell; else empty."""

    def load_memory(self, saved: dict[str, Tensor]) -> None:
        """Undo `save_memory`."""

    def close(self) -> None:
        """End processes and free what the engine holds."""


class EngineSpec(ABC):
    """Settings of an engine: a frozen dataclass. Which engine carries a run changes none of its numbers.

    Attributes:
        decides: fields on which numbers depend all the same, such as a device that rounds differently.

    >>> import coterie as ct
    >>> isinstance(ct.InProcess(workers=2), ct.EngineSpec), ct.InProcess(workers=2).results()  # the number of workers changes no result
    (True, {})
    """

    _kind: ClassVar = Kind("engine", "InProcess(workers=2)")

    decides: ClassVar[tuple[str, ...]] = ()

    @property
    def kernel(self) -> str:
        """The way in which local training is computed: `auto` where an engine does not let one choose."""
        return "auto"

    @property
    def forks(self) -> bool:
        """Return True if processes forked from this one may each open it: not where it holds a device or threads of its own."""
        return False

    @abstractmethod
    def open(self, clients: Clients, model: nn.Module, loss: str | RowLoss) -> Engine:
        """An engine for these clients. Raises `InputError` if model, loss and rows do not fit."""

    def check(self) -> None:  # noqa: B027 - most machines have what most engines need
        """Raise `InputError` for what this machine does not have, before any work."""

    def keep_open(self) -> AbstractContextManager[None]:
        """Return what several runs in a row share, such as the processes of a cluster."""
        return nullcontext()

    def results(self) -> dict[str, Any]:
        """The settings on which numbers depend, where they are not the defaults; a resumed run must have the same."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        defaults = {
            field.name: field.default for field in fields if field.name in self.decides
        }
        return {
            name: value
            for name in defaults
            if (value := getattr(self, name)) != defaults[name]
        }
