"""Kills a process of a deployment at a named moment; on the path of the processes that a test starts, and known to nobody else.

ARM is {"where": "cohort" | "worker" | "server" | "flood", "task": part of a task's name, "at": how many such calls, "file": a path}.
The process that gets there writes its number to the file. Then it kills itself; a server, or whoever has "wait", waits to be killed.
With "flood" a site's worker calls all other sites "at" times each, and writes their answers to the file.
With "voice" every FLARE process of the kit says what the test wants: see `voices`, which lies beside this file. With "open" their gate
is there and lets every message in.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from pathlib import Path

ARM = json.loads(os.environ.get("ARM", "null"))
PROCESSES = {
    "cohort": "coterie.sites.child",
    "worker": "flare.start site-job",
    "server": "flare.start server-job",
    "flood": "flare.start site-job",
}


def reached() -> None:
    file = Path(ARM["file"])
    if file.exists():  # a process that was started again
        return
    file.write_text(str(os.getpid()))
    if ARM["where"] == "server" or ARM.get("wait"):
        time.sleep(3600)
    os.kill(os.getpid(), signal.SIGKILL)


def counting(original, name_of):
    calls = 0

    def call(*args, **kwargs):
        nonlocal calls
        calls += ARM["task"] in name_of(*args)
        if calls == ARM["at"]:
            reached()
        return original(*args, **kwargs)

    return call


def flooding(original):
    """Call all other sites many times, before the first message of the server is answered."""

    @functools.wraps(original)  # with the mark by which FLARE lets it be called
    def handle(self, message: bytes) -> bytes:
        from nvflare.collab import collab

        if not Path(ARM["file"]).exists():
            others = [
                proxy for proxy in collab.clients if proxy.name != collab.site_name
            ]
            Path(ARM["file"]).write_text(
                "\n".join(
                    called(proxy, message) for proxy in others for _ in range(ARM["at"])
                )
            )
        return original(self, message)

    return handle


def called(proxy, message: bytes) -> str:
    """What a site answers, or why it does not."""
    try:
        return repr(proxy(timeout=1.0).handle(message=message))
    except Exception as error:  # FLARE has a dozen kinds for this
        return type(error).__name__


def main_module() -> str:
    return Path(f"/proc/{os.getpid()}/cmdline").read_bytes().decode().replace("\0", " ")


if ARM and ARM["where"] == "voice":
    if "nvflare" in main_module() or "flare.start" in main_module():
        import voices

        voices.begin(Path(ARM["file"]))
    if ARM.get("open"):
        from coterie.sites.flare import cell_gate

        cell_gate.CellGate.verdict = lambda *_: (cell_gate.Verdict(), "")
elif ARM and PROCESSES[ARM["where"]] in main_module():
    if ARM["where"] == "flood":
        from coterie.sites.flare.client import SiteClient

        SiteClient.handle = flooding(SiteClient.handle)
    elif ARM["where"] == "cohort":
        from coterie.contract.task import Task

        Task.__call__ = counting(Task.__call__, lambda task, *_: task.name)
    elif ARM["where"] == "worker":
        from coterie.sites.site import Site

        Site._answer = counting(
            Site._answer,
            lambda _, about, *__: about["ask"].task if "ask" in about else about["do"],
        )
    else:
        from coterie.sites.server import Remote

        Remote.ask = counting(Remote.ask, lambda _, ask: ask.task)
