"""Read plain text tables by blocks of bytes: columns of numbers by NumPy, all others as lists of cells.

Plain means: no quotes, as many separators in each line, and no line without a value. Of other files `parse` gives None, and the
reader of CSV proper decides, which also knows what to say about them. The numbers are to the last bit those of `float`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Plain", "parse"]

Bytes = NDArray[np.uint8]
BLOCK = 1 << 24
"""Bytes that are taken apart at once."""
_LOOKED_AT = 4  # lines by which columns are taken for numbers
_MISSING = (b"", b"NA", b"nan", b"NaN")  # as exports of tables leave cells empty; all others are looked at one by one


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
    numbers: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    _blocks: list[tuple[bytes, NDArray[np.int64]]] = field(default_factory=list)

    def cells(self, column: int) -> list[str]:
        """Return the cells of a column as they are written."""
        cells: list[str] = []
        for block, ends in self._blocks:
            width = len(self.header)
            stops = ends[column::width].tolist()
            starts = (
                [0, *(ends[width - 1 :: width][:-1] + 1).tolist()]
                if column == 0
                else (ends[column - 1 :: width] + 1).tolist()
            )
            cells += [block[low:high].decode() for low, high in zip(starts, stops, strict=True)]
        return cells


def parse(text: str, separator: str) -> Plain | None:
    """Return the table that `text` writes with one separator between cells, or None if its lines are not plain."""
    raw = text.encode()
    raw = raw.replace(b"\r\n", b"\n") if b"\r" in raw else raw
    if separator == ";" or b'"' in raw or b"\r" in raw:  # beside semicolons commas and dots mean several things
        return None
    header_line, _, body = raw.lstrip(b"\n").partition(b"\n")
    body = body.rstrip(b"\n")
    header = [cell.strip() for cell in header_line.decode().split(separator)]
    if not any(header) or not body:
        return None
    table = Plain(header)
    separating = separator.encode()
    for block in _blocks(body):
        ends = _ends(block, separating, len(header))
        if ends is None:
            return None
        table._blocks.append((block, ends))
        table.rows += len(ends) // len(header)
    numeric = _candidates(table, separating)
    parts = [_numbers(block, ends, numeric, len(header), separating) for block, ends in table._blocks]
    columns = [j for j in numeric if all(j in part for part in parts)]
    table.numbers = {j: np.concatenate([part[j] for part in parts]) for j in columns}
    return table


def _blocks(body: bytes) -> Iterator[bytes]:
    """Yield whole lines of about `BLOCK` bytes, each block with the end of its last line."""
    low = 0
    while low < len(body):
        high = body.find(b"\n", low + BLOCK)
        high = len(body) if high < 0 else high
        yield body[low:high] + b"\n"
        low = high + 1


def _ends(block: bytes, separator: bytes, width: int) -> NDArray[np.int64] | None:
    """Return where the cells end, [rows * width]; None unless each line has `width` cells and one of them a value."""
    raw = np.frombuffer(block, dtype=np.uint8)
    newline = raw == ord(b"\n")
    ends = np.flatnonzero(newline | (raw == ord(separator)))
    if len(ends) % width or not newline[ends[width - 1 :: width]].all() or newline.sum() * width != len(ends):
        return None
    lengths = np.diff(ends, prepend=-1) - 1
    if lengths.max() > csv.field_size_limit():
        return None
    shown = raw > ord(" ")
    shown[ends] = False
    starts = np.concatenate([[0], ends[width - 1 :: width][:-1] + 1])
    return ends if np.logical_or.reduceat(shown, starts).all() else None


def _candidates(table: Plain, separator: bytes) -> list[int]:
    """Return the columns whose first cells are numbers or empty."""
    block, _ = table._blocks[0]
    lines = [line.split(separator) for line in block.split(b"\n", _LOOKED_AT)[:_LOOKED_AT] if line]
    return [j for j, cells in enumerate(zip(*lines, strict=True)) if all(map(_is_number, cells))]


def _is_number(cell: bytes) -> bool:
    try:
        float(cell or b"0")
    except ValueError:
        return cell in _MISSING
    return b"_" not in cell


def _numbers(
    block: bytes, ends: NDArray[np.int64], columns: list[int], width: int, separator: bytes
) -> dict[int, NDArray[np.float64]]:
    """Return those of `columns` that are numbers in all rows of a block; where some are none, each half is tried alone."""
    if not columns:
        return {}
    joined = _without(block, ends, columns, width).replace(b"\n", b",").replace(separator, b",")
    for missing in (b",,", b",NA,"):
        if missing in joined:
            joined = joined.replace(missing, b",nan,").replace(missing, b",nan,")
    joined = (b"nan" + joined if joined.startswith(b",") else joined).removesuffix(b",")
    rows = len(ends) // width
    try:
        values = np.fromstring(joined, dtype=np.float64, sep=",")
    except ValueError:
        values = np.zeros(0)
    if len(values) == rows * len(columns) and b"(" not in joined:  # which NumPy takes for a part of nan(...)
        table = values.reshape(rows, len(columns))
        return {j: np.ascontiguousarray(table[:, k]) for k, j in enumerate(columns)}
    half = len(columns) // 2
    parts = (columns[:half], columns[half:]) if half else ()
    return {j: v for part in parts for j, v in _numbers(block, ends, part, width, separator).items()}


def _without(block: bytes, ends: NDArray[np.int64], columns: list[int], width: int) -> bytes:
    """Return the bytes of a block, of these columns alone."""
    if len(columns) == width:
        return block
    chosen = np.zeros(width, dtype=bool)
    chosen[columns] = True
    lengths = np.diff(ends, prepend=-1)
    selected = np.repeat(np.tile(chosen, len(ends) // width), lengths)
    return bytes(np.frombuffer(block, dtype=np.uint8)[selected].tobytes())
