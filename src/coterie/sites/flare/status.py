"""Who is connected to a server, what it is doing, and when each site last answered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.sites.flare.submit import open_session
from coterie.sites.plan import Deployment, read_plan
from coterie.sites.settings import short
from coterie.study.progress import Event

RUNNING = ("RUNNING", "DISPATCHED", "SUBMITTED")


def status(plan_file: Path, kits: Path | None = None) -> list[str]:
    """Lines about the server of a plan and its sites. Raises `InputError` if the server cannot be reached."""
    deployment = read_plan(plan_file).deployment
    session = open_session(plan_file, deployment, kits)
    try:
        connected = {client.name for client in session.get_connected_client_list()}
        jobs = [job for job in session.list_jobs() if job.get("status") in RUNNING]
        progress: dict[str, Any] = {}
        if jobs:
            with suppress(Exception):  # the job may be beginning or ending
                progress = session.do_app_command(jobs[-1]["job_id"], "coterie", {})
        return list(_lines(deployment, connected, bool(jobs), progress, time.time()))
    finally:
        session.close()


def _lines(
    deployment: Deployment,
    connected: set[str],
    running: bool,
    progress: Mapping[str, Any],
    now: float,
) -> Iterator[str]:
    width = max(map(len, deployment.sites))
    yield f"server {deployment.server}:{deployment.port} answers; {_run(progress) if running else 'no run'}"
    for name in deployment.sites:
        state = "connected" if name in connected else "not connected"
        if name in progress.get("gone", ()):
            state += ", gone in this run"
        elif name in progress.get("waiting", ()):
            state += f", asked {short(progress['task'])}"
        last_answer = progress.get("last", {}).get(name)
        answer = (
            f"; last answered {short(last_answer[0])} {now - last_answer[1]:.0f} s ago"
            if last_answer
            else ""
        )
        yield f"  {name:<{width}}  {state}{answer}"


def _run(progress: Mapping[str, Any]) -> str:
    if "event" not in progress:
        return "a run is beginning"
    event = Event(*progress["event"])
    return f"{event.label}, seed {event.seed}, round {event.round} of {event.rounds}"
