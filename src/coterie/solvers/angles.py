"""How far updates point away from a reference, and what FedAdp makes of it.

Sources: H. Wu, P. Wang, "Fast-Convergent Federated Learning with Adaptive Weighting", 2021 (FedAdp); "Selective Collaboration for
Robust Federated Learning" (MeritFed), Appendix A.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.solvers._inputs import Values, as_double, as_number, dtype_of

__all__ = ["angles", "gompertz"]


def angles(rows: Values, reference: Values) -> Tensor:
    """The angle between each row and the reference, accurate also where the two are nearly parallel.

    `2 atan2(||a - b||, ||a + b||)` of the unit vectors a and b; the arc cosine of their product loses half the digits near 0 and pi.
    The sign that turns updates into gradients does not matter, if both have it.

    Args:
        rows: [n, d].
        reference: [d].

    Returns:
        [n], in [0, pi] radians; pi / 2 where a vector is 0, which points nowhere.

    Raises:
        ValueError: shapes do not fit, or a value is not finite.

    >>> angles([[1.0, 0.0], [1.0, 1.0], [-2.0, 0.0]], [3.0, 0.0])
    tensor([0.0000, 0.7854, 3.1416], dtype=torch.float64)
    """
    matrix = as_double(rows, "rows", ndim=2)
    axis = as_double(reference, "reference", ndim=1)
    if matrix.shape[1] != axis.numel():
        raise ValueError(
            f"reference must have as many entries as a row ({matrix.shape[1]}); got {axis.numel()}"
        )
    b = _unit(axis)
    # A row at a time: the answer for one must not depend on how many there are.
    result = matrix.new_zeros(len(matrix))
    for i, row in enumerate(matrix):
        result[i] = _between(_unit(row), b)
    return result.to(dtype_of(rows))


def gompertz(angle: Values, alpha: float) -> Tensor:
    """FedAdp's map of angles: `alpha * (1 - exp(-exp(-alpha * (angle - 1))))`, near alpha for small angles and near 0 for large ones.

    Args:
        angle: [n], radians; one radian is mapped to `alpha * (1 - 1 / e)`.
        alpha: > 0, also the steepness (5 in the paper).

    Returns:
        [n], in [0, alpha].

    Raises:
        ValueError: `angle` is not a finite vector, or `alpha` is not > 0.

    >>> gompertz([0.0, 1.0, 3.0], 5)
    tensor([5.0000e+00, 3.1606e+00, 2.2699e-04], dtype=torch.float64)
    """
    a = as_number(alpha, "alpha", above=0.0)
    radians = as_double(angle, "angle", ndim=1)
    # expm1 keeps the digits of large angles, whose value is nearly 0.
    values = -a * torch.expm1(-torch.exp(-a * (radians - 1)))
    return values.to(dtype_of(angle))


def _unit(vector: Tensor) -> Tensor:
    """The vector with length 1; 0 stays 0."""
    if not bool(vector.any()):
        return vector
    # With the largest entry at 1 no square can overflow, nor all of them vanish.
    scaled = vector / vector.abs().max()
    unit: Tensor = scaled / torch.linalg.vector_norm(scaled)
    return unit


def _between(a: Tensor, b: Tensor) -> Tensor:
    if not (a.any() or b.any()):
        return torch.tensor(torch.pi / 2, dtype=torch.float64, device=a.device)
    return 2 * torch.atan2(
        torch.linalg.vector_norm(a - b), torch.linalg.vector_norm(a + b)
    )
