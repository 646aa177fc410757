r"""FedALA: each client starts a round from a mixture of the global model and its own last one, with a weight for each entry.

Paper: J. Zhang, Y. Hua, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan, "FedALA: Adaptive Local Aggregation for Personalized Federated
Learning", AAAI 2023, Algorithm 1 and Eqs. 4 and 5.

Optimises: the loss of each client's mixture, beside the average of the models that are trained from there.
Sends: d + 1 up, d down (ala_update).
Shows: the average.
Memory: two numbers for each parameter of the last layers: those of its last local model, and their weights.
Use: clients agree on features and differ in what follows from them, and nobody knows how much.
Avoid: clients cannot remember anything; or the model has one layer, all of which is then mixed.
Formula: \theta_i = x + (1 - W_i) \odot (y_i - x), \quad W_i \leftarrow \operatorname{clip}_{[0, 1]} \bigl( W_i - \eta
\nabla f_i(\theta_i) \odot (x - y_i) \bigr)

Symbols: x = Theta^(t-1), y_i = Theta_i^(t-1), theta_i = Theta-hat_i^t, W_i, eta, layers = p, sample = s, delta = y_i - x after training
(added).

The layers before the last `layers` ones start at x. A pass takes `sample` of the batches of an epoch, rounded up, and after each batch
moves W and the mixture. When a client learns W for the first time it makes passes until its last ten losses have a standard deviation
below .1, at most 100; later one pass a round.

Differences from the paper: W = 1 is x exactly (the paper writes the own model plus W times what x adds). The loss that must settle is
that of all training rows after a pass. Passes end at 100, where the authors' code may never end. A client that has lost its own model
begins anew at x, and log and failures name it.

What is evaluated, saved and used for predictions are mixtures with the newest x. Those of other parties stay with them.

Laws:
- eta = 0 and layers = 0 are FedAvg, bit by bit:
  tests/methods/test_fedala.py::test_without_learning_or_layers_it_is_fedavg
- two rounds by hand:
  tests/methods/test_fedala.py::test_two_rounds_by_hand
- only the last layers are mixed:
  tests/methods/test_fedala.py::test_the_layers_before_the_last_ones_start_at_the_average
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.layers import last_layers
from coterie.base.rng import Rng
from coterie.compute.cohort import Cohort
from coterie.compute.server_averages import step_by_average
from coterie.compute.tasks import LocalUpdate, OwnModel
from coterie.config.local import Epochs, LocalSGD
from coterie.config.rules import COUNT, NOT_NEGATIVE, SHARE, SIZE, optional
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import OneModel, task

OWN = "fedala"
"""Name in client memory of y, W, and whether W was learned: [2 k + 1] for the k parameters of the last layers."""
MOST_PASSES, LOSSES, SETTLED = 100, 10, 0.1
"""Passes of the first learning at most; over how many losses they have settled, and at which standard deviation."""


class _Mixture:
    """The weights W [k] of one client, and its mixture: a rule for gradients that moves W in place of the model."""

    def __init__(
        self, x: Tensor, entries: Tensor, saved: Tensor, eta: float = 0.0
    ) -> None:
        own_model, self.weights, learned = saved.split([len(entries), len(entries), 1])
        self.learned = bool(learned)
        self._x, self._entries, self._eta = x, entries, eta
        self._away = own_model - x[entries]

    @property
    def model(self) -> Tensor:
        """The mixture [d + b]."""
        return self._x.index_add(0, self._entries, (1 - self.weights) * self._away)

    def __call__(self, gradient: Callable[[Tensor, int], Tensor], y: Tensor) -> Tensor:
        slope = gradient(self.model[: len(y)], 0)[self._entries]
        self.weights = (self.weights + self._eta * slope * self._away).clamp(
            0, 1
        )  # Eq. 5
        return torch.zeros_like(y)

    def learn(
        self, client: Cohort, local: LocalSGD, sample: float, passes: int | None
    ) -> None:
        """Lines 6 to 9: one pass over some batches of the client, or several where it learns for the first time."""
        epoch = LocalSGD(
            steps=Epochs(1),
            batch_size=local.batch_size,
            minimum_batch=local.minimum_batch,
        )
        batches = max(1, math.ceil(sample * int(client.steps(epoch))))
        most_passes = 1
        if not self.learned:
            most_passes = MOST_PASSES if passes is None else passes
        losses: list[float] = []
        for number in range(most_passes):
            client.train(
                self.model,
                epoch,
                gradient_rule=self,
                steps=[batches],
                purpose=f"ala/{number}",
            )
            if self.learned or passes is not None:
                continue
            losses.append(float(client.loss(self.model)))
            latest = torch.tensor(losses[-LOSSES:])
            if len(latest) == LOSSES and float(latest.std(correction=0)) < SETTLED:
                break
        self.learned = True


def _mixtures(
    cohort: Cohort, x: Tensor, layers: int, eta: float = 0.0
) -> tuple[list[_Mixture], Tensor, Tensor]:
    """The mixture of each client, whether it has a model of its own [n], and which entries are mixed [k]."""
    entries = last_layers(cohort.layout, layers).to(x.device)
    start = torch.cat([x[entries], torch.ones_like(x[entries]), x.new_zeros(1)])
    mixture_state = cohort.state(OWN, start)
    return (
        [_Mixture(x, entries, row, eta) for row in mixture_state.or_else(start)],
        mixture_state.counted,
        entries,
    )


@task
def ala_update(
    cohort: Cohort,
    *,
    x: OneModel,
    local: LocalSGD,
    layers: int,
    eta: float,
    sample: float,
    passes: int | None,
) -> LocalUpdate:
    """Local training from the client's mixture of x and its last model, after the weights of the mixture have moved."""
    mixtures, has_own, entries = _mixtures(cohort, x, layers, eta)
    for i, mixture in enumerate(mixtures):
        if has_own[i] and layers:
            mixture.learn(cohort.only([i]), local, sample, passes)
    start = torch.stack([mixture.model for mixture in mixtures])
    delta = (start - x) + cohort.updates(start, local)
    weights = torch.stack([mixture.weights for mixture in mixtures])
    learned = x.new_tensor([[float(mixture.learned)] for mixture in mixtures])
    cohort.keep(OWN, torch.cat([(x + delta)[:, entries], weights, learned], dim=1))
    return LocalUpdate(delta, cohort.sizes)


@task
def ala_mixture(cohort: Cohort, *, x: OneModel, layers: int) -> OwnModel:
    """The mixture with x that each client uses; x for one that has no model of its own."""
    return OwnModel(
        torch.stack([mixture.model for mixture in _mixtures(cohort, x, layers)[0]])
    )


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@options
class FedALA(Method[State]):
    """Average models that are trained from each client's own mixture of the average and its last model.

    Attributes:
        local: settings of local training.
        eta: >= 0, the step of the weights of the mixture; 0: they stay 1, which is FedAvg.
        layers: how many of the last layers with parameters are mixed.
        sample: share in (0, 1] of the batches of an epoch in a pass.
        passes: passes when a client learns its weights for the first time; None: until its loss has settled.

    >>> import coterie as ct, torch
    >>> ones = torch.ones(30, 1)
    >>> clients = ct.data.from_tensors({"a": (ones, torch.zeros(30)), "b": (ones, torch.full((30,), 4.0))})
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(5))
    >>> run = ct.fit(ct.FedALA(local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=30)
    >>> {name: round(abs(float(x)), 1) for name, x in run.models.items()}  # each starts from its own last model
    {'*': 2.0, 'a': 0.0, 'b': 4.0}
    """

    local: LocalSGD = LocalSGD()
    eta: Annotated[float, NOT_NEGATIVE] = 1.0
    layers: Annotated[int, COUNT] = 1
    sample: Annotated[float, SHARE] = 0.8
    passes: Annotated[int | None, optional(SIZE, "until the loss has settled")] = None

    needs = "sum"
    newcomers = True
    keeps = 2
    tasks = (ala_update, ala_mixture)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        settings = {
            "layers": self.layers,
            "eta": self.eta,
            "sample": self.sample,
            "passes": self.passes,
        }
        x, log = step_by_average(
            federation, state.x, ala_update, local=self.local, **settings
        )
        return State(x), log

    def models(self, state: State) -> Tensor:
        """The global model."""
        return state.x

    def personalised(
        self, state: State, federation: Federation
    ) -> dict[str, Tensor | None]:
        """The mixture of each seen and unseen client, where it is."""
        all_clients = (*federation.everyone, *federation.unseen)
        return federation.own_models(
            all_clients, ala_mixture, x=state.x, layers=self.layers
        )

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates and mixtures."""
        return 2 * per_round
