"""How many rows stand behind a number at a site: where rows have weights, so many equal ones as say as much.

A row that weighs as much as all others together is most of every weighted mean. So whatever a site holds against its minima counts
effective rows, (sum w)^2 / sum w^2 (L. Kish, "Survey Sampling", 1965). There are never more of these than rows, and of equal weights
they are the rows.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.label_form import LabelForm
from coterie.compute.survival import ROUNDING, effective_rows
from coterie.config.local import LocalSGD
from coterie.data.tables.cells import Table
from coterie.sites.allowed import Allowed, RefusedError

Weights = NDArray[np.float64] | None


def count_rows(number: int, weights: Weights) -> int:
    """Return how many rows a number of rows with these weights [number] are; None: they count alike.

    >>> count_rows(3, None), count_rows(3, np.array([2.0, 2.0, 2.0])), count_rows(3, np.array([9.0, 1.0, 1.0]))
    (3, 3, 1)
    """
    if weights is None:
        return number
    return math.floor(effective_rows(weights) + ROUNDING)


def count_labels(labels: Tensor, form: LabelForm | None) -> int:
    """Return how many rows have these labels as they are stored, whose form says whether rows have weights."""
    stored = None if form is None else form.weights(labels)
    return count_rows(len(labels), None if stored is None else stored.numpy())


def count_training_rows(table: Table, among: NDArray[np.bool_] | None = None) -> int:
    """Return how many training rows a table has, or how many of them are among the rows `among` [rows]."""
    rows = table.parts["train"]
    if among is not None:
        rows = rows[among[rows]]
    return count_rows(len(rows), None if table.weights is None else table.weights[rows])


def count_by_value(values: Sequence[Any], weights: Weights) -> Counter[Any]:
    """Return how many rows have each of the values [n]."""
    counts = Counter(values)
    if weights is None:
        return counts
    squares: Counter[Any] = Counter()
    sums: Counter[Any] = Counter()
    for value, weight in zip(values, weights.tolist(), strict=True):
        sums[value] += weight
        squares[value] += weight**2
    for value in counts:
        rows = sums[value] ** 2 / squares[value] if squares[value] else 0.0
        counts[value] = math.floor(rows + ROUNDING)
    return counts


def fewest_in_a_batch(weights: NDArray[np.float64], size: int) -> int:
    """Return the effective rows of the batch of `size` rows that has fewest.

    (sum w)^2 / sum w^2 grows with one weight up to some point and falls from there, so the least batch holds the heaviest and the
    lightest rows alone. A batch of more rows has no fewer.

    >>> fewest_in_a_batch(np.array([1.0, 1.0, 1.0, 1.0, 3.0]), 4)
    3
    """
    ascending = np.sort(weights)
    size = min(size, len(ascending))
    heavy = np.arange(size + 1)
    # The sums of the lightest rows, from none to all of them; those of the heaviest are the total less that.
    sums, squares = (
        np.concatenate([[0.0], np.cumsum(ascending**power)]) for power in (1, 2)
    )
    sum_of_batch, squares_of_batch = (
        below[size - heavy] + (below[-1] - below[len(ascending) - heavy])
        for below in (sums, squares)
    )
    if not squares_of_batch.all():
        return 0
    fewest = float((sum_of_batch**2 / squares_of_batch).min())
    return math.floor(fewest + ROUNDING)


def batches_fit(
    table: Table, pairs: Iterable[Allowed], least: int, *, at_home: bool = False
) -> None:
    """Raise `RefusedError` if steps of training may rest on fewer than `least` effective rows, before any batch is drawn.

    Args:
        table: of the site, of whose rows every fold trains on some.
        pairs: all trainings of the plan.
        least: the site's `minimum_batch`.
        at_home: whether the sentence stays at the site, and may say which batches would do: that follows from the largest weights.
    """
    if table.weights is None:
        return
    for allowed in pairs:
        local = getattr(allowed.method, "local", None)
        if not isinstance(local, LocalSGD) or local.batch_size is None:
            continue
        smallest = min(local.batch_size, local.minimum_batch)
        if fewest_in_a_batch(table.weights, smallest) >= least:
            continue
        cure = "larger [local] batch_size and minimum_batch, one number for both"
        if at_home:
            cure = _batches_that_do(table.weights, least)
        raise RefusedError(
            f"its weights are uneven, and a batch of {smallest} rows could rest on fewer than {least} effective ones; give the plan "
            f'{cure}, or batch_size = "all"'
        )


def _batches_that_do(weights: NDArray[np.float64], least: int) -> str:
    """The settings of the smallest batches of which each has `least` effective rows, in words."""
    sizes = range(len(weights))
    # Larger batches have no fewer, so that half of the sizes need not be tried.
    size = bisect.bisect_left(
        sizes, least, key=lambda size: fewest_in_a_batch(weights, size)
    )
    if size == len(sizes):
        return "steps on all rows, since no smaller batch would do"
    return f"[local] batch_size = {size} and minimum_batch = {size}"
