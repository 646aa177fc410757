"""Layers that behave differently in training: dropout draws, batch norm counts; both are the client's own and named by the seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from coterie.compute.workspace import Workspace

if TYPE_CHECKING:
    from coterie.compute.cohort import Cohort

__all__ = ["restart", "training"]


@contextlib.contextmanager
def training(workspace: Workspace) -> Iterator[None]:
    """The model in training mode, and afterwards as it was."""
    workspace.train(True)
    try:
        with workspace.noise() if workspace.random else contextlib.nullcontext():
            yield
    finally:
        workspace.model.eval()
        workspace.restart_counters()


def restart(cohort: Cohort, i: int, purpose: str) -> None:
    """What the layers draw and count begins anew, for the client at position `i`."""
    cohort.workspace.restart_counters()
    if cohort.workspace.random:
        cohort.workspace.seed_noise(cohort.rng(i, f"{purpose}/layers").seed())
