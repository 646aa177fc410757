"""The files of a run directory, read so that every defect is a sentence that names the file."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError
from coterie.base.files import json_rows
from coterie.run.files import unescaped

__all__ = ["Columns", "csv_columns", "number_or_nan", "summary_rows"]

Columns = Mapping[str, Callable[[str], Any]]


def summary_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of `summary.json`; a row without its keys is an error that names it."""
    return json_rows(path, {"method": str, "seed": int, "client": str, "split": str})


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
