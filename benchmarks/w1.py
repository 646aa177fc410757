"""W1: Fashion-MNIST, 100 clients, MLP 784-64-30-10, 10 clients a round, 30 local steps of batch 32, against L0.

On one worker and on two, also with `kernel="loop"`, which is what any module that the batched kernel does not know gets.
Given the same batches, in float64, both contestants end with the same parameters to 1e-12.

The library runs as a user runs it: `ct.fit` on `ct.data.load("fashion-mnist")`, images as they are on disk (uint8, 28 x 28).
480 training rows per client are 15 whole batches, so both contestants do exactly the same work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import coterie as ct
from benchmarks.bare import BareLoop
from benchmarks.measure import Settings, Turns, on_a_quiet_machine, ratio, speed_row
from coterie.base.rng import batches
from coterie.config.registry import MODELS
from coterie.models import build_model

WHAT = __doc__ or ""
SEED, LR = 0, 0.1
PARTS = {"train": 0.8, "test": 0.2}


class Work(NamedTuple):
    """Sizes of the work, and how many rounds are measured."""

    clients: int = 100
    per_round: int = 10
    steps: int = 30
    batch_size: int = 32
    turn: int = 3
    pairs: int = 15
    check: int = 3
    model: str = "mlp"

    @property
    def rounds(self) -> int:
        """A turn to warm up, the pairs, and one round with the final evaluation that is in no pair."""
        return self.turn * (self.pairs + 1) + 1


def run(settings: Settings) -> dict[str, Any]:
    """Measure W1."""
    work = Work(6, 2, 4, 8, 1, 3, 1) if settings.quick else Work()
    clients, test, source = synthetic(work, 240) if settings.quick else load(work)
    goals = {
        "one": (0.9, 1.7),
        "two": (1.6, 2.8),
        "loop": (0.9, 0.9),
        "loop-two": (1.6, 1.6),
    }
    return against_l0("W1", work, clients, test, source, goals, settings)


_ONE = ct.InProcess()
VARIANTS: dict[str, tuple[str, ct.InProcess]] = {
    "one": ("one worker", _ONE),
    "two": ("two workers", ct.InProcess(workers=2)),
    "loop": ('one worker, `kernel="loop"`', ct.InProcess(kernel="loop")),
    "loop-two": (
        'two workers, `kernel="loop"`',
        ct.InProcess(kernel="loop", workers=2),
    ),
}


def against_l0(
    name: str,
    work: Work,
    clients: ct.Clients,
    test: ct.Part,
    source: str,
    goals: Mapping[str, tuple[float, float]],
    settings: Settings,
) -> dict[str, Any]:
    """Measure FedAvg in these variants; `goals` has what must be reached and what is aimed at by variant."""
    work = work._replace(pairs=5) if settings.short else work
    found: dict[str, Any] = {}
    rows = []
    for variant in ["one"] if settings.short else goals:
        title, engine = VARIANTS[variant]
        measured = on_a_quiet_machine(
            lambda engine=engine: measure(work, clients, test, engine), settings
        )
        if engine.workers > 1:  # this process's CPU time says nothing of its workers
            measured["cpu_ratio"] = measured["ratio"]
        found[variant] = measured
        must, aim = goals[variant]
        rows.append(speed_row(f"{name}, {title}", measured, must, aim))
    drift = _same_batches(work, clients)
    return {
        **found["one"],
        "variants": found,
        "data": source,
        "work": work._asdict(),
        "largest_difference_with_equal_batches": drift,
        "rows": rows,
    }


def load(
    work: Work, parts: Mapping[str, float] = PARTS
) -> tuple[ct.Clients, ct.Part, str]:
    """Clients of equal size, test rows, and where they come from."""
    try:
        clients = ct.data.load(
            "fashion-mnist",
            seed=SEED,
            split={"kind": "iid", "clients": work.clients, "parts": parts},
            server=10_000,
        )
    except ct.InputError as error:
        clients, test, source = synthetic(work, 60_000, parts)
        return clients, test, f"{source} ({error})"
    held = clients.server
    assert held is not None
    return clients.with_server(None), held, "Fashion-MNIST"


def synthetic(
    work: Work, rows: int, parts: Mapping[str, float] = PARTS
) -> tuple[ct.Clients, ct.Part, str]:
    """The same with random images of that shape."""
    rng = np.random.default_rng(SEED)
    images = torch.from_numpy(
        rng.integers(0, 256, (rows + 100, 28, 28), dtype=np.uint8)
    )
    labels = torch.from_numpy(rng.integers(0, 10, rows + 100))
    named = {
        f"client-{i:03d}": (
            images[torch.from_numpy(own)],
            labels[torch.from_numpy(own)],
        )
        for i, own in enumerate(np.array_split(np.arange(rows), work.clients))
    }
    clients = ct.data.from_tensors(named, seed=SEED, split={"parts": parts})
    return (
        clients,
        ct.Part(images[rows:], labels[rows:]),
        "synthetic images of the shape of Fashion-MNIST",
    )


def measure(
    work: Work, clients: ct.Clients, test: ct.Part, engine: ct.InProcess
) -> dict[str, Any]:
    """Our speed as a multiple of the bare loop's, on the engine's device."""
    bare, drawn = (
        _bare(work, clients, device=engine.device),
        _participants(work, clients),
    )
    turns = Turns(lambda number: bare.round(drawn(number)), work.turn)
    fitted = _fit(work, clients, work.rounds, (turns,), engine=engine)
    bare.round(drawn(work.rounds))
    ours = _bare(work, clients, device=engine.device)
    ours.parameters = _shaped(fitted.x, ours.parameters)
    return {
        **ratio(turns.pairs),
        "rounds": work.rounds,
        "accuracy": ours.accuracy(test),
        "reference_accuracy": bare.accuracy(test),
    }


def _same_batches(work: Work, clients: ct.Clients) -> float:
    """Largest difference of any parameter, in float64, after some rounds in which L0 is given the library's batches."""
    start = build_model(MODELS[work.model](), clients, SEED).double()
    bare, drawn = _bare(work, clients, torch.float64), _participants(work, clients)
    for number in range(1, work.check + 1):
        chosen = drawn(number)
        streams = [
            ct.Rng.named(SEED, number, clients.names[i], "train") for i in chosen
        ]
        counts = clients.train.sizes
        rows = [
            np.concatenate(
                list(batches(s, int(counts[i]), work.batch_size, steps=work.steps))
            )
            for s, i in zip(streams, chosen, strict=True)
        ]
        bare.round(chosen, [torch.from_numpy(r) for r in rows])
    return float(
        (_fit(work, clients, work.check, model=start).x - bare.vector).abs().max()
    )


def _fit(
    work: Work,
    clients: ct.Clients,
    rounds: int,
    callbacks: tuple[Turns, ...] = (),
    *,
    model: Any = None,
    engine: ct.InProcess = _ONE,
) -> Any:
    method = ct.FedAvg(
        ct.LocalSGD(lr=LR, steps=ct.Steps(work.steps), batch_size=work.batch_size)
    )
    settings = ct.RunSettings(
        work.per_round, rounds, metrics=(), callbacks=callbacks, strict_wire=False
    )
    return ct.fit(
        method,
        clients,
        model or MODELS[work.model](),
        rounds,
        SEED,
        engine=engine,
        settings=settings,
    )


def _bare(
    work: Work,
    clients: ct.Clients,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> BareLoop:
    start = (
        build_model(MODELS[work.model](), clients, SEED).to(device, dtype).parameters()
    )
    return BareLoop(
        clients.to(torch.device(device)),
        list(start),
        lr=LR,
        steps=work.steps,
        batch_size=work.batch_size,
    )


def _participants(work: Work, clients: ct.Clients) -> Any:
    def drawn(number: int) -> list[int]:
        order = ct.Rng.named(SEED, "participants", number).permutation(
            len(clients), work.per_round
        )
        return sorted(order.tolist())

    return drawn


def _shaped(x: Tensor, like: list[Tensor]) -> list[Tensor]:
    return [
        part.view_as(p)
        for part, p in zip(x.split([p.numel() for p in like]), like, strict=True)
    ]
