"""Top-k with error feedback: of each update the entries of largest absolute value are sent, and the rest is added to the next one.

Papers: S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018 (Algorithm 1); S. P. Karimireddy,
Q. Rebjock, S. U. Stich, M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019 (Algorithm 2).

Symbols: p_k = delta_k + e_k, sent = the k entries of p_k of largest absolute value, e_k = p_k - sent: what client k keeps until its
next update of the same field. k = the share of the d parameters, at least one of them.

A client that takes part in few rounds keeps its rest for long, and adds it when it is asked again. One that loses its memory begins
with a rest of 0: what it had not sent is gone, and nothing else happens. What the server refuses counts as sent.

Laws (tests/contract/test_top_k.py): a share of 1 is not a filter; what was sent and what is kept are together all updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from coterie.config.rules import SHARE
from coterie.config.schema import options, wire_type
from coterie.contract.filters import ErrorFeedback


@wire_type
@options
class TopK(ErrorFeedback):
    """Send the largest entries of each update with their positions, and add what is left out to the next one.

    An entry takes its own bytes and those of its position: 2 up to 32768 parameters, else 4. So a share of .01 of float32 updates is
    2 % (1.5 %) of their bytes. Gradients and everything that is no update are sent whole.

    Attributes:
        share: share of the parameters that is sent of each update, in (0, 1], rounded down to at least one entry.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.randn(30, 100), torch.ones(30)) for _ in range(2)], task="regression")
    >>> model = torch.nn.Linear(100, 1, bias=False)
    >>> runs = [ct.fit(ct.FedAvg(), clients, model, 3, filters=filters) for filters in ([], [ct.TopK(0.1)])]
    >>> [max(ask.bytes_up for ask in run.asks if "update" in ask.task) for run in runs]  # 8 bytes say how many rows a client has
    [408, 68]
    """

    packs = True

    share: Annotated[float, SHARE] = 0.01

    def nearest(self, rows: Tensor) -> Tensor:
        """The largest entries, zeros elsewhere."""
        largest = self._largest(rows)
        return torch.zeros_like(rows).scatter_(-1, largest, rows.gather(-1, largest))

    def pack(self, rows: Tensor) -> dict[str, Tensor]:
        """Positions and values of the largest entries [n, ..., k]."""
        largest = self._largest(rows)
        narrow = torch.int16 if rows.shape[-1] <= 1 << 15 else torch.int32
        return {"positions": largest.to(narrow), "values": rows.gather(-1, largest)}

    def unpack(self, parts: Mapping[str, Tensor], dim: int) -> Tensor:
        """The update [n, ..., dim]. Raises `ValueError` for another number of entries."""
        positions, values = parts["positions"], parts["values"]
        if positions.shape != values.shape or values.shape[-1] != self._count(dim):
            raise ValueError(
                f"{list(values.shape)} values at {list(positions.shape)} positions, not {self._count(dim)} of {dim}"
            )
        dense = values.new_zeros(*values.shape[:-1], dim)
        return dense.scatter_(-1, positions.to(values.device, torch.int64), values)

    def _largest(self, rows: Tensor) -> Tensor:
        return (
            rows.abs()
            .topk(self._count(rows.shape[-1]), dim=-1)
            .indices.sort(dim=-1)
            .values
        )

    def _count(self, dim: int) -> int:
        return max(1, int(self.share * dim))
