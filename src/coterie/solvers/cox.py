r"""Cox's partial likelihood of one stratum, with Efron's ties and late entry: value, gradient and curvature by the slopes.

At an event time t with D events the risk set R(t) holds the rows with entry < t <= time, and

    loglik = sum_t [ sum_{i in D(t)} s_i - sum_{j=0}^{D-1} log( sum_{i in R(t)} w_i - j / D sum_{i in D(t)} w_i ) ],

with s_i = b^T x_i and w_i = exp(s_i). The baseline hazard is gone from it, so that rows of several clients need no common one: each
client is a stratum, and its sums add up.

Sources: D. R. Cox, "Regression models and life-tables", JRSS B 34 (1972); B. Efron, "The efficiency of Cox's likelihood function for
censored data", JASA 72 (1977), for ties.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.solvers.glm import Moments

__all__ = ["partial_likelihood"]


def partial_likelihood(
    slopes: Tensor, inputs: Tensor, followup: Tensor, weights: Tensor | None = None
) -> Moments:
    """Log partial likelihood, its gradient [d] and minus its second derivative [d, d], in float64; all 0 without an event.

    Args:
        slopes: b [d].
        inputs: x [n, d].
        followup: entry, time and event [n, 3].
        weights: of rows [n]; None: 1 each. Each of the D terms of an event time then counts the mean weight of its rows, as in `coxph`.

    >>> followup = torch.tensor([[0.0, 1.0, 1.0], [0.0, 2.0, 0.0]])
    >>> found = partial_likelihood(torch.zeros(1), torch.tensor([[1.0], [0.0]]), followup)
    >>> round(float(found.loglik), 4), found.gradient.tolist(), found.curvature.tolist()
    (-0.6931, [0.5], [[0.25]])
    """
    x, b = inputs.double(), slopes.double()
    entry, time, event = followup.double().unbind(1)
    died = event > 0
    columns = x.shape[1]
    if not bool(died.any()):
        zeros = x.new_zeros(columns)
        return Moments(x.new_zeros(()), zeros, x.new_zeros(columns, columns))
    scores = x @ b
    # A constant in all scores changes nothing, and so no weight overflows.
    scores = scores - scores.max()
    own_weights = x.new_ones(len(x)) if weights is None else weights.double()
    hazards = own_weights * scores.exp()

    # Sums over risk sets [m], [m, d], and over the rows whose event lies at each of the m event times.
    times, at_time, ties = time[died].unique(return_inverse=True, return_counts=True)
    weighted = torch.cat([hazards[:, None], hazards[:, None] * x], 1)
    at_risk = _sums_from(times, time, weighted) - _sums_from(times, entry, weighted)
    of_events = at_risk.new_zeros(at_risk.shape).index_add(0, at_time, weighted[died])

    # One term for each event: the j-th of D at a time counts j / D of these rows no more (Efron).
    place = torch.repeat_interleave(torch.arange(len(times)), ties)
    first = ties.cumsum(0) - ties
    gone = (torch.arange(len(place)) - first[place]).double() / ties[place]
    sums = at_risk[place] - gone[:, None] * of_events[place]
    # Late entries are subtracted, which may round a sum of very small weights to 0.
    total = sums[:, 0].clamp(min=torch.finfo(sums.dtype).tiny)
    means = sums[:, 1:] / total[:, None]
    of_ties = x.new_zeros(len(times)).index_add(0, at_time, own_weights[died]) / ties
    share = of_ties[place]

    # The cumulative baseline hazard of each row while it is at risk; what it weighs less at its own event is taken off.
    steps = x.new_zeros(len(times)).index_add(0, place, share / total)
    lighter = x.new_zeros(len(times)).index_add(0, place, share * gone / total)
    hazard = torch.cat([x.new_zeros(1), steps.cumsum(0)])
    own = hazard[_reached(times, time)] - hazard[_reached(times, entry)]
    own[died] -= lighter[at_time]
    expected = hazards * own

    loglik = (own_weights * scores)[died].sum() - (share * total.log()).sum()
    gradient = (own_weights[:, None] * x)[died].sum(0) - expected @ x
    curvature = (x * expected[:, None]).T @ x - (share[:, None] * means).T @ means
    return Moments(loglik, gradient, curvature)


def _sums_from(times: Tensor, until: Tensor, weighted: Tensor) -> Tensor:
    """The sums [m, ...] over rows whose `until` [n] is at each of `times` [m] or later."""
    order = until.argsort(stable=True)
    before = weighted.new_zeros(1, weighted.shape[1])
    sums = torch.cat([before, weighted[order].flip(0).cumsum(0)])
    later = len(until) - torch.searchsorted(until[order].contiguous(), times)
    return sums[later]


def _reached(times: Tensor, until: Tensor) -> Tensor:
    """How many of `times` [m] lie at or before each of `until` [n]."""
    return torch.searchsorted(times, until.contiguous(), right=True)
