"""Cells of a column: which are missing, which are numbers as people write them, and what kind of values the column holds.

Numbers may have signs, commas and units: what is read, and what is refused with a cure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.base.cures import Cure
from coterie.base.errors import InputError, nearest
from coterie.base.spelling import fold, legible, spell
from coterie.config.data import Missing

Floats = NDArray[np.float64]
Texts = NDArray[np.object_]
NOTHING = frozenset(
    {"", "?", "na", "n/a", "#n/a", "#na", "nan", "-nan", "null", "none", "<na>", "nat"}
)
"""Cells that mean "missing" in every column, in lower case (those of pandas, and the question mark of UCI)."""

_LOOKED_AT = 64  # numbers
_BOOLEAN = {"true": 1.0, "false": 0.0}
_MONTH = r"(jan|feb|mar|mär|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-zä]*\.?"
_DAY = rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.](\d{{4}}|\d{{2}})|\d{{1,2}}\.?[ -]{_MONTH}[ -]\d{{2,4}}"
_OF_A_YEAR = rf"(0?[1-9]|1[0-2])/\d{{4}}|\d{{4}}-(0[1-9]|1[0-2])|{_MONTH}[ -]\d{{2,4}}"
_DATE = re.compile(
    rf"({_DAY})([ T]\d{{1,2}}:\d{{2}}.*)?|{_OF_A_YEAR}|[0-2]\d:[0-5]\d(:[0-5]\d)?",
    re.IGNORECASE,
)


_ORDERED_DATE = re.compile(
    r"(?P<year_first>\d{4})([-/.]?(?P<month_first>\d{1,2}))([-/.]?(?P<day_first>\d{1,2}))?(?!\d)"
    r"|(?P<day_last>\d{1,2})\.(?P<month_last>\d{1,2})\.(?P<year_last>\d{4})"
)
"""Dates that begin with the year, or have points between day, month and year: those that only one order of numbers can mean."""


@dataclass(frozen=True)
class Column:
    """The values of one column at one client, as numbers or as texts.

    Attributes:
        kind: number, boolean (1 and 0), text, date, or empty (every value missing).
        numbers: float64 [rows], NaN where missing; None for texts and dates.
        texts: [rows] of str, None where missing; None for the other kinds.
        signs: what stood beside the numbers: "%", "," for thousands, or a currency.
        unknown: cells such as "unknown" and "-": missing among numbers, and all that a column of texts has.
        words: cells that mean "missing" to some and a value to others, such as None, and how many rows have each; of texts.
        padded: whether these are whole numbers of as many digits each, some with zeros in front.
        separator: what stands between the words of a cell, of a column of lists; else empty.
        problem: (kind, data row, cell) if these are probably numbers that cannot be read; `numbers.complaint` says it.
    """

    kind: str
    numbers: Floats | None = None
    texts: Texts | None = None
    signs: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    words: tuple[tuple[str, int], ...] = ()
    padded: bool = False
    separator: str = ""
    problem: tuple[str, int, str] | None = None

    def __len__(self) -> int:
        return len(self.value_names if self.numbers is None else self.numbers)

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        """The rows that have a value, bool [rows]."""
        if self.numbers is not None:
            return ~np.isnan(self.numbers)
        return self.levels[1] >= 0

    @cached_property
    def levels(self) -> tuple[list[str], NDArray[np.int64]]:
        """The different values as names of categories or classes, and for each row which it has, -1 where missing."""
        if self.numbers is None:
            values = [] if self.texts is None else self.texts.tolist()
            names = [*dict.fromkeys(values)]
            if None in names:
                names.remove(None)
            place = {None: -1, **dict(zip(names, range(len(names)), strict=True))}
            return [*map(str, names)], np.array(
                [place[text] for text in values], dtype=np.int64
            )
        distinct, codes = np.unique(
            self.numbers, return_inverse=True
        )  # all NaN are one, at the end
        names = [
            _spell_as(self.kind, value)
            for value in distinct[~np.isnan(distinct)].tolist()
        ]
        return names, np.where(codes < len(names), codes, -1)

    @property
    def value_names(self) -> Texts:
        """Every value as the name of a category or class, None where missing, [rows]."""
        names, codes = self.levels
        return (
            np.array([*names, None], dtype=object)[codes]
            if self.texts is None
            else self.texts
        )

    @cached_property
    def memberships(self) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
        """The different categories; and each pair of a row and a category that it has: rows and codes, int64 [pairs].

        A row has one category, or none; of a column of lists one for each of its words.
        """
        names, codes = self.levels
        if not self.separator:
            rows = np.flatnonzero(codes >= 0)
            return names, rows, codes[rows]
        words = [_words(name, self.separator) for name in names]
        distinct = [*dict.fromkeys(word for listed in words for word in listed)]
        place = {word: j for j, word in enumerate(distinct)}
        pairs = [
            (row, place[word])
            for row, code in enumerate(codes.tolist())
            if code >= 0
            for word in words[code]
        ]
        rows, numbers = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return distinct, rows, numbers

    def with_rows(self, numbers: NDArray[np.int64]) -> Column:
        """Return the column with the row of its problem as the source counts it; `numbers`: the row of the source for each row."""
        if self.problem is None:
            return self
        kind, row, cell = self.problem
        return replace(self, problem=(kind, int(numbers[row - 1]) + 1, cell))

    def where(self, keep: NDArray[np.bool_]) -> Column:
        """Return the column of the rows to keep, bool [rows]."""
        numbers = None if self.numbers is None else self.numbers[keep]
        texts = None if self.texts is None else self.texts[keep]
        column = replace(self, numbers=numbers, texts=texts)
        return column if column.present.any() else replace(column, kind="empty")


def _words(cell: str, separator: str) -> list[str]:
    """Return the different words of a cell of a list."""
    words = (word.strip() for word in cell.split(separator))
    return [*dict.fromkeys(word for word in words if word)]


@dataclass(frozen=True)
class Reading:
    """The way in which the columns of one file are read.

    Attributes:
        missing: per column the values that stand for "missing".
        not_missing: per column the words that do not, although they would in others.
        lists: per column what stands between the words of a cell.
        categorical: columns whose cells are texts even if they look like numbers.
        rename: {name in the file: name to use}; a file that has the new name already keeps both.
        drop: columns that are not read, by their new names.
    """

    missing: Mapping[str, Missing] = field(default_factory=dict)
    categorical: Collection[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    drop: Collection[str] = ()
    not_missing: Mapping[str, Missing] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)

    def is_text(self, key: str) -> bool:
        """Return True for a column whose cells must be read as they are written, even if all look like numbers."""
        return key in self.categorical or key in self.not_missing or key in self.lists

    def names(self, header: Sequence[str]) -> list[str]:
        """The name to use for each column of a file; empty for one that is not read."""
        return ["" if name in self.drop else name for name in self._new_names(header)]

    def check(self, header: Sequence[str], source: str) -> None:
        """Raise `InputError` for a column to drop that the file does not have."""
        have = set(self._new_names(header))
        for name in self.drop:
            if name not in have:
                raise InputError(
                    f"{source} has no column {name!r}, which drop names; {nearest(name, have)}"
                )

    def _new_names(self, header: Sequence[str]) -> list[str]:
        have = set(header)
        return [
            self.rename.get(name, name) if self.rename.get(name) not in have else name
            for name in header
        ]


@dataclass(frozen=True)
class Table:
    """The rows of one client before any preprocessing.

    Attributes:
        name: name of the client.
        source: what a sentence calls it: the file, or the frame.
        columns: by name, in the order of the source.
        parts: row numbers of train, validation and test; empty before the split.
        notes: sentences about what reading left out.
        renamed: columns of the source that have another name here.
        groups: int64 [rows], the same number for rows that belong together; None where nothing says so.
        rows: int64 [rows], the number of each row in the source, from 0; None where all of them are here.
        followup: float64 [rows, 2], entry and time of a label of time to event, whose columns are then no columns; None without one.
    """

    name: str
    source: str
    columns: Mapping[str, Column]
    parts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None
    rows: NDArray[np.int64] | None = None
    followup: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        column = next(iter(self.columns.values()))
        return len(column.value_names if column.numbers is None else column.numbers)

    def data_row(self, row: int | np.integer[Any]) -> int:
        """Return what a sentence calls a row: its number in the source, from 1."""
        return int(row if self.rows is None else self.rows[row]) + 1

    def where(self, keep: NDArray[np.bool_]) -> Table:
        """Return the table of the rows to keep, bool [rows], before they are split into parts."""
        numbers = np.arange(len(self)) if self.rows is None else self.rows
        columns = {key: column.where(keep) for key, column in self.columns.items()}
        return replace(self, columns=columns, rows=numbers[keep])


def _spell_as(kind: str, value: float) -> str:
    return ("true" if value else "false") if kind == "boolean" else spell(value)


def from_numbers(
    values: Any, missing: Missing, *, boolean: bool = False, **properties: Any
) -> Column:
    """A column of numbers. NaN and the values `missing` are missing; `properties`: further attributes of the column."""
    numbers = np.array(values, dtype=np.float64)
    for code in missing:
        value = number(code)
        if value is not None:
            numbers[numbers == value] = np.nan
    wild = np.flatnonzero(np.isinf(numbers))
    if len(wild):
        properties["problem"] = ("infinite", int(wild[0]) + 1, str(numbers[wild[0]]))
    if np.isnan(numbers).all():
        return Column("empty", numbers, **properties)
    if _are_dates(numbers[~np.isnan(numbers)]):
        dates = np.array(
            [None if np.isnan(value) else spell(value) for value in numbers],
            dtype=object,
        )
        return Column("date", None, dates)
    return Column("boolean" if boolean else "number", numbers, **properties)


def are_whole(numbers: Floats) -> bool:
    """Return True if all are whole numbers; the first ones tell of most columns that they are not."""
    leading = numbers[:_LOOKED_AT]
    return bool(
        (np.floor(leading) == leading).all() and (np.floor(numbers) == numbers).all()
    )


def _are_dates(numbers: Floats) -> bool:
    """Return True if all are dates such as 20230131, on more than one day."""
    if (
        numbers.min() == numbers.max()
        or numbers.min() < 19000101
        or numbers.max() > 21001231
    ):
        return False
    days, months = numbers % 100, numbers // 100 % 100
    return bool(
        (
            (days >= 1)
            & (days <= 31)
            & (months >= 1)
            & (months <= 12)
            & (numbers % 1 == 0)
        ).all()
    )


def from_texts(
    cells: Sequence[str | None],
    missing: Missing,
    *,
    comma: Comma = "",
    category: bool = False,
    not_missing: Missing = (),
) -> Column:
    """A column of cells: numbers if all that are not missing are numbers, then booleans, dates, else texts.

    Args:
        cells: As they are written; None for none.
        missing: Values that stand for "missing".
        comma: What a comma in a number means.
        category: Texts whatever they look like.
        not_missing: Words that are values although they often mean "missing".
    """
    codes = {fold(str(code)) for code in missing}
    values = {fold(str(word)) for word in not_missing}
    if not category and not values:
        quick = _quick_numbers(cells, codes)
        ambiguous = comma in ("decimal", "unseen") and any(
            "." in cell for cell in cells if cell
        )
        if quick is not None and not ambiguous:
            return from_numbers(quick, missing, padded=are_padded(cells))
    meaning = {
        cell: legible(cell)
        if cell is not None and fold(cell) in values
        else _clean(cell, codes, comma)
        for cell in set(cells)
    }
    texts = np.empty(len(cells), dtype=object)
    texts[:] = [meaning[cell] for cell in cells]
    distinct = {text for text in meaning.values() if text is not None}
    words = _words_for_missing(cells, codes | values)
    if category or not distinct:
        return Column("text" if distinct else "empty", None, texts, words=words)
    unknown = {text for text in distinct if text.lower() in UNKNOWN}
    unknown -= {text for text in unknown if fold(text) in values}
    values_written = distinct - unknown
    if not values_written:
        unknown_words = tuple(sorted(unknown))
        return Column("text", None, texts, unknown=unknown_words, words=words)
    booleans = {text: _BOOLEAN.get(text.lower()) for text in values_written}
    if None not in booleans.values():
        return from_numbers(
            [booleans.get(text, np.nan) for text in texts],
            missing,
            boolean=True,
            unknown=tuple(sorted(unknown)),
        )
    thousands = thousands_dots(values_written, comma)
    read = {
        text: None if thousands and "." in text else parse_number(text, comma)
        for text in values_written
    }
    signs = {value.signs for value in read.values() if value is not None}
    if (
        None not in read.values()
        and len(
            {tuple(s for s in signs_of_cell if s != ",") for signs_of_cell in signs}
        )
        == 1
    ):
        value_of = {
            text: value.value for text, value in read.items() if value is not None
        }
        return from_numbers(
            [value_of.get(text, np.nan) for text in texts],
            missing,
            signs=tuple(
                sorted({sign for signs_of_cell in signs for sign in signs_of_cell})
            ),
            unknown=tuple(sorted(unknown)),
        )
    dates = sum(_DATE.fullmatch(text) is not None for text in values_written)
    if 4 * dates >= 3 * len(values_written):
        return Column("date", None, texts)
    found = problem(texts.tolist(), read)
    return Column("text", None, texts, words=words, problem=found)


def _words_for_missing(
    cells: Sequence[str | None], answered: Collection[str]
) -> tuple[tuple[str, int], ...]:
    """Return the cells that may or may not mean "missing", as they are written, with the rows of each; none that is answered."""
    counts = Counter(cell.strip() for cell in cells if cell)
    found = {
        cell: rows
        for cell, rows in counts.items()
        if cell.lower() in IN_DOUBT and fold(cell) not in answered
    }
    return tuple(sorted(found.items()))


def are_padded(cells: Sequence[str | None]) -> bool:
    """Return True if all cells are digits, as many in each, and some begin with a zero that no number needs."""
    written = {cell for cell in cells if cell}
    digits = [cell for cell in written if cell.isdecimal()]
    widths = {len(cell) for cell in written}
    zeros = any(cell.startswith("0") for cell in digits)
    return zeros and len(digits) == len(written) and len(widths) == 1 < min(widths)


def _clean(cell: str | None, codes: set[str], comma: Comma) -> str | None:
    """The text of a cell, None for missing; 3.0 is spelled 3, as some programs write whole numbers beside empty cells.

    Not so 3.000 where the dot may stand for thousands.
    """
    text = "" if cell is None else legible(cell)
    if text.lower() in NOTHING or fold(text) in codes:
        return None
    ambiguous = comma in ("decimal", "unseen") and thousands_dots({text}, "decimal")
    return text if ambiguous else re.sub(r"^(-?\d+)\.0+$", r"\1", text)


def times_of(column: Column) -> Floats | None:
    """Return when each row was, in an order that numbers show: a column's numbers, or its dates as yyyymmdd; NaN where missing.

    None for dates that can be read in two ways (1/2/2023), and for what is neither.

    >>> times_of(from_texts(["2023-01-17", "17.2.2023"], ())).tolist()
    [20230117.0, 20230217.0]
    """
    if column.numbers is not None:
        return column.numbers
    if column.kind != "date" or column.texts is None:
        return None
    times = np.full(len(column.texts), np.nan)
    for row, text in enumerate(column.texts.tolist()):
        if text is None:
            continue
        match = _ORDERED_DATE.match(text)
        if match is None:
            return None
        parts = {key: int(value) for key, value in match.groupdict("0").items()}
        year, month, day = (
            parts[f"{key}_first"] + parts[f"{key}_last"]
            for key in ("year", "month", "day")
        )
        times[row] = 10_000 * year + 100 * month + day
    return times


def _quick_numbers(cells: Sequence[str | None], codes: set[str]) -> Floats | None:
    """The numbers of a column without oddities; None where they must be read more closely."""
    missing = NOTHING | codes | {None}
    plain = ["nan" if cell in missing else cell for cell in cells]
    try:
        numbers = np.array([float(cell) for cell in plain if cell is not None])
    except ValueError:
        return None
    return None if "_" in "".join(str(cell) for cell in plain) else numbers


Comma = Literal["decimal", "unseen", "thousands", ""]
"""Meanings of a comma in numbers; "unseen": it would be decimal, but no number has one. The empty text: it cannot be told."""

UNKNOWN = frozenset({"-", "--", ".", "unknown", "missing", "n.a."})
"""Cells that mean "missing" in a column of numbers, in lower case; among texts they are a value like others."""

IN_DOUBT = UNKNOWN | {"none", "na", "n/a"}
"""Cells that say of one column that nothing is known, and are a value of another, such as None among allergies; in lower case."""

_ENOUGH_NUMBERS = 10  # distinct numbers from which on a few texts among them are slips and no categories
_FEW_UNITS = 3
_CURRENCIES = {c: c for c in ("EUR", "USD", "GBP", "CHF", "JPY")}
_CURRENCIES |= {"US$": "USD", "€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY"}
_CURRENCY = "|".join(map(re.escape, _CURRENCIES))
_MONEY = re.compile(
    rf"(?P<minus>[+-]?)\s*(?P<before>{_CURRENCY})?\s*(?P<number>.*?)\s*(?P<after>{_CURRENCY})?",
    re.S,
)
_BOUND = re.compile(r"(<|>|≤|≥|<=|>=)\s*[+-]?\d[\d.,]*")
_WORD = r"[^\W\d_][\w%/²³^.]"
_UNIT = re.compile(
    rf"[+-]?\d[\d.,]*(?P<unit>\s+{_WORD}*|(?!st$|nd$|rd$|th$){_WORD}+|\s*[°‰]\w*|\s*/\s*{_WORD}*)(\s[^\W\d_]+)?"
)
_COMMAS = re.compile(
    r"[+-]?\d[\d.]*,[\d.,]*\d|[+-]?[1-9]\d{0,2}([ '’.]\d{3})+([.,]\d+)?"
)
_DOTS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
_MINUS = re.compile(r"\(\d[\d.,]*\)|\d[\d.,]*-")
_MARK = re.compile(r"[+-]?\d[\d.,]*\s*[*†#!^]+|(~|≈|ca\.?|approx\.?)\s*\d[\d.,]*")
_PAIR = re.compile(r"\d{2,3}\s*/\s*\d{2,3}|\d[\d.,]*\s*±\s*\d[\d.,]*")

_KINDS = {
    "bound": _BOUND,
    "comma": _COMMAS,
    "minus": _MINUS,
    "mark": _MARK,
    "pair": _PAIR,
    "unit": _UNIT,
}

_COMPLAINTS: Mapping[str, str] = {
    "infinite": "is {cell} in data row {row}; give a finite number or leave the cell empty",
    "bound": "has {cell!r} in data row {row} among numbers; write a number (such as half the limit)",
    "unit": "has {cell!r} in data row {row}; write the number alone, without its unit",
    "mark": "has {cell!r} in data row {row}; write the number alone, without a mark",
    "minus": "has {cell!r} in data row {row}; write a negative number with a minus in front",
    "pair": "has {cell!r} in data row {row}; write two numbers in two columns",
    "comma": "has {cell!r} in data row {row}; write decimals with a point and thousands without a sign",
    "sign": "has {cell!r} in data row {row}, while other cells have another sign or none; write all the same way",
    "text": "has {cell!r} in data row {row} among numbers; correct that cell",
    "nested": "holds {cell}, not one number or text a row",
}
SHOWN = 40
"""Characters of a cell that a sentence shows."""

_CODES_FOR_MISSING = ("infinite", "bound", "text")
"""Problems of single cells: such a cell may as well be taken as missing."""


class Written(NamedTuple):
    """A number and the signs that stood with it: "%", "," for thousands, or a currency."""

    value: float
    signs: tuple[str, ...] = ()


def with_signs(signs: Sequence[str]) -> str:
    """Describe in words how numbers are written.

    >>> with_signs(["%", ","]), with_signs([])
    ('with percent signs and thousands commas', 'without signs')
    """
    words = {"%": "percent signs", ",": "thousands commas"}
    return (
        f"with {' and '.join(words.get(sign, sign) for sign in signs)}"
        if signs
        else "without signs"
    )


def complaint(kind: str, row: int, cell: str) -> str:
    """Return the defect of a column of numbers and how to correct it, to be put behind its name.

    >>> complaint("infinite", 3, "inf")
    'is inf in data row 3; give a finite number or leave the cell empty'
    """
    return _COMPLAINTS[kind].format(cell=cell[:SHOWN], row=row)


def cures_of(column: str, kind: str, cell: str, *, label: bool = False) -> list[Cure]:
    """Return the settings with which a column can be used, or left out, although its cells are as `complaint` says.

    >>> [str(cure) for cure in cures_of("crp", "bound", "<5")]
    ['missing.crp = ["<5"]', 'categorical = ["crp"]', 'drop = ["crp"]']
    """
    cures = []
    if kind in _CODES_FOR_MISSING and len(cell) < SHOWN:
        cures.append(Cure("missing", {column: [cell]}))
    if not label and kind not in ("infinite", "nested"):
        cures.append(Cure("categorical", [column]))
    if not label:
        cures.append(Cure("drop", [column]))
    return cures


def number(cell: str | float, comma: Comma = "") -> float | None:
    """The number that `cell` writes without any sign, or None. Python's `1_000` is not a number: it is somebody's code."""
    text = str(cell)
    if comma == "decimal" and re.fullmatch(r"[+-]?\d+,\d+", text):
        text = text.replace(",", ".")
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def parse_number(text: str, comma: Comma) -> Written | None:
    """The number that `text` writes, signs allowed, or None.

    A comma stands for thousands only in a file whose cells are separated by commas, and only before exactly three digits.

    >>> parse_number("1,234.5", "thousands"), parse_number("12.5 %", ""), parse_number("EUR -3", "")
    (Written(value=1234.5, signs=(',',)), Written(value=12.5, signs=('%',)), Written(value=-3.0, signs=('EUR',)))
    """
    text = text.replace("−", "-")
    if text.endswith("%"):
        return _parse_with_signs(text[:-1].rstrip(), comma, "%")
    match = _MONEY.fullmatch(text)
    sign = (match["before"] or match["after"]) if match else None
    if match is None or sign is None:
        return _parse_with_signs(text, comma)
    one_sign = not (match["before"] and match["after"])
    return (
        _parse_with_signs(match["minus"] + match["number"], comma, _CURRENCIES[sign])
        if one_sign
        else None
    )


def _parse_with_signs(text: str, comma: Comma, *signs: str) -> Written | None:
    if comma == "thousands" and re.fullmatch(
        r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", text
    ):
        return Written(float(text.replace(",", "")), (",", *signs))
    value = number(text, comma)
    return None if value is None else Written(value, signs)


def problem(
    texts: Sequence[str | None], read: Mapping[str, Written | None]
) -> tuple[str, int, str] | None:
    """Return why a column of texts is probably one of numbers that cannot be read: (kind, data row, cell); None if it is none.

    `read`: what `parse_number` says of each distinct text.
    """
    numbers = {text for text, value in read.items() if value is not None}
    unread = read.keys() - numbers
    kinds = {text: _kind(text) for text in unread}
    units = {m["unit"].strip() for text in unread if (m := _UNIT.fullmatch(text))}
    if not unread:
        # All are numbers, but some with a sign and some with another.
        usual_signs = _usual(texts, read)
        return _first(
            "sign",
            texts,
            {t for t, value in read.items() if _without_commas(value) != usual_signs},
        )
    bounds_alone = not numbers and set(kinds.values()) == {
        "bound"
    }  # such as the two categories <5 and >=5
    if "text" not in kinds.values() and not bounds_alone and len(units) <= _FEW_UNITS:
        where = _first("text", texts, unread)
        return None if where is None else (kinds[where[2]], *where[1:])
    if len(numbers) < _ENOUGH_NUMBERS:
        return None
    slips = sum(map(unread.__contains__, texts))
    if 4 * slips <= sum(text is not None for text in texts) or 4 * len(unread) <= len(
        read
    ):
        return _first("text", texts, unread)
    return None


def _kind(text: str) -> str:
    stripped = _alone(text)
    return next(
        (kind for kind, pattern in _KINDS.items() if pattern.fullmatch(stripped)),
        "text",
    )


def _alone(text: str) -> str:
    """`text` without a percent sign or a currency."""
    match = _MONEY.fullmatch(text.removesuffix("%"))
    return match["minus"] + match["number"] if match else text


def thousands_dots(texts: Collection[str], comma: Comma) -> bool:
    """Return True if dots in the numbers `texts` stand for thousands, as where a comma is the decimal sign: all before three digits.

    >>> [thousands_dots(cells, "unseen") for cells in ({"950", "1.500"}, {"2.125", "1.500"})]
    [True, False]
    >>> thousands_dots({"250.000", "1.500"}, "decimal")
    True
    """
    dotted = [_alone(text) for text in texts if "." in text]
    may_be = bool(dotted) and (
        comma == "decimal" or (comma == "unseen" and len(dotted) < len(texts))
    )
    return may_be and all(map(_DOTS.fullmatch, dotted))


def _usual(
    texts: Sequence[str | None], read: Mapping[str, Written | None]
) -> tuple[str, ...]:
    """The signs of most cells."""
    signs = [
        _without_commas(read[text])
        for text in texts
        if text is not None and text in read
    ]
    return max(sorted(set(signs)), key=signs.count)


def _without_commas(value: Written | None) -> tuple[str, ...]:
    return () if value is None else tuple(sign for sign in value.signs if sign != ",")


def _first(
    kind: str, texts: Sequence[str | None], suspects: Collection[Any]
) -> tuple[str, int, str] | None:
    return next(
        (
            (kind, row, text)
            for row, text in enumerate(texts, 1)
            if text is not None and text in suspects
        ),
        None,
    )
