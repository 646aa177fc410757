"""A site counts the numbers that it has released: over restarts, plans and files of its log, without reading months of it again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hospital import Hospital, local

from coterie.base.errors import InputError
from coterie.compute.tasks import local_update
from coterie.data.tables.recipe import moments
from coterie.sites.ledger import Account, check_index
from coterie.sites.log import Log, entries


def released(hospital):
    return Account(Path(hospital.settings.log)).numbers


def test_numbers_are_models_times_what_a_reply_holds_and_the_same_again_is_free(
    tmp_path,
):
    hospital = Hospital(tmp_path).begin()
    begun = released(hospital)
    for ask in (5, 6):
        hospital.ask(local_update, x=hospital.x, local=local(), ask=ask)
        assert released(hospital) == begun + len(hospital.x) + 1  # delta and sizes
    hospital.ask(local_update, x=hospital.x + 1, local=local(), ask=7)
    assert released(hospital) == begun + 2 * (len(hospital.x) + 1)


def test_beginnings_count_too(tmp_path):
    hospital = Hospital(tmp_path).begin()
    before = released(hospital)
    assert before > 3 * 5
    hospital.ask(moments, round=0, schema=json.dumps(["age"]))
    assert released(hospital) == before + 3
    hospital.ask(moments, round=0, schema=json.dumps(["age"]))
    assert released(hospital) == before + 3


@pytest.mark.promise("an audit")
def test_the_total_outlives_a_restart_a_plan_and_a_file_of_the_log(tmp_path):
    hospital = Hospital(tmp_path).begin()
    hospital.ask(local_update, x=hospital.x, local=local())
    hospital.restart()
    before, log = released(hospital), Path(hospital.settings.log)
    Log(log).write(what="approved", plan="another")
    assert released(hospital) == before
    log.rename(log.with_name("old.jsonl"))
    assert released(hospital) == before
    hospital.ask(local_update, x=hospital.x + 5, local=local(), round=2)
    assert released(hospital) == before + len(hospital.x) + 1


def test_a_restart_reads_the_lines_after_the_index_alone(tmp_path, monkeypatch):
    import coterie.sites.ledger

    hospital = Hospital(tmp_path).begin()
    log = Path(hospital.settings.log)
    for number in range(500):
        Log(log).write(
            plan="another",
            pair="p",
            what="t",
            round=1,
            models=[f"{number:032x}"],
            numbers=7,
        )
    hospital.restart()
    before, lines = released(hospital), []
    read = coterie.sites.ledger.entry_of
    monkeypatch.setattr(
        coterie.sites.ledger, "entry_of", lambda line: lines.append(line) or read(line)
    )
    Log(log).write(
        plan="another", pair="p", what="t", round=1, models=["f" * 32], numbers=7
    )
    assert released(hospital) == before + 7
    assert len(lines) < 20
    monkeypatch.undo()
    Path(f"{log}.index").unlink()
    assert released(hospital) == before + 7


@pytest.mark.promise("an audit")
@pytest.mark.parametrize("change", ["numbers", "models", "garbage"])
def test_an_index_that_somebody_has_changed_is_not_believed(tmp_path, change):
    import hashlib

    hospital = Hospital(tmp_path).begin()
    hospital.ask(local_update, x=hospital.x, local=local())
    hospital.restart()
    log, before = Path(hospital.settings.log), released(hospital)
    check_index(log)
    index = Path(f"{log}.index")
    line, _, steps = index.read_bytes().partition(b"\n")
    content = json.loads(line.partition(b" ")[2])
    content |= {"numbers": 0} if change == "numbers" else {"replies": []}
    text = json.dumps(content).encode()
    index.write_bytes(
        b"x" if change == "garbage" else b"0" * 64 + b" " + text + b"\n" + steps
    )
    assert released(hospital) == before
    if (
        change != "garbage"
    ):  # whoever makes the seal anew is found out by whoever checks the log
        index.write_bytes(
            hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n" + steps
        )
        with pytest.raises(InputError, match="does not fit the log"):
            check_index(log)


def test_a_long_log_is_continued_without_being_read_again(tmp_path):
    """The chain goes on from the last line, whatever its length, and over pieces of the file."""
    from coterie.sites.log import verify_log

    path = tmp_path / "asks.jsonl"
    for length in (10, 3 * 2**20, 10):
        Log(path).write(text="x" * length)
    assert verify_log(path).entries == 3


def test_the_approval_says_what_was_released_and_what_this_plan_adds(tmp_path):
    from coterie.sites.plan_words import in_words

    hospital = Hospital(tmp_path, rounds=5, deploy={"runs": 2}).begin()
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    assert (
        f"released  {released(hospital)} numbers so far, under all plans; this plan adds up to "
        in words
    )
    assert (
        f"of up to 2 models in each round, {2 * 6 * (len(hospital.x) + 1)} numbers in all for each seed"
        in words
    )
    assert (
        f"model     logistic: 13 inputs from this site's columns, {len(hospital.x)} parameters"
        in words
    )
    adds, before = map(
        int, re.search(r"adds up to (\d+), (\d+) of them before", words).groups()
    )
    assert adds > before + 2 * 6 * (len(hospital.x) + 1)
    honest = sum(
        e.get("numbers", 0)
        for e in entries(Path(hospital.settings.log))
        if "tables" in e["what"]
    )
    assert (
        0 < honest < before < 2 * honest
    )  # with the facts; the same again in another run is free
