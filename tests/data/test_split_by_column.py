"""A table or a data set of the hub dealt out by the column that names the user."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from csv_files import folder, notes, rows
from defects import plain

from coterie.base.errors import InputError
from coterie.config.data import Split, Tables
from coterie.data import load
from coterie.data.dealing import deal
from coterie.data.tables.check import check_folder

N = 60
WRITERS = [("anna", "ben", "cem", "dora")[i * i % 7 // 2 + i % 2] for i in range(N)]
TABLE = rows(x=np.arange(N) / 4, writer=WRITERS, y=[0, 1, 1] * (N // 3))


@pytest.fixture
def table(tmp_path):
    return folder(tmp_path, all=TABLE) / "all.csv"


def sizes(clients):
    return {client.name: sum(len(p) for _, p in client.parts()) for client in clients}


def test_each_writer_is_a_client_with_its_own_rows(table):
    clients = load(table, label="y", split={"kind": "column", "column": "writer"})
    assert clients.recipe["features"] == ["x"]
    assert sizes(clients) == {
        name: WRITERS.count(name) for name in sorted(set(WRITERS))
    }
    x, scale = (
        clients.recipe["columns"][0]["mean"],
        clients.recipe["columns"][0]["scale"],
    )
    for client in clients:
        own = (
            torch.cat([part.inputs[:, 0] for _, part in client.parts()]).double()
            * scale
            + x
        )
        assert {WRITERS[round(float(v) * 4)] for v in own} == {client.name}


def test_numbers_name_users_too_and_the_command_line_says_so(coterie_command, table):
    ended = coterie_command(
        "compare", str(table), "--label", "y", "--split", "column", "--set", "split.column=writer", "--methods", "local",
        "--rounds", "1", "--seeds", "1", "--no-report", "--out", "run",
    )  # fmt: skip
    assert ended == 0
    clients = {
        row["client"]
        for row in json.loads((table.parent / "run" / "summary.json").read_text())
    }
    assert clients == set(WRITERS)
    assert (
        coterie_command("run", "run/experiment.toml", "--no-report", "--out", "again")
        == 0
    )


@pytest.fixture
def coterie_command(monkeypatch, tmp_path, capsys):
    from coterie.cli.main import main

    monkeypatch.chdir(tmp_path)
    return lambda *words: main(words)


def test_small_and_further_users(tmp_path):
    whose = [1] * 2 + [7] * 9 + [20] * 9 + [3] * 9 + [4] * 9
    path = folder(tmp_path, t=rows(x=range(38), user=whose, y=[0, 1] * 19)) / "t.csv"
    clients = load(path, label="y", split={"kind": "column", "column": "user"})
    assert clients.names == ("20", "3", "4", "7")
    assert "1 values of user with fewer than 3 rows are left out" in notes(clients)
    two = load(
        path, label="y", split={"kind": "column", "column": "user", "clients": 2}
    )
    assert len(two) == 2
    assert set(two.names) < set(clients.names)
    with pytest.raises(
        InputError,
        match="has no value with 10 rows or more; name the column that says whose row it is",
    ):
        load(path, label="y", split={"kind": "column", "column": "user", "minimum": 10})


def test_a_data_set_with_columns_is_dealt_by_one(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = {
        "input_ids": [[i, 0] for i in range(N)],
        "label": [0, 1, 1] * (N // 3),
        "writer": WRITERS,
    }
    datasets.Dataset.from_dict(data).to_parquet(tmp_path / "train.parquet")
    rule = {"kind": "column", "column": "writer"}
    clients = load(f"hf:{tmp_path}", split=rule, input="input_ids")
    assert sizes(clients) == {
        name: WRITERS.count(name) for name in sorted(set(WRITERS))
    }
    for client in clients:
        ids = torch.cat([part.inputs["input_ids"][:, 0] for _, part in client.parts()])
        assert {WRITERS[i] for i in ids.tolist()} == {client.name}
    apart = load(f"hf:{tmp_path}", split={**rule, "unseen": 1}, input="input_ids")
    assert set(apart.names) | set(apart.unseen.names) == set(WRITERS)
    few = load(f"hf:{tmp_path}", split=rule, input="input_ids", rows=30)
    assert sum(sizes(few).values()) <= 30
    with pytest.raises(
        InputError, match="the data set has no column 'writr'; did you mean 'writer'"
    ):
        load(f"hf:{tmp_path}", split={**rule, "column": "writr"}, input="input_ids")


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        ({"kind": "column"}, r"\[split\] kind = 'column' needs the name of the column"),
        (
            {"kind": "column", "column": 3},
            "split.column must be the name of a column; got 3",
        ),
        (
            {"kind": "iid", "column": "writer"},
            r"\[split\] column belongs to kind = 'column', but kind is 'iid'",
        ),
        (
            {"kind": "column", "column": "writr"},
            r"all.csv has no column 'writr'; did you mean 'writer'",
        ),
        (
            {"kind": "column", "column": "writer", "clients": 9},
            "has 4 values with 3 rows or more; 9 clients are asked for",
        ),
    ],
)
def test_wrong_columns_are_refused(table, split, sentence):
    with pytest.raises(InputError, match=sentence):
        load(table, label="y", split=split)


def test_missing_users_and_data_without_columns_are_refused(tmp_path):
    path = (
        folder(tmp_path, t=rows(x=range(6), user=["a", "", *["b"] * 4], y=[0, 1] * 3))
        / "t.csv"
    )
    with pytest.raises(
        InputError, match=r"column 'user' is missing in row 2; say whose row it is"
    ):
        load(path, label="y", split={"kind": "column", "column": "user"})
    with pytest.raises(InputError, match="needs a data set with named columns"):
        deal(Split(kind="column", column="user"), [0, 1], seed=0)


PARTS = {
    "a": {"x": range(30), "kind": ["u", "v"] * 15, "y": ["no", "yes"] * 15},
    "b": {"x": [*range(29), "2 mm"], "kind": [""] * 30, "y": [0, 0, 1] * 10},
    "c": {"x": ["unknown"] * 30, "kind": range(30), "y": ["No", "Yes", ""] * 10},
}
CLASSES = {"no": ["no", "0", "No"], "yes": ["yes", "1", "Yes"]}


@pytest.mark.parametrize(
    "settings",
    [
        {"drop": ["x", "kind"]},
        {"drop": ["x"], "categorical": ["kind"]},
        {"drop": {"b": ["x"], "c": ["kind"]}},
        {"drop": {"b": ["x"], "*": ["kind"]}},
        {"drop": {"d": ["x"]}},
        {"missing": {"x": ["2 mm"]}, "rename": {"c": {"kind": "sort"}}},
        {"missing": {"x": ["2 mm"]}, "categorical": ["kind"]},
    ],
    ids=str,
)
def test_a_table_is_the_folder_of_its_parts(tmp_path, settings):
    """Types, settings by client and sentences are those of files of their own; `classes` maps what each of them writes."""
    parts = {
        name: {**columns, "z": np.arange(30) % 7} for name, columns in PARTS.items()
    }
    (tmp_path / "files").mkdir()
    folder(tmp_path / "files", **{n: rows(**columns) for n, columns in parts.items()})
    lines = [
        f"{name},{line}"
        for name, columns in parts.items()
        for line in rows(**columns).splitlines()[1:]
    ]
    table = tmp_path / "all.csv"
    table.write_text("\n".join(["site,x,kind,y,z", *lines]) + "\n")
    settings = {**settings, "label": "y", "classes": CLASSES, "unlabelled": "drop"}
    split = {"kind": "column", "column": "site"}

    def outcome(path, **more):
        checked = check_folder(path, tables=Tables(**settings), **more)
        try:
            clients = load(path, **settings, **more)
        except InputError as error:
            said = plain(str(error))
            return said, said in map(plain, checked.problems)
        return clients.fingerprint(), checked.problems == clients.questions

    expected = outcome(tmp_path / "files")
    assert outcome(table, split=split) == expected
    assert expected[1]


def test_a_sentence_names_the_row_of_the_file(tmp_path):
    cells = ["1", "2", "3", "4", "<5", "6", "7", "8"] * 2
    path = (
        folder(tmp_path, t=rows(s=["a", "b"] * 8, x=cells, y=[0, 0, 1, 1] * 4))
        / "t.csv"
    )
    with pytest.raises(
        InputError, match=r"a of .*t.csv: column 'x' has '<5' in data row 5"
    ):
        load(path, label="y", split={"kind": "column", "column": "s"})
