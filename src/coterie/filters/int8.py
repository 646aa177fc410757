"""Updates in 8 bits with error feedback: whole numbers from -127 to 127 times a power of two for each block of entries.

Papers: D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD", NeurIPS 2017 (a scale for each bucket); S. P. Karimireddy,
Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019 (Algorithm 2).

Symbols: p_k = delta_k + e_k; in each block of entries sent = s round(p_k / s) with the least power of two s such that |p_k| <= 127 s
there; e_k = p_k - sent: what client k keeps until its next update of the same field; |e_k| <= s / 2.

Difference from the papers: rounding is to the nearest, not at random, since error feedback mends the bias; and scales are powers
of two, so that what is sent is exact in float32 and rounding it again changes nothing.

Laws (tests/contract/test_rounding_filters.py): what was sent and what is kept are together all updates; what arrives is what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.config.rules import SIZE
from coterie.config.schema import options, wire_type
from coterie.contract.filters import ErrorFeedback

LARGEST = 127
LEAST_EXPONENT = -120
"""Of a scale: smaller ones would leave float32, so updates as small as that are kept until they have grown."""
NOT_FINITE = 1 << 14
"""In place of an exponent: a number of the block is NaN or infinite, and the server refuses the update."""


@wire_type
@options
class Int8(ErrorFeedback):
    """Send each number of an update as a whole number of 8 bits, a quarter of those of float32, and add the rest to the next update.

    Each block of entries also has a scale of 2 bytes. Gradients, buffers and everything that is no update are sent whole.

    Attributes:
        block: entries of an update that share a scale; in small blocks a large entry costs few others their digits.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.randn(30, 100), torch.ones(30)) for _ in range(2)], task="regression")
    >>> model = torch.nn.Linear(100, 1, bias=False)
    >>> runs = [ct.fit(ct.FedAvg(), clients, model, 3, filters=filters) for filters in ([], [ct.Int8()])]
    >>> [max(ask.bytes_up for ask in run.asks if "update" in ask.task) for run in runs]  # 8 bytes say how many rows a client has
    [408, 110]
    """

    packs = True

    block: Annotated[int, SIZE] = 256

    def nearest(self, rows: Tensor) -> Tensor:
        """Each number, rounded to a multiple of the scale of its block."""
        codes, exponents = self._codes(rows)
        return self._values(codes, exponents, rows, rows.shape[-1])

    def pack(self, rows: Tensor) -> dict[str, Tensor]:
        """Whole numbers [n, ..., d], the exponents of scales [n, ..., blocks], and no number that tells the type of the update."""
        codes, exponents = self._codes(rows)
        sent = codes.flatten(-2)[..., : rows.shape[-1]].contiguous()
        return {
            "codes": sent,
            "exponents": exponents,
            "like": rows[..., :0].contiguous(),
        }

    def unpack(self, parts: Mapping[str, Tensor], dim: int) -> Tensor:
        """The update [n, ..., dim]. Raises `ValueError` for another number of entries or scales."""
        codes, exponents = parts["codes"], parts["exponents"]
        blocks = -(-dim // self.block)
        if codes.shape != (*exponents.shape[:-1], dim) or exponents.shape[-1] != blocks:
            raise ValueError(
                f"{list(codes.shape)} numbers and {list(exponents.shape)} scales, not {dim} and {blocks}"
            )
        return self._values(self._in_blocks(codes), exponents, parts["like"], dim)

    def _in_blocks(self, rows: Tensor) -> Tensor:
        """[n, ..., blocks, block], the last one filled up with zeros."""
        filled = pad(rows, (0, -rows.shape[-1] % self.block))
        blocks: Tensor = filled.unflatten(-1, (-1, self.block))
        return blocks

    def _codes(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Whole numbers of 8 bits [n, ..., blocks, block], and the exponents of their scales [n, ..., blocks]."""
        blocks = self._in_blocks(rows)
        largest = blocks.abs().amax(-1)
        finite = largest.isfinite()
        mantissa, exponent = torch.frexp(largest.where(finite, 0.0))
        # `largest` is mantissa 2^exponent, and 127 / 128 2^exponent the most that a scale of 2^(exponent - 7) reaches.
        is_above = mantissa > LARGEST / (LARGEST + 1)
        exponent = (exponent - 7 + is_above).clamp(min=LEAST_EXPONENT)
        scaled = (
            blocks.where(finite[..., None], 0.0) * _power(-exponent, rows)[..., None]
        )
        codes = scaled.round().to(torch.int8)
        return codes, exponent.where(finite, NOT_FINITE).to(torch.int16)

    def _values(
        self, codes: Tensor, exponents: Tensor, like: Tensor, dim: int
    ) -> Tensor:
        """The numbers [n, ..., dim] that were rounded, of the type of `like`."""
        finite = exponents != NOT_FINITE
        scale = _power(exponents.where(finite, 0), like).where(finite, torch.nan)
        values: Tensor = (codes.to(like) * scale[..., None]).flatten(-2)
        return values[..., :dim]


def _power(exponents: Tensor, like: Tensor) -> Tensor:
    """2^exponent [...], exact, of the type of `like`."""
    # By the bits of a float64: a function of torch may round its last bit.
    bits = (exponents.to(like.device, torch.int64) + 1023) << 52
    return bits.view(torch.float64).to(like)
