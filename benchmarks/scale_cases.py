"""The cases of `benchmarks/scale.py`: `python -m benchmarks.scale_cases NAME [quick]` waits for a line, and prints what it measured."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

import coterie as ct
from benchmarks import speed_cases
from coterie.base.rows import Rows
from coterie.run.evaluation import Evaluator
from coterie.run.memory_forecast import MemoryForecast

Case = Callable[[], dict[str, float]]
TOO_MUCH = 6e9
"""Bytes of a forecast above which a case of `benchmarks/growth.py` is not run."""
WIDE, NARROW = (1900, 1900, 1900, 1900), (850, 400)


def _clients(
    count: int,
    rows: int,
    width: int,
    classes: int,
    parts: dict[str, float] | None = None,
) -> ct.Clients:
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(count * rows, width)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, classes, count * rows))
    named = {
        f"c{i:05d}": (
            inputs[i * rows : (i + 1) * rows],
            labels[i * rows : (i + 1) * rows],
        )
        for i in range(count)
    }
    return ct.data.from_tensors(
        named, split={"parts": parts or {"train": 0.5, "test": 0.5}}
    )


def _mlp(hidden: tuple[int, ...], width: int = 784) -> nn.Module:
    sizes = (width, *hidden, 10)
    layers: list[nn.Module] = []
    for low, high in pairwise(sizes):
        layers += [nn.Linear(low, high), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@contextmanager
def noted_forecasts(most: float = math.inf) -> Iterator[list[int]]:
    """Note the bytes of the preflight's forecasts rather than refuse any; one above `most` ends in a `MemoryError`."""
    forecasts: list[int] = []

    def check(self: MemoryForecast, available: int | None) -> None:
        forecasts.append(self.bytes)
        if self.bytes > most:
            raise MemoryError

    with patch.object(MemoryForecast, "check", check):
        yield forecasts


def _narrow(count: int, targets: int = 0) -> ct.Clients:
    """Clients of 8 rows of 10 numbers in two classes; the first `targets` have them for validation, too."""
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(count * 8, 10)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 2, count * 8))
    ends = np.arange(count + 1) * 8
    validation = (
        Rows(inputs, labels, np.minimum(ends, 8 * targets)) if targets else None
    )
    return ct.Clients.from_indices(
        [f"c{i:07d}" for i in range(count)], Rows(inputs, labels, ends), validation
    )


def _memory(
    method: Any,
    hidden: tuple[int, ...],
    *,
    clients: int = 10,
    engine: ct.InProcess | None = None,
    rows: int = 32,
    parts: dict[str, float] | None = None,
) -> Case:
    some = _clients(clients, rows, 784, 10, parts)
    model, engine = _mlp(hidden), engine or ct.InProcess()

    size = sum(p.numel() * p.element_size() for p in model.parameters())

    def measured() -> dict[str, float]:
        with noted_forecasts() as forecasts:
            ct.fit(
                method,
                some,
                model,
                2,
                engine=engine,
                settings=ct.RunSettings(evaluate=2, strict_wire=False),
            )
        found = {"model": size}
        return (
            {**found, "forecast": forecasts[0] / size} if forecasts else found
        )  # a small model is not worth one

    return measured


def _local(steps: int = 2, batch: int = 8) -> ct.LocalSGD:
    return ct.LocalSGD(lr=0.01, steps=ct.Steps(steps), batch_size=batch)


def _tensors(quick: bool) -> Case:
    rows = torch.randn(20, 10)
    data = {f"c{i:04d}": (rows, rows[:, 0]) for i in range(20 if quick else 1000)}

    def measured() -> dict[str, float]:
        started = time.process_time()
        ct.data.from_tensors(data)
        return {"seconds": time.process_time() - started}

    return measured


def _last(quick: bool) -> Case:
    some = _clients(20 if quick else 1000, 20, 10, 2)

    def measured() -> dict[str, float]:
        marks: list[float] = []
        settings = ct.RunSettings(
            10,
            3,
            strict_wire=False,
            callbacks=(lambda number: marks.append(time.process_time()),),
        )
        ct.fit(ct.FedAvg(_local()), some, "logistic", 3, settings=settings)
        return {"seconds": time.process_time() - marks[2] - (marks[2] - marks[1])}

    return measured


def _evaluation(quick: bool) -> Case:
    some, every = _clients(200 if quick else 10_000, 20, 10, 2), 5

    def measured() -> dict[str, float]:
        marks: list[float] = []
        settings = ct.RunSettings(
            100,
            every,
            strict_wire=False,
            callbacks=(lambda number: marks.append(time.process_time()),),
        )
        ct.fit(ct.FedAvg(_local(10, 32)), some, "logistic", 15, settings=settings)
        took = np.diff(marks)
        plain = float(np.median([t for i, t in enumerate(took, 1) if i % every]))
        evaluated = (
            float(np.median([t for i, t in enumerate(took[:-1], 1) if not i % every]))
            - plain
        )
        return {"seconds": evaluated, "rounds": evaluated / plain}

    return measured


def _targets(quick: bool) -> Case:
    some = _clients(
        5 if quick else 100, 100, 20, 2, {"train": 0.3, "validation": 0.3, "test": 0.4}
    )
    local = ct.LocalSGD(lr=0.01)

    def rounds(method: Any, count: int) -> list[float]:
        marks: list[float] = []
        settings = ct.RunSettings(
            evaluate=count,
            strict_wire=False,
            callbacks=(lambda number: marks.append(time.process_time()),),
        )
        ct.fit(method, some, ct.models.MLP(hidden=(32,)), count, settings=settings)
        return [float(t) for t in np.diff(marks)[:-1]]

    def measured() -> dict[str, float]:
        usual = float(np.median(rounds(ct.FedAvg(local), 12)[1:]))
        first, *later = rounds(ct.MeritFed(local=local), 4)
        return {"first": first / usual, "later": float(np.median(later)) / usual}

    return measured


def _speed(quick: bool) -> Case:
    from benchmarks.bare import BareLoop

    some, model = _clients(10, 64, 784, 10), _mlp((20,) if quick else NARROW)
    local = _local(2 if quick else 10, 16)

    def rounds(method: Any) -> float:
        marks: list[float] = []
        settings = ct.RunSettings(
            evaluate=7,
            strict_wire=False,
            callbacks=(lambda number: marks.append(time.process_time()),),
        )
        ct.fit(method, some, model, 7, settings=settings)
        return float(np.median(np.diff(marks)[1:-1]))

    def measured() -> dict[str, float]:
        loop = BareLoop(
            some,
            list(model.parameters()),
            lr=0.01,
            steps=local.steps.count,
            batch_size=16,
        )
        took = []
        for _ in range(5):
            started = time.process_time()
            loop.round(range(10))
            took.append(time.process_time() - started)
        bare = float(np.median(took[1:]))
        return {
            "scaffold": bare / rounds(ct.SCAFFOLD(local)),
            "median": bare / rounds(ct.Median(local)),
        }

    return measured


def _compare(quick: bool) -> Case:
    """A made table of the size of a public one: 49 hospitals with 1 to 92 of 1,495 rows."""
    rng = np.random.default_rng(0)
    count, total = (6, 200) if quick else (49, 1495)
    shares = np.sort(rng.dirichlet(np.full(count, 1.2)))
    sizes = np.maximum(12, (shares * total).astype(int))
    folder = tempfile.TemporaryDirectory()
    for number, size in enumerate(sizes.tolist()):
        x = rng.normal(size=(size, 7)).round(4)
        y = (x[:, 0] + rng.normal(size=size) > 0).astype(int)
        lines = [",".join([*(f"x{i}" for i in range(7)), "died"])]
        lines += [
            ",".join([*map(repr, values), str(label)])
            for values, label in zip(x.tolist(), y.tolist(), strict=True)
        ]
        Path(folder.name, f"h{number:02d}.csv").write_text("\n".join(lines) + "\n")

    def measured() -> dict[str, float]:
        took: dict[str, float] = {}
        merit = ct.MeritFed(cheap_above=12)  # as `coterie compare FOLDER` sets it
        for some in (["local", "centralised", "fedavg", "fedavg+bias", merit], [merit]):
            started = time.process_time()
            ct.compare(
                some,
                {"folder": folder.name, "label": "died"},
                seeds=1,
                folder=Path(folder.name, f"run-{len(some)}"),
            )
            took[str(len(some))] = time.process_time() - started
        return {"seconds": took["5"], "meritfed": took["1"]}

    return measured


def _many(quick: bool) -> Case:
    count = 500 if quick else 100_000
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(count * 8, 10)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 2, count * 8))
    names = [f"c{i:06d}" for i in range(count)]

    def measured() -> dict[str, float]:
        data = {
            name: (inputs[8 * i : 8 * i + 8], labels[8 * i : 8 * i + 8])
            for i, name in enumerate(names)
        }
        marks = [time.process_time()]
        some = ct.data.from_tensors(data, split={"parts": {"train": 0.5, "test": 0.5}})
        marks.append(time.process_time())
        look = Evaluator.look

        def marked_look(self: Evaluator, models: Any, number: int) -> Any:
            marks.append(time.process_time())
            found = look(self, models, number)
            marks.append(time.process_time())
            return found

        with patch.object(Evaluator, "look", marked_look):
            ct.fit(
                ct.FedAvg(_local()),
                some,
                "logistic",
                2,
                settings=ct.RunSettings(100, 2, strict_wire=False),
            )
        build, start, first, _, last, end = np.diff(
            [*marks, time.process_time()]
        ).tolist()
        return {
            "build": build,
            "start": start,
            "evaluation": max(first, last),
            "summary": end,
        }

    return measured


def _million(quick: bool) -> Case:
    count, rounds = (2000, 5) if quick else (1_000_000, 50)

    def measured() -> dict[str, float]:
        started = time.process_time()
        some = _narrow(count)
        evaluate = {"every": max(1, rounds // 20), "clients": 1000, "last": False}
        settings = ct.RunSettings(100, evaluate, strict_wire=False)
        ct.fit(ct.FedAvg(_local()), some, "logistic", rounds, settings=settings)
        return {"seconds": time.process_time() - started}

    return measured


def _files(quick: bool) -> Case:
    some = _clients(
        20 if quick else 500, 30, 5, 2, {"train": 0.6, "validation": 0.2, "test": 0.2}
    )
    folder = tempfile.TemporaryDirectory()

    def measured() -> dict[str, float]:
        out = Path(folder.name, "run")
        compared = ct.compare(
            ["local", "fedavg"], some, model="logistic", rounds=3, seeds=1, folder=out
        )
        started = time.process_time()
        compared.report()
        took = time.process_time() - started
        return {
            "seconds": took,
            "megabytes": (out / "report.html").stat().st_size / 1e6,
            "files": sum(path.is_file() for path in out.rglob("*")),
        }

    return measured


def _growing(axis: str, method: str, size: int) -> Case:
    """Rounds of a method with so many parameters and 10 clients, or with so many clients of whom 10 take part in a round."""
    if axis == "targets":
        return _all_targets(method, size)
    by_clients = axis == "clients"
    model: Any
    if by_clients:
        some, model = _narrow(size, targets=1), "logistic"
    else:
        some, model = (
            _clients(10, 32, 100, 10, VALIDATED),
            _mlp((round(size / 111),), 100),
        )
    methods = {
        "fedavg": ct.FedAvg, "scaffold": ct.SCAFFOLD, "median": ct.Median, "maxfl": ct.MaxFL,
        "meritfed": partial(ct.MeritFed, targets=some.names[0] if by_clients else "all"),
    }  # fmt: skip

    def measured() -> dict[str, float]:
        marks: list[float] = [time.process_time()]
        settings = ct.RunSettings(
            10, {"every": 6, "clients": min(size, 1000), "last": False} if by_clients else 6, strict_wire=False,
            callbacks=(lambda number: marks.append(time.process_time()),), merge_validation=False,
        )  # fmt: skip
        with noted_forecasts(TOO_MUCH) as forecasts:
            try:
                ct.fit(
                    methods[method](local=_local()), some, model, 6, settings=settings
                )
            except MemoryError:
                return {"forecast": float(forecasts[0])}
        start, *rounds = np.diff(marks).tolist()
        return {"start": start, "seconds": float(np.median(rounds[1:-1]))}

    return measured


def _all_targets(method: str, size: int) -> Case:
    """Rounds of a method in which each of so many clients is a target."""
    some = speed_cases.linear_clients(size)
    methods: dict[str, Any] = {
        "fedavg": ct.FedAvg(speed_cases.LOCAL),
        "meritfed": speed_cases.ALL_TARGETS,
        "meritfed-cheap": replace(speed_cases.ALL_TARGETS, cheap_above=1),
    }

    def measured() -> dict[str, float]:
        marks: list[float] = [time.process_time()]
        settings = ct.RunSettings(
            evaluate=6,
            strict_wire=False,
            callbacks=(lambda number: marks.append(time.process_time()),),
        )
        ct.fit(methods[method], some, "logistic", 6, settings=settings)
        start, *rounds = np.diff(marks).tolist()
        # A mean: the cheap form asks its targets in every second round alone.
        return {"start": start, "seconds": float(np.mean(rounds[1:-1]))}

    return measured


_LOOP, _TWO = ct.InProcess(kernel="loop"), ct.InProcess(kernel="loop", workers=2)
VALIDATED = {"train": 0.5, "validation": 0.25, "test": 0.25}


def build_case(name: str, quick: bool) -> Case:
    """Prepare a case; what is called then is measured."""
    if " " in name:
        axis, method, size = name.split()
        return _growing(axis, method, int(size))
    wide, narrow = ((20,), (20,)) if quick else (WIDE, NARROW)
    average = ct.FedAvg(_local())
    cases: dict[str, Callable[[], Case]] = {
        "tensors": lambda: _tensors(quick),
        "last": lambda: _last(quick),
        "evaluation": lambda: _evaluation(quick),
        "loop": lambda: _memory(average, wide, engine=_LOOP),
        "kernel": lambda: _memory(average, wide),
        "loop-two": lambda: _memory(average, wide, engine=_TWO),
        "kernel-two": lambda: _memory(average, wide, engine=ct.InProcess(workers=2)),
        "loop-256": lambda: _memory(
            ct.FedAvg(_local(1, 2)),
            wide,
            engine=_LOOP,
            clients=20 if quick else 256,
            rows=4,
        ),
        "scaffold": lambda: _memory(ct.SCAFFOLD(_local()), narrow),
        "median": lambda: _memory(ct.Median(_local()), narrow),
        "meritfed": lambda: _memory(
            ct.MeritFed(local=_local()), narrow, parts=VALIDATED
        ),
        "targets": lambda: _targets(quick),
        "speed": lambda: _speed(quick),
        "compare": lambda: _compare(quick),
        "many": lambda: _many(quick),
        "million": lambda: _million(quick),
        "files": lambda: _files(quick),
        "names": lambda: _names(quick),
    }
    if name in speed_cases.CASES:
        return speed_cases.CASES[name](quick)
    return cases[name]()


def _names(quick: bool) -> Case:
    """Rounds of 10 clients of many, of those of 10 clients of few, in turns."""
    sizes = (20, 40) if quick else (1000, 100_000)
    few, many = (_narrow(size) for size in sizes)
    rounds = 6 if quick else 60

    def seconds(some: ct.Clients) -> float:
        marks: list[float] = []
        settings = ct.RunSettings(
            10,
            {"every": rounds, "clients": 10, "last": False},
            strict_wire=False,
            callbacks=(lambda number: marks.append(time.process_time()),),
        )
        ct.fit(ct.FedAvg(_local()), some, "logistic", rounds, settings=settings)
        return float(np.median(np.diff(marks)[1:-1]))

    def measured() -> dict[str, float]:
        ratios = [seconds(many) / seconds(few) for _ in range(5)]
        return {"times": float(np.median(ratios))}

    return measured


def main(name: str, *flags: str) -> None:
    """Run one case."""
    torch.set_num_threads(1)
    measured = build_case(name, "quick" in flags)
    print("ready", flush=True)
    sys.stdin.readline()
    found = measured()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
