"""What a reply must be before anything is computed from it: its form, finite numbers, and a norm that is not far from the others'."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.base.vector import Layout
from coterie.contract.envelopes import Ask, Block
from coterie.contract.replies import Replies
from coterie.contract.task import Form, Task

__all__ = ["VECTORS", "medians", "misfits", "not_finite", "outliers", "well_formed"]

VECTORS = ("update", "gradient")
"""Kinds of fields that are model vectors."""


def well_formed(value: Any, kind: str, count: int, layout: Layout) -> bool:
    """Whether a field of a reply has a row for each of `count` clients, and an update or a gradient the form of a model vector."""
    if not isinstance(value, Tensor):
        return kind == "other" and isinstance(value, tuple | list) and len(value) == count
    if value.shape[:1] != (count,):
        return False
    return kind not in VECTORS or (value.ndim > 1 and value.shape[-1] == layout.size and value.dtype == layout.dtype)


def misfits(
    blocks: Sequence[Block],
    ask: Ask,
    task: Task[Any],
    layout: Layout,
    sizes: Callable[[str], Mapping[str, int]],
    kinds: Mapping[str, str],
) -> dict[str, str]:
    """Why replies are refused that are not what the task declares, by client.

    Args:
        blocks: the replies.
        ask: what they answer.
        task: of the ask.
        layout: of model vectors.
        sizes: rows of each client in a part, as its facts say.
        kinds: the fields that are looked at, with what they are.
    """
    refused = _unasked(blocks, ask.names)
    for block in blocks:
        for key in block.values.keys() - task.kinds.keys():
            refused.update(dict.fromkeys(block.names, f"it sends a field {key[:40]!r}, which nobody asked for"))
    for key, kind in kinds.items():
        expected = _expected(blocks, key, ask, task, layout)
        for block in blocks:
            value, count = block.values.get(key), len(block.names)
            if not well_formed(value, kind, count, layout) or _form(value) != expected:
                why = dict.fromkeys(block.names, _misfit(key, value, expected))
            else:
                why = _out_of_range(key, value, block.names, task.forms.get(key), ask, sizes)
            refused = {**why, **refused}  # the first field that is wrong is named
    return refused


def _unasked(blocks: Sequence[Block], asked: Sequence[str]) -> dict[str, str]:
    answered, names = [n for block in blocks for n in block.names], frozenset(asked)
    if len(names.intersection(answered)) == len(answered):
        return {}
    return {
        n: f"it answered {k} times" if n in names else "nobody asked it"
        for n, k in Counter(answered).items()
        if k > 1 or n not in names
    }


def _expected(blocks: Sequence[Block], key: str, ask: Ask, task: Task[Any], layout: Layout) -> tuple[Any, ...] | None:
    """The form of a field as its task declares it; else that of more than half of the replies, and () where no form has so many.

    None stands for no reply that could be read.
    """
    form = task.forms.get(key)
    if form is not None:
        return torch.Size(form.shape(ask.arguments(), layout)), form.dtype or layout.dtype
    votes: Counter[tuple[Any, ...]] = Counter()
    for block in blocks:
        value = block.values.get(key)
        if well_formed(value, task.kinds[key], len(block.names), layout) and isinstance(value, Tensor) != (
            key in task.texts
        ):
            votes[_form(value)] += len(block.names)
    one_vector = (torch.Size((layout.size,)), layout.dtype) if task.kinds[key] in VECTORS else None
    if not votes:
        return one_vector
    usual, count = votes.most_common(1)[0]
    return usual if 2 * count > votes.total() else ()


def _form(value: Any) -> tuple[Any, ...]:
    return (value.shape[1:], value.dtype) if isinstance(value, Tensor) else (type(value),)


def _misfit(key: str, value: Any, expected: tuple[Any, ...] | None) -> str:
    if not isinstance(value, Tensor):
        return f"field {key!r} is a {type(value).__name__}, not a tensor with a row per client"
    wanted = f"; expected {[1, *expected[0]]} and {expected[1]}" if expected and len(expected) == 2 else ""
    if expected == ():  # one of two would else choose for both
        wanted = "; the replies differ, and the task declares no form (coterie.Form) that would tell which is right"
    return f"field {key!r} has shape {list(value.shape)} and {value.dtype}{wanted}"


def _out_of_range(
    key: str,
    value: Any,
    names: tuple[str, ...],
    form: Form | None,
    ask: Ask,
    sizes: Callable[[str], Mapping[str, int]],
) -> dict[str, str]:
    if form is None or not isinstance(value, Tensor):
        return {}
    if form.facts:
        known = sizes(str(ask.payload.get("part", "train")))
        said = zip(names, value.tolist(), strict=True)
        return {
            n: f"field {key!r} says {rows:g} rows, but the facts of this client {known[n]}"
            for n, rows in said
            if n in known and rows != known[n]
        }
    if form.within == (-math.inf, math.inf):
        return {}
    low, high = form.within(ask.arguments()) if callable(form.within) else form.within
    outside = ((value < low) | (value > high)).flatten(1).any(1) if value.ndim > 1 else (value < low) | (value > high)
    return {
        n: f"field {key!r} has a value out of its range"
        for n, wrong in zip(names, outside.tolist(), strict=True)
        if wrong
    }


def not_finite(kinds: Mapping[str, str], replies: Replies[Any], dim: int) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Why replies are refused that have NaN or Inf in these fields, by client; and by field the norm of each update or gradient [n]."""
    refused: dict[str, str] = {}
    norms: dict[str, Tensor] = {}
    for key, kind in kinds.items() if len(replies) else ():
        value = replies.fields[key]
        if not (isinstance(value, Tensor) and value.is_floating_point()):
            continue
        # A sum or a norm is finite only if all its terms are, and takes a tenth of the time that looking at each of them does.
        sums = [value]
        if kind in VECTORS:
            heads = value[..., :dim].flatten(1)
            norms[key] = torch.linalg.vector_norm(heads, dim=1)
            sums = [norms[key], value[..., dim:]] if value.shape[-1] > dim else [norms[key]]
        if math.isfinite(sum(some.sum().item() for some in sums)):
            continue
        finite = torch.isfinite(value.reshape(len(replies), -1)).all(dim=1)
        for name, fine in zip(replies.clients, finite.tolist(), strict=True):
            if not fine:
                refused.setdefault(name, f"field {key!r} has NaN or Inf")
        if key in norms:  # in float64 it cannot overflow, but that copies everything
            norms[key] = torch.linalg.vector_norm(heads, dim=1, dtype=torch.float64)
    return refused, norms


def medians(norms: Mapping[str, Tensor]) -> dict[str, float]:
    """The median of norms [n] by field; 0 for less than three, of which nobody can say who is far from the others."""
    return {key: float(values.median()) if len(values) >= 3 else 0.0 for key, values in norms.items()}


def outliers(
    names: tuple[str, ...], norms: Mapping[str, Tensor], usual: Mapping[str, float], max_norm: float
) -> dict[str, str]:
    """Why vectors are refused whose norm is over `max_norm` times the usual median, by client; `norms` [n] by field."""
    refused: dict[str, str] = {}
    for key, values in norms.items():
        median = usual.get(key, 0.0)
        for i in torch.nonzero(values > max_norm * median).flatten().tolist() if median > 0 else ():
            refused[names[i]] = (
                f"field {key!r} has norm {float(values[i]):.3g}, over {max_norm:g} times the median {median:.3g}"
            )
    return refused
