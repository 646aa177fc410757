"""The [local] table of an experiment: how long, how fast and on which rows a client trains."""

from __future__ import annotations

import math
from typing import Annotated, Any

from coterie.base.errors import InputError, cut, require
from coterie.base.privacy import noise_multiplier
from coterie.config.registry import SAMPLERS
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
            return self.start * self.factor ** sum(round >= r for r in self.at)
        passed = min(max(0, round - 1 - self.warmup), self.cosine) / self.cosine
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * passed)) / 2


RATE = Rule(lambda v: isinstance(v, Schedule) or POSITIVE.test(v), POSITIVE.allowed)
"""The rule of a learning rate; a `Schedule` is checked when it is made."""


def rate_of(lr: float | Schedule, round: int) -> float:
    """The learning rate of round `round` (counted from 1)."""
    return lr.rate(round) if isinstance(lr, Schedule) else lr


def highest_rate(lr: float | Schedule) -> float:
    """The largest learning rate of any round."""
    return (
        max(lr.start, lr.end, lr.start * lr.factor ** len(lr.at))
        if isinstance(lr, Schedule)
        else lr
    )


_AMOUNT = Rule(lambda v: isinstance(v, Steps | Epochs), "Steps(n) or Epochs(n)")
_ROW_NOISE = Rule(
    lambda v: isinstance(v, RowNoise), "a table such as { noise_multiplier = 4.0 }"
)
OPTIMISERS = (
    "sgd",
    "adam",
    "adamw",
    "adadelta",
    "adagrad",
    "adamax",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
)
"""Optimisers of torch by name: those that treat every number alike, so that one flat vector is trained as its tensors would be."""


def _optimiser_name(value: Any) -> str | None:
    """Return the name of an optimiser that is given as a name, `torch.optim.RMSprop`, or that class; None for anything else."""
    if isinstance(value, type):
        value = f"{value.__module__.rpartition('.')[0]}.{value.__name__}"
    if isinstance(value, str) and value.startswith("torch.optim."):
        value = value.removeprefix("torch.optim.").lower()
    return value if value in OPTIMISERS else None


_OPTIMISER = Rule(
    lambda v: _optimiser_name(v) is not None, " | ".join(OPTIMISERS), OPTIMISERS
)


@wire_type
@options
class RowNoise:
    """Noise in local training that hides each row: differentially private gradient descent by steps on all rows.

    Each row's gradient is scaled to a length of `clip` at most, and their sum gets normal noise of deviation `noise_multiplier`
    times `clip`. A step is then an event of mu = 1 / `noise_multiplier`, whatever is done with it. Nothing is sampled, so there is no
    amplification to claim.

    Source: M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1, with L = N.

    Attributes:
        noise_multiplier: z >= 0; 0: none, for comparison.
        clip: C > 0, the largest length of a row's gradient; None: no limit, without noise alone.

    >>> import coterie as ct
    >>> noise = ct.RowNoise.of_epsilon(8.0, delta=1e-5, steps=60)
    >>> round(noise.noise_multiplier, 4), noise.clip
    (4.6494, 1.0)
    >>> local = ct.LocalSGD(lr=0.5, steps=ct.Steps(1), batch_size=None, private=noise)
    """

    noise_multiplier: Annotated[float, NOT_NEGATIVE]
    clip: Annotated[float | None, optional(POSITIVE, "no limit"), InFiles("none")] = 1.0

    def __post_init__(self) -> None:
        require(
            self.clip is not None or not self.noise_multiplier,
            "RowNoise hides a row only behind a bound; give clip, such as 1.0",
        )

    @classmethod
    def of_epsilon(
        cls, epsilon: float, *, delta: float, steps: int, clip: float | None = 1.0
    ) -> RowNoise:
        """Return the noise with which so many steps in all are (epsilon, delta)-private; none for infinite epsilon."""
        if math.isinf(epsilon):
            return cls(0.0, clip)
        return cls(noise_multiplier(epsilon, delta, steps), clip)


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
        private: noise that hides each row (`RowNoise`), in steps on all rows; None: there is none.

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
    optimiser: Annotated[str | type[Any], _OPTIMISER] = "sgd"
    sampler: Annotated[Any, SAMPLERS] = None
    minimum_batch: Annotated[int, SIZE] = 1
    private: Annotated[RowNoise | None, optional(_ROW_NOISE)] = None

    def __post_init__(self) -> None:
        if self.private is not None and (
            self.batch_size is not None or self.sampler is not None
        ):
            raise InputError(
                "LocalSGD.private takes steps on all rows; set batch_size = None (all in files), and no sampler"
            )
        object.__setattr__(self, "optimiser", _optimiser_name(self.optimiser))
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
        return self.steps.count * min(size, self.batch_size or size)
