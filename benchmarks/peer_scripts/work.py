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
from itertools import pairwise
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
        model: mlp (of one layer it is a logistic regression), cnn or lstm.
        layers: initial parameters, in the order in which the module of `build` has them.
        epochs, batch_size, lr: of local training by plain SGD.
        workers: clients trained at the same time.
    """

    def __init__(self, path: Path, workers: int) -> None:
        with np.load(path) as held:
            self.images, self.labels = held["images"], held["labels"]
            self.test_images, self.test_labels = (
                held["test_images"],
                held["test_labels"],
            )
            self.participants = held["participants"]
            self.layers = [
                held[f"layer_{i}"]
                for i in range(sum(name.startswith("layer_") for name in held.files))
            ]
            self.model = str(held["model"])
            self.epochs, self.batch_size, self.lr = (
                int(held["epochs"]),
                int(held["batch_size"]),
                float(held["lr"]),
            )
        self.path, self.workers = path, workers

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.participants)

    def floats(self) -> NDArray[np.float32]:
        """Training images as float32 in [0, 1], made once and not per batch."""
        return self.images.astype(np.float32) / np.float32(255)


def modules(model: str, widths: Sequence[int], nn: Any) -> list[Any]:
    """The modules of a model of rows of 784 pixels; `widths` are those of an MLP."""
    if model == "cnn":
        convolutions = [
            m
            for k in ((1, 16), (16, 32))
            for m in (nn.Conv2d(*k, 5), nn.ReLU(), nn.MaxPool2d(2))
        ]
        return [
            nn.Unflatten(1, (1, 28, 28)),
            *convolutions,
            nn.Flatten(),
            nn.Linear(512, 10),
        ]
    if model == "lstm":

        class LastOutput(nn.Module):
            """An LSTM, and of its outputs the last."""

            def __init__(self) -> None:
                super().__init__()
                self.lstm = nn.LSTM(28, 64, batch_first=True)

            def forward(self, rows: Any) -> Any:
                return self.lstm(rows)[0][:, -1]

        return [nn.Unflatten(1, (28, 28)), LastOutput(), nn.Linear(64, 10)]
    linear = [nn.Linear(*sizes) for sizes in pairwise(widths)]
    return [module for layer in linear for module in (layer, nn.ReLU())][:-1]


def build(work: Work, kind: Any, nn: Any) -> Any:
    """A module of this kind of `nn.Sequential` for the work, which a framework fills or is sent."""
    widths = [work.layers[0].shape[-1], *[len(bias) for bias in work.layers[1::2]]]
    return kind(*modules(work.model, widths, nn))


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
    parser = argparse.ArgumentParser(description=f"The work with {framework}")
    parser.add_argument("work", type=Path, help="npz file with the work")
    parser.add_argument("result", type=Path, help="JSON file to write")
    parser.add_argument(
        "--workers", type=int, default=1, help="clients trained at the same time"
    )
    given = parser.parse_args()
    work, clock = Work(given.work, given.workers), Clock()
    layers = run(work, clock)
    result = {
        "framework": framework,
        "seconds": clock.wall,
        "cpu_seconds": clock.cpu if in_process(work) else None,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
    }
    np.savez(
        given.result.with_suffix(".npz"),
        *[np.asarray(layer, dtype=np.float32) for layer in layers],
    )
    given.result.write_text(json.dumps(result) + "\n")
