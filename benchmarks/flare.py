"""What asks and rounds cost on NVIDIA FLARE: the job, and the server's half of it."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
import torch
from nvflare.collab import CollabRecipe, collab
from nvflare.recipe import SimEnv

from benchmarks.engine_work import Sized, Work, echo, methods
from coterie.core.federation import Federation
from coterie.data.sets.heart_disease import OPTIONS, export
from coterie.models import MLP, build_model
from coterie.run.loop import run_method
from coterie.run.settings import RunSettings
from coterie.sites.approval import approve, plan_hash
from coterie.sites.flare.client import FlareLink, SiteClient
from coterie.sites.flare.kits import CLASSES
from coterie.sites.server import Remote

__all__ = ["Measurer", "measure", "simulate"]

ROOT = Path(__file__).resolve().parent.parent
ALSO_AT_SITES = """
import sys
        engine.prepare(build_model(MLP(), clients, 0), clients, pair=f"{name}-0")
"""
"""No code travels to sites, and no plan asks the benchmark's own task: its sites find task and model on their path and allow both."""


class Measurer:
    """The server object.

    Args:
        plan: hexadecimal JSON: `folder` with the hospitals' files, `begun` (seconds since the epoch), and the fields of `Work`.
    """

    def __init__(self, plan: str) -> None:
        self.plan = plan

    @collab.main
    def run(self) -> None:
        """Measure, and write `found.json` into the folder."""
        plan = json.loads(bytes.fromhex(self.plan))
        folder, begun = Path(plan.pop("folder")), plan.pop("begun")
        work = Work(
            **{**plan, "floats": {int(k): v for k, v in plan["floats"].items()}, "methods": tuple(plan["methods"])}
        )
        torch.set_num_threads(1)
        engine = Remote(FlareLink(collab.clients), "benchmark", timeout=300.0, plan=plan_hash(folder / "plan.toml"))
        options = {"folder": str(folder / "hospitals"), **OPTIONS, "server_file": str(folder / "server.csv")}
        clients = engine.open(options, 0)
        start = time.time() - begun
        found = {"start": start, "asks": list(_asks(engine, clients, work)), "rounds": _rounds(engine, clients, work)}
        engine.close()
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


def _asks(engine: Remote, clients: Any, work: Work) -> Iterator[float]:
    """Seconds of an ask to one client and to four, for each size."""
    for floats, repeats in work.floats.items():
        spec = Sized(floats)
        engine.prepare(build_model(spec, clients, 0), clients, pair=f"asks-{floats}")
        x = torch.zeros(floats)
        for asked in (engine.clients[:1], engine.clients):
            seconds = []
            for _ in range(repeats + 1):
                federation = Federation(engine, engine.clients)
                federation.ask(asked, echo, x=x)
                seconds.append(federation.session.asks[0].seconds)
            yield statistics.median(seconds[1:])


def _rounds(engine: Remote, clients: Any, work: Work) -> dict[str, float]:
    """Seconds of a round of each method that needs no pooled rows."""
    found = {}
    for name, method in methods(work):
        if method.pooled:
            continue
        engine.prepare(build_model(MLP(), clients, 0), clients, pair=f"{name}-0")
        run = run_method(engine, method, work.rounds, 0, RunSettings(evaluate=work.rounds, metrics=()))
        found[name] = statistics.median(s[1] for s in run.seconds[1:-1])
    return found


def measure(work: Work) -> dict[str, Any]:
    """Seconds of asks, in the order of the tables, seconds of rounds by method, and seconds until the first answers."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        export(folder / "hospitals", server_rows=90)
        (folder / "path").mkdir()
        (folder / "path" / "sitecustomize.py").write_text(ALSO_AT_SITES)
        plan = {**work._asdict(), "folder": temporary, "begun": time.time()}
        server = Measurer(json.dumps(plan).encode().hex())
        files = {path.stem: path for path in (folder / "hospitals").iterdir()}
        simulate(server, SiteClient(), files, folder, _plan(folder, sorted(files)), [folder / "path", ROOT])
        found: dict[str, Any] = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return found


def _plan(folder: Path, sites: Sequence[str]) -> Path:
    """A plan of many requests, for a budget that no measurement reaches."""
    tables = {
        "data": {"folder": str(folder / "hospitals"), **OPTIONS, "server_file": str(folder / "server.csv")},
        "methods": [{"name": "fedavg"}],
        "run": {"rounds": 10_000, "seeds": 1},
        "deploy": {"sites": sites},
    }
    path = folder / "plan.toml"
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return path


def simulate(
    server: Any, client: Any, files: Mapping[str, Path], folder: Path, plan: Path, path: Sequence[Path] = ()
) -> Path:
    """Run a job in FLARE's simulator.

    Args:
        server: the server object.
        client: the client object of every site.
        files: data file of each site, by name.
        folder: for the simulator's own.
        plan: that every site has approved. Their minima are 1, since what they give is compared with one process.
        path: folders on whose path its processes find these classes.

    Returns:
        The simulator's folder.
    """
    local = folder / "sim" / "local"
    local.mkdir(parents=True)
    for name, file in files.items():
        lines = ["[site]", f"data = {json.dumps(str(file))}", f"log = {json.dumps(str(folder / f'{name}.jsonl'))}"]
        lines += [f"minimum_{what} = 1" for what in ("rows", "cell", "batch")]
        (local / f"{name}.coterie.toml").write_text("\n".join([*lines, ""]))
        approve(plan, local / f"{name}.coterie.toml")
    ours = [f"{type(o).__module__}.{type(o).__qualname__}" for o in (server, client)]
    allowed = {"format_version": 2, "class_allow_list": sorted({*CLASSES, *ours})}
    (local / "resources.json.default").write_text(json.dumps(allowed))
    recipe = CollabRecipe("sim", server=server, client=client, min_clients=len(files))
    with _on_path(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FLARE takes a long hexadecimal text for a secret
        recipe.execute(SimEnv(clients=sorted(files), workspace_root=str(folder)))
    return folder / "sim"


@contextmanager
def _on_path(path: Sequence[Path]) -> Iterator[None]:
    """Processes that are started meanwhile import from `path` first."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, path), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
