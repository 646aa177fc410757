"""Named data sets, one file each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.base.clients import Clients


@dataclass(frozen=True)
class Dataset:
    """One entry of `coterie data`.

    Attributes:
        summary: one line.
        clients: how many, and who they are.
        task: what is predicted.
        licence: licence of the data.
        build: makes the clients; its keyword arguments are the options.
        defaults: defaults of the options and of the split, for `coterie show NAME`.
    """

    summary: str
    clients: str
    task: str
    licence: str
    build: Callable[..., Clients] = field(repr=False)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def details(self) -> str:
        """The text for `coterie show NAME`: where the data is from and how its traps are treated."""
        return sys.modules[self.build.__module__].__doc__ or ""
