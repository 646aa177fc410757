"""One table whose rows a split deals to clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from csv_files import folder, notes, rows

from coterie.base.errors import InputError
from coterie.data import apply_recipe, load

N = 90
TABLE = rows(
    x=np.arange(N) / 4, writer=[("anna", "ben", "cem")[i * i % 7 % 3] for i in range(N)], y=["no", "yes", "yes"] * (N // 3)
)  # fmt: skip


@pytest.fixture
def table(tmp_path):
    return folder(tmp_path, all=TABLE) / "all.csv"


def seen(clients):
    """All rows of all clients, inputs and label."""
    parts = [
        torch.cat([p.inputs, p.labels[:, None].float()], dim=1)
        for client in clients
        for _, p in client.parts()
    ]
    return sorted(map(tuple, torch.cat(parts).tolist()))


@pytest.mark.parametrize(
    "split",
    [
        {"kind": "iid", "clients": 4},
        {"kind": "dirichlet", "alpha": 1, "clients": 3},
        {"kind": "shards", "clients": 5},
    ],
)
def test_each_row_of_one_table_goes_to_one_client(table, split):
    clients = load(table, label="y", split=split)
    assert clients.names == tuple(f"client-{i}" for i in range(split["clients"]))
    assert clients.classes == ("no", "yes")
    assert clients.recipe["features"] == [
        "x",
        "writer=anna",
        "writer=ben",
        "writer=cem",
    ]
    whole = apply_recipe(clients.recipe, table, need_label=True)
    assert seen(clients) == sorted(
        map(
            tuple,
            torch.cat([whole.inputs, whole.labels[:, None].float()], dim=1).tolist(),
        )
    )
    again = load(
        table,
        label="y",
        split={**split, "seed": 0, "parts": {"train": 0.5, "test": 0.5}},
        seed=7,
    )
    assert again.validation is None
    assert (
        load(table, label="y", split={**split, "seed": 0}, seed=7).fingerprint()
        == clients.fingerprint()
    )


def test_shards_of_a_table_follow_its_classes(table):
    clients = load(
        table, label="y", split={"kind": "shards", "clients": 3, "shards_per_client": 1}
    )
    labels = [
        torch.cat([p.labels for _, p in client.parts()]).tolist() for client in clients
    ]
    assert sorted(len(set(own)) for own in labels) == [1, 1, 1]


def test_a_table_to_regress_on_is_dealt(tmp_path):
    text = rows(x=range(N), y=np.arange(N) / 8 + 0.01)
    clients = load(
        folder(tmp_path, t=text) / "t.csv",
        label="y",
        split={"kind": "iid", "clients": 3},
    )
    assert clients.label_scale.scale > 1


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        (
            None,
            r"all.csv is a file; give the folder with one file per client, or say by which column",
        ),
        (
            {"kind": "iid", "unseen": 2},
            "target-groups, unseen, flip and test do not apply to a table",
        ),
        (
            {"kind": "iid", "flip": 0.5},
            "target-groups, unseen, flip and test do not apply to a table",
        ),
        (
            {"kind": "target-groups"},
            "target-groups, unseen, flip and test do not apply to a table",
        ),
        ({"kind": "idd"}, "did you mean 'iid'"),
    ],
)
def test_wrong_splits_of_a_table_are_refused(table, split, sentence):
    with pytest.raises(InputError, match=sentence):
        load(table, label="y", split=split)


def test_rows_without_a_label_are_dropped_before_they_are_dealt(tmp_path):
    text = TABLE.replace(",no", ",")
    path = folder(tmp_path, t=text) / "t.csv"
    with pytest.raises(
        InputError, match=r"t.csv: label 'y' is missing in data row 1 and 29 more"
    ):
        load(path, label="y", split={"kind": "iid", "clients": 2})
    mixed = folder(tmp_path, t=text.replace(",yes", ",no", 3)) / "t.csv"
    clients = load(
        mixed, label="y", split={"kind": "iid", "clients": 2}, unlabelled="drop"
    )
    assert "30 rows without y were left out" in notes(clients)
    assert len(seen(clients)) == 60


def test_a_client_under_two_spellings_is_asked_about(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text(
        rows(
            x=range(N),
            site=(["Ulm", "Bonn", "ulm", "Kiel"] * N)[:N],
            y=[0, 1] * (N // 2),
        )
    )
    with pytest.raises(
        InputError,
        match=r"all.csv: .* column 'site' has 'Ulm' and 'ulm': one client or 2",
    ):
        load(path, label="y", split={"kind": "column", "column": "site"})


def test_a_note_on_the_rows_of_one_client_names_it(tmp_path):
    """Without its name the file had the same note for each client, with other categories."""
    sites, words = np.repeat(["n", "s"], 30), np.array(["u", "v"] * 30, dtype=object)
    for seed in range(
        20
    ):  # until a word of one row is in no training row of either client
        words[[7, 41]] = f"rare{seed}n", f"rare{seed}s"
        text = rows(site=sites, word=words, x=range(60), y=np.arange(60) // 2 % 2)
        (tmp_path / "one.csv").write_text(text)
        split = {"kind": "column", "column": "site", "seed": seed}
        clients = load(tmp_path / "one.csv", label="y", split=split)
        found = [note for note in clients.notes if "which no training row has" in note]
        if len(found) == 2:
            break
    ending = "which no training row has: taken as missing"
    assert found == [
        f"{c} of {tmp_path / 'one.csv'}: word has 'rare{seed}{c}', {ending}"
        for c in "ns"
    ]


@pytest.mark.parametrize("name", ["Hospital", "CLINIC"])
def test_one_table_is_divided_as_the_refusal_says(tmp_path, name):
    columns = {"x": range(40), name: ["a", "b"] * 20, "y": [0, 1, 1, 0] * 10}
    text = rows(**columns)
    path = folder(tmp_path, t=text) / "t.csv"
    with pytest.raises(InputError) as refusal:
        load(path, label="y")
    _, _, typed = str(refusal.value).partition("--split column --set split.column=")
    clients = load(path, label="y", split={"kind": "column", "column": typed})
    assert clients.names == ("a", "b")
