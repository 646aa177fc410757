"""Numbers as people write them: signs are read with a note, what cannot be read is refused with the cure."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
import torch
from csv_files import folder, notes, rows

from coterie.base.errors import InputError
from coterie.data import apply_recipe, load

Y = [0, 1] * 6
X = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
VALUES = [1234.5, 7, 12, 1000, 65000, 3, 8.5, 900, 12.5, 4, 2000, 1]


def table(cells, separator=","):
    """A CSV with the columns x, z (these cells) and y."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=separator)
    writer.writerows([("x", "z", "y"), *zip(X, cells, Y, strict=True)])
    return buffer.getvalue()


def same(tmp_path, cells, separator=",", remark=""):
    """The column of these cells is read as the numbers VALUES."""
    (tmp_path / "plain").mkdir()
    want = load(folder(tmp_path / "plain", a=table(VALUES)), label="y")
    got = load(folder(tmp_path, a=table(cells, separator)), label="y")
    assert got.recipe["columns"][1]["kind"] == "number"
    assert torch.equal(got.train.inputs, want.train.inputs)
    assert remark in notes(got)
    assert apply_recipe(got.recipe, tmp_path / "a.csv").inputs.shape == (12, 2)
    return got


@pytest.mark.parametrize(
    ("form", "remark"),
    [
        ("{:g}%", "z: read as numbers, without the percent signs (a)"),
        ("{:g} %", "z: read as numbers, without the percent signs (a)"),
        ("EUR {:g}", "z: read as numbers, without the EUR (a)"),
        ("{:g} €", "z: read as numbers, without the EUR (a)"),
        ("${:,g}", "z: read as numbers, without the thousands commas and USD (a)"),
        ("{:,g}", "z: read as numbers, without the thousands commas (a)"),
    ],
)
def test_percent_thousands_and_currency_are_read_as_numbers_with_a_note(
    tmp_path, form, remark
):
    same(tmp_path, [form.format(v) for v in VALUES], remark=remark)


@pytest.mark.parametrize("form", ["{:g}", "{:g} %", "{:g} €", "CHF {:g}"])
def test_decimal_commas_with_signs_in_a_file_with_semicolons(tmp_path, form):
    same(tmp_path, [form.format(v).replace(".", ",") for v in VALUES], ";")


@pytest.mark.parametrize("word", ["-", "unknown", "Unknown", ".", "--", "n.a."])
def test_words_for_missing_do_not_make_texts_of_numbers(tmp_path, word):
    (tmp_path / "plain").mkdir()
    gaps = [word if i in (2, 7) else v for i, v in enumerate(VALUES)]
    want = load(
        folder(tmp_path / "plain", a=table(["" if g == word else g for g in gaps])),
        label="y",
    )
    got = load(folder(tmp_path, a=table(gaps)), label="y")
    assert torch.equal(got.train.inputs, want.train.inputs)
    assert f"z: {word!r} taken as missing (a)" in notes(got)
    new = tmp_path / "new.csv"
    new.write_text(f"x,z\n1,{word}\n")
    assert apply_recipe(got.recipe, new).inputs[0, 1] == 0


def test_a_client_that_knows_nothing_of_a_column_of_numbers(tmp_path):
    clients = load(
        folder(tmp_path, a=table(VALUES), b=table(["unknown"] * 12)), label="y"
    )
    assert clients.recipe["features"] == ["x", "z"]
    assert bool((clients["b"].train.inputs[:, 1] == 0).all())


def test_unknown_stays_a_category_among_texts(tmp_path):
    words = ["yes", "no", "unknown"] * 4
    clients = load(
        folder(tmp_path, a=table(words), b=table(["unknown"] * 12)), label="y"
    )
    assert clients.recipe["features"] == ["x", "z=no", "z=unknown", "z=yes"]
    plus = load(
        folder(tmp_path, a=table(["+", "-"] * 6), b=table(["+", "-"] * 6)), label="y"
    )
    assert plus.recipe["features"] == ["x", "z=+", "z=-"]


MANY = [str(v) for v in (11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22)]
REFUSED = {
    "bound": (
        [1, 2, "<5", *VALUES[3:]],
        r"a.csv: column 'z' has '<5' in data row 3 among numbers; write a number",
    ),
    "unit": (
        [f"{v} mmHg" for v in VALUES],
        r"column 'z' has '1234.5 mmHg' in data row 1; write the number alone, without its",
    ),
    "degrees": (
        [f"{v}°C" for v in VALUES],
        r"column 'z' has '1234.5°C' in data row 1; write the number alone, without",
    ),
    "per volume": (
        [f"{v} /µl" for v in MANY],
        r"column 'z' has '11 /µl' in data row 1; write the number alone, without",
    ),
    "about": (
        [f"ca. {v}" for v in MANY],
        r"column 'z' has 'ca. 11' in data row 1; write the number alone, without a mark",
    ),
    "errors": (
        [f"{v} ± 1" for v in MANY],
        r"column 'z' has '11 ± 1' in data row 1; write two numbers in two columns",
    ),
    "some units": (
        [1, "95 mmHg", *VALUES[2:]],
        r"column 'z' has '95 mmHg' in data row 2; write the number alone",
    ),
    "unit at once": (
        [1, "95mg", *VALUES[2:]],
        r"column 'z' has '95mg' in data row 2; write the number alone",
    ),
    "decimal comma": (
        ["12,5", *VALUES[1:]],
        r"column 'z' has '12,5' in data row 1; write decimals with a point",
    ),
    "both commas": (
        ["1,234", "12,5", *VALUES[2:]],
        r"column 'z' has '12,5' in data row 2; write decimals with a point",
    ),
    "percent": (
        ["12%", *VALUES[1:]],
        r"column 'z' has '12%' in data row 1, while other cells have another sign or none",
    ),
    "currencies": (
        ["12 EUR"] * 11 + ["$3"],
        r"column 'z' has '\$3' in data row 12, while other cells",
    ),
    "brackets": (
        [f"({v})" if i % 2 else v for i, v in enumerate(MANY)],
        r"column 'z' has '\(12\)' in data row 2; write a negative number with a minus in front",
    ),
    "a minus behind": (
        ["5-", *VALUES[1:]],
        r"column 'z' has '5-' in data row 1; write a negative number with a minus",
    ),
    "apostrophes": (
        [f"1'2{v}" for v in MANY],
        r"column 'z' has \"1'211\" in data row 1; write decimals with a point",
    ),
    "blanks": (
        [f"1\u202f2{v}" for v in MANY],
        r"column 'z' has '1 211' in data row 1; write decimals with a point",
    ),
    "dots": (
        [f"1.234.5{v}" for v in MANY],
        r"column 'z' has '1.234.511' in data row 1; write decimals with a point",
    ),
    "a leading zero": (
        ["0,250", *VALUES[1:]],
        r"column 'z' has '0,250' in data row 1; write decimals with a point",
    ),
    "a currency": (
        [f"CHF 1'2{v}" for v in MANY],
        r"column 'z' has \"CHF 1'211\" in data row 1; write decimals with a",
    ),
    "marks": (
        [f"{v}*" if i % 2 else v for i, v in enumerate(MANY)],
        r"has '12\*' in data row 2; write the number alone",
    ),
    "pairs": (
        ["120/80", "130/90"] * 6,
        r"column 'z' has '120/80' in data row 1; write two numbers in two columns",
    ),
    "a slip": (
        [*MANY[:11], "2o"],
        r"column 'z' has '2o' in data row 12 among numbers; correct that cell, or say missing.z = ",
    ),
}


@pytest.mark.parametrize("case", REFUSED, ids=list(REFUSED))
def test_what_cannot_be_read_is_refused_unless_the_user_says_what_it_is(tmp_path, case):
    cells, sentence = REFUSED[case]
    with pytest.raises(InputError, match=sentence) as caught:
        load(folder(tmp_path, a=table(cells), b=table(VALUES)), label="y")
    assert len(str(caught.value).replace(str(tmp_path), "folder")) <= 300
    assert load(tmp_path, label="y", drop=["z"]).recipe["features"] == ["x"]
    assert (
        load(tmp_path, label="y", categorical=["z"]).recipe["columns"][1]["kind"]
        == "category"
    )


@pytest.mark.parametrize(
    "cells",
    [
        ["<5", ">=5"] * 6,
        ["1/2", "2/2"] * 6,
        ["2a", "2b", "3c"] * 4,
        ["1st", "2nd", "3rd"] * 4,
        ["20-39", "40-59"] * 6,
    ],
)
def test_categories_with_digits_stay_categories(tmp_path, cells):
    clients = load(folder(tmp_path, a=table(cells)), label="y")
    assert clients.recipe["columns"][1] == {
        "name": "z",
        "kind": "category",
        "categories": sorted(set(cells)),
    }


def test_a_minus_of_typesetters_is_a_minus(tmp_path):
    cells = [f"\u2212{v:g}" for v in VALUES]
    assert (
        load(folder(tmp_path, a=table(cells)), label="y").recipe["columns"][1]["mean"]
        < 0
    )


def test_three_digits_after_a_dot_are_thousands_where_commas_are_decimal(tmp_path):
    """A column of 250.000 and 1.500 in a file that writes 7,5: factor 1000 in between."""
    cells = zip(range(12), ["250.000", "300.000"] * 6, Y, strict=True)
    thousands = "x;z;y\n" + "\n".join(f"{x},5;{z};{y}" for x, z, y in cells)
    with pytest.raises(
        InputError,
        match=r"column 'z' has '250.000' in data row 1; write decimals with a point and",
    ):
        load(folder(tmp_path, a=thousands), label="y")
    mixed = table(["950", "2.000"] * 6, ";")
    with pytest.raises(InputError, match=r"column 'z' has '2.000' in data row 2"):
        load(folder(tmp_path, a=mixed), label="y")
    for decimal in (["0.250", "1.500"], ["2.125", "1.500"], ["12.5", "7"]):
        clients = load(folder(tmp_path, a=table(decimal * 6, ";")), label="y")
        assert clients.recipe["columns"][1]["mean"] < 10


@pytest.mark.parametrize(
    "cells",
    [
        ["2023/05/03", "2023/06/01"],
        ["3 May 2023", "12 Dec 2023"],
        ["Jan-23", "05/2023"],
        ["08:30", "17:05"],
        ["20230503", "20230601", ""],
        ["2023-05-03", "n.d.", "2023-06-01", "2023-07-01", "2023-08-01"],
    ],
)
def test_dates_in_other_forms_are_left_out_too(tmp_path, cells):
    cells = (cells * 10)[:10]
    clients = load(
        folder(tmp_path, a=rows(x=range(10), z=cells, y=[0, 1] * 5)), label="y"
    )
    assert clients.recipe["features"] == ["x"]
    assert (
        "left out: z (dates or times; turn them into numbers, such as days since a start"
        in notes(clients)
    )


def test_a_comma_is_no_sign_for_thousands_where_it_may_be_a_decimal_point(tmp_path):
    text = table(["1,234", "2,500"] * 6, "\t")
    with pytest.raises(
        InputError,
        match=r"column 'z' has '1,234' in data row 1; write decimals with a point",
    ):
        load(folder(tmp_path, a=text), label="y")
    decimal = load(folder(tmp_path, a=table(["1,234", "2,500"] * 6, ";")), label="y")
    assert decimal.recipe["columns"][1]["mean"] == pytest.approx(1.8, abs=0.2)


@pytest.mark.parametrize(
    ("form", "words"), [("{:g}%", "percent signs"), ("{:g} €", "EUR")]
)
def test_a_sign_at_one_client_only_is_refused(tmp_path, form, words):
    signed = table([form.format(v) for v in VALUES])
    with pytest.raises(
        InputError,
        match=f"b.csv: column 'z' has numbers with {words} but without signs at 'a'; write it",
    ):
        load(folder(tmp_path, a=table(VALUES), b=signed), label="y")
    clients = load(folder(tmp_path, a=signed, b=signed), label="y")
    new = tmp_path / "new.csv"
    new.write_text("x,z\n1,2\n")
    with pytest.raises(
        InputError,
        match=f"column 'z' has numbers without signs, but the model was trained on numbers with {words}",
    ):
        apply_recipe(clients.recipe, new)


def test_a_dropped_column_may_hold_anything(tmp_path):
    clients = load(
        folder(tmp_path, a=table(["inf", "<5", *VALUES[2:]])), label="y", drop=["z"]
    )
    assert clients.recipe["features"] == ["x"]


def test_a_label_with_units_is_refused_and_one_in_percent_is_read(tmp_path):
    text = rows(x=X, y=[f"{v} days" for v in VALUES])
    with pytest.raises(
        InputError,
        match=r"a.csv: label 'y' has '1234.5 days' in data row 1; write the number alone",
    ):
        load(folder(tmp_path, a=text), label="y")
    share = load(
        folder(tmp_path, a=rows(x=X, y=[f"{v}%" for v in X])),
        label="y",
        task="regression",
    )
    assert float(share.label_scale.undo(share.train.labels).max()) < 9.1
    with pytest.raises(
        InputError,
        match="label 'y' has numbers without signs but with percent signs at 'a'",
    ):
        load(folder(tmp_path, b=rows(x=X, y=X)), label="y", task="regression")


# Identifiers.

N = 40
UNIQUE = [1000 + 7 * i for i in range(N)]


@pytest.mark.parametrize(
    "name",
    [
        "patient",
        "Patient ID",
        "PatientID",
        "case",
        "case_no",
        "record",
        "MRN",
        "subject-id",
        "row",
        "id_patient",
    ],
)
def test_whole_numbers_are_identifiers_by_name(tmp_path, name):
    text = rows(**{name: UNIQUE}, x=range(N), y=[0, 1] * (N // 2))
    few = rows(**{name: [1, 2, 3]}, x=range(3), y=[0, 1, 0])
    clients = load(folder(tmp_path, a=text, b=few), label="y")
    assert clients.recipe["features"] == ["x"]
    assert (
        f"left out: {name} (whole numbers that hardly ever repeat under such a name: an identifier)"
        in notes(clients)
    )


def test_patients_with_two_rows_are_identified_too(tmp_path):
    text = rows(
        id_patient=[1 + i // 2 for i in range(N)], x=range(N), y=[0, 1] * (N // 2)
    )
    assert load(folder(tmp_path, a=text), label="y").recipe["features"] == ["x"]


def test_a_flag_under_the_name_of_an_identifier_stays(tmp_path):
    text = rows(case=[0, 1] * (N // 2), x=np.arange(N) / 2, y=[0, 0, 1, 1] * (N // 4))
    assert load(folder(tmp_path, a=text), label="y").recipe["features"] == ["case", "x"]


def test_other_whole_numbers_that_never_repeat_stay_with_a_note(tmp_path):
    text = rows(steps=UNIQUE, metres=UNIQUE, dose=np.arange(N) / 4, y=[0, 1] * (N // 2))
    clients = load(folder(tmp_path, a=text), label="y")
    assert clients.recipe["features"] == ["steps", "metres", "dose"]
    assert (
        "steps, metres: whole numbers that never repeat, kept as numbers (drop what only identifies rows)"
        in notes(clients)
    )
