"""Local training: its settings, and the one loop over batches with its hooks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, cast

import torch
from torch import Tensor

from coterie.base.errors import cut, require
from coterie.config.registry import SAMPLERS
from coterie.config.rules import BELOW_ONE, COUNT, NOT_NEGATIVE, POSITIVE, SIZE, Rule, list_of, optional
from coterie.config.schema import Flag, InFiles, Units, options
from coterie.contract.wire import wire_type

__all__ = [
    "RATE",
    "Epochs",
    "GradientRule",
    "LocalSGD",
    "Penalty",
    "Quadratic",
    "Schedule",
    "Step",
    "Steps",
    "rate_of",
]


@wire_type
@options
class Steps:
    """Number of batches in a round.

    Attributes:
        count: Number of batches, at least 1.
    """

    count: int

    def __post_init__(self) -> None:
        require(self.count >= 1, f"Steps must be at least 1; got {self.count}")


@wire_type
@options
class Epochs:
    """Number of passes over the rows in a round.

    Attributes:
        count: Number of passes, at least 1.
    """

    count: int

    def __post_init__(self) -> None:
        require(self.count >= 1, f"Epochs must be at least 1; got {self.count}")


@wire_type
@options
class Schedule:
    """A learning rate by round, in steps or along half a cosine.

    Attributes:
        start: the rate of round 1, or of the first round after the warm-up.
        at: rounds from which on the rate is multiplied by `factor`, once for each.
        factor: > 0.
        cosine: rounds in which the rate falls from `start` to `end` along half a cosine (Loshchilov and Hutter, SGDR, Eq. 5, without
            restarts); None: it falls in steps.
        end: of the cosine, and afterwards.
        warmup: rounds before, in which the rate rises to `start` in equal steps.

    >>> [Schedule(0.1, at=(50, 75)).rate(r) for r in (49, 50, 80)]
    [0.1, 0.010000000000000002, 0.0010000000000000002]
    >>> [round(Schedule(0.1, cosine=4, warmup=1).rate(r), 3) for r in (1, 2, 3, 4, 5, 6)]
    [0.1, 0.1, 0.085, 0.05, 0.015, 0.0]
    """

    start: Annotated[float, POSITIVE]
    at: Annotated[tuple[int, ...], list_of(SIZE, "a list of rounds > 0", empty=True)] = ()
    factor: Annotated[float, POSITIVE] = 0.1
    cosine: Annotated[int | None, optional(SIZE, "in steps")] = None
    end: Annotated[float, NOT_NEGATIVE] = 0.0
    warmup: Annotated[int, COUNT] = 0

    def __post_init__(self) -> None:
        require(self.cosine is None or not self.at, "Schedule.at and Schedule.cosine exclude each other; give one")

    def rate(self, round: int) -> float:
        """The rate of round `round` (counted from 1)."""
        if self.warmup and round <= self.warmup:
            return self.start * max(1, round) / self.warmup
        if self.cosine is None:
            return self.start * self.factor ** sum(round >= r for r in self.at)
        passed = min(max(0, round - 1 - self.warmup), self.cosine) / self.cosine
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * passed)) / 2


RATE = Rule(lambda v: isinstance(v, Schedule) or POSITIVE.test(v), POSITIVE.allowed)
"""What a learning rate may be; a `Schedule` is checked when it is made."""


def rate_of(lr: float | Schedule, round: int) -> float:
    """The learning rate of round `round` (counted from 1)."""
    return lr.rate(round) if isinstance(lr, Schedule) else lr


_AMOUNT = Rule(lambda v: isinstance(v, Steps | Epochs), "Steps(n) or Epochs(n)")
_CLASSES = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
)
OPTIMISERS = {cls.__name__.lower(): cls for cls in _CLASSES}
"""Optimisers of torch by name: those that treat every number alike, so that one flat vector is trained as its tensors would be."""


def _optimiser_name(value: Any) -> str | None:
    """The name of an optimiser that is given as a name, `torch.optim.RMSprop`, or that class; None for anything else."""
    known: dict[Any, str] = {cls: name for name, cls in OPTIMISERS.items()}
    known |= {f"torch.optim.{cls.__name__}": name for name, cls in OPTIMISERS.items()} | {n: n for n in OPTIMISERS}
    return known.get(value) if isinstance(value, str | type) else None


_OPTIMISER = Rule(lambda v: _optimiser_name(v) is not None, " | ".join(OPTIMISERS), tuple(OPTIMISERS))


@wire_type
@options
class LocalSGD:
    """Settings of local training.

    Attributes:
        lr: learning rate > 0, or a `Schedule` by round.
        steps: `Steps(n)` batches or `Epochs(n)` passes over the rows in a round.
        batch_size: rows per batch; None: all rows.
        momentum: in [0, 1), of `sgd` and `rmsprop`; its buffer starts at 0 in every round.
        weight_decay: factor of the squared-norm penalty's gradient, >= 0.
        clip: largest norm of a step's gradient; None: no limit.
        optimiser: `sgd`, `adam`, `adamw`, `adadelta`, `adagrad`, `adamax`, `asgd`, `nadam`, `radam` or `rmsprop`, or that class of
            `torch.optim`, with torch's defaults. It is made anew in every round: nothing of it is kept or sent.
        sampler: chooses the rows of every step; None: epochs without replacement.
        minimum_batch: the short last batch of an epoch is left out if it has fewer rows; it never leaves out the only one.

    >>> LocalSGD(lr=-1)
    Traceback (most recent call last):
    coterie.base.errors.InputError: LocalSGD.lr must be a number > 0; got -1
    """

    lr: Annotated[float | Schedule, RATE, Flag()] = 0.1
    steps: Annotated[
        Steps | Epochs,
        _AMOUNT,
        Units({"steps": Steps, "epochs": Epochs}),
        Flag(metavar="N"),
    ] = Steps(10)
    batch_size: Annotated[int | None, optional(SIZE, "all rows"), InFiles(none="all"), Flag(metavar="N")] = 32
    momentum: Annotated[float, BELOW_ONE] = 0.0
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.0
    clip: Annotated[float | None, optional(POSITIVE)] = None
    optimiser: Annotated[str | type[torch.optim.Optimizer], _OPTIMISER] = "sgd"
    sampler: Annotated[Any, SAMPLERS] = None
    minimum_batch: Annotated[int, SIZE] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimiser", _optimiser_name(self.optimiser))
        require(
            self.sampler is None or callable(getattr(self.sampler, "rows", None)),
            f"LocalSGD.sampler must be None or a sampler, which has a method rows; got {cut(self.sampler)}",
        )
        require(
            not self.momentum or self.optimiser in ("sgd", "rmsprop"),
            f"LocalSGD.momentum belongs to sgd and rmsprop; leave it out with {self.optimiser}",
        )

    def rate(self, round: int) -> float:
        """The learning rate of round `round`."""
        return rate_of(self.lr, round)


@dataclass(frozen=True)
class Quadratic:
    """The penalty `mu / 2 * ||y - anchor||^2` on the parameters y of a local model.

    Attributes:
        mu: >= 0.
        anchor: [d + b], or [n, d + b] for one anchor per client; None: the model that training starts from.
    """

    mu: float
    anchor: Tensor | None = None

    def add_gradient(self, grad: Tensor, y: Tensor) -> None:
        """Add mu (y - anchor) to `grad` [d], in place, at the parameters y [d]; the anchor must be given."""
        grad.add_(y - cast("Tensor", self.anchor)[: len(y)], alpha=self.mu)

    def shift(self, lr: float, start: Tensor) -> Tensor:
        """What the anchor adds to y in a step of length lr, lr mu anchor; y itself shrinks by lr mu. Training began at `start`."""
        return lr * self.mu * (start if self.anchor is None else self.anchor)


class Step(NamedTuple):
    """What a penalty of the user's own sees of one local step."""

    outputs: Tensor
    inputs: Any
    labels: Tensor
    client: int
    model: torch.nn.Module


Penalty = Quadratic | Callable[[Step], Tensor]
"""A quadratic penalty, or a function of a step that returns a scalar to be added to its loss."""

GradientRule = Callable[[Callable[[Tensor, int], Tensor], Tensor], Tensor]
"""(gradient, y) -> direction [d], where `gradient(y, k)` is the gradient at y [d] on the step's k-th batch; plain: `gradient(y, 0)`.
Random layers draw the same numbers in each call with the same k."""


def make_optimiser(local: LocalSGD, head: Tensor, lr: float) -> torch.optim.Optimizer | None:
    """The optimiser of one local training; None for plain SGD, which needs no object."""
    if local.optimiser == "sgd" and not local.momentum:
        return None
    further = {"momentum": local.momentum} if local.momentum else {}
    optimiser: Any = OPTIMISERS[cast("str", local.optimiser)]  # each takes these
    return cast("torch.optim.Optimizer", optimiser([head], lr, weight_decay=local.weight_decay, **further))
