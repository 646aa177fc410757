"""A student's task: VaRSeL explained back from its page, with numbers that are not the page's.

Two internal clients whose gradients differ around (2, 0), one external client near them and one far away. The error of the weighted
mean of gradients is its variance plus the square of its bias (Eq. 4); VaRSeL chooses the weights that make it least.
"""

import torch

from coterie.solvers import variance

internal = torch.tensor([[3.0, 0.0], [1.0, 0.0]])
external = torch.tensor([[2.0, 1.0], [-8.0, 0.0]])
centre = internal.mean(0)
spread = (internal - centre).square().sum()

weights = variance.exact_weights(internal, external, budget=2)
by_hand = min(
    (
        float((spread + (w * (external[0] - centre)).square().sum()) / (2 + w) ** 2),
        float(w),
    )
    for w in torch.linspace(0, 1, 1001)
)
print([round(v, 3) for v in weights.tolist()], by_hand)
assert weights[1] < 0.05, "a client far away is hardly borrowed from"
assert abs(float(weights[0]) - by_hand[1]) < 0.05, (
    "the near one as the error by hand says"
)
