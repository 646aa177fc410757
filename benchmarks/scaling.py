"""The cost of clients that exist but do not take part: 10 clients a round out of 10, 100, 1,000 and 10,000.

Time: FedAvg rounds with the local work of W1, without evaluation; every client has 32 rows of one data set in memory.
The same with a linear model and one local step, where bookkeeping is most of a round, shows what grows (no goal).
Memory: what Python and numpy allocate per client for clients, engine and federation after some rounds, less the row numbers.
"""

from __future__ import annotations

import gc
import statistics
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import torch

import coterie as ct
from benchmarks.measure import Pair, Seconds, Settings, on_a_quiet_machine, ratio, row
from coterie.base.rows import Rows
from coterie.engines.inprocess import InProcessEngine
from coterie.models import build_model

WHAT = __doc__ or ""
TIME_GOAL, MEMORY_GOAL = 1.2, 1000
PER_ROUND, SEED = 10, 0


class Work(NamedTuple):
    """Sizes."""

    counts: tuple[int, ...] = (10, 100, 1000, 10_000)
    rows: int = 60_000
    own_rows: int = 32
    steps: int = 30
    rounds: int = 20
    repeats: int = 5


def run(settings: Settings) -> dict[str, Any]:
    """Measure time and memory."""
    work = Work((10, 20, 40), 200, 8, 1, 2, 3) if settings.quick else Work()
    everyone = {n: clients(work, n) for n in work.counts}
    w1 = ct.FedAvg(ct.LocalSGD(lr=0.01, steps=ct.Steps(work.steps), batch_size=32))
    tiny = ct.FedAvg(ct.LocalSGD(lr=0.01, steps=ct.Steps(1), batch_size=32))
    found = on_a_quiet_machine(
        lambda: _measure(work, everyone, w1, ct.models.MLP()), settings
    )
    once = settings._replace(attempts=1)
    bookkeeping = on_a_quiet_machine(
        lambda: _measure(work, everyone, tiny, ct.models.Logistic()), once
    )
    memory = bytes_per_client(work, work.counts[-2], work.counts[-1])
    most = work.counts[-1]
    growth, small = (
        some["cpu_growth" if some["busy"] else "growth"][-1]
        for some in (found, bookkeeping)
    )
    return {
        **found,
        "bookkeeping": bookkeeping,
        "bytes_per_client": memory,
        "rows": [
            row(f"round of W1, 10 -> {most:,} clients that exist", f"{growth:.2f} times the time", f"at most {TIME_GOAL}",
                growth <= TIME_GOAL, found),
            row(f"round of 10 single steps of a linear model, 10 -> {most:,} clients", f"{small:.2f} times the time", "none",
                True, bookkeeping),
            row("memory of a stateless client beyond its rows", f"{memory:.0f} bytes", f"under {MEMORY_GOAL:,}",
                memory < MEMORY_GOAL, {**found, "busy": False}),
        ],
    }  # fmt: skip


def clients(work: Work, count: int) -> ct.Clients:
    """`count` clients with rows drawn from one data set (random numbers: nobody asks for accuracy here)."""
    rng = np.random.default_rng(SEED)
    images = torch.from_numpy(rng.integers(0, 256, (work.rows, 784), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, 10, work.rows))
    lists = [rng.integers(0, work.rows, work.own_rows) for _ in range(count)]
    return ct.Clients.from_indices(
        [f"client-{i:05d}" for i in range(count)],
        Rows.from_indices(images, labels, lists),
    )


def _measure(
    work: Work, everyone: dict[int, ct.Clients], method: ct.FedAvg, model: Any
) -> dict[str, Any]:
    """Times of the same rounds with few and with many clients, in turns; growth is the median over pairs."""
    times: dict[int, list[Seconds]] = {n: [] for n in everyone}
    for _ in range(work.repeats):
        for count, some in everyone.items():
            times[count].append(_rounds(work, some, method, model))
    fewest = times[work.counts[0]]
    pairs = {
        n: [Pair(a, b) for a, b in zip(fewest, t, strict=True)]
        for n, t in times.items()
    }
    return {
        "clients": list(times),
        "milliseconds_per_round": [
            1000 * statistics.median(t.wall for t in ts) / work.rounds
            for ts in times.values()
        ],
        "growth": [ratio(p)["ratio"] for p in pairs.values()],
        "cpu_growth": [ratio(p)["cpu_ratio"] for p in pairs.values()],
        "pairs": work.repeats,
    }


def _rounds(work: Work, some: ct.Clients, method: ct.FedAvg, model: Any) -> Seconds:
    """Time of `work.rounds` rounds, without what `fit` does before the first and in the last round."""
    marks: dict[int, Seconds] = {}

    def progress(number: int) -> None:
        marks[number] = Seconds.now()

    last = work.rounds + 2
    ct.fit(
        method, some, model, last, SEED, settings=ct.RunSettings(
            min(PER_ROUND, len(some)), last, metrics=(), callbacks=(progress,), strict_wire=False,
        ),
    )  # fmt: skip
    return marks[last - 1].since(marks[1])


def bytes_per_client(work: Work, few: int, many: int) -> float:
    """What one more client costs, from two federations that share nothing but the kind of their rows."""
    held = []
    for count in (few, many):
        gc.collect()
        tracemalloc.start()
        some = clients(work, count)
        kept = _federation(some)
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0] - 8 * work.own_rows * count)
        tracemalloc.stop()
        del some, kept
    return (held[1] - held[0]) / (many - few)


def _federation(some: ct.Clients) -> tuple[Any, ...]:
    """Everything that lives during a run, after three rounds."""
    engine = InProcessEngine(some, build_model(ct.models.Logistic(), some, SEED))
    federation = ct.Federation(engine, engine.clients, SEED)
    method = ct.FedAvg(ct.LocalSGD(steps=ct.Steps(1)))
    state = method.init(engine.x, federation)
    for number in (1, 2, 3):
        chosen = ct.Rng.named(SEED, "participants", number).permutation(
            len(some), PER_ROUND
        )
        view = federation.view(
            [engine.clients[i] for i in sorted(chosen.tolist())], number, 0
        )
        state, _ = method.round(state, view, ct.Rng.named(SEED, "server", number))
    return engine, federation, state
