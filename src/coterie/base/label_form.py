"""The form of labels: one declaration of what the numbers of a label mean, which clients, recipes, model files and reports share.

Nothing else reads raw labels to guess what they are. Labels stay one tensor, so that engines and the wire know nothing of forms:

| kind | labels | a row is |
| --- | --- | --- |
| classes | int64 [n], or [n, ...] of pixels | a class 0, 1, ... |
| ordered | int64 [n] | likewise, of classes in their order |
| several | int64 [n, L] | 0 or 1 for each of L classes |
| numbers | float32 [n, ...] | a quantity |
| hazards | float32 [n, 3] | entry, time and event, times divided by the horizon |
| count | float32 [n, 2] | a count of events, and the exposure in which they were counted |

Rows that weigh unequally have one column more, their weight: labels are then float64 [n, columns + 1], in which classes and float32
are exact (`with_weights`, `LabelForm.unweighted`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base import hazards
from coterie.base.errors import InputError, nearest

FormKind = Literal["classes", "ordered", "several", "numbers", "hazards", "count"]

ENTRY, TIME, EVENT = range(3)
"""Columns of the labels of time to event."""


def is_multi_hot(labels: Tensor) -> bool:
    """Return True if labels [rows, C] say 0 or 1 for each of C > 1 classes."""
    return (
        labels.ndim == 2
        and labels.shape[1] > 1
        and bool(((labels == 0) | (labels == 1)).all())
    )


def with_weights(labels: Tensor, weights: Tensor) -> Tensor:
    """Labels [n] or [n, columns] beside the weight of each row [n]: float64 [n, columns + 1].

    >>> with_weights(torch.tensor([0, 1]), torch.tensor([1.0, 2.5])).tolist()
    [[0.0, 1.0], [1.0, 2.5]]
    """
    columns = labels.double().reshape(len(labels), -1)
    return torch.cat([columns, weights.to(columns)[:, None]], 1)


@dataclass(frozen=True)
class LabelForm:
    """What labels are. It is also their loss (outputs, labels) -> [rows], where the kind has one that is no other's.

    Attributes:
        kind: `classes`, `ordered` (classes for which a model is proportional odds, `ct.Ordered`), `several`, `numbers`, `hazards` (time
            to event) or `count` (with exposure).
        columns: names of the columns of a table that make the label, in the order of the columns of labels.
        classes: names of the classes; empty where they have none.
        cuts: upper ends of the intervals of time, in horizons.
        rates: events per horizon in each interval, of all clients; of counts the only one, per unit of exposure.
        horizon: the time at which survival is judged, in `unit`: by it times are divided.
        unit: of times, in words.
        weighted: whether the last column of labels is the weight of each row: by it losses are multiplied.

    Raises:
        InputError: an unknown kind, or intervals that are none.

    >>> LabelForm("hazards", cuts=(0.5, 1.0), rates=(0.2, 0.3), horizon=24.0, unit="months").outputs
    2
    """

    kind: FormKind
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    cuts: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    horizon: float = 1.0
    unit: str = ""
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(FormKind):
            raise InputError(
                f"there is no form of labels {self.kind!r}; {nearest(str(self.kind), get_args(FormKind))}"
            )
        listed: Any
        for field in ("columns", "classes", "cuts", "rates"):
            listed = getattr(self, field)
            if not isinstance(listed, Iterable):
                raise InputError(
                    f"{field} of a form of labels are a list; got {listed!r}"
                )
            object.__setattr__(self, field, tuple(listed))
        numbers: tuple[Any, ...] = (*self.cuts, *self.rates, self.horizon)
        for value in numbers:
            if not isinstance(value, Real) or not math.isfinite(value):
                raise InputError(
                    f"cuts, rates and horizon of a form of labels are finite numbers; got {value!r}"
                )
        ascending = all(
            b > a for a, b in zip((0.0, *self.cuts), self.cuts, strict=False)
        )
        positive = all(rate > 0 for rate in self.rates) and self.horizon > 0
        wanted = {"hazards": max(len(self.cuts), 1), "count": 1}.get(self.kind, 0)
        matching = len(self.rates) == wanted
        needed = bool(self.cuts) == (self.kind == "hazards")
        if not (ascending and positive and matching and needed):
            raise InputError(
                "time to event needs cuts above 0 that ascend, as many rates above 0, and a horizon above 0, counts one rate; other "
                "labels have none"
            )

    @classmethod
    def of_labels(cls, labels: Tensor, classes: tuple[str, ...] = ()) -> LabelForm:
        """The form of labels that nobody declared: floats are numbers, rows of 0 and 1 several labels, other whole numbers classes."""
        if labels.is_floating_point():
            return cls("numbers")
        if is_multi_hot(labels):
            return cls("several", classes=classes)
        return cls("classes", classes=classes)

    @classmethod
    def of_recipe(cls, label: Mapping[str, Any]) -> LabelForm | None:
        """The form that a recipe (`recipe["label"]`) declares; None where labels say it themselves."""
        weighted = bool(label.get("weights"))
        if label.get("task") == "counts":
            names = (label["column"], label["exposure"])
            return cls("count", columns=names, rates=label["rates"], weighted=weighted)
        if label.get("task") != "time to event":
            kind: FormKind = "ordered" if label.get("ordered") else "classes"
            if not weighted and kind == "classes":
                return None
            if label.get("task") == "regression":
                return cls("numbers", weighted=True)
            return cls(kind, classes=label["classes"], weighted=weighted)
        columns = (label.get("entry"), label.get("time"), label.get("column"))
        return cls(
            "hazards",
            columns=tuple(str(name) for name in columns if name),
            cuts=label["cuts"],
            rates=label["rates"],
            horizon=label["horizon"],
            unit=str(label.get("unit", "")),
            weighted=weighted,
        )

    # Weights of rows

    def unweighted(self, labels: Tensor) -> Tensor:
        """Labels without the column of weights, int64 for classes, else float64; as they are where rows have no weights.

        >>> form = LabelForm("classes", weighted=True)
        >>> form.unweighted(torch.tensor([[0.0, 1.0], [1.0, 2.5]]))
        tensor([0, 1])
        """
        if not self.weighted:
            return labels
        columns = labels[..., :-1]
        if self.kind in ("classes", "ordered", "several"):
            columns = columns.long()
        is_table = self.has_loss or self.kind == "several"
        if columns.shape[-1] == 1 and not is_table:
            return columns[..., 0]
        return columns

    def weights(self, labels: Tensor) -> Tensor | None:
        """The weight of each row, float64 [n]; None where all rows count alike."""
        return labels[..., -1] if self.weighted else None

    # What a loss asks

    @property
    def has_loss(self) -> bool:
        """Return True if labels have a loss that follows from their form and not from the outputs of a model."""
        return self.kind in ("hazards", "count")

    @property
    def outputs(self) -> int:
        """Outputs that a model needs where the form says it, else 0."""
        return len(self.rates)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of each row [rows]. Raises `InputError` for outputs that do not fit."""
        if self.kind == "count":
            return hazards.count_losses(outputs, labels, self.rates[0])
        if outputs.ndim != 2 or outputs.shape[1] != self.outputs:
            raise InputError(
                f"time to event takes {self.outputs} outputs a row, and the model gives shape {tuple(outputs.shape)}: wrap it, "
                f"ct.Hazards(model, {self.outputs})"
            )
        return hazards.hazard_losses(outputs, labels, self.cuts, self.rates)

    def constant(
        self, train: Tensor, test: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Loss [rows] of labels `test`, if what follows from the labels `train` alone is always predicted, which count by their
        `weights` [n] (None: once); float64.
        """
        usual, seen = self.usual_and_seen(train)
        if weights is not None:
            shares = (weights / weights.mean())[:, None]
            usual, seen = usual * shares, seen * shares
        own = hazards.log_ratios(usual, seen)
        return self(own.expand(len(test), -1), test.double())

    def usual_and_seen(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Events of each interval (of counts: the only one) that are usual for such follow-up, and those seen; float64 [n, K] each."""
        rates = torch.tensor(self.rates, dtype=torch.float64)
        exact = labels.double()
        if self.kind == "count":
            return rates * exact[:, 1:], exact[:, :1]
        entry, time, event = exact.unbind(1)
        usual = rates * hazards.time_within(entry, time, self.cuts)
        return usual, hazards.events_within(time, event, self.cuts)

    def curve(self, outputs: Tensor) -> Tensor:
        """The cumulative hazard at the end of each interval [n, K], float64; between two ends it is straight."""
        columns = [
            hazards.cumulative_hazard(outputs, end, self.cuts, self.rates)
            for end in self.cuts
        ]
        return torch.stack(columns, 1)

    def constant_without_own(
        self, labels: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """The same [rows], of each row by the labels of all others."""
        usual, seen = self.usual_and_seen(labels)
        if weights is not None:
            shares = (weights / weights.mean())[:, None]
            usual, seen = usual * shares, seen * shares
        others = hazards.log_ratios(usual, seen, without_own=True)
        return self(others, labels.double())

    # What data sets ask

    def check(self, labels: Tensor, who: str) -> None:
        """Raise `InputError` for a row that is no time to event, no count with exposure, or has a weight that is none; other kinds are
        checked as classes are.
        """
        if self.weighted:
            self._check_weights(labels, who)
            labels = self.unweighted(labels)
        if not self.has_loss:
            return
        columns = {"hazards": "entry, time and event", "count": "count and exposure"}
        width = 3 if self.kind == "hazards" else 2
        if labels.ndim != 2 or labels.shape[1] != width:
            raise InputError(
                f"{who} has labels of shape {tuple(labels.shape)}; give rows of {columns[self.kind]}, [rows, {width}]"
            )
        values = labels.double()
        if self.kind == "hazards":
            entry, time, event = values.unbind(1)
            is_event = (event == 0) | (event == 1)
            fits = (entry >= 0) & (time > entry) & is_event
            rule = "an entry is 0 or more, a time is later, and an event is 0 or 1"
        else:
            seen, exposure = values.unbind(1)
            fits = (seen >= 0) & (seen == seen.round()) & (exposure > 0)
            rule = "a count is a whole number from 0, and an exposure is above 0"
        if not bool(fits.all()):
            worst = values[int(fits.long().argmin())]
            shown = ", ".join(f"{value:g}" for value in worst.tolist())
            raise InputError(
                f"{who} has a row whose {columns[self.kind]} are {shown}; {rule}: correct that row, or leave it out"
            )

    def _check_weights(self, labels: Tensor, who: str) -> None:
        if labels.ndim != 2 or labels.shape[1] < 2:
            raise InputError(
                f"{who} has labels of shape {tuple(labels.shape)}; give the weight of each row as their last column, [rows, 2] or more"
            )
        weights = labels[:, -1]
        if not bool((weights >= 0).all()):
            worst = float(weights.min())
            raise InputError(
                f"{who} has a row of weight {worst:g}; weights are 0 or more: correct that row, or leave it out"
            )
        if not bool((weights > 0).any()):
            raise InputError(
                f"{who} has no row whose weight is above 0, so nothing to learn from; leave it out"
            )

    # What metrics and reports ask

    def read(self, outputs: Tensor) -> Tensor:
        """Outputs as metrics and people read them, float64: the cumulative hazard until the horizon, until the last cut, and until each
        of the times `hazards.WITHIN_HORIZON` [n, 2 + T]; of counts the rate per unit of exposure [n, 1].
        """
        if self.kind == "count":
            return self.rates[0] * hazards.rates_of(outputs.double().reshape(-1, 1))[0]
        ends = (1.0, self.cuts[-1])
        columns = [
            hazards.cumulative_hazard(outputs, end, self.cuts, self.rates)
            for end in ends
        ]
        within = hazards.hazard_curves(
            outputs, hazards.WITHIN_HORIZON, self.cuts, self.rates
        )
        return torch.cat([torch.stack(columns, 1), within], 1)

    @property
    def survival_name(self) -> str:
        """What is predicted of a row, as the head of a column: `no died until 24 months`, `falls per bed_days`."""
        if self.kind == "count":
            return " per ".join(self.columns) or "rate"
        event = self.columns[-1] if self.columns else "event"
        return f"no {event} until {self.horizon:g} {self.unit}".rstrip()

    def plain(self, labels: Tensor) -> Tensor:
        """Whether the event happened, int64 [n]; of counts the rate per unit of exposure, float [n]."""
        if self.kind == "count":
            return labels[:, 0] / labels[:, 1]
        return (labels[:, EVENT] > 0).long()

    # What splits, minima and samplers ask

    def happened(self, labels: Tensor) -> Tensor | None:
        """Whether a row has an event [n]: of counts, one or more; None for other kinds."""
        if self.kind == "hazards":
            return labels[:, EVENT] > 0
        return labels[:, 0] > 0 if self.kind == "count" else None

    def strata(self, labels: Tensor) -> NDArray[np.int64] | None:
        """The class of each row [n], which splits keep in proportion and minima count; None where rows have none."""
        labels = self.unweighted(labels)
        if self.kind == "hazards":
            return (labels[:, EVENT] > 0).cpu().numpy().astype(np.int64)
        if self.kind in ("classes", "ordered") and labels.ndim == 1:
            return np.asarray(labels.cpu().numpy())
        return None
