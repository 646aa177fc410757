r"""FedNova: updates are divided by their number of local steps, so that who takes more steps does not count more.

Paper: J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020, Eqs. 6 and 7 and Section 4.

Optimises: the mean loss over all rows.
Sends: d + 2 up, d down (fednova_update).
Shows: the average.
Memory: none.
Use: clients take different numbers of local steps, as with epochs over parts of different sizes.
Avoid: all take as many: it is then FedAvg.
Formula: x \leftarrow x + \Bigl( \sum_i p_i a_i \Bigr) \sum_i p_i \frac{\delta_i}{a_i}

Symbols: x = x^(t,0), delta_i / a_i = d_i (an update, added), a_i = the norm ||a_i||_1 of the coefficients of gradients in an update,
p_i = n_i / n, steps = tau_i, momentum = rho, length = tau_eff.

a_i is the number of steps K with plain SGD, (K - r (1 - r^K) / (1 - r)) / (1 - r) with momentum r, and (1 - (1 - q)^K) / q with a
proximal term, q = lr mu; one recursion gives all of these. The length of the step is the mean of a_i, with a proximal term that of K.

Differences from the paper: momentum starts at 0 in every round. Optimisers without such coefficients (Adam) are refused. Buffers are
averaged, not divided.

Laws:
- equal numbers of steps are FedAvg:
  tests/methods/test_fednova.py::test_equal_numbers_of_steps_are_fedavg
- unequal ones no longer move the fixed point to those with many:
  tests/methods/test_fednova.py::test_the_fixed_point_hardly_depends_on_numbers_of_steps
- the recursion gives the paper's norms:
  tests/methods/test_fednova.py::test_the_recursion_gives_the_norms_of_the_paper
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.cohort import Cohort
from coterie.compute.step_hooks import Quadratic
from coterie.config.local import LocalSGD, Steps
from coterie.config.rules import NOT_NEGATIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import Form, OneModel, OneUpdate, task


def most_steps(payload: Mapping[str, Any], rows: int) -> float:
    """Return how many steps a client with so many training rows makes at most."""
    local: LocalSGD = payload["local"]
    if isinstance(local.steps, Steps):
        return local.steps.count
    rows_of_an_epoch = max(1, rows)
    if local.sampler is not None:
        rows_of_an_epoch = max(1, ceil(local.sampler.sample_ratio * rows))
    batch_size = min(local.batch_size or rows_of_an_epoch, rows_of_an_epoch)
    batches = local.steps.count * ceil(rows_of_an_epoch / batch_size)
    return ceil(batches / local.accumulate)


def _farthest(payload: Mapping[str, Any], rows: int) -> float:
    """Return how far a client goes at most."""
    return norm(int(most_steps(payload, rows)), payload["local"].momentum, 0.0)


Taken = Annotated[Tensor, "count", Form(within=(1.0, inf), most=most_steps)]
"""float64 [n]: of the local steps, which follow from the rows of a client."""
Length = Annotated[Tensor, "count", Form(within=(1e-6, inf), most=_farthest)]
"""float64 [n]: how far these steps go, in learning rates."""


class NormalisedUpdate(NamedTuple):
    """delta / a [n, d + b] (buffers whole), a [n], and the number of steps [n]."""

    delta: OneUpdate
    length: Length
    steps: Taken


@task
def fednova_update(
    cohort: Cohort, *, x: OneModel, local: LocalSGD, mu: float
) -> NormalisedUpdate:
    """Local training from x, and the update per coefficient of its gradients (Eq. 6)."""
    steps = cohort.steps(local)
    lengths = torch.tensor(
        [
            norm(k, local.momentum, local.rate(cohort.round) * mu)
            for k in steps.tolist()
        ],
        dtype=torch.float64,
    )
    penalty = Quadratic(mu) if mu else None
    delta = cohort.updates(x, local, penalty=penalty)
    delta[:, : cohort.layout.dim] /= lengths.to(delta)[:, None]
    return NormalisedUpdate(delta, lengths, steps.double())


def norm(steps: int, momentum: float, pull: float) -> float:
    """Return ||a||_1: how far so many steps with gradient 1 go, in learning rates, with momentum and a pull back to the start.

    >>> norm(3, 0.0, 0.0), norm(2, 0.5, 0.0), norm(2, 0.0, 0.5)
    (3.0, 2.5, 1.5)
    """
    weight = speed = 0.0
    for _ in range(steps):
        speed = momentum * speed + 1 - pull * weight
        weight += speed
    return weight


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@options
class FedNova(Method[State]):
    """Average updates per local step by size, and go as many steps as clients take on average.

    Attributes:
        local: settings of local training with "sgd", with or without momentum.
        mu: >= 0: weight of FedProx's proximal term in local training; not together with momentum.

    >>> import coterie as ct, torch
    >>> labels = {"a": torch.zeros(9), "b": torch.ones(45), "c": torch.zeros(36)}
    >>> clients = ct.data.from_tensors({name: (torch.ones(len(y), 1), y) for name, y in labels.items()}, task="regression")
    >>> local = ct.LocalSGD(lr=0.1, batch_size=6, steps=ct.Epochs(2))  # 2, 10 and 8 steps
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.fill_(0.5)
    >>> runs = [ct.fit(method(local), clients, model=model, rounds=60) for method in (ct.FedAvg, ct.FedNova)]
    >>> [round(float(run.x), 2) for run in runs]  # half of all rows have label 1
    [0.55, 0.43]
    """

    local: LocalSGD = LocalSGD()
    mu: Annotated[float, NOT_NEGATIVE] = 0.0

    needs = "sum"
    newcomers = True
    tasks = (fednova_update,)

    def __post_init__(self) -> None:
        if self.local.optimiser != "sgd":
            raise InputError(
                f'FedNova needs local optimiser = "sgd", got {self.local.optimiser!r}: it divides by the coefficients of gradients'
            )
        if self.mu and self.local.momentum:
            raise InputError(
                "FedNova.mu and local momentum exclude each other: the paper has no norm for both; leave one out"
            )

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        average = federation.average(
            federation.clients, fednova_update, x=state.x, local=self.local, mu=self.mu
        )  # by n_i / n
        length = float(average.weights @ (average.steps if self.mu else average.length))
        coefficients = length * average.weights / average.length  # of delta_i
        x = shift(state.x, average.delta, length, federation.dim)  # Eq. 7
        return State(x), {"weights": average.by_client(coefficients), "length": length}

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x
