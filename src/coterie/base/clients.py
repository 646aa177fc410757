"""Clients: the partners and what they have in common, as every engine, method and report reads them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError, cut, nearest
from coterie.base.identity import code_hash, joint_fingerprint
from coterie.base.label_form import LabelForm, is_multi_hot
from coterie.base.names import Names
from coterie.base.rng import Rng
from coterie.base.rows import Array, LabelScale, Part, Rows, describe_inputs, row_shapes
from coterie.base.spelling import html_table
from coterie.base.vector import tensor_bytes

PARTS = ("train", "validation", "test", "contribution")
"""Parts of the rows of clients; the last are validation rows on which contributions are measured (`reserve_validation`)."""

SHOWN = 20
"""Clients that a notebook lists."""

Transform = Callable[[Any, Rng], Any]
"""(inputs of one row, rng) -> inputs of one row: a tensor [...], or a dict of tensors."""


@dataclass(frozen=True)
class Client:
    """One partner: a unique `name` and its rows. A part that it does not have is None.

    `test_numbers` says which rows of the partner's own source the test rows are, so that a patient has the same number in
    the split of every seed; None where the source does not number its rows. `row_groups` says by part which rows belong together,
    such as those of a patient: int64 [rows], the same number for each row of a group.

    Raises `InputError` for inputs and labels of different length, no training row, or a value that is not finite.

    Args:
        name: Unique name of the partner.
        train: Training rows, at least one.
        validation: Validation rows, or None.
        test: Test rows, or None.
        test_numbers: Number of each test row in the partner's own source, or None.
        row_groups: By part, the number of each row's group, such as its patient, or None.

    >>> import coterie as ct
    >>> import torch
    >>> rows = ct.Part(torch.zeros(40, 3), torch.arange(40) % 2)
    >>> ct.Client("hungary", train=rows)
    <client 'hungary': 40 training rows of float32 [3]>
    """

    name: str
    train: Part
    validation: Part | None = None
    test: Part | None = None
    test_numbers: Array | None = None
    row_groups: Mapping[str, Array] | None = None

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{len(part)} {name.replace('train', 'training')}"
            for name, part in self.parts()
        )
        return f"<client {self.name!r}: {counts} rows of {describe_inputs(self.train.inputs)}>"

    def _repr_html_(self) -> str:
        rows = [[name, str(len(part))] for name, part in self.parts()]
        return html_table(repr(self)[1:-1], [["part", "rows"], *rows])

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(
                f"the name of a client must be a text that is not empty; got {cut(self.name)}"
            )
        if len(self.name) > 200:
            raise InputError(
                f"client {cut(self.name)} has a name of {len(self.name)} characters; give at most 200"
            )
        for part_name in PARTS[:3]:
            part = getattr(self, part_name)
            if not isinstance(part, Part) and (
                part is not None or part_name == "train"
            ):
                raise InputError(
                    f"client {self.name!r}: {part_name} must be a Part, such as ct.Part(inputs, labels); got {cut(part)}"
                )
        for part_name, part in self.parts():
            part.check(f"client {self.name!r}, {part_name} rows")
        if len(self.train) <= 0:
            raise InputError(
                f"client {self.name!r} has no training rows; remove it or give it rows"
            )

    def parts(self) -> list[tuple[str, Part]]:
        """The parts that this client has, by name."""
        return [
            (name, part)
            for name in PARTS[:3]
            if (part := getattr(self, name)) is not None
        ]

    def part(self, name: str) -> Part:
        """The part `name`; an error that says which client lacks it."""
        part = getattr(self, name, None)
        if not isinstance(part, Part):
            raise InputError(f"client {self.name!r} has no {name} rows")
        return part


def _texts(values: Any, field: str) -> tuple[str, ...]:
    """Return texts as a tuple. Raises `InputError` for a single text, and for anything but a list of texts."""
    is_text = isinstance(values, str)
    # An array without dimensions says that it is iterable, and raises.
    if not is_text and isinstance(values, Iterable) and getattr(values, "ndim", 1) != 0:
        texts = tuple(values)
        if all(isinstance(text, str) for text in texts):
            return texts
    raise InputError(f"{field} must be a list of texts; got {cut(values)}")


def _part_or_none(rows: Rows | None, client: int) -> Part | None:
    if rows is None or not rows.sizes[client]:
        return None
    return rows.part(client)


def _form_of(part: Part) -> dict[str, str]:
    """Describe what one row of inputs and of labels is like, to compare it and for sentences."""
    kind = "classes"
    if part.labels.is_floating_point():
        kind = "numbers"
    return {
        "inputs": f"{row_shapes(part.inputs)}",
        "labels": f"[{', '.join(['rows', *map(str, part.labels.shape[1:])])}] ({kind})",
    }


def _check_alike(
    part: Part, forms: Mapping[str, str], who: str, reference: str
) -> None:
    """Raise `InputError` that begins with `who` unless a part has inputs and labels of the usual form."""
    for tensor, form in _form_of(part).items():
        if form != forms[tensor]:
            raise InputError(
                f"{who} has {tensor} of shape {form}{reference} of {forms[tensor]}"
            )


def _merge_numbers(parts: Mapping[str, Array]) -> dict[str, Array]:
    """Return what a client says of its rows by part, once its validation rows have become training rows."""
    merged = {key: numbers for key, numbers in parts.items() if key != "validation"}
    joined = [parts[key] for key in ("train", "validation") if key in parts]
    return {**merged, "train": np.concatenate(joined)}


def _mean_weights(names: Sequence[str], train: Rows) -> NDArray[np.float64]:
    """Return the mean weight of each client's training rows. Raises `InputError` for a client whose rows all weigh 0."""
    weights = train.labels[:, -1].numpy()[train.all_numbers()]
    sums = np.bincount(train.owners(), weights, minlength=len(names))
    for name, total in zip(names, sums.tolist(), strict=True):
        if total <= 0:
            raise InputError(
                f"no training row of client {name!r} has a weight above 0; drop that client, or correct its weights"
            )
    return np.asarray(sums / train.sizes)


def _divide_weights(rows: Rows, factors: NDArray[np.float64]) -> Rows:
    """Return rows whose weights are divided by the factor of the client to which they belong."""
    numbers = rows.all_numbers()
    if len(np.unique(numbers)) < len(numbers):
        raise InputError(
            'clients share weighted rows, and weights are divided by the mean of a client; take test = "own" in [split], or no weights'
        )
    labels = rows.labels.clone()
    places = torch.from_numpy(numbers)
    labels[places, -1] /= torch.from_numpy(factors[rows.owners()])
    return Rows(rows.inputs, labels, rows.offsets, rows.index)


class Clients(Sequence[Client]):
    """A sequence of clients, sorted by name, with what they have in common.

    Attributes:
        clients: The clients, in any order, when they are made.
        names: Sorted names of the clients.
        train, validation, test: the rows of all clients (`Rows`); None where no client has that part.
        name: name of the data set, as a user would type it.
        classes: names of the classes in the order of their numbers; empty where they have no names.
        recipe: how raw rows become inputs (`preprocess.json`), or None.
        notes: sentences about how the data was handled, for the report.
        server: rows held by the server (client `server` of the federation), or None.
        unseen: clients that never train and are only evaluated, or None.
        test_numbers: by client, the numbers of its test rows in its own source; without the clients that do not number them.
        starts: by client, the first round in which it takes part; without those that are there from the beginning (`add`).
        row_groups: by client and part, which rows belong together (int64 [rows]); without the clients that do not say so.
        row_folds: while one fold is tested, by client and part the fold that tests each row (int64 [rows]); empty without folds, and
            where all rows train.
        questions: sentences about what may make results wrong, each with the key for either answer; a study asks them first.
        asks_task: True if labels are only the floats 0.0 and 1.0, and no task said whether they are classes: a run whose loss does not
            say it either is refused.
        declared: the form of labels that whoever made the clients declared, or None: then recipe or labels say it (`form`).
        rows_elsewhere: True if rows of zeros stand for rows that other institutions have.
        contribution: validation rows on which contributions are measured, made by `reserve_validation`, or None.
        draw: function (client, count, rng) -> `Part` of so many fresh rows of that client's distribution, where it is known (synthetic
            data, see `with_draw`), or None. The same rng must give the same rows.
        transform: function (inputs, rng) -> inputs that changes each row whenever training reads it (see `with_transform`), or None.

    Raises `InputError` for no clients, names that repeat, a client called `server`, or inputs of different shapes.

    >>> part = Part(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
    >>> Clients([Client("b", part), Client("a", part)]).names
    ('a', 'b')
    """

    test_numbers: Mapping[str, Array] = MappingProxyType({})
    starts: Mapping[str, int] = MappingProxyType({})
    row_groups: Mapping[str, Mapping[str, Array]] = MappingProxyType({})
    row_folds: Mapping[str, Mapping[str, Array]] = MappingProxyType({})
    questions: tuple[str, ...] = ()
    asks_task: bool = False
    declared: LabelForm | None = None
    rows_elsewhere: bool = False
    contribution: Rows | None = None

    def __init__(
        self,
        clients: Sequence[Client],
        *,
        name: str = "own",
        classes: Sequence[str] = (),
        recipe: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        server: Part | None = None,
        unseen: Clients | None = None,
    ) -> None:
        if len(clients) <= 0:
            raise InputError("there are no clients; give at least one")
        ordered = sorted(clients, key=lambda c: c.name)
        forms = _form_of(ordered[0].train)
        for client in ordered:
            for kind, part in client.parts():
                _check_alike(
                    part,
                    forms,
                    f"client {client.name!r}",
                    f" in its {kind} rows, client {ordered[0].name!r}",
                )
        train = Rows.concatenate([c.train for c in ordered])
        if train is None:
            raise InputError("no client has a training row")
        self.train = train
        self.validation = Rows.concatenate([c.validation for c in ordered])
        self.test = Rows.concatenate([c.test for c in ordered])
        self._describe(
            [c.name for c in ordered], name, classes, recipe, notes, server, unseen
        )
        self.test_numbers = MappingProxyType(
            {c.name: c.test_numbers for c in ordered if c.test_numbers is not None}
        )
        self.row_groups = MappingProxyType(
            {c.name: c.row_groups for c in ordered if c.row_groups is not None}
        )

    @classmethod
    def from_indices(
        cls,
        names: Sequence[str],
        train: Rows,
        validation: Rows | None = None,
        test: Rows | None = None,
        *,
        name: str = "own",
        classes: Sequence[str] = (),
        recipe: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        server: Part | None = None,
        unseen: Clients | None = None,
    ) -> Clients:
        """Clients that share one data set in memory: `Rows.indexed` per part, in the order of `names` (sorted)."""
        if list(names) != sorted(names):
            raise InputError(
                "names of indexed clients must be sorted; pad their numbers with zeros"
            )
        empty = [n for n, size in zip(names, train.sizes, strict=True) if size == 0]
        if empty:
            raise InputError(
                f"clients without training rows: {', '.join(empty[:5])}; drop them or choose another split"
            )
        self = cls.__new__(cls)
        self.train, self.validation, self.test = train, validation, test
        self._describe(names, name, classes, recipe, notes, server, unseen)
        return self

    @classmethod
    def of_server(cls, part: Part, transform: Transform | None = None) -> Clients:
        """The rows of the server as a client of the reserved name `server`; they train and validate."""
        self = cls.__new__(cls)
        self.train = self.validation = Rows.concatenate([part])  # type: ignore[assignment]
        self.test = None
        self._describe(["server"], "server", (), None, (), None, None, reserved=True)
        self.transform = transform
        return self

    def _describe(
        self,
        names: Sequence[str],
        name: str,
        classes: Sequence[str],
        recipe: Mapping[str, Any] | None,
        notes: Sequence[str],
        server: Part | None,
        unseen: Clients | None,
        *,
        reserved: bool = False,
    ) -> None:
        self.names = Names(names)
        self.name, self.classes, self.recipe = name, _texts(classes, "classes"), recipe
        self.notes, self.server, self.unseen = _texts(notes, "notes"), server, unseen
        forms = _form_of(Part(self.train.inputs, self.train.labels))
        if server is not None:
            _check_alike(
                Client("server", server).train, forms, "the server", ", its clients"
            )
        if unseen is not None:
            _check_alike(
                unseen.train.part(0),
                forms,
                f"unseen client {unseen.names[0]!r}",
                ", the others",
            )
        self.draw: Callable[[str, int, Rng], Part] | None = None
        self.transform: Transform | None = None
        all_names = [*self.names]
        if unseen is not None:
            all_names += unseen.names
        repeated = sorted(n for n, count in Counter(all_names).items() if count > 1)
        if repeated:
            raise InputError(
                f"client names repeat: {', '.join(repeated)}; every client needs a name of its own"
            )
        if not reserved and "server" in all_names:
            raise InputError(
                "a client is called 'server', the name of the server's own rows; rename it"
            )
        if "*" in all_names:
            raise InputError(
                "a client is called '*', which stands for the model of all clients; rename it"
            )

    @property
    def _label_of_recipe(self) -> Mapping[str, Any]:
        """What the recipe says of the label; nothing without one."""
        if self.recipe is None:
            return {}
        label: Mapping[str, Any] = self.recipe["label"]
        return label

    @property
    def label_scale(self) -> LabelScale:
        """The scale in which labels are stored, as the recipe says."""
        label = self._label_of_recipe
        return LabelScale(label.get("mean", 0.0), label.get("scale", 1.0))

    @property
    def form_is_weighted(self) -> bool:
        """Return True if the last column of labels is the weight of each row."""
        if self.declared is not None:
            return self.declared.weighted
        return bool(self._label_of_recipe.get("weights"))

    @property
    def form(self) -> LabelForm:
        """The form of labels: as declared, as the recipe says, or as the labels are."""
        if self.declared is not None:
            return self.declared
        of_recipe = LabelForm.of_recipe(self._label_of_recipe)
        if of_recipe is not None:
            return of_recipe
        return LabelForm.of_labels(self.train.labels, self.classes)

    @property
    def plain_labels(self) -> Tensor:
        """Labels of training rows as they are stored, without the weights of rows."""
        return self.form.unweighted(self.train.labels)

    def with_mean_weights(self) -> Clients:
        """The same clients, each with its weights of rows divided by their mean over its training rows; as they are without weights.

        So a client that counts in thousands of inhabitants, and one that counts in shares, learn alike, and a client has as much say
        as it has rows.

        Raises:
            InputError: Training rows of a client have no weight above 0, or clients share weighted rows.
        """
        if not self.form_is_weighted:
            return self
        clients = copy(self)
        factors = _mean_weights(self.names, self.train)
        for kind in PARTS:
            rows: Rows | None = getattr(self, kind)
            if rows is not None:
                setattr(clients, kind, _divide_weights(rows, factors))
        if self.unseen is not None:
            clients.unseen = self.unseen._with(declared=self.form).with_mean_weights()
        if self.server is not None:
            all_rows = Rows(*self.server, np.array([0, len(self.server)]))
            factors = _mean_weights(["server"], all_rows)
            divided = _divide_weights(all_rows, factors)
            clients.server = Part(divided.inputs, divided.labels)
        return clients

    def number(self, name: str) -> int:
        """Position of the client `name`; an `InputError` with the nearest spelling if there is none."""
        if name not in self.names:
            raise InputError(
                f"there is no client {name!r}; {nearest(name, self.names)}"
            )
        return self.names.place(name)

    @overload
    def __getitem__(self, key: int | str) -> Client: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Client]: ...
    def __getitem__(self, key: int | str | slice) -> Client | Sequence[Client]:
        if isinstance(key, slice):
            return [self[i] for i in range(*key.indices(len(self)))]
        if isinstance(key, str):
            key = self.number(key)
        i = range(len(self))[key]
        name = self.names[i]
        return Client(
            name,
            self.train.part(i),
            _part_or_none(self.validation, i),
            _part_or_none(self.test, i),
            self.test_numbers.get(name),
            self.row_groups.get(name),
        )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<{len(self)} clients of {self.name!r}, {int(self.train.sizes.sum())} training rows>"

    def _repr_html_(self) -> str:
        """A table of the clients and their numbers of rows, the first `SHOWN` of them."""
        parts = {part: getattr(self, part) for part in PARTS}
        sizes = {part: rows.sizes for part, rows in parts.items() if rows is not None}
        lines = [["client", *[f"{part} rows" for part in sizes]]]
        for i, name in enumerate(self.names[:SHOWN]):
            lines.append([name, *[str(int(counts[i])) for counts in sizes.values()]])
        table = html_table(repr(self)[1:-1], lines)
        if len(self) > SHOWN:
            table += f"<p>and {len(self) - SHOWN} more</p>"
        return table

    def merge_validation(self, keep: Collection[str] = ()) -> Clients:
        """The same clients with validation rows added to the training rows, except for the clients of `keep`."""
        if self.validation is None or set(keep) >= set(self.names):
            return self
        keeps = np.array([name in keep for name in self.names])
        train, validation = self.train.absorb(self.validation, ~keeps)
        merged = {}
        for attribute in ("row_groups", "row_folds"):
            by_client = dict(getattr(self, attribute))
            for name, parts in by_client.items():
                if name not in keep:
                    by_client[name] = _merge_numbers(parts)
            merged[attribute] = MappingProxyType(by_client)
        return self._with(train=train, validation=validation, **merged)

    def reserve_validation(self, halves: Collection[str] = ()) -> Clients:
        """The same clients whose validation rows are kept for measuring contributions, as their part `contribution`.

        Args:
            halves: Clients on whose validation rows a method chooses; half of them are kept and half remain, by patient where groups of
                rows are known.
        """
        if self.validation is None:
            return self
        reserved, remaining = [], []
        row_groups, row_folds = dict(self.row_groups), dict(self.row_folds)
        for i, name in enumerate(self.names):
            numbers = self.validation.numbers(i)
            groups = np.arange(len(numbers))
            if name in self.row_groups:
                groups = np.asarray(self.row_groups[name].get("validation", groups))
            is_kept = np.ones(len(numbers), dtype=bool)
            if name in halves:
                # Every other group, so that all rows of a patient stay together.
                _, number_of_group = np.unique(groups, return_inverse=True)
                is_kept = number_of_group % 2 == 0
            reserved.append(numbers[is_kept])
            remaining.append(numbers[~is_kept])
            if name in row_groups:
                row_groups[name] = {**row_groups[name], "validation": groups[~is_kept]}
            if name in row_folds:
                folds = row_folds[name]["validation"]
                row_folds[name] = {**row_folds[name], "validation": folds[~is_kept]}
        inputs, labels = self.validation.inputs, self.validation.labels
        validation = None
        if any(map(len, remaining)):
            validation = Rows.from_indices(inputs, labels, remaining)
        return self._with(
            row_groups=MappingProxyType(row_groups),
            row_folds=MappingProxyType(row_folds),
            contribution=Rows.from_indices(inputs, labels, reserved),
            validation=validation,
        )

    def subset(self, names: Sequence[str]) -> Clients:
        """Some of the clients (sorted) with copies of their rows and no others: without server rows and unseen clients."""
        numbers = [self.number(n) for n in names]
        clients = copy(self)
        for kind in PARTS:
            rows: Rows | None = getattr(self, kind)
            if rows is not None:
                setattr(clients, kind, rows.subset(numbers))
        clients.names, clients.server, clients.unseen = Names(names), None, None
        return clients

    def pool_training_rows(self) -> Part:
        """All training rows as one part."""
        numbers = np.concatenate([self.train.numbers(i) for i in range(len(self))])
        everything = Part(self.train.inputs, self.train.labels)
        return everything.select(torch.from_numpy(numbers))

    def to(self, device: torch.device) -> Clients:
        """The same clients with all rows on `device`; tensors that parts share are moved once."""
        return self.map_tensors(lambda tensor, name: tensor.to(device))

    def map_tensors(self, change: Callable[[Tensor, str | None], Tensor]) -> Clients:
        """The same clients with other tensors of rows; one that parts share stays shared.

        Args:
            change: function (tensor [rows, ...], its name) -> tensor. The name is that among a dict of inputs, "inputs" for inputs that
                are one tensor, and None for labels.
        """
        changed: dict[tuple[int, str | None], Tensor] = {}

        def new(tensor: Tensor, name: str | None) -> Tensor:
            key = id(tensor), name
            if key not in changed:
                changed[key] = change(tensor, name)
            return changed[key]

        clients = copy(self)
        for kind in PARTS:
            rows: Rows | None = getattr(self, kind)
            if rows is not None:
                part = Part(rows.inputs, rows.labels).map_tensors(new)
                setattr(clients, kind, Rows(*part, rows.offsets, rows.index))
        if self.server is not None:
            clients.server = self.server.map_tensors(new)
        if self.unseen is not None:
            clients.unseen = self.unseen.map_tensors(change)
        return clients

    def _with(self, **changes: Any) -> Clients:
        """Return the same clients with other attributes."""
        clients = copy(self)
        vars(clients).update(changes)
        return clients

    def with_rows(self, parts: Mapping[str, Rows | None]) -> Clients:
        """The same clients with other rows of some parts (`PARTS`)."""
        return self._with(**parts)

    def with_open_task(self) -> Clients:
        """The same clients, whose labels 0.0 and 1.0 may be classes or quantities (`asks_task`)."""
        return self._with(asks_task=True)

    def with_form(self, form: LabelForm) -> Clients:
        """The same clients, whose labels are of this form."""
        return self._with(declared=form)

    def with_server(self, part: Part | None) -> Clients:
        """The same clients beside a server that holds these rows."""
        return self._with(server=part)

    def with_draw(self, draw: Callable[[str, int, Rng], Part]) -> Clients:
        """The same clients, of whose distributions `draw` gives fresh rows."""
        return self._with(draw=draw)

    def with_transform(self, transform: Transform) -> Clients:
        """The same clients, whose rows `transform` changes at random whenever training reads them (augmentation).

        Args:
            transform: function (inputs, rng) -> inputs of the same shape, of one row as the model takes it. Randomness comes from
                rng, say from `rng.generator()`, a torch generator: it is named by seed, round, client and place in the training, so
                that results depend neither on workers nor on where a run was resumed. The global generators of torch, numpy and
                Python are seeded from the same name. Rows are evaluated as they are.
        """
        return self._with(transform=transform)

    def add(self, client: Client, *, start: int = 1) -> Clients:
        """The same clients and one more, which takes part from round `start` on.

        Until then it is evaluated and never asked to train. A run that was saved goes on with it if `start` is a round that is not
        complete yet.

        Raises:
            InputError: a name that is there already, rows of another form, or a round before the first.

        >>> import coterie as ct
        >>> part = ct.Part(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
        >>> clients = ct.Clients([ct.Client("a", part), ct.Client("b", part)])
        >>> clients.add(ct.Client("late", part), start=6).starts["late"]
        6
        """
        if not isinstance(client, Client):
            raise InputError(
                f"add takes a client, such as ct.Client(name, train=ct.Part(inputs, labels)); got {cut(client)}"
            )
        if type(start) is not int or start < 1:
            raise InputError(
                f"start must be the round from which on the client takes part, 1 or more; got {cut(start)}"
            )
        grown = Clients(
            [*self, client],
            name=self.name,
            classes=self.classes,
            recipe=self.recipe,
            notes=self.notes,
            server=self.server,
            unseen=self.unseen,
        )
        starts = dict(self.starts)
        if start > 1:
            starts[client.name] = start
            note = f"{client.name} takes part from round {start} on"
            grown.notes = (*grown.notes, note)
        return grown._with(
            starts=MappingProxyType(starts),
            row_folds=self.row_folds,
            questions=self.questions,
            asks_task=self.asks_task,
            declared=self.declared,
            draw=self.draw,
            transform=self.transform,
        )

    @property
    def multi_hot(self) -> bool:
        """Return True if all labels are rows of zeros and ones, one for each of several classes, whatever their type."""
        if self.form_is_weighted:
            return self.form.kind == "several"
        return all(is_multi_hot(rows.labels) for _, rows in self.groups())

    def groups(self) -> Iterator[tuple[tuple[str, ...], Rows]]:
        """The rows of each part of these clients, of unseen ones and of the server, with the names to which they belong."""
        for group in filter(None, (self, self.unseen)):
            for part in PARTS:
                rows: Rows | None = getattr(group, part)
                if rows is not None:
                    yield group.names, rows
        if self.server is not None:
            yield ("server",), Rows(*self.server, np.array([0, len(self.server)]))

    def sizes(self, part: str) -> dict[str, int]:
        """Rows of each client, unseen ones behind the others."""
        sizes: dict[str, int] = {}
        for group in filter(None, (self, self.unseen)):
            rows: Rows | None = getattr(group, part)
            counts = [0] * len(group)
            if rows is not None:
                counts = rows.sizes.tolist()
            sizes.update(zip(group.names, counts, strict=True))
        return sizes

    def fingerprints(self) -> dict[str, str]:
        """A short hash of the rows of each client, unseen ones behind the others; of unread inputs as `Rows.evidence` says."""
        fingerprints: dict[str, str] = {}
        for group in filter(None, (self, self.unseen)):
            evidence = [
                (kind, rows.evidence())
                for kind in PARTS
                if (rows := getattr(group, kind)) is not None
            ]
            for i, name in enumerate(group.names):
                digest = hashlib.blake2b(digest_size=16)
                for kind, of_client in evidence:
                    for key, value in of_client(i).items():
                        form = f"{kind}/{key}{tuple(value.shape)}{value.dtype}"
                        digest.update(form.encode())
                        digest.update(tensor_bytes(value))
                fingerprints[name] = digest.hexdigest()
        return fingerprints

    def fingerprint(self) -> str:
        """A short hash of rows and names: a checkpoint refuses to go on with other data."""
        fingerprints = self.fingerprints()
        if self.transform is not None:
            fingerprints["transform"] = code_hash(self.transform)
        return joint_fingerprint(fingerprints)
