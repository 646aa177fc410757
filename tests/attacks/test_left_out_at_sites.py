"""What a hospital outside may expect, at sites: each tests one model of the others, and tells two numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hospital import Hospital
from safetensors.torch import load_file
from test_a_site_obeys_its_plan import refused
from three_sites import LIAR, SITES, ThreeSites

from coterie.compute.left_out import gain_of_others
from coterie.contract.wire import PerClient
from coterie.data.sets.heart_disease import FOLDER, OPTIONS
from coterie.report.outside import first_outside_words, outside
from coterie.report.results import Results
from coterie.run.files import OUTSIDE_ERROR, OUTSIDE_GAIN
from coterie.sites.backend import Sites
from coterie.sites.ledger import Account
from coterie.sites.plan_words import in_words
from coterie.sites.server import Remote
from coterie.study.sweep import run_experiment

ONE_PASS = {"name": "partial", "passes": 1}
"""Which a tenth of the rows of these hospitals suffices for."""
SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}
PLAN = {"rounds": 2, "split": {"parts": SHARES}}


def run_at(town: ThreeSites, folder: Path, resume: bool = False) -> Results:
    there = Sites(Remote(town, "run", plan=town.plan))
    run_experiment(town.experiment, folder, backend=there, resume=resume)
    return Results.load(folder)


def prior_of(results: Results) -> dict[str, torch.Tensor]:
    (path,) = (results.folder / "models" / "prior").glob("partial-0*.safetensors")
    return load_file(path)


def test_sites_tell_the_bits_of_one_process(tmp_path):
    town = ThreeSites(tmp_path / "town", [ONE_PASS], **PLAN)
    there = run_at(town, tmp_path / "there")
    data = tmp_path / "data"
    data.mkdir()
    for name in SITES:
        shutil.copy(FOLDER / f"{name}.csv", data)
    options = {k: list(v) if isinstance(v, tuple) else v for k, v in OPTIONS.items()}
    experiment = town.experiment
    object.__setattr__(experiment, "data", {"folder": str(data), **options})
    run_experiment(experiment, tmp_path / "here")
    here = Results.load(tmp_path / "here")
    for key in (OUTSIDE_GAIN, OUTSIDE_ERROR):
        found, expected = prior_of(there)[key], prior_of(here)[key]
        assert bool(found.isfinite().all())
        assert torch.equal(found, expected)
    assert first_outside_words(there) == first_outside_words(here) != ""


def test_a_site_that_refuses_is_named_and_the_others_are_told(tmp_path):
    town = ThreeSites(tmp_path / "town", [ONE_PASS], **PLAN)
    settings = town.sites[LIAR].settings
    object.__setattr__(settings, "refuse", ("gain_of_others",))
    results = run_at(town, tmp_path / "run")
    gains = prior_of(results)[OUTSIDE_GAIN]
    place = results.clients.index(LIAR)
    assert gains.isfinite().tolist() == [k != place for k in range(len(SITES))]
    (failure,) = results.failures
    assert failure.startswith(LIAR)
    assert "refuses the task" in failure
    # Two hospitals say little about how far hospitals differ.
    assert outside(results, "partial") is None


@pytest.fixture
def hospital(tmp_path):
    return Hospital(tmp_path, methods=[ONE_PASS], rounds=2).begin(pair="partial-0")


def model(hospital, number=0.0):
    return PerClient(torch.full_like(hospital.x, number)[None])


def test_it_is_asked_once_training_is_over_of_one_model_a_run_and_counted(hospital):
    ask = hospital.ask
    early = "has no left_out:gain_of_others in round 1"
    refused(early, ask, gain_of_others, round=1, x=model(hospital))
    reply = ask(gain_of_others, round=2, x=model(hospital))
    assert reply["known"].item()
    assert reply["error"].item() > 0
    account = Account(Path(hospital.settings.log))
    once, mu = account.numbers, account.mu
    again = ask(gain_of_others, round=2, x=model(hospital))
    assert torch.equal(again["gain"], reply["gain"])
    assert Account(Path(hospital.settings.log)).numbers == once
    for number in range(1, hospital.approved.plan.deployment.runs):
        ask(gain_of_others, round=2, x=model(hospital, number))
    later = Account(Path(hospital.settings.log))
    assert later.numbers > once
    # As of a loss that is told as it is.
    assert later.mu == mu == float("inf")
    refused("budget", ask, gain_of_others, round=2, x=model(hospital, 0.5))


def test_a_form_of_its_own_is_needed(hospital):
    x = hospital.x
    refused("to each client", hospital.ask, gain_of_others, round=2, x=x)
    wide = PerClient(torch.zeros(1, 2, len(x)))
    refused("its shape", hospital.ask, gain_of_others, round=2, x=wide)


def test_of_a_rare_class_nothing_is_told(tmp_path):
    # Of 294 patients 106 are ill, and fewer among those that train.
    strict = {"minimum_cell": 100}
    made = Hospital(tmp_path, strict, methods=[ONE_PASS], rounds=2)
    hospital = made.begin(pair="partial-0")
    reply = hospital.ask(gain_of_others, round=2, x=model(hospital))
    assert [float(value) for value in reply.values()] == [0.0, 0.0, 0.0]


def test_folds_that_are_tested_and_other_methods_tell_no_gain(tmp_path):
    plan = {"methods": [ONE_PASS, {"name": "fedavg"}], "rounds": 2}
    hospital = Hospital(tmp_path, split={"folds": 3}, **plan)
    asked = {
        pair
        for pair, allowed in hospital.approved.pairs.items()
        if gain_of_others.name in allowed.tasks
    }
    assert asked == {"partial-0-kall"}


def test_who_approves_is_told(tmp_path):
    town = ThreeSites(tmp_path / "three", [ONE_PASS], **PLAN)
    site = town.sites[LIAR]
    words = "\n".join(in_words(site.approved, site.settings, LIAR))
    assert "the mean of the other sites' models" in words
    # Of two sites none is left out.
    two = ThreeSites(tmp_path / "two", [ONE_PASS], SITES[:2], **PLAN)
    site = two.sites[LIAR]
    words = "\n".join(in_words(site.approved, site.settings, LIAR))
    assert "the mean of the other sites' models" not in words


def test_a_run_that_was_stopped_asks_the_same_again(tmp_path):
    town = ThreeSites(tmp_path / "town", [ONE_PASS], **PLAN)
    results = run_at(town, tmp_path / "run")
    before = prior_of(results)
    (path,) = (tmp_path / "run").glob("models/prior/*.safetensors")
    path.unlink()  # it is made again from the last round
    logs = [Path(site.settings.log) for site in town.sites.values()]
    told = [Account(log).numbers for log in logs]
    after = prior_of(run_at(town, tmp_path / "run", resume=True))
    assert torch.equal(after[OUTSIDE_GAIN], before[OUTSIDE_GAIN])
    # What says the same as before costs a site nothing.
    assert [Account(log).numbers for log in logs] == told
