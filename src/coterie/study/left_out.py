"""How well is a hospital served that took no part? Each client in turn is left out, and served the mean of the others' models.

It needs no more training: what the clients told of their rows lies in the prior of a run by `partial`, and the prior is
learnt again without what the one told. Only models that were trained on all rows are asked, so that each client is
tested on all of its rows, none of which its model has seen. Here as at sites each client tests one model, and tells its
gain over a constant prediction and the error of that (`compute.left_out`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.loss import RowLoss
from coterie.compute.left_out import gain_of_others
from coterie.contract.engine import Engine
from coterie.contract.federation import Federation, QuorumError
from coterie.contract.wire import PerClient
from coterie.engines.inprocess import InProcess
from coterie.run.files import ALL, OUTSIDE_ERROR, OUTSIDE_GAIN
from coterie.run.result import Run
from coterie.solvers import pooling

FEWEST_CLIENTS = 3
"""Clients below which nothing is known of how much hospitals differ."""
AT_ONCE = 1 << 22
"""Numbers in the curvatures of federations that are solved side by side: 32 MiB."""


def is_left_out(run: Run, fold: str) -> bool:
    """Return True if the clients of a run in this fold are to test the mean of the others' models.

    It takes all rows, quadratics of the clients, and enough of these.
    """
    told = run.prior.get("clients", ())
    is_enough = len(told) >= FEWEST_CLIENTS
    return fold in ("", ALL) and run.method.tells_quadratics and is_enough


def measure_left_out(run: Run, clients: Clients, loss: str | RowLoss = "auto") -> Run:
    """Return the run with what each client gains by a model of the others in its prior (`ask_left_out`).

    Args:
        run: A finished run of which `is_left_out` holds.
        clients: Its clients, with the rows on which it was trained.
        loss: Its loss.
    """
    engine = InProcess().open(clients, run.module, loss)
    try:
        return ask_left_out(engine, run)
    finally:
        engine.close()


def ask_left_out(engine: Engine, run: Run) -> Run:
    """Return the run with what each client gains by a model of the others in its prior; NaN for one that does not say it.

    Args:
        engine: With the clients of the run; it stays open.
        run: A finished run of which `is_left_out` holds.
    """
    names = run.prior["clients"]
    models = centres_without(run.prior).to(engine.layout.dtype)
    measured = torch.full((2, len(names)), torch.nan, dtype=torch.float64)
    federation = Federation(engine, engine.clients, run.seed)
    view = federation.view(engine.clients, run.rounds, secrets.randbits(48))
    # Where nobody replies, the failures say why.
    with suppress(QuorumError):
        replies = view.ask(names, gain_of_others, need=0.0, x=PerClient(models))
        replied = [names.index(name) for name in replies.clients]
        told = torch.stack([replies.gain, replies.error])
        measured[:, replied] = told.where(replies.known, torch.nan)
    gains, errors = measured
    return replace(
        run,
        prior={**run.prior, OUTSIDE_GAIN: gains, OUTSIDE_ERROR: errors},
        failures={**run.failures, **view.session.failures},
    )


def centres_without(prior: Mapping[str, Any]) -> Tensor:
    """For each of m clients the mean (mu, m0) [m, P] that is learnt from what all others told.

    Args:
        prior: `Run.prior` of `partial` in the form of passes.
    """
    fields = (prior[name] for name in pooling.Quadratics._fields)
    quadratics = pooling.Quadratics(*fields)
    own, slopes = prior["own"], len(prior["mu"])
    count = len(own)
    everyone = torch.arange(count)
    # In row k all clients but k [m, m - 1].
    others = torch.stack([everyone[everyone != k] for k in range(count)])
    at_once = max(AT_ONCE // quadratics.curvature.numel(), 1)
    centres = []
    for rows in others.split(at_once):
        of_others = pooling.Quadratics(*(part[rows] for part in quadratics))
        pooled = pooling.pool(of_others, own[rows], slopes)
        centres.append(pooled.prior.centre())
    return torch.cat(centres)
