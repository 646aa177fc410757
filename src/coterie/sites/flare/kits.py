"""Kits of a deployment on NVIDIA FLARE: certificates, what a job may build, and a site's settings to fill in."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from coterie.core.errors import InputError, require
from coterie.sites.plan import PLAN_FILE, Deployment, Plan, read_plan
from coterie.sites.settings import SETTINGS_FILE
from coterie.sites.tables import table_options

__all__ = ["CLASSES", "harden", "need_flare", "provision", "remember_interpreter"]

CLASSES = (
    "coterie.sites.flare.client.SiteClient",
    "coterie.sites.flare.server.Coordinator",
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
)
"""What a job of ours builds at the sites; a kit allows these and nothing that travels with a job."""


def provision(plan_file: Path, folder: Path | None = None) -> Path:
    """Write the kits of a plan; returns their folder. Raises `InputError` if there are kits already or FLARE is missing."""
    plan = read_plan(plan_file)
    deployment = plan.deployment
    need_flare()
    kits = folder or plan_file.parent / deployment.kits
    require(
        not kits.exists(), f"{kits} exists already; give new certificates another folder ([deploy] kits), or remove it"
    )
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
        harden(kits / name)
    _keep_jobs(kits / deployment.server)
    remember_interpreter(kits / deployment.server)
    for name in deployment.sites:
        shutil.copy(plan_file, kits / name / "local" / PLAN_FILE)
        (kits / name / "local" / SETTINGS_FILE).write_text(_template(plan), encoding="utf-8")
    return kits


def harden(kit: Path) -> None:
    """Let jobs build coterie's classes alone and bring no code, send no log, and let the start script check its interpreter."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_allow_list"] = list(CLASSES)
    resources["allow_log_streaming"] = False  # a site's log stays there: it may quote its data
    resources["components"] = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
    (local / "resources.json").write_text(json.dumps(resources, indent=2), encoding="utf-8")
    rights = json.loads((local / "authorization.json.default").read_text(encoding="utf-8"))
    for role in rights["permissions"].values():
        if isinstance(role, dict):
            role["byoc"] = "none"  # a job brings no code of its own
    rights["permissions"]["lead"]["app_command"] = "n:submitter"  # asks the server how the job stands
    (local / "authorization.json").write_text(json.dumps(rights, indent=2), encoding="utf-8")
    for name in ("start.sh", "sub_start.sh"):
        script = kit / "startup" / name
        first, rest = script.read_text(encoding="utf-8").split("\n", 1)
        script.write_text(f"{first}\n{_INTERPRETER}{rest.replace('python3', _PYTHON)}", encoding="utf-8")


_PYTHON = '"$COTERIE_PYTHON"'
_INTERPRETER = """KIT="$( cd "$( dirname "${BASH_SOURCE[0]}" )/.." && pwd )"
if [ -z "$COTERIE_PYTHON" ] && [ -f "$KIT/local/python" ]; then COTERIE_PYTHON="$(cat "$KIT/local/python")"; fi
export COTERIE_PYTHON="${COTERIE_PYTHON:-python3}"
if ! "$COTERIE_PYTHON" -c "import coterie.sites.site, nvflare" 2> /dev/null; then
  echo "$COTERIE_PYTHON cannot import coterie and nvflare: set COTERIE_PYTHON to the interpreter of the environment that has them" >&2
  exit 1
fi
"""


def remember_interpreter(kit: Path) -> None:
    """Let the kit's start script use this interpreter."""
    (kit / "local" / "python").write_text(f"{sys.executable}\n", encoding="utf-8")


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
minimum_rows = 20            # with fewer training rows this site refuses every request
minimum_cell = 10            # what fewer rows stand behind stays here: metrics, categories, classes, sums
minimum_batch = 8            # a gradient of fewer rows is refused
refuse = []                  # tasks of the plan that this site does not run, such as "meritfed:target_descent"
log = "asks.jsonl"           # every request is written there; check it with: coterie site log KIT --check
"""


def need_flare() -> None:
    """Raise `InputError` that says what to install if NVIDIA FLARE is missing."""
    try:
        import nvflare  # noqa: F401
    except ImportError as error:
        raise InputError("this needs NVIDIA FLARE; install it with: pip install 'coterie[flare]'") from error
