"""More cases of `benchmarks/scale.py`: what MeritFed's paper form, checkpoints, answers, 16 bits and filters cost.

Each is a multiple of something measured beside it, in turns, but for the seconds of an answer.
"""

from __future__ import annotations

import contextlib
import io
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie as ct
from coterie.base.vector import Layout
from coterie.contract.exchange import clients_at_once

Case = Callable[[], dict[str, float]]
WIDTH, BATCH, STEPS, MD_STEPS = 20, 16, 5, 5
TURNS = 5
LOCAL = ct.LocalSGD(lr=0.1, batch_size=BATCH, steps=ct.Steps(STEPS))
ALL_TARGETS = ct.MeritFed(local=LOCAL, md_steps=MD_STEPS)


def _marked(
    method: Any, clients: ct.Clients, model: Any, rounds: int, **more: Any
) -> float:
    """CPU seconds of a round, the median without the first and the last one."""
    marks: list[float] = []
    settings = ct.RunSettings(
        evaluate=rounds,
        strict_wire=False,
        callbacks=(lambda number: marks.append(time.process_time()),),
    )
    ct.fit(method, clients, model, rounds, settings=settings, **more)
    return float(np.median(np.diff(marks)[1:-1]))


def _timed(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def linear_clients(count: int) -> ct.Clients:
    """Clients of 100 rows of `WIDTH` numbers in two classes, in five kinds."""
    draw = torch.Generator().manual_seed(0)
    rows = {}
    for k in range(count):
        inputs = torch.randn(100, WIDTH, generator=draw)
        noise = torch.randn(100, generator=draw) / 2
        rows[f"c{k:03d}"] = inputs, (inputs[:, k % 5] + noise > 0).long()
    return ct.data.from_tensors(rows)


class Least:
    """A round of MeritFed's paper form for all, with nothing but its arithmetic: wide products and batched descents."""

    def __init__(self, clients: ct.Clients) -> None:
        parts = [(c.train, c.validation or c.train) for c in clients]
        few = min(len(held) for _, held in parts)
        self.rows = [(train.read(), train.labels.float()) for train, _ in parts]
        held = [(part.read()[:few], part.labels[:few].float()) for _, part in parts]
        self.inputs = torch.stack([inputs for inputs, _ in held])
        self.labels = torch.stack([labels for _, labels in held])
        self.models = torch.zeros(len(parts), WIDTH + 1)

    def round(self) -> None:
        """Local steps of all clients from all models, and the descent of all targets."""
        deltas = torch.stack([self._train(*rows) for rows in self.rows], 1)
        weights = torch.full((len(deltas), len(deltas)), 1 / len(deltas))
        for _ in range(MD_STEPS):
            slopes = torch.bmm(deltas, self._gradients(weights, deltas)[:, :, None])
            logits = weights.log() - slopes[:, :, 0]
            weights = torch.softmax(logits, 1).clamp_min(1e-16)
        self.models = self._moved(weights, deltas)

    def _train(self, inputs: Tensor, labels: Tensor) -> Tensor:
        weight, bias = self.models[:, :WIDTH].T.clone(), self.models[:, WIDTH].clone()
        for _ in range(STEPS):
            chosen = torch.randint(0, len(labels), (BATCH,))
            batch = inputs[chosen]
            outputs = torch.addmm(bias, batch, weight)
            slope = (torch.sigmoid(outputs) - labels[chosen, None]) * (0.1 / BATCH)
            weight.addmm_(batch.T, slope, alpha=-1)
            bias -= slope.sum(0)
        return torch.cat([weight.T, bias[:, None]], 1) - self.models

    def _moved(self, weights: Tensor, deltas: Tensor) -> Tensor:
        moved: Tensor = self.models + torch.bmm(weights[:, None], deltas)[:, 0]
        return moved

    def _gradients(self, weights: Tensor, deltas: Tensor) -> Tensor:
        models = self._moved(weights, deltas)
        outputs = torch.bmm(self.inputs, models[:, :WIDTH, None])[:, :, 0]
        slope = torch.sigmoid(outputs + models[:, WIDTH:]) - self.labels
        slope /= self.labels.shape[1]
        of_weights = torch.bmm(slope[:, None], self.inputs)[:, 0]
        return torch.cat([of_weights, slope.sum(1, keepdim=True)], 1)


def _columns(quick: bool) -> Case:
    def measured() -> dict[str, float]:
        found, seconds = {}, {}
        for n in (10, 20) if quick else (10, 50, 100, 300):
            clients = linear_clients(n)
            least = Least(clients)
            ours, lowest = [], []
            for _ in range(TURNS if n < 300 else 2):
                ours.append(_marked(ALL_TARGETS, clients, "logistic", 6))
                lowest.append(min(_timed(least.round) for _ in range(3)))
            seconds[n] = statistics.median(ours)
            found[f"n{n}"] = seconds[n] / statistics.median(lowest)
        if not quick:
            found["growth"] = math.log(seconds[300] / seconds[100]) / math.log(3)
        return found

    return measured


def _cheap(quick: bool) -> Case:
    """MeritFed's cheap form for all, of FedAvg: mean over rounds, as only every second one asks the targets."""
    cheap = replace(ALL_TARGETS, cheap_above=1)
    clients = linear_clients(10 if quick else 300)

    def seconds(method: Any) -> float:
        marks: list[float] = []
        settings = ct.RunSettings(
            evaluate=12,
            strict_wire=False,
            callbacks=(lambda number: marks.append(time.process_time()),),
        )
        ct.fit(method, clients, "logistic", 12, settings=settings)
        return float(np.diff(marks)[1:-1].mean())

    def measured() -> dict[str, float]:
        ratios = [seconds(cheap) / seconds(ct.FedAvg(LOCAL)) for _ in range(TURNS)]
        return {"times": statistics.median(ratios)}

    return measured


def _saves(quick: bool) -> Case:
    clients, method = linear_clients(10), ct.FedAvg()

    def seconds(checkpoint: Path | None) -> float:
        rounds = 20 if quick else 200
        settings = ct.RunSettings(evaluate=rounds)
        started = time.process_time()
        ct.fit(
            method,
            clients,
            "logistic",
            rounds,
            checkpoint=checkpoint,
            settings=settings,
        )
        return time.process_time() - started

    def measured() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            pairs = [
                (seconds(None), seconds(Path(folder, str(turn))))
                for turn in range(TURNS)
            ]
        ratios = [saved / free for free, saved in pairs]
        return {"percent": max(0.0, 100 * (statistics.median(ratios) - 1))}

    return measured


def _answer(arguments: list[str]) -> float:
    """CPU seconds of a command after its imports."""
    from coterie.cli.main import main

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        command = ["compare", *arguments, "--jobs", "1", "--out", f"{folder}/run"]
        return _timed(lambda: main(command))


def _nhefs(quick: bool) -> Case:
    more = ["--seeds", "1", "--methods", "local,partial"] if quick else []
    return lambda: {"seconds": _answer(["nhefs", *more])}


def _hospitals(quick: bool) -> Case:
    """49 hospitals of 30 rows, whose slopes differ a little."""
    draw = np.random.default_rng(0)
    folder = tempfile.TemporaryDirectory()
    shared = draw.normal(0, 0.5, 9)
    for number in range(5 if quick else 49):
        slopes = shared + draw.normal(0, 0.3, 9)
        x = draw.normal(size=(30, 9)).round(4)
        risk = 1 / (1 + np.exp(-x @ slopes))
        y = (draw.random(30) < risk).astype(int)
        lines = [",".join([*(f"x{i}" for i in range(9)), "died"])]
        for values, label in zip(x.tolist(), y.tolist(), strict=True):
            lines.append(",".join([*map(repr, values), str(label)]))
        Path(folder.name, f"h{number:02d}.csv").write_text("\n".join(lines) + "\n")
    methods = ["--methods", "local,fixed-effects,partial", "--rivals", "linear"]

    def measured() -> dict[str, float]:
        return {"seconds": _answer([folder.name, "--label", "died", *methods])}

    return measured


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 64, 10),
    )  # fmt: skip


def _precision(quick: bool) -> Case:
    batch, steps = (8, 2) if quick else (128, 4)
    inputs = torch.randn(steps * batch, 3, 32, 32)
    labels = torch.randint(0, 10, (steps * batch,))
    clients = ct.data.from_tensors({"a": (inputs, labels)})
    local = ct.LocalSGD(lr=0.01, batch_size=batch, steps=ct.Steps(steps))
    lasting = inputs.contiguous(memory_format=torch.channels_last)

    def plain(*, rounded: bool) -> None:
        model = _cnn().to(memory_format=torch.channels_last)
        optimiser = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(steps):
            part = slice(step * batch, (step + 1) * batch)
            with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                outputs = model(lasting[part])
            optimiser.zero_grad()
            F.cross_entropy(outputs.float(), labels[part]).backward()
            optimiser.step()

    def ours(precision: str) -> float:
        engine = ct.InProcess(precision=precision)
        return _marked(ct.FedAvg(local), clients, _cnn(), 4, engine=engine)

    def measured() -> dict[str, float]:
        works = {
            "plain": partial(_timed, partial(plain, rounded=False)),
            "plain bf16": partial(_timed, partial(plain, rounded=True)),
            "ours": partial(ours, "float32"),
            "ours bf16": partial(ours, "bf16"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(2 if quick else 2 * TURNS):
            for name, work in works.items():
                seconds[name].append(work())
        took = {name: statistics.median(values) for name, values in seconds.items()}
        gain = took["ours"] / took["ours bf16"]
        return {"gain": gain, "share": gain * took["plain bf16"] / took["plain"]}

    return measured


def _bytes(quick: bool) -> Case:
    clients = linear_clients(3)
    # Wide, so that the settings of training, which a request holds beside the model, are few of its bytes.
    model = nn.Sequential(nn.Linear(WIDTH, 1000), nn.ReLU(), nn.Linear(1000, 1))

    def sent(*filters: Any, down: str = "float32") -> tuple[int, int]:
        """Bytes of a training request, and of its reply without the 8 that say how many rows a client has."""
        settings = ct.RunSettings(down=down)
        run = ct.fit(ct.FedAvg(), clients, model, 2, filters=filters, settings=settings)
        asks = [ask for ask in run.asks if "update" in ask.task]
        return asks[-1].bytes_down, asks[-1].bytes_up - 8

    def measured() -> dict[str, float]:
        layout = Layout((("layer", torch.Size([10**8])),), (), torch.float32)
        held = clients_at_once(layout, 0) * layout.size * layout.dtype.itemsize
        whole_down, whole_up = sent()
        rounded_down, rounded_up = sent(ct.BF16(), down="bf16")
        _, coded_up = sent(ct.Int8())
        return {
            "held": held / 1e9,
            "bf16": rounded_up / whole_up,
            "int8": coded_up / whole_up,
            "down": rounded_down / whole_down,
            "both": (rounded_down + rounded_up) / (whole_down + whole_up),
        }

    return measured


CASES: dict[str, Callable[[bool], Case]] = {
    "columns": _columns,
    "cheap": _cheap,
    "saves": _saves,
    "nhefs": _nhefs,
    "hospitals": _hospitals,
    "precision": _precision,
    "bytes": _bytes,
}
