"""What cells, names and rows leave open is asked, with a setting for either answer; ordinary tables are not asked about."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from csv_files import folder, rows

from coterie.base.errors import InputError
from coterie.config.data import Tables
from coterie.data import apply_recipe, from_folder
from coterie.data.sets.heart_disease import FOLDER, OPTIONS
from coterie.data.tables.check import check_folder

N = 80
CLIENTS = "abc"


def write(tmp_path, make, seed=0):
    """Three clients with an outcome that follows a little from x; `make(rng, x, y, client)` adds columns."""
    for i, name in enumerate(CLIENTS):
        rng = np.random.default_rng([seed, i])
        x = rng.normal(size=N)
        y = (x + 1.5 * rng.normal(size=N) > 0).astype(int)
        columns = {"x": x.round(3), **make(rng, x, y, name), "y": y}
        folder(tmp_path, **{name: rows(**columns)})
    return tmp_path


def drugs(rng, x, y, client):
    words = np.array(["aspirin", "statin", "insulin", "oxygen", "heparin"])
    return {"drugs": [";".join(rng.permutation(words)[: 1 + k % 3]) for k in range(N)]}


def noisy_time(rng, x, y, client):
    """Months until the event, or until the follow-up ended."""
    return {"months": (rng.exponential(20 - 14 * y) + 1).round(1)}


ASKED = {
    "None among words": (
        lambda rng, x, y, client: {"allergy": rng.choice(["None", "nuts", "pollen"], N)},
        "allergy: None in ",
        [{"missing": {"allergy": ["None"]}}, {"not_missing": {"allergy": ["None"]}}],
    ),
    "unknown among words": (
        lambda rng, x, y, client: {"smoker": rng.choice(["yes", "no", "Unknown"], N)},
        "smoker: Unknown in ",
        [{"missing": {"smoker": ["Unknown"]}}, {"not_missing": {"smoker": ["Unknown"]}}],
    ),
    "zeros in front": (
        lambda rng, x, y, client: {"ward": [f"{k:03d}" for k in rng.integers(1, 30, N)]},
        "ward: numbers with zeros in front",
        [{"categorical": ["ward"]}, {"keep": ["ward"]}],
    ),
    "lists": (drugs, "drugs: cells hold several words", [{"lists": {"drugs": ";"}}, {"categorical": ["drugs"]}]),
    "weights": (
        lambda rng, x, y, client: {"wtmec2yr": rng.gamma(2, 9000, N).round(1)},
        "wtmec2yr: a survey's weights",
        [{"drop": ["wtmec2yr"]}, {"keep": ["wtmec2yr"]}],
    ),
    "a time": (noisy_time, "months: small where y is 1", [{"drop": ["months"]}, {"keep": ["months"]}]),
    "another outcome": (
        lambda rng, x, y, client: {"died": np.where(rng.random(N) < 0.8, y, 1 - y)},
        "died: another outcome among the inputs?",
        [{"drop": ["died"]}, {"keep": ["died"]}],
    ),
    "a value of one class": (
        lambda rng, x, y, client: {"cause": np.where((y == 1) & (rng.random(N) < 0.4), "sepsis", rng.choice(["u", "v"], N))},
        "cause: 'sepsis' only where the label is 1",
        [{"drop": ["cause"]}, {"keep": ["cause"]}],
    ),
    "a reversed scale": (
        lambda rng, x, y, client: {"score": ((3 * y + rng.normal(5, 1, N)) * (-1 if client == "b" else 1)).round(1)},
        "score: goes down with y at b, and up elsewhere",
        [{"drop": ["score"]}, {"keep": ["score"]}],
    ),
}  # fmt: skip


def test_a_label_that_nobody_knows_is_asked_about(tmp_path):
    def make(rng, x, y, client):
        words = ["no", "yes"] if client == "a" else ["no", "yes", "unknown"]
        return {"grade": rng.choice(words, N)}

    write(tmp_path, make)
    (question,) = from_folder(tmp_path, label="grade").questions
    assert question.startswith("grade: unknown in ")
    settings = Tables(missing={"grade": ["unknown"]}, unlabelled="drop")
    clients = from_folder(tmp_path, label="grade", tables=settings)
    assert (clients.classes, clients.questions) == (("no", "yes"), ())
    settings = Tables(not_missing={"grade": ["unknown"]})
    clients = from_folder(tmp_path, label="grade", tables=settings)
    assert (len(clients.classes), clients.questions) == (3, ())


@pytest.mark.parametrize("case", ASKED)
def test_what_may_mean_two_things_is_asked_and_either_answer_ends_it(tmp_path, case):
    make, beginning, answers = ASKED[case]
    write(tmp_path, make)
    questions = from_folder(tmp_path, label="y").questions
    assert [q for q in questions if q.startswith(beginning)], questions
    assert check_folder(tmp_path, label="y").problems == questions
    for answer in answers:
        assert from_folder(tmp_path, label="y", tables=Tables(**answer)).questions == ()


def ordinary(rng, x, y, client):
    """Columns that resemble those that are asked about, and mean what they say."""
    return {
        "weight": rng.normal(75, 12, N).round(1),
        "age": rng.integers(18, 99, N),
        "sex": rng.choice(["f", "m"], N),
        "months": rng.integers(1, 60, N),
        "number": rng.integers(100, 999, N),
        "smoker": rng.choice(["yes", "no", "unknown"], N, p=[0.4, 0.57, 0.03]),
        "diagnosis": rng.choice(["a; b", "c", "d"], N),
        "slope": (rng.normal(size=N) + 0.4 * y).round(2),
        "death in family": rng.integers(0, 2, N),
        "pulse": (170 - 25 * y + rng.normal(0, 15, N)).round(),
        "visits": rng.poisson(0.15, N),
    }


@pytest.mark.parametrize("seed", range(10))
def test_ordinary_columns_are_not_asked_about(tmp_path, seed):
    assert from_folder(write(tmp_path, ordinary, seed), label="y").questions == ()


def test_a_label_that_is_coded_backwards_is_no_reversed_scale(tmp_path):
    """All columns are reversed at that client: models show it, and an answer asks about the label."""
    for i, name in enumerate(CLIENTS):
        rng = np.random.default_rng(i)
        u, v = rng.normal(size=(2, N))
        y = (u + 0.7 * v + 0.5 * rng.normal(size=N) > 0) ^ (name == "c")
        folder(tmp_path, **{name: rows(u=u, v=v, y=y.astype(int))})
    assert from_folder(tmp_path, label="y").questions == ()


def test_the_hospitals_are_not_asked_about():
    assert from_folder(FOLDER, tables=Tables(**OPTIONS)).questions == ()


def test_a_word_that_is_not_missing_is_a_category_of_new_rows_too(tmp_path):
    write(tmp_path, ASKED["None among words"][0])
    plain = from_folder(tmp_path, label="y")
    settings = Tables(not_missing={"allergy": "None"})
    clients = from_folder(tmp_path, label="y", tables=settings)
    assert "allergy=None" not in plain.recipe["features"]
    place = clients.recipe["features"].index("allergy=None")
    new = tmp_path / "new.csv"
    new.write_text("x,allergy\n1,none\n2,nuts\n3,\n")
    assert apply_recipe(clients.recipe, new).inputs[:, place].tolist() == [1, 0, 0]


def test_words_that_classes_list_are_values_of_the_label(tmp_path):
    write(tmp_path, lambda rng, x, y, client: {"grade": np.where(y, "mild", "None")})
    with pytest.raises(InputError, match=r'set unlabelled = "drop" or not_missing'):
        from_folder(tmp_path, label="grade")
    settings = Tables(classes={"no": ["None"], "yes": ["mild"]}, drop=["y"])
    clients = from_folder(tmp_path, label="grade", tables=settings)
    assert clients.classes == ("no", "yes")
    assert torch.cat([c.train.labels for c in clients]).float().mean() < 1
    new = apply_recipe(clients.recipe, tmp_path / "a.csv", need_label=True)
    assert new.labels.tolist() == [
        int(line.split(",")[1] == "mild")
        for line in (tmp_path / "a.csv").read_text().splitlines()[1:]
    ]


def test_each_word_of_a_list_is_an_input(tmp_path):
    write(tmp_path, drugs)
    clients = from_folder(tmp_path, label="y", tables=Tables(lists={"drugs": ";"}))
    words = ["aspirin", "heparin", "insulin", "oxygen", "statin"]
    assert clients.recipe["features"] == ["x", *(f"drugs={word}" for word in words)]
    new = tmp_path / "new.csv"
    new.write_text('x,drugs\n1,statin; Aspirin;statin\n2,\n3,"insulin;opium"\n')
    encoded = apply_recipe(clients.recipe, new)
    assert encoded.inputs[:, 1:].tolist() == [[1, 0, 0, 0, 1], [0] * 5, [0, 0, 1, 0, 0]]
    assert any("'opium', which no training row has" in note for note in encoded.notes)


@pytest.mark.parametrize("lists", [{"drugs": ""}, {"drugs": 3}, ["drugs"]])
def test_a_list_needs_what_stands_between_its_words(lists):
    with pytest.raises(InputError, match=r'lists = .*such as \{drugs = ";"\}'):
        Tables(lists=lists)


@pytest.mark.parametrize("seed", range(10))
def test_rare_counts_are_no_other_unit(tmp_path, seed):
    """Counts that are mostly 0 differ between clients by a large factor, and their deviations by its root."""
    rates = {"a": 0.06, "b": 0.06, "c": 0.5}
    write(
        tmp_path,
        lambda rng, x, y, client: {"falls": rng.poisson(rates[client], N)},
        seed,
    )
    clients = from_folder(tmp_path, label="y")
    assert not [q for q in (*clients.questions, *clients.notes) if "same unit" in q]
