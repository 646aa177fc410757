"""A table whose lines are plain is read by blocks of bytes; what comes out is what the reader of CSV gives, cell by cell."""

from __future__ import annotations

import csv
import io
import json
import random

import numpy as np
import pytest
import torch
from csv_files import folder
from folders import FOLDERS

from coterie.data import load
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
    "1,5",
    "1.234,5",
    "-,5",
    "5.",
    "-999",
    "1,234",
    "12 %",
    "unknown",
    "null",
    "Infinity",
    "12345678901234567890123",
)


def odd_table(seed):
    rng = np.random.default_rng(seed)
    width, length = rng.integers(1, 6, 2) * (1, 4)
    kinds = [rng.choice(len(CELLS), size=rng.integers(1, 4)) for _ in range(width)]
    rows = [
        [
            CELLS[rng.choice(kind)] if rng.random() < 0.3 else str(rng.normal())
            for kind in kinds
        ]
        for _ in range(length)
    ]
    text = io.StringIO()
    out = csv.writer(
        text,
        lineterminator=rng.choice(["\n", "\r\n"]),
        delimiter=rng.choice([",", "\t", ";"]),
    )
    out.writerows([[f"c{i}" for i in range(width)], *rows])
    return rng.choice(["", "\ufeff"]) + text.getvalue() + rng.choice(["", "\n", ",\n"])


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


@pytest.mark.parametrize("seed", range(300))
def test_plain_lines_are_read_as_by_the_reader_of_csv(tmp_path, monkeypatch, seed):
    text = odd_table(seed)
    text = text.replace(".", ",") if ";" in text and seed % 3 else text
    path = folder(tmp_path, a=text.encode()) / "a.csv"
    reading = Reading(
        {"c0": [["-2.5"], ["a"], [1]][seed % 3]}, ["c1"] if seed % 2 else []
    )
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


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_gives_the_same_recipe_notes_and_rows_by_blocks_and_by_cells(
    tmp_path, monkeypatch, name
):
    made = FOLDERS[name]
    made.write(tmp_path / name)
    got = []
    for parse in (blocks.parse, lambda text, separator: None):
        monkeypatch.setattr(read, "parse", parse)
        clients = load(tmp_path / name, **{**made.options, **made.cure})
        got.append(
            (
                json.dumps(clients.recipe),
                clients.notes,
                clients.questions,
                clients.train,
            )
        )
    assert got[0][:3] == got[1][:3]
    assert torch.equal(got[0][3].inputs, got[1][3].inputs)
    assert torch.equal(got[0][3].labels, got[1][3].labels)


def spellings(count):
    """Numbers of up to 24 digits, half way between two doubles, tiny, huge, and as programs print them."""
    draw = random.Random(0)
    for _ in range(count):
        value = draw.gauss(0, 1) * 10 ** draw.uniform(-6, 12)
        digits = "".join(draw.choices("0123456789", k=draw.randrange(1, 24)))
        yield from (
            repr(value),
            f"{value:.20g}",
            f"{value:.{draw.randrange(20)}f}",
            f"-0.{digits}",
            digits,
        )
        yield from (
            str(2 * (2**53 + draw.getrandbits(52)) + 1),
            repr(2.0 ** draw.randrange(-60, 60)),
            "+" + digits,
        )


def test_numbers_are_those_of_float_to_the_last_bit():
    cells = list(spellings(1000))
    plain = blocks.parse("a,b\n" + "".join(f"{cell},1\n" for cell in cells), ",")
    want = np.array([float(cell) for cell in cells])
    np.testing.assert_array_equal(
        plain.numbers[0].view(np.uint64), want.view(np.uint64)
    )


@pytest.mark.parametrize(("separator", "point"), [(",", "."), (";", ",")])
def test_no_cell_of_digits_and_none_that_is_quoted_is_looked_at_by_itself(
    monkeypatch, separator, point
):
    looked_at = []
    monkeypatch.setattr(blocks, "_odd", lambda cell, point: looked_at.append(cell))
    text = separator.join(('"a"', "b", "c")) + "\n"
    text += "".join(
        separator.join((f"{k}{point}25", "", f'"{k}"')) + "\n" for k in range(-500, 500)
    )
    plain = blocks.parse(text, separator)
    assert sorted(plain.numbers) == [0, 1, 2]
    assert not looked_at
    assert plain.numbers[2].tolist() == list(range(-500, 500))


@pytest.mark.parametrize(
    "text",
    [
        'a,b\n"1,5",2\n',
        'a,b\n1"2,2\n',
        'a,b\n"1""2",2\n',
        'a,b\n"1\n",2\n',
        'a,b\n1,"2\n',
    ],
)
def test_quotes_around_more_than_a_cell_are_left_to_the_reader_of_csv(text):
    assert blocks.parse(text, ",") is None
