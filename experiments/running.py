"""Running what is missing: each finished run of one method and seed is at once a row of experiments/results.

A run whose row has the settings of the TOML file counts as done, on whatever machine it was done. A run that was stopped goes on from
its last round, which is kept under runs/papers.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.measure import machine
from benchmarks.trees import git

from coterie.base.errors import InputError, RunError
from coterie.base.files import read_toml
from coterie.run.evaluation import add_metrics
from coterie.run.fit import fit
from coterie.run.method_tables import label_of
from coterie.run.tables import read_experiment
from coterie.study.preflight import initial, run_settings
from experiments.documents import RESULTS, ROOT, Document, Row, read, write
from experiments.measures import MEASURES, thinned

FREE = {"run": ("seeds", "out", "jobs")}
"""Keys on which no number depends."""


class Job(NamedTuple):
    """One method and seed of an experiment."""

    file: Path
    method: str
    seed: int


@dataclass(frozen=True)
class Places:
    """Where experiments, results and unfinished runs lie."""

    experiments: Path = ROOT / "experiments"
    results: Path = RESULTS
    runs: Path = ROOT / "runs" / "papers"


def provenance(started: float) -> dict[str, Any]:
    """Return where and when a row was made: commit (with `+` if code or settings differ from it), machine, PyTorch, CPU seconds."""
    changed = git(
        "--no-optional-locks",
        "status",
        "--porcelain",
        "--",
        "src",
        "experiments",
        ":!experiments/results",
    )
    about = machine()
    return {
        "commit": git("rev-parse", "--short=12", "HEAD") + ("+" if changed else ""),
        "machine": f"{about['cpu']}, {about['cores']} cores",
        "torch": torch.__version__,
        "seconds": round(time.process_time() - started, 1),
    }


def shared(about: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return where and when rows were made together, each with its share of the seconds."""
    return {**about, "seconds": round(about["seconds"] / rows, 1)}


def settings_of(tables: Mapping[str, Any], method: str) -> str:
    """A hash of what the numbers of one method depend on, as it is written in the file.

    >>> one = {"methods": [{"name": "fedavg", "lr": 1.0}, {"name": "local"}], "run": {"rounds": 3, "seeds": 5}}
    >>> settings_of(one, "local") == settings_of({**one, "run": {"rounds": 3, "seeds": 9}}, "local")
    True
    """
    kept = {
        name: table
        for name, table in tables.items()
        if name not in ("report", "tune", "engine", "methods")
    }
    kept["run"] = {
        key: value
        for key, value in tables.get("run", {}).items()
        if key not in FREE["run"]
    }
    # `local` by steps is what it was before it could be solved, so saying so makes no rows old.
    kept["methods"] = [
        {key: value for key, value in entry.items() if (key, value) != ("exact", False)}
        for entry in tables["methods"]
        if label_of(entry) == method
    ]
    return hashlib.blake2b(
        json.dumps(kept, sort_keys=True).encode(), digest_size=6
    ).hexdigest()


def jobs_of(file: Path, results: Path) -> list[Job]:
    """All that has no row with the present settings, seed by seed."""
    tables, experiment = read_toml(file), read_experiment(file)
    document = read(file.stem, results)
    done = (
        {(row.method, row.seed, row.settings) for row in document.rows}
        if document
        else set()
    )
    return [
        Job(file, label, seed)
        for seed in experiment.run.seeds
        for label in experiment.labels
        if (label, seed, settings_of(tables, label)) not in done
    ]


def perform(job: Job, kind: str, runs: Path) -> Row:
    """Run it, or go on with it, and measure it. Raises `InputError` if its data are not there."""
    torch.set_num_threads(1)
    started = time.process_time()
    experiment = read_experiment(job.file)
    add_metrics(experiment.run.metrics)
    entry = next(entry for entry in experiment.methods if entry.label == job.method)
    folder = runs / job.file.stem / f"{job.method}-{job.seed}"
    run = fit(
        experiment.build_method(entry), experiment.load_data(job.seed), experiment.build_model(), experiment.run.rounds,
        job.seed, engine=experiment.engine, attack=experiment.attack, filters=experiment.filters, init=initial(experiment),
        checkpoint=folder, settings=run_settings(experiment, resume=True),
    )  # fmt: skip
    measured = MEASURES[kind](run)
    values = {
        name: float(f"{v:.6g}") if math.isfinite(v) else None
        for name, v in measured.values.items()
    }
    curves = {name: thinned(curve) for name, curve in measured.curves.items()}
    settings = settings_of(read_toml(job.file), job.method)
    sizes = {"n_train": measured.n_train, "n_test": measured.n_test}
    return Row(
        job.method,
        job.seed,
        settings,
        **sizes,
        values=values,
        curves=curves,
        **provenance(started),
    )


def keep(job: Job, row: Row, results: Path) -> None:
    """Put a row into its document, in the place of one with other settings."""
    experiment = read_experiment(job.file)
    put(
        row,
        Document(job.file.stem, experiment.run.rounds, ()),
        experiment.labels,
        results,
    )


def put(row: Row, document: Document, labels: Sequence[str], results: Path) -> None:
    """Put a row among those that are saved of its document, which keep the order of the labels; `document` has none yet."""
    order = {label: number for number, label in enumerate(labels)}
    before = read(document.name, results)
    others = (
        [r for r in before.rows if (r.method, r.seed) != (row.method, row.seed)]
        if before
        else []
    )
    known = [r for r in [*others, row] if r.method in order]
    write(
        document._replace(rows=sorted(known, key=lambda r: (order[r.method], r.seed))),
        results,
    )


def run_missing(
    kinds: Mapping[str, str],
    steps: Sequence[Sequence[str]],
    *,
    minutes: float,
    jobs: int = 2,
    places: Places | None = None,
) -> Iterator[str]:
    """Run what is missing, step by step and within a step seed by seed; yields what it did.

    Args:
        kinds: what is measured of each experiment, a key of `MEASURES`.
        steps: experiments in order of worth; those of one step share their seeds' turns.
        minutes: nothing is begun later.
        jobs: how many run at once; 1: in this process.
        places: where everything lies.
    """
    at = places or Places()
    end = time.monotonic() + 60 * minutes
    refused = set[tuple[str, str]]()
    for step in steps:
        files = [at.experiments / f"{name}.toml" for name in step]
        waiting = sorted(
            (job for file in files for job in jobs_of(file, at.results)),
            key=lambda job: job.seed,
        )
        for job, outcome in _outcomes(waiting, kinds, at, jobs, end):
            if isinstance(outcome, Row):
                keep(job, outcome, at.results)
                shutil.rmtree(
                    at.runs / job.file.stem / f"{job.method}-{job.seed}",
                    ignore_errors=True,
                )
                yield f"{job.file.stem}: {job.method}, seed {job.seed}: done"
            elif (why := (job.file.stem, str(outcome))) not in refused:
                refused.add(why)
                yield f"{job.file.stem}: skipped: {outcome}"


def _outcomes(
    waiting: Sequence[Job],
    kinds: Mapping[str, str],
    places: Places,
    jobs: int,
    end: float,
) -> Iterator[tuple[Job, Row | InputError]]:
    if jobs == 1:
        for job in waiting:
            if time.monotonic() < end:
                yield job, _attempt(job, kinds[job.file.stem], places.runs)
        return
    left, running = list(waiting), dict[Future[Row | InputError], Job]()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        while running or (left and time.monotonic() < end):
            while left and len(running) < jobs and time.monotonic() < end:
                job = left.pop(0)
                running[
                    pool.submit(_attempt, job, kinds[job.file.stem], places.runs)
                ] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _attempt(job: Job, kind: str, runs: Path) -> Row | InputError:
    try:
        return perform(job, kind, runs)
    except InputError as error:
        return InputError(str(error))
    except RunError:  # it diverged, and would again
        settings = settings_of(read_toml(job.file), job.method)
        return Row(
            job.method,
            job.seed,
            settings,
            n_train=1,
            n_test=0,
            values={},
            **provenance(time.process_time()),
        )


def plan() -> tuple[dict[str, str], list[list[str]]]:
    """Return what is measured of each experiment, and the experiments of each step of experiments/plan.toml, cheapest first."""
    steps = sorted(
        read_toml(ROOT / "experiments" / "plan.toml")["steps"],
        key=lambda step: float(step["minutes"]),
    )
    kinds = {name: step["measure"] for step in steps for name in step["experiments"]}
    return kinds, [step["experiments"] for step in steps]


def select(steps: Sequence[Sequence[str]], only: Sequence[str]) -> list[list[str]]:
    """The steps with these experiments alone; all of them if none is named."""
    return [[name for name in step if not only or name in only] for step in steps]
