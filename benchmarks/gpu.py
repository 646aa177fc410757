"""Training on a GPU: each work against the bare loop on the same GPU, and the memory of a run on it beside the preflight's forecast.

W1, W4 and W5 are those of the CPU's table. ResNet9 is FedAvg over 10 clients with 6.6 million parameters, 10 steps of 64 images each.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

import coterie as ct
from benchmarks import w1, w4, w5
from benchmarks.bare import BareModule
from benchmarks.measure import Settings, Turns, ratio
from benchmarks.scale_cases import noted_forecasts
from benchmarks.w3 import measure as measure_meritfed
from coterie.models import build_model

WHAT = __doc__ or ""


def run(settings: Settings) -> dict[str, Any]:
    """Measure all works. Raises `InputError` without a GPU, but for tiny sizes, which show on a CPU that the code runs."""
    if not (torch.cuda.is_available() or settings.quick):
        raise ct.InputError("torch finds no GPU here")
    before = os.getloadavg()[0]
    device, small = "cuda" if torch.cuda.is_available() else "cpu", settings.quick
    size = w1.Work(6, 2, 4, 8, 1, 3, 1) if small else w1.Work()
    clients, test, _ = w1.synthetic(size, 240 if small else 60_000)
    images = (8, 4, 1, 3) if small else (32, w4.BATCH, w4.STEPS, 7)
    works: dict[str, Callable[[ct.InProcess], dict[str, Any]]] = {
        "W1, an MLP": lambda engine: w1.measure(size, clients, test, engine),
        "W4, two convolutions": lambda engine: w4.measure(*images, engine),
        "W5, MeritFed with an MLP": lambda engine: measure_meritfed(
            w5.build_work(small, engine)
        ),
        "ResNet9": lambda engine: _resnet(small, engine),
    }
    runs = [
        {
            "work": title,
            "kernel": kernel,
            **measure(ct.InProcess(kernel=kernel, device=device)),
        }
        for title, measure in works.items()
        for kernel in (("auto", "loop") if "MLP" in title else ("loop",))
    ]
    memory = [_memory(small, device, kernel) for kernel in ("auto", "loop")]
    name = torch.cuda.get_device_name() if device == "cuda" else "none"
    return {
        "gpu": name,
        "runs": runs,
        "memory": memory,
        "load": [round(before, 2), round(os.getloadavg()[0], 2)],
    }


def _resnet(small: bool, engine: ct.InProcess) -> dict[str, Any]:
    side, rows, pairs, steps, batch = (8, 8, 2, 1, 4) if small else (32, 256, 5, 10, 64)
    clients = w4.random_images(side, rows)
    spec = ct.models.ResNet8() if small else ct.models.ResNet9()
    net = build_model(spec, clients, 0)
    bare = BareModule(
        clients.to(torch.device(engine.device)), build_model(spec, clients, 0).to(engine.device),
        lr=0.01, steps=steps, batch_size=batch,
    )  # fmt: skip
    turns, rounds = Turns(lambda number: bare.round(range(w4.CLIENTS)), 1), pairs + 2
    method = ct.FedAvg(ct.LocalSGD(lr=0.01, steps=ct.Steps(steps), batch_size=batch))
    settings = ct.RunSettings(
        evaluate=rounds, metrics=(), callbacks=(turns,), strict_wire=False
    )
    ct.fit(method, clients, net, rounds, 0, engine=engine, settings=settings)
    return ratio(turns.pairs)


def _memory(small: bool, device: str, kernel: str) -> dict[str, Any]:
    clients = w1.synthetic(w1.Work(10), 100 if small else 1000)[0]
    net = build_model(ct.models.MLP(hidden=(8,) if small else (1900,) * 4), clients, 0)
    size = sum(p.numel() * p.element_size() for p in net.parameters())
    method = ct.FedAvg(ct.LocalSGD(lr=0.01, steps=ct.Steps(2), batch_size=8))
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    with noted_forecasts() as forecasts:
        settings = ct.RunSettings(evaluate=2, strict_wire=False)
        ct.fit(
            method,
            clients,
            net,
            2,
            engine=ct.InProcess(kernel=kernel, device=device),
            settings=settings,
        )
    peak = torch.cuda.max_memory_allocated() - before if device == "cuda" else 0
    return {
        "kernel": kernel,
        "model_mb": size / 1e6,
        "peak": peak / size,
        "forecast": max(forecasts, default=0) / size,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the tables of the site."""
    lines = [
        "| work | `kernel` | of the bare loop's speed on this GPU | seconds of a turn |",
        "| --- | --- | --- | --- |",
    ]
    for found in result["runs"]:
        low, high = found["quartiles"]
        speed = f"{found['ratio']:.2f} ({low:.2f} to {high:.2f})"
        lines.append(
            f"| {found['work']} | {found['kernel']} | {speed} | {found['seconds']:.3f} |"
        )
    megabytes = result["memory"][0]["model_mb"]
    lines += [
        "",
        f"| FedAvg, 10 clients, an MLP of {megabytes:.0f} MB | peak on the GPU | forecast |",
        "| --- | --- | --- |",
    ]
    lines += [
        f'| `kernel = "{found["kernel"]}"` | {found["peak"]:.1f} models | {found["forecast"]:.1f} models |'
        for found in result["memory"]
    ]
    versions = result["versions"]
    note = (
        f"{result['gpu']}; Python {versions['python']}, PyTorch {versions['torch']}; {result['measured'][:10]}; "
        f"commit {result['commit']}. In brackets: quartiles over pairs of turns."
    )
    return "\n".join([*lines, "", note])
