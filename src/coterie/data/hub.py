"""Data sets of the Hugging Face hub, its cache, or a local folder in its layout, through the package `datasets`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError, nearest
from coterie.base.rows import Inputs
from coterie.config.data import Split
from coterie.config.rules import SIZE
from coterie.data.dataset import names_of_columns, read_columns
from coterie.data.dealing import ReadColumn
from coterie.data.lazy import lazy as lazily
from coterie.data.lazy import mark_of
from coterie.data.splits import subset
from coterie.data.tensors import split_over
from coterie.data.values import as_labels

DEFAULT_SPLIT: Mapping[str, Any] = {"kind": "dirichlet", "alpha": 0.5, "clients": 10}

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """Inputs and labels of a data set, with the inputs still unread.

    Attributes:
        labels: class of each row.
        classes: their names, as far as the data set has any.
        read: inputs of the given rows.
        column: the values of any other column.
    """

    labels: Index
    classes: Sequence[str]
    read: Callable[[Index], Inputs]
    column: ReadColumn

    def read_tensor(self, index: Index) -> Tensor:
        """The same where inputs are one column."""
        return cast("Tensor", self.read(index))


def from_hub(
    name: str,
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    label: str | None = None,
    input: str | Sequence[str] | None = None,
    subset_name: str | None = None,
    part: str = "train",
    rows: int | None = None,
    lazy: bool = False,
) -> Clients:
    """Clients from a data set of the hub; by default 10 with Dirichlet(.5) shares of its classes.

    Args:
        name: as on the hub, or a local folder or script-free repository that `datasets.load_dataset` can open.
        seed: seed of the split and of `rows`.
        split: the [split] table, on top of `DEFAULT_SPLIT`.
        label: column of labels; None takes label, labels, target or y.
        input: column or columns; None takes token ids, else the only image, else the only column of numbers.
        subset_name: configuration of the data set, where it has several.
        part: whose rows are used: train, test, ...
        rows: only so many, every class in its share.
        lazy: read inputs from the files of the data set whenever they are asked for, so that they need not fit in memory.

    Raises:
        InputError: that says what `datasets` said, or which column or option is wrong.
    """
    rule = Split.parse(split, **DEFAULT_SPLIT)
    dataset = open_hub(name, subset_name=subset_name, part=part)
    rows_of_hub = columns(dataset, input, label)
    count = len(rows_of_hub.labels)
    if rows is not None and (not SIZE.test(rows) or rows > count):
        raise InputError(f"rows = {rows!r} must lie between 1 and {count}")
    chosen = np.arange(count)
    if rows is not None:
        chosen = subset(rows_of_hub.labels, rows, seed=rule.seed_for(seed))
    return split_over(
        lazily(count, lambda: rows_of_hub.read, mark_of(dataset), chosen)
        if lazy
        else lambda index: rows_of_hub.read(chosen[index]),
        rows_of_hub.labels[chosen],
        rule,
        seed=seed,
        column=lambda key: rows_of_hub.column(key)[chosen],
        name=name,
        classes=rows_of_hub.classes,
    )


def has_datasets() -> bool:
    """Return True if the extra `hub` is there."""
    return importlib.util.find_spec("datasets") is not None


def open_hub(name: str, *, subset_name: str | None = None, part: str = "train") -> Any:
    """One part of a data set as `datasets` opens it."""
    if not has_datasets():
        raise InputError(
            f'there is no folder {name!r} here, and the Hugging Face hub needs: pip install "coterie[hub]"'
        )
    import datasets

    try:
        parts = datasets.load_dataset(name, subset_name)
    except Exception as error:  # whatever the network, the hub or a file says
        why = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(
            f"neither a folder nor the hub has the data set {name!r} ({why}); check the name and the network"
        ) from error
    if part not in parts:
        raise InputError(f"{name!r} has no part {part!r}; {nearest(part, list(parts))}")
    return parts[part]


def columns(
    dataset: Any, input: str | Sequence[str] | None, label: str | None
) -> Columns:
    """Labels, class names and unread inputs of a data set with named columns."""
    target, chosen = names_of_columns(dataset, input, label)
    labels = as_labels(
        np.asarray(dataset.with_format(None)[target][:]), f"column {target!r}"
    )
    if labels.ndim != 1 or labels.is_floating_point():
        raise InputError(
            f"column {target!r} must hold one class per row, as whole numbers, for rows to be dealt to clients"
        )
    names = tuple(getattr(dataset.features[target], "names", None) or ())

    def column(name: str) -> NDArray[Any]:
        if name not in dataset.column_names:
            raise InputError(
                f"the data set has no column {name!r}; {nearest(name, dataset.column_names)}"
            )
        return np.asarray(dataset.with_format(None)[name][:])

    return Columns(
        labels.numpy(),
        names,
        lambda index: read_columns(dataset, index, chosen),
        column,
    )
