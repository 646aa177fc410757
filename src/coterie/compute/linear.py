"""Linear models that are solved and not trained: which models these are, a client's rows for the solver, and what it tells of them."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.base.errors import InputError
from coterie.base.heads import Hazards, Ordered
from coterie.base.label_form import LabelForm
from coterie.base.loss import IGNORED, Loss
from coterie.base.rows import Inputs
from coterie.base.vector import Layout
from coterie.compute.cohort import Cohort
from coterie.contract.replies import Replies, medians, outliers
from coterie.solvers import glm

MOST_PARAMETERS = 512
"""Parameters up to which a model is solved: a curvature is 1 MiB a client, and to choose a ridge takes ninety. A table has fewer,
pixels of images have more."""


MOST_KEPT = 1 << 22
"""Numbers of all clients up to which their rows are kept in float64, 32 MiB, since each round of a solver asks for them."""


class LinearRows(NamedTuple):
    """The rows of one client as a solver takes them.

    Attributes:
        inputs: float64 [n, d].
        labels: [n], as the family reads them.
        family: log likelihood of a row.
        outputs: C.
        weights: of rows [n], of mean 1 over the training rows of a client; None: 1 each.
    """

    inputs: Tensor
    labels: Tensor
    family: glm.Family
    outputs: int
    weights: Tensor | None = None

    @property
    def slopes(self) -> int:
        """Number of slopes C d, or d where outputs share them; the other parameters are C intercepts."""
        columns = self.inputs.shape[1]
        return columns if glm.shares_slopes(self.family) else self.outputs * columns


def linear_layer(model: nn.Module) -> nn.Linear | None:
    """Return the layer of a model that is one linear layer with bias, of flattened inputs, and nothing else; None for others.

    Of time to event the bias is the baseline behind the layer.

    >>> linear_layer(nn.Linear(3, 1)) is None, linear_layer(nn.Linear(3, 1, bias=False)) is None
    (False, True)
    """
    if isinstance(model, Hazards):
        return _layer_of_score(model)
    layers = [m for m in model.modules() if type(m) not in (nn.Sequential, nn.Flatten)]
    if len(layers) != 1 or type(layers[0]) is not nn.Linear:
        return None
    layer = layers[0]
    trained = all(p.requires_grad for p in layer.parameters())
    return layer if layer.bias is not None and trained else None


def _layer_of_score(model: Hazards) -> nn.Linear | None:
    layers = [
        m for m in model.body.modules() if type(m) not in (nn.Sequential, nn.Flatten)
    ]
    if len(layers) != 1 or type(layers[0]) is not nn.Linear:
        return None
    trained = all(p.requires_grad for p in model.parameters())
    has_bias = layers[0]._parameters.get("bias") is not None
    return None if has_bias or not trained else layers[0]


def outputs_of_linear(model: nn.Module, layer: nn.Linear) -> int:
    """The number C of outputs of a model that is this linear layer, with a baseline or without."""
    if isinstance(model, Hazards):
        return model.baseline.bias.numel()
    return layer.out_features


class NotLinearError(InputError):
    """A model that no linear solver takes, or a loss."""


def require_linear(model: nn.Module, loss: Loss, method: str) -> nn.Linear:
    """Return the linear layer that the model is.

    Raises:
        NotLinearError: The model is not one linear layer with bias, its loss is not the library's, or it is too large to be solved.
    """
    cure = f"leave out {method}, or take --model logistic"
    if isinstance(model, Ordered):
        cure = f"leave out {method}, or ordered"
    layer = linear_layer(model)
    if layer is None:
        raise NotLinearError(
            f"{method} solves linear models, and this model is not one linear layer with bias; {cure}"
        )
    if loss.own is not None or loss.kind not in glm.FAMILIES:
        kind = "a loss of its own" if loss.own is not None else f"loss {loss.kind}"
        raise NotLinearError(
            f"{method} solves linear models under the library's loss, and this run has {kind}; leave out {method}"
        )
    with_baseline = isinstance(model, Hazards)
    if with_baseline != (loss.kind == "hazards"):
        raise NotLinearError(
            f"{method} solves time to event for models with a baseline, ct.Hazards; leave out {method}, or take --model logistic"
        )
    if loss.kind != "classes" and layer.out_features != 1:
        raise NotLinearError(
            f"{method} solves models of one number, and this one has {layer.out_features} outputs for {loss.kind}; leave out {method}"
        )
    size = layer.weight.numel() + outputs_of_linear(model, layer)
    if size > MOST_PARAMETERS:
        raise NotLinearError(
            f"{method} asks for the curvature of {size} parameters, {size * (size + 1) // 2} numbers a client; it takes up to "
            f"{MOST_PARAMETERS}; leave out {method}, or take fewer columns"
        )
    return layer


def counts(layout: Layout) -> tuple[int, int]:
    """The numbers D of slopes and C of intercepts of a linear layer."""
    (_, weight), (_, bias) = layout.parameters
    return weight.numel(), bias.numel()


def linear_rows(
    cohort: Cohort,
    client: int,
    numbers: NDArray[np.int64] | None = None,
    *,
    hidden: bool = False,
) -> LinearRows:
    """Return training rows of the client at position `client`, in float64 on the CPU.

    Args:
        cohort: the clients.
        client: position of the client.
        numbers: which of its training rows; None: all.
        hidden: whether all that is made of them stays with the client, or is told behind noise.

    Raises:
        InputError: The model is not linear, rows are private, or the client may compute nothing of so few rows.
    """
    workspace = cohort.workspace
    if workspace.veil is not None and not hidden:
        raise InputError(
            "curvature is told as it is, and this plan hides losses behind secret noise; take a method that sends updates"
        )
    cohort.rows_of("train", client)  # raises for a client without rows
    cohort.require_enough(client, None)
    if numbers is not None:
        return _read(cohort, client, numbers)
    all_rows, place = cohort.clients.train, cohort.index[client]
    kept_of, kept = workspace.kept_linear
    if kept_of is not all_rows:
        kept = {}
        workspace.kept_linear = all_rows, kept
    if place in kept:
        return cast("LinearRows", kept[place])
    rows = _read(cohort, client, None)
    numbers_of_all = rows.inputs.shape[1] * int(all_rows.offsets[-1])
    if numbers_of_all <= MOST_KEPT:
        kept[place] = rows
    return rows


def _read(cohort: Cohort, client: int, numbers: NDArray[np.int64] | None) -> LinearRows:
    workspace = cohort.workspace
    layer = require_linear(workspace.model, workspace.loss, "the method")
    held, stored = cohort.training_rows(client, numbers)
    stored = stored.cpu()
    weights = workspace.loss.weights(stored)
    labels = solver_labels(workspace.loss.form, workspace.loss.plain(stored))
    inputs = _flat(held)
    if workspace.loss.kind in ("binary", "regression"):
        labels = labels.reshape(len(labels))
    known = labels != IGNORED
    if workspace.loss.kind == "classes" and not bool(known.all()):
        inputs, labels = inputs[known], labels[known]
        if weights is not None:
            weights = weights[known]
    family = glm.FAMILIES[workspace.loss.kind]
    outputs = outputs_of_linear(workspace.model, layer)
    return LinearRows(inputs, labels, family, outputs, weights)


def solver_labels(form: LabelForm | None, labels: Tensor) -> Tensor:
    """Labels as the family of `glm` reads them: of counts and time to event [n, 2 K], usual and seen events of each interval."""
    if form is None:
        return labels
    return torch.cat(form.usual_and_seen(labels), 1)


def _flat(inputs: Inputs) -> Tensor:
    if isinstance(inputs, dict):
        raise InputError("a linear layer takes one tensor of inputs, not several")
    return inputs.flatten(1).to("cpu", torch.float64)


def too_long(replies: Replies[Any], field: str, max_norm: float) -> dict[str, str]:
    """Return why replies are refused whose vectors [n, ...] are far longer than the others', as updates are, by client."""
    lengths = {field: torch.linalg.vector_norm(replies.fields[field], dim=1)}
    return outliers(replies.clients, lengths, medians(lengths), max_norm)


def upper(matrices: Tensor) -> Tensor:
    """The upper triangles [..., P (P + 1) / 2] of symmetric matrices [..., P, P], row by row."""
    rows, columns = torch.triu_indices(matrices.shape[-1], matrices.shape[-1])
    return matrices[..., rows, columns]


def symmetric(triangles: Tensor, size: int) -> Tensor:
    """The symmetric matrices [..., P, P] of their upper triangles.

    >>> symmetric(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    rows, columns = torch.triu_indices(size, size)
    matrices = triangles.new_zeros(*triangles.shape[:-1], size, size)
    matrices[..., rows, columns] = triangles
    matrices[..., columns, rows] = triangles
    return matrices
