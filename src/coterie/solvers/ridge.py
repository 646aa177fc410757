r"""Ridge regression of one linear layer, and its penalty chosen by folds.

What is minimised is the sum over rows of minus the log likelihood (half the squared error for numbers) plus

    l / 2 |W|^2 + .001 / 2 |b|^2

with slopes W and intercepts b; the latter are held only so that rows of one class have a model. The penalty l is one of `PENALTIES`.

Where folds are tested, the penalty of a tested fold must not have seen its rows: they would flatter the model that it chooses. So the
loss of each other fold is that of models which were fitted without both folds. One fit without the folds j and k serves the choice
for j and that for k: ten fits serve five tested folds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.solvers.glm import FAMILIES, mode, scores, shares_slopes

PENALTIES = (0.01, 1.0, 3.0, 10.0, 30.0, 100.0)
UNCHOSEN = PENALTIES.index(10.0)
"""Place of the penalty that holds where rows are too few, or of one class, to choose one."""
INTERCEPT = 0.001
"""The penalty of intercepts."""
AT_ONCE = 1 << 22
"""Numbers in the curvatures of models that are fitted side by side: 32 MiB."""

_FAMILIES = {**FAMILIES, "multilabel": FAMILIES["binary"]}


class Problem(NamedTuple):
    """Rows, and what one linear layer is to predict of them.

    Attributes:
        inputs: float64 [n, d].
        labels: [n]; of several labels or numbers [n, C]; of hazards [n, 2 C], as `glm` has them.
        kind: kind of the loss: `binary`, `classes`, `multilabel`, `regression`, `hazards` or `count`.
        outputs: C.
        weights: of rows [n], by which losses are multiplied; None: 1 each.
    """

    inputs: Tensor
    labels: Tensor
    kind: str
    outputs: int
    weights: Tensor | None = None

    @property
    def is_one_model(self) -> bool:
        """Whether all outputs are about one label of a row."""
        return self.kind in ("classes", "hazards", "count")

    @property
    def slopes(self) -> int:
        """Number of slopes of one model."""
        columns = self.inputs.shape[1]
        if self.kind == "classes":
            return self.outputs * columns
        return columns


class Chosen(NamedTuple):
    """Models and how they were chosen.

    Attributes:
        models: [..., P], slopes row by row and then intercepts, P = C d + C.
        penalties: [...].
    """

    models: Tensor
    penalties: Tensor


def fit_ridge(problem: Problem, weights: Tensor, penalties: Tensor) -> Tensor:
    """The models [S, L, P] of least loss of each of S sets of rows, under each of L penalties.

    No bit of a model depends on rows of weight 0, nor on the other sets.

    Args:
        problem: all rows.
        weights: 1 for the rows of each set, 0 for others, [S, n]; multiplied by the weights that rows have.
        penalties: of slopes [L], above 0.

    >>> rows = Problem(torch.tensor([[-1.0], [1.0]]), torch.tensor([-1.0, 1.0]), "regression", 1)
    >>> fit_ridge(rows, torch.ones(1, 2), torch.tensor([2.0]))[0, 0, 0]  # x'y / (x'x + 2)
    tensor(0.5000, dtype=torch.float64)
    """
    family = _FAMILIES[problem.kind]
    if problem.weights is not None:
        weights = weights * problem.weights
    together = 1
    if problem.is_one_model:
        together = problem.outputs
    slopes = penalties.double()[:, None].expand(-1, problem.slopes)
    intercepts = torch.full((len(penalties), together), INTERCEPT)
    precision = torch.cat([slopes, intercepts.double()], 1)

    at_once = max(AT_ONCE // (precision.shape[1] * precision.numel()), 1)
    of_labels = []
    for labels in _one_by_one(problem):
        pieces = []
        for part in weights.split(at_once):
            shape = (len(part), len(penalties))
            found = mode(
                problem.inputs,
                labels,
                family,
                precision.expand(*shape, -1),
                together,
                weights=part[:, None].expand(*shape, -1),
            )
            pieces.append(found.theta)
        of_labels.append(torch.cat(pieces))
    if len(of_labels) == 1:
        return of_labels[0]
    # Several labels, or numbers, of a row are as many models that share nothing.
    every_slope = [model[..., :-1] for model in of_labels]
    every_intercept = [model[..., -1:] for model in of_labels]
    return torch.cat(every_slope + every_intercept, -1)


def row_losses(problem: Problem, models: Tensor) -> Tensor:
    """The loss [..., n] of each row under each of the models [..., P], summed over labels, times its weight."""
    losses = _unweighted_losses(problem, models)
    return losses if problem.weights is None else losses * problem.weights


def _unweighted_losses(problem: Problem, models: Tensor) -> Tensor:
    family = _FAMILIES[problem.kind]
    shared = shares_slopes(family)
    z = scores(models, problem.inputs, problem.outputs, shared=shared)
    if problem.is_one_model or problem.outputs == 1:
        return -family(z, problem.labels).loglik
    losses = torch.zeros(z.shape[:-1], dtype=z.dtype)
    for c, labels in enumerate(_one_by_one(problem)):
        losses = losses - family(z[..., c : c + 1], labels).loglik
    return losses


def _one_by_one(problem: Problem) -> list[Tensor]:
    """Labels [n] of each model that shares nothing with others."""
    if problem.is_one_model or problem.outputs == 1:
        return [problem.labels]
    return [*problem.labels.unbind(1)]


def ridge_by_fold(problem: Problem, folds: Tensor) -> Chosen:
    """The model of each tested fold, in their order: of all rows but its own, which have no part in the choice either.

    Args:
        problem: all rows.
        folds: int64 [n], the fold of each row, 3 folds or more.
    """
    numbers = folds.unique().tolist()
    pairs = [*itertools.combinations(numbers, 2)]
    left_out = [*((number,) for number in numbers), *pairs]
    models = _fit_without(problem, folds, left_out)

    losses = row_losses(problem, models[len(numbers) :])  # [pairs, L, n]
    total = torch.zeros(len(numbers), len(PENALTIES), dtype=torch.float64)
    for (j, k), of_pair in zip(pairs, losses, strict=True):
        total[numbers.index(j)] += of_pair[:, folds == k].sum(-1)
        total[numbers.index(k)] += of_pair[:, folds == j].sum(-1)

    best = total.argmin(1)
    for place, number in enumerate(numbers):
        if _has_one_class(problem, folds != number):
            best[place] = UNCHOSEN
    return _select(models[: len(numbers)], best)


def ridge_of_all(problem: Problem, folds: Tensor) -> Chosen:
    """The model of all rows, its penalty chosen by the losses of folds under models that were fitted without them.

    Args:
        problem: all rows.
        folds: int64 [n]; of fewer than 2 folds nothing is chosen.

    >>> x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    >>> folds = torch.arange(40) % 5
    >>> learnable = Problem(x, 3 * x[:, 0], "regression", 1)
    >>> noise = Problem(x, torch.arange(40) % 3 - 1.0, "regression", 1)
    >>> [ridge_of_all(rows, folds).penalties.item() for rows in (learnable, noise)]
    [0.01, 100.0]
    """
    numbers = folds.unique().tolist()
    may_choose = len(numbers) > 1
    everyone = torch.ones(len(folds), dtype=torch.bool)
    if not may_choose or _has_one_class(problem, everyone):
        models = _fit_without(problem, folds, [()])
        return _select(models[0], torch.tensor(UNCHOSEN))
    models = _fit_without(problem, folds, [(), *((number,) for number in numbers)])
    total = torch.zeros(len(PENALTIES), dtype=torch.float64)
    losses = row_losses(problem, models[1:])  # [folds, L, n]
    for number, of_fold in zip(numbers, losses, strict=True):
        total += of_fold[:, folds == number].sum(-1)
    return _select(models[0], total.argmin())


def _fit_without(
    problem: Problem, folds: Tensor, left_out: Iterable[tuple[int, ...]]
) -> Tensor:
    """The models [S, L, P] of all rows but those of some folds, under each penalty."""
    weights = [~torch.isin(folds, torch.tensor(out)) for out in left_out]
    penalties = torch.tensor(PENALTIES, dtype=torch.float64)
    return fit_ridge(problem, torch.stack(weights).double(), penalties)


def _has_one_class(problem: Problem, rows: Tensor) -> bool:
    labels = problem.labels[rows]
    if problem.kind in ("hazards", "count"):
        seen = labels[:, problem.outputs :]
        return not bool(seen.any())
    return problem.kind != "regression" and bool((labels == labels[:1]).all())


def _select(models: Tensor, best: Tensor) -> Chosen:
    """The model of the penalty number `best` [...] of each of the models [..., L, P]."""
    place = best[..., None, None].expand(*best.shape, 1, models.shape[-1])
    penalties = torch.tensor(PENALTIES, dtype=torch.float64)[best]
    return Chosen(models.gather(-2, place).squeeze(-2), penalties)
