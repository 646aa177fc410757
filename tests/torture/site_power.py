"""A site's account through power losses: no budget comes back, and no line is lost of an answer that the server has.

Several processes of a site (here: several accounts of one log) spend, settle and answer. At some write or fsync the power goes: of the
log there is what was synced, and any beginning of the rest; its index, which nothing syncs, is as it was at any time, torn, or gone.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError
from coterie.sites import log as log_module
from coterie.sites.allowed import RefusedError
from coterie.sites.ledger import Account, Place, Told, check_index
from coterie.sites.log import Log, entries, verify_log
from torture.apart import Tries

BUDGET = 4
"""Requests about models that a place may be granted."""
PLACES = [
    Place("plan", "fedavg-0", "m:t", number, part)
    for number in (1, 2)
    for part in ("train", "test")
]


class PowerLostError(BaseException):
    """Not an `Exception`: no handler of the site may go on after it."""


class Machine:
    """The disk of a site, and a moment at which the power goes."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.log = folder / "asks.jsonl"
        self.index = self.log.with_name(f"{self.log.name}.index")
        self.rng = rng
        self.synced = b""
        self.indices: list[bytes] = []
        self.left = rng.randint(1, 60)
        """Syncs until the power goes."""

    def __enter__(self) -> Machine:
        self._fsync = os.fsync
        log_module.os.fsync = self.sync
        return self

    def __exit__(self, *error: object) -> None:
        log_module.os.fsync = self._fsync

    def sync(self, number: int) -> None:
        self.left -= 1
        before = self.rng.random() < 0.5
        if self.left == 0 and before:
            raise PowerLostError
        if os.path.samestat(os.fstat(number), os.stat(self.log)):
            self.synced = self.log.read_bytes()
        if self.index.exists():
            self.indices.append(self.index.read_bytes())
        if self.left == 0:
            raise PowerLostError

    def restart(self) -> None:
        """Leave on the disk what a power loss leaves there."""
        written = self.log.read_bytes() if self.log.exists() else b""
        rest = len(written) - len(self.synced)
        kept = len(self.synced) + self.rng.randint(0, max(rest, 0))
        self.log.write_bytes(written[:kept])
        self.synced = written[:kept]
        what = self.rng.random()
        if what < 0.25 or not self.indices:
            self.index.unlink(missing_ok=True)
        elif what < 0.75:
            index = self.rng.choice(self.indices)
            self.index.write_bytes(index[: self.rng.randint(0, len(index))])
        self.left = self.rng.randint(1, 60)


class Known:
    """What the world outside of the site knows: grants that were computed on, and answers that left."""

    def __init__(self) -> None:
        self.granted: defaultdict[Place, set[str]] = defaultdict(set)
        self.answered: list[str] = []

    def wrong_with(self, log: Path) -> str:
        """Say what the site has forgotten after a restart, or nothing."""
        verify_log(log)
        check_index(log)
        lines = {entry.get("answer", "") for entry in entries(log)}
        lost = [answer for answer in self.answered if answer not in lines]
        if lost:
            return f"data lost: {len(lost)} answers that the server has are in no line"
        account = Account(log)
        for place, requests in self.granted.items():
            for request in sorted(requests):
                account.reserve(place, [request], BUDGET)  # free, or it was forgotten
            if len(requests) < BUDGET:
                continue
            try:
                account.reserve(place, ["one more"], BUDGET)
            except RefusedError:
                continue
            return f"data lost: a budget of {BUDGET} came back"
        return ""


def spend(accounts: list[Account], log: Path, known: Known, rng: random.Random) -> None:
    """Let one process of the site do one thing."""
    which, what = rng.randrange(len(accounts)), rng.random()
    if what < 0.1:
        accounts[which] = Account(log)
        return
    if what < 0.15:
        accounts[which].seal()
        return
    place = rng.choice(PLACES)
    requests = {f"request {rng.randrange(9)}" for _ in range(rng.randint(1, 2))}
    try:
        accounts[which].reserve(place, requests, BUDGET)
    except RefusedError:
        return
    known.granted[place] |= requests
    if rng.random() < 0.2:
        return  # the process ends before it answers
    replies = dict.fromkeys(requests, "reply")
    accounts[which].settle(place, replies, Told(len(requests), 1.0), BUDGET)
    answer = f"answer {len(known.answered)}"
    Log(log).write(what="m:t", caller="server", outcome="answered", answer=answer)
    known.answered.append(answer)


def lose_power_often(folder: Path, seed: int) -> str:
    """Let a site lose power five times; say what is wrong, or nothing."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    machine, known = Machine(folder, rng), Known()
    for _ in range(5):
        with machine:
            try:
                accounts = [Account(machine.log) for _ in range(3)]
                for _ in range(80):
                    spend(accounts, machine.log, known, rng)
            except PowerLostError:
                pass
        machine.restart()
        try:
            if wrong := known.wrong_with(machine.log):
                return wrong
        except (InputError, RefusedError) as error:
            return f"data lost: {error}"
        machine.synced = machine.log.read_bytes()
    return ""


def site_power(
    rng: random.Random, folder: Path, methods: list[str], until: float
) -> Tries:
    """Sites that lose power; a try is a seed."""
    del methods
    while time.monotonic() < until:
        seed: Any = rng.getrandbits(32)
        wrong = lose_power_often(folder / "site", seed)
        shutil.rmtree(folder / "site")
        yield seed, wrong, ("disk: power loss at a site",)
