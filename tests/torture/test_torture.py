"""A fixed short form of `make torture`, and that it finds what is planted."""

from __future__ import annotations

import time

import pytest

from torture.__main__ import ROOT, run_campaign
from torture.campaigns import CAMPAIGNS, ENGINES
from torture.planted import FAULTS, UNSEEN
from torture.worlds import warm_up

IN_PROCESS = ("mutated TOML", "mangled CSV folders", "odd values of arguments", "faults of a client's task")
"""Campaigns of 150 tries here; the others, whose tries are runs of the command, have 10."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_of_a_short_campaign_is_wrong(name, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    warm_up(tmp_path / "warm")
    tally = run_campaign(name, 1, time.monotonic() + 600, 150 if name in IN_PROCESS else 10)
    assert tally.tries >= 10
    assert tally.wrong == []


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENGINES)
def test_nothing_of_twenty_disturbed_runs_on_an_engine_is_wrong(name, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    warm_up(tmp_path / "warm")
    tally = run_campaign(name, 1, time.monotonic() + 3 * 3600, 20)
    assert tally.tries == 20
    assert tally.wrong == []


@pytest.mark.parametrize("fault", [*FAULTS, *UNSEEN], ids=lambda fault: fault.what)
def test_each_planted_fault_has_its_term(fault):
    assert (ROOT / "src" / "coterie" / fault.file).read_text().count(fault.term) == 1
