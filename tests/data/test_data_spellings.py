"""Labels, categories and columns that sites spell differently: told apart from what really differs."""

from __future__ import annotations

import datetime
import re

import pytest
import torch
from csv_files import folder, notes, rows

from coterie.base.errors import InputError
from coterie.config.data import codes_of
from coterie.data import apply_recipe, load

X = [3, 1, 4, 1, 5, 9]


def refused(tmp_path, sentence, /, options=None, **files):
    with pytest.raises(InputError, match=sentence) as caught:
        load(folder(tmp_path, **files), **(options or {}))
    assert len(str(caught.value).replace(str(tmp_path), "folder")) <= 300
    assert "\n" not in str(caught.value)


# The label.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("yes", "Yes"),
        ("yes", "YES"),
        ("at risk", "at  risk"),
        ("yes", "yes."),
        ("at risk", "at-risk"),
        ("ok", "ｏｋ"),
    ],
)
def test_labels_that_differ_in_case_or_blanks_are_refused(tmp_path, one, other):
    a, b = rows(x=X, y=[one, "no"] * 3), rows(x=X, y=[other, "no"] * 3)
    first, second = sorted([one, other])
    where = {one: "ulm", other: "aachen, berlin"}
    sentence = f"label 'y' is '{first}' at {where[first]} and '{second}' at {where[second]}: .* classes = "
    refused(tmp_path, sentence, ulm=a, aachen=b, berlin=b)


@pytest.mark.parametrize("other", ["at\u00a0risk", "at risk\u200b", "\ufeffat risk"])
def test_blanks_that_nobody_sees_make_no_class_and_no_column(tmp_path, other):
    a, b = (
        rows(x=X, y=["at risk", "gu\u00e9ri"] * 3),
        rows(x=X, y=[other, "gue\u0301ri"] * 3),
    )
    clients = load(folder(tmp_path, a=a, b=b.replace("x,", "\u200bx\u00a0,")))
    assert clients.classes == ("at risk", "gu\u00e9ri")
    assert clients.recipe["features"] == ["x"]


def test_the_map_that_a_refusal_proposes_can_be_used(tmp_path):
    text = rows(x=X, y=["Yes", "No", "no"] * 2)
    cure = r'the positive class last: classes = \{"no" = \["No", "no"\], "yes" = \["Yes"\]\}$'
    refused(tmp_path, cure, a=text)
    clients = load(
        folder(tmp_path, a=text), classes={"no": ["No", "no"], "yes": ["Yes"]}
    )
    assert clients.classes == ("no", "yes")


def test_labels_of_one_site_that_differ_in_case_are_refused_too(tmp_path):
    refused(
        tmp_path,
        "label 'y' is 'No' at a and 'no' at a",
        a=rows(x=X, y=["yes", "no", "No"] * 2),
    )


def test_classes_map_the_spellings_of_the_label(tmp_path):
    a, b = rows(x=X, y=["Yes", "no", "y"] * 2), rows(x=X, y=[1, 0, 1] * 2)
    classes = {"no": ["no", 0], "yes": ["Yes", "y", 1]}
    clients = load(folder(tmp_path, a=a, b=b), classes=classes)
    assert clients.classes == ("no", "yes")
    for name in "ab":
        new = apply_recipe(clients.recipe, tmp_path / f"{name}.csv", need_label=True)
        assert new.labels.tolist() == [1, 0, 1] * 2
    assert (
        sorted(clients["b"].train.labels.tolist())
        == [0, 1, 1][-len(clients["b"].train) :]
    )
    assert load(tmp_path, classes={"yes": ["Yes", "y", 1], "no": [0]}).classes == (
        "yes",
        "no",
    )


def test_mapped_classes_are_dealt_to_parts_like_the_labels_they_mean(tmp_path):
    plain = load(folder(tmp_path, a=rows(x=range(60), y=["no", "yes", "yes"] * 20)))
    (tmp_path / "mapped").mkdir()
    spelled = folder(
        tmp_path / "mapped", a=rows(x=range(60), y=["no", "y", "YES"] * 20)
    )
    mapped = load(spelled, classes={"no": ["no"], "yes": ["y", "YES"]})
    assert torch.equal(mapped.train.inputs, plain.train.inputs)
    assert torch.equal(mapped.train.labels, plain.train.labels)


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        (
            {"yes": ["Yes"], "no": ["n"]},
            r"label 'y' is 'no' in data row 2, which classes does not list".replace(
                "no'", "No'"
            ),
        ),
        ({"yes": ["Yes", "No"]}, "at least two classes"),
        (
            {"yes": ["Yes", "No"], "no": ["No"]},
            "classes lists 'No' under 'yes' and 'no'; choose one",
        ),
        ({"yes": "Yes", "no": "No"}, "classes: yes = 'Yes' must be a list of values"),
    ],
)
def test_wrong_maps_of_classes_are_refused(tmp_path, classes, sentence):
    refused(tmp_path, sentence, {"classes": classes}, a=rows(x=X, y=["Yes", "No"] * 3))


@pytest.mark.parametrize("options", [{"above": 1}, {"task": "regression"}])
def test_a_map_of_classes_excludes_other_ways_to_read_the_label(tmp_path, options):
    refused(
        tmp_path,
        "drop",
        {"classes": {"a": [0], "b": [1]}, **options},
        a=rows(x=X, y=[0, 1] * 3),
    )


# Categories.


def test_categories_that_differ_in_case_or_blanks_are_one_with_a_note(tmp_path):
    a = rows(x=X, sex=["Male", "Female"] * 3, y=[0, 1] * 3)
    b = rows(x=X, sex=["male", "Female"] * 3, y=[0, 1] * 3)
    clients = load(folder(tmp_path, a=a, b=b))
    assert clients.recipe["features"] == ["x", "sex=Female", "sex=male"]
    assert "sex: 'Male', 'male' are one category" in notes(clients)
    for name in "ab":
        encoded = apply_recipe(clients.recipe, tmp_path / f"{name}.csv")
        assert encoded.inputs[:, 1:].tolist() == [[0, 1], [1, 0]] * 3
    new = tmp_path / "new.csv"
    new.write_text("x,sex\n1,FEMALE\n2,MALE\n")
    encoded = apply_recipe(clients.recipe, new)
    assert encoded.inputs[:, 1:].tolist() == [[1, 0], [0, 1]]


def test_categories_that_differ_in_dots_and_hyphens_are_one(tmp_path):
    a = rows(
        x=X, smoker=["non-smoker", "ex."] * 3, rhesus=["A+", "A-"] * 3, y=[0, 1] * 3
    )
    b = rows(x=X, smoker=["non_smoker", "ex"] * 3, rhesus=["A", "A-"] * 3, y=[0, 1] * 3)
    clients = load(folder(tmp_path, a=a, b=b))
    assert clients.recipe["features"] == [
        "x",
        "smoker=ex",
        "smoker=non smoker",
        "rhesus=A",
        "rhesus=A+",
        "rhesus=A-",
    ]
    assert (
        "smoker: 'ex', 'ex.' are one category; smoker: 'non-smoker', 'non_smoker' are one category"
        in notes(clients)
    )


def test_categories_that_are_spelled_alike_everywhere_keep_their_names(tmp_path):
    clients = load(
        folder(tmp_path, a=rows(x=X, sex=["Male", "Female"] * 3, y=[0, 1] * 3))
    )
    assert clients.recipe["features"] == ["x", "sex=Female", "sex=Male"]
    assert "one category" not in notes(clients)


# Columns.

PLAIN = rows(age=X, mean_radius=range(6), y=[0, 1] * 3)


@pytest.mark.parametrize(
    "name",
    [
        "MEAN_RADIUS",
        "mean radius",
        "mean-radius",
        "mean_radus",
        "mean_radius (in millimetres)",
    ],
)
def test_a_column_under_nearly_the_same_name_is_refused_with_the_cure(tmp_path, name):
    other = PLAIN.replace("mean_radius", name)
    sentence = f"c.csv has a column '{re.escape(name)}' where 'a' has 'mean_radius'; are they the same"
    refused(tmp_path, sentence, a=PLAIN, b=PLAIN, c=other)
    want = load(folder(tmp_path, c=PLAIN))
    got = load(folder(tmp_path, c=other), rename={name: "mean_radius"})
    assert torch.equal(got.train.inputs, want.train.inputs)
    only_there = load(tmp_path, rename={"c": {name: "mean_radius"}})
    assert only_there.recipe["features"] == ["age", "mean_radius"]
    dropped = load(tmp_path, drop=[name])
    assert dropped.recipe["features"] == ["age"]
    new = apply_recipe(got.recipe, tmp_path / "c.csv")
    assert torch.equal(
        new.inputs,
        apply_recipe(want.recipe, folder(tmp_path, c=PLAIN) / "c.csv").inputs,
    )


def test_columns_that_one_client_has_both_of_are_not_the_same(tmp_path):
    both = rows(age=X, Age=X, y=[0, 1] * 3)
    clients = load(folder(tmp_path, a=both, b=PLAIN.replace("age", "Age")))
    assert clients.recipe["features"] == ["Age"]


def test_columns_that_differ_in_a_number_are_not_the_same(tmp_path):
    a, b = rows(x=X, gene_101=X, y=[0, 1] * 3), rows(x=X, gene_102=X, y=[0, 1] * 3)
    assert load(folder(tmp_path, a=a, b=b)).recipe["features"] == ["x"]


def test_a_column_is_left_out_at_one_client(tmp_path):
    text = rows(age=X, MEAN_RADIUS=X, mean_radius=range(6), y=[0, 1] * 3)
    clients = load(
        folder(tmp_path, a=PLAIN, b=text), drop={"b": ["MEAN_RADIUS"], "*": ["age"]}
    )
    assert clients.recipe["features"] == ["mean_radius"]
    assert "b.csv: left out: MEAN_RADIUS (as asked)" in notes(clients)
    assert "left out: age (as asked)" in notes(clients)


def test_a_label_under_another_name_is_renamed(tmp_path):
    other = PLAIN.replace("y", "outcome")
    refused(
        tmp_path, r'b.csv has no label column .outcome.; is .Outcome. the same\? Then say rename = \{"Outcome" = "outcome"\}',
        {"label": "outcome"}, a=other, b=other.replace("outcome", "Outcome"),
    )  # fmt: skip
    clients = load(tmp_path, label="outcome", rename={"Outcome": "outcome"})
    assert clients.names == ("a", "b")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"rename": {"agee": "age2"}},
            "rename names column 'agee', which no client has; did you mean 'age'",
        ),
        (
            {"rename": {"z": {"age": "age2"}}},
            "rename has settings for 'z', which is not a client",
        ),
        ({"drop": {"z": ["age"]}}, "drop has settings for 'z', which is not a client"),
        ({"rename": ["age"]}, "rename = .* must be a table such as"),
        ({"rename": {"age": 3}}, "rename = .* must be a table such as"),
        ({"drop": {"*": "age"}}, "drop = 'age' must be a list of names"),
        (
            {"drop": {"a": ["agee"]}},
            "a.csv has no column 'agee', which drop names; did you mean 'age'",
        ),
        ({"drop": {"*": ["y"]}}, "drop names 'y', which is the label"),
    ],
)
def test_wrong_names_of_columns_are_refused(tmp_path, options, sentence):
    refused(tmp_path, sentence, {"label": "y", **options}, a=PLAIN)


def test_the_settings_are_options_of_load(tmp_path):
    folder(tmp_path, a=PLAIN.replace("age", "Age"))
    options = {"rename": {"Age": "age"}, "classes": {"ill": [1], "well": [0]}}
    clients = load(str(tmp_path), **options)
    assert (clients.classes, clients.recipe["features"]) == (
        ("ill", "well"),
        ["age", "mean_radius"],
    )


def test_a_date_is_no_code_for_missing():
    with pytest.raises(InputError, match="codes of 'age' must be numbers or texts"):
        codes_of({"age": datetime.date(2020, 1, 1)})
