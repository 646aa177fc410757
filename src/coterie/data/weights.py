"""Weights of rows that come as tensors beside inputs and labels: they follow their rows through a split, then join the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.base.clients import PARTS, Clients
from coterie.base.errors import InputError, nearest
from coterie.base.label_form import LabelForm, with_weights
from coterie.base.rows import Held, LazyInputs, Rows
from coterie.data.values import is_dataset

KEY = "weights of rows"
"""Name of the weights among the inputs, while rows are dealt."""
ONLY = "inputs"
"""Name of inputs that are one tensor, meanwhile."""


def attach_to_all(clients: Any, weights: Any, is_pair: bool) -> Any:
    """Return the clients that `from_tensors` takes, with the weights of their rows among their inputs.

    Raises `InputError` for weights that are not given as the rows are.
    """
    if is_pair:
        return _attach(clients, weights, "the data set")
    if isinstance(clients, Mapping):
        if not isinstance(weights, Mapping):
            raise InputError(
                "weights are given as clients are: {name: weight of each row}"
            )
        for name in (*weights, *clients):
            if name not in clients:
                raise InputError(
                    f"weights name a client {name!r} that there is not; {nearest(str(name), map(str, clients))}"
                )
            if name not in weights:
                raise InputError(
                    f"weights lack client {name!r}; give it a weight for each row, such as 1"
                )
        return {
            name: _attach(value, weights[name], f"client {name!r}")
            for name, value in clients.items()
        }
    if not isinstance(weights, Sequence) or len(weights) != len(clients):
        raise InputError(
            f"weights are given as clients are: a list with the weights of each of {len(clients)} clients"
        )
    pairs = zip(clients, weights, strict=True)
    return [_attach(value, own, f"client {i}") for i, (value, own) in enumerate(pairs)]


def _attach(value: Any, weights: Any, who: str) -> Any:
    if isinstance(value, Mapping):
        if not isinstance(weights, Mapping) or weights.keys() != value.keys():
            raise InputError(f"weights of {who} need the parts that its rows have")
        return {
            part: None if rows is None else _attach(rows, weights[part], who)
            for part, rows in value.items()
        }
    if isinstance(value, Sequence) and len(value) == 3:
        if not isinstance(weights, Sequence) or len(weights) != 3:
            raise InputError(
                f"weights of {who} need three parts, as its rows have: train, validation and test"
            )
        parts = zip(value, weights, strict=True)
        return tuple(
            None if rows is None else _attach(rows, own, who) for rows, own in parts
        )
    if is_dataset(value) or not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(
            f"weights of {who} go with a pair (inputs, labels); else give labels a last column of weights, and "
            "form=ct.LabelForm(kind, weighted=True)"
        )
    inputs, labels = value
    own = torch.as_tensor(weights).double()
    if own.shape != (len(labels),):
        raise InputError(
            f"weights of {who} have shape {tuple(own.shape)}; give one number for each of its {len(labels)} rows"
        )
    named = inputs if isinstance(inputs, Mapping) else {ONLY: inputs}
    return {**named, KEY: own}, labels


def detach(clients: Clients, form: LabelForm | None) -> Clients:
    """The clients whose inputs hold weights, with these behind their labels; `form` is that of the labels, if somebody declared it.

    Raises `InputError` that names a client with a weight below 0.
    """
    if form is None:
        form = LabelForm.of_labels(clients.train.labels, clients.classes)
    weighted = replace(form, weighted=True)
    kept: dict[int, tuple[Held, Tensor]] = {}
    parts: dict[str, Rows | None] = {}
    for part in PARTS:
        rows: Rows | None = getattr(clients, part)
        parts[part] = rows
        if rows is None:
            continue
        # What parts share stays shared.
        key = id(rows.labels)
        if key not in kept:
            kept[key] = _move(rows)
        parts[part] = Rows(*kept[key], rows.offsets, rows.index)
    joined = clients.with_rows(parts).with_form(weighted)
    for owners, rows in joined.groups():
        for number, owner in enumerate(owners):
            labels = rows.part(number).labels
            if len(labels):
                weighted.check(labels, f"client {owner!r}")
    return joined


def _move(rows: Rows) -> tuple[Held, Tensor]:
    inputs = rows.inputs
    if isinstance(inputs, LazyInputs | Tensor):
        raise InputError("weights of rows go with tensors in memory")
    if rows.labels.ndim > 2:
        raise InputError(
            "weights of rows go with labels [rows] or [rows, columns]; pixels have none"
        )
    others = {name: value for name, value in inputs.items() if name != KEY}
    labels = with_weights(rows.labels, inputs[KEY])
    if list(others) == [ONLY]:
        return others[ONLY], labels
    return others, labels
