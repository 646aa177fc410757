"""Which layers of a model are personal: they stay with a client, and only the others travel."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.vector import Layout, owner_of

Personal = str | tuple[str, ...]


def is_personal_setting(value: Any) -> bool:
    """Return True for "head", "norm" or a tuple of patterns of names."""
    if isinstance(value, tuple):
        return bool(value) and all(
            isinstance(pattern, str) and pattern for pattern in value
        )
    return value in ("head", "norm")


@lru_cache(maxsize=16)
def shared_layout(layout: Layout, personal: Personal, norms: str) -> Layout:
    """Return the layout of the tensors that travel.

    Args:
        layout: Layout of the whole model.
        personal: "head": the layer that a forward pass uses last; "norm": the layers that normalise; or patterns of names of tensors or
            of their modules, such as "encoder.*". Buffers go with their layer.
        norms: With "norm", "batch" for batch norm alone, or "all" for group and layer norm, too.

    Raises:
        InputError: Nothing is personal, or no parameter is shared.
    """
    private = _private_names(layout, personal, norms)
    parameters = tuple(entry for entry in layout.parameters if entry[0] not in private)
    buffers = tuple(entry for entry in layout.buffers if entry[0] not in private)
    if not private:
        raise InputError(
            f"personal = {_spell(personal)} fits no layer of this model, so that all of it would be shared, as in fedavg; name "
            f"layers by patterns such as {layout.parameters[-1][0]!r}"
        )
    if not parameters:
        raise InputError(
            f"personal = {_spell(personal)} fits all layers of this model, so that each client would train alone, as in local; take "
            "a model with more layers, such as mlp, or other patterns"
        )
    return Layout(parameters, buffers, layout.dtype)


def shared_entries(layout: Layout, personal: Personal, norms: str) -> Tensor:
    """Positions of the entries that travel within the model, int64 [d_s + b_s]. Arguments and errors as for `shared_layout`."""
    return _entries(layout, personal, norms)[0]


def personal_entries(layout: Layout, personal: Personal, norms: str) -> Tensor:
    """Positions of the entries that stay within the model, int64. Arguments and errors as for `shared_layout`."""
    return _entries(layout, personal, norms)[1]


@lru_cache(maxsize=16)
def last_layers(layout: Layout, count: int) -> Tensor:
    """Positions of the parameters of the last `count` layers of a forward pass, int64; of all where there are no more layers."""
    trained_layers = set(layout.layers[max(0, len(layout.layers) - count) :])
    chosen = [
        torch.full((shape.numel(),), owner_of(name) in trained_layers)
        for name, shape in layout.parameters
    ]
    return torch.cat(chosen).nonzero().flatten()


def head_shape(layout: Layout) -> tuple[int, int] | None:
    """Return outputs and inputs of the layer that a forward pass uses last; None where its weight is no matrix.

    >>> from torch import nn
    >>> head_shape(Layout.of(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))))
    (2, 8)
    """
    name = f"{layout.layers[-1]}.weight".removeprefix(".")
    shape = dict(layout.parameters).get(name, torch.Size())
    if len(shape) != 2:
        return None
    return shape[0], shape[1]


def feature_width(layout: Layout) -> int:
    """Return the inputs of the layer that a forward pass uses last; 0 where its weight is no matrix."""
    return (head_shape(layout) or (0, 0))[1]


@lru_cache(maxsize=16)
def _entries(layout: Layout, personal: Personal, norms: str) -> tuple[Tensor, Tensor]:
    travelling = shared_layout(layout, personal, norms)
    shared = {name for name, _ in (*travelling.parameters, *travelling.buffers)}
    is_shared = [
        torch.full((shape.numel(),), name in shared)
        for name, shape in (*layout.parameters, *layout.buffers)
    ]
    mask = torch.cat(is_shared)
    return mask.nonzero().flatten(), (~mask).nonzero().flatten()


def _private_names(layout: Layout, personal: Personal, norms: str) -> frozenset[str]:
    names = [name for name, _ in (*layout.parameters, *layout.buffers)]
    if personal == "head":
        modules: Sequence[str] = layout.layers[-1:]
    elif personal == "norm":
        modules = [
            name
            for name, is_batch_norm in layout.norms
            if is_batch_norm or norms == "all"
        ]
    else:
        fitting: set[str] = set()
        for pattern in personal:
            fitting.update(name for name in names if _fits(name, pattern))
        return frozenset(fitting)
    return frozenset(name for name in names if owner_of(name) in modules)


def _fits(name: str, pattern: str) -> bool:
    parts = name.split(".")
    return any(
        fnmatchcase(".".join(parts[:count]), pattern)
        for count in range(1, len(parts) + 1)
    )


def _spell(personal: Personal) -> str:
    if isinstance(personal, str):
        return f'"{personal}"'
    return str(list(personal))
