r"""Ditto: each client keeps a model of its own that is trained on its rows and held near the global model.

Paper: T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, Algorithm 1.

Optimises: each client's own loss plus lam / 2 times the squared distance to the global model, which FedAvg trains.
Sends: d + 1 up, d down (ditto_update).
Shows: the average.
Memory: d numbers: its own model.
Use: each client wants a model of its own, and the common one is a good guide for small clients.
Avoid: clients cannot remember anything, or training twice is too costly.
Formula: v_i \leftarrow v_i - \eta \left( \nabla f_i(v_i) + \lambda (v_i - x) \right)

Symbols: x = w^t, v = v_k, lam = lambda, delta = the update of the global model (added).

Differences from the paper: as many steps for v as for x, on the same batches. v is held near x as it was received in this round. A
client that takes part for the first time starts v at that x, and so does one that has lost its own, which log and failures name.

What is evaluated, saved and used for predictions is v. That of another party stays there.

Laws:
- lam = 0 is training alone, bit by bit, and the global model is FedAvg's for every lam:
  tests/methods/test_ditto.py::test_without_a_pull_it_is_training_alone_beside_fedavg
- one step with lam = 1 / lr starts from the global model:
  tests/methods/test_ditto.py::test_one_step_with_the_whole_pull_starts_from_the_global_model
- on quadratics the own model ends between the client's optimum and the global one:
  tests/methods/test_ditto.py::test_own_models_end_between_the_optima
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.compute.cohort import Cohort
from coterie.compute.server_averages import step_by_average
from coterie.compute.step_hooks import Quadratic
from coterie.compute.tasks import LocalUpdate, own_model, own_models
from coterie.config.local import LocalSGD, highest_rate
from coterie.config.rules import NOT_NEGATIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import OneModel, task

OWN = "ditto"
"""Name of v in client memory."""


@task
def ditto_update(
    cohort: Cohort, *, x: OneModel, local: LocalSGD, lam: float
) -> LocalUpdate:
    """Local training from x, and from v with a pull to x."""
    v = cohort.state(OWN, x).or_else(x)
    penalty = Quadratic(lam, x) if lam else None
    cohort.keep(OWN, v + cohort.updates(v, local, penalty=penalty))
    return LocalUpdate(cohort.updates(x, local), cohort.sizes)


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@options
class Ditto(Method[State]):
    """Train the global model as FedAvg does, and at each client a model of its own that is held near it.

    Attributes:
        local: settings of local training, of both models.
        lam: lambda >= 0: how strongly the own model is held near the global one; lam times the learning rate is below 2.

    >>> import coterie as ct, torch
    >>> ones = torch.ones(30, 1)
    >>> clients = ct.data.from_tensors({"a": (ones, torch.zeros(30)), "b": (ones, torch.full((30,), 4.0))})
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(5))
    >>> run = ct.fit(ct.Ditto(local, lam=2.0), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=30)
    >>> {name: round(float(x), 2) for name, x in run.models.items()}  # half the way from the own optimum, 0 or 4, to 2
    {'*': 2.0, 'a': 1.0, 'b': 3.0}
    """

    local: LocalSGD = LocalSGD()
    lam: Annotated[float, NOT_NEGATIVE] = 1.0

    def __post_init__(self) -> None:
        lr = highest_rate(self.local.lr)
        if self.local.optimiser == "sgd" and self.lam * lr >= 2:
            raise InputError(
                f"Ditto.lam times the learning rate must be below 2, or own models run away; got {self.lam:g} * {lr:g}; lower one"
            )

    exempt: ClassVar[Mapping[str, str]] = {
        "diverges": "it refuses a learning rate at which own models run away"
    }
    needs = "sum"
    newcomers = True
    keeps = 1

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates, and the models that clients keep."""
        return asks(ditto_update), asks(own_model, key=OWN)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        x, log = step_by_average(
            federation, state.x, ditto_update, local=self.local, lam=self.lam
        )
        return State(x), log

    def models(self, state: State) -> Tensor:
        """The global model."""
        return state.x

    def personalised(
        self, state: State, federation: Federation
    ) -> dict[str, Tensor | None]:
        """The model of each client, where it is; the global one for those that have none."""
        return own_models(federation, OWN, state.x)

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates and own models."""
        return 2 * per_round
