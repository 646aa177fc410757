"""Deployments on NVIDIA FLARE: plans, kits, a site's check before it joins, and submitting a run.

A plan is an experiment's TOML file with one more table, [deploy]. `coterie run plan.toml` runs it on one machine, so that a plan can be
tried before anybody joins.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

from coterie import __version__
from coterie.core.errors import InputError, RunError, check_field, is_number, nearest, require
from coterie.core.state import write_atomically
from coterie.models import MODELS
from coterie.run.experiment import Experiment, read_tables
from coterie.run.sweep import Event
from coterie.sites.site import SETTINGS_FILE, SiteSettings, read_settings, short
from coterie.sites.tables import read_site, table_options

__all__ = ["Deployment", "Plan", "Watched", "check_site", "provision", "read_plan", "submit"]

CLASSES = (
    "coterie.sites.flare.client.SiteClient",
    "coterie.sites.flare.server.Coordinator",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
)
"""What a job of ours builds at the sites; a kit allows these and nothing that travels with a job."""

PLAN_FILE = "plan.toml"
SUBMISSION = ".submission.json"
END_SECONDS = 20.0
"""How long a job whose run is over may take to end by itself."""
SILENT_SECONDS = 20.0
"""How long the server may be silent until a submission gives up."""
JOIN_SECONDS = 120.0
"""How long a submission waits for sites that are not connected yet."""
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_ORGANISATION = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class Deployment:
    """The [deploy] table of a plan.

    Attributes:
        sites: names of the sites; each becomes a client of that name.
        server: name of the server's machine, as sites reach it; `localhost` binds loopback only.
        port: of the server, the only one that must be reachable.
        organisation: of the operator and the server.
        kits: folder for the kits, one per site, one for the server and one for the operator.
        timeout: seconds that a site has to answer an ask.
        columns: columns that every site must have; left out: those that all share are used.
    """

    sites: tuple[str, ...]
    server: str = "localhost"
    port: int = 8002
    organisation: str = "coterie"
    kits: str = "kits"
    timeout: float = 600.0
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        good = isinstance(self.sites, tuple) and bool(self.sites)
        good = good and all(isinstance(s, str) and bool(_SITE.fullmatch(s)) for s in self.sites)
        check_field(self, "sites", self.sites, good, "a list of names of letters, digits, - and _")
        twice = [s for s in self.sites if self.sites.count(s) > 1]
        require(not twice, f"Deployment.sites names {twice[0] if twice else ''!r} twice; name each site once")
        reserved = {"server", self.server}
        taken = next((s for s in self.sites if s in reserved), None)
        require(taken is None, f"Deployment.sites names {taken!r}, which is the server's own name; rename that site")
        for name, pattern in (("server", _HOST), ("organisation", _ORGANISATION)):
            value = getattr(self, name)
            good = isinstance(value, str) and bool(pattern.fullmatch(value))
            check_field(
                self, name, value, good, "a name of letters, digits and _" if name != "server" else "a host name"
            )
        check_field(self, "port", self.port, type(self.port) is int and 0 < self.port < 65536, "a port from 1 to 65535")
        check_field(self, "kits", self.kits, isinstance(self.kits, str) and bool(self.kits), "a folder")
        check_field(
            self, "timeout", self.timeout, is_number(self.timeout) and self.timeout > 0, "a number of seconds > 0"
        )
        good = isinstance(self.columns, tuple) and all(isinstance(c, str) for c in self.columns)
        check_field(self, "columns", self.columns, good, "a list of names of columns")

    @property
    def admin(self) -> str:
        """The name of the operator, under which jobs are submitted."""
        return f"operator@{self.organisation.lower().replace('_', '-')}.org"


@dataclass(frozen=True)
class Plan:
    """An experiment and where it is to run.

    Attributes:
        experiment: the tables but [deploy].
        deployment: the [deploy] table.
    """

    experiment: Experiment
    deployment: Deployment


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file. Raises `InputError` that names file, key and cure."""
    tables = read_tables(path)
    table = tables.pop("deploy", None)
    if not isinstance(table, dict):
        raise InputError(f"{path}: there is no [deploy] table; give it at least sites = [NAMES]")
    known = [f.name for f in fields(Deployment)]
    for key in table:
        require(key in known, f"{path}, [deploy]: unknown key {key!r}; {nearest(key, known)}")
    require("sites" in table, f"{path}, [deploy]: sites is missing; give a list of names")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    try:
        deployment = Deployment(**values)
    except InputError as error:
        raise InputError(f"{path}, [deploy]: {str(error).removeprefix('Deployment.')}") from error
    return Plan(_deployable(Experiment.from_tables(tables, str(path)), path), deployment)


def _deployable(experiment: Experiment, path: Path) -> Experiment:
    """`experiment`, if sites can run it: their tables, and only code that they have installed."""
    table_options(experiment.data)
    named = [*(m.name for m in experiment.methods), experiment.model.get("name", ""), *experiment.run.metrics]
    own = next((n for n in named if ".py:" in n), None)
    require(own is None, f"{path}: {own} is code of your own, and no code travels to sites; name what coterie brings")
    name = experiment.model.get("name", "logistic")
    require(name in MODELS, f"{path}, [model]: there is no model {name!r}; {nearest(name, MODELS)}")
    for table in ("attack", "personalise"):
        require(not getattr(experiment, table, None), f"{path}: [{table}] is for one machine; drop it from a plan")
    engine = experiment.run.engine
    require(engine == "inprocess", f"{path}: run.engine = {engine!r} does not go with [deploy]; drop it")
    return experiment


# ---- kits


def provision(plan_file: Path, folder: Path | None = None) -> Path:
    """Write the kits of a plan; returns their folder. Raises `InputError` if there are kits already or FLARE is missing."""
    plan = read_plan(plan_file)
    deployment = plan.deployment
    need_flare()
    kits = folder or plan_file.parent / deployment.kits
    require(
        not kits.exists(), f"{kits} exists already; give new certificates another folder ([deploy] kits), or remove it"
    )
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    allowed = [*DEFAULT_CLASS_ALLOW_LIST, *CLASSES]
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary) / "project.yml"
        project.write_text(json.dumps(_project(deployment), indent=1), encoding="utf-8")  # JSON is YAML
        command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project), "-w", temporary, "--force"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        made = Path(temporary) / "coterie" / "prod_00"
        if done.returncode or not made.is_dir():
            last = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()][-1:]
            raise InputError(f"FLARE could not provision {plan_file}: {' '.join(last) or 'no reason given'}")
        shutil.copytree(made, kits)
        shutil.copy(project, kits / "project.yml")
    for name in (deployment.server, *deployment.sites):
        local = kits / name / "local"
        resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
        resources["class_allow_list"] = allowed
        resources["allow_log_streaming"] = False  # a site's log stays there: it may quote its data
        resources["components"] = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
        (local / "resources.json").write_text(json.dumps(resources, indent=2), encoding="utf-8")
        rights = json.loads((local / "authorization.json.default").read_text(encoding="utf-8"))
        for role in rights["permissions"].values():
            if isinstance(role, dict):
                role["byoc"] = "none"  # a job brings no code of its own
        rights["permissions"]["lead"]["app_command"] = "n:submitter"  # asks the server how the job stands
        (local / "authorization.json").write_text(json.dumps(rights, indent=2), encoding="utf-8")
    _keep_jobs(kits / deployment.server)
    for name in deployment.sites:
        shutil.copy(plan_file, kits / name / "local" / PLAN_FILE)
        (kits / name / "local" / SETTINGS_FILE).write_text(_template(plan), encoding="utf-8")
    return kits


def _keep_jobs(kit: Path) -> None:
    """Let a server keep its jobs in its kit: FLARE's own place in /tmp is that of every server on the machine."""
    file = kit / "local" / "resources.json"
    resources = json.loads(file.read_text(encoding="utf-8"))
    storage = kit.resolve() / "storage"
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(storage / "jobs")
    file.write_text(json.dumps(resources, indent=2), encoding="utf-8")


def _project(deployment: Deployment) -> dict[str, Any]:
    server = {
        "name": deployment.server,
        "type": "server",
        "org": deployment.organisation,
        "fed_learn_port": deployment.port,
        "admin_port": deployment.port,
    }
    sites = [{"name": s, "type": "client", "org": re.sub(r"\W", "_", s)} for s in deployment.sites]
    admin = {"name": deployment.admin, "type": "admin", "org": deployment.organisation, "role": "lead"}
    builders = "nvflare.lighter.impl"
    return {
        "api_version": 3,
        "name": "coterie",
        "description": "kits of a coterie deployment",
        "participants": [server, *sites, admin],
        "builders": [
            {"path": f"{builders}.workspace.WorkspaceBuilder"},
            {"path": f"{builders}.static_file.StaticFileBuilder", "args": {"config_folder": "config", "scheme": "tcp"}},
            {"path": f"{builders}.cert.CertBuilder"},
            {"path": f"{builders}.signature.SignatureBuilder"},
        ],
    }


def _template(plan: Plan) -> str:
    label = table_options(plan.experiment.data)["label"]
    return f"""# What this site lends to the federation. Nothing in this file leaves the site. Check it with: coterie site check KIT
[site]
data = "data.csv"            # your data file; a relative path counts from this folder
label = "{label}"            # the column that may be predicted
minimum_rows = 1             # with fewer training rows this site answers nothing
refuse = []                  # tasks that this site does not run, such as "meritfed:target_descent"
log = "asks.csv"             # every ask is written there: time, task, round, bytes
"""


def need_flare() -> None:
    """Raise `InputError` that says what to install if NVIDIA FLARE is missing."""
    try:
        import nvflare  # noqa: F401
    except ImportError as error:
        raise InputError("this needs NVIDIA FLARE; install it with: pip install 'coterie[flare]'") from error


# ---- a site, before it joins


def check_site(place: Path, *, site: str | None = None, settings_file: Path | None = None) -> list[str]:
    """Sentences about what fits; nothing is sent.

    Args:
        place: the site's kit, or a plan (then `site` and `settings_file` are needed).
        site: name of the site.
        settings_file: the site's own `coterie.toml`.

    Raises:
        InputError: what does not fit, with the cure.
    """
    import torch

    need_flare()
    if place.is_dir():
        plan_file = place / "local" / PLAN_FILE
        require(plan_file.is_file(), f"{place} is no kit of a site: it has no local/{PLAN_FILE}")
        site, settings_file = site or place.resolve().name, settings_file or place / "local" / SETTINGS_FILE
        _check_certificate(place / "startup", site)
    else:
        plan_file = place
    plan = read_plan(plan_file)
    if site is None or settings_file is None:
        raise InputError(f"{place} is a plan: say which site with --site NAME and its settings with --settings FILE")
    require(site in plan.deployment.sites, f"the plan has no site {site!r}; {nearest(site, plan.deployment.sites)}")
    import coterie.algorithms
    import coterie.core.metrics  # noqa: F401 - the settings may name their tasks

    settings = read_settings(settings_file)
    options = table_options(plan.experiment.data)
    _check_label(settings, options, settings_file)
    said = [
        f"plan      {plan_file}: {', '.join(m.label for m in plan.experiment.methods)}; predicts {options['label']}"
    ]
    least = None
    for seed in plan.experiment.run.seeds:
        table, notes = read_site(settings.data, site, options, seed=seed, split=plan.experiment.split or None)
        missing = sorted(set(plan.deployment.columns) - set(table.columns))
        require(
            not missing,
            f"{settings.data} has no column {', '.join(missing)}, which the plan needs; add it (its cells may be empty)",
        )
        rows = len(table.parts["train"])
        least = rows if least is None else min(least, rows)
    require(
        least is not None and least >= settings.minimum_rows,
        f"{settings.data} gives {least} training rows, fewer than minimum_rows = {settings.minimum_rows} of {settings_file}: "
        "this site would not answer; lower that, or stay out",
    )
    said.append(f"data      {settings.data}: {len(table)} rows, {len(table.columns)} columns, {least} rows to train on")
    said += [f"note      {note}" for note in notes]
    said.append(f"refuses   {', '.join(short(t) for t in settings.refuse) or 'no task'}")
    said.append(f"versions  coterie {__version__}, torch {torch.__version__}: the operator's must be the same")
    said.append("this site can join")
    return said


def _check_certificate(startup: Path, site: str) -> None:
    """The kit's certificate is there, of its own certification authority, and of this site."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    for name in ("client.crt", "client.key", "rootCA.pem"):
        require(
            (startup / name).is_file(), f"{startup} has no {name}: the server lets nobody in without; get the kit anew"
        )
    own, root = (x509.load_pem_x509_certificate((startup / n).read_bytes()) for n in ("client.crt", "rootCA.pem"))
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise InputError(
            f"{startup / 'client.crt'} is not signed by {startup / 'rootCA.pem'}; get the kit anew"
        ) from error
    named = str(own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
    require(
        named == site,
        f"the certificate in {startup} is that of {named!r}, not of {site!r}, and the server compares; use its kit",
    )


def _check_label(settings: SiteSettings, options: Mapping[str, Any], file: Path) -> None:
    require(
        settings.label in (None, options["label"]),
        f"the plan predicts {options['label']!r}, but {file} offers only {settings.label!r}; agree on one label",
    )


# ---- a run


@dataclass(frozen=True)
class Watched:
    """What the server says about a running job.

    Attributes:
        event: where the experiment stands, once it does.
        ask: number of the present ask.
        task: of the present ask.
        waiting: sites whose reply is not there yet.
        gone: sites that let an ask time out and do not answer since.
    """

    event: Event | None
    ask: int
    task: str
    waiting: tuple[str, ...]
    gone: tuple[str, ...]


def submit(
    plan_file: Path,
    out: Path,
    *,
    resume: bool = False,
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
    admin = (kits or plan_file.parent / plan.deployment.kits) / plan.deployment.admin
    require(admin.is_dir(), f"there is no kit {admin}; make the kits with: coterie deploy {plan_file}")
    told = out / SUBMISSION
    if resume:
        require(told.is_file(), f"{out} was not submitted before; leave out --resume")
        run = json.loads(told.read_text(encoding="utf-8"))["run"]
    else:
        run = secrets.token_hex(8)
    message = {
        "experiment": replace(plan.experiment, run=replace(plan.experiment.run, out=None)).tables(),
        "where": str(plan_file),
        "run": run,
        "resume": resume,
        "timeout": float(plan.deployment.timeout),
        "columns": list(plan.deployment.columns),
        "command": command,
    }
    logging.disable(logging.CRITICAL)  # FLARE reports every second that a server is away
    session = None
    try:
        session = _session(plan.deployment, admin)
        _await_sites(session, plan.deployment, say)
        job = _start(session, message, len(plan.deployment.sites))
        write_atomically(told, lambda p: p.write_text(json.dumps({"run": run, "job": job}), encoding="utf-8"))
        status = _follow(session, job, watch)
        _bring_back(session, job, status, out)
    finally:
        logging.disable(logging.NOTSET)
        if session is not None:
            session.close()


def _session(deployment: Deployment, admin: Path) -> Any:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    try:
        with redirect_stdout(StringIO()):  # results go there
            return new_secure_session(deployment.admin, str(admin), timeout=15.0)
    except Exception as error:  # FLARE has a dozen kinds for this
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"the server {deployment.server}:{deployment.port} does not let the operator in ({reason}); is it running, and is "
            f"{admin} of the same kits?"
        ) from error


def _await_sites(session: Any, deployment: Deployment, say: Callable[[str], None]) -> None:
    """Wait until every site is connected: a job that is scheduled before fails at once."""
    deadline, named = time.monotonic() + JOIN_SECONDS, ""
    while True:
        there = {client.name for client in session.get_connected_client_list()}
        missing = ", ".join(s for s in deployment.sites if s not in there)
        if not missing:
            return
        require(
            time.monotonic() < deadline,
            f"not connected to the server after {JOIN_SECONDS:g} s: {missing}; start these sites (startup/start.sh of their kits)",
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
    recipe = CollabRecipe("coterie", server=Coordinator(text), client=SiteClient(), min_clients=sites)
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FLARE takes a long hexadecimal text for a secret
        recipe.export(temporary)
        for code in Path(temporary).rglob("custom"):
            shutil.rmtree(code)  # sites run what they have installed
        job: str = session.submit_job(str(Path(temporary) / "coterie"))
    return job


def _follow(session: Any, job: str, watch: Callable[[Watched], None] | None) -> str:
    """Wait for the end of a job; its status."""
    over, heard = 0.0, time.monotonic()
    while True:
        try:
            status = str(session.get_job_status(job))
            heard = time.monotonic()
        except Exception as error:  # FLARE has a dozen kinds for this
            if time.monotonic() - heard > SILENT_SECONDS:
                raise RunError(
                    f"the server has not answered for {SILENT_SECONDS:g} s; start it again, then go on with --resume"
                ) from error
            time.sleep(1.0)
            continue
        if status.startswith("FINISHED") or status in ("ABANDONED", "APPROVED_FAILED"):
            return status
        got: dict[str, Any] = {}
        if status == "RUNNING" and not over:
            with suppress(Exception):  # the job may be beginning or ending; the status tells
                got = session.do_app_command(job, "coterie", {})
        if got and watch is not None:
            event = Event(*got["event"]) if "event" in got else None
            lists = tuple(got.get("waiting", ())), tuple(got.get("gone", ()))
            watch(Watched(event, got.get("ask", 0), got.get("task", ""), *lists))
        if "over" in got:
            over = time.monotonic()
        if over and time.monotonic() - over > END_SECONDS:
            session.abort_job(job)  # all is done, but FLARE waits for a site that is gone
            over = time.monotonic()
        time.sleep(1.0)


def _bring_back(session: Any, job: str, status: str, out: Path) -> None:
    from coterie.sites.flare.server import OUTCOME, RESULT

    with tempfile.TemporaryDirectory() as temporary:
        try:
            got = Path(session.download_job_result(job, temporary))
        except Exception as error:
            raise RunError(
                f"job {job} ended as {status} and has no result ({error}); start what has died, then go on with --resume"
            ) from error
        found = next(got.rglob(RESULT), None)
        if found is not None:
            shutil.copytree(found, out, dirs_exist_ok=True)
        outcome = next(got.rglob(OUTCOME), None)
        said = None if outcome is None else json.loads(outcome.read_text(encoding="utf-8"))
    if said is None:
        raise RunError(f"job {job} ended as {status}; start what has died, then go on with --resume")
    if said["status"]:
        kind = InputError if said["status"] == 2 else RunError
        raise kind(said["sentence"])
