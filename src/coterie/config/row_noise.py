"""The setting of noise that hides each row in local training."""

from __future__ import annotations

import math
from typing import Annotated

from coterie.base.errors import require
from coterie.base.privacy import noise_multiplier
from coterie.config.rules import NOT_NEGATIVE, POSITIVE, Rule, optional
from coterie.config.schema import InFiles, options, wire_type


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


ROW_NOISE = Rule(
    lambda v: isinstance(v, RowNoise), "a table such as { noise_multiplier = 4.0 }"
)
"""Rule of a `RowNoise`."""
