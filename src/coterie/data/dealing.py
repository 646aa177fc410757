"""Deal the rows of one data set to clients, as the [split] table of an experiment says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.errors import InputError
from coterie.base.rng import generator
from coterie.base.spelling import rows_left_out
from coterie.config.data import Split
from coterie.data import splits
from coterie.data.parts import Index
from coterie.data.splits import class_numbers, number_names

ReadColumn = Callable[[str], NDArray[Any]]
"""The values of a named column, one per row."""


@dataclass(frozen=True)
class Dealt:
    """The rows of every client.

    Attributes:
        clients: row numbers by client.
        unseen: row numbers by client that never trains.
        validation: validation rows beside a client's own ones.
        copies: clients that have the rows, and the parts, of another one.
        flipped: clients whose labels are turned round.
        notes: sentences for the report.
        columns: those that only say whose row it is, and so are no inputs.
    """

    clients: Mapping[str, Index]
    unseen: Mapping[str, Index] = field(default_factory=dict)
    validation: Mapping[str, Index] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    flipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def every_row(self) -> Index:
        """Return all rows that a client has, sorted."""
        return np.unique(
            np.concatenate(
                [
                    *self.clients.values(),
                    *self.unseen.values(),
                    *self.validation.values(),
                ]
            )
        )


def deal(
    split: Split, labels: ArrayLike, *, seed: int, column: ReadColumn | None = None
) -> Dealt:
    """Return the rows of every client, by `kind`; each row goes to one client at most, copies apart.

    `column` reads a column of the rows by its name, for a kind that looks at more than labels.
    """
    if split.kind == "target-groups":
        return _target_groups(split, labels, split.seed_for(seed))
    if split.kind == "column":
        return _deal_by_column(split, column, split.seed_for(seed))
    lists = _lists(split, labels, split.count + split.unseen, split.seed_for(seed))
    training = dict(zip(number_names(split.count), lists, strict=False))
    unseen_names = number_names(split.unseen, "unseen")
    unseen = dict(zip(unseen_names, lists[split.count :], strict=True))
    return _with_notes(split, training, unseen, seed)


def _with_notes(
    split: Split,
    training: Mapping[str, Index],
    unseen: Mapping[str, Index],
    seed: int,
    *notes: str,
) -> Dealt:
    flipped = _clients_to_flip(split, [*training], seed)
    flipped += _clients_to_flip(split, [*unseen], seed)
    sentences = [*notes]
    if unseen:
        sentences.append(
            f"{len(unseen)} clients of the same split never train and are only evaluated"
        )
    if flipped:
        sentences.append(
            f"labels y are turned into C - 1 - y, in all parts, at {', '.join(flipped)}"
        )
    return Dealt(training, unseen, flipped=flipped, notes=tuple(sentences))


def _deal_by_column(split: Split, read: ReadColumn | None, seed: int) -> Dealt:
    """Make one client per value of the column, under that name; `unseen` ones are drawn first, by name."""
    if read is None:
        raise InputError(
            "[split] kind = 'column' needs a data set with named columns: a table, or one of the hub"
        )
    values = np.array([None if v is None else str(v) for v in read(str(split.column))])
    unnamed = [i for i, value in enumerate(values) if value is None]
    if unnamed and split.unnamed == "refuse":
        unnamed_rows = f"row {unnamed[0] + 1}"
        if len(unnamed) > 1:
            unnamed_rows += f" and {len(unnamed) - 1} more"
        raise InputError(
            f"[split] column {split.column!r} is missing in {unnamed_rows}; say whose row it is, or leave such rows out by "
            "--unnamed drop"
        )
    named = np.delete(np.arange(len(values)), unnamed)
    names, whose, sizes = np.unique(
        values[named].astype(str), return_inverse=True, return_counts=True
    )
    # The sort is stable: the rows of a client stay in their order.
    order = named[np.argsort(whose, kind="stable")]
    rows = np.split(order, np.cumsum(sizes)[:-1])
    large: dict[str, Index] = {}
    for name, numbers in zip(names.tolist(), rows, strict=True):
        if len(numbers) >= split.minimum:
            large[name] = numbers
    if not large:
        raise InputError(
            f"[split] column {split.column!r} has no value with {split.minimum} rows or more; name the column that says whose row it "
            "is, or lower split.minimum"
        )
    needed_clients = split.unseen + (split.count or 1)
    if needed_clients > len(large):
        raise InputError(
            f"[split] column {split.column!r} has {len(large)} values with {split.minimum} rows or more; "
            f"{needed_clients} clients are asked for"
        )
    drawn = sorted(large, key=lambda name: generator(seed, "column", name).random())
    unseen = {name: large[name] for name in sorted(drawn[: split.unseen])}
    others = drawn[split.unseen :]
    if split.count:
        others = others[: split.count]
    training = {name: large[name] for name in sorted(others)}
    notes = []
    small = len(names) - len(large)
    if small:
        notes.append(
            f"{small} values of {split.column} with fewer than {split.minimum} rows are left out"
        )
    if unnamed:
        notes.append(rows_left_out(len(unnamed), str(split.column)))
    dealt = _with_notes(split, training, unseen, seed, *notes)
    return replace(dealt, columns=(str(split.column),))


def _lists(split: Split, labels: ArrayLike, n: int, seed: int) -> list[Index]:
    if split.kind == "iid":
        return splits.iid(labels, n, seed=seed)
    if split.sizes is not None:
        return splits.sized(labels, split.sizes, seed=seed)
    if split.counts is not None:
        return splits.counted(labels, split.counts, seed=seed)
    if split.kind == "power-law":
        return splits.power_law(
            labels, n, split.exponent, seed=seed, minimum=split.minimum
        )
    if split.kind == "dirichlet":
        return splits.dirichlet(
            labels, n, split.alpha, seed=seed, minimum=split.minimum
        )
    if split.kind == "clusters":
        labels_per_cluster = split.labels_per_cluster
        return splits.clusters(
            labels,
            n,
            clusters=split.clusters,
            labels_per_cluster=labels_per_cluster,
            seed=seed,
        )
    per_client = split.shards_per_client
    if split.kind == "mixed":
        size = split.shard_size or 500
        return splits.mixed(
            labels,
            n,
            split.nr,
            shards_per_client=per_client,
            shard_size=size,
            seed=seed,
        )
    if split.twins > n:
        raise InputError(
            f"twins = {split.twins} are more than the {n} clients; lower twins"
        )
    return splits.shards(
        labels,
        n,
        shards_per_client=per_client,
        shard_size=split.shard_size,
        twins=split.twins,
        seed=seed,
    )


def _clients_to_flip(split: Split, names: list[str], seed: int) -> tuple[str, ...]:
    """Return the share `flip` of `names`: those whose own draw is smallest."""
    split_seed = split.seed_for(seed)
    ranked = sorted(
        names, key=lambda name: generator(split_seed, "flip", name).random()
    )
    return tuple(sorted(ranked[: round(split.flip * len(names))]))


def _target_groups(split: Split, labels: ArrayLike, seed: int) -> Dealt:
    lists, validation_rows = splits.target_groups(
        labels,
        split.alpha,
        held_out=split.held_out,
        rows_per_client=split.rows_per_client,
        seed=seed,
    )
    copies = {}
    if split.count == 40:
        copies = {_copy(name): name for name in lists}
        lists = {**lists, **{copy: lists[name] for copy, name in copies.items()}}
    validation = {}
    if len(validation_rows):
        validation["target"] = validation_rows
    notes = [
        f"target-groups: clients have {len(lists['target'])} rows each; the target validates on {len(validation_rows)} more"
    ]
    if copies:
        notes.append(
            "20 of the 40 clients are copies of the others, so that every row is used twice, as in the paper"
        )
    return Dealt(lists, validation=validation, copies=copies, notes=tuple(notes))


def shares(split: Split, *, validation: bool = True) -> dict[str, float]:
    """Return the parts of a client's own rows without those parts that it has from elsewhere: what is left, in proportion."""
    remaining = dict(split.parts)
    if not validation:
        remaining.pop("validation", None)
    if split.test != "own":
        remaining.pop("test", None)
    total = sum(remaining.values())
    return {key: share / total for key, share in remaining.items()}


def standard_rows(
    split: Split, classes: ArrayLike, standard: ArrayLike, *, seed: int, name: str
) -> Index:
    """Return the rows of the standard test set for client `name`: all, or as many as there can be with the client's shares of classes.

    Args:
        split: Says which rows of the test set a client gets.
        classes: classes of all rows of the client [rows].
        standard: classes of the standard test set.
        seed: seed of the run.
        name: name of the client, which names the draw.
    """
    if split.test == "standard":
        return np.arange(len(np.asarray(standard)))
    return label_mix(classes, standard, seed=split.seed_for(seed), name=name)


def label_mix(
    client_labels: ArrayLike, pool: ArrayLike, *, seed: int = 0, name: str = ""
) -> Index:
    """As many rows of `pool` as can have the same shares of classes as `client_labels`, drawn by the name of the client; sorted.

    Args:
        client_labels: class of each row of the client.
        pool: class of each row to draw from.
        seed: of the draw.
        name: of the client.

    Raises `InputError` for a class of the client that the pool lacks.

    >>> pool = [0, 0, 0, 0, 1, 1, 2]
    >>> [int(pool[i]) for i in label_mix([0, 0, 1], pool)]
    [0, 0, 0, 0, 1, 1]
    """
    classes = class_numbers(client_labels, "label-mix")
    candidates = class_numbers(pool, "label-mix")
    present, counts = np.unique(classes, return_counts=True)
    rows_of_class = [np.flatnonzero(candidates == c) for c in present]
    # The scarcest class decides of how many rows there can be.
    scale = math.inf
    for c, numbers, count in zip(present, rows_of_class, counts, strict=True):
        if not len(numbers):
            raise InputError(
                f"client {name!r} has rows of class [{c}], which the standard test set lacks"
            )
        scale = min(scale, len(numbers) / count)
    drawn = []
    for c, numbers, count in zip(present, rows_of_class, counts, strict=True):
        size = min(len(numbers), max(1, round(scale * count)))
        rng = generator(seed, "label-mix", name, str(c))
        drawn.append(rng.permutation(numbers)[:size])
    return np.sort(np.concatenate(drawn))


def _copy(name: str) -> str:
    group, _, number = name.partition("-")
    if not number:
        return "twin"
    shift = 10 if group == "near" else 9
    return f"{group}-{int(number) + shift:02d}"
