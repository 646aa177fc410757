r"""Per-FedAvg: a model from which each client gets far by one step of its own.

Paper: A. Fallah, A. Mokhtari, A. Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, Algorithm 1 and Eqs. 3, 8 and 9 (first order and Hessian free).

Optimises: the mean over clients of the loss after one step of their own.
Sends: d up, d down (meta_update).
Memory: none.
Use: each client, also a new one, will adapt the model with a step on its own rows.
Avoid: clients use the model as it is, or rows are too few for a step that helps.
Formula: \min_x \frac{1}{N} \sum_i f_i(x - \alpha \nabla f_i(x))

Symbols: x = w_k, y = w^i_{k+1,t}, alpha of the inner step, local lr = beta, batches 0, 1, 2 of a step = D, D', D'', radius = delta,
F_i(w) = f_i(w - alpha grad f_i(w)).

Differences from the paper: the product of a Hessian and the meta-gradient is taken along the meta-gradient itself with a fixed radius.
Its two gradients share batch and random layers. A step costs 2 ("fo") or 4 ("hf") gradients, which the row gradients count.

The models that clients use are x after one step at rate alpha on all their training rows in eval mode (`personalised`); this is what is
evaluated, saved and used for predictions, also for unseen clients. x itself remains under `*`. Models of other parties stay there.

Laws:
- alpha = 0 with all rows in a batch is uniform averaging:
  tests/methods/test_perfedavg.py::test_perfedavg_without_an_inner_step_is_uniform_averaging
- on a quadratic the Hessian-free step is the gradient of F_i:
  tests/methods/test_perfedavg.py::test_hessian_free_steps_on_a_quadratic_are_gradients_of_the_meta_objective
- the fixed point on quadratics is that of the mean of F_i:
  tests/methods/test_perfedavg.py::test_perfedavg_ends_where_the_mean_of_its_meta_objectives_is_least
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.cohort import Cohort
from coterie.config.local import LocalSGD
from coterie.config.rules import NOT_NEGATIVE, POSITIVE, one_of, optional
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import OneModel, OneUpdate, OwnModel, task


class MetaUpdate(NamedTuple):
    """delta [n, d + b]."""

    delta: OneUpdate


class Adapted(NamedTuple):
    """A model of its own for each client [n, d + b]."""

    model: OwnModel


@task
def meta_update(
    cohort: Cohort, *, x: OneModel, local: LocalSGD, alpha: float, radius: float | None
) -> MetaUpdate:
    """Lines 5 to 9; first order without a `radius`."""

    def direction(gradient: Callable[[Tensor, int], Tensor], y: Tensor) -> Tensor:
        meta = gradient(
            y - alpha * gradient(y, 0), 1
        )  # line 7, and the gradient in line 8
        if radius is None:
            return meta
        product = (gradient(y + radius * meta, 2) - gradient(y - radius * meta, 2)) / (
            2 * radius
        )  # Eq. 9
        return meta - alpha * product

    return MetaUpdate(cohort.updates(x, local, gradient_rule=direction))


@task
def adaptation(cohort: Cohort, *, x: OneModel, alpha: float) -> Adapted:
    """X after one step on all training rows."""
    return Adapted(
        x - alpha * cohort.without_billing().gradient(x)
    )  # using a model is not part of the method's work


class State(NamedTuple):
    """The model [d + b] that each client adapts."""

    x: Tensor


@options
class PerFedAvg(Method[State]):
    """Average updates that lower the loss after one further local step.

    Attributes:
        local: settings of local training (tau, beta, D of Algorithm 1), without a sampler.
        alpha: rate >= 0 of the inner step (line 7), and of the step by which clients adapt the model; None: that of local training.
        variant: "fo" leaves out the Hessian (first order, Eq. 8), "hf" takes it along the meta-gradient from two gradients (Eq. 9).
        radius: delta > 0 of Eq. 9, the length of the difference in meta-gradients.

    >>> import coterie as ct, torch
    >>> labels = {"a": 0.0, "b": 1.0}
    >>> clients = ct.data.from_tensors({k: (torch.ones(30, 1), torch.full((30,), v)) for k, v in labels.items()}, task="regression")
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(2))
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> run = ct.fit(ct.PerFedAvg(local=local, alpha=0.25), clients, model=model, rounds=50)
    >>> {k: round(abs(float(x)), 2) for k, x in run.models.items()}  # half the way from .5 to the own label
    {'*': 0.5, 'a': 0.25, 'b': 0.75}
    """

    local: LocalSGD = LocalSGD()
    alpha: Annotated[
        float | None, optional(NOT_NEGATIVE, "the rate of local training")
    ] = None
    variant: Annotated[str, one_of("fo", "hf")] = "fo"
    radius: Annotated[float, POSITIVE] = 1e-3

    needs = "sum"
    newcomers = True

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates, and the models that clients adapt for themselves."""
        alpha = self.local.lr if self.alpha is None else self.alpha
        return (
            asks(meta_update, alpha=alpha, radius=self._radius),
            asks(adaptation, alpha=alpha),
        )

    @property
    def _radius(self) -> float | None:
        """The radius of the differences that stand for a Hessian; None: first order alone."""
        return self.radius if self.variant == "hf" else None

    def __post_init__(self) -> None:
        if self.local.sampler is not None:
            raise InputError(
                "PerFedAvg cannot have a local sampler: a step draws two or three independent batches, and a sampler one; "
                "leave it out"
            )

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        equal = torch.ones(len(federation.clients))
        average = federation.average(
            federation.clients,
            meta_update,
            weights=equal,
            x=state.x,
            local=self.local,
            alpha=self._alpha(federation),
            radius=self._radius,
        )
        x = shift(state.x, average.delta)  # line 11
        return State(x), {"weights": average.by_client(average.weights)}

    def _alpha(self, federation: Federation) -> float:
        if self.alpha is None:
            return self.local.rate(federation.round)
        return self.alpha

    def models(self, state: State) -> Tensor:
        """The model before any client has adapted it."""
        return state.x

    def personalised(
        self, state: State, federation: Federation
    ) -> dict[str, Tensor | None]:
        """Every client's own model, also of unseen clients; a client that does not reply is left with x."""
        all_clients = (*federation.everyone, *federation.unseen)
        return federation.own_models(
            all_clients, adaptation, x=state.x, alpha=self._alpha(federation)
        )

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds, or its evaluation."""
        return max(per_round, clients)
