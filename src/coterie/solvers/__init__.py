"""The mathematics of the methods: pure functions on tensors that know nothing of federated learning.

Every function takes tensors, arrays or sequences of numbers and computes in float64. It returns a tensor on the device
of its first argument: of that argument's dtype if that is a floating-point tensor, otherwise float64. Bad input is a
`ValueError` of one sentence that names the argument, what is allowed and what was got; NaN and Inf are a `NotFiniteError`.
"""

from __future__ import annotations

from coterie.solvers import (
    adam,
    angles,
    appeal,
    coalitions,
    mirror,
    robust,
    sampling,
    shapley,
    simplex,
    variance,
    waterfill,
)
from coterie.solvers._inputs import NotFiniteError

__all__ = [
    "NotFiniteError",
    "adam",
    "angles",
    "appeal",
    "coalitions",
    "mirror",
    "robust",
    "sampling",
    "shapley",
    "simplex",
    "variance",
    "waterfill",
]
