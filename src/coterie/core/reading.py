"""The door for TOML and JSON from outside: bounded in size and depth, and every defect is one sentence that names the place."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.core.errors import InputError, plain, require

__all__ = ["parse_json", "parse_toml", "read_text", "read_toml"]

LARGEST = 16 * 2**20
"""Bytes that a file of settings may have."""
DEEPEST = 32
"""Tables and lists within each other."""


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises `InputError` if it is not valid TOML, or too deep."""
    tables: dict[str, Any] = _parsed(text, place, tomllib.loads, "TOML")
    return tables


def parse_json(text: str, place: str) -> Any:
    """The value of a JSON text. Raises `InputError` if it is not valid JSON, or too deep."""
    return _parsed(text, place, json.loads, "JSON")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; errors as of `parse_toml` and `read_text`."""
    return parse_toml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """A text file of at most `LARGEST` bytes. Raises `InputError` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    require(len(raw) <= LARGEST, f"{path} has more than {LARGEST:,} bytes; a file of settings has a few thousand")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not a text in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error


def _parsed(text: str, place: str, parse: Callable[[str], Any], kind: str) -> Any:
    try:
        value = parse(text)
    except RecursionError:
        value = _too_deep(place)
    except ValueError as error:  # also an int of more digits than Python reads
        raise InputError(f"{place} is not valid {kind}: {plain(str(error), 120)}") from error
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
    return _too_deep(place) if level else value


def _too_deep(place: str) -> Any:
    raise InputError(f"{place}: more than {DEEPEST} tables and lists lie within each other; write it with fewer")


def _inside(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
