"""The tasks of MeritFed's targets: gradients and losses of candidates, or the whole descent on the weights.

Where outputs are linear in what is trained, as those of a linear model and of one whose last layer alone is trained, a descent at the
target needs the model n + 3 times and never again: the outputs at x + lr * sum_i w_i delta_i are those at x plus lr * sum_i w_i s_i,
with the scores s_i = f(delta_i) - f(0) of its rows. Each step is then exact, and costs no row gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.compute.cohort import Cohort
from coterie.compute.oracle import (
    TargetGradient,
    TargetLosses,
    gradient_each,
    losses_each,
)
from coterie.compute.server_step import ServerStep, descend
from coterie.contract.task import Form, Holds, Number, task

BENT = 1e-3
"""How far outputs may be from linear, relative to the largest: rounding of float32 alone is far below."""


class Descent(NamedTuple):
    """Weights after mirror descent at the target, and the gap <w0 - e_i, dphi/dw> at the first."""

    weights: Annotated[
        Tensor,
        "other",
        Form(lambda p, layout: (p["weights"].shape[1],), within=(0.0, 1.001)),
    ]
    gap: Number


class Ready(NamedTuple):
    """1 where the target has the rows that it is to answer with."""

    ready: Annotated[Tensor, "other", Form(dtype=torch.float32, within=(1.0, 1.0))]


OwnModel = Annotated[Tensor, Holds(("model",), each=True, model=True)]
"""A model of each target."""


@task
def target_gradient(
    cohort: Cohort, *, x: OwnModel, rows: str, batch: int | None, step: int
) -> TargetGradient:
    """Gradient of f_target at the candidate x [n, d + b]; a fresh minibatch per step if `batch` is an int."""
    purpose = f"oracle/{step}"
    return TargetGradient(
        gradient_each(
            cohort, x, _parts(cohort, rows), batch_size=batch, purpose=purpose
        )
    )


@task
def target_losses(
    cohort: Cohort,
    *,
    xs: Annotated[Tensor, Holds(("models", "model"), each=True, model=True)],
    rows: str,
    batch: int | None,
    step: int,
) -> TargetLosses:
    """Losses of f_target at the candidates xs [n, q, d + b]."""
    purpose = f"oracle/{step}"
    return TargetLosses(
        losses_each(cohort, xs, _parts(cohort, rows), batch_size=batch, purpose=purpose)
    )


@task
def target_descent(
    cohort: Cohort, *, x: OwnModel, deltas: Annotated[Tensor, Holds(("clients", "model"), each=True)],
    weights: Annotated[Tensor, Holds(("clients",), torch.float64, (0.0, 1.001), each=True)],
    moments: Annotated[Tensor, Holds((2, ("parameters", 0)), each=True)],
    taken: Annotated[Tensor, Holds((), torch.int64, (0, math.inf), each=True)], lr: float,
    betas: tuple[float, float] | None, eps: float, steps: int, step: float, damping: bool, rows: str, batch: int | None, scores: bool,
) -> Descent:  # fmt: skip
    """The whole descent at the target: x [n, d + b], deltas [n, m, d + b], weights [n, m]; Adam's moments [n, 2, d], taken [n].

    With `scores` along the exact slope of a model that is linear in what is trained. Raises `InputError` if it is not.
    """

    def gradient(candidate: Tensor, k: int) -> Tensor:
        return target_gradient(
            cohort, x=candidate, rows=rows, batch=batch, step=k
        ).gradient

    if scores:
        slopes = slopes_by_scores(cohort, x, deltas, lr, _parts(cohort, rows))
    else:
        slopes = ServerStep(
            x, deltas, moments, taken, lr, betas, eps, cohort.layout.dim
        ).slopes(gradient)
    return Descent(*descend(slopes, weights, steps=steps, step=step, damping=damping))


@task
def target_rows(cohort: Cohort, *, rows: str) -> Ready:
    """Asked before the first round. Raises `InputError` if there is no distribution to draw fresh rows from."""
    for i in range(len(cohort.names)):
        if rows == "fresh" and not cohort.has(i, "fresh"):
            raise InputError(
                f'MeritFed.validation = "fresh" draws new rows of {cohort.names[i]!r}, which only data of a known distribution '
                'can (mean-estimation, or clients made with `with_draw`); take "validation" or "train"'
            )
    return Ready(torch.ones(len(cohort.names), dtype=torch.float32))


def _parts(cohort: Cohort, rows: str) -> list[str]:
    """Which rows speak for each target: it depends on what it has itself, not on who shares its process."""
    if rows == "fresh":
        return ["fresh"] * len(cohort.names)
    parts = ["train"] * len(cohort.names)
    for i in range(len(parts)):
        if rows in ("validation", "server") and cohort.has(i, "validation"):
            parts[i] = "validation"
    return parts


def slopes_by_scores(
    cohort: Cohort, x: Tensor, deltas: Tensor, lr: float, parts: Sequence[str]
) -> Callable[[Tensor], Tensor]:
    """Return the function weights [n, m] -> dphi/dw [n, m] of clients whose models are linear in what is trained.

    Args:
        cohort: The n targets.
        x: Their models [n, d].
        deltas: Updates at each [n, m, d].
        lr: Of the server.
        parts: Whether each is asked about its `train` or `validation` rows.

    Raises:
        InputError: Outputs are not linear in the updates.
    """
    rows = [
        _scores(cohort.only([i]), x[i], lr * deltas[i], part)
        for i, part in enumerate(parts)
    ]
    loss = cohort.workspace.loss

    def slopes(weights: Tensor) -> Tensor:
        result = torch.zeros_like(weights)
        for i, (outputs, scores, labels) in enumerate(rows):
            w = weights[i].to(outputs.dtype).requires_grad_()
            with torch.enable_grad():
                moved_outputs = outputs + torch.tensordot(w, scores, 1)
                value = loss.rows(moved_outputs, labels).mean()
            result[i] = torch.autograd.grad(value, w)[0]
        return result

    return slopes


def _scores(
    target: Cohort, x: Tensor, steps: Tensor, part: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs at x [rows, ...], what each step [m, d] adds to them [m, rows, ...], and the labels of a target's rows."""

    def outputs_of(model: Tensor) -> Tensor:
        outputs, _ = target.answers([0], model, part)
        return outputs

    outputs, origin = outputs_of(x), outputs_of(torch.zeros_like(x))
    scores = torch.stack([outputs_of(step) - origin for step in steps])
    # Linear or not is seen at the mean step, one forward pass.
    moved_outputs = outputs_of(x + steps.mean(0))
    largest = max(1.0, float(moved_outputs.abs().max()))
    bend = (moved_outputs - outputs - scores.mean(0)).abs().max()
    if float(bend) > BENT * largest:
        raise InputError(
            'MeritFed.oracle_steps = "scores" needs a model whose outputs are linear in what is trained, such as logistic, or one with '
            'all layers but the last frozen; take "one" or "all"'
        )
    return outputs, scores, target.stored_labels_of([0], part)[0]
