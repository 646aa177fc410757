"""Rivals beside our methods: each is tuned by 8 trials with one seed and then run with ten others (`experiments/rivals.toml`).

`python -m experiments.rivals --minutes 60` runs what is missing, problem by problem: first the trials of each method, then seed by
seed. Each finished run is at once a row of experiments/results, and the page of rivals is written at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from coterie.base.errors import RunError
from coterie.base.files import read_toml
from coterie.config.run import MethodEntry
from coterie.run.experiment import Experiment
from coterie.run.method_tables import apply, label_of
from coterie.run.result import Run
from coterie.study.preflight import model_to_train, run_settings, train
from coterie.study.search import tune
from experiments.documents import RESULTS, ROOT, Document, Row, read
from experiments.running import provenance, put, settings_of, shared

FILE = ROOT / "experiments" / "rivals.toml"
LOSS, ACCURACY, VALIDATION = "log-loss", "accuracy", "validation log-loss"


class Problem(NamedTuple):
    """A federation and a model on which the methods are compared.

    Attributes:
        name: of its files of results.
        title: for the page.
        experiment: with all methods that run on it, and their grid.
        tables: of the experiment, as the file has them.
        left_out: why a method does not run on it, by label.
    """

    name: str
    title: str
    experiment: Experiment
    tables: Mapping[str, Any]
    left_out: Mapping[str, str]

    @property
    def documents(self) -> tuple[str, str]:
        """Names of the files with the trials and with the runs."""
        return f"rivals-{self.name}-trials", f"rivals-{self.name}"


def problems() -> list[Problem]:
    """Return the problems of experiments/rivals.toml, in the order in which they are run."""
    tables = read_toml(FILE)
    return [_problem(tables, table) for table in tables["problems"]]


def _problem(tables: Mapping[str, Any], table: Mapping[str, Any]) -> Problem:
    left_out = table.get("left_out", {})
    methods = [
        entry
        for entry in tables["methods"]
        if entry.get("label", entry["name"]) not in left_out
    ]
    labels = {"local", *(entry.get("label", entry["name"]) for entry in methods)}
    experiment = {
        **{key: table[key] for key in ("data", "split", "model")},
        "local": tables["local"],
        "methods": methods,
        "run": {
            "rounds": table["rounds"],
            "seeds": tables["seeds"],
            "evaluate": table["rounds"],
            "metrics": [ACCURACY],
        },
        "tune": {
            key: values
            for key, values in tables["tune"].items()
            if key.partition(".")[0] in labels
        },
    }
    return Problem(
        table["name"],
        table["title"],
        Experiment.from_tables(experiment, FILE.name),
        experiment,
        left_out,
    )


def trial_name(label: str, setting: Mapping[str, Any]) -> str:
    """Return what a trial is called in its file."""
    return f"{label} {json.dumps(setting)}"


def settings_with(problem: Problem, label: str, setting: Mapping[str, Any]) -> str:
    """Return the hash of what the numbers of a method with this setting depend on, as the file has it."""
    entry = next(
        table for table in problem.tables["methods"] if label_of(table) == label
    )
    return settings_of(
        {**problem.tables, "methods": [{**entry, "setting": setting}]}, label
    )


def chosen(
    problem: Problem, entry: MethodEntry, results: Path = RESULTS
) -> dict[str, Any] | None:
    """Return the setting of a method that was best on validation rows; None before all of its trials are rows."""
    trials = read(problem.documents[0], results)
    losses = {row.method: row for row in trials.rows} if trials else {}
    settings = list(problem.experiment.trials_of(entry))
    rows = [losses.get(trial_name(entry.label, setting)) for setting in settings]
    hashes = [settings_with(problem, entry.label, setting) for setting in settings]
    if any(
        row is None or row.settings != known
        for row, known in zip(rows, hashes, strict=True)
    ):
        return None
    found = [row.values.get(VALIDATION) for row in rows if row]
    return min(
        zip(found, settings, strict=True),
        key=lambda pair: math.inf if pair[0] is None else pair[0],
    )[1]


def run_missing(
    minutes: float = math.inf, results: Path = RESULTS, only: Sequence[str] = ()
) -> Iterator[str]:
    """Run what is missing, and begin nothing after so many minutes; yields what was done."""
    end = time.monotonic() + 60 * minutes
    for problem in problems():
        if only and problem.name not in only:
            continue
        for entry in problem.experiment.methods:
            if time.monotonic() < end and chosen(problem, entry, results) is None:
                _try_settings(problem, entry, results)
                yield f"{problem.name}: {entry.label}: tried"
        plan = [
            (apply(entry, setting), settings_with(problem, entry.label, setting))
            for entry in problem.experiment.methods
            if (setting := chosen(problem, entry, results)) is not None
        ]
        done = read(problem.documents[1], results)
        rows = (
            {(row.method, row.seed, row.settings) for row in done.rows}
            if done
            else set()
        )
        for seed, (entry, settings) in itertools.product(
            problem.experiment.run.seeds, plan
        ):
            if time.monotonic() < end and (entry.label, seed, settings) not in rows:
                _run_seed(problem, entry, seed, settings, results)
                yield f"{problem.name}: {entry.label}, seed {seed}: done"


def _try_settings(problem: Problem, entry: MethodEntry, results: Path) -> None:
    """Put a row for each trial of a method."""
    experiment, seed = problem.experiment, int(read_toml(FILE)["tuning_seed"])
    started = time.process_time()
    alone = replace(
        experiment.with_methods([entry]), run=replace(experiment.run, seeds=(seed,))
    )
    trials = tune(alone)[1]
    origin = shared(provenance(started), len(trials))
    for trial in trials:
        loss = float(f"{trial.loss:.6g}") if math.isfinite(trial.loss) else None
        settings = settings_with(problem, entry.label, trial.setting)
        row = Row(
            trial_name(entry.label, trial.setting),
            seed,
            settings,
            n_train=1,
            n_test=0,
            values={VALIDATION: loss},
            **origin,
        )
        _put(problem, problem.documents[0], row, results)


def _run_seed(
    problem: Problem, entry: MethodEntry, seed: int, settings: str, results: Path
) -> None:
    """Put the row of one run; without numbers if it diverged."""
    started, experiment = time.process_time(), problem.experiment
    clients = experiment.load_data(seed)
    module, run = model_to_train(experiment, clients, seed), experiment.run
    try:
        finished = train(
            experiment,
            entry,
            clients,
            module,
            run.rounds,
            seed,
            run_settings(experiment, label=entry.label),
        )
        values, sizes = measured(finished)
    except RunError:
        values, sizes = {}, {"n_train": 1, "n_test": 0}
    row = Row(
        entry.label, seed, settings, **sizes, values=values, **provenance(started)
    )
    _put(problem, problem.documents[1], row, results)


def measured(run: Run) -> tuple[dict[str, float | None], dict[str, int]]:
    """Return log-loss and accuracy on test rows, each client counting once, the log-loss of each client, and all rows of each part."""
    tested = [row for row in run.summary if row["split"] == "test"]
    values = {
        LOSS: statistics.fmean(row["loss"] for row in tested),
        ACCURACY: statistics.fmean(row[ACCURACY] for row in tested),
        **{f"{LOSS}, {row['client']}": row["loss"] for row in tested},
    }
    rows = {
        split: sum(row["n"] for row in run.summary if row["split"] == split)
        for split in ("train", "test")
    }
    digits = {
        name: float(f"{value:.5g}") if math.isfinite(value) else None
        for name, value in values.items()
    }
    return digits, {"n_train": rows["train"], "n_test": rows["test"]}


def _put(problem: Problem, name: str, row: Row, results: Path) -> None:
    experiment = problem.experiment
    labels = experiment.labels
    if name == problem.documents[0]:
        labels = tuple(
            trial_name(e.label, setting)
            for e in experiment.methods
            for setting in experiment.trials_of(e)
        )
    put(row, Document(name, experiment.run.rounds, ()), labels, results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write the page of rivals."""
    from experiments import rivals_page  # which reads the problems of this module

    parser = argparse.ArgumentParser(
        prog="python -m experiments.rivals", description=__doc__
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin nothing later"
    )
    parser.add_argument(
        "--only", default="", metavar="A,B", help="these problems alone"
    )
    options = parser.parse_args(arguments)
    os.chdir(ROOT)  # FILE.py:NAME counts from the root
    torch.set_num_threads(1)
    for line in run_missing(
        options.minutes, only=[name for name in options.only.split(",") if name]
    ):
        print(line, flush=True)
    rivals_page.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
