"""The work with coterie, as a user calls it: `ct.fit` with FedAvg on clients made of arrays, a byte per pixel as on disk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from work import Clock, Work, build, main

import coterie as ct

SEED = 0


def run(work: Work, clock: Clock) -> Sequence[Tensor]:
    """Train, and return the final layers."""
    rows = zip(work.images, work.labels, strict=True)
    digits = max(
        3, len(str(len(work.labels) - 1))
    )  # the order of names is that of the numbers which participants have
    clients = ct.data.from_tensors(
        {f"client-{i:0{digits}d}": {"train": pair} for i, pair in enumerate(rows)}
    )
    steps = work.epochs * work.labels.shape[1] // work.batch_size
    method = ct.FedAvg(
        ct.LocalSGD(lr=work.lr, steps=ct.Steps(steps), batch_size=work.batch_size)
    )
    model = build(work, nn.Sequential, nn)
    init = {
        name: torch.from_numpy(layer)
        for name, layer in zip(model.state_dict(), work.layers, strict=True)
    }
    drawn = [
        np.sort(
            ct.Rng.named(SEED, "participants", number).permutation(
                len(clients), work.participants.shape[1]
            )
        )
        for number in range(1, work.rounds + 1)
    ]
    if not np.array_equal(drawn, work.participants):
        raise SystemExit("coterie draws other participants than those of the work")
    settings = ct.RunSettings(
        work.participants.shape[1], work.rounds, metrics=(), callbacks=(lambda n: clock.round() if n else clock.start(),),
    )  # fmt: skip
    engine = ct.InProcess(workers=work.workers)
    fitted = ct.fit(
        method,
        clients,
        model,
        work.rounds,
        SEED,
        engine=engine,
        init=init,
        settings=settings,
    )
    return list(fitted.state_dict().values())


if __name__ == "__main__":
    main("coterie", run, ["torch", "numpy"], in_process=lambda work: work.workers == 1)
