"""The [privacy] table of an experiment: noise that hides each row in the training of every method that serves others."""

from __future__ import annotations

import math
from typing import Annotated

from coterie.base.errors import InputError
from coterie.config.row_noise import RowNoise
from coterie.config.rules import (
    NOT_NEGATIVE,
    POSITIVE,
    Rule,
    is_number,
    list_of,
    one_of,
    optional,
)
from coterie.config.schema import options

TELLABLE = ("loss", "accuracy", "auc")
"""What may be told of an evaluation: numbers of which it is known how far one row moves them."""
_BELOW_ONE = Rule(lambda v: is_number(v) and 0 < v < 1, "a number between 0 and 1")

_EPSILON = Rule(
    lambda v: v == math.inf or POSITIVE.test(v), "a number > 0, or inf for no noise"
)


@options
class Privacy:
    """The [privacy] table: methods train by steps on all rows whose clipped gradients are summed behind noise (`RowNoise`).

    References, such as training alone, stay without noise: their models do not leave. Evaluations stay at the sites, too, but for what
    `tell` names: each number of it has the same noise multiplier as a step, and one method's are within its epsilon. One training of
    one method is covered; seeds and folds of one machine repeat an experiment and release nothing. With epsilon = inf each method has
    the noise of its own [local] table, if any.

    Attributes:
        epsilon: of one row, over all rounds of a training; neighbours are tables of which one lacks a row. Or give `noise_multiplier`.
        noise_multiplier: deviation of the noise on a sum of gradients, in units of `clip`; 0: none.
        delta: of `epsilon`; less than one in the rows of the largest client.
        clip: the largest length of a row's gradient.
        tell: what sites tell of each evaluation behind noise: "loss", and with it "accuracy" and "auc". One row moves a mean loss of
            n rows by 5 / n, since losses are clamped to 5, and the others by one in the rows of the rarest class.

    >>> Privacy(epsilon=8.0).row_noise(60)
    RowNoise(noise_multiplier=4.649354401072137, clip=1.0)
    """

    epsilon: Annotated[float | None, optional(_EPSILON, "noise_multiplier says it")] = (
        None
    )
    noise_multiplier: Annotated[
        float | None, optional(NOT_NEGATIVE, "epsilon says it")
    ] = None
    delta: Annotated[float, _BELOW_ONE] = 1e-5
    clip: Annotated[float, POSITIVE] = 1.0
    tell: Annotated[
        tuple[str, ...],
        list_of(one_of(*TELLABLE), f"a list of {', '.join(TELLABLE)}", empty=True),
    ] = ()

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise InputError(
                "Privacy takes one of epsilon and noise_multiplier, such as epsilon = 2"
            )
        if self.tell and "loss" not in self.tell:
            raise InputError(
                f"Privacy.tell without the loss is read as no evaluation; take tell = {['loss', *self.tell]}"
            )
        if len({*self.tell}) < len(self.tell):
            raise InputError("Privacy.tell names a number twice; name each once")

    def row_noise(self, events: int) -> RowNoise:
        """Return the noise of each of so many events: steps, and numbers of evaluations that are told."""
        if self.noise_multiplier is not None:
            return RowNoise(self.noise_multiplier, self.clip)
        return RowNoise.of_epsilon(
            self.epsilon or math.inf, delta=self.delta, steps=events, clip=self.clip
        )
