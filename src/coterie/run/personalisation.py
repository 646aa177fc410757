"""Personalisation after training: a few local steps from a finished model, chosen for each client on its validation rows.

The whole model, its last layer, or the bias of its last layer alone. Of a linear model `pool` draws each client's own slopes to those
of its model (`solvers.pooling.draw_to`), without steps and without validation rows. All of it happens at home: nothing is told.

For one logit the bias corrects how frequent the positive class is at a client and leaves the ranking of its rows, and so its AUC,
as it is. Steps are plain gradient descent in eval mode, so that
neither dropout nor the statistics of batch norm move.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError, require
from coterie.base.vector import Layout
from coterie.compute.cohort import Cohort
from coterie.compute.linear import counts, linear_rows, require_linear
from coterie.config.run import RunSettings, Tuning
from coterie.contract.engine import Engine
from coterie.contract.federation import Federation
from coterie.contract.method import Method
from coterie.contract.task import ModelOfEach, OwnModel, Size, task
from coterie.contract.wire import PerClient
from coterie.run.evaluation import Evaluator
from coterie.run.history import Record
from coterie.run.result import Run
from coterie.solvers.pooling import draw_to


class Tuned(NamedTuple):
    """The chosen model [n, d + b], its number of steps [n] and learning rate [n] (0 for no step)."""

    model: OwnModel
    steps: Size
    lr: Size


def tunable(layout: Layout, part: str) -> Tensor:
    """Return which entries of a vector [d + b] are tuned. Raises `InputError` if the last layer has no bias.

    >>> layout = Layout.of(torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Linear(2, 1)))
    >>> [int(tunable(layout, part).sum()) for part in ("all", "last", "bias")]
    [7, 3, 1]
    """
    last_layer = layout.layers[-1]
    masks = []
    for name, shape in layout.parameters:
        owner, _, leaf = name.rpartition(".")
        is_tuned = part == "all"
        if owner == last_layer:
            # Of the last layer all is tuned, or the bias alone.
            is_tuned = part != "bias" or leaf == "bias"
        masks.append(torch.full((shape.numel(),), is_tuned))
    mask = torch.cat([*masks, torch.zeros(layout.size - layout.dim, dtype=torch.bool)])
    if not bool(mask.any()):
        raise InputError(
            f"the last layer {last_layer!r} has no bias that could be tuned; take part = last or all"
        )
    return mask


class Drawn(NamedTuple):
    """The client's own model [n, d], and the variance of its slopes about those that it was given [n]."""

    model: OwnModel
    variance: Size


@task
def pool_at_home(
    cohort: Cohort,
    *,
    x: ModelOfEach,
    known: Tensor | None = None,
) -> Drawn:
    """Each client's own linear model, whose slopes are drawn to those of its model in x [n, d] as far as its rows say.

    Noise of a known variance in these slopes [D] widens what they are drawn to.
    """
    slopes, _ = counts(cohort.layout)
    models, variances = [], []
    for client in range(len(cohort.names)):
        rows = linear_rows(cohort, client)
        cohort.spent["row_gradients"] += len(rows.labels)
        model, variance = draw_to(x[client, :slopes].cpu(), *rows, known=known)
        models.append(model)
        variances.append(variance)
    return Drawn(
        torch.stack(models).to(x), torch.tensor(variances, dtype=torch.float64)
    )


@task
def tune(cohort: Cohort, *, x: ModelOfEach, tuning: Tuning) -> Tuned:
    """Each client's best of all numbers of steps and learning rates by the loss on its validation rows, fewer steps first.

    x is a model for each client [n, d + b]; it stays where a client has no validation rows to choose by.
    """
    choosing = [i for i in range(len(cohort.names)) if cohort.has(i, "validation")]
    model, chosen = x.clone(), torch.zeros(len(cohort.names), 2, dtype=torch.float64)
    if choosing:
        cohort_choosing, start = cohort.only(choosing), x[choosing]
        lowest = cohort_choosing.loss(start, part="validation")
        best, setting = start.clone(), chosen[choosing]
        mask = tunable(cohort.layout, tuning.part).to(x.device)
        for lr in tuning.lr:
            y = start
            for step in range(1, max(tuning.steps) + 1):
                slope = cohort_choosing.gradient(
                    y, batch_size=tuning.batch_size, purpose=f"personalise/{step}"
                )
                y = torch.where(mask, y - lr * slope, y)
                if step in tuning.steps:
                    loss = cohort_choosing.loss(y, part="validation")
                    improved = loss < lowest  # never true of NaN
                    lowest = torch.where(improved, loss, lowest)
                    best[improved] = y[improved]
                    setting[improved] = torch.tensor([step, lr], dtype=torch.float64)
        model[choosing], chosen[choosing] = best, setting
    return Tuned(model, chosen[:, 0], chosen[:, 1])


def finetune(engine: Engine, run: Run, tuning: Tuning, settings: RunSettings) -> Run:
    """Tune the models of a run on the clients of an engine, which stays open; `Run` and errors as for `personalise`."""
    settings.check(run.rounds, run.seed, len(engine.clients))
    trained = engine.sizes("train")
    if tuning.chooses:
        _check_choosing(engine, run, tuning)
    else:
        require_linear(engine.model, engine.loss, "pool")
    federation = Federation(
        engine,
        engine.clients,
        run.seed,
        max_norm=settings.max_norm,
        strict_wire=settings.strict_wire,
    )
    session, attempt = federation.session, secrets.randbits(48)
    session.spent["row_gradients"] += max(
        (r["row_gradients"] for r in run.summary), default=0
    )
    models: dict[str, Tensor] = {}
    for name, rows in trained.items():
        model = run.models.get(name, run.models.get("*"))
        if rows and model is not None:
            models[name] = model
    names = list(models)
    view = federation.view(engine.clients, run.rounds, attempt)
    starts = PerClient(torch.stack(list(models.values())))
    log: dict[str, dict[str, float]] = {}
    if tuning.chooses:
        tuned = view.ask(names, tune, x=starts, tuning=tuning)
        log["tuning_steps"] = tuned.by_client(tuned.steps)
        log["tuning_lr"] = tuned.by_client(tuned.lr)
        models.update(zip(tuned.clients, tuned.model, strict=True))
    else:
        known = None
        if isinstance(run.method, Method):
            known = run.method.slope_variance(run.state)
        drawn = view.ask(names, pool_at_home, x=starts, known=known)
        log["tuning_variance"] = drawn.by_client(drawn.variance)
        models.update(zip(drawn.clients, drawn.model, strict=True))
    evaluator, record = Evaluator(federation, attempt, settings.metrics), Record()
    record.add(run.rounds, log)
    record.history.parts += evaluator.look(models, run.rounds)
    return replace(
        run,
        models=models,
        history=record.history,
        summary=evaluator.summarise(models, run.rounds),
        seconds=[],
        asks=session.asks,
        failures={**run.failures, **session.failures},
    )


def _check_choosing(engine: Engine, run: Run, tuning: Tuning) -> None:
    """Raise `InputError` where no validation rows could choose, or nothing would move."""
    tunable(engine.layout, tuning.part)
    trained = engine.sizes("train")
    require(
        any(engine.sizes("validation").values()),
        "personalisation chooses on validation rows, and there are none; give split.parts a share for validation",
    )
    folded = next(
        (
            r["client"]
            for r in run.summary
            if r["n_train"] > trained.get(r["client"], r["n_train"])
        ),
        None,
    )
    if folded is not None:
        raise InputError(
            f"client {folded!r} was trained on its validation rows, so they cannot choose; fit with merge_validation=False"
        )
