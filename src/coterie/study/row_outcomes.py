"""`outcomes/`: what each model of a run says of each test row, so that a report can compare methods patient by patient.

One file per method and seed, safetensors, of all clients that have test rows behind each other (R rows):

- `offsets` int64 [n + 1]: client i of the metadata's `clients` has the rows offsets[i]:offsets[i + 1];
- `numbers` int64 [R]: which row of the client it is, the same number in every seed;
- `patients` int64 [R], where a column says which rows belong together: whose row it is;
- `weights` float64 [R], where rows have weights: of mean 1 over all rows of the client; losses are without them;
- `loss` float64 [R], and `constant_loss` float64 [R]: the loss of always predicting the client's own training rows,
  NaN where the loss is the user's own;
- `boosted_loss` float64 [R], beside the method that trains each client alone: the loss of boosted trees that the client fits to its
  own training rows (`compute/boosted.py`), where these are a rival;
- `thresholds` float64 [n]: for two classes, the risk of class 1 at which sensitivity plus specificity is highest on the client's
  validation rows; NaN where there are none, or the method trained on them;
- `followup` float32 [R, 3] and `hazards` float64 [R, K], of time to event: entry, time and event, and the predicted cumulative hazard
  at the end of each interval; times are in horizons (`preprocess.json` has the horizon and the intervals);
- `counts` float64 [R, 2], of counts with exposure: the events that are usual in such an exposure, and those counted;
- `marks` int8 [R, C], where a row has a label of 0 or 1 for each of several classes: these labels;
- `labels` [R] and `outputs` [R, C], where a row has one label (not for images of labels or texts) and the kind of the loss is not
  "own"; those of a regression are in the unit of the label, while its losses are squared errors of the standardised label.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from coterie.base.clients import Client, Clients
from coterie.base.files import write_tensors
from coterie.base.label_form import LabelForm, with_weights
from coterie.base.loss import IGNORED, Kind, RowLoss
from coterie.base.rng import Rng
from coterie.base.rows import LabelScale, Part, Rows, tensors_by_name
from coterie.compute.boosted import losses_of_classes, losses_of_numbers
from coterie.compute.cohort_losses import answers_of
from coterie.compute.workspace import Workspace
from coterie.run.result import Run


def write_outcomes(
    path: Path,
    label: str,
    run: Run,
    clients: Clients,
    loss: str | RowLoss = "auto",
    fold: str = "",
    *,
    boosted: bool = False,
) -> None:
    """Write what the models of a finished run say of the test rows of `clients`; nothing if there are none."""
    names, tensors = outcomes(run, clients, loss, boosted=boosted)
    if names:
        metadata = {"method": label, "seed": run.seed, "fold": fold, "clients": names}
        write_tensors(path, tensors, metadata)


@torch.no_grad()
def outcomes(
    run: Run,
    clients: Clients,
    loss: str | RowLoss = "auto",
    *,
    boosted: bool = False,
) -> tuple[list[str], dict[str, Tensor]]:
    """The clients that have a model and test rows, and the tensors of the file.

    Args:
        run: A finished run.
        clients: Its clients.
        loss: Its loss.
        boosted: Whether to fit boosted trees to the same training rows, for the losses of the second rival.
    """
    workspace = Workspace(run.module, loss, clients[0])
    workspace.model.eval()
    trained_on = {row["client"]: row["n_train"] for row in run.summary}
    names: list[str] = []
    columns: dict[str, list[Tensor]] = {}
    thresholds: list[float] = []
    for client in (*clients, *(clients.unseen or ())):
        name, model = client.name, run.models.get(client.name, run.models.get("*"))
        if client.test is None or model is None:
            continue
        names.append(name)
        workspace.load(model.cpu())
        held_out = client.validation
        trained_parts = [client.train]
        if held_out is not None and trained_on.get(name, 0) > len(client.train):
            trained_parts.append(held_out)
            held_out = None
        labels = torch.cat([part.labels for part in trained_parts])
        scale_of_weights = mean_weight(client, workspace.loss.weighted)
        with _noise_of_evaluation(workspace, run, name):
            columns_of_client = of_rows(workspace, client, labels, clients.label_scale)
            if boosted:
                columns_of_client |= losses_of_boosted(
                    workspace, trained_parts, client.test
                )
            # Rows that the model was trained on cannot choose its threshold.
            threshold = torch.nan
            if held_out is not None:
                threshold = _threshold(workspace, held_out)
            thresholds.append(threshold)
        if "weights" in columns_of_client:
            # Not in place: these are the client's own numbers.
            columns_of_client["weights"] = (
                columns_of_client["weights"] / scale_of_weights
            )
        for key, value in columns_of_client.items():
            columns.setdefault(key, []).append(value)
    for key in ("patients", "boosted_loss"):
        if len(columns.get(key, ())) < len(names):  # of some clients alone
            columns.pop(key, None)
    sizes = [len(loss) for loss in columns.get("loss", ())]
    joined = {key: torch.cat(values) for key, values in columns.items()}
    joined["thresholds"] = torch.tensor(thresholds, dtype=torch.float64)
    return names, {**joined, "offsets": torch.tensor(np.cumsum([0, *sizes]))}


def mean_weight(client: Client, form: LabelForm | None) -> float:
    """Return the mean weight of all rows of a client, so that a row counts alike whichever fold tests it; 1 without weights.

    Args:
        client: The client.
        form: Of its labels; None: rows have no weights.
    """
    stored = torch.cat([part.labels for _, part in client.parts()])
    weights = None if form is None else form.weights(stored)
    return 1.0 if weights is None else float(weights.mean())


def _noise_of_evaluation(
    workspace: Workspace, run: Run, client: str
) -> AbstractContextManager[None]:
    """The noise of a model that always draws is that of the last evaluation, so that losses are those of the summary."""
    if not workspace.always_random:
        return nullcontext()
    seed = Rng.named(run.seed, run.rounds, client, "round/layers").seed()
    return workspace.noise(seed)


def _answers(workspace: Workspace, part: Part) -> tuple[Tensor, Tensor]:
    """Outputs and losses as in the evaluation of a run; losses without weights."""
    loss = workspace.loss
    if loss.weighted is not None:
        plain = loss.plain(part.labels)
        ones = with_weights(plain, torch.ones(len(part)))
        part = Part(part.inputs, ones)
    return answers_of(workspace, Rows(*part, np.array([0, len(part)])), [0])


def _threshold(workspace: Workspace, part: Part) -> float:
    """The risk from which to call a row positive, half way between two rows; of several that are as good the nearest to .5."""
    labels = workspace.loss.plain(part.labels)
    if workspace.loss.kind != "binary" or labels.ndim > 1:
        return torch.nan
    weights = workspace.loss.weights(part.labels)
    if weights is None:
        weights = torch.ones(len(labels), dtype=torch.float64)
    positive = (labels == 1).double()
    risks, group = torch.sigmoid(
        _answers(workspace, part)[0].reshape(-1).double()
    ).unique(return_inverse=True)
    cases, others = positive * weights, (1 - positive) * weights
    total = torch.stack([cases.sum(), others.sum()])
    if len(risks) < 2 or not bool(total.all()):
        return torch.nan
    shares_below = torch.stack(
        [torch.bincount(group, weights=w).cumsum(0)[:-1] for w in (cases, others)]
    )
    missed, spared = shares_below / total[:, None]
    cuts = (risks[1:] + risks[:-1]) / 2
    best = cuts[spared - missed >= (spared - missed).max() - 1e-12]
    return float(best[(best - 0.5).abs().argmin()])


@torch.no_grad()
def of_rows(
    workspace: Workspace, client: Client, trained_on: Tensor, scale: LabelScale
) -> dict[str, Tensor]:
    """Return the predictions of the model for each test row [R] of a client, under the names of the file; {} without such rows.

    Args:
        workspace: with the model, which does not train.
        client: whose test rows; where it does not number them, numbers are made from what is in them.
        trained_on: labels of its training rows, as they are stored.
        scale: how the labels of a regression are stored.
    """
    test = client.test
    if test is None:
        return {}
    outputs, losses = _answers(workspace, test)
    tensors = {"loss": losses.double()}
    loss = workspace.loss
    weights, trained_weights = loss.weights(test.labels), loss.weights(trained_on)
    test = Part(test.inputs, loss.plain(test.labels))
    trained_on = loss.plain(trained_on)
    if weights is not None:
        tensors["weights"] = weights.double()
    if test.labels.ndim == 1 and workspace.loss.kind != "own":
        tensors |= {"labels": test.labels, "outputs": outputs.reshape(len(test), -1)}
        if (
            workspace.loss.kind == "regression"
        ):  # on numbers of classes too, which are then numbers like others
            tensors |= {k: scale.undo(tensors[k]) for k in ("labels", "outputs")}
            tensors["labels"] = tensors["labels"].to(tensors["outputs"].dtype)
    if test.labels.ndim == 2 and workspace.loss.kind == "multilabel":
        tensors["marks"] = test.labels.to(torch.int8)
    form = workspace.loss.form
    if form is not None:
        if form.kind == "count":
            tensors["counts"] = torch.cat(form.usual_and_seen(test.labels), 1)
        else:
            tensors |= {"followup": test.labels, "hazards": form.curve(outputs)}
        tensors["constant_loss"] = form.constant(
            trained_on, test.labels, trained_weights
        )
    else:
        kind = _kind(workspace)
        tensors["constant_loss"] = _constant_loss(
            kind, trained_on, test.labels, trained_weights
        )
    numbers = client.test_numbers
    if numbers is None:
        numbers = _content_numbers(test)
    tensors["numbers"] = torch.from_numpy(numbers)
    if client.row_groups is not None:
        tensors["patients"] = torch.from_numpy(client.row_groups["test"])
    return tensors


def _kind(workspace: Workspace) -> Kind:
    """The kind of loss; "own" for a function of the user's, whatever kind of labels it takes."""
    if workspace.loss.own is not None:
        return "own"
    return workspace.loss.kind


def losses_of_boosted(
    workspace: Workspace, trained: Sequence[Part], test: Part
) -> dict[str, Tensor]:
    """The loss of boosted trees on each test row [R], under its name in the file; {} where the loss is none that trees have.

    Args:
        workspace: Says how labels are read.
        trained: Parts whose rows the trees are fitted to.
        test: Rows that are tested.
    """
    kind = _kind(workspace)
    loss = workspace.loss
    tables = [_table(part) for part in trained]
    inputs = np.concatenate([part_inputs for part_inputs, _ in tables])
    stored = torch.cat([part.labels for part in trained]).cpu()
    labels = loss.plain(stored).numpy()
    row_weights = loss.weights(stored)
    weights = None if row_weights is None else row_weights.numpy()
    tested, _ = _table(test)
    tested_labels = loss.plain(test.labels.cpu()).numpy()
    if kind == "regression":
        losses = losses_of_numbers(inputs, labels, tested, tested_labels, weights)
    elif kind in ("binary", "classes"):
        classes = labels.astype(np.int64)
        tested_classes = tested_labels.astype(np.int64)
        losses = losses_of_classes(inputs, classes, tested, tested_classes, weights)
    else:
        return {}
    return {"boosted_loss": torch.from_numpy(losses)}


def _table(part: Part) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs [rows, columns] and labels [rows] of a table."""
    return cast("Tensor", part.read()).cpu().numpy(), part.labels.cpu().numpy()


def _constant_loss(
    kind: Kind, train: Tensor, test: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Loss of each row if its training shares (for regression: their mean) are always predicted; NaN where undefined.

    Of several labels each has a share of its own. Positions whose label is `IGNORED` do not count. Training rows count by their
    weights, of mean 1.
    """
    if weights is not None:
        weights = weights / weights.mean()
    if kind == "regression":
        mean = train.double().mean()
        if weights is not None:
            mean = (train.double() * weights).mean()
        return ((test - mean) ** 2).double().reshape(len(test), -1).mean(dim=1)
    if kind == "own":
        return torch.full((len(test),), torch.nan, dtype=torch.float64)
    # One added row per class: a class without training rows would cost an infinite loss.
    if kind == "multilabel":
        marks = train.double()
        if weights is not None:
            marks = marks * weights[:, None]
        shares = (marks.sum(dim=0) + 1) / (len(train) + 2)
        losses = F.binary_cross_entropy(
            shares.expand(test.shape), test.double(), reduction="none"
        )
        return losses.flatten(1).mean(dim=1)
    # Masks and 0/1 may be stored as floats: the loss has said that they are classes.
    train, test = train.long(), test.long()
    known, counted = train[train != IGNORED], test != IGNORED
    highest = max(0, *(int(v.max()) for v in (known, test) if v.numel()))
    if weights is not None:
        weights = weights[train != IGNORED]
    counts = torch.bincount(known, weights, minlength=highest + 1).double() + 1
    losses = -(counts / counts.sum()).log()[test.where(counted, 0)] * counted
    per_row = counted.reshape(len(test), -1).sum(dim=1).clamp(min=1)
    return losses.reshape(len(test), -1).sum(dim=1) / per_row


def _content_numbers(part: Part) -> NDArray[np.int64]:
    """A number for each row made from what is in it: equal rows have equal numbers."""
    return np.array(
        [number for chunk in part.chunks() for number in _numbers_of(chunk)],
        dtype=np.int64,
    )


def _numbers_of(part: Part) -> list[int]:
    tensors = (*tensors_by_name(part.read()).values(), part.labels)
    columns = [
        np.ascontiguousarray(t.cpu().reshape(len(part), -1).numpy()) for t in tensors
    ]
    digests = [
        hashlib.blake2b(b"".join(c[i].tobytes() for c in columns), digest_size=8)
        for i in range(len(part))
    ]
    return [int.from_bytes(d.digest(), "little", signed=True) for d in digests]
