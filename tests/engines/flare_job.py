"""Both halves of a job in FLARE's simulator whose sites answer what and when a test wants; its processes import this file."""

from __future__ import annotations

import dataclasses
import os
import pickle
import time
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from test_sites import GARBAGE, LOCAL, begin, experiment, update, view

import coterie as ct
from coterie.compute.tasks import local_update
from coterie.config.run import RunSettings
from coterie.contract.encoding import decode
from coterie.contract.federation import QuorumError
from coterie.models import build_model
from coterie.run.loop import run_method
from coterie.run.result import Run
from coterie.sites.approval import plan_hash
from coterie.sites.flare.client import FlareLink, SiteClient
from coterie.sites.server import Remote

FOLDER = "MOODS"
"""Variable of the environment: the folder with a file for each site in a mood, and with what the job has found."""
ROUNDS, SEED = 4, 0
SETTINGS = RunSettings(evaluate=2, metrics=("accuracy",))


APPROVED = {
    "methods": [
        {"name": "fedavg", "label": "x"},
        {"name": "fedavg", "label": "survives"},
        {"name": "varsel", "label": "ends", "internal": ["cleveland", "hungary"]},
    ],
    "run": {"rounds": 50, "seeds": 2, "metrics": ["accuracy"], "evaluate": 1},
}
"""The methods of the plan that the sites have approved, by the names under which this job runs them."""


def folder() -> Path:
    return Path(os.environ[FOLDER])


def set_mood(name: str, mood: str) -> None:
    """Let a site be slow or send garbage of a kind until it is told otherwise."""
    (folder() / "new").write_text(mood)
    (folder() / "new").replace(folder() / f"{name}.mood")


def mood(name: str) -> str:
    file = folder() / f"{name}.mood"
    return file.read_text() if file.exists() else ""


class AnsweringSites(SiteClient):
    """A site of which asks for updates see the mood."""

    @collab.init
    def begin(self) -> None:
        super().begin()
        site, name = self._site, collab.site_name
        answer = site._answer

        def moody(*asked: Any) -> bytes:
            got = answer(*asked)
            while mood(name) == "slow":
                time.sleep(0.05)
            return got

        site._answer = moody

    @collab.publish
    def handle(self, message: bytes) -> Any:
        got, how = super().handle(message), mood(collab.site_name)
        return GARBAGE[how][0](got) if how in GARBAGE and updates(got) else got


def updates(reply: bytes) -> bool:
    """Whether a reply holds an update."""
    answer = decode(reply).get("answer")
    return answer is not None and any(
        "delta" in block.values for block in answer.blocks
    )


class Questions:
    """The server object: asks and runs, and what became of them, in `found`."""

    @collab.main
    def run(self) -> None:
        plan = plan_hash(folder() / "plan.toml")
        engine = Remote(
            FlareLink(collab.clients), "questions", timeout=300.0, plan=plan
        )
        begin(engine)
        found = {
            "garbage": garbage(engine),
            "slow": slow(engine),
            "runs": runs(engine),
        }
        engine.close()
        (folder() / "found").write_bytes(pickle.dumps(found))


def garbage(engine: Remote) -> dict[str, Any]:
    """What an ask gets if hungary's reply is garbage of each kind."""
    got = {"": update(view(engine))}
    for kind in GARBAGE:
        set_mood("hungary", kind)
        got[kind] = update(view(engine))
    set_mood("hungary", "")
    return {kind: (g.clients, g.failed, g.delta) for kind, g in got.items()}


def slow(engine: Remote) -> dict[str, Any]:
    """Asks while switzerland is slow, and after; with how many it was left out of."""
    engine._timeout = 6.0
    set_mood("switzerland", "slow")
    first = update(view(engine)).failed
    second = update(view(engine)).failed
    set_mood("switzerland", "")
    deadline = time.monotonic() + 60.0
    while (last := update(view(engine))).failed and time.monotonic() < deadline:
        time.sleep(0.2)
    engine._timeout = 300.0
    return {"first": first, "second": second, "last": (last.failed, last.delta)}


def fitted(engine: Remote, method: Any, pair: str, **settings: Any) -> Run:
    plan = experiment([{"name": "fedavg"}])
    clients = engine.open(plan.data, 0)
    model = build_model(plan.build_model(), clients, 0)
    engine.prepare(model, clients, pair=f"{pair}-0")
    return run_method(
        engine, method, ROUNDS, SEED, dataclasses.replace(SETTINGS, **settings)
    )


def runs(engine: Remote) -> dict[str, Any]:
    """Runs in which hungary's replies are garbage from the second round on: one can do without it, another cannot."""

    def spoil(number: int) -> None:
        if number == 1:
            set_mood("hungary", "a NaN")

    run = fitted(engine, ct.FedAvg(local=LOCAL), "survives", callbacks=(spoil,))
    set_mood("hungary", "")
    ended = {}
    try:
        fitted(
            engine,
            ct.VaRSeL(local=LOCAL, internal=("cleveland", "hungary")),
            "ends",
            callbacks=(spoil,),
        )
    except QuorumError as error:
        ended["varsel"] = str(error)
    set_mood("hungary", "")
    begin(
        engine
    )  # a site answers the tasks of the method that was prepared, and no others
    set_mood("hungary", "a string")
    try:
        view(engine).ask(
            engine.clients, local_update, need="all", x=engine.x, local=LOCAL
        )
    except QuorumError as error:
        ended["all"] = str(error)
    set_mood("hungary", "")
    return {"failures": run.failures, "ended": ended}
