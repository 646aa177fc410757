"""W4: 10 clients, two 5x5 convolutions and a linear layer on images [3, 32, 32], 20 batches of 128 each, against L0.

A round would last a minute, so a turn is 2 of the clients with 5 of the batches; the work of a step is the same. Random images.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import coterie as ct
from benchmarks.bare import BareCNN
from benchmarks.measure import Settings, Turns, on_a_quiet_machine, ratio, speed_row

WHAT = __doc__ or ""
CLIENTS, BATCH, STEPS = 10, 128, 5


def run(settings: Settings) -> dict[str, Any]:
    """Measure W4."""
    side, batch, steps = (8, 4, 1) if settings.quick else (32, BATCH, STEPS)
    pairs = 3 if settings.quick else 5 if settings.short else 7
    found = {
        n: on_a_quiet_machine(
            lambda n=n: measure(side, batch, steps, pairs, ct.InProcess(workers=n)),
            settings,
        )
        for n in ([1] if settings.short else [1, 2])
    }
    if 2 in found:
        found[2]["cpu_ratio"] = found[2]["ratio"]
    goals = {1: ("W4, one worker", 0.95, 1.8), 2: ("W4, two workers", 1.5, 1.8)}
    rows = [speed_row(goals[n][0], some, *goals[n][1:]) for n, some in found.items()]
    return {
        **found[1],
        "variants": {str(n): some for n, some in found.items()},
        "rows": rows,
    }


def random_images(side: int, rows: int) -> ct.Clients:
    """Clients with so many images of ten classes each, all for training."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(
        0, 256, (CLIENTS, rows, 3, side, side), generator=draw, dtype=torch.uint8
    )
    labels = torch.randint(0, 10, (CLIENTS, rows), generator=draw)
    return ct.data.from_tensors(
        {
            f"client-{i}": (x, y)
            for i, (x, y) in enumerate(zip(images, labels, strict=True))
        },
        split={"parts": {"train": 1.0}},
    )


def measure(
    side: int, batch: int, steps: int, pairs: int, engine: ct.InProcess
) -> dict[str, Any]:
    """Our speed as a multiple of the bare loop's, on the engine's device."""
    clients = random_images(side, 2 * batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            *(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64 * (side // 4) ** 2, 10)),
        )
    parameters = [p.detach().to(engine.device) for p in net.parameters()]
    bare = BareCNN(
        clients.to(torch.device(engine.device)),
        parameters,
        lr=0.01,
        steps=steps,
        batch_size=batch,
    )
    turns = Turns(
        lambda number: bare.round([number % CLIENTS, (number + 1) % CLIENTS]), 1
    )
    method = ct.FedAvg(ct.LocalSGD(lr=0.01, steps=ct.Steps(steps), batch_size=batch))
    rounds = pairs + 2
    ct.fit(
        method, clients, net, rounds, 0, engine=engine,
        settings=ct.RunSettings(2, rounds, metrics=(), callbacks=(turns,), strict_wire=False),
    )  # fmt: skip
    return ratio(turns.pairs)
