"""How much each client counts when a model should be good enough for as many clients as possible (MaxFL).

Source: "Maximizing Global Model Appeal in Federated Learning" (MaxFL), Eqs. 3 and 4, Lemma A.2.
A client's gap is its loss under the global model minus its requirement: negative where the model appeals to it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.solvers._inputs import NotFiniteError, Values, as_double, dtype_of

__all__ = ["SURROGATES", "objective", "weights"]


def _sigmoid_slope(gap: Tensor) -> Tensor:
    # s (1 - s) loses every digit for large positive gaps, where s rounds to 1; s(gap) s(-gap) loses none.
    return torch.sigmoid(gap) * torch.sigmoid(-gap)


_VALUE: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "exp": torch.exp,
    "log": lambda gap: torch.logaddexp(gap, torch.zeros_like(gap)),
    "linear": torch.clone,
}
_SLOPE: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": _sigmoid_slope,
    "relu": lambda gap: (gap >= 0).to(gap.dtype),
    "exp": torch.exp,
    "log": torch.sigmoid,
    "linear": torch.ones_like,
}

SURROGATES = tuple(_VALUE)
"""h for the 0-1 loss "the model does not appeal": sigmoid h = s = 1 / (1 + exp(-gap)), relu h = max(gap, 0),
exp h = exp(gap), log h = ln(1 + exp(gap)), linear h = gap. All but the first are convex and lead back to plain averaging (Lemma A.2);
linear is plain averaging itself, as its mean is the standard objective of federated learning less a constant."""


def weights(gap: Values, *, surrogate: str = "sigmoid") -> Tensor:
    """The aggregation weights `q = h'(gap)`; for the sigmoid `q = s (1 - s)` (Eq. 4).

    Algorithm 1, line 8 of the paper prints the sigmoid itself, which would give most weight to the clients that the
    model suits least; Eq. 4 is the gradient of Eq. 3.

    Args:
        gap: [n], loss minus requirement, in units of the loss; negative where the model appeals.
        surrogate: one of `SURROGATES`. The slope of relu is 1 at a gap of exactly 0, so that a client whose requirement
            is the initial loss takes part.

    Returns:
        [n], >= 0, not normalised; at most 1/4 for the sigmoid, where it is largest at a gap of 0.

    Raises:
        ValueError: `gap` is not a finite vector, or `surrogate` is unknown, or exp(gap) overflows.

    >>> weights([-2.0, 0.0, 4.0])
    tensor([0.1050, 0.2500, 0.0177], dtype=torch.float64)
    """
    return _apply(_SLOPE, gap, surrogate).to(dtype_of(gap))


def objective(gap: Values, *, surrogate: str = "sigmoid") -> Tensor:
    """The mean over the clients of h(gap), which MaxFL minimises (Eq. 3); its derivative by gap k is `weights[k] / n`.

    Args:
        gap: [n], n >= 1, loss minus requirement, in units of the loss; negative where the model appeals.
        surrogate: one of `SURROGATES`.

    Returns:
        [] (a scalar tensor); for the sigmoid roughly the share of clients to whom the model does not appeal.

    Raises:
        ValueError: `gap` is not a finite vector with an entry, or `surrogate` is unknown, or exp(gap) overflows.

    >>> objective([-2.0, 0.0, 4.0])
    tensor(0.5337, dtype=torch.float64)
    """
    values = _apply(_VALUE, gap, surrogate)
    if values.numel() == 0:
        raise ValueError("gap must have at least one entry; got none")
    return values.mean().to(dtype_of(gap))


def _apply(
    table: dict[str, Callable[[Tensor], Tensor]], gap: Values, surrogate: str
) -> Tensor:
    if surrogate not in table:
        raise ValueError(
            f"surrogate must be one of {', '.join(SURROGATES)}; got {surrogate!r}"
        )
    values = as_double(gap, "gap", ndim=1)
    result = table[surrogate](values)
    if not torch.isfinite(result.to(dtype_of(gap))).all():
        raise NotFiniteError(
            f"gap must be small enough for exp(gap) to be finite; got a gap of {float(values.max()):.6g}"
        )
    return result
