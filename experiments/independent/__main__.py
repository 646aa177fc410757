"""Compute headline comparisons a second time: `python -m experiments.independent --only isfl-fashion-98 --seeds 5`.

Each finished run is at once a row of experiments/results/independent/EXPERIMENT.json, and is not repeated until its settings change.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from benchmarks.measure import commit

from coterie.core.reading import read_toml
from experiments.documents import RESULTS, Row, read
from experiments.independent import isfl, maxfl, meritfed, varsel
from experiments.independent.common import EXPERIMENTS, Values, read_problem
from experiments.page import kinds
from experiments.running import Job, keep, settings_of

PAPERS = (isfl, varsel, meritfed, maxfl)
METHODS: Mapping[str, Mapping[str, Callable[[int], Values]]] = {
    experiment: methods for paper in PAPERS for experiment, methods in paper.METHODS.items()
}
COUNTED = {experiment: paper.counted for paper in PAPERS for experiment in paper.METHODS}
"""The clients whose rows count, by experiment."""
FOLDER = RESULTS / "independent"


def missing(experiment: str, seeds: int, folder: Path = FOLDER) -> list[Job]:
    """What has no row with the present settings, seed by seed."""
    file = EXPERIMENTS / f"{experiment}.toml"
    tables, document = read_toml(file), read(experiment, folder)
    done = {(row.method, row.seed, row.settings) for row in document.rows} if document else set()
    jobs = [Job(file, method, seed) for seed in range(seeds) for method in METHODS[experiment]]
    return [job for job in jobs if (job.method, job.seed, settings_of(tables, job.method)) not in done]


def perform(job: Job) -> Row:
    """Run it, and count the rows that it was measured on."""
    experiment = job.file.stem
    values = {name: float(f"{value:.6g}") for name, value in METHODS[experiment][job.method](job.seed).items()}
    problem = read_problem(experiment, job.seed)
    clients = [problem.clients[name] for name in COUNTED[experiment](problem)]
    n_train, n_test = (sum(len(getattr(client, part)) for client in clients) for part in ("train", "test"))
    return Row(job.method, job.seed, settings_of(problem.tables, job.method), commit(), n_train, n_test, values)


def run_missing(
    experiments: Sequence[str], seeds: int, minutes: float = math.inf, folder: Path = FOLDER
) -> Iterator[str]:
    """Run what is missing, one after the other, and begin nothing after so many minutes; yields what it did."""
    end = time.monotonic() + 60 * minutes
    for job in (job for experiment in experiments for job in missing(experiment, seeds, folder)):
        if time.monotonic() < end:
            keep(job, kinds()[job.file.stem], perform(job), folder)
            yield f"{job.file.stem}: {job.method}, seed {job.seed}: done"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(prog="python -m experiments.independent", description=__doc__)
    parser.add_argument("--only", default=",".join(METHODS), metavar="A,B", help="these experiments alone")
    parser.add_argument("--seeds", type=int, default=5, help="0, 1, ... (5)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing later")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for said in run_missing(given.only.split(","), given.seeds, given.minutes):
        print(said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
