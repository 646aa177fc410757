"""Sites of wards in one process, which speak as over a wire: for tests of labels that hospitals have."""

from __future__ import annotations

import threading
from pathlib import Path

import tomli_w

import coterie.algorithms
import coterie.compute.metrics  # noqa: F401 - both register their tasks
from coterie.contract.encoding import decode, encode
from coterie.contract.wire import Ask, Context
from coterie.sites.approval import approve
from coterie.sites.backend import Sites
from coterie.sites.child import serve_message
from coterie.sites.rows import SiteRows
from coterie.sites.secret_noise import key_file
from coterie.sites.server import Remote
from coterie.sites.settings import read_settings
from coterie.study.sweep import run_experiment
from wards import ward

WARDS = ("east", "north", "south")
OUTCOMES = {"falls", "bed_days", "enrolled", "months", "died"}
SURVIVAL = {"time": "months", "event": "died"}
COUNTS = {"label": "falls", "exposure": "bed_days"}
LOCAL = {"lr": 0.05, "steps": 3, "batch_size": 32, "minimum_batch": 8}
METHODS = [
    {"name": "local"},
    {"name": "fedavg"},
    {"name": "fixed-effects"},
    {"name": "partial", "passes": 1},
]


class Wards:
    """A link to sites of wards that have approved one plan; `minimum` rows may be spoken of."""

    def __init__(
        self, folder, data=SURVIVAL, minimum=1, frames=None, settings=None, **plan
    ):
        self.names, self.sites = WARDS, {}
        self.lock = threading.Lock()
        (folder / "files").mkdir(parents=True)
        if frames is None:
            frames = {name: ward(number) for number, name in enumerate(WARDS)}
        columns = set(frames["east"].columns)
        used = {value for value in data.values() if isinstance(value, str)}
        left = {*data.get("drop", ()), *(OUTCOMES & columns) - used}
        tables = {
            "data": {"folder": str(folder / "files"), **data, "drop": sorted(left)},
            "model": {"name": "logistic"},
            "local": LOCAL,
            "methods": METHODS,
            "run": {"rounds": 3, "seeds": 1, "rivals": ["linear"]},
            "deploy": {"sites": list(WARDS)},
            **plan,
        }
        minima = {"minimum_rows": 20, "minimum_cell": minimum, "minimum_batch": 1}
        minima |= settings or {}
        for name in WARDS:
            file = folder / "files" / f"{name}.csv"
            frames[name].to_csv(file, index=False)
            own = folder / name
            own.mkdir()
            self.plan_file = own / "plan.toml"
            self.plan_file.write_text(tomli_w.dumps(tables))
            values = {"data": str(file), **minima, "largest_layer": 100}
            (own / "coterie.toml").write_text(tomli_w.dumps({"site": values}))
            approved = approve(self.plan_file, own / "coterie.toml", unsigned=True)
            settings = read_settings(own / "coterie.toml")
            key_file(Path(settings.log)).write_bytes(b"0" * 32)
            self.sites[name] = SiteRows(name, settings, own / "kept", approved)
        self.kept = [folder / name / "kept" for name in WARDS]
        self.approved = approved
        self.serial = 0

    def call(self, name, message, timeout):
        # A model is traced when it is prepared, one at a time in a process; real sites have one each.
        with self.lock:
            return serve_message(message, self.sites[name])[0]

    def ping(self, name, timeout):
        return True

    def remote(self):
        return Remote(self, "run", plan=self.approved.hash)

    def run(self, folder):
        """The plan at the sites, and in one process."""
        run_experiment(self.approved.plan.experiment, folder / "here")
        self.submit(folder / "there")
        return folder / "here", folder / "there"

    def submit(self, folder):
        """The plan at the sites."""
        experiment = self.approved.plan.experiment
        run_experiment(experiment, folder, backend=Sites(self.remote()))

    def say(self, do, name="east", **values):
        """One message over the wire, and what the site answers; its refusal is raised."""
        self.serial += 1
        message = {
            "do": do,
            "plan": self.approved.hash,
            "run": "run",
            "serial": self.serial,
            "undo": None,
            **values,
        }
        return decode(encode(self.sites[name].answer(decode(encode(message)))))

    def ask(self, task, name="east", **payload):
        context = Context(0, 0, 1, self.serial + 1)
        answer = self.say("task", name, ask=Ask((name,), task.name, payload, context))
        return answer["answer"].blocks[0].values
