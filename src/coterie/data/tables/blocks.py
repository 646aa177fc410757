"""Read plain text tables by blocks of bytes: columns of numbers by arithmetic on whole blocks, all others as lists of cells.

Plain means: as many separators in each line, no line without a value, and quotes around whole cells alone, if any. Of other files
`parse` gives None, and the reader of CSV proper decides, which also knows what to say about them. The numbers are to the last bit
those of `float`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coterie.base.spelling import legible
from coterie.data.tables.cells import NOTHING, are_padded, number

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Floats = NDArray[np.float64]
Integers = NDArray[np.uint64]
Flags = NDArray[np.bool_]
BLOCK = 1 << 18
"""Bytes that are taken apart at once: few enough for a processor's cache."""
_LOOKED_AT = 4  # lines by which columns are taken for numbers
_WORD = 8  # digits that are read at once
_WORDS = 3  # as many times
_DIGITS = 19  # of an integer that has 64 bits
_POWERS = np.array(
    [float(10**k) for k in range(_WORD * _WORDS - 1)]
)  # exact in double precision
_SCALES = np.array([10**k for k in range(_DIGITS + 1)], dtype=np.uint64)
_ZEROS, _ABOVE_NINE, _HIGH_BITS = (
    np.uint64(int(byte * _WORD, 16)) for byte in ("30", "76", "80")
)
_SPLIT = (
    2.0**27 + 1
)  # cuts a number into two halves whose products are exact (Dekker 1971)
_UNSURE = 2.0**-20  # of a unit in the last place


@dataclass
class Plain:
    """A table whose lines are plain.

    Attributes:
        header: names of the columns.
        rows: how many there are.
        numbers: columns of numbers by position, NaN where a cell is empty.
    """

    header: list[str]
    rows: int = 0
    numbers: dict[int, Floats] = field(default_factory=dict)
    _blocks: list[tuple[bytes, Places]] = field(default_factory=list)

    def cells(self, column: int) -> list[str]:
        """Return the cells of a column as they are written."""
        cells: list[str] = []
        for block, ends in self._blocks:
            starts, stops = _starts(ends)[:, column].tolist(), ends[:, column].tolist()
            cells += [
                block[low:high].decode()
                for low, high in zip(starts, stops, strict=True)
            ]
        return cells

    def is_padded(self, column: int) -> bool:
        """Return True for a column of whole numbers of as many digits each, some with zeros in front."""
        numbers = self.numbers[column]
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers) or numbers.min() < 0 or (numbers % 1 != 0).any():
            return False
        block, ends = self._blocks[0]
        width = len(_cell(block, ends, column).strip())
        if numbers.min() >= 10.0 ** (width - 1):  # without a zero to spare
            return False
        return are_padded(self.cells(column))


def parse(text: str, separator: str) -> Plain | None:
    """Return the table that `text` writes with one separator between cells, or None if its lines are not plain."""
    lines = text.encode()
    if b"\r" in lines:
        lines = lines.replace(b"\r\n", b"\n")
    raw: bytes | None = lines
    if b'"' in lines:
        raw = _without_quotes(lines, separator)
    if raw is None or b"\r" in raw:
        return None
    header_line, _, body = raw.lstrip(b"\n").partition(b"\n")
    header = [cell.strip() for cell in header_line.decode().split(separator)]
    length = len(body)
    while length and body[length - 1 : length] == b"\n":
        length -= 1
    if not any(header) or not length:
        return None
    table = Plain(header)
    for block in _blocks(body, length):
        ends = _ends(block, separator, len(header))
        if ends is None:
            return None
        table._blocks.append((block, ends))
        table.rows += len(ends)
    point = "," if separator == ";" else "."
    block, ends = table._blocks[0]
    leading = ends[:_LOOKED_AT]
    columns, _ = _numbers(
        block[: leading[-1, -1] + 1], leading, np.arange(len(header)), point
    )
    parts: list[tuple[Places, Floats]] = []
    for block, ends in table._blocks:
        parts.append(_numbers(block, ends, columns, point))
        columns = parts[-1][0]
    numbers = np.concatenate(
        [part[np.isin(numeric, columns)] for numeric, part in parts], axis=1
    )
    table.numbers = dict(zip(columns.tolist(), numbers, strict=True))
    return table


def _without_quotes(raw: bytes, separator: str) -> bytes | None:
    """Return the bytes without the quotes around cells; None if a quote, a separator or a line's end may stand inside of them."""
    quotes = np.flatnonzero(np.frombuffer(raw, dtype=np.uint8) == ord('"'))
    padded = np.frombuffer(b"\n" + raw + b"\n", dtype=np.uint8)
    ending = (padded == ord("\n")) | (padded == ord(separator))
    opening, closing = quotes[::2], quotes[1::2]
    # In `padded` the byte before position i has number i, and the one behind it i + 2.
    if len(quotes) % 2 or not ending[opening].all() or not ending[closing + 2].all():
        return None
    ends = np.flatnonzero(ending[1:])
    crosses_end = np.searchsorted(ends, opening) != np.searchsorted(ends, closing)
    if crosses_end.any():
        return None
    return raw.replace(b'"', b"")


def _blocks(body: bytes, length: int) -> Iterator[bytes]:
    """Yield whole lines of about `BLOCK` bytes, each block with the end of its last line, as far as `length`."""
    low = 0
    while low < length:
        high = body.find(b"\n", low + BLOCK, length)
        if high < 0:  # the last line
            high = length
        yield body[low:high] + b"\n"
        low = high + 1


def _ends(block: bytes, separator: str, width: int) -> Places | None:
    """Return where the cells end, [rows, width]; None unless each line has `width` cells and one of them a value."""
    raw = np.frombuffer(block, dtype=np.uint8)
    newline = raw == ord("\n")
    ends = np.flatnonzero(newline | (raw == ord(separator)))
    # Every `width`-th end is that of a line, and no other is.
    if (
        newline.sum() * width != len(ends)
        or not newline[ends[width - 1 :: width]].all()
    ):
        return None
    most = csv.field_size_limit()
    if len(block) > most and np.diff(ends, prepend=-1).max() > most + 1:
        return None
    shown = raw > ord(" ")
    shown[ends] = False
    starts = np.concatenate([[0], ends[width - 1 :: width][:-1] + 1])
    has_value = np.logical_or.reduceat(shown, starts)
    if not has_value.all():
        return None
    return ends.reshape(-1, width)


def _starts(ends: Places) -> Places:
    """Return where the cells begin, [rows, width]."""
    return np.concatenate([[0], ends.ravel()[:-1] + 1]).reshape(ends.shape)


def _odd(cell: str, point: str) -> float | None:
    """Return the number in a cell that is none of digits with one point, NaN if it says that there is no value, None for others."""
    if cell == "" or legible(cell).lower() in NOTHING:
        return np.nan
    if point == "," and ("." in cell or "," in cell):
        return None
    return number(cell)


def _cell(block: bytes, ends: Places, number: int) -> bytes:
    """The bytes of one cell of a block; cells are numbered row by row, from 0."""
    begin = 0
    if number:
        begin = int(ends.flat[number - 1]) + 1
    return block[begin : ends.flat[number]]


def _numbers(
    block: bytes, ends: Places, columns: Places, point: str
) -> tuple[Places, Floats]:
    """Return those of `columns` that are numbers in all rows of a block, and their numbers, [columns, rows]."""
    numbers, clear = _read(
        np.frombuffer(b"0" * _WORD * _WORDS + block, dtype=np.uint8),
        ends,
        columns,
        ord(point),
    )
    table, numeric = np.ascontiguousarray(numbers.T), np.ones(len(columns), dtype=bool)
    for k in np.flatnonzero(~clear.all(axis=0)).tolist():
        for i in np.flatnonzero(~clear[:, k]).tolist():
            cell = _cell(block, ends, i * ends.shape[1] + columns[k])
            value = _odd(cell.decode(), point)
            if value is None:
                numeric[k] = False
                break
            table[k, i] = value
    return columns[numeric], table[numeric]


def _read(
    raw: Bytes, ends: Places, columns: Places, point: int
) -> tuple[Floats, Flags]:
    """Return the numbers that cells write by digits, a sign and a point, and which cells do, [rows, columns]; NaN for empty cells.

    `raw`: the block behind so many zeros that a cell's first digits can be read with what stands before them.
    """
    starts = _starts(ends)[:, columns] + _WORD * _WORDS
    ends = ends + _WORD * _WORDS
    at_mark = raw == point
    at_mark[ends] = True
    at_mark[: _WORD * _WORDS] = False
    marks = np.flatnonzero(at_mark)  # where cells end, and points
    place = np.flatnonzero(raw[marks] != point).reshape(ends.shape)[:, columns]
    stops, marks_before = ends[:, columns], marks[place - 1]
    pointed = raw[marks_before] == point
    middle = np.where(pointed, marks_before, stops)
    lead = raw[starts]
    minus = lead == ord("-")
    length = middle - starts - (minus | (lead == ord("+")))
    decimals = np.maximum(stops - middle - 1, 0)
    integer, clear_integer = _integers(raw, middle, length)
    fraction, clear_fraction = _integers(raw, stops, decimals)
    clear = clear_integer & clear_fraction & (length > 0) & (pointed <= (decimals > 0))
    clear &= ((length + decimals <= _DIGITS) | (integer == 0)) & (
        decimals < len(_POWERS)
    )
    integers = integer * _SCALES[np.minimum(decimals, _DIGITS)] + fraction
    numbers, exact = _divide(integers, _POWERS[np.minimum(decimals, len(_POWERS) - 1)])
    empty = stops == starts
    numbers[empty] = np.nan
    return np.where(minus, -numbers, numbers), clear & exact | empty


def _integers(raw: Bytes, ends: Places, lengths: Places) -> tuple[Integers, Flags]:
    """Return the integers that so many digits before `ends` write, and whether these are digits and no more than can be read."""
    integers, clear = _read_word(raw, ends, lengths)
    clear &= lengths <= _WORD * _WORDS
    for k in range(1, _WORDS):
        longer = lengths > k * _WORD
        if not longer.any():
            break
        word, digits = _read_word(
            raw, ends[longer] - k * _WORD, lengths[longer] - k * _WORD
        )
        integers[longer] += word * _SCALES[k * _WORD]
        clear[longer] &= digits & (word < _SCALES[min(_DIGITS - k * _WORD, _WORD)])
    return integers, clear


def _read_word(raw: Bytes, ends: Places, lengths: Places) -> tuple[Integers, Flags]:
    """Return the integer of the last 8 digits before `ends`, or of fewer, and whether they are digits.

    Eight bytes are one 64-bit word, whose neighbouring digits, pairs and fours are joined by three multiplications.
    """
    words = np.ndarray((len(raw) - _WORD + 1,), "<u8", buffer=raw, strides=(1,))
    shift = (8 * (_WORD - np.clip(lengths, 0, _WORD))).astype(np.uint64)
    word = (words[ends - _WORD] ^ _ZEROS) >> shift << shift
    digits = (word | (word + _ABOVE_NINE)) & _HIGH_BITS == 0
    for bits, mask in (
        (8, 0x00FF00FF00FF00FF),
        (16, 0x0000FFFF0000FFFF),
        (32, 0x00000000FFFFFFFF),
    ):
        word = (
            word * np.uint64(10 ** (bits // 8)) + (word >> np.uint64(bits))
        ) & np.uint64(mask)
    return word, digits


def _divide(integers: Integers, powers: Floats) -> tuple[Floats, Flags]:
    """Return integers divided by powers of ten, correctly rounded, and where that is certain.

    Both are exact in double precision up to 2^53, so their quotient is correctly rounded. Above, the remainder of the division,
    by Dekker's product without error, is added; only where the sum lies between two numbers to a millionth it remains unsure.
    """
    numbers = integers.astype(np.float64)
    exact = np.ones(integers.shape, dtype=bool)
    large = integers >= 1 << 53
    high, power = numbers[large], powers[large]
    numbers /= powers
    if not len(high):
        return numbers, exact
    low = (integers[large] - high.astype(np.uint64)).view(np.int64)
    quotient = numbers[large]
    (q, q_low), (p, p_low) = _halves(quotient), _halves(power)
    product = quotient * power
    error = ((q * p - product) + q * p_low + q_low * p) + q_low * p_low
    correction = ((high - product) - error + low) / power
    numbers[large] = quotient + correction
    remainder = np.abs((quotient - numbers[large]) + correction) / np.spacing(
        numbers[large]
    )
    exact[large] = (np.abs(remainder - 0.5) > _UNSURE) & (
        np.abs(remainder - 0.25) > _UNSURE
    )
    return numbers, exact


def _halves(numbers: Floats) -> tuple[Floats, Floats]:
    scaled = numbers * _SPLIT
    high = scaled - (scaled - numbers)
    return high, numbers - high
