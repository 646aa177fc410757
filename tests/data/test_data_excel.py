"""Excel workbooks: the rows of the CSV that they would be saved as."""

from __future__ import annotations

import datetime

import pytest
import torch
from csv_files import folder, notes, rows

from coterie.base.errors import InputError
from coterie.data import apply_recipe, load

openpyxl = pytest.importorskip("openpyxl")

N = 24
COLUMNS = {
    "age": [30 + 7 * i % 41 for i in range(N)],
    "dose": [i / 8 if i % 5 else "" for i in range(N)],
    "smoker": [("TRUE", "FALSE")[i % 2] for i in range(N)],
    "town": ["Ulm", "Bonn", "", "Köln"] * (N // 4),
    "outcome": [0, 1, 1] * (N // 3),
}


def write(path, columns=COLUMNS, **formats):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(list(columns))
    for row in zip(*columns.values(), strict=True):
        sheet.append([{"TRUE": True, "FALSE": False, "": None}.get(v, v) for v in row])
    for name, code in formats.items():
        for i in range(N):
            sheet.cell(
                row=i + 2, column=list(columns).index(name) + 1
            ).number_format = code
    book.save(path)
    return book


def test_a_workbook_gives_the_rows_of_a_csv(tmp_path):
    (tmp_path / "plain").mkdir()
    want = load(folder(tmp_path / "plain", a=rows(**COLUMNS)), label="outcome")
    write(tmp_path / "a.xlsx")
    (tmp_path / "~$a.xlsx").write_bytes(b"who has it open")
    got = load(tmp_path, label="outcome")
    assert got.recipe == want.recipe
    assert torch.equal(got.train.inputs, want.train.inputs)
    assert torch.equal(got.test.labels, want.test.labels)
    assert apply_recipe(got.recipe, tmp_path / "a.xlsx").inputs.shape == (N, 6)


def test_dates_and_percent_of_a_workbook(tmp_path):
    seen = [datetime.datetime(2024, 1, 1 + i) for i in range(N)]
    share = [round(i / 80, 4) for i in range(N)]
    write(tmp_path / "a.xlsx", {**COLUMNS, "seen": seen, "share": share}, share="0.0%")
    folder(
        tmp_path,
        b=rows(
            **COLUMNS,
            seen=[f"{t:%Y-%m-%d}" for t in seen],
            share=[f"{100 * v:g} %" for v in share],
        ),
    )
    clients = load(tmp_path, label="outcome")
    assert "left out: seen (dates" in notes(clients)
    assert "share: read as numbers, without the percent signs (a, b)" in notes(clients)
    whole = [
        apply_recipe(clients.recipe, tmp_path / name).inputs
        for name in ("a.xlsx", "b.csv")
    ]
    torch.testing.assert_close(*whole)


def test_workbooks_that_cannot_be_read_are_refused(tmp_path):
    path = tmp_path / "a.xlsx"
    path.write_bytes(b"PK nothing")
    with pytest.raises(
        InputError, match=r"a.xlsx cannot be read as Excel .*; save it again"
    ):
        load(tmp_path, label="outcome")
    openpyxl.Workbook().save(path)
    with pytest.raises(
        InputError, match=r"a.xlsx is empty; give it a header line and rows"
    ):
        load(tmp_path, label="outcome")
    book = write(path)
    book.create_sheet("Notes").append(["ask Anna"])
    book.save(path)
    with pytest.raises(
        InputError,
        match=r"a.xlsx has 2 sheets with cells \(Sheet, Notes\); keep the one with the table",
    ):
        load(tmp_path, label="outcome")
