"""Clients from tensors, and from any data set with one list of row numbers per client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, cut, nearest
from coterie.base.label_form import LabelForm
from coterie.base.loss import RowLoss, named_kind
from coterie.base.rows import (
    Held,
    Inputs,
    LazyInputs,
    Part,
    Rows,
    check_plain,
    rows,
    take,
    tensors_by_name,
)
from coterie.config.data import Split, Tables, table_of
from coterie.config.rules import explain_keywords
from coterie.data.dealing import Dealt, ReadColumn, deal, shares, standard_rows
from coterie.data.lazy import refuse_random_rows
from coterie.data.parts import stratified, stratify
from coterie.data.splits import number_names
from coterie.data.tables.read import ARRAY_LABELS, read_arrays
from coterie.data.values import (
    as_inputs,
    as_labels,
    by_name,
    is_dataset,
    names_as_texts,
    read_items,
    refuse_others,
    strata,
)
from coterie.data.weights import attach_to_all, detach

PARTS = ("train", "validation", "test")


@explain_keywords()
def from_tensors(
    clients: Mapping[str, Any] | Sequence[Any] | Any,
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    name: str = "tensors",
    classes: Sequence[str] = (),
    notes: Sequence[str] = (),
    server: Any = None,
    unseen: Mapping[str, Any] | None = None,
    task: str | None = None,
    form: LabelForm | None = None,
    weights: Any = None,
) -> Clients:
    """Make clients of tensors, arrays or data sets: a list (named client-0, ...) or {name: client}.

    A client is (inputs, labels) or a `torch.utils.data.Dataset` with such items, which is split here (default: a third for test, a
    fifth of the rest for validation, stratified by label), or its parts as they are: (train, validation, test) or
    {"train": ..., "test": ...}, each a pair, a data set or None. Inputs are a tensor [rows, ...] or a dict of such; labels
    [rows, ...], whole numbers for classes. Arrays of float64 become float32; tensors keep their type.

    One pair (inputs, labels) of tensors is dealt to clients by a split with a kind.

    Nothing is scaled. Inputs of different units train badly with one learning rate, and with labels that are quantities the losses, and
    so the weights of MeritFed and the requirements of MaxFL, depend on the label's unit: use `standardise`, or scale both yourself
    by numbers that all clients share.

    Args:
        clients: as above.
        seed: Seed of the split of clients that come unsplit.
        split: Keys `seed` and `parts`; for one pair also who gets which row, as in [split] of a file.
        name: name of the data set.
        classes: names of the classes.
        notes: sentences for the report.
        server: (inputs, labels) that the server holds.
        unseen: clients that never train, {name: client}.
        task: "classification" or "regression", for labels that may be either: floats that are 0.0 and 1.0. None: the loss of a run
            says it, if it is named.
        form: what labels are where that is neither classes nor numbers: of time to event `LabelForm("hazards", ...)`, with labels
            [rows, 3] of entry, time and event.
        weights: how much each row counts, 0 or more [rows], given as clients are: {name: weights} or a list. None: all count alike.

    Raises:
        InputError: that names the client and what is wrong with it.

    >>> inputs, labels = torch.randn(60, 2), torch.arange(60) % 3
    >>> from_tensors((inputs, labels), split={"kind": "iid", "clients": 4})
    <4 clients of 'tensors', 32 training rows>
    """
    if weights is not None:
        if server is not None or unseen is not None:
            raise InputError(
                "weights are of clients that train; leave out server and unseen, or give labels a last column of weights, and "
                "form=ct.LabelForm(kind, weighted=True)"
            )
        attached = attach_to_all(clients, weights, _is_pair(clients))
        if _is_pair(clients):
            whole = _part(attached, "the data set")
            dealt_rows = deal_rows(
                whole, split, seed=seed, name=name, classes=classes, notes=notes
            )
            return detach(with_task(dealt_rows, task), form)
        made = from_tensors(
            attached,
            seed=seed,
            split=split,
            name=name,
            classes=classes,
            notes=notes,
            task=task,
            form=form,
        )
        if made.asks_task:
            raise ask_task(made)
        return detach(made, form)
    if form is not None:
        made = from_tensors(
            clients,
            seed=seed,
            split=split,
            name=name,
            classes=classes,
            notes=notes,
            server=server,
            unseen=unseen,
            task=task,
        )
        for owners, rows in made.groups():
            for number, owner in enumerate(owners):
                form.check(rows.part(number).labels, f"client {owner!r}")
        return made.with_form(form)
    if _is_pair(clients):
        labelled: dict[str, Any] = {"name": name, "classes": classes, "notes": notes}
        whole = _part(clients, "the data set")
        return with_task(deal_rows(whole, split, seed=seed, **labelled), task)
    rule = Split.parse(split, natural="a list of clients")
    parts_by_name = _by_name(clients)
    fields: dict[str, Any] = {"name": name, "classes": classes, "notes": notes}
    if server is not None:
        fields["server"] = _part(server, "the server")
    if unseen is not None:
        fields["unseen"] = from_tensors(
            unseen, seed=seed, split=split, name=name, classes=classes, task=task
        )
    names = sorted(parts_by_name)
    joined = None
    if all(0 < len(key) <= 200 for key in names):
        joined = _join([parts_by_name[key] for key in names])
    if joined is not None:
        dealt = _deal_parts(
            joined.inputs,
            joined.labels,
            names,
            joined.all_numbers(),
            joined.sizes,
            rule,
            seed,
        )
        return with_task(Clients.from_indices(names, *dealt, **fields), task)
    members = [_client(key, value, rule, seed) for key, value in parts_by_name.items()]
    return with_task(Clients(members, **fields), task)


def _join(values: Sequence[Any]) -> Rows | None:
    """The rows of clients that are all pairs of tensors alike; None if any needs a second look, or must be refused by name."""
    if not values:
        return None
    inputs: list[Tensor] = []
    labels: list[Tensor] = []
    for value in values:
        if type(value) not in (tuple, list) or len(value) != 2:
            return None
        if not type(value[0]) is type(value[1]) is Tensor:
            return None
        inputs.append(value[0])
        labels.append(value[1])
    for column in (inputs, labels):
        for x in column:
            if x.is_nested or x.layout is not torch.strided or x.requires_grad:
                return None
        forms = {(x.dtype, x.device, x.ndim, x.shape[1:]) for x in column}
        if len(forms) > 1 or not column[0].ndim:
            return None
        check_plain(column[0], "the first client")
    sizes = [len(x) for x in labels]
    if sizes != [len(x) for x in inputs] or not all(sizes):
        return None
    parts = [Part(*pair) for pair in zip(inputs, labels, strict=True)]
    rows = Rows.concatenate(parts)
    if rows is None or not isinstance(rows.inputs, Tensor):
        return None
    for values_held in (rows.inputs, rows.labels):
        if values_held.is_floating_point() and not bool(values_held.isfinite().all()):
            return None
    is_classes = not rows.labels.is_floating_point() and rows.labels.ndim == 1
    if is_classes and bool((rows.labels < 0).any()):
        return None
    return rows


def _is_pair(value: Any) -> bool:
    """Return True for one (inputs, labels) in place of one per client; two data frames are none."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return all(
        hasattr(part, "shape") and not hasattr(part, "columns") for part in value
    )


def deal_rows(
    rows: Part, split: Split | Mapping[str, Any] | None, *, seed: int, **about: Any
) -> Clients:
    """Deal the rows of one data set to clients. Raises `InputError` with the line to write if no split says how."""
    if "kind" not in table_of(split):
        raise InputError(
            f"{len(rows)} rows of nobody in particular: say who gets which by "
            'split={"kind": "dirichlet", "alpha": 0.3, "clients": 10}, or give each client its own'
        )
    if rows.labels.ndim != 1 or rows.labels.is_floating_point():
        raise InputError(
            "rows are dealt by their classes; give labels as whole numbers, one per row"
        )
    return split_over(
        rows.inputs, rows.labels.numpy(), Split.parse(split), seed=seed, **about
    )


def _check_names_of_labels(clients: Clients) -> None:
    """Raise `InputError` if several labels of a row have not one name each."""
    if not (clients.classes and clients.multi_hot):
        return
    columns = clients[0].train.labels.shape[1]
    if len(clients.classes) != columns:
        raise InputError(
            f"classes has {len(clients.classes)} names, and labels have {columns} columns; give one name for each"
        )


def with_task(clients: Clients, task: str | None) -> Clients:
    """Make labels classes or quantities, as the task says.

    Without a task, labels that are only 0.0 and 1.0 stay open (`Clients.asks_task`) until a run names a loss (`settle_task`).

    Args:
        clients: Clients with any labels.
        task: "classification", "regression" or None: as the labels are, whole numbers or floats.

    Raises:
        InputError: classes that are not whole numbers.
    """
    _check_names_of_labels(clients)
    is_known = isinstance(task, str) and task in ("classification", "regression")
    if task is not None and not is_known:
        raise InputError(
            f'task must be "classification" or "regression"; got {cut(task)}'
        )
    if clients.form_is_weighted:
        return clients
    floats = clients.train.labels.is_floating_point()
    if task is None:
        is_open = floats and not clients.multi_hot and _all_labels(clients, _is_0_or_1)
        if is_open:
            return clients.with_open_task()
        return clients
    if floats != (task == "classification"):
        return clients
    if floats and not _all_labels(clients, _is_whole):
        raise InputError(
            f"the labels of {clients.name!r} are not whole numbers, as classes are; number the classes 0, 1, 2, ..."
        )
    dtype = torch.int64 if floats else torch.get_default_dtype()
    return _convert_labels(clients, dtype)


def settle_task(clients: Clients, loss: str | RowLoss) -> Clients:
    """The clients with labels as the loss of a run reads them: whole floats are classes where the loss is one of classes.

    Several labels of a row (zeros and ones [rows, C > 1]) need no loss that is named: they are classes for "auto", too. For a binary
    loss other floats are risks, and stay.

    Args:
        clients: Clients with any labels.
        loss: the loss of the run.

    Raises:
        InputError: The labels are open (`Clients.asks_task`), and the loss does not say what they mean.
    """
    if clients.form_is_weighted or not clients.train.labels.is_floating_point():
        return clients
    kind = named_kind(loss)
    if kind == "classes":
        is_of_classes = _all_labels(clients, _is_whole)
    elif kind in ("binary", "multilabel") or loss == "auto":
        is_of_classes = clients.multi_hot or (clients.asks_task and kind is not None)
    else:
        is_of_classes = False
    if is_of_classes:
        return _convert_labels(clients, torch.int64)
    if kind is None and clients.asks_task:
        raise ask_task(clients)
    return clients


def ask_task(clients: Clients) -> InputError:
    """The question what labels mean that are only 0.0 and 1.0, as an error to raise."""
    return InputError(
        f'the labels of {clients.name!r} are 0.0 and 1.0: say task = "classification" if these are classes, or '
        'task = "regression" if they are quantities; or name the loss, such as "binary" or "squared"'
    )


def _convert_labels(clients: Clients, dtype: torch.dtype) -> Clients:
    return clients.map_tensors(
        lambda tensor, name: tensor.to(dtype) if name is None else tensor
    )


def _all_labels(clients: Clients, holds: Callable[[Tensor], Tensor]) -> bool:
    return all(bool(holds(rows.labels).all()) for _, rows in clients.groups())


def _is_0_or_1(labels: Tensor) -> Tensor:
    return (labels == 0) | (labels == 1)


def _is_whole(labels: Tensor) -> Tensor:
    return labels == labels.round()


def standardise(clients: Clients) -> Clients:
    """The same clients with inputs and labels of mean 0 and variance 1 over the training rows of all clients together.

    Each column of inputs [rows] or [rows, features] that are floats is scaled on its own, and so are float labels, one per row:
    results then do not depend on the label's unit. Images, texts and classes stay as they are. `recipe` holds the means and scales
    (float64), and `label_scale` undoes those of the label: metrics of a run are in the label's unit, losses are not.

    Args:
        clients: Clients whose inputs and labels are not standardised yet.

    Raises:
        InputError: labels that are the same in all training rows, or clients that are standardised already, such as those of tables.

    >>> import coterie as ct
    >>> import torch
    >>> clients = ct.data.from_tensors({"a": (torch.tensor([[1.0], [3.0]] * 10), torch.arange(20) % 2)})
    >>> ct.data.standardise(clients)["a"].train.inputs.abs().unique()
    tensor([0.9129, 1.0954])
    """
    if not isinstance(clients, Clients):
        raise InputError(
            f"clients must be Clients, as ct.data.from_tensors makes them; got {cut(clients)}"
        )
    if clients.recipe is not None:
        raise InputError(
            f"the clients of {clients.name!r} are standardised already; use them as they are"
        )
    if clients.asks_task:
        raise ask_task(clients)
    if isinstance(clients.train.inputs, LazyInputs):
        raise InputError(
            f"the inputs of {clients.name!r} are read lazily; scale each row where it is read"
        )
    pooled = clients.pool_training_rows()
    # Mean and scale by name of the inputs; of the label under None, as `map_tensors` calls it.
    scales: dict[str | None, tuple[Tensor, Tensor]] = {}
    recipe: dict[str, Any] = {
        "version": 2,
        "inputs": {},
        "label": {"mean": 0.0, "scale": 1.0},
    }
    for key, tensor in tensors_by_name(pooled.read()).items():
        if tensor.is_floating_point() and tensor.ndim <= 2:
            mean, scale = scales[key] = _scale_over_rows(tensor)
            recipe["inputs"][key] = {"mean": mean.tolist(), "scale": scale.tolist()}
    label = pooled.labels
    if label.is_floating_point() and label.numel() == len(label):
        mean, scale = scales[None] = _scale_over_rows(label.reshape(-1))
        if not (label != label[0]).any():
            raise InputError(
                f"all training rows of all clients have the label {float(mean):g}; there is nothing to learn"
            )
        recipe["label"] = {"mean": float(mean), "scale": float(scale)}

    def change(tensor: Tensor, key: str | None) -> Tensor:
        if key not in scales:
            return tensor
        mean, scale = scales[key]
        return ((tensor - mean) / scale).to(tensor.dtype)

    standardised = clients.map_tensors(change)
    for group in (standardised, standardised.unseen):
        if group is not None:
            group.recipe = recipe
    if clients.draw is None:
        return standardised
    drawn = clients.draw
    return standardised.with_draw(
        lambda client, count, rng: drawn(client, count, rng).map_tensors(change)
    )


def _scale_over_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the rows of each column, float64; 1 for a column that is constant up to rounding."""
    exact = values.double()
    mean = exact.mean(0)
    scale = (exact - mean).square().mean(0).sqrt()
    return mean, torch.where(scale > 1e-9 * mean.abs(), scale, 1.0)


def _by_name(clients: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    if isinstance(clients, Mapping):
        return names_as_texts(clients, "clients")
    is_list = isinstance(clients, Sequence) and not isinstance(clients, str)
    if not is_list:
        raise InputError(
            f"clients must be a dict or a list of what each has; got {cut(clients)}"
        )
    return dict(zip(number_names(len(clients)), clients, strict=True))


def _client(name: str, value: Any, rule: Split, seed: int) -> Client:
    if isinstance(value, Client):
        return value
    client = f"client {cut(name)}"
    if isinstance(value, Mapping):
        for key in value:
            if key not in PARTS:
                raise InputError(
                    f"{client} has a part {key!r}; {nearest(str(key), PARTS)}"
                )
        if value.get("train") is None:
            raise InputError(f"{client} has no part 'train'; give it training rows")
        parts = _parts(value, client)
    elif isinstance(value, Sequence) and len(value) == 3:
        if value[0] is None:
            raise InputError(
                f"{client} has no training rows; the first of the three parts is train"
            )
        parts = _parts(dict(zip(PARTS, value, strict=True)), client)
    else:
        everything = _part(value, client)
        if not len(everything):
            raise InputError(f"{client} has no rows; remove it")
        index = stratified(
            strata(everything.labels),
            rule.parts,
            seed=rule.seed_for(seed),
            name=name,
            n=len(everything),
        )
        parts = {
            key: everything.select(torch.from_numpy(numbers))
            for key, numbers in index.items()
            if len(numbers)
        }
    return Client(name, parts["train"], parts.get("validation"), parts.get("test"))


def _parts(values: Mapping[str, Any], who: str) -> dict[str, Part]:
    return {key: _part(part, who) for key, part in values.items() if part is not None}


def _part(value: Any, who: str) -> Part:
    refuse_others(value, who)
    if is_dataset(value):
        if len(value):
            first_row = np.arange(1)
            refuse_random_rows(
                lambda: by_name(read_items(value, first_row)),
                f"row 0 of the data set of {who}",
            )
        inputs, labels, _ = read_items(value, np.arange(len(value)))
        return Part(inputs, labels)
    if not (isinstance(value, Sequence) and len(value) == 2):
        raise InputError(
            f"{who} is {type(value).__name__}; give (inputs, labels), (train, validation, test) or a dict of parts"
        )
    part = Part(as_inputs(value[0], who), as_labels(value[1], who))
    if rows(part.inputs) != len(part):
        raise InputError(
            f"{who} has {rows(part.inputs)} rows of inputs but {len(part)} labels"
        )
    return part


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
    sizes = [len(lists[name]) for name in names]
    if 0 in sizes:
        empty = names[sizes.index(0)]
        raise InputError(
            f"client {empty!r} has no rows; raise alpha or minimum, or lower the number of clients"
        )
    numbers = np.concatenate([lists[name] for name in names])
    return Clients.from_indices(
        names, *_deal_parts(inputs, labels, names, numbers, sizes, split, seed), **about
    )


def _deal_parts(
    inputs: Held,
    labels: Tensor,
    names: Sequence[str],
    numbers: NDArray[np.int64],
    sizes: Sequence[int] | NDArray[np.int64],
    split: Split,
    seed: int,
) -> tuple[Rows, Rows | None, Rows | None]:
    """Training, validation and test rows of clients that have so many of the rows `numbers` each."""
    classes = strata(labels)
    codes = np.zeros(len(numbers), dtype=np.int64)
    if classes is not None:
        codes = classes[numbers]
    part = stratify(codes, sizes, split.parts, seed=split.seed_for(seed), names=names)
    client = np.repeat(np.arange(len(names)), sizes)
    dealt: dict[str, Rows] = {}
    for number, key in enumerate(split.parts):
        chosen = part == number
        offsets = np.cumsum(np.bincount(client[chosen] + 1, minlength=len(names) + 1))
        if offsets[-1]:
            dealt[key] = Rows(inputs, labels, offsets, numbers[chosen])
    if "train" not in dealt:
        raise InputError("no client has a training row")
    return dealt["train"], dealt.get("validation"), dealt.get("test")


def from_array_files(
    files: Mapping[str, Path],
    settings: Tables,
    *,
    seed: int,
    split: Split | Mapping[str, Any] | None,
    name: str,
    folder: Path,
) -> Clients:
    """Make one client of each npz file with an array of labels and one or more arrays of inputs, used as they are."""
    of_tables = [
        key for key in settings.changes() if key not in ("label", "classes", "arrays")
    ]
    if of_tables:
        raise InputError(
            f"{folder} holds arrays and no tables: {', '.join(of_tables)} do not apply; drop them"
        )
    clients: dict[str, Any] = {}
    for client, path in files.items():
        if path.suffix.lower() != ".npz":
            raise InputError(
                f"{path} is not an npz file but others in its folder are; use one kind"
            )
        arrays = read_arrays(path)
        key = settings.label or next((n for n in ARRAY_LABELS if n in arrays), "")
        if key not in arrays:
            raise InputError(
                f"{path} has no array {key or 'label'!r}; it has {', '.join(arrays)}: name one as label"
            )
        inputs = {k: v for k, v in arrays.items() if k != key}
        if not inputs:
            raise InputError(f"{path} has labels only; add an array of inputs")
        clients[client] = inputs, arrays[key]
        if len(inputs) == 1:
            clients[client] = next(iter(inputs.values())), arrays[key]
    return from_tensors(
        clients, seed=seed, split=split, name=name, classes=tuple(settings.classes)
    )


def split_over(
    inputs: Held | Callable[[NDArray[np.int64]], Held],
    labels: NDArray[np.int64],
    split: Split,
    *,
    seed: int,
    standard: tuple[Inputs | Callable[[NDArray[np.int64]], Inputs], NDArray[np.int64]]
    | None = None,
    column: ReadColumn | None = None,
    **about: Any,
) -> Clients:
    """Clients as `split` deals the rows of one data set, `unseen` ones included; the rows lie in memory once.

    Args:
        inputs: of all rows; or a function that reads the given rows, which is asked for those that a client has.
        labels: class of each row.
        split: who gets what.
        seed: seed of the run.
        standard: the test set that belongs to the data, in the same form, for a split whose `test` asks for it.
        column: as for `deal`.
        about: as for `Clients`; its `notes` are put before those of the split.

    Raises `InputError` if `split` asks for a standard test set and there is none.
    """
    dealt = deal(split, labels, seed=seed, column=column)
    test_set = _standard(split, dealt, labels, standard, seed)
    place = np.arange(len(labels))
    if callable(inputs):
        used = dealt.every_row()
        place = np.full(len(labels), -1)
        place[used] = np.arange(len(used))
        inputs, labels = inputs(used), labels[used]
    count = max(len(about.get("classes", ())), int(labels.max()) + 1)
    flipped = labels.copy()
    for name in dealt.flipped:
        client_rows = place[{**dealt.clients, **dealt.unseen}[name]]
        flipped[client_rows] = count - 1 - labels[client_rows]
    shared: tuple[Held, Tensor] = inputs, torch.from_numpy(flipped)
    test_start = len(labels)
    if test_set is not None:
        joined = Rows.concatenate([Part(*shared), test_set.part])
        if joined is not None:
            shared = joined.inputs, joined.labels

    def parts(
        lists: Mapping[str, NDArray[np.int64]],
    ) -> list[dict[str, NDArray[np.int64]]]:
        out = []
        for name in sorted(lists):
            client_rows, origin = place[lists[name]], dealt.copies.get(name, name)
            fractions = shares(split, validation=origin not in dealt.validation)
            own_shares = stratified(
                labels[client_rows], fractions, seed=split.seed_for(seed), name=origin
            )
            own_parts = {
                key: client_rows[numbers] for key, numbers in own_shares.items()
            }
            if name in dealt.validation:
                own_parts["validation"] = place[dealt.validation[name]]
            if test_set is not None:
                own_parts["test"] = test_start + test_set.lists[name]
            out.append(own_parts)
        return out

    notes = [*about.pop("notes", ()), *dealt.notes]
    unseen = None
    if dealt.unseen:
        own_kind = {key: about[key] for key in ("name", "classes") if key in about}
        names = sorted(dealt.unseen)
        unseen = from_row_lists(*shared, names, parts(dealt.unseen), **own_kind)
    return from_row_lists(
        *shared,
        sorted(dealt.clients),
        parts(dealt.clients),
        notes=notes,
        unseen=unseen,
        **about,
    )


class _Standard(NamedTuple):
    """Rows of the standard test set that some client has, and those of each client among them."""

    part: Part
    lists: Mapping[str, NDArray[np.int64]]


def _standard(
    split: Split, dealt: Dealt, labels: NDArray[np.int64], standard: Any, seed: int
) -> _Standard | None:
    if split.test == "own":
        return None
    if standard is None or not len(standard[1]):
        raise InputError(
            f"[split] test = {split.test!r} needs a data set with a test set of its own, fashion-mnist or cifar10, that is not "
            "all at the server; drop it"
        )
    inputs, classes = standard
    drawn = {}
    for name, client_rows in {**dealt.clients, **dealt.unseen}.items():
        origin = dealt.copies.get(name, name)
        own_labels = labels[client_rows]
        drawn[name] = standard_rows(split, own_labels, classes, seed=seed, name=origin)
    used = np.unique(np.concatenate(list(drawn.values())))
    if callable(inputs):
        rows_used = inputs(used)
    else:
        rows_used = take(inputs, torch.from_numpy(used))
    part = Part(rows_used, torch.from_numpy(classes[used]))
    lists = {name: np.searchsorted(used, numbers) for name, numbers in drawn.items()}
    return _Standard(part, lists)


def from_row_lists(
    inputs: Held,
    labels: Tensor,
    names: Sequence[str],
    parts: Sequence[Mapping[str, Any]],
    **about: Any,
) -> Clients:
    """Clients with the row numbers `parts[i][part]` of one data set in memory; `about` as for `Clients`."""
    no_rows = np.zeros(0, dtype=np.int64)
    dealt: dict[str, Rows] = {}
    for key in PARTS:
        lists = [np.asarray(p.get(key, no_rows), dtype=np.int64) for p in parts]
        if any(map(len, lists)) or key == "train":
            dealt[key] = Rows.from_indices(inputs, labels, lists)
    return Clients.from_indices(
        names, dealt["train"], dealt.get("validation"), dealt.get("test"), **about
    )
