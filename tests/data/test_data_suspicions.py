"""Notes on what a reader would else believe: classes under other names, other units, a column that says the label, copied rows."""

from __future__ import annotations

import re

import numpy as np
import pytest
from csv_files import folder, notes, rows

from coterie.data import apply_recipe, load
from coterie.data.tables.suspicions import _far_off

N = 40
RNG = np.random.default_rng(0)
AGE = {c: RNG.integers(30, 90, N) for c in "abc"}
DOSE = {c: RNG.normal(3, 1, N).round(3) for c in "abc"}
CLASSES = RNG.permutation(["yes", "no"] * (N // 2))


def said(tmp_path, columns, **options):
    """The notes on clients with these columns, besides the columns age and dose and the label y."""
    texts = {
        c: rows(**{"age": AGE[c], "dose": DOSE[c], "y": CLASSES, **own})
        for c, own in columns.items()
    }
    return notes(load(folder(tmp_path, **texts), label="y", **options))


def test_clients_without_oddities_have_no_note(tmp_path):
    assert said(tmp_path, {"a": {}, "b": {}, "c": {}}) == ""


@pytest.mark.parametrize(
    ("own", "note"),
    [
        (
            np.where(CLASSES == "yes", "Y", "N"),
            "label y: 'no', 'yes' only at a, 'N', 'Y' only at b (if these are other words",
        ),
        (["yes"] * N, "label y: one class only at b ('yes')"),
    ],
)
def test_classes_of_single_clients_are_named(tmp_path, own, note):
    assert note in said(tmp_path, {"a": {}, "b": {"y": own}})


def test_classes_written_as_other_numbers_are_named(tmp_path):
    zero = (CLASSES == "yes").astype(int)
    text = said(tmp_path, {"a": {"y": zero}, "b": {"y": zero + 1}})
    assert (
        "label y: '0' only at a, '2' only at b (if these are other words for the same classes"
        in text
    )


@pytest.mark.parametrize("values", [np.arange(N) % 15, (np.arange(N) % 6) / 2])
def test_numbers_that_are_taken_as_classes_are_named(tmp_path, values):
    columns = {"a": {"y": values}, "b": {"y": values}}
    note = "numbers, taken as classes (if they are a quantity, say task"
    assert note in said(tmp_path, columns)
    assert note not in said(tmp_path, columns, task="classification")


def test_categories_that_no_other_client_has_are_named(tmp_path):
    long, short = ["male", "female"] * (N // 2), ["f", "m"] * (N // 2)
    text = said(tmp_path, {"a": {"sex": long}, "b": {"sex": short}, "c": {"sex": long}})
    assert (
        "sex: no category in common with other clients at b (other words for the same?)"
        in text
    )


@pytest.mark.parametrize("clients", ["ab", "abc"])
def test_another_unit_is_asked_about(tmp_path, clients):
    height = RNG.normal(1.7, 0.1, N)
    columns = {
        c: {"height": (height * (100 if c == "b" else 1)).round(3)} for c in clients
    }
    question = r"height: numbers at b are about (9\d|1\d\d) times those of the others; the same unit\?"
    assert re.search(question, said(tmp_path, columns))


def test_degrees_are_asked_about(tmp_path):
    celsius = {c: RNG.normal(37, 0.5, N) for c in "abc"}
    columns = {
        c: {"t": (v * 1.8 + 32 if c == "c" else v).round(1)} for c, v in celsius.items()
    }
    assert (
        "t: numbers at c are about 2.7 times those of the others; the same unit?"
        in said(tmp_path, columns)
    )


def test_three_units_are_asked_about_too(tmp_path):
    columns = {
        c: {"height": RNG.normal(170, 10, N) / unit}
        for c, unit in zip("abc", (100, 1, 2.54), strict=True)
    }
    assert "height: numbers at a are about 0.02" in said(tmp_path, columns)


def test_new_rows_in_another_unit_are_asked_about(tmp_path):
    height = RNG.normal(1.7, 0.1, N).round(3)
    clients = load(
        folder(tmp_path, a=rows(height=height, age=AGE["a"], y=CLASSES)), label="y"
    )
    assert apply_recipe(clients.recipe, tmp_path / "a.csv").notes == ()
    new = tmp_path / "new.csv"
    new.write_text(rows(height=[*(100 * height[:5]), ""], age=AGE["a"][:6]))
    (note,) = apply_recipe(clients.recipe, new).notes
    assert re.fullmatch(
        r".*new.csv: height is 1\d\d\d standard deviations from the mean of training; the same unit\?",
        note,
    )


def test_a_label_in_another_unit_is_asked_about(tmp_path):
    stay = RNG.gamma(4, 2, N).round(2)
    text = said(tmp_path, {"a": {"y": stay}, "b": {"y": stay * 24}}, task="regression")
    assert re.search(r"y: numbers at b are about [123]\d times", text)


@pytest.mark.parametrize(
    "copy",
    [
        np.where(CLASSES == "yes", "positive", "negative"),
        (CLASSES == "yes") * 3 + np.arange(N) / N,
    ],
)
def test_a_column_that_says_the_label_is_named(tmp_path, copy):
    text = said(tmp_path, {"a": {"score": copy}, "b": {"score": copy}})
    assert (
        "score: says the label in all training rows; drop what is known only afterwards"
        in text
    )


def test_a_column_that_only_one_class_has_is_named(tmp_path):
    days = {c: np.where(CLASSES == "yes", AGE[c].astype(str), "") for c in "ab"}
    text = said(tmp_path, {c: {"days": days[c]} for c in "ab"})
    assert (
        "days: has a value in the training rows of one class alone; drop what is known only afterwards"
        in text
    )
    most = np.where(np.arange(N) % 5 == 0, "", days["a"])  # not all of that class
    assert "one class alone" not in said(
        tmp_path, {"a": {"days": most}, "b": {"days": days["b"]}}
    )


def test_a_label_to_regress_on_in_other_units_is_named(tmp_path):
    columns = {c: {"y": DOSE[c] * 2 + 1} for c in "ab"}
    assert "dose: says the label in all training rows" in said(
        tmp_path, columns, task="regression"
    )


def test_rows_that_are_equal_by_chance_are_no_copies(tmp_path):
    """One column with few values: 6 % of a client's rows have a twin there, and so many more have one among all others."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        for name in "abcd":
            value = np.exp(rng.normal(1, 0.5, 80)).round(2)
            (tmp_path / f"{name}.csv").write_text(rows(crp=value, y=np.arange(80) % 2))
        clients = load(tmp_path, label="y")
        assert not any("other clients have too" in note for note in clients.notes), seed


def test_rows_of_another_client_are_named(tmp_path):
    half = np.r_[AGE["a"][:20], AGE["c"][20:]], np.r_[DOSE["a"][:20], DOSE["c"][20:]]
    text = said(tmp_path, {"a": {}, "b": {}, "c": {"age": half[0], "dose": half[1]}})
    assert (
        "rows that other clients have too: a (50%), c (50%); the same patients?" in text
    )


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        ([-99] * 5, "-99 (data row 1 and 4 more at b)"),
        ([-9], "-9 (data row 1 at b)"),
        ([999, 998], "999 (data row 1 at b), 998 (data row 2 at b)"),
        ([0, 0], "0 (data row 1 and 1 more at b)"),
        ([5700], "5700 (data row 1 at b)"),
    ],
)
def test_codes_for_missing_and_slips_among_numbers_are_named(tmp_path, cells, named):
    text = said(tmp_path, {"a": {}, "b": {"age": [*cells, *AGE["b"][len(cells) :]]}})
    assert f"age: {named} far from all other numbers there" in text
    assert "far" not in said(
        tmp_path,
        {"a": {}, "b": {"age": [*cells, *AGE["b"][len(cells) :]]}},
        missing={"age": cells},
    )


def test_a_row_of_totals_is_named(tmp_path):
    text = said(
        tmp_path,
        {
            "a": {},
            "b": {
                c: [*v["b"][1:], v["b"].sum()]
                for c, v in (("age", AGE), ("dose", DOSE))
            },
        },
    )
    assert (
        "b: data row 40 is far from all others in 2 columns; delete a row of totals"
        in text
    )


@pytest.mark.parametrize(
    "numbers",
    [
        RNG.exponential(3, 200),
        RNG.poisson(2, 200),
        np.arange(200) % 2,
        RNG.normal(0, 1, 200),
    ],
)
def test_numbers_that_are_skewed_or_few_are_not_far_off(numbers):
    assert _far_off(np.append(numbers, np.nan).astype(float)) == []


def test_yes_and_no_under_other_numbers_are_named(tmp_path):
    ill = np.arange(N) % 3 // 2
    text = said(
        tmp_path, {"a": {"ill": ill}, "b": {"ill": ill + 1}, "c": {"ill": 2 - ill}}
    )
    assert "ill: 0 and 1 at a but 1 and 2 at b, c; the same codes?" in text


@pytest.mark.parametrize("spelled", ["{}", "P{}"])
def test_patients_with_rows_in_training_and_test_are_named(tmp_path, spelled):
    visits = [spelled.format(100 + i // 2) for i in range(N)]
    once = [spelled.format(100 + i) for i in range(N)]
    text = said(tmp_path, {"a": {"id_patient": visits}, "b": {"id_patient": once}})
    assert (
        "id_patient: the same values in training and test rows at a; say which rows belong together (group)"
        in text
    )
    assert "same values" not in notes(
        load(tmp_path, label="y", split={"parts": {"train": 0.8, "validation": 0.2}})
    )
    few = rows(id_patient=once, age=AGE["a"], y=CLASSES)
    (tmp_path / "apart").mkdir()
    assert "same values" not in notes(
        load(folder(tmp_path / "apart", a=few), label="y")
    )


def test_a_label_and_codes_under_the_name_of_an_identifier_are_none(tmp_path):
    texts = {
        c: rows(
            age=AGE[c],
            num=CLASSES,
            **({"study": [1, 2] * (N // 2)} if c == "a" else {}),
        )
        for c in "ab"
    }
    assert (
        notes(load(folder(tmp_path, **texts), label="num"))
        == "left out: study (only at a)"
    )


def test_doubts_come_before_what_was_left_out(tmp_path):
    columns = {
        c: {"only": DOSE[c], "score": (CLASSES == "yes") * 3 + np.arange(N) / N}
        for c in "a"
    }
    text = said(
        tmp_path,
        {
            **columns,
            "b": {
                "score": columns["a"]["score"] * 1000,
                "y": np.where(CLASSES == "yes", "Y", "N"),
            },
        },
    )
    order = [
        text.index(word) for word in ("score: numbers at", "label y:", "left out: only")
    ]
    assert order == sorted(order)
