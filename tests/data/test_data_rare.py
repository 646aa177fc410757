"""Categories of few rows: pooled by each client alone, so that no count leaves it."""

from __future__ import annotations

import json

import pytest
import torch
from csv_files import folder, notes, rows

from coterie.base.errors import InputError
from coterie.config.data import Split, Tables
from coterie.data import apply_recipe, load
from coterie.data.tables.agreement import agree
from coterie.data.tables.folder import encode_client, ready_tables
from coterie.data.tables.read import read, reading_of
from coterie.data.tables.recipe import TableCohort

N = 60
OPTIONS = {"label": "y", "rare": 4}


@pytest.fixture
def wards(tmp_path):
    """Ward n is common at a and rare at b, m is rare at both, and q is rare in two spellings, which together are common."""
    a = ["e"] * 30 + ["n"] * 24 + ["m"] * 2 + ["Q", "q"] * 2
    b = ["e"] * 30 + ["s"] * 26 + ["n"] * 2 + ["m"] * 2
    for name, words in (("a", a), ("b", b)):
        part = ["train"] * N
        part[:3] = ["test"] * 3
        folder(
            tmp_path,
            **{name: rows(x=range(N), ward=words, part=part, y=[0, 1] * (N // 2))},
        )
    return tmp_path


def test_rare_categories_are_pooled(wards):
    clients = load(wards, **OPTIONS, split_column="part")
    assert clients.recipe["features"] == [
        "x",
        "ward=e",
        "ward=n",
        "ward=q",
        "ward=s",
        "ward=(rare)",
    ]
    assert (
        "ward: categories of too few training rows (rare) are pooled (a, b)"
        in notes(clients)
    )
    one_hot = {
        name: apply_recipe(clients.recipe, wards / f"{name}.csv").inputs[:, 1:]
        for name in "ab"
    }
    assert bool((one_hot["a"].sum(1) == 1).all())
    assert (
        one_hot["b"][56:].tolist() == [[0, 1, 0, 0, 0]] * 2 + [[0, 0, 0, 0, 1]] * 2
    )  # n is common at a
    new = wards / "new.txt.csv"
    new.write_text("x,ward\n1,never seen\n2,\n")
    encoded = apply_recipe(clients.recipe, new)
    assert encoded.inputs[:, 1:].tolist() == [[0, 0, 0, 0, 1], [0] * 5]
    assert json.loads(json.dumps(clients.recipe)) == clients.recipe


def test_nothing_is_pooled_unless_asked(wards):
    clients = load(wards, label="y", split_column="part")
    assert clients.recipe["features"] == [
        "x",
        "ward=e",
        "ward=m",
        "ward=n",
        "ward=q",
        "ward=s",
    ]


def test_many_categories_are_noted(tmp_path):
    wards = [f"ward {i % 40}" for i in range(120)]
    clients = load(
        folder(tmp_path, a=rows(x=range(120), ward=wards, y=[0, 1] * 60)), label="y"
    )
    assert (
        f"ward: {len(clients.recipe['features']) - 1} categories, an input for each (drop free text"
        in notes(clients)
    )


def test_a_column_of_rare_categories_alone_is_left_out(tmp_path):
    text = rows(x=range(12), ward=["a", "b", "c"] * 4, y=[0, 1] * 6)
    clients = load(folder(tmp_path, a=text), label="y", rare=10)
    assert clients.recipe["features"] == ["x"]
    assert "left out: ward (every category is rare)" in notes(clients)


@pytest.mark.parametrize("rare", [-1, 1.5, True, "3"])
def test_wrong_settings_are_refused(wards, rare):
    with pytest.raises(InputError, match=r"data.rare must be an int >= 0; got"):
        load(wards, label="y", rare=rare)


def test_sites_that_are_asked_one_by_one_agree_on_the_same_recipe(wards):
    """The recipe of one process, from tasks that are put to each client alone, as between institutions."""
    clients = load(wards, **OPTIONS)
    settings = Tables(**OPTIONS)
    tables = {
        name: read(wards / f"{name}.csv", reading_of(settings, name)) for name in "ab"
    }
    ready, _ = ready_tables(tables, settings, Split.parse(None), 0)

    def ask(task, **payload):
        replies = [task(TableCohort({name: ready[name]}), **payload) for name in "ab"]
        join = [
            torch.cat if isinstance(field[0], torch.Tensor) else lambda f: sum(f, ())
            for field in zip(*replies, strict=True)
        ]
        return task.reply(
            *(
                j(field)
                for j, field in zip(join, zip(*replies, strict=True), strict=True)
            )
        )

    recipe = agree(("a", "b"), settings, ask)
    assert recipe == clients.recipe
    for name in "ab":
        assert torch.equal(
            encode_client(ready[name], recipe)[0].train.inputs,
            clients[name].train.inputs,
        )
