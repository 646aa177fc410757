"""Cross-validation: each client's rows dealt into folds, and the clients as they are while one of the folds is tested."""

from __future__ import annotations

from copy import copy
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.rows import Rows
from coterie.data.splits import Index, generator, stratified

UNTESTED = -1
FEWEST_ROWS = 5
HELD = {"train": 0.8, "validation": 0.2}
"""Validation rows are a fifth of those that do not test: they choose settings, and train afterwards."""


def deal_folds(labels: ArrayLike, folds: int, *, seed: int, name: str, groups: ArrayLike | None = None) -> Index:
    """Return the fold of each row of a client [rows]; -1 for all rows of a client with fewer than 5, which test nothing.

    Rows are dealt class by class, in a random order within each, and each class begins where the last ended: every class is
    spread over the folds as evenly as it can be, and folds differ by at most one row.

    Args:
        labels: labels of the rows; numbers that are no classes, and labels of several numbers, are dealt at random.
        folds: how many.
        seed: seed of the repeat.
        name: name of the client, which names the draw.
        groups: whose row it is, such as a patient; the rows of a group stay together and count as their commonest class.

    >>> np.bincount(deal_folds([0] * 7 + [1] * 8, 5, seed=0, name="a")).tolist()
    [3, 3, 3, 3, 3]
    """
    values = np.asarray(labels)
    classes = values.ndim == 1 and not np.issubdtype(values.dtype, np.floating)
    codes = np.unique(values, return_inverse=True)[1] if classes else np.zeros(len(values), dtype=np.int64)
    whose = np.arange(len(values)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    units = int(whose.max()) + 1 if len(whose) else 0
    if units < FEWEST_ROWS:
        return np.full(len(values), UNTESTED, dtype=np.int64)
    table = np.zeros((units, int(codes.max()) + 1))
    np.add.at(table, (whose, codes), 1)
    commonest = table.argmax(axis=1)
    order = np.lexsort((generator(seed, "folds", name).random(units), commonest))
    fold = np.empty(units, dtype=np.int64)
    fold[order] = np.arange(units) % folds
    return fold[whose]


def refuse_split(clients: Clients) -> None:
    """Raise `InputError` unless all rows of the clients are training rows, which folds can be dealt from."""
    if clients.validation is not None or clients.test is not None or clients.unseen is not None:
        raise InputError(
            f"the clients of {clients.name} are split already, so split.folds cannot deal their rows; set folds = 0, or give "
            "clients whose rows are all for training"
        )


def with_fold(clients: Clients, folds: int, fold: int | None, seed: int) -> Clients:
    """Return the clients while one fold is tested at all of them: its rows test, a fifth of the others validate.

    Args:
        clients: with training rows alone.
        folds: how many there are.
        fold: number of the one that tests; None for none, so that all rows train.
        seed: seed of the repeat, by which the rows are dealt.
    """
    parts: dict[str, list[Index]] = {"train": [], "validation": [], "test": []}
    numbers: dict[str, Index] = {}
    patients: dict[str, dict[str, Index]] = {}
    for i, name in enumerate(clients.names):
        labels = clients.train.part(i).labels.cpu().numpy()
        groups = clients.row_groups[name]["train"] if name in clients.row_groups else None
        dealt = deal_folds(labels, folds, seed=seed, name=name, groups=groups)
        tested = dealt == (UNTESTED - 1 if fold is None else fold)
        untested = np.flatnonzero(~tested)
        strata = labels[untested] if labels.ndim == 1 and not np.issubdtype(labels.dtype, np.floating) else None
        whose = None if groups is None else np.unique(groups[untested], return_inverse=True)[1]
        held_out = stratified(strata, HELD, seed=seed, name=f"{name}/fold {fold}", n=len(untested), groups=whose)
        of_part = {part: untested[at] for part, at in held_out.items()} | {"test": np.flatnonzero(tested)}
        where = clients.train.numbers(i)
        for part, at in of_part.items():
            parts[part].append(where[at])
        numbers[name] = of_part["test"]
        if groups is not None:
            patients[name] = {part: groups[at] for part, at in of_part.items() if len(at)}
    view = copy(clients)
    for part, lists in parts.items():
        rows = Rows.from_indices(clients.train.inputs, clients.train.labels, lists)
        setattr(view, part, rows if any(map(len, lists)) else None)
    view.test_numbers, view.row_groups = MappingProxyType(numbers), MappingProxyType(patients)
    return view
