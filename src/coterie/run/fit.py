"""A run from Python in one call: clients, model and engine are made ready, then the loop runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from coterie.attacks import Attacked, choose_attackers
from coterie.core.errors import InputError, require
from coterie.core.federation import Engine
from coterie.core.loss import RowLoss
from coterie.core.method import Method, as_attack, as_method
from coterie.core.metrics import DEFAULT_METRICS
from coterie.core.rows import Clients, Part
from coterie.engines.inprocess import InProcess
from coterie.models import ModelSpec, build_model
from coterie.run.finetune import Tuning, finetune
from coterie.run.history import Run
from coterie.run.loop import LoopSettings, run_method

__all__ = ["fit", "kept_open", "personalise", "start_from"]

KERNELS = ("auto", "loop")
ENGINES = ("inprocess", "ray")


@contextmanager
def _one_thread() -> Iterator[None]:
    # Two OpenMP threads on a busy machine were four to seven times slower; parallelism is over clients.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fit(
    method: Method[Any],
    clients: Clients,
    model: nn.Module | ModelSpec | Callable[..., nn.Module],
    rounds: int = 50,
    seed: int = 0,
    *,
    loss: str | RowLoss = "auto",
    clients_per_round: int | None = None,
    evaluate: int | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    workers: int = 1,
    kernel: str = "auto",
    device: str = "cpu",
    engine: str | Callable[..., Engine] = "inprocess",
    actors: int = 2,
    address: str | None = None,
    timeout: float = 600.0,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    strict_wire: bool = False,
    fold_validation: bool = True,
    server_data: tuple[Any, Tensor] | None = None,
    init: Mapping[str, Tensor] | None = None,
    attack: Any = None,
    attackers: Sequence[str] | float = (),
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Run a method on clients.

    Args:
        method: a `Method` such as `MeritFed(targets="all")`, or any object with `init`, `round` and `models`.
        clients: their rows.
        model: a module, the settings of one (`models.MLP()`), or a function (shape, outputs) -> module.
        rounds: number of rounds, >= 0.
        seed: names all randomness; the same seed gives the same bits.
        loss: "auto" or a callable (outputs, labels) -> [rows].
        clients_per_round: participants drawn for each round; None: everybody.
        evaluate: evaluate before the first round, after every so many rounds, and after the last; None: about twenty times.
        metrics: names of metrics beside the loss.
        workers: processes over which the clients are spread; results do not depend on it.
        kernel: "auto" or "loop", the plain loop over clients.
        device: of model and rows.
        engine: "inprocess"; "ray", actors of a Ray cluster (`pip install 'coterie[ray]'`); or a function (clients, model, *, loss) that
            makes an engine. Results do not depend on it, and a checkpoint of one engine resumes on another.
        actors: processes of engine "ray", over which the clients are spread.
        address: of a Ray cluster, "host:port" or "auto"; None: a local one is started for this run.
        timeout: seconds that an ask may take on engine "ray"; a client that takes longer has failed.
        checkpoint: folder where every complete round is saved; None: nothing is saved.
        resume: go on from the checkpoint, if there is one.
        strict_wire: encode and decode everything as if it were sent.
        fold_validation: train on validation rows too where the method does not need them.
        server_data: (inputs, labels) held by the server.
        init: a state dict to start from.
        attack: what some clients do wrong, e.g. `attacks.IPM()`; evaluation stays honest.
        attackers: their names, or a share of all clients that is drawn by name from the seed.
        progress: called with the number of each complete round (and with 0 at the start).

    Raises:
        InputError: bad arguments or data, before any training.
        RunError: the run cannot go on (too few clients reply, the model diverges); the checkpoint holds the last complete round.
    """
    require(kernel in KERNELS, f"kernel must be one of {', '.join(KERNELS)}; got {kernel!r}")
    settings = LoopSettings(rounds, seed, clients_per_round, evaluate, tuple(metrics), strict_wire)
    settings.check(len(clients))
    method = as_method(method)
    module = build_model(model, clients, seed)
    if init is not None:
        start_from(module, init)
    wrong = _attackers(attack, attackers, clients, seed)
    if wrong:
        clients = as_attack(attack).on_rows(clients, wrong)
    prepared = _prepare(method, clients, fold_validation, server_data)
    with _one_thread():
        method.check(prepared.names)
        make = _engine(engine, workers, device, kernel, actors, address, timeout)
        made: Engine = make(prepared, module, loss=loss)
        try:
            if wrong:
                made = Attacked(made, attack, wrong)
            return run_method(made, method, settings, checkpoint=checkpoint, resume=resume, progress=progress)
        finally:
            made.close()


def _engine(
    engine: str | Callable[..., Engine],
    workers: int,
    device: str,
    kernel: str,
    actors: int,
    address: str | None,
    timeout: float,
) -> Callable[..., Engine]:
    if callable(engine):
        return engine
    require(engine in ENGINES, f"engine must be one of {', '.join(ENGINES)} or a function; got {engine!r}")
    if engine == "inprocess":
        return partial(InProcess, workers=workers, device=device, kernel=kernel)
    require(workers == 1, "workers belong to engine 'inprocess'; engine 'ray' spreads the clients over actors")
    require(device == "cpu", f"engine 'ray' trains on CPUs; device is {device!r}")
    from coterie.engines.ray import RayEngine

    return partial(RayEngine, actors=actors, address=address, timeout=timeout, kernel=kernel)


def kept_open(engine: str, actors: int, address: str | None, timeout: float) -> AbstractContextManager[None]:
    """What the runs of one experiment share: with engine "ray" the cluster and its actors. Arguments as for `fit`."""
    if engine != "ray":
        return nullcontext()
    from coterie.engines.ray import cluster

    return cluster(actors, address)


def personalise(
    run: Run,
    clients: Clients,
    part: str = "bias",
    steps: Sequence[int] = (0, 10, 30, 100),
    lr: Sequence[float] = (0.01, 0.1, 1.0),
    *,
    batch_size: int | None = None,
    loss: str | RowLoss = "auto",
    metrics: Sequence[str] = DEFAULT_METRICS,
    workers: int = 1,
    device: str = "cpu",
    strict_wire: bool = False,
) -> Run:
    """Tune the model that a run gave each client, seen or unseen, by a few local steps on its training rows.

    Args:
        run: a finished run with `fold_validation=False`: validation rows choose the number of steps and the learning rate.
        clients: those of the run.
        part: `all` parameters, the `last` layer, or the `bias` of the last layer only.
        steps: numbers of steps to choose from, 0 (the model as it is) among them.
        lr: learning rates to choose from.
        batch_size: rows of a step; None: all training rows.
        loss: as for `fit`, like all that follows.
        metrics: names of metrics.
        workers: processes.
        device: of model and rows.
        strict_wire: encode and decode everything.

    Returns:
        A run with a model, and rows in `summary`, for each client that has training rows; `history` has the last round's metrics
        and each client's `tuning_steps` and `tuning_lr`. Row gradients are those of training and of all that was tried.

    Raises:
        InputError: bad settings, no validation rows, or a run that was trained on them.
    """
    tuning = Tuning(part, tuple(steps), tuple(lr), batch_size)
    with _one_thread():
        engine = InProcess(clients, run.module, loss=loss, workers=workers, device=device)
        try:
            return finetune(engine, run, tuning, tuple(metrics), strict_wire=strict_wire)
        finally:
            engine.close()


def _attackers(attack: Any, attackers: Sequence[str] | float, clients: Clients, seed: int) -> tuple[str, ...]:
    given = bool(attackers) if not isinstance(attackers, int | float) else True
    require(attack is not None or not given, f"attackers are {attackers!r} but there is no attack; name one")
    return choose_attackers(attackers, clients.names, seed) if given else ()


def _prepare(
    method: Method[Any], clients: Clients, fold_validation: bool, server_data: tuple[Any, Tensor] | None
) -> Clients:
    prepared = clients.folded(method.keeps_validation(clients.names)) if fold_validation else clients
    if server_data is not None:
        prepared = prepared.with_server(Part(*server_data))
    return prepared.with_server(prepared.pooled()) if method.pooled else prepared


def start_from(module: nn.Module, init: Mapping[str, Tensor]) -> None:
    """Load a state dict into `module`. Raises `InputError` that names a tensor which is missing, left over or of another shape."""
    own = module.state_dict()
    for name in own:
        require(name in init, f"the initial model lacks {name!r}; it has {', '.join(list(init)[:6])}")
        if init[name].shape != own[name].shape:
            raise InputError(
                f"{name!r} of the initial model has shape {tuple(init[name].shape)}, expected {tuple(own[name].shape)}"
            )
    extra = sorted(set(init) - set(own))
    require(
        not extra,
        f"the initial model has {', '.join(extra)}, which this model does not; choose the model it was trained as",
    )
    module.load_state_dict(init)
