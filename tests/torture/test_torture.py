"""A fixed short form of `make torture`, and that it finds what is planted."""

from __future__ import annotations

import ast
import os
import random
import time
from pathlib import Path

import pytest

from coterie.sites import log as log_module
from mutants import replaced
from torture.__main__ import ROOT, run_campaign
from torture.apart import Setup, command
from torture.campaigns import CAMPAIGNS, ENGINES
from torture.generated import generate
from torture.kills import Try, interrupt, saved_rounds
from torture.planted import FAULTS, UNSEEN
from torture.site_power import lose_power_often
from torture.worlds import numbers, run_whole, warm_up

IN_PROCESS = (
    "mutated TOML",
    "mangled CSV folders",
    "odd values of arguments",
    "faults of a client's task",
    "power losses at a site",
)
"""Campaigns of 150 tries here; the others, whose tries are runs of the command, have 10."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_of_a_short_campaign_is_wrong(name, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    warm_up(tmp_path / "warm")
    tally = run_campaign(
        name, 1, time.monotonic() + 600, 150 if name in IN_PROCESS else 10
    )
    assert tally.tries >= 10
    assert tally.wrong == []


@pytest.mark.promise("one budget")
@pytest.mark.parametrize("seed", range(5))
def test_a_site_that_loses_power_gives_no_budget_back_and_forgets_no_answer(
    tmp_path, seed
):
    assert lose_power_often(tmp_path / "site", seed) == ""


def test_lines_that_are_not_synced_are_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "coterie.sites.log.Log._append", unsynced(log_module.Log._append)
    )
    wrong = [lose_power_often(tmp_path / str(seed), seed) for seed in range(10)]
    assert any(why.startswith("data lost") for why in wrong)


def unsynced(append):
    """Write a line and leave it to the system when it reaches the disk."""

    def written(self, file, values, durable):
        append(self, file, values, False)

    return written


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENGINES)
def test_nothing_of_twenty_disturbed_runs_on_an_engine_is_wrong(
    name, monkeypatch, tmp_path
):
    monkeypatch.chdir(ROOT)
    warm_up(tmp_path / "warm")
    tally = run_campaign(name, 1, time.monotonic() + 3 * 3600, 20)
    assert tally.tries == 20
    assert tally.wrong == []


def leave_a_writer():
    """Leave a process behind that writes into the run once its command has ended."""
    command_of_it = os.getpid()
    if os.fork() == 0:
        while os.getppid() == command_of_it:
            time.sleep(0.01)
        time.sleep(0.3)
        Path("run", "late").touch()
        os._exit(0)


def test_what_is_written_after_a_command_has_ended_is_an_orphans(tmp_path):
    (tmp_path / "run").mkdir()
    assert command(tmp_path, "methods").wrong == ""
    ended = command(tmp_path, "methods", setup=Setup(leave_a_writer))
    assert ended.wrong.startswith("orphan: something wrote")
    assert "late" in ended.wrong


class Untruncated:
    """A file that stays as long as it is."""

    def __init__(self, *arguments):
        self._file = open(*arguments)  # noqa: SIM115

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)

    def truncate(self, length):
        pass


@pytest.mark.slow
def test_rows_of_a_round_that_was_not_saved_are_noticed(tmp_path, monkeypatch):
    """The run is killed between the rows of a round and its checkpoint."""
    fixture = generate(random.Random(3), "fedavg")
    fixture = fixture._replace(
        tables={**fixture.tables, "methods": [{"name": "fedavg"}]}
    )
    fixture.write(tmp_path)
    assert run_whole(tmp_path).status == 0
    expected = numbers(tmp_path / "run") | saved_rounds(tmp_path / "run")
    one = Try(fixture, "KILL", 0.0, True, False, -8, 0.0)
    assert interrupt(one, tmp_path, expected) == ""
    monkeypatch.setattr("coterie.run.checkpoint.open", Untruncated, raising=False)
    assert "history.jsonl" in interrupt(one, tmp_path, expected)


@pytest.mark.parametrize("fault", [*FAULTS, *UNSEEN], ids=lambda fault: fault.what)
def test_each_planted_fault_has_its_term(fault):
    text = (ROOT / "src" / "coterie" / fault.file).read_text()
    assert ast.dump(
        ast.parse(replaced(text, fault.term, fault.instead, fault.file))
    ) != ast.dump(ast.parse(text))
