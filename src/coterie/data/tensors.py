"""Clients from tensors, and from any data set with one list of row numbers per client."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, cut, nearest, require
from coterie.base.rows import Held, Inputs, LazyInputs, Part, Rows, check_plain, named, rows, take
from coterie.config.data import Split
from coterie.data.dealing import Dealt, ReadColumn, deal, shares, standard_rows
from coterie.data.splits import numbered, stratified

__all__ = [
    "as_inputs",
    "as_labels",
    "from_array",
    "from_tensors",
    "names_as_texts",
    "over_clients",
    "plain_array",
    "split_over",
    "standardise",
]

T = TypeVar("T")

PARTS = ("train", "validation", "test")


def from_tensors(
    clients: Mapping[str, Any] | Sequence[Any],
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    name: str = "tensors",
    classes: Sequence[str] = (),
    notes: Sequence[str] = (),
    server: Any = None,
    unseen: Mapping[str, Any] | None = None,
) -> Clients:
    """Clients from tensors or arrays: a list (named client-0, ...) or {name: client}.

    A client is (inputs, labels), which is split here (default: a third for test, a fifth of the rest for validation,
    stratified by label), or its parts as they are: (train, validation, test) or {"train": ..., "test": ...}, each a
    pair or None. Inputs are a tensor [rows, ...] or a dict of such; labels [rows, ...], whole numbers for classes.
    Arrays of float64 become float32; tensors keep their type.

    Nothing is scaled. Inputs of different units train badly with one learning rate, and with labels that are quantities the losses, and
    so the weights of MeritFed and the requirements of MaxFL, depend on the label's unit: use `standardise`, or scale both yourself
    by numbers that all clients share.

    Args:
        clients: as above.
        seed: of the split of clients that come unsplit.
        split: of the same; keys `seed` and `parts`.
        name: of the data set.
        classes: names of the classes.
        notes: sentences for the report.
        server: (inputs, labels) that the server holds.
        unseen: clients that never train, {name: client}.

    Raises:
        InputError: that names the client and what is wrong with it.
    """
    rule = Split.parse(split, natural="a list of clients")
    named = _named(clients)
    members = [_client(key, value, rule, seed) for key, value in named.items()]
    return Clients(
        members,
        name=name,
        classes=classes,
        notes=notes,
        server=None if server is None else _part(server, "the server"),
        unseen=None if unseen is None else from_tensors(unseen, seed=seed, split=split, name=name, classes=classes),
    )


def standardise(clients: Clients) -> Clients:
    """The same clients with inputs and labels of mean 0 and variance 1 over the training rows of all clients together.

    Each column of inputs [rows] or [rows, features] that are floats is scaled on its own, and so are float labels, one per row:
    results then do not depend on the label's unit. Images, texts and classes stay as they are. `recipe` holds the means and scales
    (float64), and `label_scale` undoes those of the label: metrics of a run are in the label's unit, losses are not.

    Args:
        clients: Clients whose inputs and labels are not standardised yet.

    Raises:
        InputError: labels that are the same in all training rows, or clients that are standardised already, such as those of tables.
    """
    require(clients.recipe is None, f"the clients of {clients.name!r} are standardised already; use them as they are")
    require(
        not isinstance(clients.train.inputs, LazyInputs),
        f"the inputs of {clients.name!r} are read lazily; scale each row where it is read",
    )
    pooled = clients.pooled()
    scales = {k: _pooled_scale(v) for k, v in named(pooled.read()).items() if v.is_floating_point() and v.ndim <= 2}
    label = pooled.labels
    quantity = label.is_floating_point() and label.numel() == len(label)
    mean, scale = _pooled_scale(label.reshape(-1)) if quantity else (torch.tensor(0.0), torch.tensor(1.0))
    require(
        not quantity or bool((label != label[0]).any()),
        f"all training rows of all clients have the label {float(mean):g}; there is nothing to learn",
    )

    def change(tensor: Tensor, key: str | None) -> Tensor:
        if key is None:
            return ((tensor - mean) / scale).to(tensor.dtype) if quantity else tensor
        return ((tensor - scales[key][0]) / scales[key][1]).to(tensor.dtype) if key in scales else tensor

    standardised = clients.changed(change)
    numbers = {key: {"mean": m.tolist(), "scale": s.tolist()} for key, (m, s) in scales.items()}
    recipe = {"version": 2, "inputs": numbers, "label": {"mean": float(mean), "scale": float(scale)}}
    for group in (standardised, standardised.unseen):
        if group is not None:
            group.recipe = recipe
    if clients.draw is None:
        return standardised
    drawn = clients.draw
    return standardised.with_draw(lambda client, count, rng: drawn(client, count, rng).changed(change))


def _pooled_scale(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the rows of each column, float64; 1 for a column that is constant up to rounding."""
    exact = values.double()
    mean = exact.mean(0)
    scale = (exact - mean).square().mean(0).sqrt()
    return mean, torch.where(scale > 1e-9 * mean.abs(), scale, 1.0)


def _named(clients: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    if isinstance(clients, Mapping):
        return names_as_texts(clients, "clients")
    good = isinstance(clients, Sequence) and not isinstance(clients, str)
    require(good, f"clients must be a dict or a list of what each has; got {cut(clients)}")
    return dict(zip(numbered(len(clients)), clients, strict=True))


def names_as_texts(named: Mapping[Any, T], what: str) -> dict[str, T]:
    """Return the mapping with texts for keys. Raises `InputError` for two keys that are the same text, such as 1 and "1".

    >>> names_as_texts({1: "a", "b": "c"}, "clients")
    {'1': 'a', 'b': 'c'}
    """
    texts: dict[str, Any] = {}
    for key in named:
        if str(key) in texts:
            raise InputError(
                f"{what}: {cut(texts[str(key)])} and {cut(key)} are both called {cut(str(key))}; rename one"
            )
        texts[str(key)] = key
    return {text: named[key] for text, key in texts.items()}


def _client(name: str, value: Any, rule: Split, seed: int) -> Client:
    if isinstance(value, Client):
        return value
    who = f"client {cut(name)}"
    if isinstance(value, Mapping):
        for key in value:
            require(key in PARTS, f"{who} has a part {key!r}; {nearest(str(key), PARTS)}")
        require(value.get("train") is not None, f"{who} has no part 'train'; give it training rows")
        parts = {key: _part(part, who) for key, part in value.items() if part is not None}
    elif isinstance(value, Sequence) and len(value) == 3:
        require(value[0] is not None, f"{who} has no training rows; the first of the three parts is train")
        parts = {key: _part(part, who) for key, part in zip(PARTS, value, strict=True) if part is not None}
    else:
        whole = _part(value, who)
        require(len(whole) > 0, f"{who} has no rows; remove it")
        index = stratified(strata(whole.labels), rule.parts, seed=rule.seeded(seed), name=name, n=len(whole))
        parts = {key: whole.select(torch.from_numpy(at)) for key, at in index.items() if len(at)}
    return Client(name, parts["train"], parts.get("validation"), parts.get("test"))


def _part(value: Any, who: str) -> Part:
    if not (isinstance(value, Sequence) and len(value) == 2):
        raise InputError(
            f"{who} is {type(value).__name__}; give (inputs, labels), (train, validation, test) or a dict of parts"
        )
    part = Part(as_inputs(value[0], who), as_labels(value[1], who))
    require(rows(part.inputs) == len(part), f"{who} has {rows(part.inputs)} rows of inputs but {len(part)} labels")
    return part


def as_inputs(value: Any, who: str) -> Inputs:
    """A tensor, or a dict of tensors, of what `value` holds; lists and arrays of float64 become float32."""
    if isinstance(value, Mapping):
        require(len(value) > 0, f"{who} has an empty dict of inputs; name at least one tensor")
        named = names_as_texts(value, f"{who}, inputs")
        tensors = {key: _tensor(v, f"{who}, inputs {key!r}") for key, v in named.items()}
        counts = {key: v.shape[0] for key, v in tensors.items()}
        require(len(set(counts.values())) == 1, f"{who} has inputs of different length: {counts}")
        return tensors
    return _tensor(value, f"{who}, inputs")


def as_labels(value: Any, who: str) -> Tensor:
    """Labels as int64 (classes) or floats. Refuses negative classes: -1 and 1 are no class numbers."""
    labels = _tensor(value, f"{who}, labels")
    if labels.is_floating_point():
        return labels
    labels = labels.to(torch.int64)
    if labels.ndim == 1 and len(labels) and int(labels.min()) < 0:
        raise InputError(f"{who} has the label {int(labels.min())}; number the classes 0, 1, 2, ...")
    return labels


def _tensor(value: Any, who: str) -> Tensor:
    try:
        tensor = value.detach() if isinstance(value, Tensor) else from_array(value, who)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{who} cannot become a tensor; give numbers, every row of the same shape") from error
    require(tensor.is_nested or tensor.ndim >= 1, f"{who} has no rows; give a tensor [rows, ...]")
    check_plain(tensor, who)
    return tensor


def plain_array(value: Any, who: str) -> NDArray[Any]:
    """Return an array, or lists of numbers or of arrays, as numpy's plain array. Raises `InputError` for masked values."""
    parts = value if isinstance(value, list | tuple) else (value,)
    for part in parts:
        if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
            raise InputError(
                f"{who} have {np.ma.count_masked(part)} masked values, which would be read as what lies beneath; put a number in "
                "their place, say by .filled(...), or leave those rows out"
            )
    return np.asarray(value)


def from_array(value: Any, who: str = "inputs") -> Tensor:
    """Return a tensor of an array or lists of numbers; float64 becomes float32, which models are made of."""
    array = plain_array(value, who)
    if (
        array.dtype.kind in "fc"
        and array.dtype.itemsize > np.dtype("complex128" if array.dtype.kind == "c" else "f8").itemsize
    ):
        raise InputError(f"{who} are {array.dtype}, which torch does not have; make them double by .astype('float64')")
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    # Torch takes neither another machine's order of bytes nor steps backwards through memory.
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if any(step < 0 for step in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # no rows are written to
        return torch.as_tensor(array)


def strata(labels: Tensor) -> NDArray[np.int64] | None:
    """What a split keeps in proportion: one class per row, else nothing."""
    return labels.numpy() if labels.ndim == 1 and not labels.is_floating_point() else None


def over_clients(
    inputs: Held,
    labels: Tensor,
    lists: Mapping[str, NDArray[np.int64]],
    split: Split,
    *,
    seed: int,
    **about: Any,
) -> Clients:
    """Clients with the rows `lists[name]` of one data set in memory, each split into parts; nothing is copied."""
    names = sorted(lists)
    classes = strata(labels)
    within = []
    for name in names:
        own = lists[name]
        require(len(own) > 0, f"client {name!r} has no rows; raise alpha or minimum, or lower the number of clients")
        parts = stratified(
            None if classes is None else classes[own], split.parts, seed=split.seeded(seed), name=name, n=len(own)
        )
        within.append({key: own[at] for key, at in parts.items()})
    return indexed(inputs, labels, names, within, **about)


def split_over(
    inputs: Held | Callable[[NDArray[np.int64]], Held],
    labels: NDArray[np.int64],
    split: Split,
    *,
    seed: int,
    standard: tuple[Inputs | Callable[[NDArray[np.int64]], Inputs], NDArray[np.int64]] | None = None,
    column: ReadColumn | None = None,
    **about: Any,
) -> Clients:
    """Clients as `split` deals the rows of one data set, `unseen` ones included; the rows lie in memory once.

    Args:
        inputs: of all rows; or a function that reads the given rows, which is asked for those that somebody has.
        labels: class of each row.
        split: who gets what.
        seed: of the run.
        standard: the test set that belongs to the data, in the same form, for a split whose `test` asks for it.
        column: as for `deal`.
        about: as for `Clients`; its `notes` are put before those of the split.

    Raises `InputError` if `split` asks for a standard test set and there is none.
    """
    dealt = deal(split, labels, seed=seed, column=column)
    held = _standard(split, dealt, labels, standard, seed)
    place = np.arange(len(labels))
    if callable(inputs):
        used = dealt.used()
        place = np.full(len(labels), -1)
        place[used] = np.arange(len(used))
        inputs, labels = inputs(used), labels[used]
    count = max(len(about.get("classes", ())), int(labels.max()) + 1)
    flipped = labels.copy()
    for name in dealt.flipped:
        own = place[{**dealt.clients, **dealt.unseen}[name]]
        flipped[own] = count - 1 - labels[own]
    shared: tuple[Held, Tensor] = inputs, torch.from_numpy(flipped)
    behind = len(labels)
    if held is not None:
        both = Rows.concatenate([Part(*shared), held.part])
        shared = (both.inputs, both.labels) if both is not None else shared

    def parts(lists: Mapping[str, NDArray[np.int64]]) -> list[dict[str, NDArray[np.int64]]]:
        out = []
        for name in sorted(lists):
            own, origin = place[lists[name]], dealt.copies.get(name, name)
            fractions = shares(split, validation=origin not in dealt.validation)
            within = stratified(labels[own], fractions, seed=split.seeded(seed), name=origin)
            own_parts = {key: own[at] for key, at in within.items()}
            if name in dealt.validation:
                own_parts["validation"] = place[dealt.validation[name]]
            if held is not None:
                own_parts["test"] = behind + held.lists[name]
            out.append(own_parts)
        return out

    notes = [*about.pop("notes", ()), *dealt.notes]
    own_kind = {key: value for key, value in about.items() if key in ("name", "classes")}
    unseen = indexed(*shared, sorted(dealt.unseen), parts(dealt.unseen), **own_kind) if dealt.unseen else None
    return indexed(*shared, sorted(dealt.clients), parts(dealt.clients), notes=notes, unseen=unseen, **about)


class _Standard(NamedTuple):
    """Rows of the standard test set that some client has, and those of each client among them."""

    part: Part
    lists: Mapping[str, NDArray[np.int64]]


def _standard(split: Split, dealt: Dealt, labels: NDArray[np.int64], standard: Any, seed: int) -> _Standard | None:
    if split.test == "own":
        return None
    require(
        standard is not None and len(standard[1]) > 0,
        f"[split] test = {split.test!r} needs a data set with a test set of its own, fashion-mnist or cifar10, that is not "
        "all at the server; drop it",
    )
    inputs, classes = standard
    everyone = {**dealt.clients, **dealt.unseen}
    drawn = {
        name: standard_rows(split, labels[own], classes, seed=seed, name=dealt.copies.get(name, name))
        for name, own in everyone.items()
    }
    used = np.unique(np.concatenate(list(drawn.values())))
    rows_used = inputs(used) if callable(inputs) else take(inputs, torch.from_numpy(used))
    part = Part(rows_used, torch.from_numpy(classes[used]))
    return _Standard(part, {name: np.searchsorted(used, at) for name, at in drawn.items()})


def indexed(
    inputs: Held, labels: Tensor, names: Sequence[str], parts: Sequence[Mapping[str, Any]], **about: Any
) -> Clients:
    """Clients with the row numbers `parts[i][part]` of one data set in memory; `about` as for `Clients`."""
    nothing = np.zeros(0, dtype=np.int64)
    by_part = {}
    for key in PARTS:
        own = [np.asarray(p.get(key, nothing), dtype=np.int64) for p in parts]
        by_part[key] = Rows.indexed(inputs, labels, own) if sum(map(len, own)) or key == "train" else None
    train = by_part["train"]
    if train is None:
        raise InputError("no client has a training row")
    return Clients.indexed(names, train, by_part["validation"], by_part["test"], **about)
