"""Models of one linear layer with bias under a loss of the library: their best parameters are solved for, not trained."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.folds import deal_folds
from coterie.base.heads import Hazards
from coterie.base.loss import IGNORED
from coterie.base.rows import sample
from coterie.compute.cohort import Cohort
from coterie.compute.kernels import recognise
from coterie.compute.linear import (
    MOST_PARAMETERS,
    linear_layer,
    outputs_of_linear,
    solver_labels,
)
from coterie.compute.workspace import Workspace
from coterie.solvers.ridge import (
    PENALTIES,
    Chosen,
    Problem,
    ridge_by_fold,
    ridge_of_all,
)

INNER_FOLDS = 5
MOST_KEPT = 4096
"""Solutions that a process keeps for the other folds of the same rows."""

_solutions: OrderedDict[bytes, Chosen] = OrderedDict()


class Linear(NamedTuple):
    """One linear layer with bias under a loss of the library.

    Attributes:
        kind: kind of the loss.
        outputs: C.
    """

    kind: str
    outputs: int


def find_linear(workspace: Workspace, clients: Clients) -> Linear | None:
    """The linear layer that the model is, if its parameters can be solved for from the rows of these clients; else None.

    They cannot under a loss of the user's own, where some are frozen, where training changes rows at random, and where there are more
    than `MOST_PARAMETERS`.
    """
    labels, loss = clients.train.labels[:1], workspace.loss
    labels = loss.plain(labels)
    inputs = sample(clients.train.inputs)
    if not isinstance(inputs, Tensor) or clients.transform is not None:
        return None
    if loss.own is not None or loss.kind == "own":
        return None
    if loss.kind == "hazards":
        return _find_hazards(workspace)
    layers = recognise(workspace.model, workspace.layout, inputs)
    if layers is None or len(layers) > 1:
        return None
    (layer,) = layers
    if not (layer.inputs and layer.bias and workspace.layout.dim <= MOST_PARAMETERS):
        return None
    labels_of_a_row = labels[0].numel()
    if loss.form is not None:
        labels_of_a_row = loss.form.outputs
    if labels_of_a_row != (1 if loss.kind == "classes" else layer.outputs):
        return None
    return Linear(loss.kind, layer.outputs)


def _find_hazards(workspace: Workspace) -> Linear | None:
    layer = linear_layer(workspace.model)
    if layer is None or workspace.layout.dim > MOST_PARAMETERS:
        return None
    if not isinstance(workspace.model, Hazards):
        return None
    return Linear("hazards", outputs_of_linear(workspace.model, layer))


def solve_alone(cohort: Cohort, client: int, linear: Linear) -> Tensor:
    """The model [P] of a client's training rows, float64, under the ridge that folds choose: none of them is the one that is tested.

    Without a tested fold there are five inner ones. The model of every tested fold comes of the same fits, which are kept for the other
    folds of the same rows.
    """
    name, rows = cohort.names[client], cohort.size(client)
    folds = cohort.clients.row_folds.get(name, {})
    tested = folds["test"][:1].tolist() if "test" in folds else []
    # Rows of fewer than 5 patients are in no fold; and without two of two folds no row would be left.
    if tested and len(np.unique(folds["train"])) > 1:
        tags = np.concatenate([folds["train"], folds["test"]])
        problem, of_row = _read(cohort, client, linear, ("train", "test"), tags)
        numbers = of_row.unique().tolist()
        _count(cohort, rows, len(numbers) - 1)
        chosen = _solve_once(ridge_by_fold, problem, of_row)
        return chosen.models[numbers.index(*tested)]

    groups = cohort.clients.row_groups.get(name, {}).get("train")
    tags = np.arange(rows) if groups is None else groups
    problem, of_row = _read(cohort, client, linear, ("train",), tags)
    inner = deal_folds(
        problem.labels.numpy(),
        INNER_FOLDS,
        seed=cohort.seed,
        name=name,
        groups=None if groups is None else of_row.numpy(),
        purpose="inner",
    )
    _count(cohort, rows, INNER_FOLDS)
    return _solve_once(ridge_of_all, problem, torch.from_numpy(inner)).models


def _count(cohort: Cohort, rows: int, folds: int) -> None:
    """Count each row once for each model that is fitted to it, whoever fitted it first."""
    cohort.spent["row_gradients"] += rows * (len(PENALTIES) * (folds - 1) + 1)


def _read(
    cohort: Cohort,
    client: int,
    linear: Linear,
    parts: tuple[str, ...],
    tags: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> tuple[Problem, Tensor]:
    """A client's rows of some parts as one problem, and the tag of each, in an order that follows from the rows alone.

    So the same rows give the same bits in every view of the client and on every engine.
    """
    pieces = [cohort.rows_of(part, client).part(cohort.index[client]) for part in parts]
    read = [cohort.workspace.prepare(piece.read()) for piece in pieces]
    inputs = torch.cat(cast("list[Tensor]", read))  # `find_linear` takes no others
    inputs = inputs.cpu().double().flatten(1)
    stored = torch.cat([piece.labels for piece in pieces]).cpu()
    loss = cohort.workspace.loss
    labels = solver_labels(loss.form, loss.plain(stored))
    weights = loss.weights(stored)
    if weights is not None:
        weights = _scale_free(weights)
    if labels[0].numel() == 1:
        labels = labels.reshape(-1)
    numbers = torch.from_numpy(tags)
    if linear.kind == "classes":
        counted = labels != IGNORED
        inputs, labels, numbers = inputs[counted], labels[counted], numbers[counted]
        if weights is not None:
            weights = weights[counted]

    columns = [*inputs.T.numpy(), *labels.reshape(len(labels), -1).T.numpy()]
    if weights is not None:
        columns.append(weights.numpy())
    order = torch.from_numpy(np.lexsort([numbers.numpy(), *columns]))
    if weights is not None:
        weights = weights[order]
    problem = Problem(inputs[order], labels[order], *linear, weights)
    return problem, numbers[order]


def _scale_free(weights: Tensor) -> Tensor:
    """Weights of mean 1 over all these rows, whatever they were divided by: in each fold by the mean of its training rows.

    They are rounded to 40 bits behind the point, so that every fold of a client finds the same ones, and its kept solutions.
    """
    exact = weights / weights.mean()
    return torch.round(exact * 2.0**40) / 2.0**40


def _solve_once(
    solve: Callable[[Problem, Tensor], Chosen], problem: Problem, folds: Tensor
) -> Chosen:
    """The solution of these rows in these folds, which another fold of the run may have asked for before."""
    about = repr((problem.kind, problem.outputs))
    digest = hashlib.blake2b(about.encode(), digest_size=16)
    digest.update(solve.__name__.encode())
    held = [problem.inputs, problem.labels, folds]
    if problem.weights is not None:
        held.append(problem.weights)
    for values in held:
        digest.update(f"{tuple(values.shape)} {values.dtype}".encode())
        digest.update(values.contiguous().numpy().data)
    key = digest.digest()
    if key not in _solutions:
        _solutions[key] = solve(problem, folds)
        if len(_solutions) > MOST_KEPT:
            _solutions.popitem(last=False)
    return _solutions[key]
