"""A table whose lines are plain is read by blocks of bytes; what comes out is what the reader of CSV gives, cell by cell."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from csv_files import folder

from coterie.data.tables import blocks, read
from coterie.data.tables.cells import Reading

CELLS = (
    "1",
    "-2.5",
    "+3",
    "1e5",
    " 4 ",
    "",
    "NA",
    "nan",
    "inf",
    "1_0",
    "0x1",
    "1e400",
    "(",
    "nan(1)",
    "a",
    "ä b",
    "1,0",
    '"',
    "?",
    "007",
)


def odd_table(seed):
    rng = np.random.default_rng(seed)
    width, length = rng.integers(1, 6, 2) * (1, 4)
    kinds = [rng.choice(len(CELLS), size=rng.integers(1, 4)) for _ in range(width)]
    rows = [
        [CELLS[rng.choice(kind)] if rng.random() < 0.3 else str(rng.normal()) for kind in kinds] for _ in range(length)
    ]
    text = io.StringIO()
    out = csv.writer(text, lineterminator=rng.choice(["\n", "\r\n"]), delimiter=rng.choice([",", "\t"]))
    out.writerows([[f"c{i}" for i in range(width)], *rows])
    return text.getvalue() + rng.choice(["", "\n", ",\n"])


def columns(path, reading):
    try:
        table = read.read(path, reading)
    except ValueError as error:
        return str(error)
    return {
        key: (
            c.kind,
            c.signs,
            c.problem,
            None if c.numbers is None else c.numbers.tobytes(),
            c.texts is not None and c.texts.tolist(),
        )
        for key, c in table.columns.items()
    }


@pytest.mark.parametrize("seed", range(150))
def test_plain_lines_are_read_as_by_the_reader_of_csv(tmp_path, monkeypatch, seed):
    path = folder(tmp_path, a=odd_table(seed).encode()) / "a.csv"
    reading = Reading({"c0": [["-2.5"], ["a"], [1]][seed % 3]}, ["c1"] if seed % 2 else [])
    monkeypatch.setattr(blocks, "BLOCK", 40)
    quick = columns(path, reading)
    monkeypatch.setattr(read, "parse", lambda text, separator: None)
    assert quick == columns(path, reading)


def test_a_plain_table_of_numbers_takes_the_quick_way():
    plain = blocks.parse("a,b,c\n1,x,\n2,y,NA\n,z,3.25\n", ",")
    assert list(plain.numbers) == [0, 2]
    np.testing.assert_array_equal(plain.numbers[0], [1, 2, np.nan])
    np.testing.assert_array_equal(plain.numbers[2], [np.nan, np.nan, 3.25])
    assert plain.cells(1) == ["x", "y", "z"]
    assert plain.cells(0) == ["1", "2", ""]
