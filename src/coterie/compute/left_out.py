"""How well does a model serve a client that had no part in it? Its gain over a constant prediction on the client's training rows.

The constant is the client's own: its shares of classes, or its mean, of all its rows but the one that is predicted.
"""

from __future__ import annotations

from math import inf, isfinite, nan
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.compute.cohort import Cohort
from coterie.compute.outcomes import mean_influence, row_error
from coterie.compute.workspace import Workspace
from coterie.contract.task import Flag, Form, Holds, MeanLoss, task

FEWEST_ROWS = 2


class Gain(NamedTuple):
    """Mean gain of a model [n], its standard error over patients [n], and whether they are told [n]; 0 where they are not."""

    gain: MeanLoss
    error: Annotated[Tensor, "loss", Form(within=(0.0, inf))]
    known: Flag


@task
def gain_of_others(
    cohort: Cohort,
    *,
    x: Annotated[Tensor, Holds(("model",), each=True, model=True)],
) -> Gain:
    """The gain of a model of the others, x [n, d + b], over a constant prediction on each client's training rows.

    Of a single row nothing is told, nor where rows are hidden: the noise of losses does not cover an error.
    """
    gains = torch.zeros(len(cohort.names), dtype=torch.float64)
    errors, known = gains.clone(), gains.bool()
    if cohort.workspace.veil is None:
        for client in range(len(cohort.names)):
            gain, error = _measure(cohort, client, x)
            known[client] = isfinite(gain) and isfinite(error)
            if known[client]:
                gains[client], errors[client] = gain, error
    return Gain(gains, errors, known)


def _measure(cohort: Cohort, client: int, x: Tensor) -> tuple[float, float]:
    """Mean gain of the client's model in x over the constant prediction, and its standard error; NaN for a single row."""
    rows = cohort.size(client)
    if rows < FEWEST_ROWS:
        return nan, nan
    loss = cohort.workspace.loss
    outputs, losses = cohort.answers([client], x, "train")
    labels, segments = cohort.labels_of([client], "train")
    weights = segments.weights
    shares = None
    if weights is not None:
        # A row counts by its weight in the mean, and not in its loss, too.
        losses, shares = loss.plain_rows(outputs, labels), weights.numpy()
    constant = _constant(cohort.workspace, labels, weights)
    groups = cohort.clients.row_groups.get(cohort.names[client], {}).get("train")
    patients = np.arange(rows)
    if groups is not None:
        patients = np.asarray(groups)
    of_constant = mean_influence(patients, constant.numpy(), shares)
    of_model = mean_influence(patients, losses.double().numpy(), shares)
    error = row_error([of_constant], [of_model])
    unit = _unit(loss.kind, labels, weights)
    gain = (of_constant.metric - of_model.metric) / unit
    if error is None:
        return gain, nan
    return gain, error.error / unit


def _constant(
    workspace: Workspace, labels: Tensor, weights: Tensor | None = None
) -> Tensor:
    """The loss [n] of each row if what all other rows of its client have is predicted."""
    if workspace.loss.form is not None:
        return workspace.loss.form.constant_without_own(labels, weights)
    return constant_without_own(workspace.loss.kind, labels, weights)


def constant_without_own(
    kind: str, labels: Tensor, weights: Tensor | None = None
) -> Tensor:
    """The loss [n] of each row under the shares of classes, or the mean, of all the other rows of its client.

    Each class counts one row more than it has, so that the first row of a class costs no infinite loss.

    Args:
        kind: kind of the loss; a regression has squared errors.
        labels: [n].
        weights: of rows [n], which are divided by their mean; None: 1 each.

    >>> constant_without_own("binary", torch.tensor([0, 1, 1])).exp()  # one of 4, two of 4
    tensor([4., 2., 2.], dtype=torch.float64)
    """
    n = len(labels)
    w = torch.ones(n, dtype=torch.float64)
    if weights is not None:
        w = weights / weights.mean()
    if kind == "regression":
        numbers = labels.double()
        mean_of_others = ((w * numbers).sum() - w * numbers) / (n - w)
        return (numbers - mean_of_others).square()
    counts = torch.bincount(labels.long(), w, minlength=2)
    # Of the n - 1 others, with one more in each class.
    share = (counts[labels.long()] - w + 1) / (n - w + len(counts))
    return -share.log()


def _unit(kind: str, labels: Tensor, weights: Tensor | None = None) -> float:
    """What gains are divided by: of a regression they are shares of the variance of the client's labels."""
    if kind != "regression":
        return 1.0
    numbers = labels.double()
    variance = float(numbers.var(correction=0))
    if weights is not None:
        shares = weights / weights.sum()
        mean = (shares * numbers).sum()
        variance = float((shares * (numbers - mean).square()).sum())
    if variance == 0:
        return np.nan
    return variance
