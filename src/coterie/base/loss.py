"""Losses: per row, and how `loss="auto"` reads a model and its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.base.errors import InputError, nearest
from coterie.base.label_form import LabelForm, is_multi_hot
from coterie.base.metric_names import LOSSES
from coterie.base.rows import LabelScale

Kind = Literal[
    "binary", "classes", "multilabel", "regression", "hazards", "count", "own"
]
RowLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) -> loss of each row [rows]. Its attribute `kind`, if it has one, says how metrics read the outputs (`Kind`)."""

IGNORED = -100
"""The label of positions (pixels, tokens) that no loss and no metric counts, as in torch."""


class Loss:
    """A loss per row with the `kind` of task that it stands for.

    Attributes:
        kind: `binary` (one logit per label), `multilabel` (one logit for each of several classes, labels [rows, C]), `classes` (C
            logits), `regression` (squared error), `hazards` (time to event), `count` (with exposure) or `own` (no metric can be read).
        own: the user's loss, or None.
        last: the C logits lie in the last dimension, not in dimension 1.
        form: the form of labels whose loss it is; None where it is one of the kind alone.
        weighted: the form of labels with a column of weights; None where all rows count alike.
    """

    def __init__(
        self,
        kind: Kind,
        own: RowLoss | None = None,
        *,
        last: bool = False,
        form: LabelForm | None = None,
        weighted: LabelForm | None = None,
    ) -> None:
        self.kind, self.own, self.last, self.form = kind, own, last, form
        self.weighted = weighted

    def plain(self, labels: Tensor) -> Tensor:
        """Labels without the weights of rows."""
        return labels if self.weighted is None else self.weighted.unweighted(labels)

    def weights(self, labels: Tensor) -> Tensor | None:
        """The weight of each row [rows]; None where all rows count alike."""
        return None if self.weighted is None else self.weighted.weights(labels)

    @property
    def ignored(self) -> int:
        """The label that does not count: `IGNORED`, or that of a module of torch."""
        if isinstance(self.own, TorchLoss):
            return self.own.ignored
        return IGNORED

    @property
    def is_known(self) -> bool:
        """Whether it is known which labels it takes: not of a function of the user's own."""
        return self.own is None or isinstance(self.own, TorchLoss)

    def meaning(
        self,
        classes: tuple[str, ...],
        scale: LabelScale,
        recipe: Mapping[str, Any] | None,
    ) -> Meaning:
        """Return the meaning of outputs that were trained with this loss, on clients with these classes, scale and recipe."""
        return Meaning(self.kind, classes, scale, recipe, self.last, self.form)

    @property
    def has_classes(self) -> bool:
        """Whether labels are classes that the model has outputs for."""
        return self.kind in ("binary", "classes", "multilabel")

    def read(self, outputs: Tensor) -> Tensor:
        """Outputs as metrics read them: their C logits in dimension 1, or what the form of labels makes of them."""
        if self.form is not None:
            return self.form.read(outputs)
        return self.align_classes(outputs)

    def align_classes(self, outputs: Tensor) -> Tensor:
        """Outputs with their C logits in dimension 1."""
        if self.last:
            return outputs.movedim(-1, 1)
        return outputs

    def rows(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of each row [rows], times its weight where rows have some; further dimensions (pixels, positions) are averaged, without
        those whose label is `IGNORED`.
        """
        weights = self.weights(labels)
        if weights is None:
            return self.plain_rows(outputs, labels)
        plain = self.plain(labels)
        if plain.is_floating_point():
            plain = plain.to(outputs.dtype)
        values = self.plain_rows(outputs, plain)
        return values * weights.to(values)

    def plain_rows(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of each row [rows] as if all rows counted alike; labels are those of `plain`."""
        if self.own is not None:
            per_row = self.own(outputs, labels)
            if per_row.shape != labels.shape[:1]:
                raise InputError(
                    f"the loss returned shape {tuple(per_row.shape)}; it must return one number per row: ({labels.shape[0]},)"
                )
            return per_row
        if self.form is not None:
            return self.form(outputs, labels)
        if self.kind == "classes":
            values = F.cross_entropy(
                self.align_classes(outputs),
                labels.long(),
                reduction="none",
                ignore_index=IGNORED,
            )
            if values.ndim == 1:
                return values
            counted = (labels != IGNORED).flatten(1).sum(1)
            return values.flatten(1).mean(1) * (
                labels[0].numel() / counted.clamp(min=1)
            )
        if self.kind == "regression":
            values = F.mse_loss(
                _squeeze(outputs, labels), labels.to(outputs.dtype), reduction="none"
            )
        else:
            values = F.binary_cross_entropy_with_logits(
                _squeeze(outputs, labels), labels.to(outputs.dtype), reduction="none"
            )
        if values.ndim == 1:
            return values
        return values.flatten(1).mean(1)

    def mean(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over rows, a scalar.

        Of rows with weights it is the sum of weight times loss over the number of rows: weights have mean 1 over the training rows of
        a client, so that the gradient of a batch is, on average, that of all its rows.
        """
        if self.weighted is not None:
            return self.rows(outputs, labels).mean()
        # Whether a label is ignored is not asked of a GPU, which would have to wait in every step.
        ragged = labels.ndim > 1 and (labels.is_cuda or bool((labels == IGNORED).any()))
        if self.own is None and self.kind == "classes" and not ragged:
            # `long` returns int64 labels as they are.
            return F.cross_entropy(self.align_classes(outputs), labels.long())
        if self.own is None and self.kind in ("binary", "multilabel"):
            return F.binary_cross_entropy_with_logits(
                _squeeze(outputs, labels), labels.to(outputs.dtype)
            )
        return self.rows(outputs, labels).mean()


class Meaning(NamedTuple):
    """The meaning of outputs, and the recipe that makes inputs of rows of tables.

    Attributes:
        kind: how outputs are read.
        classes: names of the classes; empty for regression.
        scale: scale of the labels of a regression.
        recipe: how raw rows become inputs; None where clients were not made from tables.
        last: the classes lie in the last dimension of outputs, not in dimension 1.
        form: the form of labels that the outputs are about, where their kind alone does not say it.
    """

    kind: Kind
    classes: tuple[str, ...] = ()
    scale: LabelScale = LabelScale()
    recipe: Mapping[str, Any] | None = None
    last: bool = False
    form: LabelForm | None = None


@dataclass(frozen=True)
class WeightedLoss:
    """What a run minimises where rows have weights: the loss of a row times its weight.

    Attributes:
        loss: as without weights.
        form: of the labels, whose last column is the weight.
    """

    loss: str | RowLoss
    form: LabelForm

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of each row times its weight [rows]."""
        return choose_loss(self, outputs, labels).rows(outputs, labels)


class TorchLoss:
    """A loss module of torch as a loss per row: a copy whose `reduction` is "none", so that the caller's stays as it is.

    Further dimensions (pixels, positions) are averaged, without those whose label the module ignores. Raises `InputError` for a module
    whose mean over rows is another than the mean of its rows, or that takes probabilities.
    """

    def __init__(self, module: nn.Module) -> None:
        name = type(module).__name__
        if isinstance(module, nn.BCELoss):
            raise InputError(
                "BCELoss takes probabilities, and metrics read logits: take BCEWithLogitsLoss, and no Sigmoid"
            )
        if getattr(module, "weight", None) is not None:
            raise InputError(
                f"{name}(weight=...) divides by the weights of a batch, so clients could not be averaged; leave weight out, or give "
                "a function (outputs, labels) -> loss of each row"
            )
        self.kind: Kind = next(
            kind
            for module_class, kind in _KINDS.items()
            if isinstance(module, module_class)
        )
        self.ignored: int = getattr(module, "ignore_index", IGNORED)
        copy: Any = deepcopy(module)
        copy.reduction = "none"
        self.module: Any = copy

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of each row [rows]."""
        if any(buffer.device != outputs.device for buffer in self.module.buffers()):
            self.module.to(outputs.device)
        if self.kind != "classes":
            outputs, labels = _squeeze(outputs, labels), labels.to(outputs.dtype)
        values: Tensor = self.module(outputs, labels)
        if values.ndim == 1:
            return values
        counted = (labels != self.ignored).flatten(1).sum(1)
        return values.flatten(1).sum(1) / counted.clamp(min=1)


_KINDS: dict[type[nn.Module], Kind] = {
    nn.CrossEntropyLoss: "classes",
    nn.NLLLoss: "classes",
    nn.BCEWithLogitsLoss: "binary",
    nn.BCELoss: "binary",
    nn.MSELoss: "regression",
    nn.L1Loss: "regression",
    nn.SmoothL1Loss: "regression",
    nn.HuberLoss: "regression",
}
_FUNCTIONS: dict[Any, type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.mse_loss: nn.MSELoss,
    F.l1_loss: nn.L1Loss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.huber_loss: nn.HuberLoss,
}


_KINDS_OF_NAMES: dict[str, Kind] = {
    "binary": "binary",
    "classes": "classes",
    "classes-last": "classes",
    "squared": "regression",
}


def named_kind(loss: str | RowLoss) -> Kind | None:
    """Return the kind that a loss has whatever the labels are; None for "auto" and for a function that does not say it."""
    if isinstance(loss, WeightedLoss):
        return named_kind(loss.loss)
    loss = _module_of(loss)
    if isinstance(loss, str):
        return _KINDS_OF_NAMES.get(loss)
    if isinstance(loss, LabelForm):
        return _kind_of_form(loss)
    for module_class, kind in _KINDS.items():
        if isinstance(loss, module_class):
            return kind
    kind_of_own: Kind | None = getattr(loss, "kind", None)
    return kind_of_own


def _kind_of_form(form: LabelForm) -> Kind:
    return "count" if form.kind == "count" else "hazards"


def _module_of(loss: str | RowLoss) -> str | RowLoss:
    """Return the loss module that a loss function of torch stands for; any other loss as it is."""
    return next(
        (module() for function, module in _FUNCTIONS.items() if loss is function), loss
    )


def _squeeze(outputs: Tensor, labels: Tensor) -> Tensor:
    has_own_dimension = outputs.ndim == labels.ndim + 1 and outputs.shape[1] == 1
    if has_own_dimension:
        return outputs.squeeze(1)
    return outputs


def choose_loss(loss: str | RowLoss, outputs: Tensor, labels: Tensor) -> Loss:
    """The loss that `loss` names (`LOSSES`), checked against some outputs and labels.

    `"auto"`: float labels: squared error; one logit per label: binary cross-entropy; C logits in dimension 1, or in the last where
    that fits alone: cross-entropy. A loss module or function of torch is taken per row (`TorchLoss`).

    Raises `InputError` if outputs and labels do not fit, or fit in two ways.
    """
    if isinstance(loss, WeightedLoss):
        chosen = choose_loss(loss.loss, outputs, loss.form.unweighted(labels))
        chosen.weighted = loss.form
        return chosen
    loss = _module_of(loss)
    if isinstance(loss, type):
        raise InputError(
            f"the loss is the class {loss.__name__}; write {loss.__name__}()"
        )
    if isinstance(loss, nn.Module) and isinstance(loss, tuple(_KINDS)):
        per_row = TorchLoss(loss)
        _check_shapes(type(loss).__name__, per_row.kind, outputs, labels)
        if per_row.kind == "binary" and is_multi_hot(labels):
            return Loss("multilabel", per_row)
        return Loss(per_row.kind, per_row)
    if isinstance(loss, LabelForm):
        return Loss(_kind_of_form(loss), form=loss)
    if callable(loss):
        return Loss(_kind_of_own(loss, outputs, labels), loss)
    if loss not in LOSSES:
        raise InputError(
            f"loss must be a name or a callable (outputs, labels) -> [rows]; {nearest(str(loss), LOSSES)}"
        )
    return _loss_of_name(loss, outputs, labels)


def _loss_of_name(loss: str, outputs: Tensor, labels: Tensor) -> Loss:
    """The loss of a name of `LOSSES`; for "auto" the only one that fits the shapes."""
    shapes = f"outputs of shape {tuple(outputs.shape)} for labels of shape {tuple(labels.shape)}"
    one_logit = _squeeze(outputs, labels).shape == labels.shape
    classes_first = _has_classes_first(outputs, labels)
    one_more_dimension = outputs.ndim == labels.ndim + 1 and outputs.ndim > 2
    classes_last = one_more_dimension and outputs.shape[:-1] == labels.shape
    if loss == "squared" or (loss == "auto" and labels.is_floating_point()):
        if not one_logit:
            raise InputError(
                f"the model gives {shapes}; for regression they must agree: reshape one of them"
            )
        return Loss("regression")
    if one_logit and loss in ("auto", "binary"):
        has_columns = labels.ndim == 2 and labels.shape[1] > 1
        if has_columns and outputs.shape == labels.shape:
            return Loss("multilabel")
        return Loss("binary")
    if loss == "auto" and classes_first and classes_last:
        raise InputError(
            f'the model gives {shapes}: dimension 1 or the last may hold the classes; say loss="classes" or "classes-last"'
        )
    if classes_first and loss in ("auto", "classes"):
        return Loss("classes")
    if classes_last and loss in ("auto", "classes-last"):
        return Loss("classes", last=True)
    raise InputError(
        f"the model gives {shapes}; classification needs one logit, or C logits in dimension 1 or in the last"
    )


def _has_classes_first(outputs: Tensor, labels: Tensor) -> bool:
    """Return True if outputs can hold C logits in dimension 1 for each label."""
    return outputs.ndim == labels.ndim + 1 and outputs.shape[2:] == labels.shape[1:]


def _check_shapes(name: str, kind: Kind, outputs: Tensor, labels: Tensor) -> None:
    """Raise `InputError` where a loss module of torch would broadcast, or ends in a sentence about its inside."""
    shapes = f"outputs of shape {tuple(outputs.shape)} for labels of shape {tuple(labels.shape)}"
    if kind != "classes":
        if _squeeze(outputs, labels).shape != labels.shape:
            raise InputError(
                f"the model gives {shapes}; for {name} they must agree: reshape one of them"
            )
        return
    if labels.is_floating_point():
        raise InputError(
            f"{name} takes classes as whole numbers 0, 1, 2, ..., one for each row or place; the labels are {labels.dtype}"
        )
    if not _has_classes_first(outputs, labels):
        raise InputError(
            f"the model gives {shapes}; {name} takes C logits in dimension 1 for each label: reshape one of them"
        )


def _kind_of_own(loss: RowLoss, outputs: Tensor, labels: Tensor) -> Kind:
    """Return how metrics read the outputs under a loss of the user's own.

    Of one output per label that is a whole number nobody knows whether it is a logit or a probability, so there the loss must say it.
    Raises `InputError` if it does not, since all metrics but the loss would be missing without a word.
    """
    kind: Kind | None = getattr(loss, "kind", None)
    if kind is not None:
        if kind not in get_args(Kind):
            raise InputError(
                f"the loss has a kind {kind!r}; {nearest(str(kind), get_args(Kind))}"
            )
        return kind
    if labels.is_floating_point():
        if outputs.numel() == labels.numel() == len(labels):
            return "regression"
        return "own"
    if (
        outputs.ndim == labels.ndim + 1
        and outputs.shape[1] > 1
        and outputs.shape[2:] == labels.shape[1:]
    ):
        return "classes"
    if outputs.numel() == labels.numel():
        raise InputError(
            'the loss does not say how metrics read the outputs: give the function kind = "binary" (one logit for two classes), '
            'or "own" (no metric but the loss)'
        )
    return "own"


def are_probabilities(kind: Kind, outputs: Sequence[Tensor]) -> bool:
    """Return True if outputs can only be probabilities, where a loss on classes takes logits.

    Args:
        kind: kind of the loss.
        outputs: those of the same rows at several scales of inputs, C in dimension 1. Logits leave [0, 1] when inputs grow;
            a logit that is the same for all rows says nothing.
    """
    rows = torch.cat(list(outputs))
    if not bool(((rows >= 0) & (rows <= 1)).all()):
        return False
    if kind == "classes":
        return rows.shape[1] > 1 and bool(((rows.sum(1) - 1).abs() < 1e-3).all())
    return len(outputs) > 1 and bool((rows != rows[:1]).any())
