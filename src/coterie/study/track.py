"""`coterie track`: the measurements of a finished run, sent to a logger as if it had followed the run."""

from __future__ import annotations

import math
import os

from coterie.base.errors import InputError, nearest
from coterie.config.registry import CALLBACKS
from coterie.report.results import Results
from coterie.run.files import ALL
from coterie.run.trackers.tracker import Tracker


def track(folder: str | os.PathLike[str], to: str, at: str | None = None) -> int:
    """Send the history of a run directory to a logger; returns the number of runs there, one for each method and seed.

    Args:
        folder: the run directory.
        to: name of the logger, mlflow, tensorboard or wandb.
        at: tracking URI or folder; None: the logger's default.

    Raises:
        InputError: an unknown logger, one that is not installed, or no run directory.
    """
    trackers = [name for name in CALLBACKS if issubclass(CALLBACKS[name], Tracker)]
    if to not in trackers:
        raise InputError(f"there is no logger {to!r}; {nearest(to, trackers)}")
    place = {}
    if at is not None:
        place["to"] = at
    tracker: Tracker = CALLBACKS[to](**place)
    results = Results.load(os.fspath(folder))
    rounds = results.experiment["run"]["rounds"]
    history = results.history
    runs: dict[tuple[str, int], dict[tuple[int, str], list[float]]] = {}
    for run, (method, seed, fold) in enumerate(history.runs):
        if fold != ALL:
            numbers = runs.setdefault((method, seed), {})
            for number, client, split, metric, value in history.rows(run):
                if math.isfinite(value):
                    name = "/".join(
                        part
                        for part in (split, client, metric)
                        if part not in ("", "*")
                    )
                    numbers.setdefault((number, name), []).append(value)
    for (method, seed), numbers in sorted(runs.items()):
        sink = tracker.open(method, seed, rounds)
        # By round: Weights & Biases takes no round after a later one.
        for (number, name), values in sorted(
            numbers.items(), key=lambda entry: entry[0][0]
        ):
            sink.number(name, sum(values) / len(values), number)
        sink.close()
    return len(runs)
