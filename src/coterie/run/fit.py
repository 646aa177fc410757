"""A run from Python in one call: clients, model and engine are made ready, then the loop runs."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from coterie.attacks import Attacked, choose_attackers, with_lies
from coterie.base.clients import Clients
from coterie.base.errors import InputError, cut, require
from coterie.base.interrupts import raise_interrupts
from coterie.base.system import few_collections
from coterie.config.local import LocalSGD
from coterie.config.registry import ATTACKS, ENGINES, FILTERS, MODELS
from coterie.config.rules import explain_keywords, native
from coterie.config.run import RunSettings
from coterie.contract.engine import Engine, EngineSpec
from coterie.contract.filters import Filter
from coterie.contract.fitting import filters_of, refuse_attack
from coterie.contract.method import Method, clients_keeping_validation
from coterie.data.tensors import settle_task
from coterie.engines.inprocess import InProcess
from coterie.models import ModelSpec
from coterie.run.arguments import (
    check_arguments,
    clients_from,
    method_from,
    module_from,
)
from coterie.run.checkpoint import RoundFiles
from coterie.run.evaluation import with_metrics
from coterie.run.followers import keeps_validation
from coterie.run.loop import run_method
from coterie.run.model_files import load_model_file
from coterie.run.progress import Rounds, choose, show_in
from coterie.run.provenance import Provenance, describe_run
from coterie.run.result import Run

P = ParamSpec("P")
T = TypeVar("T")
# Reentrant: what trains may call another function that trains, in the same thread.
_TRAINING = threading.RLock()
_HERE = InProcess()
_USUAL = RunSettings()


def refuse_autocast() -> None:
    """Raise `InputError` within autocast, where a run has other bits, and older versions of torch keep no gradient."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise InputError(
            "torch.autocast around a run would change its bits; use it in forward of the model"
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, and restore what was set before. Raises `InputError` within autocast."""
    refuse_autocast()
    # Two OpenMP threads on a busy machine were four to seven times slower; parallelism is over clients.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def one_at_a_time(function: Callable[P, T]) -> Callable[P, T]:
    """Let a thread wait while another one trains: both would draw from torch's one generator, and set its one number of threads."""

    @functools.wraps(function)
    def waiting(*args: P.args, **keywords: P.kwargs) -> T:
        with _TRAINING:
            return function(*args, **keywords)

    return waiting


@explain_keywords(local=LocalSGD)
@one_at_a_time
def fit(
    method: Method[Any] | str,
    clients: Clients
    | Callable[..., Clients]
    | Mapping[str, Any]
    | Sequence[Any]
    | str
    | os.PathLike[str],
    model: nn.Module | ModelSpec | Callable[..., nn.Module] | str = MODELS.default,
    rounds: int = 50,
    seed: int = 0,
    *,
    engine: EngineSpec | str = _HERE,
    attack: Any = None,
    filters: Sequence[Filter | str] = (),
    local: LocalSGD | None = None,
    init: Mapping[str, Tensor] | str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | str | None = None,
    settings: RunSettings = _USUAL,
) -> Run:
    """Run a method on clients. Calls in several threads wait for each other.

    Args:
        method: a `Method` such as `MeritFed(targets="all")`, or the name of a method or FILE.py:NAME, which has its defaults then.
        clients: their rows; those of the server too, if it has any (`from_tensors(server=...)`). Or a function that gives those of
            `seed=...`; tensors or data sets by client, as `data.from_tensors` takes them; or what `data.load` takes: the name of a
            data set, a folder, or FILE.py:NAME.
        model: a module, the settings of one (`models.MLP()`), a function (shape, outputs) -> module, or the name of a model or
            FILE.py:NAME.
        rounds: number of rounds, >= 0.
        seed: names all randomness; the same seed gives the same bits.
        engine: where the clients are: `InProcess(workers=2)`, `Ray(actors=4)`, an `EngineSpec` of your own, or the name of an engine
            or FILE.py:NAME. A checkpoint of one engine resumes on another.
        attack: what some clients do wrong, and who they are, e.g. `attacks.IPM(on=("hungary",))`; evaluation stays honest.
        filters: what replies pass through at the clients before they are sent, e.g. `[TopK(0.01)]`, or names such as `["top-k"]`.
            Filters run in the order of their stages.
        local: local training, in place of the method's own.
        init: a state dict or a safetensors file to start from.
        checkpoint: folder where complete rounds are saved, as often as `settings.save_every` says; None: nothing is saved.
        progress: "bar", with the time left; "log", lines on standard error; true, the bar where somebody looks, else lines; false,
            nothing. None: a bar in notebooks and at a prompt, nothing in a script. `logging.getLogger("coterie")` tells rounds at INFO.
        settings: how many clients take part in a round, what is evaluated, and whatever else is the same for every method.

    Returns:
        The run: its model or models, who helped whom, the metrics of each evaluation, and a summary.

    Raises:
        InputError: bad arguments or data, before any training.
        RunError: the run cannot go on (too few clients reply, the model diverges); the checkpoint holds the last round that was saved.

    >>> import coterie as ct
    >>> clients = ct.data.load("heart-disease")
    >>> run = ct.fit(ct.FedAvg(), clients, model="logistic", rounds=2)
    >>> run
    <run of FedAvg: 2 rounds, seed 0, one model for all clients>
    >>> run.history.select("accuracy", "hungary", "test")[-1][0]
    2
    """
    # What was given: names become what they mean.
    check_arguments(
        local=local,
        init=init,
        settings=settings,
        filters=filters,
        checkpoint=checkpoint,
        progress=progress,
    )
    subject: Any = method
    if isinstance(subject, Clients):
        raise InputError("the method comes first: ct.fit(method, clients, model)")
    engine_spec = ENGINES.resolve(engine, "engine")
    if attack is not None:
        attack = ATTACKS.resolve(attack, "attack")
    reply_filters: list[Filter] = [FILTERS.resolve(item, "filters") for item in filters]
    resumable = checkpoint is not None or not settings.resume
    require(
        resumable,
        "resume needs the checkpoint of the run that goes on; give checkpoint",
    )
    if isinstance(init, str | os.PathLike):
        init = load_model_file(Path(init))
    rounds, seed = native(rounds), native(seed)

    # The rows, what is measured on them, the method, and the model that training starts from.
    rows = clients_from(clients, seed)
    rows = settle_task(rows, settings.row_loss(rows))
    settings = with_metrics(settings, rows)
    settings.check(rounds, seed, len(rows))
    chosen = method_from(method, local)
    module = module_from(model, rows, seed, settings.freeze, init)

    # Who attacks, and where rounds are saved. A resumed run compares what it was given with what was saved.
    attackers: tuple[str, ...] = ()
    if attack is not None:
        attackers = choose_attackers(attack.on, rows.names, seed)
    files = None
    if checkpoint is not None:
        world = describe_run(
            chosen,
            rows,
            module,
            rounds,
            seed,
            settings,
            engine=engine_spec,
            attack=attack,
            attackers=attackers,
            filters=reply_filters,
            packages=chosen.packages,
        )
        folder = Path(checkpoint)
        files = RoundFiles(folder, Provenance(folder, world, settings.accept_change))

    # Each row where it belongs: to training, to validation, or to the server.
    if attack is not None:
        rows = with_lies(rows, attack, attackers)
    prepared = share_validation(
        rows,
        chosen,
        rows.names,
        settings.merge_validation and not keeps_validation(settings.callbacks),
        contribution=settings.contribution is not None,
    )
    if chosen.pooled:
        prepared = prepared.with_server(prepared.pool_training_rows())

    # The rounds.
    with one_thread(), few_collections(), raise_interrupts():
        chosen.check(prepared.names)
        filters_of(chosen, reply_filters)
        refuse_attack(chosen, attack)
        opened = open_engine(engine_spec, prepared, module, settings)
        try:
            if attackers:
                opened = Attacked(opened, attack, attackers)
            run = run_method(
                opened,
                chosen,
                rounds,
                seed,
                _followed(settings, progress, chosen, rounds),
                filters=reply_filters,
                files=files,
                starts=rows.starts,
            )
        finally:
            opened.close()
    meaning = opened.loss.meaning(rows.classes, rows.label_scale, rows.recipe)
    return replace(run, meaning=meaning)


def _followed(
    settings: RunSettings,
    progress: bool | str | None,
    method: Method[Any],
    rounds: int,
) -> RunSettings:
    """Return the settings with a callback that shows progress, if any is to be shown."""
    kind = choose(progress)
    if not kind:
        return settings
    label = settings.label or type(method).__name__
    shown = Rounds(show_in(kind), label, rounds)
    return replace(settings, callbacks=(*settings.callbacks, shown))


def open_engine(
    engine: EngineSpec, clients: Clients, module: nn.Module, settings: RunSettings
) -> Engine:
    """Open an engine, which the caller closes. Raises `InputError` for what is none."""
    opened = engine.open(clients, module, settings.row_loss(clients))
    if Engine not in type(opened).__mro__:
        if callable(close := getattr(opened, "close", None)):
            close()  # what it started would outlive this call
        raise InputError(
            f"{type(engine).__name__}.open must return an engine, of a class derived from coterie.contract.engine.Engine; "
            f"got {cut(opened)}"
        )
    return opened


def share_validation(
    clients: Clients,
    method: Method[Any],
    everyone: tuple[str, ...],
    merge_validation: bool,
    *,
    contribution: bool,
) -> Clients:
    """Return the clients with each validation row where it belongs: to contributions, to a method that chooses on it, or to training.

    Args:
        clients: All clients, or the one of a site.
        method: What trains on them.
        everyone: Sorted names of all clients.
        merge_validation: Whether rows train on which the method does not choose.
        contribution: Whether contributions are measured.
    """
    choosing: Sequence[str] = everyone
    if merge_validation:
        choosing = clients_keeping_validation(method, everyone)
    if contribution:
        clients = clients.reserve_validation(choosing)
    # Now it is known which rows train, over which weights have mean 1.
    return clients.merge_validation(choosing).with_mean_weights()
