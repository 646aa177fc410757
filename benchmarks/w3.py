"""W3: MeritFed's mean estimation: d = 10, 150 clients, batches of 100, 50 mirror-descent steps on 1,000 validation samples, against L0.

L0 computes the same gradients and descent steps on the same numbers of rows, by autograd and two matrix-vector products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import coterie as ct
from benchmarks.bare import BareMeritFed
from benchmarks.measure import Settings, Turns, on_a_quiet_machine, ratio, speed_row
from coterie.models import build_model

WHAT = __doc__ or ""


class Work(NamedTuple):
    """A run of MeritFed for one target, and how it is measured."""

    clients: ct.Clients
    model: Any
    method: ct.MeritFed
    turn: int
    pairs: int
    engine: ct.InProcess = ct.InProcess()


def run(settings: Settings) -> dict[str, Any]:
    """Measure W3."""
    small = settings.quick
    clients = ct.data.load(
        "mean-estimation",
        seed=0,
        test=0,
        groups=[2, 3, 1] if small else [5, 95, 50],
        samples=200 if small else 1000,
    )
    method = ct.MeritFed(
        targets=clients.names[0], local=ct.LocalSGD(lr=1.0, steps=ct.Steps(1), batch_size=100), lr=0.01,
        md_steps=3 if small else 50, md_step=4.5,
    )  # fmt: skip
    work = Work(
        clients, ct.models.Mean(), method, 1 if small else 10, 3 if small else 15
    )
    return against_l0("W3, one worker", work, 0.9, 7.0, settings)


def against_l0(
    name: str, work: Work, must: float, aim: float, settings: Settings
) -> dict[str, Any]:
    """Measure MeritFed for one target against the bare loop."""
    work = work._replace(pairs=5) if settings.short else work
    found = on_a_quiet_machine(lambda: measure(work), settings)
    return {**found, "rows": [speed_row(name, found, must, aim)]}


def measure(work: Work) -> dict[str, Any]:
    """Our speed as a multiple of the bare loop's, on the device of the work."""
    turns = Turns(_bare(work), work.turn)
    rounds = work.turn * (work.pairs + 1) + 1
    ct.fit(
        work.method, work.clients, work.model, rounds, 0, engine=work.engine, settings=ct.RunSettings(
            evaluate=rounds, metrics=(), callbacks=(turns,), merge_validation=False, strict_wire=False,
        ),
    )  # fmt: skip
    return {**ratio(turns.pairs), "rounds": rounds}


def _bare(work: Work) -> Callable[[int], None]:
    method, local = work.method, work.method.local
    start = list(
        build_model(work.model, work.clients, 0).to(work.engine.device).parameters()
    )
    clients = work.clients.to(torch.device(work.engine.device))
    bare = BareMeritFed(
        clients, start, lr=local.rate(1), steps=1, batch_size=local.batch_size or 1
    )
    held = clients[str(method.targets)].part("validation")
    bare.inputs.append(bare.floats(held.inputs))
    bare.labels.append(held.labels)
    weights = [
        torch.full((len(work.clients),), 1 / len(clients), device=work.engine.device)
    ]

    def one(number: int) -> None:
        weights[0] = bare.descend(
            weights[0], steps=method.md_steps, step=float(method.md_step), server_lr=float(method.lr),
            batch=method.oracle_batch_size,
        )  # fmt: skip

    return one
