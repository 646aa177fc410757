"""Run every method and seed of an experiment, save as it goes, and write the files that people and reports read."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.attacks import choose_attackers
from coterie.core.errors import InputError, RunError, plain, require
from coterie.core.method import as_method
from coterie.core.metrics import find_metrics, register
from coterie.core.modules import load_object
from coterie.core.reading import read_json
from coterie.core.rows import Clients
from coterie.models import build_model
from coterie.run.collect import seal_tables, write_tables
from coterie.run.experiment import Experiment, MethodEntry
from coterie.run.files import (
    FILES,
    METRICS,
    PAIRED,
    SUMMARY,
    WRITER,
    YARDSTICKS,
    hash_of,
    own_files,
    require_readable,
    safe_name,
    write_json,
)
from coterie.run.finetune import tunable
from coterie.run.fit import fit, one_thread, personalise
from coterie.run.folder import Pair, is_run, opened, refuse_others
from coterie.run.history import Run
from coterie.run.jobs import Jobs
from coterie.run.models import load_model_file, save_models
from coterie.run.outcomes import write_outcomes
from coterie.run.seals import TABLES, hashes, write_sealed
from coterie.run.settings import RunSettings
from coterie.run.status import Event, Status
from coterie.run.tables import read_saved, write_experiment
from coterie.run.yardstick import check_yardstick, entries_of, measured

__all__ = ["Backend", "run_experiment"]

FREE = frozenset({"seeds", "out", "jobs", "yardstick"})
"""Keys of [run] on which no number depends, so that they may differ when a run is resumed."""


class Backend(Protocol):
    """Where an experiment runs: who has the rows, and which engine trains on them."""

    def load(self, experiment: Experiment, seed: int) -> Clients:
        """The clients of one seed; rows of zeros stand for rows that are elsewhere."""
        ...

    def fit(
        self,
        experiment: Experiment,
        entry: MethodEntry,
        clients: Clients,
        module: torch.nn.Module,
        seed: int,
        *,
        checkpoint: Path,
        resume: bool,
        progress: Callable[[int], None],
    ) -> Run:
        """Run one method on the clients that `load` gave last."""
        ...

    def paired_errors(self, experiment: Experiment) -> list[dict[str, Any]]:
        """Of a finished run, rows of `paired.json`; none where the rows are here, and `outcomes/` says more."""
        ...


class _Here:
    """This machine."""

    def load(self, experiment: Experiment, seed: int) -> Clients:
        return experiment.load_data(seed)

    def fit(
        self,
        experiment: Experiment,
        entry: MethodEntry,
        clients: Clients,
        module: torch.nn.Module,
        seed: int,
        *,
        checkpoint: Path,
        resume: bool,
        progress: Callable[[int], None],
    ) -> Run:
        run = experiment.run
        return fit(
            experiment.build_method(entry),
            clients,
            module,
            run.rounds,
            seed,
            engine=experiment.engine,
            attack=experiment.attack,
            filters=experiment.filters,
            init=initial(experiment),
            checkpoint=checkpoint,
            settings=run_settings(
                experiment,
                resume=resume,
                callbacks=(*experiment.callbacks, *run.callbacks, progress),
                label=entry.label,
                merge_validation=run.merge_validation and entry.personalise is None,
            ),
        )

    def paired_errors(self, experiment: Experiment) -> list[dict[str, Any]]:
        return []


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    command: str = "",
    notify: Callable[[Event], None] | None = None,
    backend: Backend | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Run every method and seed, and write the run directory; on this machine, or where `backend` says.

    Bad input is found before any training. With `resume` what is complete is not done again; what was damaged since is made again
    from the checkpoint, and `say` is told.

    Raises:
        InputError: bad settings or data, or a run directory of another experiment.
        RunError: a run that cannot go on; what was saved stays.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    add_metrics(experiment)
    seeds = experiment.run.seeds
    require(
        backend is None
        or not (
            experiment.attack
            or experiment.callbacks
            or experiment.run.appeal
            or experiment.run.yardstick
            or any(m.personalise for m in experiment.methods)
        ),
        f"{experiment.where}: [attack], [[callbacks]], run.appeal, run.yardstick and personalise work where all rows are on this "
        "machine; leave them out of a plan for sites",
    )
    jobs = experiment.run.jobs
    require(
        jobs == 1 or (backend is None and experiment.engine.forks),
        f"{experiment.where}: run.jobs = {jobs} needs the engine inprocess on the CPU; leave it out",
    )
    where = backend or _Here()
    first = where.load(experiment, seeds[0])
    check_everything(experiment, first)
    check_yardstick(experiment, first)
    refuse_others(folder, resume)
    if is_run(folder):
        require_readable(folder)
        _refuse_other_settings(experiment, folder, first)
    entries = (*experiment.methods, *entries_of(experiment))
    pairs = [Pair(entry, seed, folder) for seed in seeds for entry in entries]
    for pair in pairs if resume else ():
        pair.refuse_lost_history()
    other = _said_of_other_machine(folder) if resume else ""
    if other and say:
        say(other)
    status = Status([p.key for p in pairs], experiment.run.rounds, notify, jobs)
    recipes: dict[str, Any] = {}
    with experiment.engine.kept_open(), opened(folder):
        (folder / TABLES).unlink(missing_ok=True)
        write_json(folder / "format.json", WRITER)
        write_experiment(folder / "experiment.toml", experiment)
        own = own_files(experiment.tables())
        if own:
            write_json(folder / FILES, {path: hash_of(Path(path)) for path in own})
        write_json(folder / "notes.json", [*first.notes, *experiment.notes])
        try:
            with Jobs(jobs) as running, one_thread():
                for seed in seeds:
                    clients = first if seed == seeds[0] else where.load(experiment, seed)
                    if clients.recipe is not None:
                        recipes[str(seed)] = clients.recipe
                        write_json(folder / "preprocess.json", recipes)
                    for pair in (p for p in pairs if p.seed == seed):
                        if resume and _is_whole(pair, say):
                            _refuse_other_data(experiment, pair, clients)
                            status.skip(*pair.key)
                        else:
                            work = functools.partial(_run_pair, experiment, pair, clients, resume, where)
                            running.run(work, functools.partial(status.of, *pair.key))
        finally:
            write_tables(folder, entries, seeds)
            write_json(folder / "environment.json", environment(command, started))
        paired = where.paired_errors(experiment)
        if paired:
            write_json(folder / PAIRED, paired)
        seal_tables(folder)


def _is_whole(pair: Pair, say: Callable[[str], None] | None) -> bool:
    """Whether a pair is complete and all of its files are as it left them; what is not is told."""
    if not pair.done.exists():
        return False
    damage = pair.damage()
    for name, what in damage.items():
        if say is not None:
            say(f"{name} {what}: it is made again from the checkpoint of {pair.entry.label}, seed {pair.seed}")
    return not damage


def _refuse_other_settings(experiment: Experiment, folder: Path, first: Clients) -> None:
    """Before anything is written: what was saved must be of the same data and settings. Methods and seeds may be added."""
    saved = read_saved(folder, experiment)
    old, new = saved.tables(), experiment.tables()
    cure = "resume with the same settings, or choose another --out"
    old["engine"], new["engine"] = saved.engine.results(), experiment.engine.results()
    old["callbacks"], new["callbacks"] = {"deciding": saved.deciding()}, {"deciding": experiment.deciding()}
    for table in ("data", "split", "model", "engine", "attack", "callbacks", "run"):
        was, now = old.get(table, {}), new.get(table, {})
        for key in sorted({*was, *now} - FREE):
            require(
                was.get(key) == now.get(key),
                f"{folder} was made with {table}.{key} = {was.get(key)!r}, not {now.get(key)!r}; {cure}",
            )
    methods = {m["label"]: m for m in new["methods"]}
    for method in old["methods"]:
        label = method["label"]
        require(label in methods, f"{folder} has results of {label!r}, which is not among the methods now; {cure}")
        differ = sorted(k for k in {*method, *methods[label]} if method.get(k) != methods[label].get(k))
        require(not differ, f"{folder} was made with other settings of {label!r} ({', '.join(differ)}); {cure}")
    gone = sorted(set(saved.run.seeds) - set(experiment.run.seeds))
    require(not gone, f"{folder} has seed {gone[0] if gone else ''}, which is not among the seeds now; {cure}")
    for entry in experiment.methods:
        _refuse_other_data(experiment, Pair(entry, experiment.run.seeds[0], folder), first)


def _refuse_other_data(experiment: Experiment, pair: Pair, clients: Clients) -> None:
    saved = pair.saved()
    require(
        saved is None or saved["mark"] == _mark(experiment, pair, clients),
        f"{pair.done} was written with other data or files; resume with the same ones, or choose another --out",
    )


def check_everything(experiment: Experiment, clients: Clients) -> None:
    """Find before any training what a run would stumble over: unknown targets, participants, devices, shapes, labels."""
    run = experiment.run
    most = len(clients)
    require(
        run.clients_per_round is None or run.clients_per_round <= most,
        f"run.clients_per_round is {run.clients_per_round}, but there are {most} clients",
    )
    experiment.engine.check()
    for callback in experiment.callbacks:
        callback.check()  # what it imports is then shared by the processes of jobs
    find_metrics(",".join(metric_names(experiment)))
    for entry in experiment.methods:
        check_method(experiment, entry, clients)
    if experiment.attack is not None:
        choose_attackers(experiment.attack.on, clients.names, 0)
    module = build_model(experiment.build_model(), clients, 0)
    from coterie.core.workspace import Workspace

    freeze(module, experiment)
    init = initial(experiment)
    if init is not None:
        from coterie.run.fit import start_from

        start_from(module, init)
    workspace = Workspace(module, run.row_loss(clients), clients[0])
    for entry in experiment.methods:
        if entry.personalise is not None:
            tunable(workspace.layout, entry.personalise.part)
            require(
                clients.validation is not None,
                f"{entry.label} chooses on validation rows, and there are none; give split.parts a share for validation",
            )


def check_method(experiment: Experiment, entry: MethodEntry, clients: Clients) -> None:
    """Raise `InputError` if a method does not fit these clients, or needs rows at the server and there are none."""
    method = as_method(experiment.build_method(entry))
    method.check(clients.names)
    held = clients.server is not None or not method.needs_server_rows
    require(held, f"{entry.label} asks rows that the server holds, and {clients.name} has none; choose other rows")


def _run_pair(
    experiment: Experiment, pair: Pair, clients: Clients, resume: bool, where: Backend, progress: Callable[[int], None]
) -> None:
    if pair.entry.name in YARDSTICKS:
        pair.folder.mkdir(parents=True, exist_ok=True)
        pair.history.touch()
        rows = measured(experiment, pair.entry, clients, pair.seed)
        _seal_pair(experiment, pair, clients, [pair.history], {"summary": rows, "failures": {}, "history": []})
        return
    module = build_model(experiment.build_model(), clients, pair.seed)
    freeze(module, experiment)
    try:
        result = where.fit(
            experiment,
            pair.entry,
            clients,
            module,
            pair.seed,
            checkpoint=pair.folder,
            resume=resume,
            progress=progress,
        )
    except RunError as error:
        raise RunError(f"{pair.entry.label}, seed {pair.seed}: {error}") from error
    label, tuning = pair.entry.label, pair.entry.personalise
    if tuning is not None:
        settings = run_settings(experiment)
        result = personalise(result, clients, **vars(tuning), engine=experiment.engine, settings=settings)
    files = [pair.history, *save_models(pair.run / "models", label, result, clients)]
    if isinstance(where, _Here):
        outcomes = pair.run / "outcomes" / f"{safe_name(f'{label}-{pair.seed}')}.safetensors"
        write_outcomes(outcomes, label, result, clients, experiment.run.row_loss(clients))
        files.append(outcomes)
    rows = [{"method": label, "algorithm": pair.entry.name, **row} for row in result.summary]
    # What was measured before tuning is of other models.
    history = None if tuning is None else result.history
    _seal_pair(experiment, pair, clients, files, {"summary": rows, "failures": result.failures, "history": history})


def _seal_pair(
    experiment: Experiment, pair: Pair, clients: Clients, files: Iterable[Path], made: Mapping[str, Any]
) -> None:
    mark, written = _mark(experiment, pair, clients), hashes(pair.run, (f for f in files if f.exists()))
    write_sealed(pair.done, {"mark": mark, **made, "files": written})


def _mark(experiment: Experiment, pair: Pair, clients: Clients) -> str:
    settings = experiment.tables()
    settings["methods"] = [m for m in settings["methods"] if m["label"] == pair.entry.label]
    settings["run"] = {k: v for k, v in settings["run"].items() if k not in FREE}
    settings["engine"] = experiment.engine.results()
    settings["callbacks"] = experiment.deciding()
    for free in ("report", "tune"):
        settings.pop(free, None)
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=16)
    digest.update(clients.fingerprint().encode())
    for path in experiment.files(pair.entry):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def initial(experiment: Experiment) -> dict[str, Tensor] | None:
    """The state dict that `model.init` names."""
    path = experiment.model.get("init")
    return None if path is None else experiment.objects.get(path) or load_model_file(Path(path))


def freeze(module: torch.nn.Module, experiment: Experiment) -> None:
    """Let the parameters that `model.freeze` names (patterns such as "0.*") stay as they are."""
    from fnmatch import fnmatchcase

    names = [n for n, _ in module.named_parameters()]
    for pattern in experiment.model.get("freeze", []):
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


def run_settings(experiment: Experiment, **differing: Any) -> RunSettings:
    """The settings of each run of an experiment, but for those that differ."""
    return replace(experiment.run, **{"metrics": metric_names(experiment), **differing})


def add_metrics(experiment: Experiment) -> None:
    """Register the metrics that come from files of the user."""
    for metric in experiment.run.metrics:
        if ".py:" in metric:
            name = metric.rpartition(":")[2]
            found = load_object(metric)
            require(
                callable(found), f"{metric} is a {type(found).__name__}; a metric is a function (outputs, labels, kind)"
            )
            require(
                name not in (*SUMMARY, *METRICS),
                f"{metric} is called like a column of summary.json; give it another name",
            )
            register(name, found)
        else:
            find_metrics(metric)


def _arithmetic() -> dict[str, Any]:
    """What decides how numbers are rounded: the instruction set that torch uses, and threads."""
    return {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": 1,  # `one_thread`
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
        "MKL_NUM_THREADS": os.environ.get("MKL_NUM_THREADS", ""),
    }


def _said_of_other_machine(folder: Path) -> str:
    """A sentence if what is there was computed on a machine of another kind; else empty."""
    path = folder / "environment.json"
    try:
        before = read_json(path, dict)["machine"]
        then = {key: before[key] for key in ("processor", "instructions")}
    except (InputError, LookupError, TypeError):
        return ""
    now = {"processor": platform.machine(), "instructions": _arithmetic()["instructions"]}
    words = [" ".join(map(str, kind.values())) for kind in (then, now)]
    return (
        ""
        if then == now
        else (
            f"note: {folder} was begun on {plain(words[0], 60)} and goes on with {words[1]}; the last bits may differ"
        )
    )


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
    machine = {"system": platform.platform(), "processor": platform.machine(), **_arithmetic()}
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "command": command or " ".join(sys.argv),
        "versions": versions,
        "machine": machine,
        "started": started,
        "finished": finished,
    }
