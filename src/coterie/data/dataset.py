"""Clients from one data set (torch or Hugging Face) and one list of row numbers per client."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError, nearest, require
from coterie.base.rows import CHUNK, Held, Inputs, Part, rows
from coterie.config.data import Split
from coterie.config.rules import explain_keywords
from coterie.data.lazy import lazy as lazily
from coterie.data.lazy import map_arrays, mark_of, refuse_random_rows
from coterie.data.splits import number_names
from coterie.data.tensors import (
    PARTS,
    deal_rows,
    from_row_lists,
    over_clients,
    with_task,
)
from coterie.data.values import (
    Read,
    as_inputs,
    as_labels,
    by_name,
    item_of,
    names_as_texts,
    plain_array,
    read_items,
    refuse_others,
    stack,
)

LABELS = ("label", "labels", "target", "y", "fine_label")
TOKENS = ("input_ids", "attention_mask", "token_type_ids")


@explain_keywords()
def from_dataset(
    dataset: Any,
    index_lists: Mapping[str, Any] | Sequence[Any] | str | None = None,
    *,
    input: str | Sequence[str] | None = None,
    label: str | None = None,
    lazy: bool = False,
    labels: Any = None,
    files: Sequence[str | os.PathLike[str]] = (),
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    name: str = "dataset",
    classes: Sequence[str] = (),
    task: str | None = None,
) -> Clients:
    """Make clients of the rows of one data set, which is read once and shared, or lazily.

    Args:
        dataset: a torch data set with items (x, y), or a Hugging Face one with named columns; or a function () -> data set. Only rows
            that a client has are read. Every row must be the same each time it is read: random changes belong to
            `Clients.with_transform`, which leaves test rows as they are.
        index_lists: row numbers per client, a list (client-0, ...) or {name: rows}. A client's rows are a list, which
            is split here, or {"train": ..., "validation": ..., "test": ...}. Clients may share rows. Or the column of a Hugging
            Face data set that names the client of each row. None: `split` deals the rows.
        input: column or columns of a Hugging Face data set; None takes input_ids (with attention_mask and
            token_type_ids), else the only image, else the only column of numbers. Several become a dict of tensors.
        label: its column of labels; None takes label, labels, target or y.
        lazy: read inputs whenever they are asked for, so that they need not fit in memory. A data set that keeps a file open (HDF5,
            LMDB) is given as a function, which each process calls once, so that no open file is shared.
        labels: of all rows [rows, ...], so that a lazy data set with items need not be read through for them; they are in memory.
        files: whose sizes and modification times tell these data from others when a lazy run is resumed. The fingerprint has them, the
            row numbers, all labels and 64 rows; the files of a Hugging Face data set belong to it by themselves.
        seed: seed of the split of clients that come unsplit.
        split: Keys `seed` and `parts`; without index lists also who gets which row, such as {"kind": "dirichlet", "alpha": 0.3,
            "clients": 20}.
        name: name of the data set.
        classes: names of the classes; those of a Hugging Face ClassLabel or of torchvision are found.
        task: "classification" or "regression", for labels that may be either: floats that are 0.0 and 1.0. None: the loss of a run
            says it, if it is named.

    Grey images become uint8 [rows, height, width], colour ones [rows, 3, height, width], token ids int64.

    Raises:
        InputError: that names the column or the row that cannot become a tensor.

    >>> import coterie as ct
    >>> import torch
    >>> rows = torch.utils.data.TensorDataset(torch.zeros(200, 3), torch.arange(200) % 2)
    >>> ct.data.from_dataset(rows, split={"kind": "iid", "clients": 5})
    <5 clients of 'dataset', 105 training rows>
    """
    refuse_others(dataset, "the data set")
    if isinstance(index_lists, Mapping) and "kind" in index_lists:
        raise InputError(
            "that is a split and no row numbers: from_dataset(dataset, split={...})"
        )
    source = dataset
    dataset = _open(source)
    if not hasattr(dataset, "__len__") or isinstance(dataset, Mapping):
        raise InputError(
            f"{type(dataset).__name__} is not a data set with numbered rows; choose one of its splits, and no streaming"
        )
    if isinstance(index_lists, str):
        if index_lists not in getattr(dataset, "column_names", ()):
            columns = getattr(dataset, "column_names", ())
            raise InputError(
                f"the data set has no column {index_lists!r} that names clients; {nearest(index_lists, columns)}"
            )
        index_lists = by_group(dataset[index_lists])
    require(
        lazy or not (len(files) or labels is not None),
        "labels and files belong to lazy data; give lazy=True",
    )
    columned = hasattr(dataset, "column_names") and hasattr(dataset, "features")
    require(
        columned or (input is None and label is None),
        "input and label name columns, which this data set does not have",
    )

    if columned and getattr(dataset, "format", {}).get("type") == "custom":
        raise InputError(
            "the data set has a transform of its own, and its columns are read as they are stored; take it off by "
            "dataset.reset_format(), and give random changes to clients.with_transform"
        )

    def read(dataset: Any, numbers: NDArray[np.int64]) -> Read:
        if columned:
            return _from_columns(dataset, numbers, input, label)
        return read_items(dataset, numbers)

    used = np.arange(len(dataset))
    lists: dict[str, dict[str, NDArray[np.int64]]] | None = None
    if index_lists is not None:
        lists = _lists_by_client(index_lists, len(dataset))
        named: list[NDArray[np.int64]] = []
        for parts in lists.values():
            named += parts.values()
        used = np.unique(np.concatenate(named))
        require(
            len(used) > 0, "no index list names a row; give each client row numbers"
        )
        # Only these rows are read: their numbers become places among them.
        place = np.zeros(len(dataset), dtype=np.int64)
        place[used] = np.arange(len(used))
        for parts in lists.values():
            for part, numbers in parts.items():
                parts[part] = place[numbers]

    def deal(inputs: Held, targets: Tensor, own_classes: Sequence[str]) -> Clients:
        labelling: Any = {"name": name, "classes": classes or own_classes}
        if lists is None:
            whole = Part(inputs, targets)
            clients = deal_rows(whole, split, seed=seed, **labelling)
        else:
            rule = Split.parse(split, natural="data with index lists")
            clients = _clients(inputs, targets, lists, rule, seed, **labelling)
        return with_task(clients, task)

    if not lazy:
        if len(used) and not columned:  # columns are read as they are stored
            refuse_random_rows(
                lambda: by_name(read(dataset, used[:1])),
                f"row {used[0]} of the data set",
            )
        return deal(*read(dataset, used))

    def reader() -> Callable[[NDArray[np.int64]], Inputs]:
        opened = _open(source)
        return lambda numbers: read(opened, numbers)[0]

    unread = lazily(
        len(dataset),
        reader,
        mark_of(dataset, [*np.atleast_1d(input or "").astype(str)], files),
        used,
    )
    own_classes = read(dataset, used[:1])[2]
    column = names_of_columns(dataset, input, label)[0] if columned else None
    targets = _labels(dataset, labels, used, column)
    return deal(unread, targets, own_classes)


def by_group(groups: Any) -> dict[str, NDArray[np.int64]]:
    """Index lists of the rows of each group: a client for each value of `groups` [rows], say the hospital of each row.

    Args:
        groups: A value for each row, [rows], such as the name of its hospital.

    >>> {name: at.tolist() for name, at in by_group(["b", "a", "b"]).items()}
    {'a': [1], 'b': [0, 2]}
    """
    values = plain_array(groups, "groups")
    if values.ndim != 1:
        raise InputError(
            f"groups has shape {list(values.shape)}; give one value per row"
        )
    rows: dict[Any, list[int]] = {}
    for row, value in enumerate(values.tolist()):
        if value is None or value != value:
            raise InputError(f"groups: row {row} has no value; say whose row it is")
        rows.setdefault(value, []).append(row)
    named = names_as_texts(rows, "groups")
    return {name: np.array(named[name], dtype=np.int64) for name in sorted(named)}


def _open(dataset: Any) -> Any:
    if isinstance(dataset, type):
        return dataset()
    if callable(dataset) and not hasattr(dataset, "__getitem__"):
        return dataset()
    return dataset


def _labels(
    dataset: Any, values: Any, used: NDArray[np.int64], column: str | None
) -> Tensor:
    """Labels of the rows `used`, read in blocks of rows where they are not given."""
    if values is not None:
        labels = as_labels(values, "labels")
        if len(labels) != len(dataset):
            raise InputError(f"there are {len(labels)} labels for {len(dataset)} rows")
        return labels[torch.from_numpy(used)]
    blocks = [used[low : low + CHUNK] for low in range(0, len(used), CHUNK)]
    if column is not None:
        whole = torch.cat([_column(dataset, numbers, column) for numbers in blocks])
        return as_labels(whole, f"column {column!r}")
    stacked = []
    for numbers in blocks:
        items = [item_of(dataset, int(i))[1] for i in numbers]
        stacked.append(stack(items, numbers, "labels"))
    return as_labels(torch.cat(stacked), "the data set")


@explain_keywords()
def from_arrays(
    inputs: Any,
    labels: Any,
    index_lists: Mapping[str, Any] | Sequence[Any],
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    name: str = "arrays",
    classes: Sequence[str] = (),
    task: str | None = None,
) -> Clients:
    """Clients with the rows `index_lists` of arrays, which are shared and not copied, so that they may be larger than the memory.

    Args:
        inputs: array or tensor [rows, ...], or a dict of them. Memory-mapped ones (`np.load(file, mmap_mode="r")`) are read batch by
            batch, and their fingerprint has names, sizes and modification times of the files and 64 rows; of others float64 alone is
            copied, to float32.
        labels: array or tensor [rows, ...].
        index_lists: as for `from_dataset`.
        seed: as for `from_dataset`.
        split: as for `from_dataset`.
        name: name of the data.
        classes: names of the classes.
        task: as for `from_dataset`.

    Raises:
        InputError: arrays of different length, or a client with rows that do not exist.

    >>> from_arrays(np.eye(8, dtype=np.float32), np.arange(8) % 2, {"a": range(5), "b": range(5, 8)})
    <2 clients of 'arrays', 5 training rows>
    """
    unread, targets = map_arrays(inputs), as_labels(labels, "the arrays")
    features = as_inputs(inputs, "the arrays") if unread is None else unread
    if rows(features) != len(targets):
        raise InputError(
            f"there are {rows(features)} rows of inputs but {len(targets)} labels"
        )
    lists = _lists_by_client(index_lists, len(targets))
    rule = Split.parse(split, natural="data with index lists")
    clients = _clients(features, targets, lists, rule, seed, name=name, classes=classes)
    return with_task(clients, task)


def _lists_by_client(
    index_lists: Mapping[str, Any] | Sequence[Any], total: int
) -> dict[str, dict[str, NDArray[np.int64]]]:
    if isinstance(index_lists, Mapping):
        named = names_as_texts(index_lists, "index lists")
    else:
        names = number_names(len(index_lists))
        named = dict(zip(names, index_lists, strict=True))
    require(
        bool(named),
        "there are no index lists; give at least one client its row numbers",
    )
    return {key: _lists(key, value, total) for key, value in named.items()}


def _clients(
    inputs: Held,
    labels: Tensor,
    lists: Mapping[str, Mapping[str, Any]],
    rule: Split,
    seed: int,
    **labelling: Any,
) -> Clients:
    if all("rows" in parts for parts in lists.values()):
        unsplit_rows = {name: parts["rows"] for name, parts in lists.items()}
        return over_clients(inputs, labels, unsplit_rows, rule, seed=seed, **labelling)
    names = sorted(lists)
    unsplit = [key for key in names if "rows" in lists[key]]
    if unsplit:
        raise InputError(
            f"client {unsplit[0]!r} has a list of rows and others have parts; choose one form"
        )
    return from_row_lists(
        inputs, labels, names, [lists[key] for key in names], **labelling
    )


def _lists(name: str, value: Any, total: int) -> dict[str, NDArray[np.int64]]:
    """The row numbers of one client, checked: under "rows" if unsplit, else by part."""
    by_part = dict(value) if isinstance(value, Mapping) else {"rows": value}
    for key in by_part:
        if key not in ("rows", *PARTS):
            raise InputError(
                f"client {name!r} has a part {key!r}; {nearest(str(key), PARTS)}"
            )
    out = {}
    for key, listed in by_part.items():
        numbers = plain_array(listed, f"client {name!r}: row numbers")
        # An empty list has the type float64.
        are_whole = numbers.size == 0 or np.issubdtype(numbers.dtype, np.integer)
        if numbers.ndim != 1 or not are_whole:
            raise InputError(
                f"client {name!r}: give row numbers as a list of whole numbers, not {numbers.dtype} of shape {list(numbers.shape)}"
            )
        numbers = numbers.astype(np.int64, copy=False)
        bad = numbers[(numbers < 0) | (numbers >= total)]
        if len(bad):
            raise InputError(
                f"client {name!r} has row {bad[0]} of a data set with {total} rows"
            )
        out[key] = numbers
    return out


def _from_columns(
    dataset: Any,
    used: NDArray[np.int64],
    input_: str | Sequence[str] | None,
    label: str | None,
) -> Read:
    """Rows of a Hugging Face data set."""
    target, chosen = names_of_columns(dataset, input_, label)
    inputs = read_columns(dataset, used, chosen)
    labels = as_labels(_column(dataset, used, target), f"column {target!r}")
    require(rows(inputs) == len(labels), "inputs and labels differ in length")
    return inputs, labels, tuple(getattr(dataset.features[target], "names", None) or ())


def names_of_columns(
    dataset: Any, input_: str | Sequence[str] | None, label: str | None
) -> tuple[str, list[str]]:
    """The column of labels and those of inputs, as the user says or as is most likely."""
    columns = list(dataset.column_names)
    target = label or next((c for c in LABELS if c in columns), None)
    if target is None:
        raise InputError(
            f"which column is the label? Give label=...; the data set has {', '.join(columns)}"
        )
    if input_ is None:
        chosen = _inputs(dataset, columns, target)
    elif isinstance(input_, str):
        chosen = [input_]
    else:
        chosen = [*input_]
    for column in (target, *chosen):
        if column not in columns:
            raise InputError(
                f"the data set has no column {column!r}; {nearest(column, columns)}"
            )
    return target, chosen


def read_columns(
    dataset: Any, used: NDArray[np.int64], chosen: Sequence[str]
) -> Inputs:
    """The rows `used` of these columns: a tensor, or a dict of tensors for several or for token ids."""
    tensors = {column: _column(dataset, used, column) for column in chosen}
    if len(chosen) == 1 and chosen[0] != TOKENS[0]:
        return tensors[chosen[0]]
    return tensors


def _column(dataset: Any, used: NDArray[np.int64], column: str) -> Tensor:
    values = dataset.with_format(None, columns=[column])[used.tolist()][column]
    return stack(values, used, f"column {column!r}")


def _inputs(dataset: Any, columns: Sequence[str], target: str) -> list[str]:
    """The columns that are most likely meant as inputs."""
    if TOKENS[0] in columns:
        return [c for c in TOKENS if c in columns]
    inputs = [c for c in columns if c != target]
    images = [c for c in inputs if type(dataset.features[c]).__name__ == "Image"]
    numbers = [c for c in inputs if not _holds_text(dataset.features[c])]
    for candidates in (images, numbers):
        if len(candidates) == 1:
            return candidates
    raise InputError(
        f"which column is the input? Give input=...; the data set has {', '.join(columns)}"
    )


def _holds_text(feature: Any) -> bool:
    inner = getattr(feature, "feature", feature)
    while hasattr(inner, "feature"):
        inner = inner.feature
    return str(getattr(inner, "dtype", "")) in (
        "string",
        "large_string",
        "null",
        "dict",
    )
