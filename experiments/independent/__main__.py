"""Compute headline comparisons a second time: `python -m experiments.independent --only isfl-table-3-98 --seeds 5`.

Each finished run is at once a row of experiments/results/independent/EXPERIMENT.json, and is not repeated until its settings change.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from coterie.base.files import read_toml
from experiments.documents import RESULTS, Document, Row, read
from experiments.independent import isfl, landscape, maxfl, meritfed, plateaus, varsel
from experiments.independent.common import EXPERIMENTS, Values, read_problem
from experiments.independent.own import PREFIX
from experiments.measures import thinned
from experiments.running import Job, provenance, put, settings_of

PAPERS = (isfl, varsel, meritfed, maxfl)
METHODS: Mapping[str, Mapping[str, Callable[[int], Values]]] = {
    **{
        experiment: methods
        for paper in PAPERS
        for experiment, methods in paper.METHODS.items()
    },
    **plateaus.METHODS,
    **landscape.METHODS,
}
COUNTED = {
    experiment: paper.counted for paper in PAPERS for experiment in paper.METHODS
}
"""The clients whose rows count, by experiment."""
DRAWN = {**plateaus.TABLES, **landscape.TABLES}
"""Experiments on samples that are drawn, which have no TOML file."""
FOLDER = RESULTS / "independent"


def tables_of(experiment: str) -> Mapping[str, Any]:
    """The settings of an experiment."""
    return DRAWN.get(experiment) or read_toml(
        EXPERIMENTS / f"{experiment.removeprefix(PREFIX)}.toml"
    )


def missing(experiment: str, seeds: int, folder: Path = FOLDER) -> list[Job]:
    """What has no row with the present settings, seed by seed."""
    tables, document = tables_of(experiment), read(experiment, folder)
    done = (
        {(row.method, row.seed, row.settings) for row in document.rows}
        if document
        else set()
    )
    jobs = [
        Job(EXPERIMENTS / f"{experiment}.toml", m, seed)
        for seed in range(seeds)
        for m in METHODS[experiment]
    ]
    return [
        job
        for job in jobs
        if (job.method, job.seed, settings_of(tables, job.method)) not in done
    ]


def perform(job: Job) -> Row:
    """Run it, and count the rows that it was measured on."""
    started = time.process_time()
    experiment, values, curves = job.file.stem, dict[str, float](), dict[str, Any]()
    for name, value in METHODS[experiment][job.method](job.seed).items():
        if not isinstance(value, float):
            curves[name] = thinned(dict(enumerate(value, 1)))
        values[name] = float(f"{value if isinstance(value, float) else value[-1]:.6g}")
    settings = settings_of(tables_of(experiment), job.method)
    n_train, n_test = _sizes(experiment, job.seed)
    return Row(
        job.method,
        job.seed,
        settings,
        n_train=n_train,
        n_test=n_test,
        values=values,
        curves=curves,
        **provenance(started),
    )


def _sizes(experiment: str, seed: int) -> tuple[int, int]:
    """Training and test rows of the clients that count."""
    if experiment in DRAWN:
        return plateaus.SAMPLES, 0
    problem = read_problem(experiment, seed)
    clients = [problem.clients[name] for name in COUNTED[experiment](problem)]
    return sum(len(client.train) for client in clients), sum(
        len(client.test) for client in clients
    )


def run_missing(
    experiments: Sequence[str],
    seeds: int,
    minutes: float = math.inf,
    folder: Path = FOLDER,
) -> Iterator[str]:
    """Run what is missing, one after the other, and begin nothing after so many minutes; yields what it did."""
    end = time.monotonic() + 60 * minutes
    for job in (
        job for experiment in experiments for job in missing(experiment, seeds, folder)
    ):
        if time.monotonic() < end:
            experiment = job.file.stem
            head = Document(experiment, tables_of(experiment)["run"]["rounds"], ())
            put(perform(job), head, list(METHODS[experiment]), folder)
            yield f"{experiment}: {job.method}, seed {job.seed}: done"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.independent", description=__doc__
    )
    parser.add_argument(
        "--only",
        default=",".join(METHODS),
        metavar="A,B",
        help="these experiments alone",
    )
    parser.add_argument("--seeds", type=int, default=5, help="0, 1, ... (5)")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin nothing later"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for said in run_missing(given.only.split(","), given.seeds, given.minutes):
        print(said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
