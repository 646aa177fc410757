"""The probability simplex: weights that are >= 0 and sum to 1."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.solvers._inputs import Values, as_double, dtype_of

__all__ = ["project"]


def project(v: Values) -> Tensor:
    """The Euclidean projection of a vector on the probability simplex.

    `argmin_w ||w - v||^2` subject to `w >= 0` and `sum(w) = 1`, which is `w = max(v - threshold, 0)` with the one
    threshold that makes the sum 1 (Duchi, Shalev-Shwartz, Singer and Chandra, "Efficient projections onto the l1-ball
    for learning in high dimensions", 2008, Fig. 1). O(n log n).

    Args:
        v: [n], any finite numbers, n >= 1.

    Returns:
        [n], >= 0, with sum 1 to rounding.

    Raises:
        ValueError: `v` is empty, not a vector or not finite.

    >>> project([0.75, 0.5, -1.0]).tolist()
    [0.625, 0.375, 0.0]
    """
    values = as_double(v, "v", ndim=1)
    n = values.numel()
    if n == 0:
        raise ValueError("v must have at least one entry; got none")
    # Only differences matter; with the largest at 0 the sums over the support are exact however far apart the entries are.
    shifted = values - values.max()
    ordered = shifted.sort(descending=True).values
    thresholds = (ordered.cumsum(0) - 1.0) / torch.arange(
        1, n + 1, dtype=torch.float64, device=values.device
    )
    support = int((ordered > thresholds).sum())
    return (shifted - thresholds[support - 1]).clamp_min(0.0).to(dtype_of(v))
