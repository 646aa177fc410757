"""Weights of rows at sites: the numbers of one process, minima of effective rows, and no weight in what leaves."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ward_sites import COUNTS, METHODS, SURVIVAL, WARDS, Wards

import coterie as ct
from coterie.base.label_form import with_weights
from coterie.contract.encoding import encode
from coterie.data.tables.recipe import describe, moments
from coterie.report.results import Results
from coterie.sites.allowed import RefusedError
from coterie.sites.attack import attack
from coterie.sites.effective import (
    batches_fit,
    count_by_value,
    count_rows,
    fewest_in_a_batch,
)
from coterie.sites.home_verdict import verdict_lines
from coterie.sites.minima import fewest_of, table_withheld
from coterie.sites.plan import read_plan
from coterie.sites.plan_words import in_words
from coterie.sites.tables import read_site
from deployment import differences
from wards import ward

CLASSES = {"label": "died", "weights": "w"}
NUMBERS = {"label": "bmi", "weights": "w"}
LOCAL = {"lr": 0.05, "steps": 3, "batch_size": 32, "minimum_batch": 32}


def frames(n=420, heaviest=3.0):
    tables = {name: ward(number, n) for number, name in enumerate(WARDS)}
    for number, table in enumerate(tables.values()):
        rng = np.random.default_rng([7, number])
        # Each site counts in a unit of its own.
        table["w"] = 10.0**number * rng.uniform(0.5, heaviest, n)
    return tables


def wards_of(folder, data=CLASSES, minimum=10, tables=None, **plan):
    tables = frames() if tables is None else tables
    return Wards(folder, data, minimum, tables, **{"local": LOCAL, **plan})


def recipe_of(wards):
    return dict(wards.remote().open(wards.approved.plan.experiment.data, 0).recipe)


# The numbers of one process


@pytest.mark.in_turn(but="classes")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(CLASSES, id="classes"),
        pytest.param(NUMBERS, id="numbers"),
        pytest.param({**SURVIVAL, "weights": "w"}, id="time"),
        pytest.param({**COUNTS, "weights": "w"}, id="counts"),
    ],
)
def test_sites_that_keep_nothing_back_give_the_numbers_of_one_process(tmp_path, data):
    wards = wards_of(tmp_path / "w", data, 1, frames(2100), methods=METHODS)
    here, there = wards.run(tmp_path)
    assert not differences(here, there, *wards.kept)
    one, two = Results.load(here), Results.load(there)
    for client, metric in itertools.product(WARDS, ("loss", "auc", "c_index", "mse")):
        gain = one.comparisons.outcomes.gain("fedavg", "local", client, metric)
        told = two.comparisons.outcomes.of_site(client, "fedavg", "local", metric)
        if gain is None:
            continue
        assert told.gap == pytest.approx(gain[0], abs=1e-12)
        assert told.error == pytest.approx(gain[1].error, rel=0.15)
        assert two.comparisons.rarest(client) == one.comparisons.rarest(client)


@pytest.mark.in_turn
def test_a_comparison_in_folds_is_that_of_one_process(tmp_path):
    """Trees of boosting count rows by their weights, too, and each row counts alike whichever fold tests it."""
    run = {"rounds": 2, "seeds": 1, "rivals": ["linear", "boosted"]}
    plan = {"split": {"folds": 3}, "methods": METHODS[:2], "run": run}
    wards = wards_of(tmp_path / "w", CLASSES, 1, **plan)
    here, there = wards.run(tmp_path)
    one, two = Results.load(here), Results.load(there)
    for client, rival in itertools.product(WARDS, ("local", "boosted")):
        gain = one.comparisons.outcomes.gain("fedavg", rival, client, "loss")
        told = two.comparisons.outcomes.of_site(client, "fedavg", rival, "loss")
        assert told.gap == pytest.approx(gain[0], abs=1e-7)
        assert told.error == pytest.approx(gain[1].error, rel=0.15)
        assert two.comparisons.rarest(client) == one.comparisons.rarest(client)


def repeated(table):
    """Each row as often as it weighs."""
    often = table["w"].astype(int)
    return table.loc[table.index.repeat(often)].reset_index(drop=True)


@pytest.mark.in_turn
def test_integer_weights_at_a_site_are_repeated_rows(tmp_path):
    tables, rng = {}, np.random.default_rng(3)
    for number, name in enumerate(WARDS):
        tables[name] = ward(number, 600)
        # Of mean 1 in each part: a client has as much say as it has rows, and a penalty as much as it is of these.
        of_part = np.repeat(["train", "test"], 300)
        weights = [rng.permutation(np.tile([0, 1, 2], 100)) for _ in range(2)]
        tables[name] = tables[name].assign(part=of_part, w=np.concatenate(weights))
    # Scales of columns count each row once, so they are those of bounds.
    data = {"bounds": {"age": [0, 120], "bmi": [10, 40]}, "split_column": "part"}
    local = {"lr": 0.05, "steps": 3, "batch_size": "all"}
    both = []
    for each in ("weights", "rows"):
        own, columns = tables, {**CLASSES, **data}
        if each == "rows":
            own = {name: repeated(table) for name, table in tables.items()}
            columns = {**data, "label": "died", "drop": ["w"]}
        wards = wards_of(tmp_path / each, columns, 1, own, methods=METHODS, local=local)
        there = tmp_path / f"{each}-run"
        wards.submit(there)
        both.append(there)
    weighted, plain = (Results.load(folder) for folder in both)
    for client, method, metric in itertools.product(
        WARDS, ("fedavg", "fixed-effects", "partial"), ("loss", "auc", "accuracy")
    ):
        # Not the gap to `local`: it chooses a penalty in folds, and those of repeated rows are others.
        ours, theirs = (
            results.comparisons.outcomes.of_site(client, method, "local", metric)
            for results in (weighted, plain)
        )
        assert ours.value == pytest.approx(theirs.value, abs=1e-8)


# Minima


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=7), st.integers(1, 7))
def test_no_batch_has_fewer_effective_rows_than_are_said(listed, size):
    weights = np.array(listed)
    batches = itertools.combinations(listed, min(size, len(listed)))
    fewest = min(count_rows(size, np.array(batch)) for batch in batches)
    assert abs(fewest_in_a_batch(weights, size) - fewest) <= 1


def test_equal_weights_are_rows_and_one_heavy_row_is_one():
    values = [*"aaabb"]
    assert count_by_value(values, np.full(5, 0.37)) == count_by_value(values, None)
    heavy = count_by_value(values, np.array([1e6, 1, 1, 1, 1]))
    assert heavy == {"a": 1, "b": 2}


@pytest.mark.promise("minima")
@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("all", "fewer than the 20 training rows"),
        ("events", "one of its classes has fewer than the 10 rows"),
    ],
)
def test_minima_are_of_effective_rows(tmp_path, who, said):
    tables = frames()
    chosen = np.ones(420, bool) if who == "all" else tables["east"]["died"] > 0
    # All weight lies on nine of the rows.
    light = np.flatnonzero(chosen)[9:]
    tables["east"].loc[light, "w"] = 1e-6
    wards = wards_of(tmp_path, tables=tables, local={"batch_size": "all"})
    with pytest.raises(RefusedError, match=said):
        wards.say("open", seed=0)
    wards.say("open", "north", seed=0)


@pytest.mark.promise("minima")
def test_a_category_of_few_effective_rows_is_not_spoken_of(tmp_path):
    tables = frames()
    for table in tables.values():
        table["ward"] = np.where(np.arange(420) % 10 == 0, "annex", "main")
    annex = np.flatnonzero(tables["east"]["ward"] == "annex")
    tables["east"].loc[annex[3:], "w"] = 1e-6
    wards = wards_of(tmp_path, tables=tables, local={"batch_size": "all"})
    told = {}
    for name in ("east", "north"):
        wards.say("open", name, seed=0)
        settings = {"label": "died", "categorical": "[]", "rare": 0}
        (text,) = wards.ask(describe, name, **settings)["text"]
        told[name] = json.loads(text)["columns"]["ward"]["categories"]
    assert told == {"east": ["main"], "north": ["annex", "main"]}


@pytest.fixture(scope="module")
def east(tmp_path_factory):
    """The table of a site, with wards of a few rows to half of them."""
    table = frames()["east"]
    often = 2.0 ** -np.arange(1, 7)
    draws = np.random.default_rng(0).choice(6, 420, p=often / often.sum())
    file = tmp_path_factory.mktemp("east") / "east.csv"
    table.assign(ward=[f"ward {k}" for k in draws]).to_csv(file, index=False)
    return read_site(file, "east", CLASSES, seed=0, split=None)[0]


def kish(weights):
    return weights.sum() ** 2 / max((weights**2).sum(), 1e-300)


@pytest.mark.promise("minima")
@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 3))
def test_whatever_the_weights_no_category_or_class_of_few_effective_rows_is_told(
    east, seed, spread
):
    weights = np.random.default_rng(seed).lognormal(0, spread, 420)
    table = replace(east, weights=weights)
    died = table.columns["died"].numbers > 0
    smaller = min(kish(weights[died]), kish(weights[~died]))
    try:
        told = table_withheld(table, CLASSES, 10)
    except RefusedError:
        assert smaller < 10
        return
    assert smaller >= 10 - 1e-5
    train = table.parts["train"]
    wards, shown = table.columns["ward"].value_names, told.columns["ward"].value_names
    for name in set(wards[train]):
        rows = train[wards[train] == name]
        is_told = name in set(shown)
        assert is_told == (kish(weights[rows]) >= 10 - 1e-5)
    form = ct.LabelForm("classes", weighted=True)
    labels = with_weights(torch.from_numpy(died.astype(int)), torch.tensor(weights))
    assert fewest_of(labels, form) == int(smaller + 1e-6)


@pytest.mark.promise("minima")
def test_events_of_few_effective_rows_are_refused(tmp_path):
    tables = frames()
    died = np.flatnonzero(tables["east"]["died"] > 0)
    tables["east"].loc[died[6:], "w"] = 1e-6
    data = {**SURVIVAL, "weights": "w"}
    wards = wards_of(tmp_path, data, 10, tables, local={"batch_size": "all"})
    with pytest.raises(RefusedError, match="fewer than the 10 rows"):
        wards.say("open", seed=0)


@pytest.mark.promise("minima")
def test_a_batch_in_which_few_rows_weigh_is_refused_and_the_cure_works(tmp_path):
    tables = frames(heaviest=8.0)
    local = {**LOCAL, "batch_size": 8, "minimum_batch": 8}
    settings = {"minimum_batch": 8}
    wards = wards_of(tmp_path, tables=tables, local=local, settings=settings)
    with pytest.raises(RefusedError, match="fewer than 8 effective") as refused:
        wards.say("open", seed=0)
    # How uneven its weights are stays at the site; a person there reads which batches would do.
    assert not re.search(r"batch_size = \d", str(refused.value))
    table, _ = read_site(
        wards.sites["east"].settings.data, "east", CLASSES, seed=0, split=None
    )
    pairs = wards.approved.pairs.values()
    with pytest.raises(RefusedError) as refused:
        batches_fit(table, pairs, 8, at_home=True)
    cure = re.search(
        r"batch_size = (\d+) and minimum_batch = (\d+)", str(refused.value)
    )
    size, smallest = map(int, cure.groups())
    local = {**LOCAL, "batch_size": size, "minimum_batch": smallest}
    for name, each in (("typed", local), ("all", {**LOCAL, "batch_size": "all"})):
        folder = tmp_path / name
        cured = wards_of(folder, tables=tables, local=each, settings=settings)
        cured.say("open", seed=0)


def test_weights_too_uneven_for_an_interval_give_no_comparison(tmp_path):
    tables = frames(900)
    for table in tables.values():
        table["w"] = np.random.default_rng(5).lognormal(0, 1.5, 900)
    wards = wards_of(tmp_path / "w", minimum=1, tables=tables, methods=METHODS[:2])
    there = tmp_path / "run"
    wards.submit(there)
    outcomes = Results.load(there).comparisons.outcomes
    assert outcomes.of_site("east", "fedavg", "local", "loss") is None
    site = wards.sites["east"]
    said = "\n".join(verdict_lines(wards.approved, site.settings, wards.kept[0]))
    assert "too uneven" in said


# What leaves


@pytest.mark.promise("minima")
def test_nothing_that_leaves_before_training_depends_on_a_weight(tmp_path):
    told = []
    for number in range(2):
        tables = frames()
        for table in tables.values():
            if number:
                table["w"] = table["w"].to_numpy()[::-1]
        wards = wards_of(tmp_path / str(number), tables=tables)
        answers = [wards.say("open", seed=0)]
        description = {"label": "died", "categorical": "[]", "rare": 0}
        answers.append(wards.ask(describe, **description))
        schema = json.dumps(["age", "bmi"])
        answers.append(wards.ask(moments, schema=schema))
        told.append(encode({"answers": tuple(map(repr, answers))}))
    assert told[0] == told[1]


def test_a_recipe_with_other_weights_and_sums_of_weights_are_refused(tmp_path):
    wards = wards_of(tmp_path)
    recipe = recipe_of(wards)
    wards.say("open", seed=0)
    for name in (None, "age", "bmi"):
        label = {**recipe["label"], "weights": name}
        with pytest.raises(RefusedError, match="another column of weights"):
            wards.say("encode", recipe=json.dumps({**recipe, "label": label}))
    with pytest.raises(RefusedError, match="sums are given"):
        wards.ask(moments, schema=json.dumps(["w"]))
    column = {**recipe["columns"][0], "name": "w"}
    columns = [column, *recipe["columns"][1:]]
    with pytest.raises(RefusedError):
        wards.say("encode", recipe=json.dumps({**recipe, "columns": columns}))
    assert "w" not in json.dumps(recipe["features"])


def test_a_plan_may_name_its_weights_among_the_columns_that_sites_need(tmp_path):
    deploy = {"sites": list(WARDS), "columns": ["age", "w"]}
    wards_of(tmp_path / "both", deploy=deploy).say("open", seed=0)
    deploy["columns"].append("height")
    wards = wards_of(tmp_path / "none", deploy=deploy)
    with pytest.raises(RefusedError, match="no column height"):
        wards.say("open", seed=0)


def test_weights_that_the_plan_does_not_declare_are_refused(tmp_path):
    data = {"label": "died", "drop": ["w"]}
    wards = wards_of(tmp_path, data)
    recipe = recipe_of(wards)
    label = {**recipe["label"], "weights": "w"}
    with pytest.raises(RefusedError, match="another column of weights"):
        wards.say("encode", recipe=json.dumps({**recipe, "label": label}))


@pytest.mark.in_turn
@pytest.mark.promise("minima")
def test_the_red_team_finds_no_more_than_without_weights(tmp_path):
    tables = frames()
    # Some rows weigh forty times what others do.
    tables["east"]["w"] = np.random.default_rng(0).uniform(0.05, 2, 420)
    found = []
    for data in ({"label": "died", "drop": ["w"]}, CLASSES):
        folder = tmp_path / str(len(found))
        methods = [{"name": "fedavg"}]
        wards = wards_of(folder, data, tables=tables, methods=methods)
        settings = wards.sites["east"].settings
        findings = list(attack(wards.approved, settings, "east", seconds=60))
        assert not any(each.found for each in findings if each.what == "columns")
        found.append(sum(each.found for each in findings if each.what == "rows"))
    # Of 280: guesses are near to a few rows by luck, as they are to rows that nobody has.
    assert found[1] <= found[0] + 5


def test_the_approval_says_by_what_rows_count(tmp_path):
    wards = wards_of(tmp_path)
    site = wards.sites["east"]
    words = "\n".join(in_words(wards.approved, site.settings, "east"))
    assert "rows count by w" in words
    assert "effective rows" in words


@pytest.mark.parametrize("noise", ["filters", "privacy"])
def test_noise_beside_weights_is_refused_with_a_cure_that_works(tmp_path, noise):
    methods = [{"name": "fedavg"}]
    wards = wards_of(tmp_path, methods=methods)
    text = wards.plan_file.read_text()
    bounds = "bounds = { age = [0, 120], bmi = [10, 40] }"
    text = text.replace('weights = "w"', f'weights = "w"\n{bounds}')
    if noise == "filters":
        text += "\n[[filters]]\nname = 'clip'\nbound = 1.0\n"
        text += "[[filters]]\nname = 'gaussian-noise'\nsigma = 0.1\nsecret = true\n"
    else:
        text = text.replace("batch_size = 32\nminimum_batch = 32\n", "")
        text += "\n[privacy]\nepsilon = 2.0\n"
    wards.plan_file.write_text(text)
    with pytest.raises(ct.InputError, match="let one row move more") as refused:
        read_plan(wards.plan_file)
    assert 'drop = ["w"]' in str(refused.value)
    cured = text.replace('weights = "w"\n', "").replace("drop = [", 'drop = ["w", ')
    wards.plan_file.write_text(cured)
    read_plan(wards.plan_file)
