"""Settings that validation rows choose: those of each method (`--tune`), and how strongly references are held back."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coterie.base.clients import Clients
from coterie.base.errors import InputError, RunError, require
from coterie.config.run import MethodEntry
from coterie.run.evaluation import add_metrics
from coterie.run.experiment import Experiment
from coterie.run.files import write_csv
from coterie.run.method_tables import apply
from coterie.run.tables import read_folder_experiment
from coterie.study.layout import is_run, refuse_others
from coterie.study.preflight import (
    check_everything,
    model_to_train,
    run_settings,
    solves,
    train,
)

SEEDS = 12
"""Most splits over which a setting is judged."""

PENALTIES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The weight decay of a reference, times its number of training rows."""

TRIALS = "tuning.csv"
NAMED = 6


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
    local training and what the method is known to be sensitive to. A method that solves for the model has nothing to tune.

    Raises `InputError` if the data has no validation rows.
    """
    add_metrics(experiment.run.metrics)
    loaded = _splits(experiment)
    lacking = next((c for c in loaded.values() if c.validation is None), None)
    require(
        lacking is None,
        "--tune needs validation rows, and there are none; give split.parts a share for validation",
    )
    clients = next(iter(loaded.values()))
    tuned = [e for e in experiment.methods if not solves(experiment, e, clients)]
    plan = [
        (entry, setting) for entry in tuned for setting in experiment.trials_of(entry)
    ]
    check_everything(
        experiment.with_methods([apply(*trial) for trial in plan] or tuned), clients
    )
    trials: list[Trial] = []
    with experiment.engine.keep_open():
        for number, (entry, setting) in enumerate(plan):
            if notify is not None:
                notify(entry.label, number, len(plan))
            trials.append(
                Trial(
                    entry.label,
                    setting,
                    _mean_loss(experiment, apply(entry, setting), loaded),
                )
            )
    chosen = []
    best: list[Trial] = []
    for entry in tuned:
        winner = min(
            (t for t in trials if t.label == entry.label), key=lambda t: t.loss
        )
        if winner.loss == math.inf:
            raise RunError(
                f"{entry.label} fails with every setting of its grid; lower the learning rates in [tune]"
            )
        best.append(winner)
        chosen.append(apply(entry, winner.setting))
    methods = _replace_entries(experiment, chosen)
    return experiment.with_methods(methods), [
        replace(t, chosen=t in best) for t in trials
    ]


def _splits(experiment: Experiment) -> dict[tuple[int, str], Clients]:
    """The clients of at most `SEEDS` splits, by seed and fold."""
    if not experiment.folds:
        return {
            (seed, ""): experiment.load_data(seed)
            for seed in experiment.run.seeds[:SEEDS]
        }
    clients = experiment.load_data(experiment.run.seeds[0])
    turns = [
        (seed, str(fold))
        for seed in experiment.run.seeds
        for fold in range(experiment.folds)
    ]
    return {
        (seed, fold): experiment.of_fold(clients, seed, fold)
        for seed, fold in turns[:SEEDS]
    }


def choose_settings(
    experiment: Experiment,
    folder: Path,
    *,
    grid: bool = False,
    resume: bool = False,
    notify: Callable[[str, int, int], None] | None = None,
) -> tuple[Experiment, list[Trial]]:
    """Return the experiment with the settings that validation rows choose, and the trials, which are written to `folder`.

    With `grid` these are the settings of `tune`; else, where the run has folds, those of `tune_references`. On resume the run in
    `folder` says what was chosen, and there are no trials.
    """
    chosen: Sequence[MethodEntry] = experiment.methods
    if not grid:
        chosen = _references(experiment)
    if not chosen:
        return experiment, []
    refuse_others(folder, resume)
    if resume and is_run(folder):
        saved = {
            entry.label: entry
            for entry in read_folder_experiment(folder, experiment).methods
        }
        if grid and [*saved] != [*experiment.labels]:
            raise InputError(
                f"{folder} was tuned for {', '.join(saved)}; resume with the same methods"
            )
        return experiment.with_methods(
            _replace_entries(experiment, [saved.get(e.label, e) for e in chosen])
        ), []
    if grid:
        experiment, trials = tune(experiment, notify)
    else:
        experiment, trials = tune_references(experiment, notify)
    if trials:
        write_trials(folder, trials)
    return experiment, trials


def tune_references(
    experiment: Experiment, notify: Callable[[str, int, int], None] | None = None
) -> tuple[Experiment, list[Trial]]:
    """Return the experiment with fair references: held back by a weight decay of l over their number of training rows.

    Each client chooses the l of its own model in `local`, and `centralised` one for all, by the mean validation loss over all folds:
    a gain is then no gain over a model that fits chance. Settings that an entry names itself stay. A decay is at most 1 / lr, at
    which a step forgets everything. References that solve for a linear model choose their ridge themselves.
    """
    add_metrics(experiment.run.metrics)
    clients = experiment.load_data(experiment.run.seeds[0])
    references = [
        entry
        for entry in _references(experiment)
        if not solves(experiment, entry, clients)
    ]
    if not references:
        return experiment, []
    turns = [
        (seed, str(fold))
        for seed in experiment.run.seeds
        for fold in range(experiment.folds)
    ]
    views = {turn: experiment.of_fold(clients, *turn) for turn in turns}
    sizes = dict(
        zip(
            clients.names,
            views[turns[0]].merge_validation(()).train.sizes.tolist(),
            strict=True,
        )
    )
    check_everything(experiment, views[turns[0]])
    trials: list[Trial] = []
    entries = []
    with experiment.engine.keep_open():
        for i, entry in enumerate(references):
            losses: dict[float, dict[str, float]] = {}
            for j, penalty in enumerate(PENALTIES):
                if notify is not None:
                    notify(
                        entry.label,
                        len(PENALTIES) * i + j,
                        len(PENALTIES) * len(references),
                    )
                losses[penalty] = _mean_losses(
                    experiment, _hold_back(experiment, entry, sizes, penalty), views
                )
            best = {
                client: min(losses, key=lambda p: losses[p].get(client, math.inf))
                for client in losses[0.0]
            }
            for penalty, by_client in losses.items():
                for client, loss in by_client.items():
                    setting = {"weight_decay": f"{penalty:g} / rows"}
                    if client:
                        setting["client"] = client
                    is_best = best[client] == penalty
                    trials.append(Trial(entry.label, setting, loss, chosen=is_best))
            if best:
                shared_best = best.get("", 0.0)
                entry = _hold_back(experiment, entry, sizes, shared_best, best)
            entries.append(entry)
    return experiment.with_methods(_replace_entries(experiment, entries)), trials


def _references(experiment: Experiment) -> list[MethodEntry]:
    """The entries of a run with folds whose weight decay nobody named."""
    return [
        entry
        for entry in experiment.methods
        if experiment.folds
        and entry.name in ("local", "centralised")
        and "weight_decay" not in entry.local
        and "weight_decays" not in entry.fields
    ]


def _replace_entries(
    experiment: Experiment, entries: Iterable[MethodEntry]
) -> list[MethodEntry]:
    by_label = {entry.label: entry for entry in entries}
    return [by_label.get(entry.label, entry) for entry in experiment.methods]


def _hold_back(
    experiment: Experiment,
    entry: MethodEntry,
    sizes: Mapping[str, int],
    penalty: float,
    penalties: Mapping[str, float] = MappingProxyType({}),
) -> MethodEntry:
    """The entry with a weight decay of `penalty`, or of each client's own of `penalties`, over the number of training rows."""
    most = 1 / experiment.build_method(entry).local.rate(1)
    if entry.name == "centralised":
        return apply(
            entry, {"local.weight_decay": min(penalty / sum(sizes.values()), most)}
        )
    decays = penalties or dict.fromkeys(sizes, penalty)
    return apply(
        entry,
        {
            "weight_decays": {
                name: min(decays[name] / sizes[name], most) for name in decays
            }
        },
    )


def _mean_losses(
    experiment: Experiment, entry: MethodEntry, views: Mapping[tuple[int, str], Clients]
) -> dict[str, float]:
    """Mean validation loss over folds by client; of `centralised` under an empty name, each client counting once."""
    losses: dict[str, list[float]] = {}
    for (seed, _), clients in views.items():
        try:
            by_client = _validation_losses(experiment, entry, clients, seed)
        except RunError:  # as in `_mean_loss`
            by_client = dict.fromkeys(clients.names, math.inf)
        for client, loss in by_client.items():
            owner = "" if entry.name == "centralised" else client
            losses.setdefault(owner, []).append(loss)
    return {client: sum(values) / len(values) for client, values in losses.items()}


def read_trials(folder: Path) -> list[Trial]:
    """Undo `write_trials`; nothing where a run has no trials."""
    path = folder / TRIALS
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Trial(
                row["method"],
                json.loads(row["setting"]),
                float(row["validation_loss"]),
                row["chosen"] == "1",
            )
            for row in csv.DictReader(file)
        ]


def _is_penalty(trial: Trial) -> bool:
    return str(trial.setting.get("weight_decay")).endswith(" / rows")


def chosen_penalties(folder: Path) -> dict[str, dict[str, list[str]]]:
    """By the label of each reference whose weight decay a run chose: the penalties, and the clients that chose each."""
    chosen: dict[str, dict[str, list[str]]] = {}
    for trial in read_trials(folder):
        if trial.chosen and _is_penalty(trial):
            penalties = chosen.setdefault(trial.label, {})
            penalties.setdefault(trial.setting["weight_decay"], []).append(
                trial.setting.get("client", "all rows")
            )
    return chosen


def tuning_notes(folder: Path) -> list[str]:
    """Return a sentence on how many settings of each method were tried, and one for each reference held back by a weight decay."""
    trials = [trial for trial in read_trials(folder) if not _is_penalty(trial)]
    by_count: dict[int, list[str]] = {}
    for label, count in Counter(trial.label for trial in trials).items():
        by_count.setdefault(count, []).append(label)
    notes = []
    if by_count:
        tuned = []
        for count, labels in sorted(by_count.items()):
            tuned.append(f"{', '.join(labels)}: {count} trials")
        note = f"settings were chosen on validation rows. {'; '.join(tuned)}"
        if len(by_count) > 1:
            note += ". More trials are an advantage: give each method as many settings"
        notes.append(note)
    for label, penalties in chosen_penalties(folder).items():
        chosen = []
        for penalty, clients in penalties.items():
            where = f"{len(clients)} clients"
            if len(clients) <= NAMED:
                where = ", ".join(clients)
            chosen.append(f"{penalty} at {where}")
        notes.append(
            f"{label} is held back as validation rows of all folds chose, by a weight decay over its number of training rows: "
            + "; ".join(chosen)
        )
    return notes


def write_trials(folder: Path, trials: list[Trial]) -> None:
    """Write tuning.csv: method, setting, mean validation loss, chosen."""
    rows = [
        (t.label, json.dumps(dict(t.setting)), repr(t.loss), int(t.chosen))
        for t in trials
    ]
    write_csv(folder / TRIALS, ("method", "setting", "validation_loss", "chosen"), rows)


def _mean_loss(
    experiment: Experiment,
    entry: MethodEntry,
    loaded: Mapping[tuple[int, str], Clients],
) -> float:
    try:
        return sum(
            _loss(experiment, entry, clients, seed)
            for (seed, _), clients in loaded.items()
        ) / len(loaded)
    except RunError:  # a setting under which training diverges is the worst of all, and no reason to stop
        return math.inf


def _loss(
    experiment: Experiment, entry: MethodEntry, clients: Clients, seed: int
) -> float:
    losses = _validation_losses(experiment, entry, clients, seed).values()
    if not losses:
        raise InputError(
            f"{entry.label} has no model for a client with validation rows; --tune cannot judge it"
        )
    return float(sum(losses) / len(losses))


def _validation_losses(
    experiment: Experiment, entry: MethodEntry, clients: Clients, seed: int
) -> dict[str, float]:
    run = experiment.run
    module = model_to_train(experiment, clients, seed)
    stopping = tuple(
        callback
        for callback in (*experiment.callbacks, *run.callbacks)
        if getattr(callback, "decides", False)
    )
    # Only a callback that stops a run needs to see more than its end.
    looks: dict[str, Any] = {}
    if not stopping:
        looks = {"evaluate": max(1, run.rounds), "metrics": ()}
    settings = run_settings(
        experiment,
        **looks,
        merge_validation=False,
        callbacks=stopping,
        label=entry.label,
    )
    result = train(experiment, entry, clients, module, run.rounds, seed, settings)
    return {
        row["client"]: row["loss"]
        for row in result.summary
        if row["split"] == "validation"
    }
