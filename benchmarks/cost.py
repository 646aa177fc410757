"""What methods cost beside training: seconds of a round as a multiple of its row gradients at FedAvg's speed per row.

A row whose loss alone is asked for (MaxFL's gap, MeritFed's phi) counts as a third of a row gradient: a forward pass of three.

Each method and FedAvg take turns on the data of W1 (20 clients, all of them in every round). A method's own work (descent, QP,
averages: everything outside of asks) is measured apart and taken off before the comparison. The same is said in CPU time, of which asks
are taken to have the share that they have on the wall.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import coterie as ct
from benchmarks import w1
from benchmarks.measure import Settings, on_a_quiet_machine, replace_round, row

WHAT = __doc__ or ""
GOAL = 1.1
PARTS = {"train": 0.6, "validation": 0.2, "test": 0.2}


def _work(federation: ct.Federation) -> float:
    spent = federation.session.spent
    return spent.get("row_gradients", 0) + spent.get("row_losses", 0) / 3


class Cost(NamedTuple):
    """Of one round: seconds in asks, and of the CPU; seconds of the method itself, row gradients."""

    asks: float
    cpu: float
    own: float
    row_gradients: float


def run(settings: Settings) -> dict[str, Any]:
    """Measure every method."""
    small = settings.quick
    work = w1.Work(clients=3 if small else 20)
    clients = w1.synthetic(work, 240 if small else 12_000, PARTS)[0]
    rounds, pairs = (2, 2) if small else (4, 5)
    local = ct.LocalSGD(
        lr=0.05, steps=ct.Steps(2 if small else 20), batch_size=8 if small else 32
    )
    methods: dict[str, Any] = {
        "fedprox": ct.FedProx(local, mu=0.1),
        "meritfed": ct.MeritFed(
            targets=clients.names[0],
            local=local,
            md_steps=5,
            oracle_batch_size=8 if small else 90,
        ),
        "varsel": ct.VaRSeL(internal=clients.names[: 2 if small else 4], local=local),
        "maxfl": ct.MaxFL(local=local),
    }
    found = on_a_quiet_machine(
        lambda: _measure(methods, local, clients, rounds, pairs), settings
    )
    judged = "cpu_multiple" if found["busy"] else "multiple"
    rows = [
        row(f"round of {name}, per row gradient, without its own work",
            f"{found[name]['multiple']:.2f} times FedAvg's seconds (in CPU time {found[name]['cpu_multiple']:.2f}); "
            f"its own work {1000 * found[name]['own']:.1f} ms",
            f"at most {GOAL}", found[name][judged] <= GOAL, found)
        for name in methods
    ]  # fmt: skip
    return {**found, "rows": rows}


def _measure(
    methods: dict[str, Any],
    local: ct.LocalSGD,
    clients: ct.Clients,
    rounds: int,
    pairs: int,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, method in methods.items():
        turns = [
            (_round(method, clients, rounds), _round(ct.FedAvg(local), clients, rounds))
            for _ in range(pairs + 1)
        ][1:]
        rows = [f.row_gradients / m.row_gradients for m, f in turns]
        found[name] = {
            "multiple": statistics.median(
                r * m.asks / f.asks for r, (m, f) in zip(rows, turns, strict=True)
            ),
            "cpu_multiple": statistics.median(
                r * m.cpu / f.cpu for r, (m, f) in zip(rows, turns, strict=True)
            ),
            "own": statistics.median(m.own for m, _ in turns),
            "row_gradients": turns[0][0].row_gradients,
        }
    return found


def _round(method: Any, clients: ct.Clients, rounds: int) -> Cost:
    """The mean of all rounds but the first and the last: a method may ask more clients in one round than in another."""
    last = rounds + 2
    clock: list[float] = []
    rows: list[float] = []

    def count(
        round: Callable[..., tuple[Any, Any]],
        state: Any,
        federation: ct.Federation,
        rng: ct.Rng,
    ) -> Any:
        before = _work(federation)
        state, log = round(state, federation, rng)
        rows.append(_work(federation) - before)
        return state, log

    done = ct.fit(
        replace_round(method, count), clients, ct.models.MLP(), last, 0, settings=ct.RunSettings(
            evaluate=last, metrics=(), merge_validation=False, strict_wire=False,
            callbacks=(lambda number: clock.append(time.process_time()),),
        ),
    )  # fmt: skip
    inner = done.seconds[1:-1]
    spent_cpu = [after - before for before, after in pairwise(clock[1:-1])]
    return Cost(
        statistics.fmean(c.seconds - (c.own or 0.0) for c in inner),
        statistics.fmean(
            cpu * (1 - (c.own or 0.0) / c.seconds)
            for cpu, c in zip(spent_cpu, inner, strict=True)
        ),
        statistics.fmean(c.own or 0.0 for c in inner),
        statistics.fmean(rows[1:-1]),
    )
