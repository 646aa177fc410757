"""Kits of a deployment on NVIDIA FLARE: certificates, what a job may build, and a site's settings to fill in."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, explain_imports
from coterie.base.files import write_atomically
from coterie.sites.flare.authority import (
    AUTHORITY,
    certificate_of,
    make_authority,
    note_certificate,
)
from coterie.sites.flare.revocation import REVOKED, first_list
from coterie.sites.flare.signature import sign_plan
from coterie.sites.flare.start import (
    LAUNCHERS,
    MODULE,
    OPEN_PATH,
    PROGRAMS,
    has_gate,
)
from coterie.sites.flare.workspace import for_owner_only, tighten
from coterie.sites.plan import PLAN_FILE, Deployment, Plan, read_plan, signature_file
from coterie.sites.settings import SETTINGS_FILE
from coterie.sites.software import VERSIONS_FILE, add_software, versions, wheels_in
from coterie.sites.tables import table_options

CLASSES = (
    "coterie.sites.flare.client.SiteClient",
    "coterie.sites.flare.server.Coordinator",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
)
"""The classes that a job of ours builds at the sites; a kit allows these and nothing that travels with a job."""

PROJECT = "coterie"


@for_owner_only()
def provision(
    plan_file: Path,
    folder: Path | None = None,
    *,
    keys_at_sites: bool = False,
    wheels: Path | None = None,
    authority: Path | None = None,
) -> Path:
    """Write the kits of a plan; returns their folder. Raises `InputError` if there are kits already or FLARE is missing.

    Args:
        plan_file: the plan.
        folder: for the kits; None: as the plan says.
        keys_at_sites: make none for sites, which ask for a certificate with a key of their own (`join.request`).
        wheels: a folder of wheels that every kit carries; None: they carry none.
        authority: a new folder for the key that signs certificates; None: `ca` of the kits.
    """
    plan = read_plan(plan_file)
    wheels_in(wheels)
    deployment = plan.deployment
    need_flare()
    sites = () if keys_at_sites else deployment.sites
    kits = folder or plan_file.parent / deployment.kits
    if kits.exists():
        raise InputError(
            f"{kits} exists already; give new certificates another folder ([deploy] kits), or remove it"
        )
    authority = authority or kits / AUTHORITY
    if authority.exists():
        raise InputError(
            f"{authority} exists already; it may hold the key of an authority: give another folder"
        )
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary) / "project.yml"
        project.write_text(
            json.dumps(_project(deployment, sites), indent=1), encoding="utf-8"
        )  # JSON is YAML
        command = [
            sys.executable,
            "-m",
            "nvflare.cli",
            "provision",
            "-p",
            str(project),
            "-w",
            temporary,
            "--force",
        ]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        provisioned = Path(temporary) / "coterie" / "prod_00"
        if process.returncode or not provisioned.is_dir():
            last_line = [
                line
                for line in (process.stderr + process.stdout).splitlines()
                if line.strip()
            ][-1:]
            raise InputError(
                f"FLARE could not provision {plan_file}: {' '.join(last_line) or 'no reason given'}"
            )
        shutil.copytree(provisioned, kits)
        shutil.copy(project, kits / "project.yml")
        make_authority(
            Path(temporary) / "coterie" / "state" / "cert.json", authority, PROJECT
        )
    files = {deployment.server: "server.crt"}
    for name in (deployment.server, *deployment.admins.values(), *sites):
        certificate = kits / name / "startup" / files.get(name, "client.crt")
        note_certificate(authority, name, certificate_of(certificate.read_bytes()))
    revocations = first_list(authority)
    for name in (deployment.server, *sites):
        shutil.copy(revocations, kits / name / "local" / REVOKED)
    sign_plan(plan_file, kits / deployment.admin)
    for name in (deployment.server, *sites):
        harden(kits / name)
        add_software(kits / name, wheels)
    _keep_jobs(kits / deployment.server)
    remember_interpreter(kits / deployment.server)
    for name in sites:
        furnish(kits / name, plan, plan_file)
    tighten(kits)  # copies have the rights of what they were copied from
    return kits


def furnish(kit: Path, plan: Plan, plan_file: Path) -> None:
    """Put the plan and settings to fill in into a site's kit."""
    shutil.copy(plan_file, kit / "local" / PLAN_FILE)
    if signature_file(plan_file).is_file():
        shutil.copy(
            signature_file(plan_file), signature_file(kit / "local" / PLAN_FILE)
        )
    (kit / "local" / SETTINGS_FILE).write_text(_template(plan), encoding="utf-8")
    (kit / "local" / VERSIONS_FILE).write_text(
        json.dumps(versions(), indent=1), encoding="utf-8"
    )


_ROLES = {"submit": "lead", "disable": "org_admin", "shutdown": "project_admin"}
"""FLARE's name of each role."""
_NOTHING = dict.fromkeys(
    (
        "submit_job",
        "clone_job",
        "manage_job",
        "download_job",
        "operate",
        "shell_commands",
        "byoc",
        "server-predeployed-flwr",
    ),
    "none",
)
_OWN_JOBS = dict.fromkeys(("manage_job", "download_job", "app_command"), "n:submitter")
_RIGHTS = {
    "lead": {**_NOTHING, "view": "any", "submit_job": "any", **_OWN_JOBS},
    "org_admin": {
        **_NOTHING,
        "view": "any",
        **dict.fromkeys(("disable_client", "enable_client", "remove_client"), "any"),
    },
    "project_admin": {
        **_NOTHING,
        "view": "any",
        **dict.fromkeys(("shutdown", "restart"), "any"),
    },
    "member": {**_NOTHING, "view": "any"},
}
"""The rights of each role; no role's job brings code, and no role reads files of a server or a site."""


def harden(kit: Path) -> None:
    """Let jobs build coterie's classes alone and bring no code, send no log; start scripts check their interpreter and go on."""
    local = kit / "local"
    resources = json.loads(
        (local / "resources.json.default").read_text(encoding="utf-8")
    )
    resources["class_allow_list"] = list(CLASSES)
    resources["allow_log_streaming"] = (
        False  # a site's log stays there: it may quote its data
    )
    resources["components"] = [
        c for c in resources["components"] if c["id"] != "site_log_streamer"
    ]
    if (kit / "startup" / "fed_server.json").is_file():
        resources["components"].append(
            {"id": "coterie_gate", "path": "coterie.sites.flare.gate.Gate", "args": {}}
        )
    (local / "resources.json").write_text(
        json.dumps(resources, indent=2), encoding="utf-8"
    )
    rights = {"format_version": "1.0", "permissions": _RIGHTS}
    (local / "authorization.json").write_text(
        json.dumps(rights, indent=2), encoding="utf-8"
    )
    for name in ("start.sh", "sub_start.sh"):
        script = kit / "startup" / name
        shebang, script_text = script.read_text(encoding="utf-8").split("\n", 1)
        script_text = script_text.replace(
            "$restart_count -ge 5", "$restart_count -lt 0"
        )  # FLARE's gives up after five
        script.write_text(
            f"{shebang}\n{_INTERPRETER}{script_text.replace('python3', _PYTHON)}",
            encoding="utf-8",
        )
    add_gate(kit)


@for_owner_only()
def add_gate(kit: Path) -> bool:
    """Let a kit start its processes, and they their jobs, behind the gate; returns whether that is new.

    Raises `InputError` for a kit whose scripts start something else.
    """
    if has_gate(kit):
        return False
    start = kit / "startup" / "sub_start.sh"
    resources = kit / "local" / "resources.json"
    script = start.read_text(encoding="utf-8")
    settings = json.loads(resources.read_text(encoding="utf-8"))
    # Nothing is imported from the folder in which the script is called: hence -P, and no line that ends PYTHONPATH with a colon.
    script = script.replace(OPEN_PATH, "")
    for entry, program in PROGRAMS.items():
        script = script.replace(f"-m {program} ", f"-P -m {MODULE} {entry} ")
    for component in settings["components"]:
        component["path"] = LAUNCHERS.get(component["path"], component["path"])
    write_atomically(
        resources,
        lambda p: p.write_text(json.dumps(settings, indent=2), encoding="utf-8"),
    )
    mode = start.stat().st_mode
    write_atomically(start, lambda p: p.write_text(script, encoding="utf-8"))
    start.chmod(mode)
    if not has_gate(kit):
        raise InputError(
            f"{kit} starts something else than FLARE's programs, which the gate does not know; get a new kit"
        )
    return True


_PYTHON = '"$COTERIE_PYTHON"'
_INTERPRETER = """KIT="$( cd "$( dirname "${BASH_SOURCE[0]}" )/.." && pwd )"
if [ -z "$COTERIE_PYTHON" ] && [ -f "$KIT/local/python" ]; then COTERIE_PYTHON="$(cat "$KIT/local/python")"; fi
export COTERIE_PYTHON="${COTERIE_PYTHON:-python3}"
umask 077
if ! "$COTERIE_PYTHON" -P -c "import coterie.sites.flare.start, nvflare" 2> /dev/null; then
  echo "$COTERIE_PYTHON cannot import coterie and nvflare: set COTERIE_PYTHON to the interpreter of the environment that has them" >&2
  exit 1
fi
"""


@for_owner_only()
def remember_interpreter(kit: Path) -> None:
    """Let the kit's start script use this interpreter."""
    (kit / "local" / "python").write_text(f"{sys.executable}\n", encoding="utf-8")


def _keep_jobs(kit: Path) -> None:
    """Let a server keep its jobs in its kit: FLARE's own place in /tmp is that of every server on the machine."""
    file = kit / "local" / "resources.json"
    resources = json.loads(file.read_text(encoding="utf-8"))
    storage = kit.resolve() / "storage"
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(
        storage / "snapshots"
    )
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(storage / "jobs")
    file.write_text(json.dumps(resources, indent=2), encoding="utf-8")


def organisation_of(site: str) -> str:
    """The organisation of a site, as FLARE spells such names."""
    return re.sub(r"\W", "_", site)


def _project(deployment: Deployment, sites: Sequence[str]) -> dict[str, Any]:
    server = {
        "name": deployment.server,
        "type": "server",
        "org": deployment.organisation,
        "fed_learn_port": deployment.port,
        "admin_port": deployment.port,
    }
    clients = [{"name": s, "type": "client", "org": organisation_of(s)} for s in sites]
    admins = [
        {
            "name": name,
            "type": "admin",
            "org": deployment.organisation,
            "role": _ROLES[right],
        }
        for right, name in deployment.admins.items()
    ]
    builders = "nvflare.lighter.impl"
    return {
        "api_version": 3,
        "name": PROJECT,
        "description": "kits of a coterie deployment",
        "participants": [server, *clients, *admins],
        "builders": [
            {"path": f"{builders}.workspace.WorkspaceBuilder"},
            {
                "path": f"{builders}.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "tcp"},
            },
            {"path": "coterie.sites.flare.certificates.ShortCertificates"},
            {"path": f"{builders}.signature.SignatureBuilder"},
        ],
    }


def _template(plan: Plan) -> str:
    label = table_options(plan.experiment.data)["label"]
    return f"""# What this site lends to the federation. Nothing in this file leaves the site. Check it with: coterie site check KIT
[site]
data = "data.csv"            # your data file; a relative path counts from this folder
label = "{label}"            # the column that may be predicted
minimum_rows = 20            # with fewer training rows this site refuses every request
minimum_cell = 10            # what fewer rows stand behind stays here: metrics, categories, classes, sums
minimum_batch = 8            # a gradient of fewer rows is refused
largest_mu = 3               # of all that a plan tells of a row behind secret noise: mu 1 tells 69 of 100 guesses right, 3: 93, 5: 99
largest_layer = 0            # units of the widest layer of a model whose updates leave without secret noise: rows can be found in them
largest_message = 1024       # MB; a longer message is refused before it is read
refuse = []                  # tasks of the plan that this site does not run, such as "target_tasks:target_descent"
log = "asks.jsonl"           # every request is written there; check it with: coterie site log KIT --check
"""


def need_flare() -> None:
    """Raise `InputError` that says what to install if NVIDIA FLARE is missing."""
    with explain_imports("this needs NVIDIA FLARE", "flare"):
        import nvflare  # noqa: F401
