"""Folds: which row of a client is tested with which others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.rng import generator

Index = NDArray[np.int64]

UNTESTED = -1
FEWEST_ROWS = 5


def deal_folds(
    labels: ArrayLike,
    folds: int,
    *,
    seed: int,
    name: str,
    groups: ArrayLike | None = None,
    purpose: str = "folds",
) -> Index:
    """Return the fold of each row of a client [rows]; -1 for all rows of a client with fewer than 5, which test nothing.

    Rows are dealt at random, whatever their labels: folds differ by at most one row. A fold with its share of each class would leave
    training rows that err the other way, so that held-out losses would be too high, and more so for a model that learns the
    shares of one client. Only a class of fewer than 5 rows is dealt one row a fold, so that no fold takes it all.

    Args:
        labels: labels of the rows; numbers that are no classes, and labels of several numbers, have no class.
        folds: how many.
        seed: seed of the repeat.
        name: name of the client, which names the draw.
        groups: whose row it is, such as a patient; the rows of a group stay together, and a group counts as one row of its rarest
            class.
        purpose: what the folds are for, which names the draw, too.

    >>> np.bincount(deal_folds([0] * 7 + [1] * 8, 5, seed=0, name="a")).tolist()
    [3, 3, 3, 3, 3]
    """
    values = np.asarray(labels)
    whose = np.arange(len(values))
    if groups is not None:
        whose = np.unique(np.asarray(groups), return_inverse=True)[1]
    units = int(whose.max()) + 1 if len(whose) else 0
    if units < FEWEST_ROWS:
        return np.full(len(values), UNTESTED, dtype=np.int64)

    rng = generator(seed, purpose, name)
    # Units of rare classes come first, class by class: neighbours in this order are in different folds.
    order = np.lexsort((rng.random(units), _rare_class(values, whose, units)))
    fold_numbers = rng.permutation(folds)
    fold_of_unit = np.empty(units, dtype=np.int64)
    fold_of_unit[order] = fold_numbers[np.arange(units) % folds]
    return fold_of_unit[whose]


def _rare_class(labels: NDArray[Any], whose: Index, units: int) -> Index:
    """Return the number of the rarest class of each unit if fewer than 5 units have it, else a number above all of these, [units]."""
    if labels.ndim > 1 or np.issubdtype(labels.dtype, np.floating):
        return np.zeros(units, dtype=np.int64)
    codes = np.unique(labels, return_inverse=True)[1]
    has_class = np.zeros((units, int(codes.max()) + 1), dtype=bool)
    has_class[whose, codes] = True
    units_with = has_class.sum(axis=0)
    rarest = np.where(has_class, units_with, units + 1).argmin(axis=1)
    return np.where(units_with[rarest] < FEWEST_ROWS, rarest, len(units_with))
