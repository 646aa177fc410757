"""`coterie check`: all problems at once, the tables, and how alike clients are."""

from __future__ import annotations

import json

import numpy as np
import pytest
from csv_files import folder, rows

import coterie as ct
from coterie.base.errors import InputError
from coterie.config.data import Tables
from coterie.data.sets.heart_disease import FOLDER, OPTIONS
from coterie.data.tables.check import check_folder
from coterie.data.tables.read import read

N = 30


def table(seed=0, shift=0.0, **more):
    rng = np.random.default_rng(seed)
    age = (rng.normal(size=N) + shift).round(3)
    return rows(
        **{
            "age": age,
            "sex": ["m", "f", "f"] * (N // 3),
            "y": ["yes", "no"] * (N // 2),
            **more,
        }
    )


def test_every_problem_of_every_file_is_said_at_once(tmp_path):
    files = {
        "good": table(),
        "ragged": table() + "1,2\n",
        "latin": table().replace("m", "\xe4").encode("latin-1"),
        "labels": table(y=["Yes", "no"] * (N // 2)),
        "units": table(age=[f"{i} years" for i in range(N)]),
        "nolabel": table().replace("y\n", "outcom\n", 1),
        "gaps": table(y=["", *["yes", "no"] * (N // 2)][:N]),
        "renamed": table().replace("sex", "SEX", 1),
        "few": "age,sex,y\n1,m,yes\n",
    }
    check = check_folder(folder(tmp_path, **files), label="y")
    expected = {
        "ragged.csv: line 32 has 2 cells",
        "latin.csv is not UTF-8",
        "label 'y' is 'Yes' at labels and 'yes' at",
        "units.csv: column 'age' has '0 years'",
        "nolabel.csv has no label column 'y'",
        "gaps.csv: label 'y' is missing in data row 1",
        "renamed.csv has a column 'SEX' where",
        "few.csv has 1 rows, too few",
    }
    for part in expected:
        assert sum(part in problem for problem in check.problems) == 1, part
    assert len(check.problems) == len(expected)
    assert all("\n" not in problem for problem in check.problems)
    assert check.columns["age"]["good"].kind == "number"


def test_a_folder_without_problems_has_the_notes_of_a_run(tmp_path):

    folder(tmp_path, a=table(), b=table(1, extra=range(N)))
    check = check_folder(tmp_path, label="y")
    assert (check.problems, check.label) == ((), "y")
    assert check.notes == ct.data.from_folder(tmp_path, label="y").notes
    assert any("extra (only at b)" in note for note in check.notes)
    assert check.clients == {"a": N, "b": N}
    assert json.loads(json.dumps(check.to_json()))["columns"]["sex"]["a"]["shares"] == {
        "f": 2 / 3,
        "m": 1 / 3,
    }


def test_what_only_shows_when_rows_are_encoded_is_a_problem_too(tmp_path):
    check = check_folder(
        folder(tmp_path, a=table(), b=table(age=["1e200"] * N)), label="y"
    )
    assert check.problems == (
        "column 'age' holds numbers too large to square at b; rescale it or say drop = [\"age\"]",
    )


def test_drift_is_what_textbooks_define(tmp_path):
    b = table(
        3, shift=2.0, sex=["m", "m", "f"] * (N // 3), y=["yes", "yes", "no"] * (N // 3)
    )
    check = check_folder(folder(tmp_path, a=table(1), b=b, c=table(2)), label="y")
    ages = {
        name: read(tmp_path / f"{name}.csv").columns["age"].numbers for name in "abc"
    }
    others = np.concatenate([ages["a"], ages["c"]])
    want = (ages["b"].mean() - others.mean()) / np.sqrt(
        (ages["b"].var() + others.var()) / 2
    )
    drift = {(d.client, d.column): d for d in check.drift}
    assert drift["b", "age"].value == pytest.approx(want, rel=1e-9)
    assert check.drift[0] == drift["b", "age"]
    assert (drift["b", "sex"].measure, drift["b", "sex"].value) == (
        "total variation",
        pytest.approx(1 / 3),
    )
    assert drift["b", "y"].value == pytest.approx(1 / 6)
    assert drift["a", "y"].value == pytest.approx(1 / 12)


def test_categories_that_a_run_takes_for_one_are_no_drift(tmp_path):
    b = table(3, sex=["M ", "M ", "F "] * (N // 3))
    check = check_folder(
        folder(tmp_path, a=table(1, sex=["m", "m", "f"] * (N // 3)), b=b), label="y"
    )
    assert [d.value for d in check.drift if d.column == "sex"] == pytest.approx([0, 0])


def test_the_hospitals_differ_most_where_everybody_knows(tmp_path):
    check = check_folder(FOLDER, tables=Tables(**OPTIONS))
    assert check.problems == ()
    assert check.columns["num"]["switzerland"].shares == pytest.approx(
        {"> 0": 115 / 123, "<= 0": 8 / 123}
    )
    first = [(d.client, d.column) for d in check.drift[:6]]
    assert ("switzerland", "num") in [
        (d.client, d.column) for d in check.drift if d.value > 0.4
    ]
    assert len(first) == 6


def test_one_table_alone_is_checked_as_by_a_site(tmp_path):
    check = check_folder(
        folder(tmp_path, a=table(age=["<5"] + [7] * (N - 1))) / "a.csv", label="y"
    )
    assert len(check.problems) == 1
    assert "column 'age' has '<5' in data row 1 among numbers" in check.problems[0]
    assert (check.clients, check.drift) == ({"a": N}, ())


def test_wrong_settings_are_refused_at_once(tmp_path):
    with pytest.raises(
        InputError,
        match=r"Tables.task must be None or classification | regression; got 'x'",
    ):
        check_folder(folder(tmp_path, a=table()), tables=Tables(task="x"))
    with pytest.raises(InputError, match="there is no folder"):
        check_folder(tmp_path / "nowhere")


def test_one_table_is_dealt_by_a_column_and_its_clients_are_compared(tmp_path):
    north, south = (
        table(i, shift=4.0 * i, clinic=[clinic] * N)
        for i, clinic in enumerate(("north", "south"))
    )
    path = folder(tmp_path, all=north + south.partition("\n")[2]) / "all.csv"
    split = {"kind": "column", "column": "clinic"}
    check = check_folder(path, label="y", split=split)
    assert (check.problems, check.clients) == ((), {"north": N, "south": N})
    assert check.notes == ct.data.from_folder(path, label="y", split=split).notes
    assert "clinic" not in check.columns
    assert {
        d.client for d in check.drift if d.column == "age" and abs(d.value) > 1
    } == {"north", "south"}
    misspelt = check_folder(
        path, label="y", split={"kind": "column", "column": "clinc"}
    )
    assert [p for p in misspelt.problems if "did you mean 'clinic'?" in p]


def test_a_column_that_is_left_out_is_no_drift(tmp_path):
    names = [[f"{client}{i}" for i in range(N)] for client in "ab"]
    check = check_folder(
        folder(tmp_path, a=table(1, id=names[0]), b=table(2, id=names[1])), label="y"
    )
    assert any(note.startswith("left out: id") for note in check.notes)
    assert "id" in check.columns
    assert {d.column for d in check.drift} == {"age", "sex", "y"}


def test_small_clients_are_not_far_from_the_others_by_chance(tmp_path):
    rng = np.random.default_rng(0)
    for i, n in enumerate([3, 10, 30, 100] * 15):
        columns = {
            "age": rng.normal(60, 10, n),
            "ward": rng.choice(list("abcdef"), n),
            "y": rng.integers(0, 2, n),
        }
        (tmp_path / f"{i}.csv").write_text(rows(**columns))
    check = check_folder(tmp_path, label="y", tables=Tables(task="classification"))
    assert len(check.drift) > 170
    assert sum(abs(d.value) > d.chance for d in check.drift) <= 1
    odd = {
        "age": rng.normal(72, 10, 100),
        "ward": rng.choice(list("aaaaaf"), 100),
        "y": rng.integers(0, 2, 100),
    }
    (tmp_path / "odd.csv").write_text(rows(**odd))
    check = check_folder(tmp_path, label="y", tables=Tables(task="classification"))
    assert [
        d.column for d in check.drift if d.client == "odd" and abs(d.value) > d.chance
    ] == ["ward", "age"]
