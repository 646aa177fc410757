r"""Steps under a fixed bound of the curvature, from sums over rows in which each row has a limited part.

For one logit the curvature of a row's loss is p (1 - p) x x', at most x x' / 4 wherever it is looked at (D. Boehning and B. G. Lindsay,
"Monotonicity of quadratic-approximation algorithms", Annals of the Institute of Statistical Mathematics 1988); for C logits it is at
most x x' / 2 for each of them (D. Boehning, "Multinomial logistic regression algorithm", there, 1992); for squared errors it is x x'.
A row's gradient that is scaled to a length of at most C changes no slower than the plain one, so that the bound holds for it, too.

The products are told once with symmetric normal noise (C. Dwork, K. Talwar, A. Thakurta, L. Zhang, "Analyze Gauss", STOC 2014,
Algorithm 1).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.solvers import glm

__all__ = ["FACTORS", "clipped_gradient", "fold", "raised", "shorten_rows", "unfold"]

FACTORS: dict[str, float] = {"binary": 0.25, "classes": 0.5, "regression": 1.0}
"""The most by which the loss of a row bends, in units of x x', by the kind of the loss."""


def shorten_rows(inputs: Tensor, reach: float) -> Tensor:
    """Rows [n, d] of a length of `reach` at most; one that is not finite is 0."""
    finite = inputs.isfinite().all(1, keepdim=True)
    rows = torch.where(finite, inputs, 0.0)
    if math.isinf(reach):
        return rows
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    shortened: Tensor = rows * (reach / lengths.clamp(min=reach))
    return shortened


def unfold(matrix: Tensor) -> Tensor:
    """The numbers [d (d + 1) / 2] of a symmetric matrix [d, d], as long as it is: those beside the diagonal times sqrt(2).

    >>> length = unfold(torch.tensor([[1.0, 2.0], [2.0, 3.0]])).norm().item()
    >>> round(length**2, 4)  # 1 + 4 + 4 + 9
    18.0
    """
    rows, columns = torch.triu_indices(len(matrix), len(matrix))
    beside = torch.where(rows == columns, 1.0, math.sqrt(2))
    return matrix[rows, columns] * beside.to(matrix)


def fold(numbers: Tensor, size: int) -> Tensor:
    """The symmetric matrix [d, d] of the numbers that `unfold` returns."""
    rows, columns = torch.triu_indices(size, size)
    beside = torch.where(rows == columns, 1.0, math.sqrt(2))
    matrix = numbers.new_zeros(size, size)
    matrix[rows, columns] = numbers / beside.to(numbers)
    matrix[columns, rows] = matrix[rows, columns]
    return matrix


def clipped_gradient(
    theta: Tensor,
    inputs: Tensor,
    labels: Tensor,
    family: glm.Family,
    outputs: int,
    clip: float,
) -> Tensor:
    """The sum over rows of the gradients of their log likelihood [P], uphill, each of a length of `clip` at most.

    Args:
        theta: slopes and intercepts [P], as `glm` has them.
        inputs: [n, d], finite.
        labels: [n], as the family reads them.
        family: one of those of `FACTORS`.
        outputs: C.
        clip: > 0; infinity: no limit.
    """
    at_outputs = family(glm.scores(theta, inputs, outputs), labels).gradient
    # Huge outputs overflow; such a row counts nothing, as a row that is not finite does.
    at_outputs = torch.where(at_outputs.isfinite(), at_outputs, 0.0)
    # The gradient of a row is the outer product of that at its outputs and of (x, 1).
    long = (inputs.square().sum(1) + 1).sqrt()
    lengths = torch.linalg.vector_norm(at_outputs, dim=1) * long
    if math.isfinite(clip):
        at_outputs = at_outputs * (clip / lengths.clamp(min=clip))[:, None]
    slopes = at_outputs.T @ inputs
    return torch.cat([slopes.flatten(), at_outputs.sum(0)])


def raised(noisy: Tensor, sigma: float, most: float) -> Tensor:
    """A positive semidefinite matrix that is hardly ever below the products of rows [d, d], from these with noise.

    Negative eigenvalues become 0, and all of them are raised by sigma sqrt(2 d), the length of the noise (E. Wigner, 1958), as in
    Y.-X. Wang, "Revisiting differentially private linear regression", UAI 2018. Rows that are no longer than a limit have products of
    at most `most` in any direction; where noise makes more of them than that says, that is taken.

    Args:
        noisy: sum of products of rows, with noise [d, d].
        sigma: deviation of the noise in the numbers of `unfold`.
        most: rows times the square of the longest; infinity: not known.

    >>> raised(torch.diag(torch.tensor([4.0, -1.0])), 1.0, math.inf).diagonal().tolist()
    [6.0, 2.0]
    """
    if not sigma:
        return noisy
    sizes, directions = torch.linalg.eigh(noisy)
    sizes = sizes.clamp(min=0) + sigma * math.sqrt(2 * len(noisy))
    if float(sizes.mean()) > most:
        known: Tensor = most * torch.eye(len(noisy), dtype=noisy.dtype)
        return known
    above: Tensor = directions @ torch.diag(sizes) @ directions.T
    return above
