"""The user's own tables: every kind of file is read, and what cannot be read is refused with file, column and cure."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from csv_files import folder, notes, rows

from coterie.base.errors import InputError
from coterie.config.data import Split, Tables
from coterie.data import apply_recipe, from_folder, from_frames, load
from coterie.data.tables.check import check_folder

PLAIN = (
    "age,town,outcome\n30,Ulm,0\n40,Bonn,1\n50,Ulm,1\n60,Bonn,0\n70,Ulm,1\n80,Ulm,0\n"
)


def test_python_and_files_read_tables_by_the_same_declaration(tmp_path):
    """What a file says of [data] and [split] is what Python says by `Tables` and `Split`."""
    text = PLAIN.replace("Ulm", "?").replace("60", "-9")
    want = load(
        folder(tmp_path, a=text, b=text),
        label="outcome",
        missing={"age": [-9]},
        drop=["town"],
        split={"parts": {"train": 0.5, "test": 0.5}},
    )
    tables = Tables(missing={"age": -9}, drop=["town"])
    got = from_folder(
        tmp_path,
        label="outcome",
        tables=tables,
        split=Split(parts={"train": 0.5, "test": 0.5}),
    )
    assert got.fingerprint() == want.fingerprint()
    assert got.recipe == want.recipe
    with pytest.raises(
        InputError,
        match=r"from_frames has no argument 'labell'; did you mean 'label'\?",
    ):
        from_frames({}, labell="outcome")  # type: ignore[call-arg]
    with pytest.raises(
        InputError, match=r"\[split\] kind does not apply to the folder"
    ):
        from_folder(tmp_path, label="outcome", split=Split(kind="iid"))


def test_one_client_per_file(tmp_path):
    clients = load(folder(tmp_path, berlin=PLAIN, aachen=PLAIN), label="outcome")
    assert clients.names == ("aachen", "berlin")
    assert clients.classes == ("0", "1")
    assert clients.recipe["features"] == ["age", "town=Bonn", "town=Ulm"]
    assert (clients.train.inputs.dtype, clients.train.labels.dtype) == (
        torch.float32,
        torch.int64,
    )
    assert clients.name == str(tmp_path)
    (tmp_path / "README.md").write_text("not a client")
    (tmp_path / ".hidden.csv").write_text("not a client")
    assert load(str(tmp_path), label="outcome").names == clients.names


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", "|"),
        PLAIN.replace("\n", "\r\n"),
        "\n" + PLAIN + "\n,,\n\n",
        PLAIN.replace("Ulm", '"Ulm"').replace("age", " age "),
        PLAIN.replace("30,", "30.0,").replace("40,", "4e1,").replace("50,", "+50,"),
        PLAIN.encode("utf-8-sig"),
        PLAIN.encode("utf-16"),
        "sep=;\r\n" + PLAIN.replace(",", ";").replace("\n", "\r\n"),
    ],
    ids=[
        "semicolon",
        "tab",
        "bar",
        "crlf",
        "blank lines",
        "quotes",
        "numbers",
        "BOM",
        "utf-16",
        "Excel",
    ],
)
def test_dialects_of_csv_say_the_same(tmp_path, text):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    want = load(folder(tmp_path / "one", a=PLAIN), label="outcome")
    got = load(folder(tmp_path / "two", a=text), label="outcome")
    assert torch.equal(got.train.inputs, want.train.inputs)
    assert torch.equal(got.test.labels, want.test.labels)
    assert got.recipe == want.recipe


def test_decimal_commas_of_a_file_with_semicolons(tmp_path):
    text = "dose;outcome\n0,5;a\n1,5;b\n2,5;a\n3,5;b\n"
    clients = load(folder(tmp_path, a=text), label="outcome")
    assert clients.recipe["columns"][0]["kind"] == "number"


def test_a_separator_and_a_line_break_inside_a_cell(tmp_path):
    text = 'town,x,outcome\n"Ulm, upper",1,0\n"Bonn\nsouth",2,1\n"Ulm, upper",3,1\n"Bonn\nsouth",4,0\n'
    clients = load(folder(tmp_path, a=text), label="outcome", categorical=["town"])
    assert set(clients.recipe["columns"][0]["categories"]) <= {
        "Bonn\nsouth",
        "Ulm, upper",
    }


def test_a_header_of_several_lines_is_a_name_of_one(tmp_path):
    text = '"Age\n (years)",y\n' + "".join(f"{i}.5,{i % 2}\n" for i in range(9))
    assert load(folder(tmp_path, a=text), label="y").recipe["features"] == [
        "Age (years)"
    ]


def test_every_format_gives_the_same_rows(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    data = {
        "age": [30, 40, 50, 60, 70, 80] * 3,
        "dose": [0.5, np.nan, 1.5, 2.5, 3.5, 4.5] * 3,
        "smoker": [True, False, True, True, False, False] * 3,
        "town": ["Ulm", "Bonn", None, "Bonn", "Ulm", "Ulm"] * 3,
        "outcome": ["no", "yes", "yes", "no", "yes", "no"] * 3,
    }
    frame = pd.DataFrame(data)
    for kind in ("csv", "tsv", "parquet", "npz"):
        (tmp_path / kind).mkdir()
    frame.to_csv(tmp_path / "csv" / "a.csv", index=False)
    frame.to_csv(tmp_path / "tsv" / "a.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "parquet" / "a.parquet")
    arrays = {
        k: v.astype("U") if v.dtype == object else v
        for k, v in ((k, np.array(v)) for k, v in data.items())
    }
    np.savez(
        tmp_path / "npz" / "a.npz", **arrays
    )  # None is spelled 'None' here, which means missing
    want = from_frames({"a": frame}, label="outcome")
    assert want.recipe["features"] == ["age", "dose", "smoker", "town=Bonn", "town=Ulm"]
    for kind in ("csv", "tsv", "parquet", "npz"):
        got = load(tmp_path / kind, label="outcome")
        assert got.recipe == want.recipe, kind
        assert torch.equal(got.train.inputs, want.train.inputs), kind
        assert torch.equal(got.test.labels, want.test.labels), kind
    nullable = from_frames({"a": frame.convert_dtypes()}, label="outcome")
    assert torch.equal(nullable.train.inputs, want.train.inputs)


def test_frames_and_parquet_keep_categories_that_look_like_numbers(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {"code": pd.Categorical(["1", "2"] * 3), "y": [0, 1, 1, 0, 1, 0]}
    )
    frame.to_parquet(tmp_path / "a.parquet")
    for clients in (from_frames({"a": frame}), load(tmp_path)):
        assert clients.recipe["features"] == ["code=1", "code=2"]
    plain = frame.assign(code=[1, 2] * 3)
    with pytest.raises(
        InputError,
        match=r"frame 'a': column 'code' is text \('1' in data row 1\) but number at 'b'",
    ):
        from_frames({"a": frame, "b": plain})


def test_polars_frames_are_read():
    pd = pytest.importorskip("pandas")

    class Polars:  # as much of it as is used
        def to_pandas(self):
            return pd.DataFrame({"x": [1, 2, 3, 4], "y": [0, 1, 0, 1]})

    assert from_frames({"a": Polars()}).recipe["features"] == ["x"]


def test_whole_numbers_in_two_dimensions_are_no_table_without_a_word(tmp_path):
    tokens, labels = np.arange(48).reshape(12, 4) % 7, np.arange(12) % 2
    np.savez(tmp_path / "a.npz", tokens=tokens, label=labels)
    with pytest.raises(
        InputError,
        match=r"a.npz: array 'tokens' holds whole numbers \[rows, columns\].*; say arrays = true",
    ):
        load(tmp_path)
    sequences = load(tmp_path, arrays=True)
    assert (sequences.train.inputs.dtype, sequences.recipe) == (torch.int64, None)
    found = torch.cat([part.inputs for _, part in sequences[0].parts()])
    assert sorted(found.tolist()) == sorted(tokens.tolist())
    assert load(tmp_path, arrays=False).recipe["features"] == [
        f"tokens.{i}" for i in range(4)
    ]
    assert load(str(tmp_path), arrays=True).train.inputs.dtype == torch.int64
    (tmp_path / "csv").mkdir()
    folder(tmp_path / "csv", c=PLAIN)
    with pytest.raises(
        InputError, match=r"c.csv is not an npz file, so arrays = true does not apply"
    ):
        load(tmp_path / "csv", arrays=True)


def test_arrays_of_a_table_and_of_images(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "table").mkdir()
    (tmp_path / "images").mkdir()
    labels = np.arange(12) % 2
    np.savez(tmp_path / "table" / "a.npz", x=rng.normal(size=(12, 3)), y=labels)
    assert load(tmp_path / "table").recipe["features"] == ["x.0", "x.1", "x.2"]
    images = rng.integers(0, 255, size=(12, 5, 5), dtype=np.uint8)
    np.savez(tmp_path / "images" / "a.npz", images=images, labels=labels)
    clients = load(tmp_path / "images", classes=["cat", "dog"])
    assert clients.train.inputs.dtype == torch.uint8
    assert clients.train.inputs.shape[1:] == (5, 5)
    assert (clients.recipe, clients.classes) == (None, ("cat", "dog"))
    with pytest.raises(
        InputError, match="holds arrays and no tables: above, drop do not apply"
    ):
        load(tmp_path / "images", drop=["x"], above=0)
    with pytest.raises(
        InputError, match=r"a.npz has no array 'lable'; it has images, labels"
    ):
        load(tmp_path / "images", label="lable")
    np.savez(tmp_path / "images" / "b.npz", labels=labels)
    with pytest.raises(InputError, match=r"b.npz has labels only"):
        load(tmp_path / "images")
    folder(tmp_path / "images", c=PLAIN)
    (tmp_path / "images" / "b.npz").unlink()
    with pytest.raises(InputError, match=r"c.csv is not an npz file but others"):
        load(tmp_path / "images")


# What clients do not share, and what is left out.


def test_columns_that_not_all_clients_have_are_named(tmp_path):
    text = rows(x=range(6), extra=range(6), y=[0, 1] * 3)
    clients = load(
        folder(tmp_path, a=PLAIN.replace("outcome", "y"), b=text.replace("x", "age", 1))
    )
    assert clients.recipe["features"] == ["age"]
    assert "left out: town (only at a)" in notes(clients)
    assert "left out: extra (only at b)" in notes(clients)
    three = load(folder(tmp_path, c=PLAIN.replace("outcome", "y")))
    assert "left out: town (not at b)" in notes(three)


def test_dates_identifiers_and_empty_columns_are_left_out_with_a_reason(tmp_path):
    n = 40
    text = rows(
        patient_id=range(100, 100 + n),
        name=[f"person {i}" for i in range(n)],
        seen=[f"2024-01-{i % 28 + 1:02d}" for i in range(n)],
        born=[f"{i % 28 + 1}.3.1960" for i in range(n)],
        nothing=[""] * n,
        constant=[7] * n,
        visits=range(n),
        y=[0, 1] * (n // 2),
    )
    clients = load(folder(tmp_path, a=text, b=text))
    assert clients.recipe["features"] == ["constant", "visits"]
    assert (
        "left out: patient_id (whole numbers that hardly ever repeat under such a name: an identifier)"
        in notes(clients)
    )
    assert "left out: name (every row has its own text: an identifier)" in notes(
        clients
    )
    assert "left out: seen, born (dates" in notes(clients)
    assert "left out: nothing (missing at every client)" in notes(clients)
    assert clients.recipe["columns"][0]["scale"] == 1.0
    assert bool((clients.train.inputs[:, 0] == 0).all())


def test_names_of_patients_are_left_out_even_if_they_repeat_at_one_client(tmp_path):
    a = rows(x=range(40), name=[f"person {i}" for i in range(40)], y=[0, 1] * 20)
    b = rows(x=range(40), name=[f"person {i % 5}" for i in range(40)], y=[0, 1] * 20)
    clients = load(folder(tmp_path, a=a, b=b))
    assert clients.recipe["features"] == ["x"]
    assert "person" not in str(clients.recipe)
    assert "left out: name (every row has its own text: an identifier)" in notes(
        clients
    )


def test_a_column_without_a_value_in_training_rows_is_left_out(tmp_path):
    part = ["train"] * 6 + ["test"] * 3
    text = rows(
        x=range(9),
        late=[""] * 6 + [1, 2, 3],
        word=[""] * 6 + ["a", "b", "a"],
        part=part,
        y=[0, 1, 0] * 3,
    )
    clients = load(folder(tmp_path, a=text), split_column="part")
    assert clients.recipe["features"] == ["x"]
    assert "left out: late (no value in any client's training rows)" in notes(clients)
    assert "left out: word" in notes(clients)


def test_texts_of_many_values_are_left_out_unless_named(tmp_path):
    words = [f"w{i % 150}" for i in range(600)]
    text = rows(x=range(600), word=words, y=[0, 1] * 300)
    clients = load(folder(tmp_path, a=text))
    assert re.search(
        r"left out: word \(1\d\d different texts at one client; name it in categorical",
        notes(clients),
    )
    kept = load(tmp_path, categorical=["word"])
    assert len(kept.recipe["features"]) > 100


def test_a_column_that_one_client_never_filled_gets_the_mean_of_the_others(tmp_path):
    full, empty = (
        rows(x=[1, 2, 3] * 4, z=range(12), y=[0, 1] * 6),
        rows(x=[""] * 12, z=range(12), y=[0, 1] * 6),
    )
    clients = load(folder(tmp_path, full=full, empty=empty))
    assert bool((clients["empty"].train.inputs[:, 0] == 0).all())
    assert "x is mostly missing at empty (100%)" in notes(clients)


def test_booleans_are_numbers_and_a_label_of_booleans_keeps_its_names(tmp_path):
    text = rows(
        smoker=["True", "FALSE", "true", "", "False", "true"],
        x=range(6),
        sick=["TRUE", "false"] * 3,
    )
    clients = load(folder(tmp_path, a=text), label="sick")
    assert clients.recipe["features"] == ["smoker", "x"]
    assert clients.classes == ("false", "true")


def test_codes_are_categories_if_named_and_leading_zeros_stay(tmp_path):
    a, b = (
        rows(code=["01", "02"] * 3, y=[0, 1] * 3),
        rows(code=["01", "A1"] * 3, y=[0, 1] * 3),
    )
    clients = load(folder(tmp_path, a=a, b=b), categorical=["code"])
    assert clients.recipe["features"] == ["code=01", "code=02", "code=A1"]
    new = tmp_path / "new.csv"
    new.write_text("code\n01\n02\n")
    assert apply_recipe(clients.recipe, new).inputs.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_the_users_own_codes_for_missing(tmp_path):
    text = rows(
        x=[1, 2, -9, 4, -9.0, 3],
        w=["a", "unknown", "b", "a", "b", "a"],
        z=range(6),
        y=[0, 1] * 3,
    )
    plain = rows(
        x=[1, 2, "", 4, "NA", 3],
        w=["a", "?", "b", "a", "b", "a"],
        z=range(6),
        y=[0, 1] * 3,
    )
    (tmp_path / "plain").mkdir()
    got = load(folder(tmp_path, a=text), missing={"x": -9, "w": ["Unknown"]})
    want = load(folder(tmp_path / "plain", a=plain))
    assert torch.equal(got.train.inputs, want.train.inputs)
    assert torch.equal(got.test.inputs, want.test.inputs)
    assert got.recipe["missing"] == {"w": ["Unknown"], "x": [-9]}
    mixed = rows(x=[1, 2, "refused", 4, 5, 3], z=range(6), y=[0, 1] * 3)
    (tmp_path / "mixed").mkdir()
    clients = load(folder(tmp_path / "mixed", a=mixed), missing={"x": "refused"})
    assert clients.recipe["columns"][0]["kind"] == "number"


# The label.


def test_classes_are_the_union_over_clients_sorted(tmp_path):
    a, b = rows(x=range(6), y=[10, 2] * 3), rows(x=range(6), y=[9, 2.0] * 3)
    clients = load(folder(tmp_path, a=a, b=b))
    assert clients.classes == ("2", "9", "10")
    assert set(clients["a"].train.labels.tolist()) == {0, 2}


def test_a_quantity_is_regressed_on(tmp_path):
    values = np.linspace(0, 1, 30).round(3) + 0.0005
    clients = load(folder(tmp_path, a=rows(x=range(30), y=values)))
    assert clients.train.labels.dtype == torch.float32
    assert (clients.recipe["label"]["task"], clients.classes) == ("regression", ())
    forced = load(tmp_path, task="classification")
    assert len(forced.classes) == 30
    whole = folder(tmp_path, a=rows(x=range(30), y=[0, 1] * 15))
    assert load(whole, task="regression").train.labels.dtype == torch.float32


def test_a_threshold_makes_classes(tmp_path):
    text = rows(x=range(8), y=[0, 1, 2, 3] * 2)
    clients = load(folder(tmp_path, a=text), above=1.5)
    assert clients.classes == ("y <= 1.5", "y > 1.5")
    named = load(tmp_path, above=1.5, classes=["low", "high"])
    assert named.classes == ("low", "high")
    values = apply_recipe(named.recipe, tmp_path / "a.csv", need_label=True).labels
    assert values.tolist() == [0, 0, 1, 1] * 2


def test_rows_without_a_label_are_refused_or_dropped(tmp_path):
    text = rows(x=range(9), y=[0, 1, "", 0, 1, "", 0, 1, 0])
    with pytest.raises(
        InputError,
        match=r"a.csv: label 'y' is missing in data row 3 and 1 more \(empty, NA, none, \?\); fill it in",
    ):
        load(folder(tmp_path, a=text))
    clients = load(tmp_path, unlabelled="drop")
    assert "a: 2 rows without y were left out" in notes(clients)
    assert sum(len(p) for _, p in clients["a"].parts()) == 7


def test_a_column_may_say_which_rows_are_for_what(tmp_path):
    part = ["train", "Train", "val", "test", "train", "validation"]
    clients = load(
        folder(tmp_path, a=rows(x=range(6), part=part, y=[0, 1] * 3)),
        split_column="part",
    )
    assert clients.recipe["features"] == ["x"]
    assert [len(p) for _, p in clients["a"].parts()] == [3, 2, 1]


# Refusals: one sentence with file, column or row, and the cure.

MANY = [0, 1] * 3
BAD_FILES = {
    "empty": ("", r"bad.csv is empty; give it a header line and rows, or remove it"),
    "blank": ("\n\n", r"bad.csv is empty"),
    "header only": ("age,town,outcome\n", r"bad.csv has no rows, only a header"),
    "two rows": (
        "age,town,outcome\n1,Ulm,0\n2,Ulm,1\n",
        r"bad.csv has 2 rows, too few .* client 'bad' at least 3",
    ),
    "ragged": (
        "age,town,outcome\n1,Ulm,0\n2,Ulm\n3,Ulm,1\n",
        r"bad.csv: line 3 has 2 cells but the header has 3",
    ),
    "twice": (
        "age,age,outcome\n1,2,0\n",
        r"bad.csv: column 'age' occurs twice; rename or delete one",
    ),
    "no label": (
        rows(age=range(6), town=["Ulm"] * 6),
        r"bad.csv has no label column 'outcome' although 'good' has it",
    ),
    "infinite": (
        rows(age=[1, 2, "inf", 4, 5, 6], town=["U"] * 6, outcome=MANY),
        r"bad.csv: column 'age' is inf in data row 3",
    ),
    "mixed": (
        rows(age=[1, 2, 3, "old", 5, 6], town=["U"] * 6, outcome=MANY),
        r"bad.csv: column 'age' is text \('old' in data row 4\) but number at 'good'; correct that cell, or say missing",
    ),
    "label kind": (
        rows(age=range(6), town=["U"] * 6, outcome=["no", "yes"] * 3),
        r"label 'outcome' is number at 'good' .* but text at 'bad' .*write it the same way .*, or map all values, the positive class",
    ),
    "dates": (
        rows(age=["2023-01-01"] * 6, town=["U"] * 6, outcome=MANY),
        r"bad.csv: column 'age' holds dates or times but numbers at 'good'; write it the same way .*, or say drop = \[\"age\"\]",
    ),
    "label unit": (
        rows(age=range(6), town=["U"] * 6, outcome=["1 mg", "2 mg"] * 3),
        r"label 'outcome' has '1 mg' in data row 1; write the number alone, without its unit$",
    ),
    "no header": (
        rows(**{"1": range(6), "Ulm": ["U"] * 6, "0": MANY}),
        r"bad.csv .*; its first line has numbers: put one",
    ),
    "title": (
        "Report;2024\n\n" + PLAIN,
        r"bad.csv: line 3 has 1 cells .* or delete what stands above the header",
    ),
    "16 bits": (
        PLAIN.encode("utf-16-le"),
        r"bad.csv is not UTF-8 text \(character 1 is NUL\); save it as",
    ),
    "latin": (
        "age,town,outcome\n1,K\xf6ln,0\n".encode("latin-1"),
        r'bad.csv is not UTF-8 text \(byte 20\); save it as "CSV UTF-8"',
    ),
    "label missing": (
        rows(age=range(6), town=["U"] * 6, outcome=[""] * 6),
        r"bad.csv: label 'outcome' is missing in data row 1",
    ),
    "huge": (
        rows(age=["1e200"] * 6, town=["U"] * 6, outcome=MANY),
        r"column 'age' holds numbers too large to square",
    ),
    "cell": (
        'age,town,outcome\n1,"' + "x" * 140_000 + '",0\n',
        r"bad.csv: line 2 has a cell of more than 131,072 characters",
    ),
}


def test_what_may_be_a_client_under_another_name_is_noted(tmp_path):
    folder(tmp_path, a=PLAIN)
    (tmp_path / "b.txt").write_text(PLAIN)
    (tmp_path / ".c.txt").write_text(PLAIN)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "c.csv").write_text(PLAIN)
    want = "not read: b.txt, c/ (put the table of a client there as NAME.csv)"
    assert want in notes(load(tmp_path, label="outcome"))
    assert want in check_folder(tmp_path, label="outcome").notes


@pytest.mark.parametrize("case", BAD_FILES, ids=list(BAD_FILES))
def test_a_bad_file_among_good_ones_is_refused(tmp_path, case):
    text, sentence = BAD_FILES[case]
    with pytest.raises(InputError, match=sentence) as caught:
        load(folder(tmp_path, good=PLAIN, bad=text), label="outcome")
    assert "\n" not in str(caught.value)


Q = rows(x=range(60), y=range(60))
BAD_SETTINGS = [
    ({}, {"label": "outcom"}, r"a.csv has no label column 'outcom'; did you mean 'outcome'\?"),
    ({"a": PLAIN.replace("outcome", "sick")}, {}, r"which column is to be predicted\? .*--label NAME\); .* has age, town, sick"),
    ({}, {"task": "regresion"}, r"data.task must be .* classification | regression; got 'regresion'; did you mean 'regression'\?"),
    ({}, {"task": "regression", "above": 1}, "above makes classes of the label"),
    ({}, {"label": "town", "task": "regression"}, "regression needs a label of numbers, but 'town' is text"),
    ({}, {"label": "town", "above": 1}, "above = 1 needs a label of numbers, but 'town' is text"),
    ({}, {"above": "x"}, "data.above must be .* a number; got 'x'"),
    ({}, {"above": 100}, "all training rows of all clients are 'outcome <= 100'; there is nothing to learn"),
    ({}, {"classes": ["sick"]}, "classes has 1 names but label 'outcome' has 2 classes: 0, 1"),
    ({}, {"classes": "sick"}, r"classes = 'sick' must be a list of names, such as \['sick'\]"),
    ({}, {"drop": ["agee"]}, r"drop names column 'agee', which no client has; did you mean 'age'\?"),
    ({}, {"drop": ["outcome"]}, "drop names 'outcome', which is the label"),
    ({}, {"categorical": ["twn"]}, r"categorical names column 'twn', which no client has; did you mean 'town'\?"),
    ({}, {"missing": {"agee": 0}}, r"missing names column 'agee', which no client has; did you mean 'age'\?"),
    ({}, {"missing": [0]}, r"missing = \[0\] must be a table of columns and their codes"),
    ({}, {"missing": {"age": [[0]]}}, "missing: codes of 'age' must be numbers or texts"),
    ({}, {"unlabelled": "keep"}, "data.unlabelled must be refuse | drop; got 'keep'"),
    ({}, {"split": {"kind": "iid"}}, "kind does not apply to the folder"),
    ({}, {"split": {"seeds": 1}}, r"\[split\]: unknown key 'seeds'"),
    ({}, {"split_column": "part"}, r"a.csv has no column 'part' \(split_column\)"),
    ({}, {"split_column": "town"}, "column 'town' is 'ulm' in data row 1"),
    ({"a": PLAIN.replace("age", "part").replace("30", "test"), "b": None}, {"split_column": "part"}, "column 'part' is '40' in"),
    ({"a": rows(part=["test"] * 4, x=range(4), outcome=[0, 1] * 2)}, {"split_column": "part"}, "no row is 'train' in column"),
    ({"a": rows(x=range(4), outcome=[1] * 4)}, {}, "label 'outcome' is 1 in every row of every client"),
    ({"a": Q}, {}, r"label 'y' has 60 different values; say task = \"regression\" or task = \"classification\""),
    ({"a": rows(x=range(60), y=[f"t{i}" for i in range(60)])}, {}, "label 'y' has 60 different values; at most 50 classes"),
    ({"a": rows(x=range(4), y=["2024-01-01", "2024-01-02"] * 2)}, {}, "label 'y' holds dates; predict a number or a class"),
    ({"a": rows(when=["2024-01-01"] * 4, y=[0, 1] * 2)}, {}, r"no column is left to learn from; left out: when \(dates"),
    ({"a": rows(y=[0, 1] * 2)}, {}, "no column is left to learn from"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "options", "sentence"),
    BAD_SETTINGS,
    ids=[s[2][:40] for s in BAD_SETTINGS],
)
def test_wrong_settings_are_refused(tmp_path, files, options, sentence):
    files = {k: v for k, v in ({"a": PLAIN} | files).items() if v}
    with pytest.raises(InputError, match=sentence) as caught:
        load(folder(tmp_path, **files), **options)
    assert "\n" not in str(caught.value)


def test_wrong_folders_are_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"there is no folder .*nowhere; check the spelling"
    ):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(
        InputError,
        match=r"holds no file to read; put one .csv, .tsv, .csv.gz, .tsv.gz, .xlsx, .parquet, .dta, .sav, .npz file per client",
    ):
        load(tmp_path)
    folder(tmp_path, a=PLAIN)
    with pytest.raises(
        InputError, match=r"a.csv is a file; give the folder with one file per client"
    ):
        load(tmp_path / "a.csv")
    (tmp_path / "a.tsv").write_text(PLAIN.replace(",", "\t"))
    with pytest.raises(
        InputError, match=r"a.csv and a.tsv in .* are both client 'a'; rename one"
    ):
        load(tmp_path)
    with pytest.raises(
        InputError,
        match=r"a folder of tables has no option 'dorp'; did you mean 'drop'\?",
    ):
        load(tmp_path, dorp=["x"])
    with pytest.raises(InputError, match="is a folder already; drop folder"):
        load(tmp_path, folder="x")
    (tmp_path / "a.tsv").rename(tmp_path / "server.tsv")
    (tmp_path / "b.xls").write_bytes(b"PK")
    with pytest.raises(
        InputError, match=r"b.xls cannot be read; save it as CSV, or move it out"
    ):
        load(tmp_path)
    (tmp_path / "b.xls").unlink()
    with pytest.raises(InputError, match=r"a client is called 'server'.*rename it"):
        load(tmp_path)


def test_damaged_npz_and_parquet_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(
        InputError,
        match=r"a.npz cannot be read as npz .*; write it again with numpy.savez",
    ):
        load(tmp_path)
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(
        InputError,
        match=r"a.npz cannot be read as npz .*pickle.*; save numbers and texts only",
    ):
        load(tmp_path)
    np.savez(path, x=np.arange(4), y=np.arange(3))
    with pytest.raises(InputError, match=r"a.npz: arrays differ in length"):
        load(tmp_path)
    np.savez(path, x=np.arange(4) + 1j, z=np.arange(4), y=[0, 1, 0, 1])
    with pytest.raises(InputError, match=r"a.npz: column 'x' holds complex128, not"):
        load(tmp_path)
    assert load(tmp_path, drop=["x"]).recipe["features"] == ["z"]
    np.savez(path, x=np.float64(3), y=np.arange(4))
    with pytest.raises(InputError, match=r"array 'x' has shape \[\]; a table needs"):
        load(tmp_path)
    np.savez(path)
    with pytest.raises(InputError, match=r"a.npz holds no arrays"):
        load(tmp_path)
    path.unlink()
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "a.npy").rename(path)
    with pytest.raises(InputError, match=r"a.npz is one array and no npz archive"):
        load(tmp_path)
    path.unlink()
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    (tmp_path / "a.parquet").write_bytes(b"nothing")
    with pytest.raises(
        InputError, match=r"a.parquet cannot be read as Parquet .*; write it again"
    ):
        load(tmp_path)
    nested = {"x": [[1, 2], [3], [4], [5]], "z": [1, 2, 3, 4], "y": [0, 1, 0, 1]}
    pq.write_table(pa.table(nested), tmp_path / "a.parquet")
    with pytest.raises(
        InputError,
        match=r"column 'x' holds list<.*>, not one number or text a row, or say drop",
    ):
        load(tmp_path)
    assert load(tmp_path, drop=["x"]).recipe["features"] == ["z"]


def test_dates_of_npz_parquet_and_frames_are_left_out(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {"t": pd.date_range("2024-01-01", periods=6), "x": range(6), "y": [0, 1] * 3}
    )
    frame.to_parquet(tmp_path / "a.parquet")
    np.savez(
        tmp_path / "b.npz",
        t=frame["t"].to_numpy(),
        x=np.arange(6),
        y=np.array([0, 1] * 3),
    )
    for clients in (from_frames({"a": frame}), load(tmp_path)):
        assert clients.recipe["features"] == ["x"]


def test_wrong_frames_are_refused():
    pd = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="there are no data frames"):
        from_frames({})
    with pytest.raises(
        InputError, match="frame 'a' is not a data frame; give a pandas DataFrame"
    ):
        from_frames({"a": [1, 2]})
    with pytest.raises(InputError, match="frame 'a': column 'x' is -inf in data row 2"):
        from_frames({"a": pd.DataFrame({"x": [0.0, -np.inf, 1.0], "y": [0, 1, 0]})})
    with pytest.raises(InputError, match="frame 'a': column 'x' occurs twice"):
        from_frames({"a": pd.DataFrame([[1, 2, 3]], columns=["x", "x", "y"])})


def test_a_column_without_a_name_is_left_out(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": range(6), "y": [0, 1] * 3})
    frame.to_csv(tmp_path / "a.csv")  # with pandas' nameless index
    clients = load(tmp_path)
    assert clients.recipe["features"] == ["x"]
    assert "a column without a name was left out" in notes(clients)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    import sys

    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        InputError,
        match=r'reading Parquet needs pyarrow: pip install "coterie\[data\]"',
    ):
        load(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        InputError, match=r'the digits need scikit-learn: pip install "coterie\[data\]"'
    ):
        load("digits")


def test_packed_tables_and_those_of_stata_are_read_as_csv_is(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": range(40), "s": ["u", "v"] * 20, "y": [0, 1, 1, 0] * 10})
    for kind in ("csv", "csv.gz", "tsv.gz", "dta"):
        (tmp_path / kind).mkdir()
    frame.to_csv(tmp_path / "csv" / "a.csv", index=False)
    frame.to_csv(tmp_path / "csv.gz" / "a.csv.gz", index=False)
    frame.to_csv(tmp_path / "tsv.gz" / "a.TSV.gz", sep="\t", index=False)
    labelled = frame.assign(s=pd.Categorical(frame["s"]))
    labelled.to_stata(tmp_path / "dta" / "a.dta", write_index=False)
    expected = load(tmp_path / "csv", label="y")
    for kind in ("csv.gz", "tsv.gz", "dta"):
        clients = load(tmp_path / kind, label="y")
        assert clients.names == ("a",)
        assert clients.fingerprint() == expected.fingerprint(), kind
    (tmp_path / "csv" / "a.csv.gz").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"both client 'a'; rename one"):
        load(tmp_path / "csv", label="y")
    (tmp_path / "csv.gz" / "a.csv.gz").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"a.csv.gz cannot be unpacked .*; pack it"):
        load(tmp_path / "csv.gz", label="y")
    (tmp_path / "dta" / "a.dta").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"a.dta cannot be read as Stata .*; save it"):
        load(tmp_path / "dta", label="y")


def test_other_columns_of_the_same_patients_are_another_problem(tmp_path):
    ids = [f"p{i}" for i in range(40)]
    folder(
        tmp_path,
        clinic=rows(patient=ids, age=range(40), y=[0, 1] * 20),
        lab=rows(patient=ids[10:], crp=range(30)),
    )
    with pytest.raises(
        InputError,
        match=r"lab.csv has no label column 'y', and shares with 'clinic'.*join the files by it first; .*vertical federated",
    ):
        load(tmp_path, label="y")
    folder(tmp_path, lab=rows(patient=[f"q{i}" for i in range(30)], crp=range(30)))
    with pytest.raises(InputError, match="although 'clinic' has it"):
        load(tmp_path, label="y")
