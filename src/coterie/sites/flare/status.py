"""Who is connected to a server, what it is doing, and when each site last answered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.sites.flare.authority import (
    AUTHORITY,
    FEW_DAYS,
    ROOT_CERTIFICATE,
    certificate_of,
    ends_of_certificates,
    holders_of_certificates,
)
from coterie.sites.flare.revocation import authoritys_list
from coterie.sites.flare.submit import open_session
from coterie.sites.plan import Deployment, read_plan
from coterie.sites.settings import short
from coterie.study.progress import Event

RUNNING = ("RUNNING", "DISPATCHED", "SUBMITTED")


def status(
    plan_file: Path, kits: Path | None = None, authority: Path | None = None
) -> Iterator[str]:
    """Lines about the server of a plan and its sites, then about when certificates end.

    Args:
        plan_file: the plan.
        kits: folder of the kits; None: as the plan says.
        authority: folder of the authority, which knows when certificates end; None: `ca` of the kits.

    Raises:
        InputError: the server cannot be reached; what is known without it was said before.
    """
    deployment = read_plan(plan_file).deployment
    authority = authority or (kits or plan_file.parent / deployment.kits) / AUTHORITY
    certificates = [*certificate_lines(deployment, authority, datetime.now(UTC))]
    try:
        yield from _about_server(plan_file, deployment, kits)
    except Exception:
        yield from certificates  # one that has ended may be why nobody answers
        raise
    yield from certificates


def _about_server(
    plan_file: Path, deployment: Deployment, kits: Path | None
) -> Iterator[str]:
    session = open_session(plan_file, deployment, kits)
    try:
        connected = {client.name for client in session.get_connected_client_list()}
        jobs = [job for job in session.list_jobs() if job.get("status") in RUNNING]
        progress: dict[str, Any] = {}
        if jobs:
            with suppress(Exception):  # the job may be beginning or ending
                progress = session.do_app_command(jobs[-1]["job_id"], "coterie", {})
        yield from _lines(deployment, connected, bool(jobs), progress, time.time())
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
    run = "no run"
    if running:
        run = _run(progress)
    yield f"server {deployment.server}:{deployment.port} answers; {run}"
    for name in deployment.sites:
        state = "connected" if name in connected else "not connected"
        if name in progress.get("gone", ()):
            state += ", gone in this run"
        elif name in progress.get("waiting", ()):
            state += f", asked {short(progress['task'])}"
        if running:
            state += _gate(progress.get("gates", {}).get(name))
        last_answer = progress.get("last", {}).get(name)
        if last_answer:
            task, time_of_answer = last_answer
            state += f"; last answered {short(task)} {now - time_of_answer:.0f} s ago"
        yield f"  {name:<{width}}  {state}"


def _gate(closed: int | None) -> str:
    """What a site says of its gate: how many doors it closes; None: it has not answered."""
    if closed is None:
        return ", gate not known"
    if not closed:
        return ", no gate"
    return f", gate closed {closed}"


def _run(progress: Mapping[str, Any]) -> str:
    if "event" not in progress:
        return "a run is beginning"
    event = Event(*progress["event"])
    return f"{event.label}, seed {event.seed}, round {event.round} of {event.rounds}"


def certificate_lines(
    deployment: Deployment, authority: Path, now: datetime
) -> Iterator[str]:
    """Say for how many days the certificates are valid, of each holder the last that is not revoked, and how to renew it."""
    if not authority.is_dir():
        yield f"certificates: say with --authority where the authority lies, to read when they end ({authority} is not there)"
        return
    root = certificate_of((authority / ROOT_CERTIFICATE).read_bytes())
    ends = {AUTHORITY: root.not_valid_after_utc}
    revoked, noted = authoritys_list(authority), ends_of_certificates(authority)
    for serial, holder in holders_of_certificates(authority).items():
        if serial in noted and serial not in revoked:
            ends[holder] = max(noted[serial], ends.get(holder, noted[serial]))

    yield "certificates"
    holders = [
        AUTHORITY,
        deployment.server,
        *deployment.admins.values(),
        *deployment.sites,
    ]
    width = max(map(len, holders))
    for holder in holders:
        if holder not in ends:
            yield f"  {holder:<{width}}  none is noted"
            continue
        days = (ends[holder] - now).days
        state = f"ends in {days} days"
        if days < 0:
            state = "has ended"
        if days < FEW_DAYS and holder in deployment.sites:
            state += "; renew it: there, coterie site renew KIT"
        elif days < FEW_DAYS:
            state += "; renew it: coterie deploy PLAN --kits NEW"
        yield f"  {holder:<{width}}  {state}"
