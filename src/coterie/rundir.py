"""Run directories: run every method and seed of an experiment, save as it goes, and write the files that people and reports read."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.clients import Clients
from coterie.core.errors import InputError, RunError, require
from coterie.core.state import write_atomically
from coterie.experiment import Experiment, MethodEntry, load_object, write_experiment
from coterie.metrics import find_metrics, register
from coterie.models import build_model, outputs_of
from coterie.runner import Run, fit

__all__ = ["Event", "choose_folder", "load_model_file", "run_experiment", "write_tables"]

CHECKPOINTS = "checkpoint"


class Event(NamedTuple):
    """Where an experiment stands: round `round` of `rounds` of one pair; `done` pairs of `pairs` before it."""

    label: str
    seed: int
    round: int
    rounds: int
    done: int
    pairs: int
    seconds_left: float | None
    finished: bool


def choose_folder(experiment: Experiment, resume: bool) -> Path:
    """The run directory: `run.out`, or runs/NAME with a number behind it if that is taken.

    Raises `InputError` if a named folder holds a run and `resume` is not asked for.
    """
    if experiment.run.out is not None:
        folder = Path(experiment.run.out)
        require(
            resume or not (folder / "experiment.toml").exists(),
            f"{folder} already holds a run; go on with --resume, or choose another --out",
        )
        require(not folder.exists() or folder.is_dir(), f"{folder} is a file; choose another --out")
        return folder
    plain = Path("runs") / experiment.title
    if resume:
        return plain
    number, folder = 2, plain
    while folder.exists():
        folder, number = plain.with_name(f"{plain.name}-{number}"), number + 1
    return folder


@dataclass
class _Pair:
    """One method with one seed."""

    entry: MethodEntry
    seed: int
    folder: Path

    @property
    def done(self) -> Path:
        return self.folder / "done.json"


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    command: str = "",
    notify: Callable[[Event], None] | None = None,
) -> None:
    """Run every method and seed, and write the run directory.

    Bad input is found before any training. What is complete is never done again with `resume`.

    Raises:
        InputError: bad settings or data, or a run directory of another experiment.
        RunError: a run that cannot go on; what was saved stays.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    add_metrics(experiment)
    first = experiment.load_data(experiment.run.seeds[0])
    check_everything(experiment, first)
    if not resume:
        require(not (folder / "experiment.toml").exists(), f"{folder} already holds a run; go on with --resume")
    folder.mkdir(parents=True, exist_ok=True)
    write_experiment(folder / "experiment.toml", experiment)
    write_json(folder / "notes.json", list(first.notes))
    pairs = [
        _Pair(entry, seed, folder / CHECKPOINTS / f"{entry.label}-{seed}")
        for seed in experiment.run.seeds
        for entry in experiment.methods
    ]
    clock = _Clock(pairs, experiment.run.rounds, notify)
    recipes: dict[str, Any] = {}
    try:
        for seed in experiment.run.seeds:
            clients = first if seed == experiment.run.seeds[0] else experiment.load_data(seed)
            if clients.recipe is not None:
                recipes[str(seed)] = clients.recipe
                write_json(folder / "preprocess.json", recipes)
            for pair in (p for p in pairs if p.seed == seed):
                _run_pair(experiment, pair, clients, folder, clock, resume)
    finally:
        write_tables(folder, experiment)
        write_json(folder / "environment.json", environment(command, started))


def check_everything(experiment: Experiment, clients: Clients) -> None:
    """Find before any training what a run would stumble over: unknown targets, participants, devices, shapes, labels."""
    run = experiment.run
    most = len(clients)
    require(
        run.clients_per_round is None or run.clients_per_round <= most,
        f"run.clients_per_round is {run.clients_per_round}, but there are {most} clients",
    )
    if run.device != "cpu":
        available = run.device.startswith("cuda") and torch.cuda.is_available()
        require(available, f"run.device is {run.device!r}, which this machine does not have; use cpu")
    find_metrics(",".join(metric_names(experiment)))
    for entry in experiment.methods:
        method = experiment.build_method(entry)
        if hasattr(method, "check"):
            method.check(clients.names)
    module = build_model(experiment.build_model(), clients, 0)
    from coterie.core.workspace import Workspace

    freeze(module, experiment)
    init = initial(experiment)
    if init is not None:
        from coterie.runner import start_from

        start_from(module, init)
    Workspace(module, "auto", clients[0])


def _run_pair(experiment: Experiment, pair: _Pair, clients: Clients, folder: Path, clock: _Clock, resume: bool) -> None:
    mark = _mark(experiment, pair, clients)
    if resume and pair.done.exists():
        saved = json.loads(pair.done.read_text())
        require(
            saved["mark"] == mark,
            f"{pair.done} was written with other data or settings; resume with the same ones, or choose another --out",
        )
        clock.skip(pair)
        return
    module = build_model(experiment.build_model(), clients, pair.seed)
    freeze(module, experiment)
    run = experiment.run
    clock.start(pair)
    try:
        result = fit(
            experiment.build_method(pair.entry),
            clients,
            module,
            run.rounds,
            pair.seed,
            clients_per_round=run.clients_per_round,
            evaluate=run.evaluate,
            metrics=metric_names(experiment),
            workers=run.workers,
            kernel=run.kernel,
            device=run.device,
            checkpoint=pair.folder,
            resume=resume,
            fold_validation=run.fold_validation,
            init=initial(experiment),
            progress=clock.round,
        )
    except RunError as error:
        raise RunError(f"{pair.entry.label}, seed {pair.seed}: {error}") from error
    _save_models(folder, pair, result, clients)
    head = {"method": pair.entry.label, "algorithm": pair.entry.name}
    rows = [{**head, **row} for row in result.summary]
    write_json(pair.done, {"mark": mark, "summary": rows, "failures": result.failures})
    clock.finish(pair)


def _mark(experiment: Experiment, pair: _Pair, clients: Clients) -> str:
    settings = experiment.tables()
    settings["methods"] = [m for m in settings["methods"] if m["label"] == pair.entry.label]
    settings["run"] = {k: v for k, v in settings["run"].items() if k not in ("seeds", "out", "workers")}
    settings.pop("tune", None)
    text = json.dumps(settings, sort_keys=True, default=str) + clients.fingerprint()
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _save_models(folder: Path, pair: _Pair, run: Run, clients: Clients) -> None:
    from safetensors.torch import save_file

    meta = {"method": pair.entry.label, "seed": str(pair.seed), "rounds": str(run.rounds), "data": clients.name}
    for client in run.models:
        name = f"{pair.entry.label}-{pair.seed}" + ("" if client == "*" else f"-{client}")
        tensors = {k: v.clone() for k, v in run.state_dict(client).items()}
        path = folder / "models" / f"{safe_name(name)}.safetensors"
        write_atomically(path, lambda p, t=tensors: save_file(t, p, metadata=meta))  # type: ignore[misc]
    inputs = clients.train.inputs
    shape = {k: list(v.shape[1:]) for k, v in inputs.items()} if isinstance(inputs, dict) else list(inputs.shape[1:])
    about = {
        "shape": shape,
        "outputs": outputs_of(clients),
        "classes": list(clients.classes),
        "clients": list(clients.names),
    }
    write_json(folder / "models" / "model.json", about)


def safe_name(name: str) -> str:
    """`name` as part of a file name."""
    return "".join(c if c.isalnum() or c in "-_. " else "_" for c in name)


def load_model_file(path: Path) -> dict[str, Tensor]:
    """The state dict of a safetensors file. Raises `InputError` if it is missing or none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is no safetensors file that can be read ({error})") from error


def initial(experiment: Experiment) -> dict[str, Tensor] | None:
    """The state dict that `model.init` names."""
    path = experiment.model.get("init")
    return None if path is None else load_model_file(Path(path))


def freeze(module: torch.nn.Module, experiment: Experiment) -> None:
    """Let the parameters that `model.freeze` names (patterns such as "0.*") stay as they are."""
    from fnmatch import fnmatchcase

    patterns = experiment.model.get("freeze", [])
    names = [n for n, _ in module.named_parameters()]
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        hit = [n for n in names if fnmatchcase(n, pattern)]
        require(
            bool(hit),
            f"{experiment.where}, [model]: freeze = {pattern!r} fits no parameter; there are {', '.join(names)}",
        )
        for name, parameter in module.named_parameters():
            if name in hit:
                parameter.requires_grad_(False)


def metric_names(experiment: Experiment) -> tuple[str, ...]:
    """Names of the metrics, those of the user's own without their file."""
    return tuple(m.rpartition(":")[2] for m in experiment.run.metrics)


def add_metrics(experiment: Experiment) -> None:
    """Register the metrics that come from files of the user."""
    for metric in experiment.run.metrics:
        if ".py:" in metric:
            register(metric.rpartition(":")[2], load_object(metric))
        else:
            find_metrics(metric)


# ---- files that people read


def write_tables(folder: Path, experiment: Experiment) -> None:
    """Write summary.json, history.csv, weights.csv and timing.csv from the pairs that are complete."""
    summary: list[dict[str, Any]] = []
    history: list[list[Any]] = []
    weights: list[list[Any]] = []
    timing: list[list[Any]] = []
    for entry in experiment.methods:
        for seed in experiment.run.seeds:
            pair = _Pair(entry, seed, folder / CHECKPOINTS / f"{entry.label}-{seed}")
            if not pair.done.exists():
                continue
            summary += json.loads(pair.done.read_text())["summary"]
            head = [entry.label, seed]
            for line in map(json.loads, (pair.folder / "history.jsonl").read_text().splitlines()):
                history += [[*head, *row] for row in line["history"]]
                weights += [[*head, *row] for row in line["weights"]]
                timing += [[*head, *row] for row in line["seconds"]]
    write_json(folder / "summary.json", summary)
    write_csv(folder / "history.csv", ("method", "seed", "round", "client", "split", "metric", "value"), history)
    write_csv(folder / "weights.csv", ("method", "seed", "round", "target", "client", "weight"), weights)
    write_csv(folder / "timing.csv", ("method", "seed", "round", "seconds"), timing)


def write_json(path: Path, value: Any) -> None:
    """Write JSON under a temporary name and rename it; NaN is an error, since JSON has none."""
    text = json.dumps(value, indent=1, allow_nan=False)
    write_atomically(path, lambda p: p.write_text(text + "\n"))


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV under a temporary name and rename it."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, lambda p: p.write_text(buffer.getvalue()))


def environment(command: str, started: str) -> dict[str, Any]:
    """Versions and machine, for whoever repeats the run."""
    import importlib.metadata

    from coterie import __version__

    versions = {"coterie": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "scipy", "safetensors", "pandas", "scikit-learn"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    machine = {"system": platform.platform(), "processor": platform.machine()}
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "command": command or " ".join(sys.argv),
        "versions": versions,
        "machine": machine,
        "started": started,
        "finished": finished,
    }


class _Clock:
    """Tells how far an experiment is and, from what rounds of each method took, about how long it still needs."""

    def __init__(self, pairs: list[_Pair], rounds: int, notify: Callable[[Event], None] | None) -> None:
        self.pairs, self.rounds, self.notify = pairs, rounds, notify
        self.seconds: dict[str, list[float]] = {}
        self.done = 0
        self.left = list(pairs)
        self.pair = pairs[0]
        self.begun = self.first = 0.0
        self.first_round = 0

    def start(self, pair: _Pair) -> None:
        self.pair, self.begun, self.first_round = pair, time.perf_counter(), -1

    def skip(self, pair: _Pair) -> None:
        self.left.remove(pair)
        self.done += 1
        self._tell(pair, self.rounds, True)

    def round(self, number: int) -> None:
        if self.first_round < 0:
            self.first_round, self.first = number, time.perf_counter()
        self._tell(self.pair, number, False)

    def finish(self, pair: _Pair) -> None:
        self.seconds.setdefault(pair.entry.label, []).append(time.perf_counter() - self.begun)
        self.left.remove(pair)
        self.done += 1
        self._tell(pair, self.rounds, True)

    def _tell(self, pair: _Pair, number: int, finished: bool) -> None:
        if self.notify is not None:
            self.notify(
                Event(
                    pair.entry.label,
                    pair.seed,
                    number,
                    self.rounds,
                    self.done,
                    len(self.pairs),
                    self._left(number, finished),
                    finished,
                )
            )

    def _left(self, number: int, finished: bool) -> float | None:
        known: Mapping[str, float] = {k: sum(v) / len(v) for k, v in self.seconds.items()}
        here = 0.0
        if not finished:
            ran = number - self.first_round
            if ran:
                per_round = (time.perf_counter() - self.first) / ran
                known = {self.pair.entry.label: per_round * self.rounds, **known}
                here = per_round * (self.rounds - number)
        if not known:
            return None
        usual = sum(known.values()) / len(known)
        waiting = [p for p in self.left if finished or p is not self.pair]
        return here + sum(known.get(p.entry.label, usual) for p in waiting)
