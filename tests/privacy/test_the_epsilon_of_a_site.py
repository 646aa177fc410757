"""A site that gives an epsilon answers exactly as many requests as the formula allows, for the life of its log."""

from __future__ import annotations

import math
import multiprocessing
import random
from pathlib import Path

import pytest

from attacks.hospital import Hospital, local
from coterie.base.errors import InputError
from coterie.base.privacy import epsilon_of, mu_of, noise_multiplier
from coterie.compute.tasks import local_update
from coterie.sites import log as log_module
from coterie.sites.allowed import RefusedError
from coterie.sites.approval import keep_approval
from coterie.sites.ledger import Account, Place, Told
from coterie.sites.log import entries
from coterie.sites.plan_words import check_what_is_left, in_words
from coterie.sites.settings import most_mu

DELTA = 1e-4
PLACE = Place("plan", "fedavg-0", "m:t", 1)


def spend(log, most, names, each, refused):
    """Tell one number of mu `each` for every name; those that do not leave are appended to `refused`."""
    account = Account(log)
    account.most_mu = most
    for name in names:
        try:
            account.settle(PLACE, {name: "reply"}, Told(1, each**2))
        except RefusedError:
            refused.append(name)


@pytest.fixture
def _fast_disk(monkeypatch):
    monkeypatch.setattr(log_module.os, "fsync", lambda number: None)


@pytest.mark.promise("an epsilon")
@pytest.mark.usefixtures("_fast_disk")
@pytest.mark.parametrize("steps", [1, 7, 60])
def test_as_many_events_as_the_noise_was_made_for_and_not_one_more(tmp_path, steps):
    """Also where the account is opened anew for each, the log is moved away, and its plan approved again."""
    log, most = tmp_path / "asks.jsonl", mu_of(1.0, DELTA)
    each, rng = 1 / noise_multiplier(1.0, DELTA, steps), random.Random(steps)
    refused = []
    for number in range(steps + 3):
        if rng.random() < 0.2 and log.exists():
            log.rename(tmp_path / f"old-{number}.jsonl")
        if rng.random() < 0.2:
            Account(log).approve("plan")
        spend(log, most, [f"request {number}"], each, refused)
    assert refused == [f"request {steps + extra}" for extra in range(3)]
    assert epsilon_of(Account(log).mu, DELTA) == pytest.approx(1.0)


@pytest.mark.promise("an epsilon")
def test_processes_that_tell_at_once_have_one_epsilon(tmp_path):
    log, steps, most = tmp_path / "asks.jsonl", 20, mu_of(1.0, DELTA)
    each = 1 / noise_multiplier(1.0, DELTA, steps)
    spawn = multiprocessing.get_context("fork")
    jobs = [
        spawn.Process(
            target=spend,
            args=(log, most, [f"{job}/{n}" for n in range(12)], each, []),
        )
        for job in range(3)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
        assert job.exitcode == 0
    told = [entry for entry in entries(log) if entry.get("outcome") == "told"]
    assert len(told) == steps
    assert Account(log).mu == pytest.approx(most)


CLIP, NOISE = (
    {"name": "clip", "bound": 1.0},
    {"name": "gaussian-noise", "sigma": 30.0, "secret": True},
)


@pytest.mark.promise("an epsilon")
def test_a_site_stops_answering_when_its_epsilon_is_told(tmp_path):
    """The first request that would exceed it is refused, as after a restart, a purge of its memory and a new approval."""
    hospital = Hospital(
        tmp_path,
        settings={"epsilon": 1.0},
        filters=[CLIP, NOISE],
        rounds=200,
        run={"evaluate": 200},
    ).begin()
    rows, each = len(hospital.rows.table), 2 * 1.0 / 30.0
    allowed = math.floor((most_mu(hospital.settings, rows) / each) ** 2)
    answered, refusals = 0, []
    for number in range(allowed + 3):
        if number == 2:
            hospital.restart()
        if number == allowed:
            keep_approval(hospital.approved, hospital.settings_file, unsigned=True)
        try:
            hospital.ask(
                local_update, x=hospital.x + number, local=local(), round=number
            )
        except RefusedError as refusal:
            refusals.append(str(refusal))
        else:
            answered += 1
    assert answered == allowed > 0
    assert all("raise [site] epsilon" in why for why in refusals)
    log = Path(hospital.settings.log)
    told = [entry for entry in entries(log) if entry.get("outcome") == "told"]
    assert told
    assert all("mu" in entry for entry in told)
    assert epsilon_of(Account(log).mu, 1 / (10 * rows)) <= 1.0


def test_an_approval_says_what_is_left_and_a_plan_beyond_it_is_refused(tmp_path):
    noise = {"filters": [CLIP, NOISE], "run": {"evaluate": 5}}
    dear = Hospital(tmp_path, settings={"epsilon": 1.0}, **noise)
    words = "\n".join(in_words(dear.approved, dear.settings, "hungary"))
    assert "this site gives 1 (delta 0.00034" in words
    assert "it does not suffice" in words
    with pytest.raises(RefusedError, match="this site can raise"):
        check_what_is_left(dear.approved, dear.settings, "hungary")
    (tmp_path / "more").mkdir()
    cured = Hospital(tmp_path / "more", settings={"epsilon": 1e4}, **noise)
    check_what_is_left(cured.approved, cured.settings, "hungary")


def test_a_delta_that_gives_away_a_row_is_refused(tmp_path):
    hospital = Hospital(tmp_path, settings={"epsilon": 1.0, "delta": 0.01})
    with pytest.raises(InputError, match=r"\[site\] delta = 0.01 .* take less than"):
        hospital.begin()
