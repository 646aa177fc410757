"""Time to event and counts at sites: the numbers of one process, and nothing that leaves tells the time of a row."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from ward_sites import COUNTS, METHODS, SURVIVAL, WARDS, Wards

import coterie as ct
from coterie.base.hazards import CELLS, cell_of, edge
from coterie.base.label_form import LabelForm
from coterie.contract.encoding import decode, encode
from coterie.data.tables.intervals import count_events, sum_counts, sum_followup
from coterie.report.results import Results
from coterie.sites.allowed import RefusedError
from coterie.sites.attack import _Server
from coterie.sites.followup import times_withheld
from coterie.sites.plan import read_plan
from coterie.sites.plan_words import in_words
from coterie.sites.tables import read_site
from deployment import differences
from wards import ward


@pytest.mark.in_turn(but="counts")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(SURVIVAL, id="time"),
        pytest.param({**SURVIVAL, "entry": "enrolled", "horizon": 24.0}, id="horizon"),
        pytest.param(COUNTS, id="counts"),
    ],
)
def test_sites_that_keep_nothing_back_give_the_numbers_of_one_process(tmp_path, data):
    # Of so many rows a tenth of the numbers is more than the curvature that the methods ask.
    frames = {name: ward(i, n=2100) for i, name in enumerate(WARDS)}
    methods = METHODS if data is COUNTS else [*METHODS, {"name": "cox"}]
    wards = Wards(tmp_path / "wards", data, frames=frames, methods=methods)
    here, there = wards.run(tmp_path)
    assert not differences(here, there, *wards.kept)
    one, two = Results.load(here), Results.load(there)
    metric = "loss" if data is COUNTS else "c_index"
    for client in WARDS:
        mine, theirs = one.comparisons.family(client), two.comparisons.family(client)
        assert mine.keys() == theirs.keys()
        assert any(key[1] == metric for key in mine)
        for key, difference in mine.items():
            assert theirs[key].mean == pytest.approx(difference.mean, abs=1e-12)
        told = two.comparisons.outcomes.of_site(client, "fedavg", "local", metric)
        gap, error, _ = one.comparisons.outcomes.gain("fedavg", "local", client, metric)
        assert told.gap == pytest.approx(gap, abs=1e-12)
        assert told.error == pytest.approx(error.error, rel=0.15)
        assert two.comparisons.rarest(client) == one.comparisons.rarest(client)


def test_cells_are_those_of_at_least_the_minimum_and_training_keeps_its_times(tmp_path):
    wards = Wards(tmp_path, {**SURVIVAL, "entry": "enrolled"}, minimum=10)
    engine = wards.remote()
    clients = engine.open(wards.approved.plan.experiment.data, 0)
    form = LabelForm.of_recipe(clients.recipe["label"])
    assert 3 <= form.outputs <= 10
    site = wards.sites["east"]
    cells = wards.ask(count_events, event="died")["cells"][0]
    train = site.table.parts["train"]
    assert cells.sum() == site.table.columns["died"].numbers[train].sum()
    assert cells[cells > 0].min() >= 10
    # The rows that a model is trained with have the times of the file.
    labels = site.clients.train.labels
    exact = np.sort(site.table.followup[train, 1] / form.horizon)
    exact = np.minimum(exact, form.cuts[-1])
    np.testing.assert_allclose(np.sort(labels[:, 1].numpy()), exact, rtol=1e-6)
    # What is told gives about the rates of the exact rows.
    rows = torch.cat([own.clients.train.labels for own in wards.sites.values()])
    usual, seen = form.usual_and_seen(rows)
    assert float(seen.sum() / usual.sum()) == pytest.approx(1, abs=0.1)
    ratio = seen.sum(0) / usual.sum(0)
    assert 0.5 < float(ratio.min()) < float(ratio.max()) < 2


@pytest.mark.promise("minima")
def test_what_leaves_before_training_is_the_same_for_other_times_in_the_same_cells(
    tmp_path,
):
    """Whichever intervals a server names: a time within its cell changes no bit of any answer."""
    frames = {name: ward(i) for i, name in enumerate(WARDS)}
    moved = {name: frame.copy() for name, frame in frames.items()}
    rng = np.random.default_rng(0)
    for frame in moved.values():
        for column in ("months", "enrolled"):
            times = torch.tensor(frame[column].to_numpy())
            cells = cell_of(times.clamp(min=1e-9)).tolist()
            low = np.array([edge(cell - 1) for cell in cells])
            high = np.array([edge(cell) for cell in cells])
            others = low + (high - low) * rng.uniform(0.1, 1.0, len(frame))
            # Whole cells of few rows may change their places, too: their rows are carried on.
            frame[column] = np.where(times > 0, others, 0.0)
    told = []
    for number, each in enumerate((frames, moved)):
        data = {**SURVIVAL, "entry": "enrolled"}
        wards = Wards(tmp_path / str(number), data, 10, each)
        wards.say("open", seed=0)
        answers = [wards.ask(count_events, event="died")["cells"]]
        draws = np.random.default_rng(1)
        for _ in range(20):
            cuts = np.sort(draws.uniform(0.01, 70, 6)).tolist()
            reply = wards.ask(sum_followup, event="died", cuts=json.dumps(cuts))
            answers += [reply["events"], reply["exposure"]]
        told.append(torch.cat([answer.flatten() for answer in answers]))
        assert not np.array_equal(
            wards.sites["east"].table.followup,
            wards.sites["east"].told_table.followup,
        )
    assert torch.equal(told[0], told[1])
    assert float(told[0].sum()) > 0


def test_the_row_that_is_followed_longest_tells_nothing(tmp_path):
    """A single late row is where a cell of one row would tell its time."""
    frames = {name: ward(i) for i, name in enumerate(WARDS)}
    late = {name: frame.copy() for name, frame in frames.items()}
    longest = frames["east"].months.idxmax()
    late["east"].loc[longest, "months"] = 4000.0
    told = []
    for number, each in enumerate((frames, late)):
        wards = Wards(tmp_path / str(number), SURVIVAL, 10, each)
        wards.say("open", seed=0)
        cuts = json.dumps([30.0, 200.0, 2000.0, 5000.0])
        told += [wards.ask(sum_followup, event="died", cuts=cuts)["exposure"]]
    assert torch.equal(*told)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cuts": [0.101, 0.1011, 1.0]}, "ends are ends of cells"),
        ({"cuts": [2.0 ** (k / 4) for k in range(-10, 4)]}, "up to 10"),
        ({"rates": [-1.0]}, "no intervals or rates"),
        ({"horizon": 17.0}, "at which no cell ends"),
        ({"time": "age"}, "another time"),
        ({"event_is": [0]}, "other values that mean the event"),
        ({"task": "regression"}, "another form of label"),
    ],
)
def test_a_recipe_of_other_intervals_or_columns_is_refused(tmp_path, change, said):
    wards = Wards(tmp_path, minimum=10)
    recipe = dict(wards.remote().open(wards.approved.plan.experiment.data, 0).recipe)
    label = {**recipe["label"], **change}
    if "cuts" in change:
        label["rates"] = [1.0] * len(change["cuts"])
    wards.say("open", seed=0)
    with pytest.raises(RefusedError, match=said):
        wards.say("encode", recipe=json.dumps({**recipe, "label": label}))


def test_a_plan_may_be_trained_under_one_set_of_intervals_a_run(tmp_path):
    wards = Wards(tmp_path, minimum=10)
    recipe = dict(wards.remote().open(wards.approved.plan.experiment.data, 0).recipe)
    wards.say("open", seed=0)
    wards.say("encode", recipe=json.dumps(recipe))  # the same again is free
    label = recipe["label"]
    for rate in (2.0, 3.0):
        other = {**label, "rates": [rate] * len(label["rates"])}
        wards.say("encode", recipe=json.dumps({**recipe, "label": other}))
    last = {**label, "rates": [4.0] * len(label["rates"])}
    with pytest.raises(RefusedError, match="budget of 3"):
        wards.say("encode", recipe=json.dumps({**recipe, "label": last}))


def test_few_events_are_refused_as_a_small_class_is(tmp_path):
    frames = {name: ward(i) for i, name in enumerate(WARDS)}
    frames["east"]["died"] = (np.arange(420) < 12).astype(int)
    wards = Wards(tmp_path, minimum=10, frames=frames)
    with pytest.raises(RefusedError, match="fewer than 10 of its training rows"):
        wards.say("open", seed=0)
    frames["east"]["died"] = 0
    wards = Wards(tmp_path / "none", minimum=10, frames=frames)
    wards.say("open", seed=0)
    assert not float(wards.ask(count_events, event="died")["cells"].sum())


def test_sums_that_the_plan_does_not_ask_are_refused(tmp_path):
    wards = Wards(tmp_path, minimum=10)
    wards.say("open", seed=0)
    for task, payload in (
        (count_events, {"event": "age"}),
        (sum_counts, {"label": "died"}),
    ):
        with pytest.raises(RefusedError, match="asks no such sums"):
            wards.ask(task, **payload)
    many = json.dumps([float(k) for k in range(1, 40)])
    with pytest.raises(RefusedError, match="more intervals than a plan has"):
        wards.ask(sum_followup, event="died", cuts=many)


def test_the_approval_says_what_leaves_of_times_and_of_counts(tmp_path):
    wards = Wards(tmp_path / "time", minimum=10)
    site = wards.sites["east"]
    words = "\n".join(in_words(wards.approved, site.settings, "east"))
    assert "predicts  when died happens, by months" in words
    assert "cells of time" in words
    assert "at least 10 training rows" in words
    assert "no time of a row" in words
    assert "c_index" in words
    counted = Wards(tmp_path / "counts", COUNTS, minimum=10)
    site = counted.sites["east"]
    words = "\n".join(in_words(counted.approved, site.settings, "east"))
    assert "predicts  falls, counted per bed_days" in words
    assert "the sum of counts and that of exposure" in words


def test_noise_that_would_not_hide_a_time_is_refused(tmp_path):
    wards = Wards(tmp_path, methods=[{"name": "fedavg"}])
    text = wards.plan_file.read_text()
    noise = "\n[[filters]]\nname = 'clip'\nbound = 1.0\n"
    noise += "[[filters]]\nname = 'gaussian-noise'\nsigma = 0.1\nsecret = true\n"
    wards.plan_file.write_text(text + noise)
    with pytest.raises(ct.InputError, match=r"secret noise does not hide.*event"):
        read_plan(wards.plan_file)


def test_cells_carry_what_is_left_to_where_enough_rows_are_followed(tmp_path):
    frame = ward(0, n=60)
    frame["months"] = [1.0] * 12 + [3.0] * 4 + [9.0] * 30 + [50.0] * 14
    frame["died"] = [1] * 16 + [0] * 44
    file = tmp_path / "east.csv"
    frame.drop(columns=["falls", "bed_days", "enrolled"]).to_csv(file, index=False)
    options = {**SURVIVAL, "label": "died"}
    table, _ = read_site(file, "east", options, seed=0, split={"parts": {"train": 1}})
    withheld = times_withheld(table, options, 10)
    times = torch.tensor(withheld.followup[:, 1])
    happened = torch.tensor(table.columns["died"].numbers) > 0
    counted = torch.bincount(cell_of(times[happened]), minlength=CELLS)
    # Four events at 3 months are too few; at 50 months 10 rows are still followed.
    assert (
        counted.nonzero().flatten().tolist() == cell_of(torch.tensor([50.0])).tolist()
    )
    assert int(counted.sum()) == 16


@pytest.mark.promise("minima")
@pytest.mark.parametrize(("minimum", "told"), [(10, 0), (1, 1)])
def test_the_red_team_reads_a_time_only_where_single_rows_may_be_spoken_of(
    tmp_path, minimum, told
):
    wards = Wards(tmp_path, minimum=minimum, methods=[{"name": "fedavg"}])
    server = _Server(wards.sites["east"], "fedavg-0", np.inf)
    finding = server.times()
    assert (finding.what, finding.found) == ("columns", told)
    assert finding.requests == 50


def test_a_site_that_tells_more_events_than_rows_is_refused(tmp_path):
    wards = Wards(tmp_path, minimum=10)
    honest = wards.call

    def lying(name, message, timeout):
        reply = honest(name, message, timeout)
        values = decode(reply)
        if name == "north" and "answer" in values:
            told = values["answer"].blocks[0].values
            if "cells" in told:
                told["cells"] = told["cells"] * 100
        return encode(values)

    wards.call = lying
    engine = wards.remote()
    clients = engine.open(wards.approved.plan.experiment.data, 0)
    assert "events of 224 rows" in engine.refused["north"]
    assert clients.names == ("east", "south")
