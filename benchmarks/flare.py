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

from benchmarks.engine_work import ARGUMENTS, Sized, Work, echo, methods
from coterie.config.registry import MODELS
from coterie.config.run import RunSettings
from coterie.contract.federation import Federation
from coterie.data.sets.heart_disease import OPTIONS, export
from coterie.models import build_model
from coterie.run.experiment import Experiment
from coterie.run.loop import run_method
from coterie.sites.approval import approve, plan_hash
from coterie.sites.flare.client import FlareLink, SiteClient
from coterie.sites.flare.kits import CLASSES
from coterie.sites.plan import read_plan
from coterie.sites.server import Remote

ROOT = Path(__file__).resolve().parent.parent
ALSO_AT_SITES = """
import sys
if any("coterie.sites.child" in word or "nvflare" in word for word in sys.orig_argv):
    from benchmarks import engine_work
    from coterie.config.registry import MODELS
    from coterie.contract.requests import asks
    from coterie.contract.task import find_task
    from coterie.sites.allowed import Allowed
    MODELS["flat"] = engine_work.Sized
    Allowed.check = lambda self, task, payload, limits, **where: asks(find_task(task), models=10**6)
"""
"""No code travels to sites, and no plan asks the benchmark's own task: its sites find task and model on their path and allow both."""


class Measurer:
    """The server object of a job.

    Args:
        told: hexadecimal JSON: `folder` with the plan, `begun` (seconds since the epoch), and what to measure: `floats` of a model and
            how often it is sent (`repeats`), or `rounds` of the methods of the plan.
    """

    def __init__(self, told: str) -> None:
        self.told = told

    @collab.main
    def run(self) -> None:
        """Measure, and write `found.json` into the folder."""
        told = json.loads(bytes.fromhex(self.told))
        folder = Path(told["folder"])
        torch.set_num_threads(1)
        MODELS["flat"] = Sized
        plan = read_plan(folder / "plan.toml")
        engine = Remote(
            FlareLink(collab.clients),
            "benchmark",
            timeout=300.0,
            plan=plan_hash(folder / "plan.toml"),
        )
        clients = engine.open(plan.experiment.data, 0)
        found: dict[str, Any] = {"start": time.time() - told["begun"]}
        model = build_model(plan.experiment.build_model(), clients, 0)
        if "floats" in told:
            engine.prepare(model, clients, pair="fedavg-0")
            found["asks"] = list(_asks(engine, told["floats"], told["repeats"]))
        else:
            found["rounds"] = _rounds(
                engine, clients, model, plan.experiment, told["rounds"]
            )
        engine.close()
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


def _asks(engine: Remote, floats: int, repeats: int) -> Iterator[float]:
    """Seconds of an ask to one client and to four."""
    x = torch.zeros(floats)
    for asked in (engine.clients[:1], engine.clients):
        seconds = []
        for _ in range(repeats + 1):
            federation = Federation(engine, engine.clients)
            federation.ask(asked, echo, x=x)
            seconds.append(federation.session.asks[0].seconds)
        yield statistics.median(seconds[1:])


def _rounds(
    engine: Remote, clients: Any, model: Any, experiment: Experiment, rounds: int
) -> dict[str, float]:
    """Seconds of a round of each method of the plan."""
    seconds = {}
    for entry in experiment.methods:
        engine.prepare(model, clients, pair=f"{entry.label}-0")
        method = experiment.build_method(entry)
        run = run_method(
            engine, method, rounds, 0, RunSettings(evaluate=rounds, metrics=())
        )
        seconds[entry.label] = statistics.median(s[1] for s in run.seconds[1:-1])
    return seconds


def measure(work: Work) -> dict[str, Any]:
    """Seconds of asks, in the order of the tables, seconds of rounds by method, and seconds until the first answers."""
    MODELS["flat"] = Sized
    sizes = [
        _job(
            {"floats": floats, "repeats": repeats},
            {"name": "flat", "size": floats},
            [{"name": "fedavg"}],
        )
        for floats, repeats in work.floats.items()
    ]
    asked = [
        {"name": name, **ARGUMENTS.get(name, {})}
        for name, method in methods(work)
        if not method.pooled
    ]
    rounds = _job({"rounds": work.rounds}, {"name": "mlp"}, asked)
    asks = [seconds for found in sizes for seconds in found["asks"]]
    return {"start": sizes[0]["start"], "asks": asks, "rounds": rounds["rounds"]}


def _job(
    what: Mapping[str, Any],
    model: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """What a job with this model and these methods has found."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        export(folder / "hospitals", server_rows=90)
        (folder / "path").mkdir()
        (folder / "path" / "sitecustomize.py").write_text(ALSO_AT_SITES)
        server = Measurer(
            json.dumps({**what, "folder": temporary, "begun": time.time()})
            .encode()
            .hex()
        )
        files = {path.stem: path for path in (folder / "hospitals").iterdir()}
        plan = _plan(folder, sorted(files), model, entries)
        simulate(server, SiteClient(), files, folder, plan, [folder / "path", ROOT])
        found: dict[str, Any] = json.loads(
            (folder / "found.json").read_text(encoding="utf-8")
        )
    return found


def _plan(
    folder: Path,
    sites: Sequence[str],
    model: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
) -> Path:
    """A plan of many requests, for a budget that no measurement reaches."""
    tables = {
        "data": {
            "folder": str(folder / "hospitals"),
            **OPTIONS,
            "server_file": str(folder / "server.csv"),
        },
        "model": model,
        "local": {"lr": 0.05, "steps": 10, "batch_size": 16},
        "methods": entries,
        "run": {"rounds": 10_000, "seeds": 1},
        "deploy": {"sites": sites},
    }
    path = folder / "plan.toml"
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return path


def simulate(
    server: Any,
    client: Any,
    files: Mapping[str, Path],
    folder: Path,
    plan: Path,
    path: Sequence[Path] = (),
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
        lines = [
            "[site]",
            f"data = {json.dumps(str(file))}",
            f"log = {json.dumps(str(folder / f'{name}.jsonl'))}",
        ]
        lines += [f"minimum_{what} = 1" for what in ("rows", "cell", "batch")]
        lines += ["largest_layer = 1000"]  # the benchmark's own rows are public
        (local / f"{name}.coterie.toml").write_text("\n".join([*lines, ""]))
        approve(plan, local / f"{name}.coterie.toml")
    ours = [f"{type(o).__module__}.{type(o).__qualname__}" for o in (server, client)]
    allowed = {"format_version": 2, "class_allow_list": sorted({*CLASSES, *ours})}
    (local / "resources.json.default").write_text(json.dumps(allowed))
    recipe = CollabRecipe("sim", server=server, client=client, min_clients=len(files))
    with _on_path(path), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # FLARE takes a long hexadecimal text for a secret
        recipe.execute(SimEnv(clients=sorted(files), workspace_root=str(folder)))
    return folder / "sim"


@contextmanager
def _on_path(path: Sequence[Path]) -> Iterator[None]:
    """Processes that are started meanwhile import from `path` first."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*map(str, path), *([before] if before else [])]
    )
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
