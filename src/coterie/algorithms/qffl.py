r"""q-FFL: clients with a higher loss count more, so that losses become more alike.

Paper: T. Li, M. Sanjabi, A. Beirami, V. Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020, Algorithm 2 (q-FedAvg).

Optimises: the sum of F_k^(q + 1), a compromise between the mean and the largest loss.
Sends: d + 1 up, d down (local_update).
Memory: none.
Use: one model serves all clients, and no client should be served much worse than the others.
Avoid: one client has a high loss because its labels are noise: it then leads the model.
Formula: x \leftarrow x + \frac{\sum_k F_k(x)^q \, L \, \delta_k}{\sum_k h_k}, \quad h_k = q F_k^{q-1} \|L
\delta_k\|^2 + L F_k^q

Symbols: x = w^t, delta_k = w_k - w^t = -Delta w_k / L (an update, added), loss = F_k(w^t) over all training rows in eval mode,
L = 1 / lr of local training, h_k = q F_k^(q-1) ||Delta w_k||^2 + L F_k^q.

Differences from the paper: participants are drawn uniformly and not by size, so that every client counts the same before q; losses are
kept above 1e-10, as in the authors' code, and divided by the largest, which changes nothing but keeps powers in range. The paper
keeps every client at the same number of plain SGD steps; momentum and clipping are possible and make L a rougher estimate, Adam is
refused, since no L follows from its rate.

Laws:
- q = 0 is uniform averaging:
  tests/methods/test_qffl.py::test_qffl_without_q_is_uniform_averaging
- equal losses and lengths are uniform averaging with a shorter step:
  tests/methods/test_qffl.py::test_equal_losses_and_lengths_make_a_shorter_uniform_step
- scaling the loss does not change the direction:
  tests/methods/test_qffl.py::test_scaling_the_loss_does_not_change_the_direction_of_qffl
"""

from __future__ import annotations

from math import inf
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.vector import move
from coterie.compute.cohort import Cohort
from coterie.config.local import LocalSGD
from coterie.config.rules import NOT_NEGATIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import Form, OneModel, OneUpdate, task

_LEAST = 1e-10


class LocalUpdate(NamedTuple):
    """delta [n, d + b] and F_k(x) >= 0 [n]: a loss of your own that may be negative has to be shifted."""

    delta: OneUpdate
    loss: Annotated[Tensor, "loss", Form(within=(0.0, inf))]


@task
def local_update(cohort: Cohort, *, x: OneModel, local: LocalSGD) -> LocalUpdate:
    """Lines 3 and 4 of Algorithm 2."""
    return LocalUpdate(cohort.updates(x, local), cohort.loss(x))


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@options
class QFFL(Method[State]):
    """Minimise the mean of F_k^(q+1) / (q + 1): the larger q, the more the worst served clients count.

    Attributes:
        local: settings of local training; L of Algorithm 2 is 1 / its learning rate.
        q: q >= 0 (Eq. 2); 0 is uniform averaging.

    >>> import coterie as ct, torch
    >>> labels = {"a": 0.0, "b": 0.0, "c": 3.0}
    >>> clients = ct.data.from_tensors({k: (torch.ones(30, 1), torch.full((30,), v)) for k, v in labels.items()})
    >>> local = ct.LocalSGD(lr=0.05, batch_size=None, steps=ct.Steps(1))
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 2.0)
    >>> runs = [ct.fit(ct.QFFL(local=local, q=q), clients, model=model, rounds=100) for q in (0.0, 1.0)]
    >>> [round(float(run.x), 2) for run in runs]  # argmin of 2 x^2 + (3 - x)^2, and of 2 x^4 + (3 - x)^4
    [1.0, 1.33]
    """

    local: LocalSGD = LocalSGD()
    q: Annotated[float, NOT_NEGATIVE] = 1.0

    newcomers = True
    tasks = (local_update,)

    @property
    def exempt(self) -> dict[str, str]:
        """Laws of `coterie.testing` that these settings do not keep, with the reason."""
        if not self.q:
            return {}
        return {"diverges": "updates are divided by what the loss has become"}

    def __post_init__(self) -> None:
        if self.local.optimiser != "sgd":
            raise InputError(
                f'QFFL needs local optimiser = "sgd", got {self.local.optimiser!r}: its L is 1 / lr, which holds for SGD alone'
            )

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        replies = federation.ask(
            federation.clients, local_update, x=state.x, local=self.local
        )
        # Numerator and denominator of line 6 are divided by scale^q, so that no power of a loss vanishes or overflows.
        scale = replies.loss.max().clamp(min=_LEAST)
        loss = replies.loss.clamp(min=_LEAST) / scale
        norms = torch.linalg.vector_norm(
            replies.delta[:, : federation.dim], dim=1, dtype=torch.float64
        )
        curved = (
            self.q
            * loss ** (self.q - 1)
            * norms.cpu() ** 2
            / (scale * self.local.rate(federation.round))
        )
        total = (curved + loss**self.q).sum()  # sum of h_k / L, line 5
        weights = loss**self.q / total  # line 6
        x = move(state.x, weights, replies.delta, dim=federation.dim)
        return State(x), {
            "weights": replies.by_client(weights),
            "step": float(weights.sum()),
        }

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x
