"""What calls from Python show while they run."""

from __future__ import annotations

import logging
import sys

import pytest

import coterie as ct


@pytest.fixture
def terminal(monkeypatch):
    """Standard error as a terminal shows it; rounds take no second, so that a bar appears at once."""
    monkeypatch.setattr("coterie.run.progress.AFTER", 0.0)
    monkeypatch.setattr("coterie.run.progress.PERIOD", 0.0)
    monkeypatch.setattr("coterie.run.progress.is_terminal", lambda: True)


def fit(**options):
    return ct.fit("fedavg", "heart-disease", rounds=4, **options)


def compare(**options):
    return ct.compare(["fedavg"], "heart-disease", rounds=2, seeds=1, **options)


@pytest.mark.parametrize("call", [fit, compare])
def test_a_script_shows_nothing_unless_it_is_asked(call, capsys):
    call()
    call(progress=False)
    assert capsys.readouterr() == ("", "")
    call(progress=True)  # nobody looks at a file: lines
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(("FedAvg, round 4 of 4", "fedavg, round 2 of 2"))
    assert not any("\r" in line for line in lines)


@pytest.mark.parametrize("call", [fit, compare])
def test_a_terminal_shows_a_bar_that_goes(call, terminal, capsys):
    call(progress=True)
    printed = capsys.readouterr().err
    assert "[" in printed
    assert "round 1 of" in printed
    assert printed.rpartition("\r")[2] == ""
    assert printed.split("\r")[-2].strip() == ""


def test_a_prompt_shows_a_bar_by_itself(terminal, monkeypatch, capsys):
    fit()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    fit()
    assert "[" in capsys.readouterr().err


def test_the_logger_tells_rounds(caplog, capsys):
    with caplog.at_level(logging.INFO, logger="coterie"):
        fit(progress="log")
    rounds = [r.message for r in caplog.records if "round" in r.message]
    assert [text.partition(",")[0] for text in rounds] == [
        f"FedAvg: round {number} of 4" for number in (1, 2, 3, 4)
    ]
    assert capsys.readouterr().err == ""  # once is enough


def test_progress_changes_no_run():
    assert fit(progress="log").history == fit().history


def test_a_wrong_word_says_what_is_allowed():
    for call in (fit, compare):
        with pytest.raises(ct.InputError, match='progress must be None, true, false, "bar"'):  # fmt: skip
            call(progress="line")
