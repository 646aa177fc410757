"""Requests that are made from a declaration: one that it allows, and others that differ from that one in a single field.

So a new task is attacked without being listed: `coterie attack` and the tests send what is made here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.config.local import Schedule
from coterie.contract.payload import payload_fields
from coterie.contract.requests import Among, Asks, Limits
from coterie.contract.task import Holds
from coterie.contract.wire import PerClient

ODD_VALUES = ("a value that nobody declares", -7919, 7919.5, True, ("nobody",), None)
"""No method has a setting with one of these values, but for None and True, which are left out where they may stand."""


class Probe(NamedTuple):
    """A payload that is not as declared: which field differs and how, in words."""

    field: str
    how: str
    payload: dict[str, Any]


def example_payload(
    declaration: Asks, owner: Any, limits: Limits, round: int = 1
) -> dict[str, Any]:
    """Return a payload that a declaration allows: zeros of the declared shapes, and the first of the values that a field may hold."""
    payload: dict[str, Any] = {}
    for key, field in payload_fields(declaration.task).items():
        if field.holds is not None:
            most = declaration.most_models(limits.clients)
            sizes = [
                _size_of(dimension, limits, most) for dimension in field.holds.shape
            ]
            # Of what may stand there the value nearest to 0.
            low = max(0.0, field.holds.within[0])
            values = torch.full(sizes, low, dtype=torch.float64)
            values = values.to(limits.dtype_of(field.holds))
            payload[key] = values
            if field.holds.each:
                payload[key] = PerClient(values[None])
        elif field.needed:
            payload[key] = _first_value(_allowed_values(declaration, owner, key), round)
    return payload


def probes(
    declaration: Asks, owner: Any, limits: Limits, payload: Mapping[str, Any]
) -> Iterator[Probe]:
    """Yield payloads that differ from one that is allowed in a field each: another shape, dtype, value, more copies, none at all."""
    yield Probe("nobody", "a field more", {**payload, "nobody": 1})
    for key, field in payload_fields(declaration.task).items():
        if field.needed:
            yield Probe(key, "left out", {k: v for k, v in payload.items() if k != key})
        if field.tensor:
            most = declaration.most_models(limits.clients)
            values = _wrong_tensors(
                field.holds, payload.get(key), field.optional, limits, most
            )
        else:
            values = _wrong_values(
                _allowed_values(declaration, owner, key), payload.get(key)
            )
        for way, value in values:
            yield Probe(key, way, {**payload, key: value})


def _allowed_values(declaration: Asks, owner: Any, key: str) -> Any:
    return declaration.values.get(key, getattr(owner, key, None))


def _size_of(dimension: Any, limits: Limits, models: int) -> int:
    if isinstance(dimension, tuple):
        return _size_of(dimension[0], limits, models)
    if isinstance(dimension, int):
        return dimension
    if dimension == "models":
        return models
    return int(getattr(limits, dimension))


def _first_value(allowed: Any, round: int) -> Any:
    if isinstance(allowed, Among):
        return _first_value(allowed.values[0], round)
    if isinstance(allowed, range):
        return allowed[0]
    if isinstance(allowed, Schedule):
        return allowed.rate(round)
    return allowed


def _wrong_tensors(
    holds: Holds | None, value: Any, optional: bool, limits: Limits, models: int
) -> Iterator[tuple[str, Any]]:
    """Yield what cannot stand in the place of a tensor that is declared so."""
    if holds is None or value is None:
        return
    if not (optional or holds.own):
        yield "None", None
    yield "a text", "0"
    yield "a number", 0.0
    yield "a list", (0.0, 0.0)
    per_client = isinstance(value, PerClient)
    tensor: Tensor = value
    if isinstance(value, PerClient):
        tensor = value.tensor[0]

    def wrap(tensor: Tensor) -> Any:
        if per_client:
            return PerClient(tensor[None])
        return tensor

    if holds.each is not None and per_client:
        yield "for all clients", tensor
    elif holds.each is not None:
        yield "for each client", PerClient(tensor[None])
    yield "of two clients", PerClient(torch.stack([tensor, tensor]))
    yield "a dimension more", wrap(tensor[None])
    if tensor.ndim:
        yield "nothing in it", wrap(tensor[..., :0])
        yield "an entry more", wrap(torch.cat([tensor, tensor[..., -1:]], -1))
        yield "an entry less", wrap(tensor[..., :-1])
        yield "a dimension less", wrap(tensor.reshape(-1)[0])
    for dimension, most in (("models", models), ("clients", limits.clients)):
        if holds.shape[:1] == (dimension,):
            row = tensor[:1]
            for count in (most + 1, 64 * most):
                yield (
                    f"copies for {count} {dimension}",
                    wrap(row.expand(count, *row.shape[1:]).contiguous()),
                )
    own_dtype = tensor.dtype
    for dtype in (
        torch.float16,
        torch.float32,
        torch.float64,
        torch.int64,
        torch.bool,
        torch.complex64,
    ):
        if dtype != own_dtype:
            yield str(dtype), wrap(tensor.to(dtype))
    if not own_dtype.is_floating_point or not tensor.numel():
        return
    extremes: list[float] = []
    if holds.finite:
        extremes = [math.nan, math.inf, -math.inf]
    low, high = holds.within
    if low > -math.inf:
        extremes.append(low - 1)
    if high < math.inf:
        extremes.append(2 * high + 1)
    for number in extremes:
        changed = tensor.clone()
        changed.view(-1)[-1] = number
        yield f"a {number} in it", wrap(changed)


def _wrong_values(allowed: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what cannot stand in the place of a value that is declared so."""
    possible = (allowed, value)
    if isinstance(allowed, Among):
        possible = allowed.values
    for odd_value in ODD_VALUES:
        if not any(odd_value is value for value in possible):
            yield repr(odd_value), odd_value
    yield "a tensor", torch.zeros(2)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return
    for part in dataclasses.fields(value):
        for wrong, changed in _with_others(value, part.name):
            yield f"its {part.name} is {wrong!r}", changed


def _with_others(value: Any, field: str) -> Iterator[tuple[Any, Any]]:
    """Yield other values of a field and the dataclass with them, but for those that it refuses itself."""
    for wrong in _others(getattr(value, field)):
        try:
            yield wrong, dataclasses.replace(value, **{field: wrong})
        except InputError:
            continue


def _others(value: Any) -> list[Any]:
    """Return values of the same kind; a dataclass that would hold them may refuse some."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        if value == 1:
            return [2, 9]
        return [value + 1, 2 * value + 7, 1]
    if isinstance(value, float):
        return [2 * value + 0.125, value + 1e-9]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        count = next(iter(dataclasses.fields(value))).name
        return [changed for _, changed in _with_others(value, count)]
    if value is None:
        return [1, 0.5]
    return []
