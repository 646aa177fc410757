"""What a run must leave out where its models are rounded on their way down (`contract.down`)."""

from __future__ import annotations

from typing import Any

import torch

from coterie.base.errors import require
from coterie.base.vector import Layout
from coterie.config.run import RunSettings
from coterie.contract.down import FLOAT32
from coterie.contract.fitting import down_of
from coterie.contract.method import Method


def check_beside_down(settings: RunSettings) -> None:
    """Raise `InputError` for settings that need the exact model at clients."""
    if settings.down == FLOAT32:
        return
    down = f'run.down = "{settings.down}"'
    require(
        settings.secure is None,
        f"[secure] does not go with {down} as yet; leave out one of them",
    )
    require(
        settings.contribution is None,
        f"run.contribution compares models that differ by single updates, which {down} would round away; leave out one of them",
    )


def down_of_run(method: Method[Any], settings: RunSettings, layout: Layout) -> str:
    """Return how models are sent to the clients of a run. Raises `InputError` where they must be exact, or are not of float32."""
    down = down_of(method, settings.down)
    if down == FLOAT32:
        return down
    check_beside_down(settings)
    dtype = layout.dtype
    require(
        dtype == torch.float32,
        f'run.down = "{down}" rounds models of float32, and this one has {dtype}; leave out run.down',
    )
    return down
