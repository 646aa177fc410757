"""Predictions for new rows in words that people use: probabilities of classes, or numbers in the unit of the label."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.base.errors import require
from coterie.base.label_form import LabelForm
from coterie.base.loss import Kind
from coterie.base.rows import Inputs, LabelScale
from coterie.compute.metrics import probabilities
from coterie.run.files import escape


class Answers(nn.Module):
    """A model that answers in words that people use: class probabilities [rows, C], a number [rows, 1] in the label's unit, of counts
    the rate [rows, 1] per unit of exposure, or of time to event the probability [rows, 1] that nothing has happened at the horizon.

    Args:
        model: what gives outputs.
        kind: how these are read.
        classes: names of the classes; empty where the labels have none.
        scale: scale of the labels of a regression.
        last: the classes lie in the last dimension of outputs, not in dimension 1.
        form: the form of labels, of time to event.
    """

    def __init__(
        self,
        model: nn.Module,
        kind: Kind,
        classes: Sequence[str],
        scale: LabelScale,
        *,
        last: bool = False,
        form: LabelForm | None = None,
    ) -> None:
        super().__init__()
        self.last, self.numbers = (
            last,
            kind in ("regression", "hazards", "count", "own"),
        )
        self.form = form
        self.model, self.kind, self.classes, self.scale = (
            model,
            kind,
            tuple(classes),
            scale,
        )

    def forward(self, inputs: Inputs) -> Tensor:
        """Answer inputs [rows, ...]."""
        outputs = self.model(inputs)
        if self.form is not None:
            read = self.form.read(outputs)[:, :1]
            if self.kind == "count":
                return read
            return torch.exp(-read)  # survival until the horizon
        if self.numbers:
            return self.scale.undo(
                outputs.reshape(outputs.shape[0], -1)
            )  # an export takes `len` for a constant
        if self.last:
            outputs = outputs.movedim(-1, 1)
        return probabilities(self.kind, outputs)

    @torch.no_grad()
    def predict(
        self, inputs: Inputs, labels: Tensor | None = None, **about: Any
    ) -> Prediction:
        """Predict inputs [rows, ...], with their labels [rows] as they are stored; `about` are further fields."""
        values = self.eval()(inputs)
        classes: tuple[str, ...] = ()
        if not self.numbers:
            classes = self.classes or tuple(map(str, range(values.shape[1])))
        unscaled = None
        if labels is not None:
            unscaled = self.scale.undo(labels)
        return Prediction(
            kind=self.kind,
            classes=classes,
            values=values,
            labels=unscaled,
            form=self.form,
            **about,
        )


class Prediction(NamedTuple):
    """Predictions for new rows.

    Attributes:
        method, client: whose model was used.
        kind: what outputs of the model mean.
        classes: names of the classes; empty where numbers are predicted.
        values: probability of each class [rows, C], or predicted numbers [rows, outputs] in the unit of the label.
        labels: labels of the file, if it has them.
        notes: what was unusual about the file.
        threshold: the probability of the second of two classes from which a row is called so.
        columns: columns of the file, as they are written there; empty for arrays.
        form: the form of labels, of time to event: `values` are then the probabilities that nothing has happened at its horizon.
    """

    method: str
    client: str
    kind: Kind
    classes: tuple[str, ...]
    values: Tensor
    labels: Tensor | None = None
    notes: tuple[str, ...] = ()
    threshold: float = 0.5
    columns: Mapping[str, Sequence[str]] = {}
    form: LabelForm | None = None

    @property
    def called(self) -> Tensor:
        """Number of the predicted class [rows]; of several labels a row, which are predicted [rows, C].

        Raises `InputError` where numbers are predicted.
        """
        require(
            bool(self.classes),
            "the model predicts numbers, not classes; take prediction.values",
        )
        if self.kind == "multilabel":
            return self.values >= self.threshold
        if len(self.classes) == 2:
            return (self.values[:, 1] >= self.threshold).long()
        return self.values.argmax(dim=1)

    def table(self) -> str:
        """A CSV: the columns of the file (the row number if it has none), the prediction, and a column per class."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        columns = {name: cells for name, cells in self.columns.items() if name}
        columns = columns or {"row": [str(i) for i in range(1, len(self.values) + 1)]}
        rows = [(*columns, *(_free(name, columns) for name in self._header()))]
        rows += [
            (*cells, *predicted)
            for cells, predicted in zip(
                zip(*columns.values(), strict=True), self._cells(), strict=True
            )
        ]
        writer.writerows([escape(cell) for cell in row] for row in rows)
        return buffer.getvalue()

    def _header(self) -> list[str]:
        outputs = self.values.shape[1]
        if self.form is not None:
            return [self.form.survival_name]
        if self.classes or outputs == 1:
            return ["prediction", *self.classes]
        return [f"prediction {i}" for i in range(1, outputs + 1)]

    def _cells(self) -> list[list[str]]:
        if not self.classes:
            return [[f"{value:.6g}" for value in row] for row in self.values.tolist()]
        if self.kind == "multilabel":
            names = [
                "; ".join(itertools.compress(self.classes, row))
                for row in self.called.tolist()
            ]
        else:
            names = [self.classes[i] for i in self.called.tolist()]
        return [
            [name, *(f"{p:.4f}" for p in row)]
            for name, row in zip(names, self.values.tolist(), strict=True)
        ]

    def errors(self) -> tuple[float, float] | None:
        """Mean absolute error and root mean squared error, if numbers are predicted and the file has them."""
        if self.labels is None or self.classes or self.form is not None:
            return None
        gaps = (self.values - self.labels.reshape(self.values.shape)).double()
        return float(gaps.abs().mean()), float(gaps.square().mean().sqrt())

    def accuracy(self) -> float | None:
        """Share of right predictions, if the file has labels of classes."""
        if self.labels is None or not self.classes:
            return None
        right = self.called == self.labels
        if self.kind == "multilabel":  # a row is right if all its labels are
            right = right.all(dim=1)
        return float(right.double().mean())


def _free(name: str, taken: Mapping[str, Any]) -> str:
    if name in taken:
        return f"{name} (predicted)"
    return name
