"""The door for TOML from outside: bounded in size and depth, and every defect is one sentence that names the place."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from coterie.core.errors import InputError, plain, require

__all__ = ["parse_toml", "read_text", "read_toml"]

LARGEST = 16 * 2**20
"""Bytes that a file of settings may have."""
DEEPEST = 32
"""Tables and lists within each other."""


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises `InputError` if it is not valid TOML, or too deep."""
    too_deep = f"{place}: more than {DEEPEST} tables and lists lie within each other; write it with fewer"
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise InputError(too_deep) from error
    except ValueError as error:  # also an int of more digits than Python reads
        raise InputError(f"{place} is not valid TOML: {plain(str(error), 120)}") from error
    level: list[Any] = [tables]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
    require(not level, too_deep)
    return tables


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


def _inside(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
