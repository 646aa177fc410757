"""Draw clients by size or by the norm of their update, and rows by weight.

Sources: W. Chen, S. Horváth, P. Richtárik, "Optimal Client Sampling for Federated Learning", 2020, Eq. 7 (inclusion probabilities);
P. S. Efraimidis, P. G. Spirakis, "Weighted random sampling with a reservoir", 2006 (draws without replacement); "ISFL: Federated
Learning for Non-i.i.d. Data with Local Importance Sampling" (rows by class). Randomness comes in as uniform numbers, so every
function is pure.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.solvers._inputs import (
    Values,
    as_count,
    as_distribution,
    as_double,
    as_not_negative,
    as_number,
    dtype_of,
)

__all__ = [
    "inclusion_probabilities",
    "row_weights",
    "with_replacement",
    "without_replacement",
]


def inclusion_probabilities(norms: Values, expected: float) -> Tensor:
    """The probabilities of independent draws that give the sum of n vectors with the least variance.

    Minimises `sum_k norms_k^2 / p_k`, the variance of `sum_{k drawn} v_k / p_k` up to a constant, over `0 < p <= 1` with
    `sum p = expected`. With u ascending and l the largest number with `0 < m + l - n <= sum_{j <= l} u_j / u_l`,
    `p_k = (m + l - n) u_k / sum_{j <= l} u_j` for the l smallest, and 1 for the others.

    Args:
        norms: [n], n >= 1, u_k = ||v_k|| >= 0.
        expected: m, the expected number of draws, in (0, n].

    Returns:
        [n], in [0, 1], with sum m. A vector of norm 0 has p = 0 (nothing is lost by never drawing it), unless all of the l smallest
        are 0, which then share what is left evenly.

    Raises:
        ValueError: `norms` is not a vector of finite numbers >= 0, or `expected` is outside (0, n].

    >>> inclusion_probabilities([1.0, 1.0, 2.0, 8.0], 2)
    tensor([0.2500, 0.2500, 0.5000, 1.0000], dtype=torch.float64)
    """
    values = as_not_negative(norms, "norms")
    n = values.numel()
    m = as_number(expected, "expected", above=0.0, most=float(n))
    # Only ratios matter; with the largest at 1 no sum overflows.
    largest = values.max().clamp_min(torch.finfo(torch.float64).tiny)
    u, order = (values / largest).sort(stable=True)
    sums = u.cumsum(0)
    ranks = torch.arange(1, n + 1, dtype=torch.float64, device=u.device)
    remainders = m - n + ranks  # m + l - n for each l
    last_index = int(torch.nonzero((remainders > 0) & (remainders * u <= sums)).max())
    share, total = float(remainders[last_index]), float(sums[last_index])
    smallest = slice(0, last_index + 1)
    p = torch.ones_like(u)
    if total > 0:
        p[smallest] = share * u[smallest] / total
    else:
        p[smallest] = share / (last_index + 1)
    probabilities = torch.empty_like(p)
    probabilities[order] = p.clamp_max(1.0)
    return probabilities.to(dtype_of(norms))


def without_replacement(weights: Values, uniform: Values, count: int) -> Tensor:
    """Positions of `count` entries drawn one after the other, each time by the weights of those that are left.

    The entries with the smallest `-ln(1 - u_k) / weights_k` are such a draw, so the draw of one entry needs no other's random number.

    Args:
        weights: [n], >= 0; entries of weight 0 come last.
        uniform: [n], one number in [0, 1) for each entry.
        count: number of draws, >= 0; n or more draws everything.

    Returns:
        [min(count, n)] int64, ascending.

    Raises:
        ValueError: shapes or ranges are wrong.

    >>> without_replacement([1.0, 5.0, 1.0], [0.5, 0.5, 0.9], 2).tolist()
    [0, 1]
    """
    values = as_not_negative(weights, "weights")
    u = _uniform(uniform)
    if u.shape != values.shape:
        raise ValueError(
            f"uniform must have as many entries as weights ({values.numel()}); got {u.numel()}"
        )
    keys = -torch.log1p(-u.to(values.device)) / values
    keys[values == 0] = torch.inf
    return keys.argsort(stable=True)[: as_count(count, "count", least=0)].sort().values


def with_replacement(weights: Values, uniform: Values) -> Tensor:
    """Positions drawn independently with probabilities `weights / sum weights`, one for each uniform number.

    Args:
        weights: [n], n >= 1, >= 0, not all 0.
        uniform: [k], numbers in [0, 1).

    Returns:
        [k] int64.

    Raises:
        ValueError: shapes or ranges are wrong.

    >>> with_replacement([1.0, 0.0, 3.0], [0.2, 0.25, 0.99]).tolist()
    [0, 2, 2]
    """
    edges = as_not_negative(weights, "weights").cumsum(0)
    if not float(edges[-1]) > 0:
        raise ValueError("weights must not all be 0")
    drawn = torch.searchsorted(
        edges / edges[-1], _uniform(uniform).to(edges.device), right=True
    )
    return drawn


def row_weights(labels: Values, shares: Values) -> Tensor:
    """The probability of each row if a class is drawn by `shares` and then one of its rows evenly.

    Args:
        labels: [r], r >= 1, the class of each row, integers in 0..C-1.
        shares: [C], probability of each class; what lies on classes without a row is divided among the others in proportion.

    Returns:
        [r] float64, sum 1; equal for all rows if no class of `shares` > 0 has one.

    Raises:
        ValueError: `labels` are no classes, or `shares` is no distribution.

    >>> row_weights([0, 0, 2], [0.3, 0.4, 0.3])
    tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)
    """
    q = as_distribution(shares, "shares")
    classes = torch.as_tensor(labels).to(q.device)
    if classes.ndim != 1 or classes.numel() == 0 or classes.is_floating_point():
        raise ValueError(
            f"labels must be a vector of at least one class number; got shape {list(classes.shape)}"
        )
    if int(classes.min()) < 0 or int(classes.max()) >= q.numel():
        raise ValueError(
            f"labels must be between 0 and {q.numel() - 1} (classes of shares); got {int(classes.max())}"
        )
    weights = q[classes] / torch.bincount(classes, minlength=q.numel())[classes]
    total = weights.sum()
    if float(total) > 0:
        return weights / total
    return torch.full_like(weights, 1 / len(weights))


def _uniform(values: Values) -> Tensor:
    tensor = as_double(values, "uniform", ndim=1)
    if tensor.numel() and not (float(tensor.min()) >= 0 and float(tensor.max()) < 1):
        raise ValueError(
            f"uniform must be in [0, 1); got {float(tensor.min()):.6g} to {float(tensor.max()):.6g}"
        )
    return tensor
