"""What a user gives is the settings of an engine, a value: `ct.InProcess(workers=2)`.

It opens the engine once there are clients and a model. An engine of one's own is one file with such a class, named as FILE.py:NAME.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from coterie.config.hooks import Kind

if TYPE_CHECKING:
    from torch import nn

    from coterie.base.clients import Clients
    from coterie.base.loss import RowLoss
    from coterie.contract.engine import Engine

__all__ = ["EngineSpec"]


class EngineSpec(ABC):
    """Settings of an engine: a frozen dataclass. Which engine carries a run changes none of its numbers.

    Attributes:
        decides: fields on which numbers depend all the same, such as a device that rounds differently.
    """

    _kind: ClassVar = Kind("engine", "InProcess(workers=2)")

    decides: ClassVar[tuple[str, ...]] = ()

    @property
    def kernel(self) -> str:
        """How local training is computed: `auto` where an engine does not let one choose."""
        return "auto"

    @property
    def forks(self) -> bool:
        """Whether processes forked from this one may each open it: not where it holds a device or threads of its own."""
        return False

    @abstractmethod
    def open(self, clients: Clients, model: nn.Module, loss: str | RowLoss) -> Engine:
        """An engine for these clients. Raises `InputError` if model, loss and rows do not fit."""

    def check(self) -> None:  # noqa: B027 - most machines have what most engines need
        """Raise `InputError` for what this machine does not have, before any work."""

    def kept_open(self) -> AbstractContextManager[None]:
        """What several runs in a row share, such as the processes of a cluster."""
        return nullcontext()

    def results(self) -> dict[str, Any]:
        """The settings on which numbers depend, where they are not the defaults; a resumed run must have the same."""
        defaults = {f.name: f.default for f in dataclasses.fields(self) if f.name in self.decides}  # type: ignore[arg-type]
        return {name: value for name in defaults if (value := getattr(self, name)) != defaults[name]}
