"""Messages of named values as bytes, for clients that are in other processes or at other parties: safetensors, and nothing pickled."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.vector import align
from coterie.config.schema import wire_types
from coterie.contract.wire import ENVELOPES, Answer, PerClient, envelope, to_json

DEEPEST = 20
"""How deep the values of a message may be nested."""
HEAD = 1 << 16
"""Bytes before the tensors of a message between parties: names, settings, shapes; more where tables have many columns."""
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[][{}]', re.DOTALL)
"""A string, which may be without end, or a bracket. Whatever begins with a quote fits, so that no text is looked at twice."""

_Tensors = Sequence[Tensor] | Mapping[int, Tensor | None]


def from_json(value: Any) -> Any:
    """Undo `to_json`; lists come back as tuples."""
    if isinstance(value, list):
        return tuple(from_json(v) for v in value)
    if isinstance(value, dict):
        if value.get("type") not in wire_types():
            raise InputError(
                f"a payload names the unknown type {value.get('type')!r}; import the module that registers it"
            )
        fields = {key: from_json(v) for key, v in value["fields"].items()}
        return wire_types()[value["type"]](**fields)
    return value


def take_apart(values: Mapping[str, Any]) -> tuple[str, list[Tensor]]:
    """A message as JSON, and the tensors that it numbers (detached, contiguous)."""
    tensors: list[Tensor] = []
    return json.dumps({k: _apart(v, tensors) for k, v in values.items()}), tensors


def put_together(text: str, tensors: _Tensors) -> dict[str, Any]:
    """Undo `take_apart`."""
    return {k: _together(v, tensors) for k, v in json.loads(text).items()}


def _apart(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, PerClient):
        tensors.append(value.tensor.detach().contiguous())
        return {"each": len(tensors) - 1}
    if isinstance(value, Tensor):
        tensors.append(value.detach().contiguous())
        return {"tensor": len(tensors) - 1}
    if ENVELOPES.get(type(value).__name__) is not type(value):
        return to_json(value)
    names = [f.name for f in dataclasses.fields(ENVELOPES[type(value).__name__])]
    fields = {name: _field_apart(getattr(value, name), tensors) for name in names}
    return {"envelope": type(value).__name__, "fields": fields}


def _field_apart(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Mapping):
        return {"values": {k: _apart(v, tensors) for k, v in value.items()}}
    if isinstance(value, tuple | list):
        return [_apart(v, tensors) for v in value]
    return _apart(value, tensors)


def _together(value: Any, tensors: _Tensors) -> Any:
    if isinstance(value, list):
        return tuple(_together(v, tensors) for v in value)
    if not isinstance(value, dict) or "type" in value:
        return from_json(value)
    if "values" in value:
        return {k: _together(v, tensors) for k, v in value["values"].items()}
    if "envelope" in value:
        fields = {k: _together(v, tensors) for k, v in value["fields"].items()}
        return ENVELOPES[value["envelope"]](**fields)
    if "each" not in value:
        return tensors[value["tensor"]]
    tensor = tensors[value["each"]]
    if tensor is None:  # of a `header`
        return None
    return PerClient(tensor)


def encode(values: Mapping[str, Any]) -> bytes:
    """A message as bytes: a safetensors file whose metadata holds everything that is not a tensor."""
    from safetensors.torch import save

    text, tensors = take_apart(values)
    # Copies: two names of one storage are refused by safetensors.
    named = {str(number): tensor.cpu().clone() for number, tensor in enumerate(tensors)}
    return bytes(save(named, metadata={"coterie": text}))


def decode(message: bytes, longest_head: int | None = None) -> dict[str, Any]:
    """Undo `encode`.

    Args:
        message: the bytes.
        longest_head: bytes that may come before the tensors; no parser sees more. None: any number, for messages of our own.

    Raises `InputError` if the bytes are no such message.
    """
    from safetensors.torch import load

    with _readable(message):
        text = _text(message, longest_head)
        named = load(message)
        tensors = [align(named[str(number)]) for number in range(len(named))]
        return put_together(text, tensors)


def send(values: Mapping[str, Any]) -> dict[str, Any]:
    """`decode(encode(values))`, with each tensor on the device on which it was."""
    text, received = take_apart(decode(encode(values)))
    _, sent = take_apart(values)
    tensors = [new.to(old.device) for new, old in zip(received, sent, strict=True)]
    return put_together(text, tensors)


def header(message: bytes, longest_head: int | None = None) -> dict[str, Any]:
    """`decode` without reading the tensors: each is None. Arguments and errors as of `decode`."""
    with _readable(message):
        return put_together(_text(message, longest_head), defaultdict(type(None)))


def _text(message: bytes, longest_head: int | None) -> str:
    length = int.from_bytes(message[:8], "little")
    if longest_head is not None and length > longest_head:
        raise ValueError(f"a head of {length} bytes, more than {longest_head}")
    head = json.loads(_shallow(message[8 : 8 + length].decode()))
    return _shallow(str(head["__metadata__"]["coterie"]))


def _shallow(text: str) -> str:
    """`text`, unless it is JSON too deep to be a message: a parser may run out of stack. Raises `ValueError`."""
    depth = 0
    for bracket in _BRACKETS.findall(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(bracket, 0)
        if depth > DEEPEST:
            raise ValueError(f"nested over {DEEPEST} deep")
    return text


_BROKEN = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""Errors of bytes that are no message."""


@contextmanager
def _readable(message: bytes) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except InputError:
        raise
    except (*_BROKEN, SafetensorError) as error:
        raise InputError(
            f"a message of {len(message)} bytes is not a coterie payload ({error})"
        ) from error


@envelope
@dataclass(frozen=True)
class Refusal:
    """The sentence of an `InputError` that another process raised instead of answering."""

    sentence: str


@envelope
@dataclass(frozen=True)
class Saved:
    """The memory of clients, as `Memory.save` gives it."""

    values: Mapping[str, Tensor]


def answer_in(message: Mapping[str, Any]) -> Answer:
    """The answer that a message of another process holds. Raises the `InputError` of that process, or one if there is no answer."""
    answer = message.get("answer")
    if isinstance(answer, Refusal):
        raise InputError(answer.sentence)
    if not isinstance(answer, Answer):
        raise InputError(f"an answer is missing; got a {type(answer).__name__}")
    return answer
