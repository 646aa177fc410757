"""The recipe: fitted on training rows, from statistics a federation may share, and equal to scikit-learn's."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.errors import InputError
from coterie.data import apply_recipe, load
from coterie.data.sets.heart_disease import FOLDER
from coterie.data.tables.agreement import fit_recipe
from coterie.data.tables.cells import Column, Table
from coterie.data.tables.read import read
from coterie.data.tables.recipe import TableCohort, describe, encode, moments

HEART = load("heart-disease")


def write(folder, name, header, table):
    folder.mkdir(exist_ok=True)
    lines = [
        ",".join(header),
        *(",".join("" if v is None else str(v) for v in row) for row in table),
    ]
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def random_table(seed, n=60):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        x, z = (
            round(float(rng.normal(3 * seed, 1 + seed)), 3),
            round(float(rng.normal(1e6, 2)), 3),
        )
        gap = rng.random() < 0.2
        rows.append(
            [
                None if gap else x,
                z,
                "abc"[rng.integers(3)] if rng.random() > 0.1 else None,
                int(x > 3 * seed),
            ]
        )
    return rows


HEADER = ["x", "z", "w", "y"]


@pytest.fixture
def three(tmp_path):
    for i, name in enumerate(["a", "b", "c"]):
        write(tmp_path / "three", name, HEADER, random_table(i))
    return tmp_path / "three"


def test_numbers_are_scaled_as_scikit_learn_would_on_all_training_rows_together(three):
    """Oracle: StandardScaler, then SimpleImputer, fitted on the training rows of all clients concatenated."""
    impute = pytest.importorskip("sklearn.impute")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    clients = load(three)
    raw, where = {}, {}
    for name in clients.names:
        table = read(three / f"{name}.csv")
        raw[name] = np.stack([table.columns[c].numbers for c in ("x", "z")], axis=1)
        where[name] = _rows_of(
            clients[name].train.inputs, encode(table, clients.recipe).inputs
        )
    train = np.concatenate([raw[n][where[n]] for n in clients.names])
    scaler = preprocessing.StandardScaler().fit(train)
    imputer = impute.SimpleImputer().fit(scaler.transform(train))
    for name in clients.names:
        want = imputer.transform(scaler.transform(raw[name]))
        got = encode(read(three / f"{name}.csv"), clients.recipe).inputs[:, :2].numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    spread = clients.train.inputs[:, 1]
    assert abs(float(spread.mean())) < 1e-4  # z lies near 1e6: its variance survives
    assert abs(float(spread.std()) - 1) < 0.01


def _rows_of(part, whole):
    """Row numbers in `whole` of the rows of `part`."""
    place = {tuple(row): i for i, row in enumerate(whole.tolist())}
    assert len(place) == len(whole)
    return [place[tuple(row)] for row in part.tolist()]


def test_categories_are_one_hot_as_scikit_learn_would():
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    column = Column("text", None, np.array(["b", "a", None, "c", "z"], dtype=object))
    recipe = {
        "features": ["w=a", "w=b", "w=c"],
        "columns": [{"name": "w", "kind": "category", "categories": ["a", "b", "c"]}],
        "label": {"column": "y", "values": [], "above": None, "kind": "number"},
    }
    got = encode(Table("t", "t.csv", {"w": column}), recipe, need_label=False)
    encoder = preprocessing.OneHotEncoder(
        categories=[["a", "b", "c"]], handle_unknown="ignore", sparse_output=False
    )
    want = encoder.fit([["a"], ["b"], ["c"]]).transform(
        [["b"], ["a"], [None], ["c"], ["z"]]
    )
    assert np.array_equal(got.inputs.numpy(), want)
    assert got.notes == (
        "t.csv: w has 'z', which no training row has: taken as missing",
    )


@settings(derandomize=True, deadline=None)
@given(
    st.lists(
        st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=12),
        min_size=1,
        max_size=5,
    )
)
def test_pooled_moments_are_those_of_all_rows_together(columns):
    tables = {}
    for i, values in enumerate(columns):
        numbers = np.array([np.nan if v is None else v for v in values])
        # the last row is no training row and must not count
        parts = {"train": np.arange(len(values) - 1)}
        tables[f"c{i}"] = Table(f"c{i}", "", {"x": Column("number", numbers)}, parts)
    together = np.concatenate([t.columns["x"].numbers[:-1] for t in tables.values()])
    together = together[~np.isnan(together)]
    got = moments(TableCohort(tables), schema='["x"]')
    assert got.counts.shape == (len(columns), 1)
    assert {f.dtype for f in got} == {torch.float64}
    np.testing.assert_allclose(got.counts.sum(), len(together))
    np.testing.assert_allclose(
        (got.counts * got.means).sum(), together.sum(), rtol=1e-9, atol=1e-6
    )
    own = [t.columns["x"].numbers[:-1] for t in tables.values()]
    own = [values[~np.isnan(values)] for values in own]
    np.testing.assert_allclose(
        got.squares[:, 0],
        [((v - v.mean()) ** 2).sum() if len(v) else 0.0 for v in own],
        rtol=1e-9,
        atol=1e-9,
    )


def test_moments_joined_over_clients_give_mean_and_scale_of_all_rows(three):
    tables = {}
    for name in ("a", "b", "c"):
        table = read(three / f"{name}.csv")
        shifted = {
            **table.columns,
            "x": replace(table.columns["x"], numbers=table.columns["x"].numbers + 2e6),
        }
        tables[name] = Table(
            name, table.source, shifted, {"train": np.arange(0, 60, 2)}
        )
    draft = {
        "version": 1, "label": {"task": "classification"}, "columns": [{"name": "x", "kind": "number"}], "missing": {},
        "rename": {}, "notes": [], "training_rows": dict.fromkeys(tables, 30),
    }  # fmt: skip
    fitted = fit_recipe(
        draft, lambda task, **payload: task(TableCohort(tables), **payload)
    )["columns"][0]
    together = np.concatenate(
        [t.columns["x"].numbers[t.parts["train"]] for t in tables.values()]
    )
    together = together[~np.isnan(together)]
    assert fitted["mean"] == pytest.approx(together.mean(), rel=1e-15)
    assert fitted["scale"] == pytest.approx(together.std(), rel=1e-9)


def test_a_cohort_of_three_says_what_three_cohorts_of_one_say(three):
    tables = {}
    for name in ("c", "a", "b"):
        table = read(three / f"{name}.csv")
        tables[name] = Table(
            name, table.source, table.columns, {"train": np.arange(0, 60, 2)}
        )
    whole = TableCohort(tables)
    assert whole.names == ("a", "b", "c")
    together = describe(whole, label="y"), moments(whole, schema='["x", "z"]')
    alone = [TableCohort({n: tables[n]}) for n in whole.names]
    assert together[0].text == tuple(describe(c, label="y").text[0] for c in alone)
    for field in ("counts", "means", "squares"):
        rows = torch.cat(
            [getattr(moments(c, schema='["x", "z"]'), field) for c in alone]
        )
        assert torch.equal(getattr(together[1], field), rows)


def test_texts_that_look_like_identifiers_never_leave_the_client():
    texts = np.array([f"patient {i}" for i in range(20)], dtype=object)
    columns = {
        "name": Column("text", None, texts),
        "y": Column("number", np.arange(20.0) % 2),
    }
    cohort = TableCohort({"a": Table("a", "a.csv", columns, {"train": np.arange(20)})})
    assert (
        json.loads(describe(cohort, label="y").text[0])["columns"]["name"]["categories"]
        == []
    )


def _change_test_rows(source, target, value, clients):
    """A copy of the folder with other numbers and words in all rows that are not for training."""
    for name in clients.names:
        table = read(source / f"{name}.csv")
        lines = (source / f"{name}.csv").read_text().splitlines()
        training = set(
            _rows_of(clients[name].train.inputs, encode(table, clients.recipe).inputs)
        )
        out = [lines[0]]
        for i, line in enumerate(lines[1:]):
            out.append(
                line
                if i in training
                else f"{value},{value},new{i % 2},{line.rsplit(',', 1)[1]}"
            )
        target.mkdir(exist_ok=True)
        (target / f"{name}.csv").write_text("\n".join(out) + "\n")


def test_rows_that_are_not_for_training_never_influence_the_recipe(three, tmp_path):
    clients = load(three)
    _change_test_rows(three, tmp_path / "other", 12345.5, clients)
    other = load(tmp_path / "other")
    assert other.recipe == clients.recipe
    assert torch.equal(other.train.inputs, clients.train.inputs)
    assert not torch.equal(other.test.inputs, clients.test.inputs)
    assert any(
        "w has 'new0', 'new1', which no training row has" in note
        for note in other.notes
    )


def test_a_newcomer_moves_nobodys_rows(three):
    before = load(three)
    write(three, "aa", HEADER, random_table(7))
    after = load(three)
    assert after.names == ("a", "aa", "b", "c")
    for name in before.names:
        for (key, old), (other, new) in zip(
            before[name].parts(), after[name].parts(), strict=True
        ):
            assert key == other
            assert torch.equal(old.labels, new.labels)
            tables = read(three / f"{name}.csv")
            was = _rows_of(old.inputs, encode(tables, before.recipe).inputs)
            assert was == _rows_of(new.inputs, encode(tables, after.recipe).inputs)


def test_the_order_of_files_changes_nothing(three, tmp_path):
    pd = pytest.importorskip("pandas")
    from coterie.data import from_frames

    frames = {name: pd.read_csv(three / f"{name}.csv") for name in "abc"}
    one, other = from_frames(frames), from_frames(dict(reversed(frames.items())))
    assert one.fingerprint() == other.fingerprint()
    assert one.recipe == other.recipe
    assert one.notes == other.notes
    assert torch.equal(one.train.inputs, load(three).train.inputs)


def test_another_seed_is_another_split_and_the_same_seed_is_not(three):
    assert load(three, seed=3).fingerprint() == load(three, seed=3).fingerprint()
    assert load(three, seed=3).fingerprint() != load(three, seed=4).fingerprint()
    assert (
        load(three, seed=3, split={"seed": 4}).fingerprint()
        == load(three, seed=4).fingerprint()
    )
    parts = {"train": 0.5, "test": 0.5}
    halves = load(three, split={"parts": parts})
    assert halves.validation is None
    assert halves.train.sizes.tolist() == [30, 30, 30]


# Using the recipe.


@pytest.mark.parametrize("source", ["three", "heart"])
def test_the_recipe_survives_json_and_gives_the_rows_of_training(three, source):
    clients = HEART if source == "heart" else load(three)
    folder = FOLDER if source == "heart" else three
    recipe = json.loads(json.dumps(clients.recipe))
    assert recipe == clients.recipe
    for name in clients.names:
        got = apply_recipe(recipe, folder / f"{name}.csv", need_label=True)
        whole = sorted(
            map(
                tuple,
                torch.cat([got.inputs, got.labels[:, None].float()], dim=1).tolist(),
            )
        )
        parts = [
            torch.cat([p.inputs, p.labels[:, None].float()], dim=1)
            for _, p in clients[name].parts()
        ]
        assert whole == sorted(map(tuple, torch.cat(parts).tolist()))


def test_new_rows_need_no_label_and_are_never_fitted(three, tmp_path):
    recipe = load(three).recipe
    new = tmp_path / "new.csv"
    new.write_text("w,z,x,more\nb,1000000,2,9\nq,,,9\n")
    got = apply_recipe(recipe, str(new))
    x, z = recipe["columns"][:2]
    want = [(2 - x["mean"]) / x["scale"], (1e6 - z["mean"]) / z["scale"], 0, 1, 0]
    np.testing.assert_allclose(got.inputs[0], want, rtol=1e-6)
    assert got.inputs[1].tolist() == [0.0] * 5
    assert got.labels is None
    assert len(got.notes) == 1
    assert "w has 'q', which no training row has" in got.notes[0]
    pd = pytest.importorskip("pandas")
    assert torch.equal(apply_recipe(recipe, pd.read_csv(new)).inputs, got.inputs)


@pytest.mark.parametrize(
    ("text", "need", "sentence"),
    [
        (
            "x,w\n1,a\n",
            False,
            r"new.csv has no column 'z', which the model needs; add it \(its cells may be empty\)",
        ),
        (
            "x,z,w\nbig,1,a\n",
            False,
            r"new.csv: column 'x' needs numbers but has 'big' in data row 1; correct that cell",
        ),
        ("x,z,w\n1,inf,a\n", False, r"new.csv: column 'z' is inf in data row 1"),
        (
            "x,z,w\n1,1e300,a\n",
            False,
            r"new.csv: column 'z' is 1e\+300 in data row 1, absurdly far",
        ),
        ("x,z,w\n1,2,a\n", True, r"new.csv has no label column 'y'; correct the file"),
        (
            "x,z,w,y\n1,2,a,1\n1,2,a,\n",
            True,
            r"new.csv: label 'y' is missing in data row 2",
        ),
        (
            "x,z,w,y\n1,2,a,1\n1,2,a,7\n",
            True,
            r"new.csv: label 'y' is '7' in data row 2, which is none of 0, 1",
        ),
        ("", False, r"new.csv is empty"),
    ],
)
def test_new_rows_that_do_not_fit_are_refused(three, tmp_path, text, need, sentence):
    new = tmp_path / "new.csv"
    new.write_text(text)
    with pytest.raises(InputError, match=sentence):
        apply_recipe(load(three).recipe, new, need_label=need)


def test_labels_that_cannot_be_read_are_a_note_if_nobody_needs_them(three, tmp_path):
    new = tmp_path / "new.csv"
    new.write_text("x,z,w,y\n1,2,a,1\n1,2,a,\n")
    got = apply_recipe(load(three).recipe, new)
    assert got.labels is None
    assert "label 'y' is missing in data row 2: no labels were read" in got.notes[-1]


def test_other_refusals_of_apply_recipe(three, tmp_path):
    recipe = load(three).recipe
    with pytest.raises(
        InputError, match=r"there is no file .*nowhere.csv; check the spelling"
    ):
        apply_recipe(recipe, tmp_path / "nowhere.csv")
    (tmp_path / "new.ods").write_text("x")
    with pytest.raises(
        InputError,
        match=r"new.ods: cannot read .ods; use .csv, .tsv, .csv.gz, .tsv.gz, .xlsx, .parquet, .dta, .sav, .npz",
    ):
        apply_recipe(recipe, tmp_path / "new.ods")
    with pytest.raises(InputError, match="this run has no recipe for tables"):
        apply_recipe({}, tmp_path / "new.ods")


def test_a_regression_label_and_text_labels_are_read_again(tmp_path):
    write(tmp_path / "r", "a", ["x", "y"], [[i, i + 0.25] for i in range(30)])
    clients = load(tmp_path / "r")
    got = apply_recipe(clients.recipe, tmp_path / "r" / "a.csv", need_label=True)
    assert clients.label_scale.undo(got.labels).tolist() == pytest.approx(
        [i + 0.25 for i in range(30)], abs=1e-5
    )
    write(tmp_path / "t", "a", ["x", "y"], [[i, ["01", "B2"][i % 2]] for i in range(8)])
    recipe = load(tmp_path / "t").recipe
    new = tmp_path / "new.csv"
    new.write_text("x,y\n1,01\n")  # alone it would look like a number
    assert apply_recipe(recipe, new, need_label=True).labels.tolist() == [0]
    new.write_text("x,y\n1,word\n")
    with pytest.raises(
        InputError, match="label 'y' is text in data row 1 but must be a number"
    ):
        apply_recipe(clients.recipe, new, need_label=True)


# Heart disease: the traps.


def test_zeros_that_mean_missing_do_not_count():
    recipe = HEART.recipe
    chol = next(c for c in recipe["columns"] if c["name"] == "chol")
    assert 235 < chol["mean"] < 260  # with the 172 zeros it would be near 199
    assert 40 < chol["scale"] < 75
    at = recipe["features"].index("chol")
    swiss = HEART["switzerland"]
    assert all(bool((part.inputs[:, at] == 0).all()) for _, part in swiss.parts())
    assert recipe["missing"] == {"chol": [0], "trestbps": [0]}


def test_the_hospitals_have_the_published_sizes_and_labels():
    assert HEART.names == ("cleveland", "hungary", "long-beach", "switzerland")
    whole = {c.name: torch.cat([p.labels for _, p in c.parts()]) for c in HEART}
    assert {k: len(v) for k, v in whole.items()} == dict(
        zip(HEART.names, [303, 294, 200, 123], strict=True)
    )
    assert {k: int(v.sum()) for k, v in whole.items()} == dict(
        zip(HEART.names, [139, 106, 149, 115], strict=True)
    )
    assert HEART.classes == ("no disease", "disease")
    assert HEART.train.inputs.shape == (492, 15)
    assert [f for f in HEART.recipe["features"] if "=" in f] == [
        f"cp={i}" for i in "1234"
    ] + [f"restecg={i}" for i in "012"]
    assert "left out: ca, slope, thal (as asked)" in HEART.notes


def test_a_logistic_model_of_each_hospital_alone_has_the_known_accuracy():
    """Means over six seeds, within .03."""
    linear = pytest.importorskip("sklearn.linear_model")
    got = {name: [] for name in HEART.names}
    for seed in range(6):
        for client in load("heart-disease", seed=seed):
            x = torch.cat([client.train.inputs, client.validation.inputs]).numpy()
            y = torch.cat([client.train.labels, client.validation.labels]).numpy()
            model = linear.LogisticRegression(C=0.3).fit(x, y)
            got[client.name].append(
                model.score(client.test.inputs.numpy(), client.test.labels.numpy())
            )
    for name, want in zip(HEART.names, [0.78, 0.84, 0.77, 0.925], strict=True):
        assert abs(np.mean(got[name]) - want) < 0.03, (name, got[name])
