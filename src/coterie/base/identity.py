"""The identity of settings, functions and objects, wherever they lie in memory."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import types
from collections.abc import Mapping
from typing import Any


def identity(value: Any, containers: tuple[int, ...] = ()) -> Any:
    """Return what makes two values the same setting, as JSON: the class and every field, also those that only Python can set.

    Of an object that declares no fields, what it keeps; of a function, its name. Nothing depends on where an object lies in memory.

    >>> from coterie.config.schema import Rule
    >>> identity(Rule(len, "a list"))
    ['Rule', {'test': 'len', 'allowed': 'a list', 'words': []}]
    """
    if isinstance(value, bool | int | str | None):
        return value
    if id(value) in containers:
        return "itself"
    containers = (*containers, id(value))
    if isinstance(value, functools.partial):
        return [
            "partial",
            *(
                identity(v, containers)
                for v in (value.func, value.args, value.keywords)
            ),
        ]
    fields = _fields_of(value)
    if fields is not None:
        return [
            type(value).__qualname__,
            {str(k): identity(v, containers) for k, v in fields.items()},
        ]
    if isinstance(value, Mapping):
        return {str(k): identity(v, containers) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [identity(v, containers) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if hasattr(value, "tolist"):  # a tensor or an array
        return [str(value.dtype), value.tolist()]
    # That of `object`, the last class, says where in memory a value lies.
    has_repr = any("__repr__" in vars(cls) for cls in type(value).__mro__[:-1])
    if has_repr and not callable(value):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)


def code_hash(value: Any) -> str:
    """A short hash of a function, a class or an object: its `identity`, and its source where that is known."""
    code = value
    if not (inspect.isfunction(value) or inspect.isclass(value)):
        code = type(value)
    try:
        source = inspect.getsource(code)
    except (OSError, TypeError):  # typed into an interpreter
        source = ""
    text = json.dumps(identity(value), sort_keys=True, default=repr) + source
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def joint_fingerprint(fingerprints: Mapping[str, str]) -> str:
    """The fingerprint of all clients from that of each, so that it can be made where no row is."""
    text = "\n".join(f"{name} {mark}" for name, mark in fingerprints.items())
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    """Fields of a dataclass or a NamedTuple, or whatever else an object keeps; None for functions, classes and plain values."""
    if isinstance(value, type | types.FunctionType):
        return None
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        fields: Mapping[str, Any] = value._asdict()
        return fields
    if hasattr(value, "tolist"):  # a tensor or an array
        return None
    return getattr(value, "__dict__", None)
