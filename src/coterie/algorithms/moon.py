r"""MOON: local training is held near the global model's representations, and away from those of the last local model.

Paper: Q. Li, B. He, D. Song, "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1 and Eq. 3; Eqs. 19 and 20 of the ISFL
paper.

Optimises: the mean loss over all rows.
Sends: d + 1 up, d down (contrastive_update).
Memory: d numbers: its last local model.
Use: deep models learn representations on clients that differ.
Avoid: the model is linear (MOON is then FedAvg), or gradients are costly: each step also runs two reference models.
Formula: \ell = \ell_{\mathrm{task}} - \mu \log \frac{e^{\operatorname{sim}(z, z_{\mathrm{glob}}) /
\tau}}{e^{\operatorname{sim}(z, z_{\mathrm{glob}}) / \tau} + e^{\operatorname{sim}(z, z_{\mathrm{prev}}) / \tau}}

Symbols: x = w^t, y = w_i^t in training, previous = w_i^{t-1}; z, z_glob, z_prev: a row's representations by y, x and previous; mu,
temperature = tau, sim the cosine; the contrastive loss is the mean over rows of
`-log(exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)))`.

Differences from the paper: z is the input of the linear layer that is called last, found by a hook, in place of the output of a
projection head that the authors add to their models. A model with no layer before it has constant z, so that MOON is FedAvg; a
model without a linear layer is an error. Reference models run in eval mode. The client keeps its last local model; in its first round,
and if it lost it, the global model stands in, whose two terms cancel.

Laws:
- mu = 0 is FedAvg, bit by bit:
  tests/methods/test_moon.py::test_moon_without_mu_is_fedavg_bit_by_bit
- so is the first round of each client, to rounding:
  tests/methods/test_moon.py::test_moon_has_nothing_to_hold_away_from_in_its_first_round
- the penalty's slope vanishes as the temperature grows:
  tests/methods/test_moon.py::test_the_contrast_vanishes_as_the_temperature_grows
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from torch import Tensor
from torch.nn import functional

from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.cohort import Cohort
from coterie.compute.step_hooks import Step
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.rules import NOT_NEGATIVE, POSITIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import Flag, OneModel, OneUpdate, Rows, task


class ContrastiveUpdate(NamedTuple):
    """delta [n, d + b], training rows [n], and whether the client had a local model of an earlier round [n]."""

    delta: OneUpdate
    sizes: Rows
    had: Flag


@task
def contrastive_update(
    cohort: Cohort, *, x: OneModel, local: LocalSGD, mu: float, temperature: float
) -> ContrastiveUpdate:
    """Lines 12 to 22."""
    previous, rounds, _ = cohort.state("moon", x)
    had = rounds >= 0
    if not mu:
        return ContrastiveUpdate(cohort.updates(x, local), cohort.sizes, had)

    def penalty(step: Step) -> Tensor:
        z = step.features
        near_global, near_previous = (
            functional.cosine_similarity(z, step.features_of(v))
            for v in (x, previous[step.client])
        )
        # Mu times the contrastive loss (Eq. 20).
        return (
            mu * functional.softplus((near_previous - near_global) / temperature).mean()
        )

    trained = cohort.train(x, local, penalty=penalty)
    cohort.keep("moon", trained)
    return ContrastiveUpdate(trained - x, cohort.sizes, had)


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@options
class MOON(Method[State]):
    """Average by size the updates of clients whose representations are drawn to the global model's.

    Attributes:
        local: settings of local training.
        mu: weight >= 0 of the contrastive loss (Eq. 19; 1 for CIFAR-10).
        temperature: tau > 0 (Eq. 20; .5 for CIFAR-10, .2 for CIFAR-100).
        lr: server learning rate > 0.

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> clients = ct.data.from_tensors({"a": (x, (x[:, 0] > 0).long()), "b": (x, (x[:, 0] > 0.5).long())})
    >>> runs = [ct.fit(ct.MOON(mu=mu), clients, model=ct.models.MLP(), rounds=r) for r in (1, 2) for mu in (0.0, 1.0)]
    >>> [(one.x - other.x).norm().item() > 1e-4 for one, other in (runs[:2], runs[2:])]  # from the second round on
    [False, True]
    """

    local: LocalSGD = LocalSGD()
    mu: Annotated[float, NOT_NEGATIVE] = 1.0
    temperature: Annotated[float, POSITIVE] = 0.5
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0

    needs = "sum"
    newcomers = True
    keeps = 1
    tasks = (contrastive_update,)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        average = federation.average(
            federation.clients, contrastive_update, x=state.x, local=self.local, mu=self.mu,
            temperature=self.temperature,
        )  # fmt: skip
        x = shift(
            state.x, average.delta, rate_of(self.lr, federation.round), federation.dim
        )  # line 8
        return State(x), {
            "weights": average.by_client(average.weights),
            "with_previous": float(average.had.sum()),
        }

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates, and two models of each."""
        return 3 * per_round
