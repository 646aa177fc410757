"""W1: Fashion-MNIST, 100 clients, MLP 784-64-30-10, 10 clients a round, 30 local steps of batch 32, against L0.

The library runs as a user runs it: `ct.fit` on `ct.data.load("fashion-mnist")`, images as they are on disk (uint8, 28 x 28).
480 training rows per client are 15 whole batches, so both contestants do exactly the same work.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import coterie as ct
from benchmarks.bare import BareLoop
from benchmarks.measure import Settings, Turns, decisive, on_a_quiet_machine, ratio, row
from coterie.core.rng import batches
from coterie.models import build_model

WHAT = __doc__ or ""
GOAL = 0.9
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

    @property
    def rounds(self) -> int:
        """A turn to warm up, the pairs, and one round with the final evaluation that is in no pair."""
        return self.turn * (self.pairs + 1) + 1


def run(settings: Settings) -> dict[str, Any]:
    """Measure W1."""
    work = Work(6, 2, 4, 8, 1, 3, 1) if settings.quick else Work()
    clients, test, source = synthetic(work, 240) if settings.quick else load(work)
    found = on_a_quiet_machine(lambda: _measure(work, clients, test), settings)
    drift = _same_batches(work, clients)
    speed = f"{found['ratio']:.2f} of L0's speed (in CPU time {found['cpu_ratio']:.2f})"
    return {
        **found,
        "data": source,
        "work": work._asdict(),
        "largest_difference_with_equal_batches": drift,
        "rows": [row("W1, one worker", speed, f"at least {GOAL}", decisive(found) >= GOAL, found)],
    }


def load(work: Work) -> tuple[ct.Clients, ct.Part, str]:
    """Clients of equal size, test rows, and where they come from."""
    try:
        clients = ct.data.load(
            "fashion-mnist", seed=SEED, split={"kind": "iid", "clients": work.clients, "parts": PARTS}, server=10_000
        )
    except ct.InputError as error:
        clients, test, source = synthetic(work, 60_000)
        return clients, test, f"{source} ({error})"
    held = clients.server
    assert held is not None
    return clients.with_server(None), held, "Fashion-MNIST"


def synthetic(work: Work, rows: int) -> tuple[ct.Clients, ct.Part, str]:
    """The same with random images of that shape."""
    rng = np.random.default_rng(SEED)
    images = torch.from_numpy(rng.integers(0, 256, (rows + 100, 28, 28), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, 10, rows + 100))
    named = {
        f"client-{i:03d}": (images[torch.from_numpy(own)], labels[torch.from_numpy(own)])
        for i, own in enumerate(np.array_split(np.arange(rows), work.clients))
    }
    clients = ct.data.from_tensors(named, seed=SEED, split={"parts": PARTS})
    return clients, ct.Part(images[rows:], labels[rows:]), "synthetic images of the shape of Fashion-MNIST"


def _measure(work: Work, clients: ct.Clients, test: ct.Part) -> dict[str, Any]:
    bare, drawn = _bare(work, clients), _participants(work, clients)
    turns = Turns(lambda number: bare.round(drawn(number)), work.turn)
    fitted = _fit(work, clients, work.rounds, turns)
    bare.round(drawn(work.rounds))
    ours = _bare(work, clients)
    ours.parameters = _shaped(fitted.x, ours.parameters)
    return {
        **ratio(turns.pairs),
        "rounds": work.rounds,
        "accuracy": ours.accuracy(test),
        "reference_accuracy": bare.accuracy(test),
    }


def _same_batches(work: Work, clients: ct.Clients) -> float:
    """Largest difference of any parameter after some rounds in which L0 is given the library's batches."""
    bare, drawn = _bare(work, clients), _participants(work, clients)
    for number in range(1, work.check + 1):
        chosen = drawn(number)
        streams = [ct.Rng.named(SEED, number, clients.names[i], "train") for i in chosen]
        counts = clients.train.sizes
        rows = [
            np.concatenate(list(batches(s, int(counts[i]), work.batch_size, steps=work.steps)))
            for s, i in zip(streams, chosen, strict=True)
        ]
        bare.round(chosen, [torch.from_numpy(r) for r in rows])
    return float((_fit(work, clients, work.check, None).x - bare.vector).abs().max())


def _fit(work: Work, clients: ct.Clients, rounds: int, progress: Turns | None) -> Any:
    method = ct.FedAvg(ct.LocalSGD(lr=LR, steps=ct.Steps(work.steps), batch_size=work.batch_size))
    return ct.fit(
        method, clients, ct.models.MLP(), rounds, SEED,
        clients_per_round=work.per_round, evaluate=rounds, metrics=(), progress=progress, strict_wire=False,
    )  # fmt: skip


def _bare(work: Work, clients: ct.Clients) -> BareLoop:
    start = build_model(ct.models.MLP(), clients, SEED).parameters()
    return BareLoop(clients, list(start), lr=LR, steps=work.steps, batch_size=work.batch_size)


def _participants(work: Work, clients: ct.Clients) -> Any:
    def drawn(number: int) -> list[int]:
        order = ct.Rng.named(SEED, "participants", number).permutation(len(clients), work.per_round)
        return sorted(order.tolist())

    return drawn


def _shaped(x: Tensor, like: list[Tensor]) -> list[Tensor]:
    return [part.view_as(p) for part, p in zip(x.split([p.numel() for p in like]), like, strict=True)]
