"""One step of Adam, and its derivative by the gradient that it takes.

Source: D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, Algorithm 1. The derivative serves methods that
choose a gradient by what the step does with it (MeritFedA of "Selective Collaboration for Robust Federated Learning", appendix D.4).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.solvers._inputs import Values, as_count, as_double, as_number, dtype_of

__all__ = ["AdamStep", "step"]


class AdamStep(NamedTuple):
    """The result of a step of Adam.

    Attributes:
        change: [d], to be ADDED to the model; points downhill.
        slope: [d], the derivative of each entry of `change` by the same entry of the gradient.
        moments: [2, d], the first and second moment after the step (m_t and v_t, without bias correction).

    >>> change, slope, moments = step(torch.tensor([4.0]), torch.zeros(2, 1), 1, lr=0.1)
    >>> round(float(change), 3)
    -0.074
    """

    change: Tensor
    slope: Tensor
    moments: Tensor


def step(
    gradient: Values,
    moments: Values,
    count: int,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> AdamStep:
    """The step `-lr * m / (sqrt(v) + eps)` with both moments corrected for their start at 0.

    Every entry moves for itself, so the derivative is a vector. With g the gradient, m = c1 g + q and v = c2 g^2 + r the corrected
    moments (q and r are what earlier steps left) and s = sqrt(v) it is `-lr * (c1 (r + eps s) - c2 q g) / (s (s + eps)^2)`, and
    `-lr c1 / eps` where s = 0. It is below 0 in the first step and close to 0 there, since the first step goes lr along the sign of g
    whatever its size; later it is above 0 where a larger gradient shortens the step.

    Args:
        gradient: [d], points uphill.
        moments: [2, d], as the step before returned them; zeros at first.
        count: number of steps taken before, >= 0.
        lr: learning rate, > 0.
        betas: decay of the first and of the second moment, each in [0, 1).
        eps: > 0, added to the root of the second moment.

    Raises:
        ValueError: an argument is out of range, or the shapes do not belong together.

    >>> first = step([3.0, -0.2], [[0.0, 0.0], [0.0, 0.0]], 0, lr=0.1)
    >>> first.change.round(decimals=6)
    tensor([-0.1000,  0.1000], dtype=torch.float64)
    >>> step([3.0, 0.2], first.moments, 1, lr=0.1).change.round(decimals=4)  # the second entry has turned
    tensor([-0.1000, -0.0053], dtype=torch.float64)
    """
    g = as_double(gradient, "gradient", ndim=1)
    old_moments = as_double(moments, "moments", ndim=2).to(g.device)
    if old_moments.shape != (2, g.numel()):
        raise ValueError(
            f"moments must have the shape [2, {g.numel()}], two rows like gradient; got {list(old_moments.shape)}"
        )
    steps = as_count(count, "count", least=0) + 1
    lr, eps = as_number(lr, "lr", above=0.0), as_number(eps, "eps", above=0.0)
    beta1, beta2 = (_decay(b, f"betas[{i}]") for i, b in enumerate(betas))
    c1, c2 = (1 - beta1) / (1 - beta1**steps), (1 - beta2) / (1 - beta2**steps)
    q, r = (
        old_moments[0] * (beta1 / (1 - beta1**steps)),
        old_moments[1] * (beta2 / (1 - beta2**steps)),
    )
    s = (c2 * g.square() + r).sqrt()
    # The terms in g^2 of the quotient rule cancel by algebra; in numbers they would leave nothing of a first step's derivative.
    curved = (c1 * (r + eps * s) - c2 * q * g) / (s * (s + eps).square())
    slope = -lr * torch.where(s > 0, curved, c1 / eps)
    new_moments = torch.stack(
        [
            beta1 * old_moments[0] + (1 - beta1) * g,
            beta2 * old_moments[1] + (1 - beta2) * g.square(),
        ]
    )
    dtype = dtype_of(gradient)
    return AdamStep(
        (-lr * (c1 * g + q) / (s + eps)).to(dtype),
        slope.to(dtype),
        new_moments.to(dtype),
    )


def _decay(value: float, name: str) -> float:
    number = as_number(value, name, least=0.0)
    if number >= 1:
        raise ValueError(f"{name} must be in [0, 1); got {number:g}")
    return number
