"""What the scripts of this folder share: the work, read from one file; the time of each round; the result, written to another.

They run in virtual environments that hold one framework each, so this needs numpy and nothing else.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Work:
    """The work as `benchmarks/peers.py` wrote it.

    Attributes:
        images, labels: training rows by client, uint8 [clients, rows, 784] and int64 [clients, rows].
        test_images, test_labels: of the whole federation.
        participants: client numbers by round, int64 [rounds, clients per round].
        layers: initial W_1, b_1, W_2, b_2, ... with W as [outputs, inputs].
        epochs, batch_size, lr: of local training by plain SGD.
        workers: clients trained at the same time.
    """

    def __init__(self, path: Path, workers: int) -> None:
        with np.load(path) as held:
            self.images, self.labels = held["images"], held["labels"]
            self.test_images, self.test_labels = held["test_images"], held["test_labels"]
            self.participants = held["participants"]
            self.layers = [held[f"layer_{i}"] for i in range(sum(name.startswith("layer_") for name in held.files))]
            self.epochs, self.batch_size, self.lr = int(held["epochs"]), int(held["batch_size"]), float(held["lr"])
        self.path, self.workers = path, workers

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.participants)

    def floats(self) -> NDArray[np.float32]:
        """Training images as float32 in [0, 1], made once and not per batch."""
        return self.images.astype(np.float32) / np.float32(255)

    def accuracy(self, layers: Sequence[Any]) -> float:
        """Share of test images that a model (laid out as `layers`) classifies right."""
        signal = self.test_images.astype(np.float32) / np.float32(255)
        arrays = [np.asarray(layer, dtype=np.float32) for layer in layers]
        for k in range(0, len(arrays), 2):
            signal = signal @ arrays[k].T + arrays[k + 1]
            if k < len(arrays) - 2:
                signal = np.maximum(signal, 0)
        return float((signal.argmax(1) == self.test_labels).mean())


def build(work: Work, kind: Any, nn: Any) -> Any:
    """A module of this kind of `nn.Sequential`, as wide as the work's layers, which a framework fills or is sent."""
    linear = [nn.Linear(weight.shape[1], weight.shape[0]) for weight in work.layers[::2]]
    return kind(*[module for layer in linear for module in (layer, nn.ReLU())][:-1])


def fill(model: Any, work: Work, torch: Any) -> Any:
    """The same module with the initial weights."""
    with torch.no_grad():
        for parameter, layer in zip(model.parameters(), work.layers, strict=True):
            parameter.copy_(torch.from_numpy(layer))
    return model


class Clock:
    """Seconds of each round on the wall, and of the CPU spent by this process."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._last = (0.0, 0.0)

    def start(self) -> None:
        """The first round begins now."""
        self._last = (time.perf_counter(), time.process_time())

    def round(self) -> None:
        """A round has ended and the next one begins."""
        now = (time.perf_counter(), time.process_time())
        self.wall.append(now[0] - self._last[0])
        self.cpu.append(now[1] - self._last[1])
        self._last = now


def main(
    framework: str,
    run: Callable[[Work, Clock], Sequence[Any]],
    packages: Sequence[str],
    in_process: Callable[[Work], bool] = lambda work: True,
) -> None:
    """Run a framework on the work named on the command line.

    Args:
        framework: its name.
        run: function (work, clock) -> final layers, laid out as `Work.layers`. It starts the clock when its first round begins and
            calls `clock.round` after each.
        packages: whose versions belong to the result.
        in_process: whether all of a round happens in this process; else its CPU time says nothing and is left out.
    """
    parser = argparse.ArgumentParser(description=f"W1 with {framework}")
    parser.add_argument("work", type=Path, help="npz file with the work")
    parser.add_argument("result", type=Path, help="JSON file to write")
    parser.add_argument("--workers", type=int, default=1, help="clients trained at the same time")
    given = parser.parse_args()
    work, clock = Work(given.work, given.workers), Clock()
    layers = run(work, clock)
    result = {
        "framework": framework,
        "seconds": clock.wall,
        "cpu_seconds": clock.cpu if in_process(work) else None,
        "accuracy": work.accuracy(layers),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }
    given.result.write_text(json.dumps(result) + "\n")
