"""Description of a client's table before a recipe is agreed on: written by `recipe.describe`, read by the receiver."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.base.errors import InputError, plain

MANY_CATEGORIES = 100
"""A column of texts with more distinct values at one client is left out, unless it is named as categorical."""
MANY_ROWS = 10**12
MANY_WORDS = 100
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_KINDS = ("number", "boolean", "text", "date", "empty")


@dataclass(frozen=True)
class ColumnDescription:
    """One column; what does not apply to its kind is None.

    Attributes:
        kind: "number", "boolean", "text", "date" or "empty".
        signs: units that its numbers are written with.
        unknown: words that say that nothing is known.
        problem: why it cannot be read.
        unique: whether no value repeats.
        identifier: whether it names rows.
        pooled: whether rare categories are missing here.
        categories: those of training rows.
        distinct: how many there are.
        example: data row and text of a cell.
    """

    kind: str
    signs: list[str]
    unknown: list[str]
    problem: str | None = None
    unique: bool | None = None
    identifier: bool | None = None
    pooled: bool | None = None
    categories: list[str] | None = None
    distinct: int | None = None
    example: list[Any] | None = None

    @property
    def is_usable(self) -> bool:
        """True if all is said that a recipe needs of a column of this kind."""
        if self.problem is not None:
            return True
        if self.kind == "text" or self.categories is not None:
            return None not in (
                self.categories,
                self.distinct,
                self.pooled,
                self.identifier,
                self.unique,
            )
        return self.kind != "number" or None not in (self.unique, self.identifier)

    @classmethod
    def parse(cls, table: Any, most: int) -> ColumnDescription | None:
        """Return the description that somebody has sent, of at most so many categories; None if it is none."""
        try:
            column = cls(**table)
        except TypeError:
            return None
        if not column._is_valid(most):
            return None
        return column

    def _is_valid(self, most: int) -> bool:
        """Return True if each field has the type that it should have, and what its kind needs is there."""
        if self.kind not in _KINDS:
            return False
        if not _are_words(self.signs) or not _are_words(self.unknown):
            return False
        flags: list[Any] = [self.unique, self.identifier, self.pooled]
        if not all(flag is None or isinstance(flag, bool) for flag in flags):
            return False
        if self.distinct is not None and not is_count(self.distinct):
            return False
        if self.problem is not None:
            if not _is_word(self.problem) or not isinstance(self.example, list):
                return False
        elif self.example is not None and not _is_cell(self.example):
            return False
        if self.categories is not None:
            allowed = min(most, self.distinct or 0)
            if not _are_words(self.categories, allowed):
                return False
        return self.is_usable


@dataclass(frozen=True)
class LabelDescription:
    """The label: its kind, whether its numbers are whole, their signs, how many values there are, and which if they are few."""

    kind: str
    whole: bool
    signs: list[str]
    distinct: int
    values: list[str]

    @classmethod
    def parse(cls, table: Any) -> LabelDescription | None:
        """Return the description that somebody has sent; None if it is none."""
        try:
            label = cls(**table)
        except TypeError:
            return None
        if not label._is_valid():
            return None
        return label

    def _is_valid(self) -> bool:
        """Return True if each field has the type that it should have, and there are as many values as it says, or fewer."""
        if self.kind not in _KINDS or not isinstance(self.whole, bool):
            return False
        if not _are_words(self.signs) or not is_count(self.distinct):
            return False
        if not _are_words(self.values, min(self.distinct, MANY_CATEGORIES)):
            return False
        return self.kind != "number" or all(map(_is_numeral, self.values))


@dataclass(frozen=True)
class TableDescription:
    """A table: training rows, the name of its source, its columns without the label, and the label."""

    rows: int
    source: str
    columns: Mapping[str, ColumnDescription]
    label: LabelDescription

    def text(self) -> str:
        """Return the description as JSON."""
        columns: dict[str, dict[str, Any]] = {}
        for name, column in self.columns.items():
            told = vars(column).items()
            columns[name] = {key: value for key, value in told if value is not None}
        return json.dumps(
            {
                "rows": self.rows,
                "source": self.source,
                "columns": columns,
                "label": vars(self.label),
            }
        )

    @classmethod
    def parse(cls, text: Any, chosen: Collection[str] = ()) -> TableDescription:
        """Return the description that somebody has sent. Raises `InputError` unless a recipe can be drafted from it.

        Columns `chosen` as categories may have as many as rows, others at most `MANY_CATEGORIES`.
        """
        table = read_json(text, "description")
        rows, source, columns = (
            table.get("rows"),
            table.get("source"),
            table.get("columns"),
        )
        if not is_count(rows) or not rows:
            raise InputError("its description counts no rows")
        if not isinstance(source, str) or not _is_word(source):
            raise InputError("its description names no source")
        if not isinstance(columns, dict) or not isinstance(table.get("label"), dict):
            raise InputError("its description has no columns or no label")
        parsed = {}
        for name, column_table in columns.items():
            most = rows if name in chosen else MANY_CATEGORIES
            column = ColumnDescription.parse(column_table, most)
            if column is None or not _is_word(name):
                raise InputError(
                    f"its description of column {plain(str(name), 40)!r} is none"
                )
            parsed[name] = column
        label = LabelDescription.parse(table["label"])
        if label is None:
            raise InputError("its description of the label is not a description")
        return cls(rows, source, parsed, label)


def read_json(text: Any, file: str) -> dict[str, Any]:
    """Return the table in a text that somebody has sent. Raises `InputError` that calls it `file`."""
    try:
        table = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"its {file} cannot be read ({type(error).__name__})"
        ) from error
    if not isinstance(table, dict):
        raise InputError(f"its {file} is not a table")
    return table


def is_count(value: Any) -> bool:
    """Return True for a number of rows."""
    return type(value) is int and 0 <= value <= MANY_ROWS


def _is_cell(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    row, text = value
    return is_count(row) and _is_word(text)


def _is_word(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > 1000:
        return False
    return _CONTROL.search(value) is None


def _are_words(value: Any, most: int = MANY_WORDS) -> bool:
    if not isinstance(value, list) or len(value) > most:
        return False
    return all(map(_is_word, value))


def _is_numeral(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False
