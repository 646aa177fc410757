"""Prepare an experiment before any training: its metrics, its initial model, and checks of all that a run would stumble over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie import models
from coterie.attacks import choose_attackers
from coterie.base.clients import Clients
from coterie.base.cures import Advice
from coterie.base.errors import InputError
from coterie.base.metric_names import (
    DEFAULT_METRICS,
    OF_COUNTS,
    OF_HAZARDS,
    OF_ORDERED,
)
from coterie.base.vector import Layout, copy_model
from coterie.compute.bounded_slopes import require_bounded
from coterie.compute.linear import require_linear
from coterie.compute.metrics import find_metrics
from coterie.compute.ridge import find_linear
from coterie.compute.workspace import Workspace
from coterie.config.registry import short_names
from coterie.config.rules import overrides
from coterie.config.run import MethodEntry, RunSettings
from coterie.contract.fitting import filters_of, refuse_attack
from coterie.contract.method import Method
from coterie.models import build_model
from coterie.run.arguments import start_from
from coterie.run.contribution import check_estimator
from coterie.run.evaluation import with_metrics
from coterie.run.experiment import Experiment
from coterie.run.files import ALL, YARDSTICKS, refuse_names_alike
from coterie.run.fit import fit, refuse_autocast
from coterie.run.hashes import Tree
from coterie.run.model_files import APART, load_model_file
from coterie.run.personalisation import tunable
from coterie.run.private_methods import noise_by_row
from coterie.run.provenance import describe_run
from coterie.run.result import Run
from coterie.run.rounded_models import down_of_run
from coterie.run.secure_methods import check_participants
from coterie.study.layout import Pair, median_rounds


def check_everything(experiment: Experiment, clients: Clients) -> None:
    """Find before any training what a run would stumble over: unknown targets, participants, devices, shapes, labels."""
    refuse_autocast()
    run = experiment.run
    if clients.questions:
        question, *others = clients.questions
        said = str(question)
        if others:
            said += f" ({len(others)} more: coterie check)"
        cures: tuple[Any, ...] = ()
        if isinstance(question, Advice):
            cures = question.cures
        raise InputError(Advice(said, cures))
    most = len(clients)
    if run.per_round(most) > most:
        raise InputError(
            f"run.clients_per_round is {run.clients_per_round}, but there are {most} clients"
        )
    if run.contribution is not None:
        check_estimator(run.contribution, run.per_round(most))
    refuse_names_alike((entry.label for entry in experiment.methods), "methods")
    if len(clients) <= APART:  # more of them share a file
        refuse_names_alike(clients.names, "clients")
    experiment.engine.check()
    if run.secure is not None:
        check_participants(run.secure, run.per_round(most))
    for callback in experiment.callbacks:
        callback.check()  # what it imports is then shared by the processes of jobs
    find_metrics(metric_names(experiment))
    for entry in experiment.methods:
        check_method(experiment, entry, clients)
    if experiment.attack is not None:
        choose_attackers(experiment.attack.on, clients.names, 0)
    module = model_to_train(experiment, clients, 0)
    init = initial(experiment)
    if init is not None:
        start_from(module, init)
    workspace = Workspace(module, run.row_loss(clients), clients[0])
    for entry in experiment.methods:
        down_of_run(experiment.build_method(entry), run, workspace.layout)
        if entry.personalise is not None:
            if not entry.personalise.chooses:
                require_linear(workspace.model, workspace.loss, entry.label)
                continue
            tunable(workspace.layout, entry.personalise.part)
            if clients.validation is None:
                raise InputError(
                    f"{entry.label} chooses on validation rows, and there are none; give split.parts a share for validation"
                )


def check_method(experiment: Experiment, entry: MethodEntry, clients: Clients) -> None:
    """Raise `InputError` if a method does not fit these clients, or needs rows at the server and there are none."""
    method = experiment.build_method(entry)
    method.check(clients.names)
    filters_of(method, experiment.filters)
    refuse_attack(method, experiment.attack)
    if overrides(method, Method, "check_model"):
        method.check_model(Layout.of(model_to_train(experiment, clients, 0)))
    if method.linear_only:
        module = model_to_train(experiment, clients, 0)
        loss = Workspace(module, experiment.run.row_loss(clients), clients[0]).loss
        require_linear(module, loss, entry.label)
        if noise_by_row(method) is not None:
            require_bounded(loss)
    answerable = clients.server is not None or not method.needs_server_rows
    if not answerable:
        raise InputError(
            f"{entry.label} asks rows that the server holds, and {clients.name} has none; choose other rows"
        )


def solves(experiment: Experiment, entry: MethodEntry, clients: Clients) -> bool:
    """Return True if a method solves for the model of this experiment, so that it has nothing to tune."""
    may_solve = experiment.build_method(entry).solves_linear
    if not may_solve or experiment.attack is not None:
        return False
    module = model_to_train(experiment, clients, 0)
    workspace = Workspace(module, experiment.run.row_loss(clients), clients[0])
    return find_linear(workspace, clients) is not None


def model_to_train(
    experiment: Experiment, clients: Clients, seed: int
) -> torch.nn.Module:
    """The module of an experiment, with the parameters frozen that it names; a caller's own stays as it is."""
    module_or_builder = experiment.build_model()
    module = build_model(module_or_builder, clients, seed)
    if module is module_or_builder:
        module = copy_model(module)
    models.freeze(
        module,
        experiment.model.get("freeze", []),
        f"{experiment.where}, [model]: freeze",
    )
    return module


def initial(experiment: Experiment) -> dict[str, Tensor] | None:
    """The state dict that `model.init` names."""
    path = experiment.model.get("init")
    if path is None:
        return None
    return experiment.objects.get(path) or load_model_file(Path(path))


def train(
    experiment: Experiment,
    entry: MethodEntry,
    clients: Clients,
    module: torch.nn.Module,
    rounds: int,
    seed: int,
    settings: RunSettings,
    checkpoint: Path | None = None,
) -> Run:
    """Train one method on this machine, as its experiment says."""
    return fit(
        experiment.build_method(entry), clients, module, rounds, seed, engine=experiment.engine, attack=experiment.attack,
        filters=experiment.filters, init=initial(experiment), checkpoint=checkpoint, settings=settings,
    )  # fmt: skip


def metric_names(experiment: Experiment) -> tuple[str, ...]:
    """Names of the metrics, those of the user's own without their file; if none are chosen, with those that the table declares."""
    names = short_names(experiment.run.metrics)
    if experiment.run.metrics != DEFAULT_METRICS:
        return names
    if experiment.data.get("event") is not None:
        return names + OF_HAZARDS
    if experiment.data.get("exposure") is not None:
        return names + OF_COUNTS
    if experiment.data.get("ordered"):
        return names + OF_ORDERED
    return names


def run_settings(experiment: Experiment, **differing: Any) -> RunSettings:
    """The settings of each run of an experiment, but for those that differ."""
    return replace(experiment.run, **{"metrics": metric_names(experiment), **differing})


def pair_settings(
    experiment: Experiment, entry: MethodEntry, **differing: Any
) -> RunSettings:
    """The settings with which a method of an experiment is run: its validation rows stay apart where they tune models afterwards."""
    callbacks = (*experiment.callbacks, *experiment.run.callbacks)
    tuning = entry.personalise
    merged = experiment.run.merge_validation and not (tuning and tuning.chooses)
    return run_settings(
        experiment,
        **{
            "callbacks": callbacks,
            "label": entry.label,
            "merge_validation": merged,
            **differing,
        },
    )


def pair_length(experiment: Experiment, pair: Pair) -> tuple[int, tuple[Any, ...]]:
    """Return the rounds of a pair and the callbacks that may end it: on all rows it takes as many as its folds did."""
    callbacks = (*experiment.callbacks, *experiment.run.callbacks)
    if pair.fold == ALL and callbacks:
        return median_rounds(pair, experiment), ()
    return experiment.run.rounds, callbacks


def pair_world(experiment: Experiment, pair: Pair, clients: Clients) -> Tree:
    """Describe what the numbers of a pair depend on, as its run wrote it down before round 0."""
    rounds, callbacks = pair_length(experiment, pair)
    settings = pair_settings(experiment, pair.entry, callbacks=callbacks)
    if pair.entry.name in YARDSTICKS:
        return describe_run(
            pair.entry.name,
            clients,
            None,
            rounds,
            pair.seed,
            settings,
            packages=("scikit-learn",),
        )
    module, init = model_to_train(experiment, clients, pair.seed), initial(experiment)
    if init is not None:
        start_from(module, init)
    attack = experiment.attack
    attackers: tuple[str, ...] = ()
    if attack is not None:
        attackers = choose_attackers(attack.on, clients.names, pair.seed)
    method = experiment.build_method(pair.entry)
    if not clients.rows_elsewhere:
        settings = with_metrics(settings, clients)  # as `fit` does
    return describe_run(
        method,
        clients,
        module,
        rounds,
        pair.seed,
        settings,
        engine=experiment.engine,
        attack=attack,
        attackers=attackers,
        filters=experiment.filters,
        packages=method.packages,
    )
