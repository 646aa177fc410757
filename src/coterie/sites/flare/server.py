"""The server's half of a FLARE job: the run loop of `coterie run`, with sites for clients."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from nvflare.collab import collab
from torch import nn

from coterie.core.errors import CoterieError, InputError
from coterie.core.method import as_method
from coterie.core.rows import Clients
from coterie.core.state import write_atomically
from coterie.run.experiment import Experiment, MethodEntry
from coterie.run.fit import start_from
from coterie.run.history import Run
from coterie.run.loop import run_method
from coterie.run.status import Event
from coterie.run.sweep import initial, run_experiment, run_settings
from coterie.sites.flare.client import FlareLink
from coterie.sites.server import Remote, Status
from coterie.sites.tables import RemoteClients

__all__ = ["Coordinator", "Sites"]

RESULT = "coterie-run"
OUTCOME = "outcome.json"
LINGER = 5.0
"""Seconds that a job waits at its end for whoever watches it, so that they learn that it is over."""
ENDED = "the job was ended in the middle of the run, as when a site's worker dies; start what has died, then go on with --resume"


class Sites:
    """The `Backend` of a run whose clients are sites elsewhere."""

    def __init__(self, engine: Remote) -> None:
        self.engine = engine

    def load(self, experiment: Experiment, seed: int) -> Clients:
        """Let the sites read their rows for one seed."""
        return self.engine.open(experiment.data, seed)

    def fit(
        self,
        experiment: Experiment,
        entry: MethodEntry,
        clients: Clients,
        module: nn.Module,
        seed: int,
        *,
        checkpoint: Path,
        resume: bool,
        progress: Callable[[int], None],
    ) -> Run:
        """Run one method on the sites."""
        sites = cast("RemoteClients", clients)  # which `load` gave
        run, start = experiment.run, initial(experiment)
        method = as_method(experiment.build_method(entry))
        if start is not None:
            start_from(module, start)
        self.engine.prepare(
            module,
            sites,
            pair=f"{entry.label}-{seed}",
            resume=resume,
            fold=run.merge_validation,
            kernel=experiment.engine.kernel,
            keep=method.keeps_validation(clients.names),
            loss=run.loss,
        )
        settings = run_settings(experiment, resume=resume, callbacks=(progress,))
        return run_method(
            self.engine, method, run.rounds, seed, settings, filters=experiment.filters, checkpoint=checkpoint
        )


class Coordinator:
    """The server object of a job.

    Args:
        plan: hexadecimal JSON, since FLARE reads braces in texts as templates: `experiment` (tables), `run` (a name of its own),
            `resume`, `timeout` in seconds, `hash` of the plan's file, `where` and `command` for people.
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
        link = FlareLink(collab.clients)
        remote = Remote(link, plan["run"], timeout=plan["timeout"], plan=plan["hash"], watch=self._watch)
        outcome: dict[str, Any] = {"status": 1, "sentence": ENDED}
        try:
            experiment = Experiment.from_tables(plan["experiment"], plan["where"])
            run_experiment(
                experiment,
                folder,
                resume=plan["resume"] and folder.exists(),
                command=plan["command"],
                notify=self._notify,
                backend=Sites(remote),
            )
            outcome = {"status": 0, "sentence": ""}
        except CoterieError as error:
            outcome = {"status": 2 if isinstance(error, InputError) else 1, "sentence": str(error)}
        finally:
            remote.close()
            if folder.exists():
                shutil.copytree(folder, result / RESULT, dirs_exist_ok=True)
            write_atomically(result / OUTCOME, lambda p: p.write_text(json.dumps(outcome), encoding="utf-8"))
            self._progress["over"] = True
        self._told.wait(LINGER)

    def _tell(self) -> dict[str, Any]:
        told = dict(self._progress)
        if "over" in told:
            self._told.set()
        return told

    def _watch(self, status: Status) -> None:
        answered = set(self._progress.get("waiting", ())) - set(status.waiting) - set(status.gone)
        self._last.update({name: (self._progress["task"], time.time()) for name in answered})
        about = {"ask": status.ask, "task": status.task, "waiting": list(status.waiting), "gone": list(status.gone)}
        self._progress.update(about, last={name: list(last) for name, last in self._last.items()})

    def _notify(self, event: Event) -> None:
        self._progress["event"] = list(event)
