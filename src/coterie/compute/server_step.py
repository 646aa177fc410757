"""The step of a server from weights of updates to the models of its targets, and how these models follow the weights (MeritFed)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor

from coterie.base.vector import align, move
from coterie.solvers import adam
from coterie.solvers.mirror import duality_gap, entropic_descent


@dataclass(frozen=True)
class ServerStep:
    """The map from weights to the targets' models: known to the server and, with the delegated oracle, to each target.

    x [T, d + b], deltas [T, n, d + b]; Adam's moments [T, 2, d] after `taken` [T] steps; betas None: plain SGD.
    `known` holds the first and the latest weights with their step.
    """

    x: Tensor
    deltas: Tensor
    moments: Tensor
    taken: Tensor
    lr: float
    betas: tuple[float, float] | None
    eps: float
    dim: int
    known: list[tuple[Tensor, tuple[Tensor, Tensor | None, Tensor]]] = field(
        default_factory=list
    )

    def step(self, weights: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """With weights [T, n]: the models [T, d + b], d model / d update [T, d] (None: lr everywhere), and the moments."""
        # A step reads all updates, and a round takes two of them twice: at the weights before the descent and at those after it.
        for weighed, step in self.known:
            if torch.equal(weighed, weights):
                return step
        self.known[1:] = [(weights.clone(), self._step(weights))]
        return self.known[-1][1]

    def _step(self, weights: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        # One target at a time: a product over all targets at once would round differently with their number.
        rows = list(
            zip(self.x.unbind(), weights.unbind(), self.deltas.unbind(), strict=True)
        )
        betas = self.betas
        if betas is None:
            return (
                _stack([move(*row, self.lr, self.dim) for row in rows]),
                None,
                self.moments,
            )
        new_models, slopes, moments = zip(
            *[self._adam(t, betas, *row) for t, row in enumerate(rows)], strict=True
        )
        return torch.stack(new_models), torch.stack(slopes), torch.stack(moments)

    def _adam(
        self,
        t: int,
        betas: tuple[float, float],
        x: Tensor,
        weights: Tensor,
        deltas: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = move(torch.zeros_like(x), weights, deltas, 1.0, self.dim)
        g = -mean[: self.dim]
        step = adam.step(
            g,
            self.moments[t],
            int(self.taken[t]),
            lr=self.lr,
            betas=betas,
            eps=self.eps,
        )
        pulled = torch.cat([step.change, mean[self.dim :]])
        return (
            move(x, x.new_ones(1), pulled[None], 1.0, self.dim),
            -step.slope,
            step.moments,
        )

    def slopes(
        self, gradient: Callable[[Tensor, int], Tensor]
    ) -> Callable[[Tensor], Tensor]:
        """Function weights [T, n] -> dphi/dw = <grad f(x(w)), dx/dw_i> [T, n]; its k-th call is the k-th step."""
        steps, updates = count(), self.deltas[..., : self.dim].unbind()

        def slopes(weights: Tensor) -> Tensor:
            new_models, bend, _ = self.step(weights)
            # One pass over the updates: as a sum of products this took most of a round's time.
            rows = zip(
                updates,
                gradient(new_models, next(steps))[..., : self.dim].unbind(),
                strict=True,
            )
            if bend is None:
                return _stack(
                    [self.lr * torch.mv(align(d), align(g)) for d, g in rows]
                ).double()
            return _stack(
                [
                    torch.mv(align(d), align(b * g))
                    for (d, g), b in zip(rows, bend, strict=True)
                ]
            ).double()

        return slopes


def _stack(values: list[Tensor], dim: int = 0) -> Tensor:
    return torch.stack(values, dim) if len(values) > 1 else values[0].unsqueeze(dim)


def descend(
    slopes: Callable[[Tensor], Tensor], weights: Tensor, **settings: Any
) -> tuple[Tensor, Tensor]:
    """Eq. 8 from the weights w0 [T, n]; with the new ones, max_i <w0 - e_i, dphi/dw(w0)> [T] (0 without a step)."""
    gaps: list[Tensor] = []

    def slopes_and_gap(w: Tensor) -> Tensor:
        slope = slopes(w)
        if not gaps:
            gaps.append(
                torch.stack(
                    [
                        duality_gap(align(p), align(g))
                        for p, g in zip(w, slope, strict=True)
                    ]
                )
            )
        return slope

    lowest = entropic_descent(slopes_and_gap, weights, **settings)
    return lowest, gaps[0] if gaps else weights.new_zeros(len(weights))
