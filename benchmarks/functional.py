"""Would `torch.func` train clients faster than a loop over them? Gradients of ten clients, each with a batch and weights of its own.

The loop asks `torch.autograd.grad` for one client after the other, as coterie does; `torch.func` computes `vmap(grad(...))` for all of
them. They take turns; what counts is the least CPU time of each. Perceptrons have a kernel that is faster than both.
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import coterie as ct
from benchmarks.measure import LIMIT, Settings

WHAT = __doc__ or ""
CLIENTS, TOKENS, LETTERS = 10, 20, 80
BATCHES = (4, 32)


class Transformer(nn.Module):
    """One encoder layer over letters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 32)
        self.encode = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(32, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        """Scores of the next letter."""
        scores: Tensor = self.head(self.encode(self.embed(letters)).mean(1))
        return scores


def run(settings: Settings) -> dict[str, Any]:
    """Measure each model with small and with usual batches."""
    torch.set_num_threads(1)
    load, cases = os.getloadavg()[0], []
    for name, model, draw in _models(small=settings.quick):
        for batch in (2,) if settings.quick else BATCHES:
            rows = draw(batch)
            size, classes, *letters = model(
                rows[0]
            ).shape  # an LSTM tells the next letter at each place
            labels = torch.randint(0, classes, (CLIENTS, size, *letters))
            cases.append(
                {
                    "model": name,
                    "batch": batch,
                    **_measure(model, rows, labels, 2 if settings.quick else 15),
                }
            )
    loads = [round(load, 2), round(os.getloadavg()[0], 2)]
    return {"load": loads, "busy": max(loads) > LIMIT, "cases": cases}


def _models(*, small: bool) -> Iterator[tuple[str, nn.Module, Callable[[int], Tensor]]]:
    """Name, model, and the rows of all clients for a batch size."""

    def images(*shape: int) -> Callable[[int], Tensor]:
        return lambda batch: torch.rand(CLIENTS, batch, *shape)

    def letters(batch: int) -> Tensor:
        return torch.randint(0, LETTERS, (CLIENTS, batch, TOKENS))

    torch.manual_seed(0)
    yield "perceptron, 64 units", ct.models.MLP((64,)).build((784,), 10), images(784)
    yield "transformer, 20 letters", Transformer(), letters
    if small:
        return
    yield "CNN, 28 x 28", ct.models.CNN().build((1, 28, 28), 10), images(1, 28, 28)
    yield (
        "ResNet8, 32 x 32",
        ct.models.ResNet8().build((3, 32, 32), 10),
        images(3, 32, 32),
    )
    yield "LSTM, 20 letters", ct.models.CharLSTM().build((TOKENS,), LETTERS), letters


def _measure(
    model: nn.Module, rows: Tensor, labels: Tensor, turns: int
) -> dict[str, float]:
    """CPU seconds of the gradients of all clients. Raises `AssertionError` where the two ways disagree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an LSTM has no rule for vmap
        exact = rows.double() if rows.is_floating_point() else rows
        loop, functional = _ways(copy.deepcopy(model).double(), exact, labels)
        for by_client, together in zip(
            zip(*loop(), strict=True), functional(), strict=True
        ):
            torch.testing.assert_close(
                torch.stack(by_client), together, rtol=1e-9, atol=1e-12
            )
        ways, took = _ways(model, rows, labels), [float("inf")] * 2
        for _ in range(turns):
            for number, compute in enumerate(ways):
                started = time.process_time()
                compute()
                took[number] = min(took[number], time.process_time() - started)
    return {"loop": took[0], "functional": took[1]}


def _ways(
    model: nn.Module, rows: Tensor, labels: Tensor
) -> tuple[Callable[[], list[tuple[Tensor, ...]]], Callable[[], list[Tensor]]]:
    """The two ways: gradients by client, and those of all clients by parameter."""
    parameters = dict(model.named_parameters())
    stacked = {
        name: p.detach().expand(CLIENTS, *p.shape).clone()
        for name, p in parameters.items()
    }

    def loss(values: dict[str, Tensor], rows: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, values, (rows,)), labels)

    def loop() -> list[tuple[Tensor, ...]]:
        return [
            torch.autograd.grad(cross_entropy(model(x), y), list(parameters.values()))
            for x, y in zip(rows, labels, strict=True)
        ]

    def functional() -> list[Tensor]:
        return list(vmap(grad(loss))(stacked, rows, labels).values())

    return loop, functional


def table(result: Mapping[str, Any]) -> str:
    """The table of docs/performance.md."""
    lines = [
        "| model | rows a batch | loop | `torch.func` | speed of `torch.func` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for case in result["cases"]:
        loop, functional = (
            f"{1000 * case[way]:,.{int(case[way] < 0.01)}f} ms"
            for way in ("loop", "functional")
        )
        speed = f"{case['loop'] / case['functional']:.2f}"
        lines.append(
            f"| {case['model']} | {case['batch']} | {loop} | {functional} | {speed} |"
        )
    machine = result["machine"]
    note = f"{machine['cpu']}, {machine['cores']} cores, one thread; {result['measured'][:10]}; commit {result['commit']}."
    return "\n".join([*lines, "", note])
