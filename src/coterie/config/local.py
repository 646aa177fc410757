"""The [local] table of an experiment: how long, how fast and on which rows a client trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from coterie.base.errors import InputError, cut, require
from coterie.config.optimisers import OPTIMISER, OwnOptimiser, optimiser_name
from coterie.config.registry import SAMPLERS
from coterie.config.row_noise import ROW_NOISE, RowNoise
from coterie.config.rules import (
    BELOW_ONE,
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SIZE,
    Rule,
    list_of,
    optional,
)
from coterie.config.schema import Flag, InFiles, Units, options, wire_type


@wire_type
@options
class Steps:
    """Number of batches in a round.

    Attributes:
        count: Number of batches, at least 1.

    >>> import coterie as ct
    >>> ct.LocalSGD(lr=0.1, steps=ct.Steps(10), batch_size=16).steps
    Steps(count=10)
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"Steps must be at least 1; got {self.count}")


@wire_type
@options
class Epochs:
    """Number of passes over the rows in a round.

    Attributes:
        count: Number of passes, at least 1.

    >>> import coterie as ct
    >>> ct.LocalSGD(lr=0.1, steps=ct.Epochs(2)).steps
    Epochs(count=2)
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"Epochs must be at least 1; got {self.count}")


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
        end: learning rate at the end of the cosine, and afterwards.
        warmup: rounds before, in which the rate rises to `start` in equal steps.

    >>> [Schedule(0.1, at=(50, 75)).rate(r) for r in (49, 50, 80)]
    [0.1, 0.010000000000000002, 0.0010000000000000002]
    >>> [round(Schedule(0.1, cosine=4, warmup=1).rate(r), 3) for r in (1, 2, 3, 4, 5, 6)]
    [0.1, 0.1, 0.085, 0.05, 0.015, 0.0]
    """

    start: Annotated[float, POSITIVE]
    at: Annotated[
        tuple[int, ...], list_of(SIZE, "a list of rounds > 0", empty=True)
    ] = ()
    factor: Annotated[float, POSITIVE] = 0.1
    cosine: Annotated[int | None, optional(SIZE, "in steps")] = None
    end: Annotated[float, NOT_NEGATIVE] = 0.0
    warmup: Annotated[int, COUNT] = 0

    def __post_init__(self) -> None:
        require(
            self.cosine is None or not self.at,
            "Schedule.at and Schedule.cosine exclude each other; give one",
        )

    def rate(self, round: int) -> float:
        """The rate of round `round` (counted from 1)."""
        if self.warmup and round <= self.warmup:
            return self.start * max(1, round) / self.warmup
        if self.cosine is None:
            steps_taken = sum(round >= step_round for step_round in self.at)
            return self.start * self.factor**steps_taken
        # Share of the cosine that has passed, from 0 in the first round behind the warm-up to 1.
        passed = min(max(0, round - 1 - self.warmup), self.cosine) / self.cosine
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * passed)) / 2


RATE = Rule(lambda v: isinstance(v, Schedule) or POSITIVE.test(v), POSITIVE.allowed)
"""The rule of a learning rate; a `Schedule` is checked when it is made."""


ServerRate = float | Schedule | Callable[[int], float]
"""A server's learning rate: a number, a `Schedule`, or a function of the round (counted from 1)."""

SERVER_RATE = Rule(lambda v: callable(v) or RATE.test(v), POSITIVE.allowed)


def rate_of(lr: ServerRate, round: int) -> float:
    """The learning rate of round `round` (counted from 1). Raises `InputError` if a function gives none."""
    if isinstance(lr, Schedule):
        return lr.rate(round)
    if not callable(lr):
        return lr
    rate = lr(round)
    if not NOT_NEGATIVE.test(rate):
        raise InputError(f"lr({round}) must be {NOT_NEGATIVE.allowed}; got {cut(rate)}")
    return rate


def highest_rate(lr: float | Schedule) -> float:
    """The largest learning rate of any round."""
    if not isinstance(lr, Schedule):
        return lr
    # A factor above 1 makes the last steps the largest.
    return max(lr.start, lr.end, lr.start * lr.factor ** len(lr.at))


_AMOUNT = Rule(lambda v: isinstance(v, Steps | Epochs), "Steps(n) or Epochs(n)")


@wire_type
@options
class LocalSGD:
    """Settings of local training.

    Attributes:
        lr: learning rate > 0, or a `Schedule` by round.
        steps: `Steps(n)` steps of a batch each, or `Epochs(n)` passes over the rows in a round.
        batch_size: rows per batch; None: all rows.
        momentum: in [0, 1), of `sgd` and `rmsprop`; its buffer starts at 0 in every round.
        weight_decay: factor of the squared-norm penalty's gradient, >= 0.
        clip: largest norm of a step's gradient; None: no limit.
        accumulate: batches of a step, whose gradients are averaged over their rows before `clip`; `Steps(n)` are n such steps.
        optimiser: `sgd`, `adam`, `adamw`, `adadelta`, `adagrad`, `adamax`, `asgd`, `nadam`, `radam` or `rmsprop`, or that class of
            `torch.optim`, with torch's defaults. In Python also a function of parameters that makes one of your own, which is given
            `lr` if it takes it: `lambda parameters: Lion(parameters, lr=1e-4)`. It trains in one process and on Ray.
        keep_state: each client keeps the state of its optimiser, tensors and numbers, from round to round; else, and where a state
            holds anything else, it begins again. No state is sent.
        sampler: chooses the rows of every step; None: epochs without replacement.
        minimum_batch: the short last batch of an epoch is left out if it has fewer rows; it never leaves out the only one.
        private: noise that hides each row (`RowNoise`), in steps on all rows; None: there is none.

    >>> import coterie as ct, torch
    >>> plain = ct.LocalSGD(optimiser=lambda parameters: torch.optim.RMSprop(parameters, lr=0.01), keep_state=True)
    >>> ct.fit(ct.FedAvg(plain), "heart-disease", rounds=2)
    <run of FedAvg: 2 rounds, seed 0, one model for all clients>
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
    batch_size: Annotated[
        int | None, optional(SIZE, "all rows"), InFiles(none="all"), Flag(metavar="N")
    ] = 32
    momentum: Annotated[float, BELOW_ONE] = 0.0
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.0
    clip: Annotated[float | None, optional(POSITIVE)] = None
    accumulate: Annotated[int, SIZE] = 1
    optimiser: Annotated[str | Callable[..., Any], OPTIMISER] = "sgd"
    keep_state: bool = False
    sampler: Annotated[Any, SAMPLERS] = None
    minimum_batch: Annotated[int, SIZE] = 1
    private: Annotated[RowNoise | None, optional(ROW_NOISE)] = None

    def __post_init__(self) -> None:
        private = self.private is not None
        if private and (self.batch_size is not None or self.sampler is not None):
            raise InputError(
                "LocalSGD.private takes steps on all rows; set batch_size = None (all in files), and no sampler"
            )
        own = isinstance(self.optimiser, OwnOptimiser)
        if not own:
            chosen: Any = optimiser_name(self.optimiser)
            own = chosen is None
            if own:
                chosen = OwnOptimiser.of(self.optimiser)  # type: ignore[arg-type]
            object.__setattr__(self, "optimiser", chosen)
        if private and (own or self.accumulate > 1):
            raise InputError(
                "LocalSGD.private computes one gradient a step; set accumulate = 1 and an optimiser by name"
            )
        if own and self.weight_decay:
            raise InputError(
                "LocalSGD.weight_decay belongs to optimisers by name; give your own one its weight decay in its function"
            )
        if self.sampler is not None and not callable(
            getattr(self.sampler, "rows", None)
        ):
            raise InputError(
                f"LocalSGD.sampler must be None or a sampler, which has a method rows; got {cut(self.sampler)}"
            )
        if self.momentum and self.optimiser not in ("sgd", "rmsprop"):
            raise InputError(
                f"LocalSGD.momentum belongs to sgd and rmsprop; leave it out with {self.optimiser}"
            )

    def rate(self, round: int) -> float:
        """The learning rate of round `round`."""
        return rate_of(self.lr, round)

    def row_gradients(self, size: int) -> int:
        """Gradients of rows that one training takes about, on so many rows.

        >>> LocalSGD(steps=Steps(5), batch_size=32).row_gradients(20), LocalSGD(steps=Epochs(2)).row_gradients(20)
        (100, 40)
        """
        if isinstance(self.steps, Epochs):
            return self.steps.count * size
        return self.steps.count * self.accumulate * min(size, self.batch_size or size)
