"""`--tune`: choose the settings of each method on validation rows, with the same effort for all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.base.clients import Clients
from coterie.base.errors import InputError, RunError, require
from coterie.config.run import MethodEntry
from coterie.run.evaluation import add_metrics
from coterie.run.experiment import Experiment
from coterie.run.files import write_csv
from coterie.run.fit import fit
from coterie.run.grid import apply
from coterie.run.tables import read_folder_experiment
from coterie.study.layout import is_run
from coterie.study.preflight import check_everything, initial, model_to_train, run_settings

__all__ = ["Trial", "tune", "tuned"]

SEEDS = 12
"""Most splits over which a setting is judged."""


@dataclass(frozen=True)
class Trial:
    """One setting of one method: mean loss over validation rows, each client counting once, over at most `SEEDS` splits."""

    label: str
    setting: Mapping[str, Any]
    loss: float
    chosen: bool = False


def tune(
    experiment: Experiment, notify: Callable[[str, int, int], None] | None = None
) -> tuple[Experiment, list[Trial]]:
    """The experiment with each method's best setting, and all trials.

    Test rows have no part in it: training is on training rows alone, and what is compared is the loss on validation rows.
    A grid is `[tune]` of the TOML file (`"meritfed.md_step" = [.1, 1]`, `"local.lr" = [.1]` for all), else the learning rate of
    local training and what the method is known to be sensitive to.

    Raises `InputError` if the data has no validation rows.
    """
    add_metrics(experiment.run.metrics)
    loaded = _splits(experiment)
    lacking = next((c for c in loaded.values() if c.validation is None), None)
    require(
        lacking is None, "--tune needs validation rows, and there are none; give split.parts a share for validation"
    )
    plan = [(entry, setting) for entry in experiment.methods for setting in experiment.trials_of(entry)]
    check_everything(experiment.with_methods([apply(*trial) for trial in plan]), next(iter(loaded.values())))
    trials: list[Trial] = []
    with experiment.engine.keep_open():
        for number, (entry, setting) in enumerate(plan):
            if notify is not None:
                notify(entry.label, number, len(plan))
            trials.append(Trial(entry.label, setting, _mean_loss(experiment, apply(entry, setting), loaded)))
    methods = []
    best: list[Trial] = []
    for entry in experiment.methods:
        winner = min((t for t in trials if t.label == entry.label), key=lambda t: t.loss)
        if winner.loss == math.inf:
            raise RunError(f"{entry.label} fails with every setting of its grid; lower the learning rates in [tune]")
        best.append(winner)
        methods.append(apply(entry, winner.setting))
    return experiment.with_methods(methods), [replace(t, chosen=t in best) for t in trials]


def _splits(experiment: Experiment) -> dict[tuple[int, str], Clients]:
    """The clients of at most `SEEDS` splits, by seed and fold."""
    if not experiment.folds:
        return {(seed, ""): experiment.load_data(seed) for seed in experiment.run.seeds[:SEEDS]}
    clients = experiment.load_data(experiment.run.seeds[0])
    turns = [(seed, str(fold)) for seed in experiment.run.seeds for fold in range(experiment.folds)]
    return {(seed, fold): experiment.of_fold(clients, seed, fold) for seed, fold in turns[:SEEDS]}


def tuned(
    experiment: Experiment, folder: Path, *, resume: bool = False, notify: Callable[[str, int, int], None] | None = None
) -> tuple[Experiment, list[Trial]]:
    """What `tune` gives, with its trials written to `folder`; on resume the settings that were chosen there, and no trials."""
    if resume and is_run(folder):
        saved = read_folder_experiment(folder, experiment).methods
        same = [m.label for m in saved] == [m.label for m in experiment.methods]
        if not same:
            raise InputError(
                f"{folder} was tuned for {', '.join(m.label for m in saved)}; resume with the same methods"
            )
        return experiment.with_methods(saved), []
    chosen, trials = tune(experiment, notify)
    write_trials(folder, trials)
    return chosen, trials


def write_trials(folder: Path, trials: list[Trial]) -> None:
    """Write tuning.csv: method, setting, mean validation loss, chosen."""
    rows = [(t.label, json.dumps(dict(t.setting)), repr(t.loss), int(t.chosen)) for t in trials]
    write_csv(folder / "tuning.csv", ("method", "setting", "validation_loss", "chosen"), rows)


def _mean_loss(experiment: Experiment, entry: MethodEntry, loaded: Mapping[tuple[int, str], Clients]) -> float:
    try:
        return sum(_loss(experiment, entry, clients, seed) for (seed, _), clients in loaded.items()) / len(loaded)
    except RunError:  # a setting under which training diverges is the worst of all, and no reason to stop
        return math.inf


def _loss(experiment: Experiment, entry: MethodEntry, clients: Clients, seed: int) -> float:
    run = experiment.run
    module = model_to_train(experiment, clients, seed)
    stopping = tuple(
        callback for callback in (*experiment.callbacks, *run.callbacks) if getattr(callback, "decides", False)
    )
    looks = {} if stopping else {"evaluate": max(1, run.rounds), "metrics": ()}
    result = fit(
        experiment.build_method(entry), clients, module, run.rounds, seed, engine=experiment.engine, attack=experiment.attack,
        filters=experiment.filters, init=initial(experiment),
        settings=run_settings(experiment, **looks, merge_validation=False, callbacks=stopping, label=entry.label),
    )  # fmt: skip
    losses = [row["loss"] for row in result.summary if row["split"] == "validation"]
    if not losses:
        raise InputError(f"{entry.label} has no model for a client with validation rows; --tune cannot judge it")
    return float(sum(losses) / len(losses))
