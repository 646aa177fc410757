"""Averages that a few arbitrary rows cannot move far.

Sources: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018
(coordinate-wise median and trimmed mean); K. Pillutla, S. M. Kakade, Z. Harchaoui, "Robust Aggregation for Federated Learning", 2022
(smoothed Weiszfeld); P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent", 2017 (Krum and multi-Krum). All are unchanged by a permutation of the rows and follow a translation of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.solvers._inputs import Values, as_count, as_double, as_number, dtype_of

__all__ = ["geometric_median", "krum_scores", "median", "multi_krum", "trimmed_mean"]

_COORDINATES = 1 << 16
"""Coordinates that are sorted at a time."""
_NETWORK = 64
"""Rows up to which a network sorts."""


def median(rows: Values) -> Tensor:
    """The median of each coordinate; of an even number of rows the mean of the two in the middle.

    Args:
        rows: [n, d], n >= 1.

    Returns:
        [d].

    Raises:
        ValueError: `rows` is not a finite matrix with a row.

    >>> median([[0.0, 5.0], [1.0, 6.0], [1e9, -1e9]])
    tensor([1., 5.], dtype=torch.float64)
    """

    def middle(ordered: Tensor) -> Tensor:
        n = len(ordered)
        return torch.lerp(ordered[(n - 1) // 2].double(), ordered[n // 2].double(), 0.5)

    return _by_coordinates(rows, middle)


def trimmed_mean(rows: Values, trim: int) -> Tensor:
    """The mean of each coordinate without its `trim` smallest and `trim` largest values.

    Args:
        rows: [n, d], n > 2 * trim.
        trim: values left out at each end, >= 0; 0 is the mean.

    Returns:
        [d].

    Raises:
        ValueError: `rows` is not a finite matrix, or `trim` leaves nothing.

    >>> trimmed_mean([[0.0], [1.0], [3.0], [1e9]], 1)
    tensor([2.], dtype=torch.float64)
    """
    k = as_count(trim, "trim", least=0)

    def mean(ordered: Tensor) -> Tensor:
        n = len(ordered)
        if 2 * k >= n:
            raise ValueError(
                f"trim must leave a row: 2 * trim < n; got trim = {k} for n = {n}"
            )
        return ordered[k : n - k].double().mean(0)

    return _by_coordinates(rows, mean)


def geometric_median(
    rows: Values, *, smoothing: float = 1e-6, tolerance: float = 1e-8, most: int = 1000
) -> tuple[Tensor, Tensor]:
    """The point with the least sum of distances to the rows, by the smoothed Weiszfeld algorithm, and each row's weight in it.

    Starts from the mean and replaces it by the mean with weights `1 / max(nu, ||row - point||)`, nu = smoothing times the
    mean distance from the start. It ends once a step is at most `tolerance` times that distance.

    Args:
        rows: [n, d], n >= 1.
        smoothing: > 0, relative to the spread of the rows; keeps weights finite where the point meets a row.
        tolerance: > 0, relative to the spread of the rows.
        most: largest number of steps, >= 1.

    Returns:
        The point [d], and weights [n] > 0 with sum 1: `weights @ rows` is the point up to the tolerance.

    Raises:
        ValueError: `rows` is not a finite matrix with a row, or a number is out of range.

    >>> point, weights = geometric_median([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1e6, 1e6]])
    >>> bool(point.max() < 1.1), bool(weights[4] < 1e-5)
    (True, True)
    """
    matrix = _matrix(rows)
    nu = as_number(smoothing, "smoothing", above=0.0)
    precision = as_number(tolerance, "tolerance", above=0.0)
    steps = as_count(most, "most", least=1)
    dtype = dtype_of(rows)
    weights = matrix.new_full((len(matrix),), 1 / len(matrix))
    point = matrix.mean(0)
    distances = _distances(matrix, point)
    spread = float(distances.mean())
    if spread > 0:
        for _ in range(steps):
            weights = 1 / distances.clamp_min(nu * spread)
            weights = weights / weights.sum()
            old_point, point = point, weights @ matrix
            distances = _distances(matrix, point)
            if float(torch.linalg.vector_norm(point - old_point)) <= precision * spread:
                break
    return point.to(dtype), weights.to(dtype)


def krum_scores(rows: Values, byzantine: int) -> Tensor:
    """Krum's score of each row: the sum of its squared distances to its n - f - 2 nearest other rows; small is good.

    Args:
        rows: [n, d]; n >= 2 f + 3 if f > 0.
        byzantine: f >= 0, how many rows may be arbitrary.

    Returns:
        [n], >= 0; all 0 for n <= 2.

    Raises:
        ValueError: `rows` is not a finite matrix, or there are too few for f.

    >>> krum_scores([[0.0], [1.0], [2.0], [3.0], [9.0]], 1).tolist()
    [5.0, 2.0, 2.0, 5.0, 85.0]
    """
    matrix = _matrix(rows)
    n, f = len(matrix), as_count(byzantine, "byzantine", least=0)
    if f > 0 and n < 2 * f + 3:
        raise ValueError(
            f"byzantine must be at most (n - 3) / 2; got byzantine = {f} for n = {n}"
        )
    # Differences, not a Gram matrix: rows that share a large mean would lose all digits of their distances.
    squared = torch.stack([_distances(matrix, row).square() for row in matrix])
    squared.fill_diagonal_(torch.inf)
    nearest = squared.sort(1).values[:, : max(0, n - f - 2)]
    return nearest.sum(1).to(dtype_of(rows))


def multi_krum(rows: Values, byzantine: int, keep: int | None = None) -> Tensor:
    """Positions of the rows that multi-Krum averages: those with the lowest scores (the first of equal ones).

    Args:
        rows: [n, d]; n >= 2 f + 3 if f > 0.
        byzantine: f >= 0.
        keep: how many, from 1 to n - f; None: n - f. 1 is Krum.

    Returns:
        [keep] int64, ascending.

    Raises:
        ValueError: `rows` is not a finite matrix, there are too few for f, or `keep` is out of range.

    >>> multi_krum([[0.0], [1.0], [2.0], [3.0], [9.0]], 1, 2).tolist()
    [1, 2]
    """
    scores = krum_scores(rows, byzantine)
    allowed = len(scores) - byzantine
    chosen = allowed
    if keep is not None:
        chosen = as_count(keep, "keep", least=1)
    if chosen > allowed:
        raise ValueError(
            f"keep must be at most n - byzantine = {allowed}; got {chosen}"
        )
    return scores.argsort(stable=True)[:chosen].sort().values


def _by_coordinates(rows: Values, rule: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `rule` to the sorted values of each coordinate [d], to few enough coordinates at a time that copies are small."""
    dtype = dtype_of(rows)
    if not isinstance(rows, Tensor) or not rows.is_floating_point():
        return rule(_sort(_matrix(rows))).to(dtype)
    if rows.ndim != 2 or not rows.numel():
        return rule(_sort(_matrix(rows))).to(dtype)  # which says what is wrong
    blocks = rows.detach().split(_COORDINATES, 1)
    for block in blocks:
        if not bool(torch.linalg.vector_norm(block, torch.inf).isfinite()):
            _matrix(rows)  # says how many are not
    result = rows.new_empty(rows.shape[1], dtype=dtype)
    for block, place in zip(blocks, result.split(_COORDINATES), strict=True):
        place.copy_(rule(_sort(block)))
    return result


def _sort(matrix: Tensor) -> Tensor:
    """The rows in ascending order in each column: of few rows by Batcher's network, a tenth of the time of a sort of each column."""
    n = len(matrix)
    if n > _NETWORK:
        return matrix.sort(0).values
    rows, width = list(matrix.unbind(0)), 1
    while width < n:
        step = width
        while step:
            for begin in range(step % width, n - step, 2 * step):
                for low in range(begin, min(begin + step, n - step)):
                    high = low + step
                    if low // (2 * width) == high // (2 * width):
                        pair = rows[low], rows[high]
                        rows[low] = torch.minimum(*pair)
                        rows[high] = torch.maximum(*pair)
            step //= 2
        width *= 2
    return torch.stack(rows)


def _matrix(rows: Values) -> Tensor:
    matrix = as_double(rows, "rows", ndim=2)
    if len(matrix) == 0:
        raise ValueError("rows must have at least one row; got none")
    return matrix


def _distances(matrix: Tensor, point: Tensor) -> Tensor:
    distances: Tensor = torch.linalg.vector_norm(matrix - point, dim=1)
    return distances
