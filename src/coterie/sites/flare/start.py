"""The entry of every FLARE process of a site and of the server: it installs the gate, then runs FLARE's own program.

`python -m coterie.sites.flare.start site -m KIT ...` is what a kit's start script calls; the arguments are FLARE's. Jobs are
started the same way by `launchers`. A module that FLARE would load later, such as a component, comes too late: cells
exist by then.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from coterie.base.errors import CoterieError, InputError
from coterie.base.files import read_json, read_text
from coterie.sites.flare.cell_gate import CLOSED, SECRET, CellGate, gate, install
from coterie.sites.flare.failures import spare_the_others
from coterie.sites.flare.refusals import Refusals, flush_at_the_end
from coterie.sites.flare.workspace import kit_of, make_workspace
from coterie.sites.settings import SETTINGS_FILE

MODULE = "coterie.sites.flare.start"
"""This module, as the scripts of a kit name it."""
PROGRAMS = {
    "site": "nvflare.private.fed.app.client.client_train",
    "site-job": "nvflare.private.fed.app.client.worker_process",
    "server": "nvflare.private.fed.app.server.server_train",
    "server-job": "nvflare.private.fed.app.server.runner_process",
}
"""FLARE's program of each process."""
LAUNCHERS = {
    "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher": (
        "coterie.sites.flare.launchers.SiteLauncher"
    ),
    "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher": (
        "coterie.sites.flare.launchers.ServerLauncher"
    ),
}
"""FLARE's launchers of jobs, and those that take their place in a kit."""
OPEN_PATH = "export PYTHONPATH=/local/custom:$PYTHONPATH\n"
"""Line of FLARE's start script. Where PYTHONPATH is empty it ends with a colon, and Python imports from the current folder."""
NEW_KIT = "get a new kit from the operator"
SERVER_LOG = "gate.jsonl"
"""In `local` of the server's kit: what its gate has refused."""


def prepare(entry: str, arguments: list[str]) -> list[str]:
    """Install the gate of a process.

    Args:
        entry: which of `PROGRAMS`.
        arguments: FLARE's arguments; `-m` is the kit, or the workspace in it.

    Returns:
        The arguments for FLARE's program. Raises `InputError` for a kit without the gate.
    """
    os.umask(0o077)  # the site's log, models and jobs are its own
    where = 0
    if "-m" in arguments[:-1]:
        where = arguments.index("-m") + 1
    if entry not in PROGRAMS or not where:
        raise InputError(
            f"start with one of {', '.join(PROGRAMS)}, and -m KIT; a kit's startup/start.sh does"
        )
    folder = Path(arguments[where])
    kit, is_site = kit_of(folder), entry.startswith("site")
    if not has_gate(kit):
        raise InputError(
            f"{kit} was made before the gate was; put it in with: coterie site check {kit}"
        )
    secret = os.environ.pop(SECRET, "")
    if entry.endswith("-job") and not secret:
        raise InputError(
            "a job is started by its parent, which shares a secret with it"
        )
    log, server_name = kit / "local" / SERVER_LOG, ""
    if is_site:
        log, server_name = _log_of(kit), _server_of(kit)
    closed_by_parent = int(os.environ.pop(CLOSED, "0"))
    guard = CellGate(Refusals(log), server_name, secret, closed_by_parent)
    install(guard)
    spare_the_others(entry)
    if entry.endswith("-job"):
        _import_nothing_of_the_job()
    if entry == "server":
        from coterie.sites.flare.people import install_people

        install_people(guard)
    if entry == "site":
        arguments = [
            *arguments[:where],
            str(make_workspace(kit)),
            *arguments[where + 1 :],
        ]
    return arguments


def _import_nothing_of_the_job() -> None:
    """Let FLARE's program add no folder of the job to where Python looks for modules: no job brings code."""
    from nvflare.utils import job_launcher_utils

    job_launcher_utils.refresh_custom_dir_import_path = lambda folder: None


def has_gate(kit: Path) -> bool:
    """Return True if a kit starts its processes, and they their jobs, behind the gate.

    Raises `InputError` for a kit in which a file is missing or damaged that says so.
    """
    script = kit / "startup" / "sub_start.sh"
    resources = kit / "local" / "resources.json"
    for file in (script, resources):
        if not file.is_file():
            raise InputError(f"{file} is missing; {NEW_KIT}")
    text = read_text(script)
    components = read_json(resources, dict, NEW_KIT).get("components")
    paths: list[Any] = [None]
    if isinstance(components, list):
        paths = [_path_in(part) for part in components]
    if not all(isinstance(path, str) for path in paths):
        raise InputError(f"{resources} names components without a path; {NEW_KIT}")
    is_bare = OPEN_PATH in text or any(program in text for program in PROGRAMS.values())
    return f"-m {MODULE} " in text and not is_bare and not {*paths} & LAUNCHERS.keys()


def _path_in(component: Any) -> Any:
    """The class that a component names; None for what is no component."""
    if not isinstance(component, dict):
        return None
    return component.get("path")


def _server_of(kit: Path) -> str:
    """The common name of the server's certificate, as the kit has it."""
    config = read_json(kit / "startup" / "fed_client.json", dict, NEW_KIT)
    return str(config["servers"][0]["identity"])


def _log_of(kit: Path) -> Path:
    """The site's log; where its settings cannot be read, the one that they name by default."""
    from coterie.base.files import read_toml

    local = kit / "local"
    try:
        table = read_toml(local / SETTINGS_FILE).get("site")
    except CoterieError:
        table = None
    log = "asks.jsonl"
    if isinstance(table, dict):
        log = str(table.get("log", log))
    return local / log


def main(entry: str, arguments: list[str]) -> None:
    """Install the gate, and run FLARE's program until it ends."""
    try:
        ready = prepare(entry, arguments)
    except CoterieError as error:
        sys.stderr.write(f"coterie: {error}\n")
        raise SystemExit(2) from error
    guard = gate()
    if guard is not None:
        flush_at_the_end(guard.refusals)
    sys.argv[1:] = ready
    runpy.run_module(PROGRAMS[entry], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    entry_of_kit = ""
    if sys.argv[1:]:
        entry_of_kit = sys.argv[1]
    main(entry_of_kit, sys.argv[2:])
