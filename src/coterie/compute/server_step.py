"""The step of a server from weights of updates to the models of its targets, and how these models follow the weights (MeritFed)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor

from coterie.base.vector import align, move
from coterie.solvers import adam
from coterie.solvers.mirror import entropic_descent

SHORT = 512
"""Numbers of a model up to which updates of all targets are multiplied at once, number by number, and added up."""
NUMBERS = 1 << 21
"""Numbers in such products that are held at once: 8 MiB."""


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
        if self._is_short:
            return self._short_step(weights), None, self.moments
        # One target at a time: a product over all targets at once would round differently with their number.
        targets = list(
            zip(self.x.unbind(), weights.unbind(), self.deltas.unbind(), strict=True)
        )
        if self.betas is None:
            models = [move(*target, self.lr, self.dim) for target in targets]
            return _stack(models), None, self.moments
        steps = [self._adam(t, self.betas, *target) for t, target in enumerate(targets)]
        new_models, slopes, moments = zip(*steps, strict=True)
        return torch.stack(new_models), torch.stack(slopes), torch.stack(moments)

    @property
    def _is_short(self) -> bool:
        """Whether models are so short that calls, and not arithmetic, would take the time; it has nothing to do with the targets."""
        short = self.x.shape[1] <= SHORT and self.x.device.type == "cpu"
        return short and self.betas is None and self.dim == self.x.shape[1]

    def _short_step(self, weights: Tensor) -> Tensor:
        """The models of plain SGD, of some targets at a time."""
        models = torch.empty_like(self.x)
        for low, products in self._products(weights.to(self.deltas)[:, :, None]):
            high = low + len(products)
            mean = products.sum(1)
            torch.add(self.x[low:high], mean.mul_(self.lr), out=models[low:high])
        return models

    def _short_slopes(self, gradient: Tensor) -> Tensor:
        """<gradient, update> [T, n] of the gradients [T, d]."""
        slopes = self.deltas.new_empty(self.deltas.shape[:2])
        for low, products in self._products(gradient[:, None]):
            rows = products.flatten(0, 1).sum(1)
            slopes[low : low + len(products)] = rows.view(products.shape[:2])
        return slopes.mul_(self.lr)

    def _products(self, factors: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The first of some targets, and their updates [k, n, d] times factors: sums of these round as if each target were alone."""
        at_once = max(1, NUMBERS // self.deltas[0].numel())
        for low in range(0, len(self.deltas), at_once):
            part = slice(low, low + at_once)
            room = self.deltas.new_empty(self.deltas[part].shape)
            yield low, torch.mul(self.deltas[part], factors[part], out=room)

    def _adam(
        self,
        t: int,
        betas: tuple[float, float],
        x: Tensor,
        weights: Tensor,
        deltas: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The mean update takes the place of a gradient, which points the other way. Buffers follow it without Adam.
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
        new_model = move(x, x.new_ones(1), pulled[None], 1.0, self.dim)
        return new_model, -step.slope, step.moments

    def slopes(
        self, gradient: Callable[[Tensor, int], Tensor]
    ) -> Callable[[Tensor], Tensor]:
        """Function weights [T, n] -> dphi/dw = <grad f(x(w)), dx/dw_i> [T, n]; its k-th call is the k-th step."""
        steps, updates = count(), self.deltas[..., : self.dim].unbind()

        def slopes(weights: Tensor) -> Tensor:
            new_models, bend, _ = self.step(weights)
            gradients = gradient(new_models, next(steps))
            if self._is_short:
                return self._short_slopes(gradients).double()
            # One pass over the updates: as a sum of products this took most of a round's time.
            pairs = zip(updates, gradients[..., : self.dim].unbind(), strict=True)
            if bend is None:
                by_target = [self.lr * torch.mv(align(d), align(g)) for d, g in pairs]
            else:
                by_target = [
                    torch.mv(align(d), align(b * g))
                    for (d, g), b in zip(pairs, bend, strict=True)
                ]
            return _stack(by_target).double()

        return slopes


def _stack(values: list[Tensor]) -> Tensor:
    """As `torch.stack`, without the copy of a single value."""
    if len(values) == 1:
        return values[0].unsqueeze(0)
    return torch.stack(values)


def descend(
    slopes: Callable[[Tensor], Tensor], weights: Tensor, **settings: Any
) -> tuple[Tensor, Tensor]:
    """Eq. 8 from the weights w0 [T, n]; with the new ones, max_i <w0 - e_i, dphi/dw(w0)> [T] (0 without a step)."""
    gaps: list[Tensor] = []

    def slopes_and_gap(w: Tensor) -> Tensor:
        slope = slopes(w)
        if not gaps:
            # The duality gap of each row (`solvers.mirror.duality_gap`).
            gaps.append((w * slope).sum(1) - slope.amin(1))
        return slope

    lowest = entropic_descent(slopes_and_gap, weights, **settings)
    if not gaps:
        return lowest, weights.new_zeros(len(weights))
    return lowest, gaps[0]
