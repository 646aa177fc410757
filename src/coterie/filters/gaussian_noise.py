"""Gaussian noise on what clients send, to see what it would cost to hide an update in it.

Paper: H. B. McMahan, D. Ramage, K. Talwar, L. Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018; noise at
each client in place of the server ("local" noise).

Symbols: sent = delta_k + N(0, sigma^2 I_d).

**In one process this simulates protection and gives none.** The noise is drawn from a stream that the seed, the round, the method, the
field and the client's name determine, so that runs repeat to the last bit; whoever knows the seed can subtract it. At a site whose plan
says `secret = true` it is drawn under a key that stays there (`sites.secret_noise`), and nobody else can. Nothing is accounted; no
epsilon is claimed.

Laws (tests/contract/test_privacy_filters.py): noise has the deviation that is asked for; it is another in each round and at each
client, and the same on any engine and after a resume.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from coterie.base.rng import normal
from coterie.config.rules import POSITIVE
from coterie.config.schema import options, wire_type
from coterie.contract.filters import Filter, Passage
from coterie.contract.replies import VECTORS


@wire_type
@options
class GaussianNoise(Filter):
    """Add N(0, sigma^2) to each parameter of updates and gradients. In one process it simulates protection: the seed tells the noise.

    With `Clip` beside it, which runs first, sigma is z C for a noise multiplier z.

    Attributes:
        sigma: standard deviation of the noise in each parameter, > 0.
        secret: whether sites draw it under keys of their own. In one process nothing changes: there is nobody to hide it from.
        metric_noise: beside secret noise, deviation of that of each loss, metric and difference that a site tells, in units of what
            one row can move it.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.randn(9, 400), torch.ones(9)) for _ in range(2)], task="regression")
    >>> local = ct.LocalSGD(lr=1e-9, batch_size=None, steps=ct.Steps(1))
    >>> model = torch.nn.Linear(400, 1, bias=False)
    >>> run = ct.fit(ct.FedAvg(local), clients, model, 1, filters=[ct.GaussianNoise(2.0)])
    >>> round(float((run.x - model.weight.detach().flatten()).std()))  # of the mean of two: sigma / sqrt(2)
    1
    """

    stage: ClassVar[str] = "noise"
    kinds: ClassVar[tuple[str, ...]] = VECTORS

    sigma: Annotated[float, POSITIVE] = 1.0
    secret: bool = False
    metric_noise: Annotated[float, POSITIVE] = 1.0

    def apply(self, rows: Tensor, passage: Passage) -> Tensor:
        """Rows [n, ..., d] with the noise of each client's own stream."""
        return rows + self.sigma * normal(rows, passage.rngs("noise"))
