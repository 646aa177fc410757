"""Submit a plan as a job of NVIDIA FLARE, follow it and bring its run directory back."""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, RunError
from coterie.base.files import write_atomically
from coterie.sites.approval import plan_hash
from coterie.sites.flare.kits import need_flare
from coterie.sites.plan import Deployment, read_plan
from coterie.study.progress import Event, Watched

SUBMISSION = ".submission.json"
END_SECONDS = 20.0
"""How long a job whose run is over may take to end by itself."""
SILENT_SECONDS = 20.0
"""How long the server may be silent until a submission gives up."""
LOGINS = 5
"""How often the operator logs in: a busy server may see the second half of a login so late that it has forgotten the first."""
JOIN_SECONDS = 120.0
"""How long a submission waits for sites that are not connected yet."""


def submit(
    plan_file: Path,
    out: Path,
    *,
    resume: bool = False,
    accept_change: Sequence[str] = (),
    accept: Sequence[str] = (),
    kits: Path | None = None,
    command: str = "",
    watch: Callable[[Watched], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Run a plan on its sites and bring the run directory back to `out`.

    Args:
        plan_file: the plan.
        out: the run directory.
        resume: go on from the checkpoint that the server keeps of this `out`.
        accept_change: what may have changed since, as `RunSettings` names it.
        accept: `SITE:COLUMN` of moments that are taken although they are far from those of the others, beside those of the plan.
        kits: folder of the kits; None: as the plan says.
        command: for `environment.json`.
        watch: called about once a second with how the job stands.
        say: called with a sentence where there is something to wait for.

    Raises:
        InputError: bad plan, the server cannot be reached, or a site does not connect.
        RunError: the run failed; what the server saved is in `out`, and `resume` goes on.
    """
    plan = read_plan(plan_file)
    need_flare()
    admin = _operator(plan_file, plan.deployment, kits)
    submission = out / SUBMISSION
    if resume:
        if not submission.is_file():
            raise InputError(f"{out} was not submitted before; leave out --resume")
        run = json.loads(submission.read_text(encoding="utf-8"))["run"]
    else:
        run = secrets.token_hex(8)
    message = {
        "experiment": replace(
            plan.experiment, run=replace(plan.experiment.run, out=None)
        ).tables(),
        "where": str(plan_file),
        "run": run,
        "resume": resume,
        "accept_change": list(accept_change),
        "timeout": float(plan.deployment.timeout),
        "accept": [*plan.deployment.accept, *accept],
        "goes_on": plan.deployment.missing_site == "continue",
        "described": plan.deployment.described or {},
        "seeds": list(plan.experiment.split_seeds),
        "hash": plan_hash(plan_file),
        "command": command,
    }
    logging.disable(
        logging.CRITICAL
    )  # FLARE reports every second that a server is away
    session = None
    try:
        session = _session(plan.deployment, admin)
        _await_sites(session, plan.deployment, say)
        job = _start(session, message, len(plan.deployment.sites))
        write_atomically(
            submission,
            lambda p: p.write_text(
                json.dumps({"run": run, "job": job}), encoding="utf-8"
            ),
        )
        status = _follow(session, job, watch)
        _bring_back(session, job, status, out)
    finally:
        logging.disable(logging.NOTSET)
        if session is not None:
            session.close()


def _operator(plan_file: Path, deployment: Deployment, kits: Path | None) -> Path:
    """The operator's kit."""
    admin = (kits or plan_file.parent / deployment.kits) / deployment.admin
    if not admin.is_dir():
        raise InputError(
            f"there is no kit {admin}; make the kits with: coterie deploy {plan_file}"
        )
    return admin


def open_session(plan_file: Path, deployment: Deployment, kits: Path | None) -> Any:
    """The operator's connection to the server. Raises `InputError` if the server does not let the operator in."""
    need_flare()
    logging.disable(
        logging.CRITICAL
    )  # FLARE reports every second that a server is away
    try:
        return _session(deployment, _operator(plan_file, deployment, kits))
    finally:
        logging.disable(logging.NOTSET)


def _session(deployment: Deployment, admin: Path) -> Any:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    logins = 0
    while True:
        logins += 1
        try:
            # FLARE prints results to one, tracebacks to the other.
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                return new_secure_session(deployment.admin, str(admin), timeout=15.0)
        except Exception as error:  # FLARE has a dozen kinds for this
            reason = " ".join(str(error).split()) or type(error).__name__
            if logins < LOGINS and "no registration session" in reason:
                continue
            raise InputError(
                f"the server {deployment.server}:{deployment.port} does not let the operator in ({reason}); is it running, and is "
                f"{admin} of the same kits?"
            ) from error


def _await_sites(
    session: Any, deployment: Deployment, say: Callable[[str], None]
) -> None:
    """Wait until every site is connected: a job that is scheduled before fails at once."""
    deadline, named = time.monotonic() + JOIN_SECONDS, ""
    while True:
        connected = {client.name for client in session.get_connected_client_list()}
        missing = ", ".join(s for s in deployment.sites if s not in connected)
        if not missing:
            return
        if time.monotonic() >= deadline:
            raise InputError(
                f"not connected to the server after {JOIN_SECONDS:g} s: {missing}; start these sites (startup/start.sh of their kits)"
            )
        if missing != named:
            say(f"waiting for {missing} to connect")
        named = missing
        time.sleep(1.0)


def _start(session: Any, message: Mapping[str, Any], sites: int) -> str:
    from nvflare.collab import CollabRecipe

    from coterie.sites.flare.client import SiteClient
    from coterie.sites.flare.server import Coordinator

    text = json.dumps(message).encode().hex()
    recipe = CollabRecipe(
        "coterie", server=Coordinator(text), client=SiteClient(), min_clients=sites
    )
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # FLARE takes a long hexadecimal text for a secret
        recipe.export(temporary)
        for code in Path(temporary).rglob("custom"):
            shutil.rmtree(code)  # sites run what they have installed
        job: str = session.submit_job(str(Path(temporary) / "coterie"))
    return job


def _follow(session: Any, job: str, watch: Callable[[Watched], None] | None) -> str:
    """Wait for the end of a job; its status."""
    ended_at, heard_at = 0.0, time.monotonic()
    while True:
        try:
            status = str(session.get_job_status(job))
            heard_at = time.monotonic()
        except Exception as error:  # FLARE has a dozen kinds for this
            if time.monotonic() - heard_at > SILENT_SECONDS:
                raise RunError(
                    f"the server has not answered for {SILENT_SECONDS:g} s; start it again, then continue with --resume"
                ) from error
            time.sleep(1.0)
            continue
        if status.startswith("FINISHED") or status in ("ABANDONED", "APPROVED_FAILED"):
            return status
        progress: dict[str, Any] = {}
        if status == "RUNNING" and not ended_at:
            with suppress(
                Exception
            ):  # the job may be beginning or ending; the status tells
                progress = session.do_app_command(job, "coterie", {})
        if progress and watch is not None:
            event = None
            if "event" in progress:
                event = Event(*progress["event"])
            ask, task = progress.get("ask", 0), progress.get("task", "")
            waiting = tuple(progress.get("waiting", ()))
            gone = tuple(progress.get("gone", ()))
            watch(Watched(event, ask, task, waiting, gone))
        if "over" in progress:
            ended_at = time.monotonic()
        if ended_at and time.monotonic() - ended_at > END_SECONDS:
            session.abort_job(
                job
            )  # all is done, but FLARE waits for a site that is gone
            ended_at = time.monotonic()
        time.sleep(1.0)


def _bring_back(session: Any, job: str, status: str, out: Path) -> None:
    from coterie.sites.flare.server import OUTCOME, RESULT

    with tempfile.TemporaryDirectory() as temporary:
        try:
            downloaded = Path(session.download_job_result(job, temporary))
        except Exception as error:
            raise RunError(
                f"job {job} ended as {status} and has no result ({error}); start what has died, then continue with --resume"
            ) from error
        result = next(downloaded.rglob(RESULT), None)
        if result is not None:
            shutil.copytree(result, out, dirs_exist_ok=True)
        outcome_file = next(downloaded.rglob(OUTCOME), None)
        if outcome_file is None:
            raise RunError(
                f"job {job} ended as {status}; start what has died, then continue with --resume"
            )
        outcome = json.loads(outcome_file.read_text(encoding="utf-8"))
    # The status with which the command ends: 2 after bad input.
    if outcome["status"] == 2:
        raise InputError(outcome["sentence"])
    if outcome["status"]:
        raise RunError(outcome["sentence"])
