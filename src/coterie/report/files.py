"""The files of a run directory, read so that every defect is a sentence that names the file."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from coterie.core.errors import InputError, require
from coterie.run.files import unescaped

__all__ = ["Columns", "csv_columns", "number_or_nan", "read", "summary_rows"]

Columns = Mapping[str, Callable[[str], Any]]
T = TypeVar("T")


def read(path: Path, parse: Callable[[str], T]) -> T:
    """The content of a text file, parsed; a file that is missing or broken is an error with its cure."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} cannot be read ({reason}); restore it or repeat the run") from error


def summary_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of `summary.json`; a row without its keys is an error that names it."""
    rows = read(path, json.loads)
    require(isinstance(rows, list), f"{path} is not a list of rows; repeat the run, or see docs/run-directory.md")
    for number, row in enumerate(rows):
        keys = {"method": str, "seed": int, "client": str, "split": str}
        bad = [k for k, kind in keys.items() if not isinstance(row, dict) or not isinstance(row.get(k), kind)]
        if bad:
            raise InputError(f"{path}, row {number}: {', '.join(bad)} missing or of a wrong type; repeat the run")
        yield row


def number_or_nan(text: str) -> float:
    """A number; NaN for an empty field, where a metric is undefined."""
    return math.nan if text in ("", "null", "None") else float(text)


def csv_columns(path: Path, columns: Columns) -> list[list[Any]]:
    """The named columns of a CSV file, converted; any defect is an error that names the line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
        lacking = [c for c in columns if c not in header]
        if lacking:
            raise ValueError(f"line 1 lacks {', '.join(lacking)}")
        uneven = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
        if uneven is not None:
            raise ValueError(f"line {uneven + 2} has {len(rows[uneven])} values for {len(header)} columns")
        by_name = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())
        return [_converted(name, [*map(unescaped, by_name[name])], convert) for name, convert in columns.items()]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}); restore it or repeat the run") from error


def _converted(name: str, texts: Sequence[str], convert: Callable[[str], Any]) -> list[Any]:
    try:
        return list(map(convert, texts))
    except ValueError:
        for line, text in enumerate(texts, start=2):
            try:
                convert(text)
            except ValueError as error:
                raise ValueError(f"line {line}, {name}: {error}") from error
        raise
