"""What a wire carries: payloads of named values, and nothing that has to be pickled.

A value is a tensor, int, float, bool, str, None, `PerClient(tensor)` or a registered frozen dataclass of such values.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from torch import Tensor

from coterie.core.errors import InputError

__all__ = [
    "PerClient",
    "decode",
    "encode",
    "from_json",
    "nbytes",
    "put_together",
    "take_apart",
    "to_json",
    "wire_type",
    "wire_types",
]

T = TypeVar("T")
_TYPES: dict[str, type] = {}


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


def take_apart(values: Mapping[str, Any]) -> tuple[str, dict[str, Tensor]]:
    """The tensors of a payload or a reply by name (detached, on the CPU, contiguous), and JSON that holds everything else."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    each: list[str] = []
    for name, value in values.items():
        if isinstance(value, PerClient | Tensor):
            tensor = value.tensor if isinstance(value, PerClient) else value
            tensors[name] = tensor.detach().cpu().contiguous()
            each += [name] * isinstance(value, PerClient)
        else:
            rest[name] = to_json(value)
    return json.dumps({"order": list(values), "each": each, "rest": rest}), tensors


def put_together(header: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Undo `take_apart`."""
    meta = json.loads(header)
    values = {**{k: from_json(v) for k, v in meta["rest"].items()}, **tensors}
    return {k: PerClient(values[k]) if k in meta["each"] else values[k] for k in meta["order"]}


def encode(values: Mapping[str, Any]) -> bytes:
    """A payload or a reply as bytes: a safetensors file whose metadata holds everything that is no tensor."""
    from safetensors.torch import save

    header, tensors = take_apart(values)
    # Copies: two names of one storage are refused by safetensors.
    return bytes(save({k: v.clone() for k, v in tensors.items()}, metadata={"coterie": header}))


def decode(message: bytes) -> dict[str, Any]:
    """Undo `encode`. Raises `InputError` if the bytes are no such message."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        length = int.from_bytes(message[:8], "little")
        return put_together(json.loads(message[8 : 8 + length])["__metadata__"]["coterie"], load(message))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise InputError(f"a message of {len(message)} bytes is no coterie payload ({error})") from error


def header(message: bytes) -> dict[str, Any]:
    """What of `encode` is no tensor, without reading the tensors. Raises `InputError` if the bytes are no such message."""
    try:
        length = int.from_bytes(message[:8], "little")
        meta = json.loads(json.loads(message[8 : 8 + length])["__metadata__"]["coterie"])
        return {k: from_json(v) for k, v in meta["rest"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"a message of {len(message)} bytes is no coterie payload ({error})") from error


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
