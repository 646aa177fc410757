"""QSGD: send each entry of an update as one of a few levels, drawn so that the mean stays right.

Paper: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via Gradient Quantization and
Encoding", NeurIPS 2017, Section 3.1, with the largest entry in place of the length, as in their experiments (Section 5).
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

import coterie as ct
from coterie.config.rules import Rule


@ct.wire_type
@ct.options
class QSGD(ct.Filter):
    """Send entries of updates as a sign and one of `levels` steps up to the largest: one byte each.

    Attributes:
        levels: number of steps s, 1 to 127.
    """

    packs = True

    levels: Annotated[
        int,
        Rule(lambda v: type(v) is int and 1 <= v <= 127, "an int between 1 and 127"),
    ] = 127

    def apply(self, rows: Tensor, passage: ct.Passage) -> Tensor:
        """Round |v| s / max |v| up or down at random, so that v is met on average."""
        largest = rows.abs().amax(-1, keepdim=True)
        steps = torch.where(
            largest > 0, rows.abs() / largest * self.levels, torch.zeros_like(rows)
        )
        uniform = np.stack([rng.uniform(rows[0].numel()) for rng in passage.rngs()])
        up = (
            torch.from_numpy(uniform).to(rows).reshape(rows.shape)
            < steps - steps.floor()
        )
        return self._entries(rows.sign() * (steps.floor() + up), largest)

    def pack(self, rows: Tensor) -> Mapping[str, Tensor]:
        """Levels with their signs [n, ..., d], one byte each, and the largest entry [n, ..., 1]."""
        largest = rows.abs().amax(-1, keepdim=True)
        # The largest entry is at the last level, so that what was rounded tells both.
        levels = torch.where(
            largest > 0, rows / largest * self.levels, torch.zeros_like(rows)
        )
        return {"levels": levels.round().to(torch.int8), "largest": largest}

    def unpack(self, parts: Mapping[str, Tensor], dim: int) -> Tensor:
        """The entries that were packed, with the same bits."""
        if parts["levels"].shape[-1] != dim:
            raise ValueError(f"{parts['levels'].shape[-1]} levels for {dim} entries")
        return self._entries(
            parts["levels"].to(parts["largest"].dtype), parts["largest"]
        )

    def _entries(self, levels: Tensor, largest: Tensor) -> Tensor:
        return levels / self.levels * largest
