"""Values as tensors: arrays, lists, images and the items of a data set, each checked and named in errors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError, cut
from coterie.base.rows import Inputs, check_plain, class_numbers, tensors_by_name

T = TypeVar("T")
Read = tuple[Inputs, Tensor, Sequence[str]]
"""Inputs, labels and names of the classes."""


def names_as_texts(named: Mapping[Any, T], subject: str) -> dict[str, T]:
    """Return the mapping with texts for keys. Raises `InputError` for two keys that are the same text, such as 1 and "1".

    >>> names_as_texts({1: "a", "b": "c"}, "clients")
    {'1': 'a', 'b': 'c'}
    """
    texts: dict[str, Any] = {}
    for key in named:
        if str(key) in texts:
            raise InputError(
                f"{subject}: {cut(texts[str(key)])} and {cut(key)} are both called {cut(str(key))}; rename one"
            )
        texts[str(key)] = key
    return {text: named[key] for text, key in texts.items()}


def as_inputs(value: Any, who: str) -> Inputs:
    """A tensor, or a dict of tensors, of what `value` holds; lists and arrays of float64 become float32."""
    if isinstance(value, Mapping):
        if not len(value):
            raise InputError(
                f"{who} has an empty dict of inputs; name at least one tensor"
            )
        named = names_as_texts(value, f"{who}, inputs")
        tensors = {
            key: _tensor(v, f"{who}, inputs {key!r}") for key, v in named.items()
        }
        counts = {key: v.shape[0] for key, v in tensors.items()}
        if len(set(counts.values())) != 1:
            raise InputError(f"{who} has inputs of different length: {counts}")
        return tensors
    return _tensor(value, f"{who}, inputs")


def as_labels(value: Any, who: str) -> Tensor:
    """Labels as int64 (classes) or floats. Refuses negative classes: -1 and 1 are no class numbers."""
    labels = _tensor(value, f"{who}, labels")
    labels = class_numbers(labels)
    if labels.is_floating_point():
        return labels
    if labels.ndim == 1 and len(labels) and int(labels.min()) < 0:
        raise InputError(
            f"{who} has the label {int(labels.min())}; number the classes 0, 1, 2, ..."
        )
    return labels


def _tensor(value: Any, who: str) -> Tensor:
    try:
        if isinstance(value, Tensor):
            tensor = value.detach()
        else:
            tensor = from_array(value, who)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{who} cannot become a tensor; give numbers, every row of the same shape"
        ) from error
    if not tensor.is_nested and tensor.ndim < 1:
        raise InputError(f"{who} has no rows; give a tensor [rows, ...]")
    check_plain(tensor, who)
    return tensor


def refuse_masks(value: Any, who: str) -> None:
    """Raise `InputError` for masked values of an array, or of a list of arrays."""
    parts = [value]
    if isinstance(value, list | tuple):
        parts = [*value]
    for part in parts:
        if not isinstance(part, np.ma.MaskedArray):
            continue
        masked = int(np.ma.getmaskarray(part).sum())
        if masked:
            raise InputError(
                f"{who} have {masked} masked values, which would be read as what lies beneath; put a number in "
                "their place, say by .filled(...), or leave those rows out"
            )


def plain_array(value: Any, who: str) -> NDArray[Any]:
    """Return an array, or lists of numbers or of arrays, as numpy's plain array. Raises `InputError` for masked values."""
    refuse_masks(value, who)
    return np.asarray(value)


def from_array(value: Any, who: str = "inputs") -> Tensor:
    """Return a tensor of an array or lists of numbers; float64 becomes float32, which models are made of."""
    array = plain_array(value, who)
    # Bytes of the widest numbers of a kind that torch has.
    widest = {"f": 8, "c": 16}
    if array.dtype.itemsize > widest.get(array.dtype.kind, array.dtype.itemsize):
        raise InputError(
            f"{who} are {array.dtype}, which torch does not have; make them double by .astype('float64')"
        )
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    # Torch takes neither another machine's order of bytes nor steps backwards through memory.
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if any(step < 0 for step in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        # No rows are written to.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.as_tensor(array)


def strata(labels: Tensor) -> NDArray[np.int64] | None:
    """Return the classes that a split keeps in proportion: one class per row, else nothing."""
    if labels.ndim != 1 or labels.is_floating_point():
        return None
    return labels.numpy()


def read_items(dataset: Any, used: NDArray[np.int64]) -> Read:
    """Rows of a torch data set with items (x, y)."""
    tensors = getattr(dataset, "tensors", None)
    inputs: Inputs
    # A TensorDataset needs no loop over rows.
    if isinstance(tensors, tuple) and len(tensors) == 2:
        index = torch.from_numpy(used)
        inputs = as_inputs(tensors[0][index], "the data set")
        labels = as_labels(tensors[1][index], "the data set")
        return inputs, labels, _names(dataset)
    items = [item_of(dataset, int(i)) for i in used]
    xs = [item[0] for item in items]
    if isinstance(xs[0], Mapping):
        inputs = {}
        for key in xs[0]:
            values = [x[key] for x in xs]
            inputs[str(key)] = stack(values, used, f"inputs {key!r}")
    else:
        inputs = stack(xs, used, "inputs")
    targets = stack([item[1] for item in items], used, "labels")
    return inputs, as_labels(targets, "the data set"), _names(dataset)


def by_name(rows: Read) -> dict[str, Tensor]:
    """Return inputs and labels of rows as tensors by name; the labels have none of a user's."""
    inputs, labels, _ = rows
    return {**tensors_by_name(inputs), "": labels}


def item_of(dataset: Any, i: int) -> Any:
    """The i-th item of a data set, which must be (inputs, label)."""
    item = dataset[i]
    if not (isinstance(item, tuple | list) and len(item) == 2):
        raise InputError(
            f"row {i} of the data set is {type(item).__name__}; items must be (inputs, label)"
        )
    return item


def _names(dataset: Any) -> Sequence[str]:
    """Class names in the convention of torchvision."""
    return tuple(str(c) for c in getattr(dataset, "classes", ()) or ())


def stack(values: Sequence[Any], used: NDArray[np.int64], subject: str) -> Tensor:
    """One tensor [rows, ...] of values that are tensors, arrays, images, numbers or lists of numbers."""
    tensors: list[Tensor] = []
    for i, value in zip(used, values, strict=True):
        try:
            tensors.append(_value(value, f"row {i}: {subject}"))
        except InputError:
            raise
        except (TypeError, ValueError) as error:
            kind = type(value).__name__
            cure = "give numbers, an image or a tensor"
            if isinstance(value, str):
                cure = "tokenise it first"
            raise InputError(
                f"row {i}: {subject} are {kind}, which cannot become a tensor; {cure}"
            ) from error
        if tensors[-1].shape != tensors[0].shape:
            raise InputError(
                f"row {i}: {subject} have shape {list(tensors[-1].shape)} but row {used[0]} has {list(tensors[0].shape)}; pad or "
                "crop them to one shape first"
            )
    return torch.stack(tensors)


def _value(value: Any, subject: str) -> Tensor:
    if hasattr(value, "getbands"):
        return _image(value)
    if isinstance(value, Tensor):
        return value
    if isinstance(value, str):
        raise TypeError("text")
    return from_array(value, subject)


def _image(value: Any) -> Tensor:
    """A PIL image as uint8: [height, width] if grey, else [3, height, width]."""
    if value.mode in ("1", "L", "I;16", "I", "F"):
        return torch.from_numpy(np.array(value.convert("L")))
    colours_last = np.array(value.convert("RGB"))
    return torch.from_numpy(colours_last.transpose(2, 0, 1).copy())


def is_dataset(value: Any) -> bool:
    """Return True for rows behind numbers, such as a `torch.utils.data.Dataset`, and False for arrays, sequences and frames."""
    if isinstance(value, Mapping | Sequence | Tensor) or hasattr(value, "shape"):
        return False
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


def refuse_others(value: Any, who: str) -> None:
    """Raise `InputError` with the line to write for a DataLoader, and for a data frame without the name of its label."""
    if isinstance(value, torch.utils.data.DataLoader):
        raise InputError(
            f"{who} is a DataLoader; give its dataset (loader.dataset), from which coterie draws the batches itself"
        )
    if hasattr(value, "columns") and hasattr(value, "dtypes"):
        raise InputError(
            f'{who} is a data frame; say which column is the label: ct.data.from_frames(frames, label="...")'
        )
