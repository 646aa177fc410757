"""Tiny models, where overhead is most of the time: MeritFed with all targets on heart-disease (4 hospitals, 16 parameters).

60 rounds of 10 local steps of batch 16 for each of 4 models at each of 4 clients, and 5 descent steps per target, against a
bare loop over the same gradients: no oracle, no asks, no checks, no weights, only what training and descent compute on rows.
"""

from __future__ import annotations

from typing import Any

import torch

import coterie as ct
from benchmarks.bare import BareLoop
from benchmarks.measure import Settings, in_turns, on_a_quiet_machine, ratio, row
from coterie.models import build_model

WHAT = __doc__ or ""
LOCAL = ct.LocalSGD(lr=0.1, steps=ct.Steps(10), batch_size=16, weight_decay=1e-3)
METHOD = ct.MeritFed(local=LOCAL, md_steps=5, md_step=5.0, validation="train")


def run(settings: Settings) -> dict[str, Any]:
    """Measure a whole `fit` against the bare loop."""
    rounds, pairs = (2, 3) if settings.quick else (60, 9)
    clients = ct.data.load("heart-disease", seed=0)
    found = on_a_quiet_machine(
        lambda: ratio(
            in_turns(
                lambda: _fit(clients, rounds), lambda: _bare(clients, rounds), pairs
            )
        ),
        settings,
    )
    speed = f"{found['ratio']:.2f} of a bare loop's speed (in CPU time {found['cpu_ratio']:.2f}); {found['seconds']:.1f} s"
    line = row(
        "heart-disease, MeritFed, all targets, 60 rounds, start to end",
        speed,
        "none",
        True,
        found,
    )
    return {**found, "rounds": rounds, "rows": [line]}


def _fit(clients: ct.Clients, rounds: int) -> None:
    ct.fit(
        METHOD,
        clients,
        ct.models.Logistic(),
        rounds,
        0,
        settings=ct.RunSettings(evaluate=rounds, strict_wire=False),
    )


def _bare(clients: ct.Clients, rounds: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    some = clients.merge_validation()
    start = list(build_model(ct.models.Logistic(), some, 0).parameters())
    bare = BareLoop(some, start, lr=0.1, steps=10, batch_size=16, decay=1e-3)
    models = [bare.parameters] * len(some)
    for number in range(rounds):
        trained = [
            [bare.train(k, m, bare.draw(k)) for k in range(len(some))]
            for m in (models if number else models[:1])
        ]
        models = [
            [torch.stack(p).mean(0) for p in zip(*t, strict=True)] for t in trained
        ]
        models = models if number else models * len(some)
        for target, model in enumerate(models):
            at = [p.clone().requires_grad_() for p in model]
            for _ in range(METHOD.md_steps):
                torch.autograd.grad(
                    bare.loss(at, bare.inputs[target], bare.labels[target]), at
                )
    torch.set_num_threads(threads)
