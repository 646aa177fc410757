"""How well is a hospital served that took no part? Each client in turn is left out, and served the mean of the others' models.

It needs no more training: what the clients told of their rows lies in the prior of a run by `partial`, and the prior is
learnt again without what the one told. Only models that were trained on all rows are asked, so that each client is
tested on all of its rows, none of which its model has seen.

The gain is over a constant prediction: the client's own shares of classes, or its own mean, of all its rows but the one
that is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.base.clients import Client, Clients
from coterie.base.label_form import with_weights
from coterie.base.loss import RowLoss
from coterie.base.rows import Part, Rows
from coterie.compute.cohort_losses import answers_of
from coterie.compute.outcomes import mean_influence, row_error
from coterie.compute.workspace import Workspace
from coterie.run.files import OUTSIDE_ERROR, OUTSIDE_GAIN
from coterie.run.result import Run
from coterie.solvers import pooling

FEWEST_CLIENTS = 3
"""Clients below which nothing is known of how much hospitals differ."""
FEWEST_ROWS = 2
AT_ONCE = 1 << 22
"""Numbers in the curvatures of federations that are solved side by side: 32 MiB."""


def measure_left_out(run: Run, clients: Clients, loss: str | RowLoss = "auto") -> Run:
    """Return the run with what each client gains by a model of the others in its prior; as it is, where no quadratics were told.

    Args:
        run: A finished run.
        clients: Its clients.
        loss: Its loss.
    """
    prior = run.prior
    told = prior.get("clients", ())
    if "curvature" not in prior or len(told) < FEWEST_CLIENTS:
        return run
    models = centres_without(prior)
    workspace = Workspace(run.module, loss, clients[0])
    workspace.model.eval()
    gains, errors = [], []
    for name, model in zip(told, models, strict=True):
        gain, error = _measure(workspace, clients[name], model)
        gains.append(gain)
        errors.append(error)
    measured = {
        OUTSIDE_GAIN: torch.tensor(gains, dtype=torch.float64),
        OUTSIDE_ERROR: torch.tensor(errors, dtype=torch.float64),
    }
    return replace(run, prior={**prior, **measured})


def centres_without(prior: Mapping[str, Any]) -> Tensor:
    """For each of m clients the mean (mu, m0) [m, P] that is learnt from what all others told.

    Args:
        prior: `Run.prior` of `partial` in the form of passes.
    """
    fields = (prior[name] for name in pooling.Quadratics._fields)
    quadratics = pooling.Quadratics(*fields)
    own, slopes = prior["own"], len(prior["mu"])
    count = len(own)
    everyone = torch.arange(count)
    # In row k all clients but k [m, m - 1].
    others = torch.stack([everyone[everyone != k] for k in range(count)])
    at_once = max(AT_ONCE // quadratics.curvature.numel(), 1)
    centres = []
    for rows in others.split(at_once):
        of_others = pooling.Quadratics(*(part[rows] for part in quadratics))
        pooled = pooling.pool(of_others, own[rows], slopes)
        centres.append(pooled.prior.centre())
    return torch.cat(centres)


@torch.no_grad()
def _measure(
    workspace: Workspace, client: Client, model: Tensor
) -> tuple[float, float]:
    """Mean gain of a model over the constant prediction on a client's training rows, and its standard error; NaN for a single row."""
    part, loss = client.train, workspace.loss
    if len(part) < FEWEST_ROWS:
        return np.nan, np.nan
    labels, weights = loss.plain(part.labels), loss.weights(part.labels)
    if weights is not None:
        ones = with_weights(labels, torch.ones(len(labels)))
        part = Part(part.inputs, ones)
    workspace.load(model.to(workspace.layout.dtype))
    _, losses = answers_of(workspace, Rows(*part, np.array([0, len(part)])), [0])
    constant = _constant(workspace, labels, weights)
    shares = None if weights is None else weights.numpy()
    patients = np.arange(len(part))
    if client.row_groups is not None:
        patients = client.row_groups["train"]
    of_constant = mean_influence(patients, constant.numpy(), shares)
    of_model = mean_influence(patients, losses.double().numpy(), shares)
    error = row_error([of_constant], [of_model])
    unit = _unit(workspace.loss.kind, labels, weights)
    gain = (of_constant.metric - of_model.metric) / unit
    if error is None:
        return gain, np.nan
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
