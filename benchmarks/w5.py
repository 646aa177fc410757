"""W5: MeritFed, 20 clients, MLP 784-200-200-10, batch 75, 10 mirror-descent steps on batches of 90, against L0."""

from __future__ import annotations

from typing import Any

import coterie as ct
from benchmarks import w1, w3
from benchmarks.measure import Settings

WHAT = __doc__ or ""
_ONE = ct.InProcess()
PARTS = {"train": 0.6, "validation": 0.2, "test": 0.2}


def run(settings: Settings) -> dict[str, Any]:
    """Measure W5."""
    return w3.against_l0(
        "W5, one worker", build_work(settings.quick), 0.95, 1.5, settings
    )


def build_work(small: bool, engine: ct.InProcess = _ONE) -> w3.Work:
    """The run, or a tiny one."""
    work = w1.Work(clients=3 if small else 20)
    rows = w1.synthetic(work, 120 if small else 20_000, PARTS)[0]
    method = ct.MeritFed(
        targets=rows.names[0], local=ct.LocalSGD(lr=0.1, steps=ct.Steps(1), batch_size=75), md_steps=2 if small else 10,
        oracle_batch_size=8 if small else 90,
    )  # fmt: skip
    model = ct.models.MLP(hidden=(8, 8) if small else (200, 200))
    return w3.Work(rows, model, method, 1 if small else 4, 3 if small else 11, engine)
