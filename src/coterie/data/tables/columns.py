"""Columns of a client's table: what kind of values they hold, what counts as missing, and how values are spelled."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.base.errors import nearest, require
from coterie.data.tables.numbers import UNKNOWN, Comma, number, problem, thousands_dots, written
from coterie.data.tables.spelling import fold, legible, spell

__all__ = ["Column", "Missing", "Reading", "Table", "from_numbers", "from_texts"]

Floats = NDArray[np.float64]
Texts = NDArray[np.object_]
Missing = Sequence[str | float]
"""Values of a column that stand for "missing", such as 0 for a cholesterol that nobody measured."""

NOTHING = frozenset({"", "?", "na", "n/a", "#n/a", "#na", "nan", "-nan", "null", "none", "<na>", "nat"})
"""Cells that mean "missing" in every column, in lower case (those of pandas, and the question mark of UCI)."""

_BOOLEAN = {"true": 1.0, "false": 0.0}
_MONTH = r"(jan|feb|mar|mär|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-zä]*\.?"
_DAY = rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.](\d{{4}}|\d{{2}})|\d{{1,2}}\.?[ -]{_MONTH}[ -]\d{{2,4}}"
_OF_A_YEAR = rf"(0?[1-9]|1[0-2])/\d{{4}}|\d{{4}}-(0[1-9]|1[0-2])|{_MONTH}[ -]\d{{2,4}}"
_DATE = re.compile(rf"({_DAY})([ T]\d{{1,2}}:\d{{2}}.*)?|{_OF_A_YEAR}|[0-2]\d:[0-5]\d(:[0-5]\d)?", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """The values of one column at one client, as numbers or as texts.

    Attributes:
        kind: number, boolean (1 and 0), text, date, or empty (every value missing).
        numbers: float64 [rows], NaN where missing; None for texts and dates.
        texts: [rows] of str, None where missing; None for the other kinds.
        signs: what stood beside the numbers: "%", "," for thousands, or a currency.
        unknown: cells such as "unknown" and "-": missing among numbers, and all that a column of texts has.
        problem: (kind, data row, cell) if these are probably numbers that cannot be read; `numbers.complaint` says it.
    """

    kind: str
    numbers: Floats | None = None
    texts: Texts | None = None
    signs: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    problem: tuple[str, int, str] | None = None

    def __len__(self) -> int:
        return len(self.spelled if self.numbers is None else self.numbers)

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which rows have a value, bool [rows]."""
        if self.numbers is not None:
            return ~np.isnan(self.numbers)
        return np.array([t is not None for t in self.spelled], dtype=bool)

    @property
    def spelled(self) -> Texts:
        """Every value as the name of a category or class, None where missing, [rows]."""
        if self.texts is not None:
            return self.texts
        numbers = np.zeros(0) if self.numbers is None else self.numbers
        out = np.empty(len(numbers), dtype=object)
        names = {v: _spell_as(self.kind, float(v)) for v in np.unique(numbers[~np.isnan(numbers)])}
        out[:] = [names.get(v) for v in numbers]
        return out


@dataclass(frozen=True)
class Reading:
    """How the columns of one file are read.

    Attributes:
        missing: per column the values that stand for "missing".
        categorical: columns whose cells are texts even if they look like numbers.
        rename: {name in the file: name to use}; a file that has the new name already keeps both.
        drop: columns that are not read, by their new names.
    """

    missing: Mapping[str, Missing] = field(default_factory=dict)
    categorical: Collection[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    drop: Collection[str] = ()

    def names(self, header: Sequence[str]) -> list[str]:
        """The name to use for each column of a file; empty for one that is not read."""
        return ["" if name in self.drop else name for name in self._renamed(header)]

    def check(self, header: Sequence[str], source: str) -> None:
        """Raise `InputError` for a column to drop that the file does not have."""
        have = set(self._renamed(header))
        for name in self.drop:
            require(name in have, f"{source} has no column {name!r}, which drop names; {nearest(name, have)}")

    def _renamed(self, header: Sequence[str]) -> list[str]:
        return [self.rename.get(name, name) if self.rename.get(name) not in header else name for name in header]


@dataclass(frozen=True)
class Table:
    """The rows of one client before any preprocessing.

    Attributes:
        name: of the client.
        source: what a sentence calls it: the file, or the frame.
        columns: by name, in the order of the source.
        parts: row numbers of train, validation and test; empty before the split.
        notes: sentences about what reading left out.
        renamed: columns of the source that have another name here.
    """

    name: str
    source: str
    columns: Mapping[str, Column]
    parts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def _spell_as(kind: str, value: float) -> str:
    return ("true" if value else "false") if kind == "boolean" else spell(value)


def from_numbers(values: Any, missing: Missing, *, boolean: bool = False, **about: Any) -> Column:
    """A column of numbers. NaN and the values `missing` are missing; `about`: further attributes of the column."""
    numbers = np.array(values, dtype=np.float64)
    for code in missing:
        value = number(code)
        if value is not None:
            numbers[numbers == value] = np.nan
    wild = np.flatnonzero(np.isinf(numbers))
    if len(wild):
        about["problem"] = ("infinite", int(wild[0]) + 1, str(numbers[wild[0]]))
    if np.isnan(numbers).all():
        return Column("empty", numbers, **about)
    if _are_dates(numbers[~np.isnan(numbers)]):
        dates = np.array(["date" if there else None for there in ~np.isnan(numbers)], dtype=object)
        return Column("date", None, dates)
    return Column("boolean" if boolean else "number", numbers, **about)


def _are_dates(numbers: Floats) -> bool:
    """Whether all are dates such as 20230131, on more than one day."""
    if numbers.min() == numbers.max() or numbers.min() < 19000101 or numbers.max() > 21001231:
        return False
    days, months = numbers % 100, numbers // 100 % 100
    return bool(((days >= 1) & (days <= 31) & (months >= 1) & (months <= 12) & (numbers % 1 == 0)).all())


def from_texts(cells: Sequence[str | None], missing: Missing, *, comma: Comma = "", category: bool = False) -> Column:
    """A column of cells: numbers if all that are not missing are numbers, then booleans, dates, else texts.

    `comma`: what a comma in a number means. `category`: texts whatever they look like.
    """
    codes = {fold(str(code)) for code in missing}
    if not category:
        quick = _quick_numbers(cells, codes)
        unclear = comma in ("decimal", "unseen") and any("." in cell for cell in cells if cell)
        if quick is not None and not unclear:
            return from_numbers(quick, missing)
    meaning = {cell: _clean(cell, codes, comma) for cell in set(cells)}
    texts = np.empty(len(cells), dtype=object)
    texts[:] = [meaning[cell] for cell in cells]
    distinct = {text for text in meaning.values() if text is not None}
    if category or not distinct:
        return Column("text" if distinct else "empty", None, texts)
    unknown = {text for text in distinct if text.lower() in UNKNOWN}
    known = distinct - unknown
    if not known:
        return Column("text", None, texts, unknown=tuple(sorted(unknown)))
    booleans = {text: _BOOLEAN.get(text.lower()) for text in known}
    if None not in booleans.values():
        return from_numbers(
            [booleans.get(text, np.nan) for text in texts], missing, boolean=True, unknown=tuple(sorted(unknown))
        )
    thousands = thousands_dots(known, comma)
    read = {text: None if thousands and "." in text else written(text, comma) for text in known}
    signs = {value.signs for value in read.values() if value is not None}
    if None not in read.values() and len({tuple(s for s in some if s != ",") for some in signs}) == 1:
        values = {text: value.value for text, value in read.items() if value is not None}
        return from_numbers(
            [values.get(text, np.nan) for text in texts],
            missing,
            signs=tuple(sorted({sign for some in signs for sign in some})),
            unknown=tuple(sorted(unknown)),
        )
    dates = sum(_DATE.fullmatch(text) is not None for text in known)
    if 4 * dates >= 3 * len(known):
        return Column("date", None, texts)
    return Column("text", None, texts, problem=problem(texts.tolist(), read))


def _clean(cell: str | None, codes: set[str], comma: Comma) -> str | None:
    """The text of a cell, None for missing; 3.0 is spelled 3, as some programs write whole numbers beside empty cells.

    Not so 3.000 where the dot may stand for thousands.
    """
    text = "" if cell is None else legible(cell)
    if text.lower() in NOTHING or fold(text) in codes:
        return None
    unclear = comma in ("decimal", "unseen") and thousands_dots({text}, "decimal")
    return text if unclear else re.sub(r"^(-?\d+)\.0+$", r"\1", text)


def _quick_numbers(cells: Sequence[str | None], codes: set[str]) -> Floats | None:
    """The numbers of a column without oddities; None where somebody has to look closer."""
    gone = NOTHING | codes | {None}
    plain = ["nan" if cell in gone else cell for cell in cells]
    try:
        numbers = np.array([float(cell) for cell in plain if cell is not None])
    except ValueError:
        return None
    return None if "_" in "".join(str(cell) for cell in plain) else numbers
