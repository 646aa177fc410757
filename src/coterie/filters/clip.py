"""Clipping: an update that is longer than a bound is shortened to it, so that no client moves the model further.

Paper: H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018, Section
2.1 ("flat clipping").

Symbols: sent = delta_k min(1, C / |delta_k|), where |.| is the length over the d parameters of all layers and C the bound.

Laws (tests/contract/test_privacy_filters.py): no update is longer than the bound; shorter ones are sent as they are.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from coterie.config.rules import POSITIVE
from coterie.config.schema import options, wire_type
from coterie.contract.filters import Filter, Passage
from coterie.contract.replies import VECTORS


@wire_type
@options
class Clip(Filter):
    """Shorten each update and gradient to a length of at most `bound`.

    A reply with several models [n, T, d] has each of them clipped alone. Buffers are sent as they are.

    Attributes:
        bound: C, the greatest length of an update over its d parameters, > 0.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(9, 1), torch.full((9,), v)) for v in (1.0, 100.0)])
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> runs = [ct.fit(ct.FedAvg(local), clients, model, 1, filters=filters) for filters in ([], [ct.Clip(0.5)])]
    >>> moved = [float((run.x - model.weight.detach()).abs()) for run in runs]
    >>> moved[0] > 10, moved[1] < 0.5001
    (True, True)
    """

    stage: ClassVar[str] = "clipping"
    kinds: ClassVar[tuple[str, ...]] = VECTORS

    bound: Annotated[float, POSITIVE] = 1.0

    def apply(self, rows: Tensor, passage: Passage) -> Tensor:
        """Rows [n, ..., d] times min(1, C / their length); NaN stays, and is refused."""
        lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        return torch.where(lengths > self.bound, rows * (self.bound / lengths), rows)
