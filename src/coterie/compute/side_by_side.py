"""Local training of a cohort's clients side by side: a kernel makes the steps of some of them at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.rows import row_size
from coterie.compute.cohort_rows import CohortRows, pick_rows
from coterie.compute.kernels import Batched, Feed, StepRule
from coterie.compute.mapped import Mapped
from coterie.compute.row_source import source_of
from coterie.compute.segments import Chunk, RowSource, chunks
from coterie.compute.step_hooks import Quadratic
from coterie.contract.exchange import HELD_BYTES


@dataclass(frozen=True)
class SideBySide:
    """The clients of a cohort, and the kernel that trains them.

    Attributes:
        cohort: Clients that train.
        kernel: Makes the steps.
        numbers: Of each client, the row numbers of each step.
        comes_again: Whether the same steps are made from other models, too: then rows are gathered once, if they take little memory.
        widen: Makes rows [rows, d] those of the kernel; None: they are.
    """

    cohort: CohortRows
    kernel: Batched | Mapped
    numbers: Sequence[list[NDArray[np.int64]]]
    comes_again: bool = False
    widen: Callable[[Tensor], Tensor] | None = None

    def train(
        self,
        x: Tensor,
        rule: StepRule,
        result: Tensor,
        *,
        relative: bool,
        models: int = 1,
    ) -> None:
        """Train all clients, and write their models.

        Args:
            x: Model [d] from which they start, or one per client [n, d].
            rule: Of every step.
            result: Written: models [n, d]; models minus x if `relative`.
            relative: As `result` says.
            models: Number of models that x is made of, each of which looks at every row.

        Raises:
            FloatingPointError: The training of a client diverged.
        """
        for chunk, feed in self._planned:
            steps = feed
            if steps is None:
                steps = self.kernel.feed(chunk, self._source)
            self.kernel.train(
                with_client_dim(x), chunk, steps, rule, result, relative=relative
            )
            row_count = int(chunk.counts.sum())
            self.cohort.spent["row_gradients"] += models * row_count
        # The sum of all is finite only if each model is: clients are looked at one by one only where it is not.
        if not bool(torch.isfinite(result.sum())):
            for name, model in zip(self.cohort.names, result, strict=True):
                check_finite(self.cohort, name, model, rule.lr)

    @cached_property
    def _source(self) -> RowSource:
        """Where the kernel reads rows."""
        source = source_of(self.cohort.workspace, self.cohort.clients.train)
        if self.widen is None:
            return source
        narrow, widen = source.inputs, self.widen
        return source._replace(inputs=lambda numbers: widen(narrow(numbers)))

    @cached_property
    def _planned(self) -> list[tuple[Chunk, Iterable[Feed] | None]]:
        """The chunks of all clients, each with its rows where they are used again."""
        cohort, part = self.cohort, self.cohort.clients.train
        positions = [part.positions(number) for number in cohort.index]

        def place(i: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
            return pick_rows(positions[i], numbers)

        planned = list(chunks(self.numbers, self.kernel.width, place))
        row_count = sum(chunk.rows.size for chunk in planned)
        size = row_count * row_size(part.inputs) * cohort.layout.dtype.itemsize
        # To gather a row takes as long as to train with it.
        if self.comes_again and size <= HELD_BYTES:
            return [
                (chunk, [*self.kernel.feed(chunk, self._source)]) for chunk in planned
            ]
        return [(chunk, None) for chunk in planned]


def step_rule(
    lr: float,
    weight_decay: float | Sequence[float],
    x: Tensor,
    penalty: Quadratic | None,
    correction: Tensor | None,
) -> StepRule:
    """The steps of a kernel with a penalty, a correction and weight decay.

    Args:
        lr: Step size.
        weight_decay: Of all clients, or of each.
        x: Model from which they start, [d] or [n, d], which a penalty without an anchor of its own pulls to.
        penalty: Added to the loss of every step.
        correction: Added to every step's gradient, [d] or [n, d].
    """
    mu = 0.0
    shift: Tensor | None = None
    if penalty is not None:
        mu = penalty.mu
        shift = with_client_dim(penalty.shift(lr, x))
    if correction is not None:
        pull = with_client_dim(correction) * -lr
        if shift is not None:
            pull = shift + pull
        shift = pull
    if isinstance(weight_decay, Sequence):
        shrink = [1 - lr * (decay + mu) for decay in weight_decay]
        return StepRule(lr, torch.tensor(shrink, dtype=torch.float64), shift)
    return StepRule(lr, 1 - lr * (weight_decay + mu), shift)


def with_client_dim(value: Tensor) -> Tensor:
    """A vector for all as [1, d + b]; one for each client stays [n, d + b]."""
    if value.ndim == 1:
        return value[None]
    return value


def check_finite(cohort: CohortRows, name: str, model: Tensor, lr: float) -> None:
    """Raise `FloatingPointError` if the trained model of a client has a number that is not finite."""
    # Behind a veil an error would say something of a single row.
    if cohort.workspace.veil is not None:
        return
    # A sum is finite only if its terms are, and much cheaper than looking at each of them; it may overflow alone.
    if math.isfinite(model.sum().item()):
        return
    if not bool(torch.isfinite(model).all()):
        raise FloatingPointError(
            f"training of client {name!r} diverged (NaN or Inf); lower local lr = {lr}"
        )
