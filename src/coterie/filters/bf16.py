"""Updates in 16 bits with error feedback: a number keeps its sign, its exponent and 8 bits, and the rest is added to the next one.

Papers: D. Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019 (the format); S. P. Karimireddy, Q. Rebjock,
S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019 (Algorithm 2).

Symbols: p_k = delta_k + e_k, sent = p_k rounded to the nearest number of the format, e_k = p_k - sent: what client k keeps until its
next update of the same field; |e_k| <= 2^-8 |p_k| number by number.

Laws (tests/contract/test_rounding_filters.py): what was sent and what is kept are together all updates; what arrives is what was sent.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from coterie.config.schema import options, wire_type
from coterie.contract.filters import ErrorFeedback


@wire_type
@options
class BF16(ErrorFeedback):
    """Send each number of an update in 16 bits, half of those of float32, and add what rounding left out to the next update.

    Gradients, buffers and everything that is no update are sent whole.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.randn(30, 100), torch.ones(30)) for _ in range(2)], task="regression")
    >>> model = torch.nn.Linear(100, 1, bias=False)
    >>> runs = [ct.fit(ct.FedAvg(), clients, model, 3, filters=filters) for filters in ([], [ct.BF16()])]
    >>> [max(ask.bytes_up for ask in run.asks if "update" in ask.task) for run in runs]  # 8 bytes say how many rows a client has
    [408, 208]
    """

    packs = True

    def nearest(self, rows: Tensor) -> Tensor:
        """Each number, rounded to the format."""
        return rows.to(torch.bfloat16).to(rows)

    def pack(self, rows: Tensor) -> dict[str, Tensor]:
        """The bits of the rounded numbers [n, ..., d], and no number that tells the type of the update."""
        # As whole numbers: not every encoding of tensors has the format.
        bits = rows.to(torch.bfloat16).view(torch.int16)
        return {"bits": bits, "like": rows[..., :0].contiguous()}

    def unpack(self, parts: Mapping[str, Tensor], dim: int) -> Tensor:
        """The update [n, ..., dim]. Raises `ValueError` for another number of entries."""
        bits = parts["bits"]
        if bits.dtype != torch.int16 or bits.shape[-1] != dim:
            raise ValueError(f"{bits.dtype} {list(bits.shape)}, not {dim} numbers")
        return bits.contiguous().view(torch.bfloat16).to(parts["like"])
