"""What engines cost: seconds per ask and per round, and how many asks and numbers a round of each method takes.

An ask is one request of a method to some clients with a model of so many float32 numbers; each client sends a vector of the same size
back. Seconds are medians over asks, engines in turns. A round is one of each method on the four hospitals of heart-disease with an MLP
and 10 local steps, without evaluation; again the median. Asks and numbers are counted by the federation in one round, in process:
numbers per participant, in multiples of the model.

NVIDIA FLARE is measured in one job of its simulator, after the others: a server, a worker and a cohort process for each hospital on
loopback, without TLS. Its asks are between the same four clients by other names. An engine whose packages are missing is left out.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

import coterie as ct
from benchmarks.engine_work import Flat, Work, echo, methods
from benchmarks.measure import Settings, on_a_quiet_machine
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rows import Part
from coterie.contract.federation import Federation
from coterie.data import load

WHAT = __doc__ or ""
NAMES = ("a", "b", "c", "d")
FLARE = "FLARE's simulator"


WAYS: dict[str, ct.EngineSpec] = {
    "in process": ct.InProcess(),
    "2 workers": ct.InProcess(workers=2),
    "Ray, 2 actors": ct.Ray(actors=2),
}
"""Columns of the tables; FLARE's follows."""


def run(settings: Settings) -> dict[str, Any]:
    """Measure all engines that are installed."""
    work = (
        Work({1000: 2, 2000: 2}, 3, 1, ("fedavg", "meritfed"))
        if settings.quick
        else Work()
    )
    with _cluster() as started:
        ways = {
            k: w
            for k, w in WAYS.items()
            if started is not None or not isinstance(w, ct.Ray)
        }
        found = on_a_quiet_machine(
            lambda: _measured(work, ways), settings._replace(attempts=2)
        )
    return {**found, "ray_start_seconds": started, "counts": _counts(work), "rows": []}


def _measured(work: Work, ways: Mapping[str, ct.EngineSpec]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "engines": list(ways),
        "asks": _asks(work, ways),
        "rounds": _rounds(work, ways),
    }
    there = _on_flare(work)
    if there is None:
        return {**found, "flare_start_seconds": None}
    for ask, seconds in zip(found["asks"], there["asks"], strict=True):
        ask["seconds"][FLARE] = seconds
    for row in found["rounds"]:
        row["seconds"][FLARE] = there["rounds"].get(row["method"])
    return {**found, "engines": [*ways, FLARE], "flare_start_seconds": there["start"]}


def _on_flare(work: Work) -> dict[str, Any] | None:
    """What a job of FLARE's simulator has measured, None if FLARE is not installed."""
    if importlib.util.find_spec("nvflare") is None:
        return None
    from benchmarks.flare import measure

    return measure(work)


@contextmanager
def _cluster() -> Iterator[float | None]:
    """One Ray cluster for all; how long it and its first actors took to start, None if ray is not installed."""
    begun = time.perf_counter()
    with ExitStack() as stack:
        try:
            from coterie.engines.ray_cluster import cluster

            stack.enter_context(cluster(2))
        except InputError:
            stack.enter_context(nullcontext())
            yield None
            return
        ct.Ray(actors=2).open(_four(), Flat(1), "auto").close()
        yield time.perf_counter() - begun


def _four() -> Clients:
    part = Part(torch.ones(2, 1), torch.tensor([0, 1]))
    return Clients([Client(name, part) for name in NAMES])


def _asks(work: Work, ways: Mapping[str, ct.EngineSpec]) -> list[dict[str, Any]]:
    """Seconds of an ask to one client and to four."""
    rows = []
    for floats, repeats in work.floats.items():
        engines = {
            name: way.open(_four(), Flat(floats), "auto") for name, way in ways.items()
        }
        x = torch.zeros(floats)
        try:
            for asked in (NAMES[:1], NAMES):
                seconds: dict[str, list[float]] = {name: [] for name in engines}
                for _ in range(repeats + 1):
                    for name, engine in engines.items():
                        federation = Federation(engine, engine.clients)
                        federation.ask(asked, echo, x=x)
                        seconds[name].append(federation.session.asks[0].seconds)
                medians = {
                    name: statistics.median(s[1:]) for name, s in seconds.items()
                }
                rows.append(
                    {"floats": floats, "clients": len(asked), "seconds": medians}
                )
        finally:
            for engine in engines.values():
                engine.close()
    return rows


def _run(method: Any, rounds: int, engine: ct.EngineSpec = WAYS["in process"]) -> Any:
    clients = load("heart-disease", seed=0)
    clients = clients.with_server(clients["switzerland"].part("validation"))
    settings = ct.RunSettings(evaluate=rounds, metrics=(), strict_wire=False)
    return ct.fit(
        method, clients, ct.models.MLP(), rounds, engine=engine, settings=settings
    )


def _rounds(work: Work, ways: Mapping[str, ct.EngineSpec]) -> list[dict[str, Any]]:
    """Seconds of a round of each method; the first round warms up, the last is evaluated."""
    rows = []
    for name, method in methods(work):
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(work.turns):
            for way in ways:
                seconds[way] += [
                    s[1] for s in _run(method, work.rounds, ways[way]).seconds[1:-1]
                ]
        rows.append(
            {
                "method": name,
                "seconds": {way: statistics.median(s) for way, s in seconds.items()},
            }
        )
    return rows


def _counts(work: Work) -> list[dict[str, Any]]:
    """Asks of the second of three rounds, and what they carry per client of the run, in multiples of the model."""
    rows = []
    for name, method in methods(work):
        found = _run(method, 3)
        model = found.x if "*" in found.models else next(iter(found.models.values()))
        asks = [r for r in found.asks if r.round == 2]
        per_client = 4 * (1 if method.pooled else 4) * len(model)
        rows.append(
            {
                "method": name,
                "asks": len(asks),
                "down": sum(r.bytes_down * r.clients for r in asks) / per_client,
                "up": sum(r.bytes_up * (r.clients - r.failed) for r in asks)
                / per_client,
            }
        )
    return rows


def table(result: Mapping[str, Any]) -> str:
    """Three tables: asks, rounds, and counts."""
    engines = result["engines"]
    lines = [
        f"| one ask | {' | '.join(engines)} |",
        "| --- |" + " --- |" * len(engines),
    ]
    for row in result["asks"]:
        who = f"{row['clients']} client{'s' * (row['clients'] > 1)}, {row['floats']:,} numbers"
        lines.append(
            f"| {who} | {' | '.join(_time(row['seconds'][e]) for e in engines)} |"
        )
    lines += [
        "",
        f"| one round | {' | '.join(engines)} | asks | models down | models up |",
        "| --- |" + " --- |" * (len(engines) + 3),
    ]
    for row, count in zip(result["rounds"], result["counts"], strict=True):
        times = " | ".join(_time(row["seconds"][e]) for e in engines)
        lines.append(
            f"| {row['method']} | {times} | {count['asks']} | {count['down']:.1f} | {count['up']:.1f} |"
        )
    started = result["ray_start_seconds"]
    machine, load = result["machine"], result["load"]
    ray = (
        "ray is not installed: not measured"
        if started is None
        else f"a local Ray cluster and two actors start in {started:.1f} s"
    )
    first = result.get("flare_start_seconds")
    flare = (
        "nvflare is not installed: not measured"
        if first is None
        else f"FLARE's simulator has its first ask after {first:.1f} s"
    )
    busy = " Busy: take orders of magnitude from it." if result["busy"] else ""
    about = f"{machine['cpu']}, {machine['cores']} cores, load {load[0]} -> {load[1]}; "
    about += f"commit {result['commit']}; {ray}; {flare}.{busy}"
    return "\n".join([*lines, "", about])


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
