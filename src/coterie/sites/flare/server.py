"""The server's half of a FLARE job: the run loop of `coterie run`, with sites for clients."""

from __future__ import annotations

import json
import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from coterie.base.errors import CoterieError, InputError
from coterie.base.files import write_atomically
from coterie.run.experiment import Experiment
from coterie.sites.backend import Sites
from coterie.sites.descriptions import difference, longest_head, parse_descriptions
from coterie.sites.flare.authority import ROOT_CERTIFICATE
from coterie.sites.flare.client import FlareLink
from coterie.sites.flare.gate import barred_sites
from coterie.sites.flare.identity import KitIdentity
from coterie.sites.flare.revocation import REVOKED, servers_list
from coterie.sites.flare.signature import sign_head
from coterie.sites.log import Log
from coterie.sites.server import Remote, Status
from coterie.study.progress import Event
from coterie.study.sweep import run_experiment

RESULT = "coterie-run"
OUTCOME = "outcome.json"
GATE_SECONDS = 60.0
"""How long a site may take to say what its gate closes; its job may still be beginning."""
LINGER = 5.0
"""Seconds that a job waits at its end for whoever watches it, so that they learn that it is over."""
ENDED = "the job was ended in the middle of the run; start what has died, then continue with --resume"


class Coordinator:
    """The server object of a job.

    Args:
        plan: hexadecimal JSON, since FLARE reads braces in texts as templates: `experiment` (tables), `run` (a name of its own),
            `resume`, `accept_change`, `timeout` in seconds, `accept`, `goes_on`, `described` and `seeds` (of the
            plan), `hash` of the plan's file, `where` and `command` for people.
    """

    def __init__(self, plan: str) -> None:
        self.plan = plan
        self._progress: dict[str, Any] = {}
        self._last: dict[str, tuple[str, float]] = {}
        self._told = threading.Event()

    @collab.main  # type: ignore[untyped-decorator]
    def run(self) -> None:
        """Run the experiment; the run directory stays with the server for a resumed job, and a copy goes into the job's result."""
        plan = json.loads(bytes.fromhex(self.plan))
        root, context = Path(collab.workspace.get_root_dir()), collab.fl_ctx
        folder = root / "coterie" / plan["run"]
        result = Path(collab.workspace.get_run_dir(context.get_job_id()))
        engine = context.get_engine()
        if hasattr(engine, "register_app_command"):
            engine.register_app_command("coterie", lambda *_: self._tell())
        torch.set_num_threads(1)
        link = FlareLink(collab.clients, context.get_run_abort_signal())
        threading.Thread(target=self._ask_gates, args=(link,), daemon=True).start()
        options = {
            **{key: plan[key] for key in ("timeout", "accept", "goes_on")},
            "plan": plan["hash"],
        }
        descriptions = parse_descriptions(plan["described"], plan["described"])
        differs, head = (
            partial(difference, descriptions, plan["seeds"]),
            longest_head(descriptions),
        )
        local = Path(collab.workspace.get_site_config_dir())
        remote = Remote(
            link,
            plan["run"],
            watch=self._watch,
            barred=lambda: barred_sites(local),
            revoked=lambda: _text_of_list(local),
            differs=differs,
            head=head,
            authority=_authority(local),
            **options,
        )
        outcome: dict[str, Any] = {"status": 1, "sentence": ENDED}
        try:
            experiment = Experiment.from_tables(plan["experiment"], plan["where"])
            run_experiment(
                experiment,
                folder,
                resume=plan["resume"] and folder.exists(),
                accept_change=plan["accept_change"],
                command=plan["command"],
                notify=self._notify,
                backend=Sites(remote),
            )
            outcome = {"status": 0, "sentence": ""}
        except CoterieError as error:
            status = 2 if isinstance(error, InputError) else 1
            outcome = {"status": status, "sentence": str(error)}
        finally:
            # No site can be reached in a job that was aborted.
            if outcome["sentence"] != ENDED:
                self._sign_heads(remote, root)
            remote.close()
            if folder.exists():
                shutil.copytree(folder, result / RESULT, dirs_exist_ok=True)
            write_atomically(
                result / OUTCOME,
                lambda p: p.write_text(json.dumps(outcome), encoding="utf-8"),
            )
            self._progress["over"] = True
        self._told.wait(LINGER)

    def _sign_heads(self, remote: Remote, root: Path) -> None:
        """Sign how the sites' logs end, and keep that here too: neither side can then say that a log was another one."""
        startup = root / "startup"
        if (startup / "server.key").is_file():  # a simulation has none
            heads = Log(root / "coterie" / "heads.jsonl")
            for signed in remote.sign_heads(
                lambda site, head: sign_head(site, head, startup)
            ):
                heads.write(urgent=False, **signed)

    def _tell(self) -> dict[str, Any]:
        progress = dict(self._progress)
        if "over" in progress:
            self._told.set()
        return progress

    def _ask_gates(self, link: FlareLink) -> None:
        """Ask each site once what its gate closes, for whoever asks how the run stands."""
        for name in link.names:
            try:
                closed = link.count_gate_doors(name, GATE_SECONDS)
            except RunAborted:
                return
            self._progress["gates"] = {**self._progress.get("gates", {}), name: closed}

    def _watch(self, status: Status) -> None:
        answered = (
            set(self._progress.get("waiting", ()))
            - set(status.waiting)
            - set(status.gone)
        )
        self._last.update(
            {name: (self._progress["task"], time.time()) for name in answered}
        )
        state = {
            "ask": status.ask,
            "task": status.task,
            "waiting": list(status.waiting),
            "gone": list(status.gone),
        }
        self._progress.update(
            state, last={name: list(answered) for name, answered in self._last.items()}
        )

    def _notify(self, event: Event) -> None:
        self._progress["event"] = list(event)


def _authority(local: Path) -> KitIdentity | None:
    """What the server's kit, whose folder `local` is given, knows of the sites' certificates; None in a simulation."""
    startup = local.parent / "startup"
    if not (startup / ROOT_CERTIFICATE).is_file():
        return None
    return KitIdentity(startup, local / REVOKED)


def _text_of_list(local: Path) -> str:
    """Return the list of revoked certificates in the server's kit; "" in a simulation."""
    revocations = servers_list(local)
    if revocations is None:
        return ""
    return revocations.text
