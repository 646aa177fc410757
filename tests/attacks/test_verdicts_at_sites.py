"""Verdicts of a run whose rows are elsewhere: those of one machine, from nothing but standard errors and p values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hospital import FEDAVG, Hospital
from test_a_site_obeys_its_plan import refused
from three_sites import ThreeSites

from coterie.data.sets.heart_disease import FOLDER, OPTIONS
from coterie.report.results import Results
from coterie.report.verdicts import verdict
from coterie.run.files import PAIRED
from coterie.sites.backend import Sites
from coterie.sites.paired import note_outcomes, paired_errors
from coterie.sites.server import Remote
from coterie.study.sweep import run_experiment

METHODS = (
    {"name": "local", "local": {"lr": 0.01}},
    {"name": "fedavg"},
    {"name": "fedavg", "label": "slow", "local": {"lr": 0.012}},
)
TWO = ("cleveland", "hungary")
SAME = 0.1  # 1,000 resamples: an error is known to 2.2 % (one standard deviation)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same experiment on one machine and at two sites that share one key, so that the test is the same every time."""
    folder = tmp_path_factory.mktemp("verdicts")
    town = ThreeSites(folder / "town", METHODS, TWO, rounds=1, seeds=3)
    for site in town.sites.values():
        site.folder.mkdir(parents=True)
        (site.folder / "key").write_bytes(b"0" * 32)
    here, there = folder / "here", folder / "there"
    (folder / "files").mkdir()
    for name in TWO:
        (folder / "files" / f"{name}.csv").write_bytes((FOLDER / f"{name}.csv").read_bytes())
    options = {k: list(v) if isinstance(v, tuple) else v for k, v in OPTIONS.items()}
    run_experiment(replace(town.experiment, data={"folder": str(folder / "files"), **options}), here)
    run_experiment(town.experiment, there, backend=Sites(Remote(town, "run", plan=town.plan)))
    return Results.load(here), Results.load(there)


def test_a_verdict_at_sites_is_that_of_one_machine(runs):
    here, there = runs
    strengths = {d.strength for c in here.clients for d in here.comparisons.family(c).values()}
    assert strengths == {"shown", "safe", "open"}
    for client in here.clients:
        mine, theirs = here.comparisons.family(client), there.comparisons.family(client)
        assert mine.keys() == theirs.keys()
        for key, difference in mine.items():
            assert theirs[key].mean == difference.mean
            assert theirs[key].strength == difference.strength, (client, key)
            assert theirs[key].half_width == pytest.approx(difference.half_width, rel=SAME)
        one, two = verdict(there, client), verdict(here, client)
        assert (one.kind, one.method) == (two.kind, two.method)
        assert one.probability == pytest.approx(two.probability, abs=0.02)
    assert (
        there.comparisons.family(None)["fedavg", "loss"].strength
        == here.comparisons.family(None)["fedavg", "loss"].strength
    )
    assert not there.outcomes_missing


def test_sites_tell_an_error_and_a_p_value_of_differences_and_nothing_per_row(runs):
    here, there = runs
    told = json.loads((there.folder / PAIRED).read_text())
    assert {tuple(row) for row in told} == {("client", "method", "other", "metric", "error", "p")}
    compared = {(row["method"], row["other"]) for row in told}
    assert compared == {(m, o) for m in ("local", "fedavg", "slow") for o in ("local", "constant") if m != o}
    assert not (there.folder / "outcomes").exists()
    assert not (here.folder / PAIRED).exists()
    exact = here.comparisons.outcomes.error("fedavg", "local", "cleveland", "loss")
    row = next(r for r in told if (r["client"], r["other"], r["metric"]) == ("cleveland", "local", "loss"))
    assert row["error"] == pytest.approx(exact.error, rel=SAME)
    assert row["error"] != exact.error


# ---- the server asks for more


@pytest.fixture
def hospital(tmp_path):
    made = Hospital(tmp_path, methods=[{"name": "local"}, FEDAVG])
    for label in ("local", "fedavg"):
        made.begin(pair=f"{label}-0")
        made.ask(note_outcomes, x=made.x + (label == "fedavg"), round=5)
    return made


def asked(hospital, method="fedavg", other="local"):
    return hospital.ask(paired_errors, method=method, other=other)


def test_the_same_question_has_the_same_answer_under_the_sites_key(hospital, tmp_path):
    first = asked(hospital)
    assert set(first) == {"error", "p", "known"}
    assert first["known"].tolist() == [[True, True, False]]  # a classification has no RMSE
    assert torch.equal(first["error"], asked(hospital)["error"])
    (hospital.rows.folder / "key").write_bytes(b"1" * 32)
    assert not torch.equal(first["error"], asked(hospital)["error"])


def test_a_run_has_one_model_of_each_method_and_seed_to_compare(hospital):
    hospital.ask(note_outcomes, x=hospital.x + 1, round=5)  # as after a resumed run
    refused("another model of fedavg-0 was noted before", hospital.ask, note_outcomes, x=hospital.x + 2, round=5)


def test_differences_beside_the_plans_are_refused(hospital):
    refused("does not compare these methods", asked, hospital, "local", "fedavg")
    refused("does not compare these methods", asked, hospital, "fedavg", "fedavg")
    refused("does not compare these methods", hospital.ask, paired_errors, method="fedavg", other="local", seeds=1)


def test_a_difference_that_rests_on_few_rows_of_a_class_is_not_told(tmp_path):
    made = Hospital(tmp_path, {"minimum_cell": 10}, methods=[{"name": "local"}, FEDAVG])
    for label in ("local", "fedavg"):
        made.begin(pair=f"{label}-0")
        made.rows.shard.clients.test.labels[:] = 0
        made.rows.shard.clients.test.labels[:5] = 1
        made.ask(note_outcomes, x=made.x, round=5)
    assert asked(made)["known"].tolist() == [[False, True, False]]
    assert asked(made, other="constant")["known"].tolist() == [[False, False, False]]


def test_a_regression_has_a_difference_in_rmse_and_none_in_auc(tmp_path):
    data = {"name": None, "folder": "x", "label": "age", "task": "regression"}
    made = Hospital(tmp_path, methods=[{"name": "local"}, FEDAVG], data=data)
    for label in ("local", "fedavg"):
        made.begin(pair=f"{label}-0")
        made.ask(note_outcomes, x=made.x + (label == "fedavg"), round=5)
    assert asked(made)["known"].tolist() == [[False, True, True]]
    assert asked(made)["error"][0, 2] > asked(made)["error"][0, 1] / 10  # in years


def test_a_difference_is_told_of_all_seeds_or_not_at_all(tmp_path):
    made = Hospital(tmp_path, methods=[{"name": "local"}, FEDAVG], seeds=2)
    made.begin(pair="fedavg-0")
    made.ask(note_outcomes, x=made.x, round=5)
    assert not asked(made, other="constant")["known"].any()
