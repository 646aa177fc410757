"""The doors for files from outside: bounded in size and depth, and every defect is one sentence that names the place."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from coterie.base.errors import InputError, cut, plain, require

__all__ = ["found", "json_rows", "opened_tensors", "parse_json", "parse_toml", "read_json", "read_text", "read_toml"]

T = TypeVar("T")

LARGEST = 16 * 2**20
"""Bytes that a file of settings may have."""
LARGEST_RESULTS = 2**30
"""Bytes that a JSON file of results may have."""
AGAIN = "restore it or repeat the run"
"""The cure for a file of a run directory."""
DEEPEST = 32
"""Tables and lists within each other."""


def found(path: str | os.PathLike[str], kind: Callable[[Path], bool] = Path.exists) -> bool:
    """Whether what a user named is there, as `kind` asks it.

    Raises `InputError` where the system cannot even look: the name is too long, or a folder above it may not be read.
    """
    try:
        return kind(Path(path))
    except OSError as error:
        raise InputError(f"{cut(os.fspath(path))} cannot be looked for: {error.strerror}; check the path") from error


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises `InputError` if it is not valid TOML, or too deep."""
    too_deep = f"{place}: more than {DEEPEST} tables and lists lie within each other; write it with fewer"
    try:
        tables = tomllib.loads(text)
    except RecursionError as error:
        raise InputError(too_deep) from error
    except ValueError as error:  # also an int of more digits than Python reads
        raise InputError(f"{place} is not valid TOML: {plain(str(error), 120)}") from error
    require(not _is_deep(tables), too_deep)
    return tables


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; errors as of `parse_toml` and `read_text`."""
    return parse_toml(read_text(path), str(path))


def parse_json(text: str, place: str, kind: type[T], cure: str = AGAIN) -> T:
    """The value of a JSON text. Raises `InputError` if it is not valid JSON, too deep, or of another kind than `kind`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also an int of more digits than Python reads
        raise InputError(f"{place} cannot be read ({plain(str(error), 100)}); {cure}") from error
    require(not _is_deep(value), f"{place} has more than {DEEPEST} values within each other; {cure}")
    require(isinstance(value, kind), f"{place} holds a {type(value).__name__} and not a {kind.__name__}; {cure}")
    return cast("T", value)


def read_json(path: Path, kind: type[T], cure: str = AGAIN) -> T:
    """The value of a JSON file; errors as of `parse_json` and `read_text`."""
    return parse_json(read_text(path, LARGEST_RESULTS), str(path), kind, cure)


def json_rows(path: Path, keys: Mapping[str, type[Any]]) -> list[dict[str, Any]]:
    """The rows of a JSON file that is a list of objects with these keys; errors as of `read_json`, and one that names a bad row."""
    rows = read_json(path, list)
    for number, row in enumerate(rows):
        bad = [k for k, kind in keys.items() if not isinstance(row, dict) or not isinstance(row.get(k), kind)]
        require(not bad, f"{path}, row {number}: {', '.join(bad)} missing or of a wrong type; {AGAIN}")
    return rows


@contextmanager
def opened_tensors(path: Path, framework: str, cure: str = AGAIN) -> Iterator[tuple[Any, dict[str, Any]]]:
    """An open safetensors file, and what coterie wrote about it (empty if nothing).

    Whatever is wrong with the file, and comes out while the block reads it, is an `InputError` with this cure.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework=framework) as file:
            about = parse_json((file.metadata() or {}).get("coterie", "{}"), str(path), dict, cure)
            yield file, about
    except InputError:
        raise
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{path} cannot be read ({plain(str(error), 100)}); {cure}") from error


def read_text(path: Path, largest: int = LARGEST) -> str:
    """A text file of at most `largest` bytes. Raises `InputError` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            raw = file.read(largest + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    require(len(raw) <= largest, f"{path} has more than {largest:,} bytes; a file of settings has a few thousand")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not a text in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error


def _is_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
