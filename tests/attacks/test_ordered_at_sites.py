"""Ordered classes at sites: the numbers of one process, in the order that the plan declares."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from ward_sites import WARDS, Wards

from coterie.report.results import Results
from coterie.sites.allowed import RefusedError
from coterie.sites.plan_words import in_words
from deployment import differences

GRADES = ("none", "mild", "severe")
METHODS = [{"name": "local"}, {"name": "fedavg"}, {"name": "ditto"}]


def ward(seed, n=300):
    """Patients whose grade is higher the older they are."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, n).round(1)
    latent = (age - 60) / 10 + rng.logistic(size=n)
    return pd.DataFrame(
        {
            "age": age,
            "bmi": rng.normal(25, 3, n).round(1),
            "grade": np.digitize(latent, [-0.5, 1.0]),
        }
    )


def frames(words=False):
    tables = {name: ward(number) for number, name in enumerate(WARDS)}
    if words:
        for table in tables.values():
            table["grade"] = table["grade"].map(dict(enumerate(GRADES)))
    return tables


NUMBERS = {"label": "grade", "ordered": True}
WORDS = {**NUMBERS, "classes": {grade: [grade] for grade in GRADES}}


@pytest.mark.in_turn(but="words")
@pytest.mark.parametrize(
    ("data", "words"),
    [pytest.param(NUMBERS, False, id="numbers"), pytest.param(WORDS, True, id="words")],
)
def test_sites_give_the_numbers_of_one_process(tmp_path, data, words):
    wards = Wards(tmp_path / "wards", data, frames=frames(words), methods=METHODS)
    here, there = wards.run(tmp_path)
    assert not differences(here, there, *wards.kept)
    one, two = Results.load(here), Results.load(there)
    for client in WARDS:
        gap, error, _ = one.comparisons.outcomes.gain("fedavg", "local", client, "loss")
        told = two.comparisons.outcomes.of_site(client, "fedavg", "local", "loss")
        assert told.gap == pytest.approx(gap, abs=1e-12)
        assert told.error == pytest.approx(error.error, rel=0.15)
        assert two.comparisons.rarest(client) == one.comparisons.rarest(client)
    assert wards.sites["east"].shard.clients.form.kind == "ordered"


@pytest.mark.promise("minima")
def test_a_grade_of_few_rows_is_refused_as_any_small_class(tmp_path):
    tables = frames()
    tables["east"]["grade"] = np.where(np.arange(300) < 6, 2, np.arange(300) % 2)
    wards = Wards(tmp_path, NUMBERS, 10, tables, methods=METHODS)
    with pytest.raises(RefusedError, match="fewer than the 10 rows"):
        wards.say("open", seed=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ordered": False}, "another form of label"),
        ({"values": ["2", "0", "1"]}, "another order"),
    ],
)
def test_a_recipe_of_another_order_is_refused(tmp_path, change, said):
    wards = Wards(tmp_path, NUMBERS, 10, frames(), methods=METHODS)
    recipe = dict(wards.remote().open(wards.approved.plan.experiment.data, 0).recipe)
    label = {**recipe["label"], **change}
    with pytest.raises(RefusedError, match=said):
        wards.say("encode", recipe=json.dumps({**recipe, "label": label}))


def test_an_order_that_the_plan_does_not_declare_is_refused(tmp_path):
    data = {"label": "grade"}
    wards = Wards(tmp_path, data, 10, frames(), methods=METHODS)
    recipe = dict(wards.remote().open(wards.approved.plan.experiment.data, 0).recipe)
    label = {**recipe["label"], "ordered": True}
    with pytest.raises(RefusedError, match="another form of label"):
        wards.say("encode", recipe=json.dumps({**recipe, "label": label}))


def test_the_approval_says_that_classes_have_an_order_also_where_two_occur(tmp_path):
    tables = frames()
    tables["south"] = tables["south"].query("grade < 2").reset_index(drop=True)
    wards = Wards(tmp_path, NUMBERS, 10, tables, methods=METHODS)
    for name in ("east", "south"):
        site = wards.sites[name]
        words = "\n".join(in_words(wards.approved, site.settings, name))
        assert "grade, whose classes have an order" in words
        assert "class_error" in words
