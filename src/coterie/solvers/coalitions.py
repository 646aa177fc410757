"""Partitions of clients into coalitions that train together, chosen before training from sizes and divergences."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from coterie.solvers._inputs import Values, as_double

__all__ = ["objective", "partition"]

MOST_MOVES = 1000
"""Passes over all clients after which a search ends; each lowers the objective, so none comes near."""


def objective(
    labels: Tensor, sizes: Values, divergences: Values, complexity: float = 1.0
) -> float:
    """The error that FedCollab bounds for a partition (W. Bao et al., ICML 2023).

    `sum_i [C / sqrt(N_S) + sum_{j in S} n_j D_ij / N_S]`, where S is the coalition of client i and N_S its rows.

    Args:
        labels: Coalition of each client, int64 [n].
        sizes: Rows n_j > 0 of each client [n].
        divergences: D [n, n], 0 on the diagonal.
        complexity: C >= 0, what few rows cost.

    >>> round(objective(torch.tensor([0, 0, 1]), [100.0] * 3, [[0, 0.04, 1], [0.04, 0, 1], [1, 1, 0]]), 5)
    0.28142
    """
    rows, distances = _check(sizes, divergences)
    same_coalition = (labels[:, None] == labels[None, :]).double()
    of_coalition = same_coalition @ rows
    of_few_rows = complexity / of_coalition.sqrt()
    of_unlike_rows = (same_coalition * distances) @ rows / of_coalition
    return float((of_few_rows + of_unlike_rows).sum())


def partition(
    sizes: Values,
    divergences: Values,
    complexity: float,
    generator: torch.Generator,
    restarts: int = 10,
) -> Tensor:
    """A partition with a low `objective`, found by moving one client at a time.

    Args:
        sizes: As for `objective`, like all that follows but the last two.
        divergences: D [n, n].
        complexity: C.
        generator: Draws the starts and the orders of clients.
        restarts: Searches, of which the best counts: from all clients alone, from all together, and from random partitions.

    Returns:
        Coalition of each client, int64 [n], numbered in the order of their first members. A local minimum, not always the global one.

    >>> partition([100.0] * 3, [[0, 0.04, 1], [0.04, 0, 1], [1, 1, 0]], 1.0, torch.Generator().manual_seed(0)).tolist()
    [0, 0, 1]
    """
    rows, distances = _check(sizes, divergences)
    n = len(rows)
    starts = [torch.arange(n), torch.zeros(n, dtype=torch.int64)]
    starts += [
        torch.randint(n, (n,), generator=generator)
        for _ in range(restarts - len(starts))
    ]
    partitions = [
        _descend(start, rows, distances, complexity, generator)
        for start in starts[:restarts]
    ]
    # Equal objectives differ by rounding; the first of them is taken, so that equal clients join.
    values = [
        round(objective(labels, rows, distances, complexity), 12)
        for labels in partitions
    ]
    return _in_order(partitions[values.index(min(values))].tolist())


def _check(sizes: Values, divergences: Values) -> tuple[Tensor, Tensor]:
    rows = as_double(sizes, "sizes", ndim=1).cpu()
    distances = as_double(divergences, "divergences", ndim=2).cpu()
    if not len(rows) or not bool((rows > 0).all()):
        raise ValueError("sizes must be > 0, of at least one client")
    has_shape = distances.shape == (len(rows), len(rows))
    if not has_shape or bool(distances.diagonal().any()) or bool((distances < 0).any()):
        raise ValueError(
            f"divergences must be [{len(rows)}, {len(rows)}], >= 0, and 0 on the diagonal"
        )
    return rows, distances


def _descend(
    labels: Tensor,
    rows: Tensor,
    distances: Tensor,
    complexity: float,
    generator: torch.Generator,
) -> Tensor:
    """Move one client at a time, to another coalition or out of its own, as long as that lowers the objective."""
    labels, n = labels.clone(), len(rows)
    value = objective(labels, rows, distances, complexity)
    for _ in range(MOST_MOVES):
        improved = False
        for client in torch.randperm(n, generator=generator).tolist():
            other_labels = set(labels.tolist()) - {int(labels[client])}
            unused = next(
                label
                for label in range(n + 1)
                if label not in other_labels and label != int(labels[client])
            )
            for label in (*sorted(other_labels), unused):
                old_label = int(labels[client])
                labels[client] = label
                changed = objective(labels, rows, distances, complexity)
                if changed < value - 1e-12:
                    value, improved = changed, True
                else:
                    labels[client] = old_label
        if not improved:
            break
    return labels


def _in_order(labels: Iterable[int]) -> Tensor:
    numbers: dict[int, int] = {}
    return torch.tensor(
        [numbers.setdefault(label, len(numbers)) for label in labels], dtype=torch.int64
    )
