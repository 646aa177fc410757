"""Deal the rows of one client: into train, validation and test, or into folds; and clients as they are while a fold is tested.

All randomness has a name (`generator`), so a client's parts depend on its rows and its name alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.folds import UNTESTED, deal_folds
from coterie.base.rng import generator, name_digest, numpy_generators
from coterie.base.rows import Rows

Index = NDArray[np.int64]

HELD = {"train": 0.8, "validation": 0.2}
"""Validation rows are a fifth of those that do not test: they choose settings, and train afterwards."""


def stratified(
    labels: ArrayLike | None,
    fractions: Mapping[str, float],
    *,
    seed: int,
    name: str,
    n: int | None = None,
    groups: Index | None = None,
) -> dict[str, Index]:
    """Return one client's rows in parts of the given `fractions`, every class in about these proportions.

    Parts are within one row of their share. Every class has a row in the first part (training) as far as rows suffice,
    and so has every client. `labels` [rows] of any type; None (with `n` rows) splits at random.

    Args:
        labels: Label of each row, [rows], or None.
        fractions: Share of each part, by its name.
        seed: Seed of the split.
        name: Name of the client.
        n: Number of rows where there are no labels.
        groups: Number of the group of each row, [rows]: rows of one stay together, and count as one row of their commonest class.

    >>> parts = stratified([0, 0, 0, 1, 1, 1], {"train": 2 / 3, "test": 1 / 3}, seed=0, name="a")
    >>> {k: len(v) for k, v in parts.items()}
    {'train': 4, 'test': 2}
    """
    values = np.zeros(n or 0, dtype=np.int64) if labels is None else np.asarray(labels)
    codes = np.zeros(len(values), dtype=np.int64)
    if values.ndim == 1:
        _, codes = np.unique(values, return_inverse=True)
    if groups is not None:
        # Split the groups as if each were a row, then give every row the part of its group.
        rows_of_class = np.zeros((int(groups.max()) + 1, int(codes.max()) + 1))
        np.add.at(rows_of_class, (groups, codes), 1)
        commonest = rows_of_class.argmax(axis=1)
        parts_of_groups = stratified(commonest, fractions, seed=seed, name=name)
        parts = {}
        for key, chosen in parts_of_groups.items():
            parts[key] = np.flatnonzero(np.isin(groups, chosen))
        return parts
    part = stratify(codes, [len(codes)], fractions, seed=seed, names=[name])
    return {key: np.flatnonzero(part == i) for i, key in enumerate(fractions)}


def stratify(
    classes: ArrayLike,
    sizes: Sequence[int] | Index,
    fractions: Mapping[str, float],
    *,
    seed: int,
    names: Sequence[str],
) -> Index:
    """Return the part of each row of many clients, which lie behind each other, as `stratified` deals the rows of each; by number.

    Args:
        classes: Class of each row, [rows].
        sizes: Rows of each client, [n].
        fractions: Share of each part, by its name.
        seed: Seed of the split.
        names: Names of the clients, [n].
    """
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    begins, client = ends - sizes, np.repeat(np.arange(len(ends)), sizes)
    _, values = np.unique(np.asarray(classes), return_inverse=True)
    # One code for each class of each client; those of a client lie together.
    count = values.max(initial=0) + 1
    group_keys, code = np.unique(client * count + values, return_inverse=True)
    first_codes = np.searchsorted(group_keys, np.arange(len(ends) + 1) * count)
    place, turn = np.empty(len(code)), np.empty(len(group_keys), dtype=np.int64)
    streams: Iterable[np.random.Generator]
    if len(names) == 1:
        streams = [generator(seed, "parts", names[0])]
    else:
        # The same streams, mixed at once: to make one takes longer than its draws.
        streams = numpy_generators(name_digest(seed, "parts", name) for name in names)
    edges = zip(
        begins.tolist(),
        ends.tolist(),
        first_codes[:-1].tolist(),
        first_codes[1:].tolist(),
        strict=True,
    )
    for rng, (begin, end, low, high) in zip(streams, edges, strict=True):
        place[begin:end] = rng.random(end - begin)
        turn[low:high] = rng.permutation(high - low)
    # Rows class by class, in a random order of classes and of rows within a class; walking down this list with the
    # fixed pattern below gives each class its share and the client its totals.
    order = np.lexsort((place, turn[code], client))
    pattern = _pattern(
        tuple(fractions.values()), _round_up(int(np.max(sizes, initial=0)))
    )
    part = np.empty(len(code), dtype=np.int64)
    part[order] = pattern[np.arange(len(code)) - begins[client]]
    lacking = np.bincount(code[part == 0], minlength=len(group_keys)) == 0
    for i in np.unique(client[lacking[code]]):
        rows = slice(begins[i], ends[i])
        _every_class_in_training(
            part[rows], code[rows] - first_codes[i], order[rows] - begins[i]
        )
    return part


def _every_class_in_training(part: Index, codes: Index, order: Index) -> None:
    """Exchange rows (in place) so that part 0 has each class, as long as another class has two rows to give one."""
    if not (part == 0).any():
        part[order[0]] = 0
    counts = np.bincount(codes[part == 0], minlength=int(codes.max()) + 1)
    for c in np.flatnonzero(counts == 0):
        giver = int(np.argmax(counts))
        if counts[giver] < 2:
            return
        row_in = order[codes[order] == c][0]
        row_out = order[(codes[order] == giver) & (part[order] == 0)][-1]
        part[row_out], part[row_in] = part[row_in], 0
        counts[giver] -= 1
        counts[c] += 1


def _round_up(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@lru_cache(maxsize=256)
def _pattern(fractions: tuple[float, ...], n: int) -> Index:
    """Part of the j-th row, j < n: always the part that is furthest behind its share (ties: the first)."""
    counts = [0] * len(fractions)
    out = np.empty(n, dtype=np.int64)
    for j in range(n):
        deficits = [f * (j + 1) - c for f, c in zip(fractions, counts, strict=True)]
        out[j] = best = max(range(len(fractions)), key=deficits.__getitem__)
        counts[best] += 1
    return out


def refuse_split(clients: Clients) -> None:
    """Raise `InputError` unless all rows of the clients are training rows, which folds can be dealt from."""
    if (
        clients.validation is not None
        or clients.test is not None
        or clients.unseen is not None
    ):
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
    row_folds: dict[str, dict[str, Index]] = {}
    form = clients.form
    for i, name in enumerate(clients.names):
        labels = clients.train.part(i).labels
        classes = form.strata(labels)
        groups = None
        if name in clients.row_groups:
            groups = clients.row_groups[name]["train"]
        values = classes
        if values is None:
            values = form.unweighted(labels).cpu().numpy()
        dealt = deal_folds(values, folds, seed=seed, name=name, groups=groups)
        # Without a fold nothing is tested: no row has that number.
        tested = dealt == (UNTESTED - 1 if fold is None else fold)
        untested = np.flatnonzero(~tested)
        strata = whose = None
        if classes is not None:
            strata = classes[untested]
        if groups is not None:
            _, whose = np.unique(groups[untested], return_inverse=True)
        held_out = stratified(
            strata,
            HELD,
            seed=seed,
            name=f"{name}/fold {fold}",
            n=len(untested),
            groups=whose,
        )
        of_part = {part: untested[place] for part, place in held_out.items()}
        of_part["test"] = np.flatnonzero(tested)
        where = clients.train.numbers(i)
        for part, place in of_part.items():
            parts[part].append(where[place])
        numbers[name] = of_part["test"]
        if fold is not None:
            row_folds[name] = {part: dealt[place] for part, place in of_part.items()}
        if groups is not None:
            patients[name] = {
                part: groups[place] for part, place in of_part.items() if len(place)
            }
    view = copy(clients)
    for part, lists in parts.items():
        rows: Rows | None = None
        if any(map(len, lists)):
            rows = Rows.from_indices(clients.train.inputs, clients.train.labels, lists)
        setattr(view, part, rows)
    view.test_numbers = MappingProxyType(numbers)
    view.row_groups = MappingProxyType(patients)
    view.row_folds = MappingProxyType(row_folds)
    return view
