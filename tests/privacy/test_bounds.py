"""[data] bounds scale and impute columns of numbers, so that no client tells sums of them."""

from __future__ import annotations

import pytest

import coterie as ct

CSV = "age,weight,sex,outcome\n" + "\n".join(
    f"{20 + number},{60 + number % 9},{'fm'[number % 2]},{number % 2}"
    for number in range(40)
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.csv").write_text(CSV.replace("60,", ",").replace("25,", ",", 1))
    return tmp_path


def load(folder, **options):
    return ct.data.load(str(folder), **{"label": "outcome", **options})


def test_a_bounded_column_is_scaled_by_its_bounds_and_missing_values_are_the_middle(
    folder, monkeypatch
):
    monkeypatch.setattr("coterie.data.tables.agreement.recipe.moments", None)
    clients = load(folder, bounds={"age": [0, 120], "weight": [30, 230]})
    column = clients.recipe["columns"][0]
    assert (column["mean"], column["scale"]) == (60.0, 30.0)
    ages = clients["a"].train.inputs[:, 0]
    assert float(ages.min()) >= (20 - 60) / 30 - 1e-6
    assert float(ages.max()) <= (59 - 60) / 30 + 1e-6
    weights = clients["b"].train.inputs[:, clients.recipe["features"].index("weight")]
    assert bool(weights.isfinite().all())


def test_a_column_of_numbers_without_bounds_is_left_out_by_name(folder):
    clients = load(folder, bounds={"age": [0, 120]})
    assert "weight" not in clients.recipe["features"]
    assert {"sex=f", "sex=m"} & {*clients.recipe["features"]}
    assert any(
        "left out: weight (without bounds" in note for note in clients.recipe["notes"]
    )


@pytest.mark.parametrize(
    ("bounds", "cure"),
    [
        ({"age": [120, 0]}, "such as"),
        ({"agee": [0, 120]}, "'age'"),
        ({"age": [0]}, "such as"),
    ],
)
def test_wrong_bounds_are_refused_with_a_cure(folder, bounds, cure):
    with pytest.raises(ct.InputError, match=cure):
        load(folder, bounds=bounds)


def test_a_label_to_regress_on_needs_bounds_too(folder):
    options = {"label": "weight", "task": "regression", "unlabelled": "drop"}
    with pytest.raises(ct.InputError, match=r"give bounds\.weight"):
        load(folder, bounds={"age": [0, 99]}, **options)
