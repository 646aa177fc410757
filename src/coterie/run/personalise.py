"""Tuning the models of a finished run from Python in one call."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.base.clients import Clients
from coterie.base.interrupts import raise_interrupts
from coterie.base.system import few_collections
from coterie.config.registry import ENGINES
from coterie.config.run import RunSettings, Tuning
from coterie.contract.engine import EngineSpec
from coterie.data.tensors import settle_task
from coterie.engines.inprocess import InProcess
from coterie.run.arguments import check_arguments
from coterie.run.evaluation import with_metrics
from coterie.run.fit import one_at_a_time, one_thread, open_engine
from coterie.run.personalisation import finetune
from coterie.run.result import Run

_HERE = InProcess()
_USUAL = RunSettings()


@one_at_a_time
def personalise(
    run: Run,
    clients: Clients,
    part: str = "bias",
    steps: Sequence[int] = (0, 10, 30, 100),
    lr: Sequence[float] = (0.01, 0.1, 1.0),
    *,
    batch_size: int | None = None,
    engine: EngineSpec | str = _HERE,
    settings: RunSettings = _USUAL,
) -> Run:
    """Tune the model that a run gave each client, seen or unseen, at home: by a few local steps on its training rows, or by pooling.

    Args:
        run: a finished run with `merge_validation=False`: validation rows choose the number of steps and the learning rate. `pool`
            chooses nothing on them, and takes any run.
        clients: those of the run.
        part: `all` parameters, the `last` layer, or the `bias` of the last layer only; `pool` solves for a linear model whose slopes
            are drawn to those of the run's, as far as the client's own rows say.
        steps: numbers of steps to choose from, 0 (the model as it is) among them.
        lr: learning rates to choose from.
        batch_size: rows of a step; None: all training rows.
        engine: as for `fit`.
        settings: the loss, the metrics and `strict_wire` are those of this evaluation.

    Returns:
        A run with a model, and rows in `summary`, for each client that has training rows; `history` has the last round's metrics
        and each client's `tuning_steps` and `tuning_lr`, or `tuning_variance`. Row gradients are those of training and of all that was
        tried.

    Raises:
        InputError: bad settings, no validation rows, or a run that was trained on them.

    >>> import coterie as ct
    >>> clients = ct.data.load("heart-disease")
    >>> run = ct.fit("fedavg", clients, rounds=20, settings=ct.RunSettings(merge_validation=False))
    >>> tuned = personalise(run, clients, part="bias")
    >>> [round(r.history.select("loss", "switzerland", "test")[-1][1], 1) for r in (run, tuned)]
    [0.5, 0.3]
    """
    check_arguments(run=run, clients=clients, settings=settings, steps=steps, lr=lr)
    engine_spec = ENGINES.resolve(engine, "engine")
    clients = settle_task(clients, settings.row_loss(clients))
    settings = with_metrics(settings, clients)
    tuning = Tuning(part, tuple(steps), tuple(lr), batch_size)
    if settings.merge_validation and not tuning.chooses:
        clients = clients.merge_validation()
    with one_thread(), few_collections(), raise_interrupts():
        opened = open_engine(
            engine_spec, clients.with_mean_weights(), run.module, settings
        )
        try:
            return finetune(opened, run, tuning, settings)
        finally:
            opened.close()
