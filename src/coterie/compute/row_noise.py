"""Steps on all rows of a client whose sum of clipped row gradients has noise: differentially private local training.

M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, Algorithm 1, with lots of all rows: nothing is sampled, so a step
is a plain Gaussian event, of mu = 1 / noise_multiplier.

The sum plus noise is rounded to a grid before anything else is made of it. Low bits of a float tell which numbers were added
(I. Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS 2012); what follows is arithmetic on
the grid's points.

In a sum behind masks each client adds a part of the noise, as integers (`NoisyGrid`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError, require
from coterie.compute.cohort_rows import Batch, CohortRows
from coterie.compute.discrete_gaussian import DrawWords, discrete_gaussian
from coterie.compute.row_gradients import clipped_sums
from coterie.compute.workspace import Workspace
from coterie.config.row_noise import RowNoise
from coterie.contract.fixed_point import NOISE_BITS, NoisyGrid

FINENESS = 10
"""The grid has a step of sigma / 2^FINENESS at most: rounding adds less than 1e-7 to the variance."""


def to_grid(values: Tensor, sigma: float) -> Tensor:
    """Return float64 values rounded to multiples of the power of two below sigma / 2^FINENESS, all of which a float holds exactly.

    >>> to_grid(torch.tensor([1.0004], dtype=torch.float64), 1.0).item()
    1.0
    """
    step = 2.0 ** (math.floor(math.log2(sigma)) - FINENESS)
    return (values / step).round_().mul_(step)


def with_noise(
    workspace: Workspace,
    total: Tensor,
    sigma: float,
    said: Callable[[Tensor], bytes],
    simulated: torch.Generator,
) -> Tensor:
    """Return a sum [k], float64, with normal noise of this deviation, on its grid.

    Args:
        workspace: Of the client; under its key the noise follows from what is said, so that the same is told again with the same noise.
        total: The sum.
        sigma: > 0.
        said: All that the client says, the sum before noise among it, as bytes.
        simulated: Where there is no key, the noise is drawn from this stream, which is public and hides nothing.
    """
    count = len(total)
    if workspace.secret_normal is None:
        normal = torch.randn(count, generator=simulated, dtype=torch.float64)
    else:
        normal = torch.from_numpy(workspace.secret_normal(said(total), count))
    noisy = torch.add(total, normal.to(total.device), alpha=sigma)
    return to_grid(noisy, sigma)


class PrivateRows:
    """All training rows of a client, and the noisy mean of their clipped gradients.

    Args:
        cohort: The clients.
        client: Position of the client.
        noise: Bound and noise.
        purpose: Names of the random stream of this training.
    """

    def __init__(
        self, cohort: CohortRows, client: int, noise: RowNoise, *purpose: str | int
    ) -> None:
        self._cohort, self._noise = cohort, noise
        self._stream = cohort.rng(client, "row noise").child(*purpose)
        self._simulated = self._stream.generator()
        numbers = np.arange(cohort.size(client), dtype=np.int64)
        cohort.require_enough(client, numbers)
        self._batch = cohort.training_rows(client, numbers)
        self._rows = len(self._batch[1])
        self._sums = clipped_sums(cohort.workspace, *self._batch, noise.clip)

    def steps(self, count: int) -> Iterator[Batch]:
        """Yield the rows once for each step."""
        for _ in range(count):
            self._cohort.spent["row_gradients"] += self._rows
            yield self._batch

    def gradient(self) -> Tensor:
        """Return the noisy mean of the clipped gradients at the loaded model [d]."""
        noise, workspace = self._noise, self._cohort.workspace
        total = self._clipped_sum()
        if noise.noise_multiplier and noise.clip is not None:
            sigma = noise.noise_multiplier * noise.clip
            said, simulated = self._step_in_bytes, self._simulated
            total = with_noise(workspace, total, sigma, said, simulated)
        return (total / self._rows).to(workspace.layout.dtype)

    def words(self, parties: int, factor: float) -> Tensor:
        """Return what this client adds to a sum behind masks at the loaded model: integers [d], int64, with its part of the noise.

        Args:
            parties: Clients whose noise makes that of the sum.
            factor: In [0, 1], of the sum before noise.
        """
        total = self._clipped_sum()
        grid = NoisyGrid(self._noise, parties, len(total))
        draw = self._source(total, repr((parties, factor)))
        drawn = discrete_gaussian(len(total), NOISE_BITS, draw)
        return grid.encode(factor * total) + torch.from_numpy(drawn).to(total.device)

    def _clipped_sum(self) -> Tensor:
        """The sum of clipped gradients at the loaded model, float64 [d]."""
        return self._sums().double()

    def _source(self, total: Tensor, settings: str) -> DrawWords:
        """Random words for the noise of a sum; under a key they follow from all that the step says, and from these settings."""
        workspace = self._cohort.workspace
        if workspace.secret_words is not None:
            return workspace.secret_words(
                self._step_in_bytes(total) + settings.encode()
            )
        generator = np.random.default_rng(self._stream.seed())

        def draw(count: int) -> NDArray[np.uint64]:
            return generator.integers(0, 2**64, count, dtype=np.uint64)

        return draw

    def _step_in_bytes(self, total: Tensor) -> bytes:
        """All that a step says: noise, rows, model, and the sum of gradients before noise."""
        workspace = self._cohort.workspace
        settings = repr((self._noise, self._rows, workspace.layout)).encode()
        model = workspace.x.cpu().numpy().tobytes()
        return settings + model + total.cpu().numpy().tobytes()


def noisy_row_sums(
    cohort: CohortRows, x: Tensor, noise: RowNoise, parties: int, factors: Tensor
) -> Tensor:
    """Return the integers [n, d] that clients add to a sum behind masks, each with a part of the noise.

    Args:
        cohort: The clients.
        x: Model [d].
        noise: Bound of a row, and the noise of the sum.
        parties: Clients whose noise makes that of the sum.
        factors: Of each client's sum [n], in [0, 1].

    Raises:
        InputError: A step of this model is no sum over rows, or the noise is one that hides nothing.
    """
    workspace = cohort.workspace
    require(noise.noise_multiplier > 0, "a noisy sum needs noise_multiplier > 0")
    # Parties have keys of their own, and the stream of a simulation would hide nothing from others.
    require(
        workspace.secret_normal is None or workspace.secret_words is not None,
        "a party adds noise under its key to sums behind masks alone",
    )
    augments = cohort.clients.transform is not None
    check_private(workspace, augments=augments, hooks=False)
    words = torch.empty(
        len(cohort.names), cohort.layout.dim, dtype=torch.int64, device=workspace.device
    )
    with workspace.training():
        for i, factor in enumerate(factors.tolist()):
            workspace.load(x)
            rows = PrivateRows(cohort, i, noise, "sum")
            cohort.spent["row_gradients"] += cohort.size(i)
            words[i] = rows.words(parties, factor)
    return words


def check_private(workspace: Workspace, *, augments: bool, hooks: bool) -> None:
    """Raise `InputError` where the steps of a training are not sums over single rows.

    Args:
        workspace: Model and loss.
        augments: Whether a transform changes the rows of a step.
        hooks: Whether a step is more than a gradient of rows, a quadratic penalty and a correction.
    """
    require(
        not workspace.batch_norm and not workspace.layout.buffers,
        "LocalSGD.private takes no model with batch norm or other buffers, in which a row leaves its mark; use group norm",
    )
    require(
        not workspace.random,
        "LocalSGD.private takes no model that draws random numbers in training; leave out dropout",
    )
    if augments or hooks:
        raise InputError(
            "LocalSGD.private takes plain steps on all rows: no transform, sampler, gradient rule or penalty of your own; use fedavg"
        )
