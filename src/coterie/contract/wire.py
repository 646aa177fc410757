"""What a wire carries: messages of named values, and nothing that has to be pickled.

A value is a tensor, int, float, bool, str, None, a tuple of these but tensors, `PerClient(tensor)`, a registered frozen dataclass of
such values, or an envelope: a frozen dataclass of the library's own, whose fields may be mappings of values and tuples of envelopes.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from torch import Tensor

from coterie.base.errors import InputError

__all__ = [
    "PerClient",
    "decode",
    "encode",
    "envelope",
    "from_json",
    "header",
    "nbytes",
    "put_together",
    "take_apart",
    "to_json",
    "wire_type",
    "wire_types",
]

DEEPEST = 100
"""How deep the values of a message may be nested."""
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[][{}]', re.DOTALL)
"""A string, which may be without end, or a bracket. Whatever begins with a quote fits, so that no text is looked at twice."""

T = TypeVar("T")
_TYPES: dict[str, type] = {}
_ENVELOPES: dict[str, type] = {}


@dataclasses.dataclass(frozen=True)
class PerClient:
    """A payload with a leading client dimension: row i goes to the i-th client of the ask.

    The rows belong to the clients in the order in which the caller names them.
    """

    tensor: Tensor


def wire_type(cls: type[T]) -> type[T]:
    """Let a frozen dataclass travel, as JSON of its fields."""
    _TYPES[cls.__name__] = cls
    return cls


def envelope(cls: type[T]) -> type[T]:
    """Let a frozen dataclass travel whose fields may be mappings of values, or tuples of envelopes."""
    _ENVELOPES[cls.__name__] = cls
    return cls


def wire_types() -> tuple[type, ...]:
    """All dataclasses that may travel."""
    return tuple(_TYPES.values())


def to_json(value: Any) -> Any:
    """A payload value as plain JSON; tensors are not allowed here."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_json(v) for v in value]
    if dataclasses.is_dataclass(value) and _TYPES.get(type(value).__name__) is type(value):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, "fields": fields}
    raise InputError(
        f"a {type(value).__name__} cannot travel; a payload holds tensors, numbers, strings, None, PerClient(tensor) and dataclasses "
        "registered with @wire_type"
    )


def from_json(value: Any) -> Any:
    """Undo `to_json`; lists come back as tuples."""
    if isinstance(value, list):
        return tuple(from_json(v) for v in value)
    if isinstance(value, dict):
        if value.get("type") not in _TYPES:
            raise InputError(
                f"a payload names the unknown type {value.get('type')!r}; import the module that registers it"
            )
        return _TYPES[value["type"]](**{k: from_json(v) for k, v in value["fields"].items()})
    return value


def take_apart(values: Mapping[str, Any]) -> tuple[str, list[Tensor]]:
    """A message as JSON, and the tensors that it numbers (detached, on the CPU, contiguous)."""
    tensors: list[Tensor] = []
    return json.dumps({k: _apart(v, tensors) for k, v in values.items()}), tensors


def put_together(text: str, tensors: Sequence[Tensor | None]) -> dict[str, Any]:
    """Undo `take_apart`."""
    return {k: _together(v, tensors) for k, v in json.loads(text).items()}


def _apart(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, PerClient | Tensor):
        tensor = value.tensor if isinstance(value, PerClient) else value
        tensors.append(tensor.detach().cpu().contiguous())
        return {"each" if isinstance(value, PerClient) else "tensor": len(tensors) - 1}
    if _ENVELOPES.get(type(value).__name__) is not type(value):
        return to_json(value)
    names = [f.name for f in dataclasses.fields(_ENVELOPES[type(value).__name__])]
    fields = {name: _field_apart(getattr(value, name), tensors) for name in names}
    return {"envelope": type(value).__name__, "fields": fields}


def _field_apart(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Mapping):
        return {"values": {k: _apart(v, tensors) for k, v in value.items()}}
    if isinstance(value, tuple | list):
        return [_apart(v, tensors) for v in value]
    return _apart(value, tensors)


def _together(value: Any, tensors: Sequence[Tensor | None]) -> Any:
    if isinstance(value, list):
        return tuple(_together(v, tensors) for v in value)
    if not isinstance(value, dict) or "type" in value:
        return from_json(value)
    if "values" in value:
        return {k: _together(v, tensors) for k, v in value["values"].items()}
    if "envelope" in value:
        return _ENVELOPES[value["envelope"]](**{k: _together(v, tensors) for k, v in value["fields"].items()})
    tensor = tensors[value["each"] if "each" in value else value["tensor"]]
    return PerClient(tensor) if "each" in value and tensor is not None else tensor


def encode(values: Mapping[str, Any]) -> bytes:
    """A message as bytes: a safetensors file whose metadata holds everything that is not a tensor."""
    from safetensors.torch import save

    text, tensors = take_apart(values)
    # Copies: two names of one storage are refused by safetensors.
    named = {str(number): tensor.clone() for number, tensor in enumerate(tensors)}
    return bytes(save(named, metadata={"coterie": text}))


def decode(message: bytes) -> dict[str, Any]:
    """Undo `encode`. Raises `InputError` if the bytes are no such message."""
    from safetensors.torch import load

    with _readable(message):
        named = load(message)
        return put_together(_text(message), [named[str(number)] for number in range(len(named))])


def header(message: bytes) -> dict[str, Any]:
    """`decode` without reading the tensors: each is None. Raises `InputError` if the bytes are no such message."""
    with _readable(message):
        return put_together(_text(message), _NoTensors())


class _NoTensors(Sequence[Tensor | None]):
    def __getitem__(self, number: Any) -> Any:
        return None

    def __len__(self) -> int:
        return 0


def _text(message: bytes) -> str:
    length = int.from_bytes(message[:8], "little")
    text = str(json.loads(_shallow(message[8 : 8 + length].decode()))["__metadata__"]["coterie"])
    return _shallow(text)


def _shallow(text: str) -> str:
    """`text`, unless it is JSON too deep to be a message: a parser may run out of stack. Raises `ValueError`."""
    depth = 0
    for bracket in _BRACKETS.findall(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(bracket, 0)
        if depth > DEEPEST:
            raise ValueError(f"nested over {DEEPEST} deep")
    return text


@contextmanager
def _readable(message: bytes) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except InputError:
        raise
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
        SafetensorError,
    ) as error:
        raise InputError(f"a message of {len(message)} bytes is not a coterie payload ({error})") from error


def nbytes(values: Mapping[str, Any]) -> int:
    """Bytes of the values themselves, without framing; `PerClient` counts one row, since that is what a client receives."""
    total = 0
    for value in values.values():
        if isinstance(value, PerClient):
            total += value.tensor[:1].numel() * value.tensor.element_size()
        elif isinstance(value, Tensor):
            total += value.numel() * value.element_size()
        elif value is None or isinstance(value, str):
            total += _word_bytes(value)
        else:
            total += 8 if isinstance(value, int | float) else len(json.dumps(to_json(value)))
    return total


@lru_cache(maxsize=256)
def _word_bytes(value: str | None) -> int:
    return len(json.dumps(value))
