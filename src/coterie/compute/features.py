"""Representations: what a layer of a model makes of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from coterie.base.errors import InputError, nearest


@contextmanager
def capture(model: nn.Module, layer: str | None) -> Iterator[list[Tensor]]:
    """A list that holds, after a forward pass, the representations [rows, k] of its rows.

    Args:
        model: The model.
        layer: Name of a module, whose outputs they are; None: the inputs of the linear layer that is called last.

    Raises:
        InputError: There is no such module.
    """
    found: list[Tensor] = []

    def note_inputs(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        found[:] = [inputs[0].flatten(1)]

    def note_outputs(_: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> None:
        found[:] = [outputs.flatten(1)]

    if layer is None:
        linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
        hooks = [m.register_forward_pre_hook(note_inputs) for m in linear]
    else:
        modules = dict(model.named_modules())
        if layer not in modules:
            raise InputError(
                f"the model has no layer {layer!r}; {nearest(layer, modules)}"
            )
        hooks = [modules[layer].register_forward_hook(note_outputs)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def captured(found: list[Tensor]) -> Tensor:
    """Return what `capture` holds. Raises `InputError` for a model that called no such layer."""
    if not found:
        raise InputError(
            "features are the inputs of the last linear layer, and this model calls none; name a layer, or end it with torch.nn.Linear"
        )
    return found[0]
