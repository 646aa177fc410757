"""A site has one account: whatever processes, jobs, restarts, kits and files of its log there are, nothing gives budget back."""

from __future__ import annotations

import json
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from child import Behind, children
from hospital import FEDAVG, Hospital, local
from test_a_site_obeys_its_plan import refused
from test_the_log_is_an_audit import Here, messages

from coterie.base.errors import InputError
from coterie.compute.tasks import local_update
from coterie.contract.encoding import decode
from coterie.data.sets.heart_disease import FOLDER
from coterie.sites import log as log_module
from coterie.sites.allowed import RefusedError
from coterie.sites.ledger import Account, Place, Told, check_index
from coterie.sites.log import Log, entries, verify_log
from coterie.sites.purge import purge
from coterie.sites.rows import SiteRows
from coterie.sites.secret_noise import key_file, move_key
from coterie.sites.site import SERVER, Site

__all__ = ["children"]

CLIP, NOISE = (
    {"name": "clip", "bound": 1.0},
    {"name": "gaussian-noise", "sigma": 0.1, "secret": True},
)
ONE = {"rounds": 1, "deploy": {"runs": 1}}


def told_numbers(hospital):
    return Account(Path(hospital.settings.log)).numbers


# ---- several at once


@pytest.mark.promise("one budget")
@pytest.mark.usefixtures("children")
def test_jobs_that_ask_at_once_have_one_budget(tmp_path):
    """As it was: each job counted for itself, and a budget of 1 answered as many requests as there were jobs."""
    first = Behind(tmp_path, **ONE)
    jobs = [first]
    for _ in range(2):
        job = object.__new__(Behind)
        job.__dict__.update(first.__dict__, rows=first.rows.of_another_job())
        jobs.append(job)
    try:
        for job in jobs:
            job.begin()

        def answers(number):
            try:
                jobs[number].ask(local_update, x=first.x + number, local=local())
            except RefusedError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(len(jobs)) as pool:
            outcomes = list(pool.map(answers, range(len(jobs))))
        assert outcomes.count("") == 1
        assert sum("budget of 1 models" in why for why in outcomes) == len(jobs) - 1
        log = first.rows.log
        assert sum(len(entry.get("models", ())) for entry in entries(log)) == 1
        verify_log(log)
        check_index(log)
    finally:
        for job in jobs:
            job.close()


@pytest.mark.promise("one budget")
@pytest.mark.parametrize("seed", range(10))
def test_no_order_of_spending_restarts_and_new_files_gives_more_than_the_budget(
    tmp_path, monkeypatch, seed
):
    """Whoever spends, crashes, starts again, seals or moves the log away: of each place as many requests are granted as it has."""
    monkeypatch.setattr(log_module.os, "fsync", lambda number: None)  # for speed
    rng, log, budget = random.Random(seed), tmp_path / "asks.jsonl", 4
    places = [
        Place("plan", "fedavg-0", "m:t", number, part)
        for number in (1, 2)
        for part in ("train", "test")
    ]
    granted = {place: set() for place in places}
    accounts = [Account(log) for _ in range(3)]
    for _ in range(80):
        which, what = rng.randrange(3), rng.random()
        if what < 0.1:
            accounts[which] = Account(log)
        elif what < 0.15:
            accounts[which].seal()
        elif what < 0.2 and log.exists():
            log.rename(tmp_path / f"old-{rng.random()}.jsonl")
        elif what < 0.25:
            Log(log).write(what="open", caller="server", outcome="answered")
        else:
            place = rng.choice(places)
            requests = {f"request {rng.randrange(9)}" for _ in range(rng.randint(1, 2))}
            fits = len(granted[place] | requests) <= budget
            try:
                accounts[which].reserve(place, requests, budget)
            except RefusedError:
                assert not fits
                continue
            assert fits
            granted[place] |= requests
            if rng.random() < 0.8:
                accounts[which].settle(
                    place,
                    dict.fromkeys(requests, "reply"),
                    Told(len(requests), 1.0),
                    budget,
                )
    check_index(log)
    again = Account(log)
    for place in places:
        for request in granted[place]:
            again.reserve(place, [request], budget)  # free
        if len(granted[place]) == budget:
            with pytest.raises(RefusedError, match="budget of 4 models"):
                again.reserve(place, ["another"], budget)


@pytest.mark.promise("one budget")
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("has_key", [False, True])
@pytest.mark.parametrize("index", ["kept", "gone", "one change", "empty", "torn"])
def test_no_loss_of_the_index_gives_budget_back(tmp_path, rotated, has_key, index):
    """As it was: with a damaged index a new file of the log began at nothing, and `check_index` named that as a cure."""
    log, place = tmp_path / "asks.jsonl", Place("plan", "fedavg-0", "m:t", 1)
    account = Account(log)
    account.seal()
    if has_key:
        key_file(log).write_bytes(b"0" * 32)
    account.reserve(place, ["one"], 1)
    account.settle(place, {"one": "reply"}, Told(7, 4.0), 1)
    first = tmp_path / "first.jsonl"
    if rotated:
        log.rename(first)
        Log(log).write(what="open", caller="server", outcome="answered")
    beside = log.with_name(f"{log.name}.index")
    content = beside.read_bytes()
    damaged = {
        "one change": content.replace(b'"numbers": 0', b'"numbers": 9', 1),
        "empty": b"",
        "torn": content[:50],
    }
    if index == "gone":
        beside.unlink()
    elif index in damaged:
        beside.write_bytes(damaged[index])
    knows = index == "kept" or not rotated
    if not knows and index == "gone" and not has_key:
        return  # nothing is left by which anybody could see that there was an account
    if not knows:
        with pytest.raises(InputError, match="put back"):
            Account(log)
        with pytest.raises(RefusedError, match="site log KIT --check"):
            account.reserve(place, ["another"], 1)
        first.replace(log)  # the cure
    again = Account(log)
    assert (again.numbers, again.mu) == (7, 2.0)
    again.reserve(place, ["one"], 1)
    with pytest.raises(RefusedError, match="budget of 1 models"):
        again.reserve(place, ["another"], 1)
    check_index(log)
    log.rename(tmp_path / "second.jsonl")
    again.seal()
    beside.unlink()  # by now the new file says what was told before it
    assert Account(log).numbers == 7
    check_index(log)


# ---- what a crash and a power cut leave


@pytest.mark.promise("one budget")
def test_what_was_reserved_is_spent_and_can_be_answered_once(tmp_path, monkeypatch):
    hospital = Hospital(tmp_path, **ONE).begin()

    def end(ask):
        raise SystemExit

    monkeypatch.setattr(hospital.rows.shard, "answer", end)
    with pytest.raises(SystemExit):
        hospital.ask(local_update, x=hospital.x, local=local())
    hospital.restart()
    refused(
        "budget of 1 models",
        hospital.ask,
        local_update,
        x=hospital.x + 1,
        local=local(),
    )
    before = told_numbers(hospital)
    hospital.ask(local_update, x=hospital.x, local=local())
    assert told_numbers(hospital) > before


@pytest.mark.promise("an audit")
def test_no_answer_leaves_before_its_lines_are_on_the_disk(tmp_path, monkeypatch):
    """As it was: lines stayed in memory, and a power cut gave the budget back."""
    hospital = Hospital(tmp_path).begin()
    site = Site("hungary", hospital.settings_file, tmp_path / "kept")
    site._child = Here(hospital.rows)
    log, on_disk = Path(hospital.settings.log), []

    def sync(number):
        if os.path.samestat(os.fstat(number), log.stat()):
            on_disk.append(log.read_bytes())

    monkeypatch.setattr(log_module.os, "fsync", sync)
    computed = []
    compute = hospital.rows.shard.answer
    monkeypatch.setattr(
        hospital.rows.shard,
        "answer",
        lambda ask: computed.append(on_disk[-1]) or compute(ask),
    )
    assert "answer" in decode(site.handle(messages(hospital)[3], SERVER))
    assert on_disk[-1] == log.read_bytes()
    before = [json.loads(line)["outcome"] for line in computed[0].splitlines()[-1:]]
    assert before == ["reserved"]
    assert [entry.get("outcome") for entry in entries(log)][-3:] == [
        "reserved",
        "told",
        "answered",
    ]


def test_a_site_that_cannot_reserve_computes_nothing(tmp_path, monkeypatch):
    hospital = Hospital(tmp_path).begin()
    monkeypatch.setattr(hospital.rows.shard, "answer", None)

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_module.os, "fsync", full)
    refused(
        "cannot write its log .No space left",
        hospital.ask,
        local_update,
        x=hospital.x,
        local=local(),
    )


# ---- key and account


class Kit(Hospital):
    """A hospital in a kit, as `coterie purge` and FLARE know it."""

    def __init__(self, folder, **plan):
        (folder / "startup").mkdir(parents=True)
        (folder / "local").mkdir()
        super().__init__(folder / "local", **plan)
        self.kit = folder
        self.join()

    def join(self):
        """Start the site's process."""
        self.rows = SiteRows(
            "hungary", self.settings, self.kit / "coterie", self.approved
        )
        return self


def draws(kit, change, count=3):
    """What a site says to the same request, with a change of its files before each."""
    replies = []
    for _ in range(count):
        change(kit)
        kit.join().begin()
        replies.append(kit.ask(local_update, x=kit.x, local=local())["delta"])
    return replies


def new_file(kit):
    log = Path(kit.settings.log)
    if log.exists():
        log.rename(log.with_name(f"{log.name}.{len(list(log.parent.iterdir()))}"))


CHANGES = {
    "purge": lambda kit: purge(kit.kit),
    "a new file of the log": new_file,
    "a restart": lambda kit: None,
}


@pytest.mark.promise("secret noise")
@pytest.mark.parametrize("change", CHANGES)
def test_a_purge_and_a_new_file_of_the_log_draw_no_noise_anew(tmp_path, change):
    """As it was: a purge made a new key, the same requests stayed free, and 30 of them averaged the noise away."""
    kit = Kit(tmp_path / "hungary", filters=[CLIP, NOISE], **ONE)
    first, *others = draws(kit, CHANGES[change])
    assert all(torch.equal(first, other) for other in others)
    before = told_numbers(kit)
    draws(kit, CHANGES[change], 1)
    assert told_numbers(kit) == before
    refused("budget of 1 models", kit.ask, local_update, x=kit.x + 1, local=local())


def test_a_renewed_kit_that_takes_the_log_along_keeps_key_and_account(tmp_path):
    """As docs/deploy.md says: `local/asks.jsonl*` and the settings go into the new kit."""
    old = Kit(tmp_path / "old", filters=[CLIP, NOISE], **ONE)
    (first,) = draws(old, CHANGES["a restart"], 1)
    (tmp_path / "new" / "startup").mkdir(parents=True)
    shutil.copytree(old.kit / "local", tmp_path / "new" / "local")
    from coterie.sites.settings import read_settings

    new = object.__new__(Kit)
    new.__dict__.update(old.__dict__, kit=tmp_path / "new")
    new.settings = read_settings(tmp_path / "new" / "local" / "coterie.toml")
    (again,) = draws(new, CHANGES["a restart"], 1)
    assert torch.equal(first, again)
    refused("budget of 1 models", new.ask, local_update, x=new.x + 1, local=local())


@pytest.mark.promise("secret noise")
def test_an_old_kit_whose_key_is_moved_keeps_what_was_asked(tmp_path):
    """Keys lay in a folder that `coterie purge` empties."""
    kit = Kit(tmp_path / "hungary", filters=[CLIP, NOISE], **ONE)
    log = Path(kit.settings.log)
    (first,) = draws(kit, CHANGES["a restart"], 1)
    (kit.kit / "coterie").mkdir(exist_ok=True)
    key_file(log).rename(kit.kit / "coterie" / "key")
    assert move_key(kit.kit, log)
    assert not move_key(kit.kit, log)
    (again,) = draws(kit, CHANGES["purge"], 1)
    assert torch.equal(first, again)


@pytest.mark.promise("secret noise")
def test_with_another_key_nothing_is_free(tmp_path):
    kit = Kit(tmp_path / "hungary", filters=[CLIP, NOISE], **ONE)
    draws(kit, CHANGES["a restart"], 1)
    key_file(Path(kit.settings.log)).unlink()
    kit.join().begin()
    refused("budget of 1 models", kit.ask, local_update, x=kit.x, local=local())


@pytest.mark.promise("secret noise")
def test_another_reply_to_the_same_request_is_told_anew_and_paid_for(tmp_path):
    """Other rows give the same request other noise: two draws that belong together."""
    data = tmp_path / "data.csv"
    kit = Kit(
        tmp_path / "hungary",
        filters=[CLIP, NOISE],
        settings={"data": str(data)},
        rounds=1,
        deploy={"runs": 2},
    )
    head, *lines = (FOLDER / "hungary.csv").read_text().splitlines()
    data.write_text("\n".join([head, *lines]))
    recipe = (
        kit.begin().recipe()
    )  # a server may send it again, whatever the rows have become
    for shift in range(3):
        older = [
            f"{float(age) + shift},{others}"
            for age, _, others in (line.partition(",") for line in lines)
        ]
        data.write_text("\n".join([head, *older]))
        kit.join().begin(recipe=recipe)
        if shift < 2:
            kit.ask(local_update, x=kit.x, local=local())
        else:
            refused("budget of 2 models", kit.ask, local_update, x=kit.x, local=local())
    spent = [
        entry
        for entry in entries(Path(kit.settings.log))
        if entry.get("outcome") == "reserved"
    ]
    assert len(spent) == 2
    assert spent[0]["models"] == spent[1]["models"]


def test_a_new_approval_gives_the_budget_anew_and_the_totals_go_on(tmp_path):
    from coterie.sites.approval import approve

    kit = Kit(tmp_path / "hungary", filters=[CLIP, NOISE], **ONE)
    draws(kit, CHANGES["a restart"], 1)
    account = Account(Path(kit.settings.log))
    numbers, mu = account.numbers, account.mu
    assert mu == pytest.approx(20.0)
    refused("budget of 1 models", kit.ask, local_update, x=kit.x + 1, local=local())
    approve(kit.plan, kit.settings_file, unsigned=True)
    kit.ask(local_update, x=kit.x + 1, local=local())
    refused("budget of 1 models", kit.ask, local_update, x=kit.x + 2, local=local())
    account = Account(Path(kit.settings.log))
    assert account.numbers > numbers
    assert account.mu == pytest.approx(20.0 * 2**0.5)


@pytest.mark.promise("one budget")
def test_each_part_of_the_rows_has_a_budget_of_its_own_and_the_largest_counts(tmp_path):
    """A row lies in one part. As it was: a server could ask about training rows in the place of all parts."""
    from coterie.compute.metrics import evaluate

    hospital = Hospital(
        tmp_path, methods=[FEDAVG], filters=[CLIP, NOISE], **ONE
    ).begin()
    asked = {"metrics": ("accuracy", "auc")}
    hospital.ask(evaluate, x=hospital.x, part="train", **asked)
    refused(
        "budget of 1 models",
        hospital.ask,
        evaluate,
        x=hospital.x + 1,
        part="train",
        **asked,
    )
    assert Account(Path(hospital.settings.log)).mu == pytest.approx(3**0.5)
    hospital.ask(evaluate, x=hospital.x, part="test", **asked)
    assert Account(Path(hospital.settings.log)).mu == pytest.approx(3**0.5)
    last = [
        entry
        for entry in entries(Path(hospital.settings.log))
        if entry.get("outcome") == "told"
    ][-1]
    assert (last["part"], last["mu"]) == ("test", pytest.approx(3**0.5))
