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
        if self.numbers is None:
            return len(self.value_names)
        return len(self.numbers)

    def numbers_in(self, rows: NDArray[np.int64]) -> Floats:
        """The numbers in some rows; NaN where the column has none."""
        if self.numbers is None:
            return np.full(len(rows), np.nan)
        return self.numbers[rows]

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
            values: list[Any] = []  # texts, None where missing
            if self.texts is not None:
                values = self.texts.tolist()
            names = [*dict.fromkeys(values)]
            if None in names:
                names.remove(None)
            place = {None: -1, **dict(zip(names, range(len(names)), strict=True))}
            codes = np.array([place[text] for text in values], dtype=np.int64)
            return [*map(str, names)], codes
        # All NaN are one, at the end.
        distinct, codes = np.unique(self.numbers, return_inverse=True)
        present = distinct[~np.isnan(distinct)].tolist()
        names = [_spell_as(self.kind, value) for value in present]
        return names, np.where(codes < len(names), codes, -1)

    @property
    def value_names(self) -> Texts:
        """Every value as the name of a category or class, None where missing, [rows]."""
        if self.texts is not None:
            return self.texts
        names, codes = self.levels
        return np.array([*names, None], dtype=object)[codes]

    @cached_property
    def memberships(self) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
        """The different categories; and each pair of a row and a category that it has: rows and codes, int64 [pairs].

        A row has one category, or none; of a column of lists one for each of its words.
        """
        names, codes = self.levels
        if not self.separator:
            rows = np.flatnonzero(codes >= 0)
            return names, rows, codes[rows]
        place: dict[
            str, int
        ] = {}  # of each word among all, in the order in which they come
        words_of_level: list[list[int]] = []
        for name in names:
            words = _words(name, self.separator)
            words_of_level.append([place.setdefault(w, len(place)) for w in words])
        pairs: list[tuple[int, int]] = []
        for row, code in enumerate(codes.tolist()):
            if code >= 0:
                pairs += [(row, word) for word in words_of_level[code]]
        rows, numbers = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return [*place], rows, numbers

    def with_rows(self, numbers: NDArray[np.int64]) -> Column:
        """Return the column with the row of its problem as the source counts it; `numbers`: the row of the source for each row."""
        if self.problem is None:
            return self
        kind, row, cell = self.problem
        return replace(self, problem=(kind, int(numbers[row - 1]) + 1, cell))

    def where(self, keep: NDArray[np.bool_]) -> Column:
        """Return the column of the rows to keep, bool [rows]."""
        column = self
        if self.numbers is not None:
            column = replace(column, numbers=self.numbers[keep])
        if self.texts is not None:
            column = replace(column, texts=self.texts[keep])
        if not column.present.any():
            return replace(column, kind="empty")
        return column


def _words(cell: str, separator: str) -> list[str]:
    """Return the different words of a cell of a list."""
    words = dict.fromkeys(word.strip() for word in cell.split(separator))
    return [word for word in words if word]


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
        names = []
        for name in header:
            new_name = self.rename.get(name, name)
            if new_name in have:
                new_name = name
            names.append(new_name)
        return names


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
        exposure: float64 [rows], in what the count of the label was counted; likewise.
        weights: float64 [rows], how much each row counts; likewise.
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
    exposure: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def numbers_in_source(self) -> NDArray[np.int64]:
        """The number of each row in the source, from 0, int64 [rows]."""
        if self.rows is None:
            return np.arange(len(self))
        return self.rows

    def data_row(self, row: int | np.integer[Any]) -> int:
        """Return what a sentence calls a row: its number in the source, from 1."""
        if self.rows is not None:
            row = self.rows[row]
        return int(row) + 1

    def where(self, keep: NDArray[np.bool_]) -> Table:
        """Return the table of the rows to keep, bool [rows], before they are split into parts."""
        numbers = self.numbers_in_source()
        columns = {key: column.where(keep) for key, column in self.columns.items()}
        return replace(self, columns=columns, rows=numbers[keep])


def _spell_as(kind: str, value: float) -> str:
    if kind != "boolean":
        return spell(value)
    return "true" if value else "false"


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
    present = ~np.isnan(numbers)
    if _are_dates(numbers[present]):
        dates = np.full(len(numbers), None, dtype=object)
        dates[present] = [spell(value) for value in numbers[present]]
        return Column("date", None, dates)
    kind = "boolean" if boolean else "number"
    return Column(kind, numbers, **properties)


def are_whole(numbers: Floats) -> bool:
    """Return True if all are whole numbers; the first ones tell of most columns that they are not."""
    leading = numbers[:_LOOKED_AT]
    return bool(
        (np.floor(leading) == leading).all() and (np.floor(numbers) == numbers).all()
    )


def _are_dates(numbers: Floats) -> bool:
    """Return True if all are dates such as 20230131, on more than one day."""
    low, high = numbers.min(), numbers.max()
    in_two_centuries = low >= 19000101 and high <= 21001231
    if low == high or not in_two_centuries:
        return False
    days, months = numbers % 100, numbers // 100 % 100
    are_days = (days >= 1) & (days <= 31)
    are_months = (months >= 1) & (months <= 12)
    return bool((are_days & are_months & (numbers % 1 == 0)).all())


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
        comma_is_decimal = comma in ("decimal", "unseen")
        ambiguous = comma_is_decimal and any("." in cell for cell in cells if cell)
        if quick is not None and not ambiguous:
            return from_numbers(quick, missing, padded=are_padded(cells))
    meaning: dict[str | None, str | None] = {}
    for cell in set(cells):
        if cell is not None and fold(cell) in values:
            meaning[cell] = legible(cell)
        else:
            meaning[cell] = _clean(cell, codes, comma)
    texts = np.empty(len(cells), dtype=object)
    texts[:] = [meaning[cell] for cell in cells]
    distinct = {text for text in meaning.values() if text is not None}
    words = _words_for_missing(cells, codes | values)
    if not distinct:
        return Column("empty", None, texts, words=words)
    if category:
        return Column("text", None, texts, words=words)
    unknown = tuple(
        text
        for text in sorted(distinct)
        if text.lower() in UNKNOWN and fold(text) not in values
    )
    values_written = distinct.difference(unknown)
    if not values_written:
        return Column("text", None, texts, unknown=unknown, words=words)
    booleans = {text: _BOOLEAN.get(text.lower()) for text in values_written}
    if None not in booleans.values():
        ones = [booleans.get(text, np.nan) for text in texts]
        return from_numbers(ones, missing, boolean=True, unknown=unknown)
    has_thousands_dots = thousands_dots(values_written, comma)
    read: dict[str, Written | None] = {}
    for text in values_written:
        read[text] = None
        is_unclear = has_thousands_dots and "." in text
        if not is_unclear:
            read[text] = parse_number(text, comma)
    value_of: dict[str, float] = {}
    signs: set[str] = set()
    kinds_of_signs: set[tuple[str, ...]] = set()
    for text, value in read.items():
        if value is not None:
            value_of[text] = value.value
            signs.update(value.signs)
            kinds_of_signs.add(_without_commas(value))
    if len(value_of) == len(read) and len(kinds_of_signs) == 1:
        numbers = [value_of.get(text, np.nan) for text in texts]
        signs_written = tuple(sorted(signs))
        return from_numbers(numbers, missing, signs=signs_written, unknown=unknown)
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
    if len(digits) < len(written) or len(widths) != 1:
        return False
    # A single digit 0 is a number.
    return min(widths) > 1 and any(cell.startswith("0") for cell in digits)


def _clean(cell: str | None, codes: set[str], comma: Comma) -> str | None:
    """The text of a cell, None for missing; 3.0 is spelled 3, as some programs write whole numbers beside empty cells.

    Not so 3.000 where the dot may stand for thousands.
    """
    if cell is None:
        return None
    text = legible(cell)
    if text.lower() in NOTHING or fold(text) in codes:
        return None
    if comma in ("decimal", "unseen") and thousands_dots({text}, "decimal"):
        return text
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text)


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
        # One of the two ways to order a date has matched; the parts of the other are 0.
        parts = {key: int(value) for key, value in match.groupdict("0").items()}
        year = parts["year_first"] + parts["year_last"]
        month = parts["month_first"] + parts["month_last"]
        day = parts["day_first"] + parts["day_last"]
        times[row] = 10_000 * year + 100 * month + day
    return times


def _quick_numbers(cells: Sequence[str | None], codes: set[str]) -> Floats | None:
    """The numbers of a column without oddities; None where they must be read more closely."""
    missing = NOTHING | codes
    plain = ["nan" if cell is None or cell in missing else cell for cell in cells]
    try:
        numbers = np.array([float(cell) for cell in plain])
    except ValueError:
        return None
    if "_" in "".join(plain):  # Python reads 1_000, which is somebody's code
        return None
    return numbers


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
    if not signs:
        return "without signs"
    words = {"%": "percent signs", ",": "thousands commas"}
    return f"with {' and '.join(words.get(sign, sign) for sign in signs)}"


def complaint(kind: str, row: int, cell: str) -> str:
    """Return the defect of a column of numbers and how to correct it, to be put behind its name.

    >>> complaint("infinite", 3, "inf")
    'is inf in data row 3; give a finite number or leave the cell empty'
    """
    return _COMPLAINTS[kind].format(cell=cell[:SHOWN], row=row)


def example(column: Column) -> list[Any]:
    """The first cell that is not a number, else the first, and its data row, for the sentence about a column of two kinds."""
    leading: list[Any] = []
    for row, text in enumerate(column.value_names, 1):
        if text is None:
            continue
        cell = [row, str(text)[:SHOWN]]
        if not re.fullmatch(r"[-+]?\d*[.,]?\d+([eE][-+]?\d+)?", str(text)):
            return cell
        leading = leading or cell
    return leading


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
    sign = ""
    if match is not None:
        if match["before"] and match["after"]:
            return None
        sign = match["before"] or match["after"]
    if match is None or not sign:
        return _parse_with_signs(text, comma)
    currency = _CURRENCIES[sign]
    return _parse_with_signs(match["minus"] + match["number"], comma, currency)


def _parse_with_signs(text: str, comma: Comma, *signs: str) -> Written | None:
    if comma == "thousands" and re.fullmatch(
        r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?", text
    ):
        return Written(float(text.replace(",", "")), (",", *signs))
    value = number(text, comma)
    if value is None:
        return None
    return Written(value, signs)


def problem(
    texts: Sequence[str | None], read: Mapping[str, Written | None]
) -> tuple[str, int, str] | None:
    """Return why a column of texts is probably one of numbers that cannot be read: (kind, data row, cell); None if it is none.

    `read`: what `parse_number` says of each distinct text.
    """
    unread = {text for text, value in read.items() if value is None}
    if not unread:
        # All are numbers, but some with a sign and some with another.
        signs = {text: _without_commas(value) for text, value in read.items()}
        signs_of_cells = [
            signs[text] for text in texts if text is not None and text in signs
        ]
        usual = max(sorted(set(signs_of_cells)), key=signs_of_cells.count)
        odd = {text for text in read if signs[text] != usual}
        row, cell = _find_first(texts, odd)
        return "sign", row, cell
    row, cell = _find_first(texts, unread)
    kinds = {_kind(text) for text in unread}
    units = {m["unit"].strip() for text in unread if (m := _UNIT.fullmatch(text))}
    has_numbers = len(unread) < len(read)
    # Bounds alone may be categories, such as <5 and >=5.
    may_be_categories = kinds == {"bound"} and not has_numbers
    if "text" not in kinds and not may_be_categories and len(units) <= _FEW_UNITS:
        return _kind(cell), row, cell
    if len(read) - len(unread) < _ENOUGH_NUMBERS:
        return None
    slips = sum(text in unread for text in texts)
    present = sum(text is not None for text in texts)
    # A quarter of the rows, or of the different cells.
    if 4 * slips <= present or 4 * len(unread) <= len(read):
        return "text", row, cell
    return None


def _kind(text: str) -> str:
    stripped = _strip_signs(text)
    for kind, pattern in _KINDS.items():
        if pattern.fullmatch(stripped):
            return kind
    return "text"


def _strip_signs(text: str) -> str:
    """`text` without a percent sign or a currency."""
    match = _MONEY.fullmatch(text.removesuffix("%"))
    if match is None:
        return text
    return match["minus"] + match["number"]


def thousands_dots(texts: Collection[str], comma: Comma) -> bool:
    """Return True if dots in the numbers `texts` stand for thousands, as where a comma is the decimal sign: all before three digits.

    >>> [thousands_dots(cells, "unseen") for cells in ({"950", "1.500"}, {"2.125", "1.500"})]
    [True, False]
    >>> thousands_dots({"250.000", "1.500"}, "decimal")
    True
    """
    if comma not in ("decimal", "unseen"):
        return False
    dotted = [_strip_signs(text) for text in texts if "." in text]
    all_dotted = len(dotted) == len(texts)
    # Where no comma was seen, a column of dots alone may have decimal points.
    if comma == "unseen" and all_dotted:
        return False
    if not dotted:
        return False
    return all(map(_DOTS.fullmatch, dotted))


def _without_commas(value: Written | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(sign for sign in value.signs if sign != ",")


def _find_first(
    texts: Sequence[str | None], suspects: Collection[str]
) -> tuple[int, str]:
    """Return the data row and the text of the first of the suspects, each of which is the text of a cell."""
    return next(
        (row, text)
        for row, text in enumerate(texts, 1)
        if text is not None and text in suspects
    )
