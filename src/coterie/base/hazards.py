r"""Time to event by hazards that are constant within intervals.

A row says when it was first seen (entry), until when (time), and whether the event happened then. Interval k is (lo_k, hi_k];
within it the hazard of a row is r_k lam(z_k): r_k events per unit of time, as all clients together have them, and z_k the
output of the model. With E_k the time that the row spends in the interval, and D_k = 1 where its event lies there,

    loss = sum_k  r_k E_k lam(z_k) - D_k log lam(z_k),        S(t) = exp(-sum_k r_k E_k(t) lam(z_k)).

Late entry, ties and censoring within an interval are exact. Source: M. Friedman, "Piecewise exponential models for survival data
with covariates", Annals of Statistics 10 (1982). The knee of `rates_of` is ours: with exp alone steps of SGD diverge on small clients.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

KNEE = 2.0
"""Output from which on a rate grows as its tangent does. At 3 rather than 2, models of small clients are .1 worse in loss."""
FEWEST_INTERVALS, MOST_INTERVALS = 3, 10
EVENTS_PER_INTERVAL = 20
FEWEST_EVENTS = 10
"""Events of all clients together, below which nothing is learnt."""
CELLS_PER_DOUBLING = 4
WITHIN_HORIZON = tuple(step / 16 for step in range(1, 16))
"""Times before the horizon, in horizons, at which predictions are judged beside it."""
LOWEST_CELL, HIGHEST_CELL = -160, 160
"""Times of 1e-12 to 1e12, in whatever unit."""


def rates_of(z: Tensor) -> tuple[Tensor, Tensor]:
    """The rate ratio lam(z), exp(z) up to 2 and the tangent there beyond, and its logarithm.

    >>> rate, log_rate = rates_of(torch.tensor([0.0, 2.0, 3.0]))
    >>> rate / math.e**2, log_rate
    (tensor([0.1353, 1.0000, 2.0000]), tensor([0.0000, 2.0000, 2.6931]))
    """
    low = z.clamp(max=KNEE)
    beyond = z - low + 1
    return low.exp() * beyond, low + beyond.log()


@functools.lru_cache(maxsize=64)
def _array(values: tuple[float, ...], dtype: torch.dtype) -> NDArray[Any]:
    """Numbers as an array, which is made once; a tensor would stay bound to whatever traces a model when it is made."""
    return torch.tensor(values, dtype=dtype).numpy()


def _tensor(values: Sequence[float], like: Tensor) -> Tensor:
    tensor = torch.from_numpy(_array(tuple(values), like.dtype))
    return tensor if like.device.type == "cpu" else tensor.to(like.device)


def _lower(cuts: Sequence[float]) -> tuple[float, ...]:
    return (0.0, *cuts[:-1])


def time_within(start: Tensor, end: Tensor, cuts: Sequence[float]) -> Tensor:
    """Time E [n, K] that rows spend in each interval, from `start` [n] until `end` [n].

    >>> time_within(torch.tensor([0.0]), torch.tensor([2.5]), [1.0, 2.0, 4.0])
    tensor([[1.0000, 1.0000, 0.5000]])
    """
    reached = torch.minimum(end[:, None], _tensor(cuts, end))
    begun = torch.maximum(start[:, None], _tensor(_lower(cuts), start))
    return (reached - begun).clamp(min=0)


def events_within(time: Tensor, event: Tensor, cuts: Sequence[float]) -> Tensor:
    """1 where the event (1, else 0) of a row lies in interval k, else 0 [n, K]; one beyond the last cut is not seen."""
    at = time[:, None]
    inside = (at > _tensor(_lower(cuts), time)) & (at <= _tensor(cuts, time))
    return inside * event[:, None]


def hazard_losses(
    outputs: Tensor, labels: Tensor, cuts: Sequence[float], rates: Sequence[float]
) -> Tensor:
    """Loss of each row [n].

    Args:
        outputs: z [n, K].
        labels: entry, time above 0, and event [n, 3], in the unit of the cuts.
        cuts: upper ends of the intervals [K], ascending.
        rates: r [K], events per unit of time, above 0.
    """
    entry, time, event = labels.to(outputs.dtype).unbind(1)
    usual = _tensor(rates, outputs)
    rate, log_rate = rates_of(outputs)
    expected = usual * time_within(entry, time, cuts) * rate
    return (expected - events_within(time, event, cuts) * log_rate).sum(1)


def cumulative_hazard(
    outputs: Tensor, time: float, cuts: Sequence[float], rates: Sequence[float]
) -> Tensor:
    """The cumulative hazard [n] from 0 until `time`, float64; the probability to have no event until then is exp of minus it.

    Args:
        outputs: z [n, K].
        time: in the unit of the cuts; at most the last of them counts.
        cuts: as for `hazard_losses`.
        rates: as for `hazard_losses`.
    """
    z = outputs.double()
    usual = _tensor(rates, z)
    start = z.new_zeros(1)
    spent = time_within(start, start + time, cuts)
    return (usual * spent * rates_of(z)[0]).sum(1)


def hazard_curves(
    outputs: Tensor,
    times: Sequence[float],
    cuts: Sequence[float],
    rates: Sequence[float],
) -> Tensor:
    """The cumulative hazard [n, T] from 0 until each of the times [T], float64; arguments as of `cumulative_hazard`."""
    z = outputs.double()
    ends = _tensor(times, z)
    usual_until = _tensor(rates, z) * time_within(torch.zeros_like(ends), ends, cuts)
    ratios = rates_of(z)[0]
    # Not a product of matrices: its sums of a row would depend on how many rows there are.
    return torch.stack([(usual * ratios).sum(1) for usual in usual_until], 1)


def count_losses(outputs: Tensor, labels: Tensor, rate: float) -> Tensor:
    """Loss of each row [n] of counts with exposure: m - y log lam, with m = rate times exposure times lam(z) expected events.

    Args:
        outputs: z [n] or [n, 1].
        labels: count y and exposure [n, 2].
        rate: events per unit of exposure, of all clients.
    """
    seen, exposure = labels.to(outputs.dtype).unbind(1)
    ratio, log_ratio = rates_of(outputs.reshape(len(labels)))
    return rate * exposure * ratio - seen * log_ratio


def log_ratios(usual: Tensor, seen: Tensor, *, without_own: bool = False) -> Tensor:
    """The outputs of a client without a model: its own events per usual event in each interval [K].

    One event at the usual rate is added to each interval, so that one without events has no rate of 0.

    Args:
        usual: events that are usual for each row [n, K].
        seen: events of each row [n, K].
        without_own: for each row those of all other rows [n, K].
    """
    sums = seen.sum(0), usual.sum(0)
    if without_own:
        sums = sums[0] - seen, sums[1] - usual
    ratio = (sums[0] + 1) / (sums[1] + 1)
    # The inverse of the guarded exponential.
    knee = math.exp(KNEE)
    return torch.where(ratio <= knee, ratio.log(), ratio / knee + KNEE - 1)


# Intervals


def cell_of(times: Tensor) -> Tensor:
    """The number [n] of the cell that holds each time above 0; cell j ends at `edge(j)`.

    The edges are the same for everybody and for ever, so that whoever counts events in cells tells no time.
    """
    exact = CELLS_PER_DOUBLING * times.double().log2()
    # 2 ** (j / 4) is rounded: a time that is an edge belongs to the cell that it ends.
    cells = torch.ceil(exact - 1e-9).long()
    return cells.clamp(LOWEST_CELL, HIGHEST_CELL) - LOWEST_CELL


def edge(cell: int) -> float:
    """The upper end of a cell, in the unit of times.

    >>> edge(int(cell_of(torch.tensor([24.0]))))
    26.908685288118864
    """
    return float(2.0 ** ((cell + LOWEST_CELL) / CELLS_PER_DOUBLING))


def middle(cell: int) -> float:
    """The time in the middle of a cell, by ratios.

    >>> time = middle(int(cell_of(torch.tensor([24.0]))))
    >>> round(time, 2)
    24.68
    """
    return math.sqrt(edge(cell - 1) * edge(cell))


def is_edge(time: float) -> bool:
    """Return True if cells end at this time, up to rounding."""
    cell = int(cell_of(torch.tensor([time], dtype=torch.float64)))
    return math.isclose(edge(cell), time, rel_tol=1e-9)


CELLS = HIGHEST_CELL - LOWEST_CELL + 1


def choose_cuts(
    events: Tensor, horizon: float | None = None
) -> tuple[tuple[float, ...], float]:
    """Intervals with about equally many events, and the horizon at which survival is judged.

    There are events / 20 of them, at least 3 and at most 10, unless fewer cells have events.

    Args:
        events: in each cell [`CELLS`], of all clients.
        horizon: up to which rows are followed; None: up to the last event, and survival is judged at the edge next to the median
            time of events.

    >>> cuts, judged_at = choose_cuts(torch.bincount(cell_of(torch.arange(1, 101)), minlength=CELLS))
    >>> [round(cut, 1) for cut in cuts], round(judged_at, 1)
    ([22.6, 45.3, 64.0, 90.5, 107.6], 53.8)
    """
    edges = [edge(cell) for cell in range(CELLS)]
    counted = events.double().clone()
    if horizon is not None:
        beyond = torch.tensor([value >= horizon for value in edges])
        counted[beyond] = 0
    total = float(counted.sum())
    wanted = int(float(events.sum())) // EVENTS_PER_INTERVAL
    wanted = max(FEWEST_INTERVALS, min(MOST_INTERVALS, wanted))
    below = counted.cumsum(0)
    chosen = set()
    for k in range(1, wanted + 1):
        reached = (below >= total * k / wanted - 1e-9).nonzero()
        if total and len(reached):
            chosen.add(int(reached[0]))
    cuts = [edges[cell] for cell in sorted(chosen)]
    if horizon is not None:
        return (*(cut for cut in cuts if cut < horizon), float(horizon)), float(horizon)
    middle = int((below >= total / 2).nonzero()[0])
    return tuple(cuts), edges[middle]
