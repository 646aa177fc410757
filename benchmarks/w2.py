"""W2: Fashion-MNIST, 60 clients, logistic regression, all of them 5 local steps of batch 32 a round, against L0."""

from __future__ import annotations

from typing import Any

from benchmarks import w1
from benchmarks.measure import Settings

WHAT = __doc__ or ""


def run(settings: Settings) -> dict[str, Any]:
    """Measure W2."""
    work = w1.Work(60, 60, 5, 32, turn=4, model="logistic")
    if settings.quick:
        work = w1.Work(6, 6, 4, 8, 1, 3, 1, "logistic")
    clients, test, source = w1.synthetic(work, 240) if settings.quick else w1.load(work)
    return w1.against_l0(
        "W2",
        work,
        clients,
        test,
        source,
        {"one": (0.9, 1.8), "two": (0.9, 3.0)},
        settings,
    )
