"""What a reply must be before anything is computed from it: its form, finite numbers, and a norm that is not far from the others'."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.core.envelopes import Block
from coterie.core.replies import Replies
from coterie.core.task import Task
from coterie.core.vector import Layout

__all__ = ["VECTORS", "misfits", "not_finite", "outliers", "well_formed"]

VECTORS = ("update", "gradient")
"""Kinds of fields that are model vectors."""


def well_formed(value: Any, kind: str, count: int, layout: Layout) -> bool:
    """Whether a field of a reply has a row for each of `count` clients, and an update or a gradient the form of a model vector."""
    if not isinstance(value, Tensor):
        return kind == "other" and isinstance(value, tuple | list) and len(value) == count
    if value.shape[:1] != (count,):
        return False
    return kind not in VECTORS or (value.ndim > 1 and value.shape[-1] == layout.size and value.dtype == layout.dtype)


def misfits(blocks: Sequence[Block], task: Task[Any], layout: Layout) -> dict[str, str]:
    """Why replies are refused that do not have the form of the others, by client."""
    refused: dict[str, str] = {}
    for key, kind in task.kinds.items():
        usual = _usual_form(blocks, key, kind, layout)
        for block in blocks:
            value, count = block.values.get(key), len(block.names)
            if not well_formed(value, kind, count, layout) or _form(value) != usual:
                why = _misfit(key, value, kind, count, layout)
                refused = {**dict.fromkeys(block.names, why), **refused}  # the first field that is wrong is named
    return refused


def _usual_form(blocks: Sequence[Block], key: str, kind: str, layout: Layout) -> tuple[Any, ...] | None:
    votes: Counter[tuple[Any, ...]] = Counter()
    for block in blocks:
        value = block.values.get(key)
        if well_formed(value, kind, len(block.names), layout):
            votes[_form(value)] += len(block.names)
    return votes.most_common(1)[0][0] if votes else None


def _form(value: Any) -> tuple[Any, ...]:
    return (value.shape[1:], value.dtype) if isinstance(value, Tensor) else (type(value),)


def _misfit(key: str, value: Any, kind: str, count: int, layout: Layout) -> str:
    if not isinstance(value, Tensor):
        return f"field {key!r} is a {type(value).__name__}, not a tensor with a row per client"
    vector = f"[..., {layout.size}] {layout.dtype}"
    expected = vector if kind in VECTORS else "the form that the other replies have"
    return f"field {key!r} has shape {list(value.shape)} and {value.dtype}; expected [{count}, ...], {expected}"


def not_finite(task: Task[Any], replies: Replies[Any], dim: int) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Why replies are refused that have NaN or Inf, by client; and by field the norm of each update or gradient [n]."""
    refused: dict[str, str] = {}
    norms: dict[str, Tensor] = {}
    for key, value in replies.fields.items():
        if not (isinstance(value, Tensor) and value.is_floating_point()):
            continue
        seen = value
        # A sum or a norm is finite only if all its terms are, and takes a tenth of the time that looking at each of them does.
        if task.kinds[key] in VECTORS:
            heads, seen = value[..., :dim].flatten(1), value[..., dim:]
            norms[key] = torch.linalg.vector_norm(heads, dim=1)
        if math.isfinite(seen.sum().item() + (norms[key].sum().item() if key in norms else 0.0)):
            continue
        finite = torch.isfinite(value.reshape(len(replies), -1)).all(dim=1)
        for name, fine in zip(replies.clients, finite.tolist(), strict=True):
            if not fine:
                refused.setdefault(name, f"field {key!r} has NaN or Inf")
        if key in norms:  # in float64 it cannot overflow, but that copies everything
            norms[key] = torch.linalg.vector_norm(heads, dim=1, dtype=torch.float64)
    return refused, norms


def outliers(names: tuple[str, ...], norms: Mapping[str, Tensor], max_norm: float) -> dict[str, str]:
    """Why vectors are refused whose norm is over `max_norm` times the median, by client; `norms` [n] by field."""
    refused: dict[str, str] = {}
    for key, values in norms.items():
        median = float(values.median()) if len(names) >= 3 else 0.0
        for i in torch.nonzero(values > max_norm * median).flatten().tolist() if median > 0 else ():
            refused[names[i]] = (
                f"field {key!r} has norm {float(values[i]):.3g}, over {max_norm:.0e} times the median {median:.3g}"
            )
    return refused
