r"""FedAMP: clients train near a mixture of models in which those like their own count more.

Paper: Y. Huang, L. Chu, Z. Zhou, L. Wang, J. Liu, J. Pei, Y. Zhang, "Personalized Cross-Silo Federated Learning on Non-IID
Data", AAAI 2021, Algorithm 1.

Optimises: the sum of the clients' losses, plus a growing but bounded function of the distance of each two models.
Sends: d up, d down (attentive_update).
Shows: a mixture of other clients' models, in which a single one can weigh much.
Memory: none.
Use: each client wants a model of its own, and those with similar data should find each other.
Avoid: the scale of distances is not known: `sigma` must be tuned to it.
Formula: u_i = \Bigl( 1 - \sum_{j \ne i} a_{ij} \Bigr) x_i + \sum_{j \ne i} a_{ij} x_j, \quad a_{ij} = \frac{\alpha}{\sigma}
e^{-\|x_i - x_j\|^2 / \sigma}

Symbols: x_i = w_i, u_i, a_ij = alpha_k A'(||x_i - x_j||^2) with A(s) = 1 - exp(-s / sigma), mu = lambda / alpha_k.

Client i minimises f_i(y) + mu / 2 ||y - u_i||^2 by local steps from u_i, and sends y - u_i; then x_i = y.

Differences from the paper: local steps as `local` says in place of an exact minimum; mu is a setting of its own. alpha is by
default sigma / n, with which equal models all count alike. Mixtures are of the clients that replied in the round; the others
keep theirs. Distances are of parameters, buffers are mixed.

Laws:
- equal models are not changed by mixing, and far ones are left alone:
  tests/methods/test_fedamp.py::test_equal_models_stay_and_far_ones_are_left_alone
- a sigma so small that no client is near, without a pull, is training alone:
  tests/methods/test_fedamp.py::test_with_nobody_near_and_no_pull_it_is_training_alone
- a sigma so large that all are near is FedAvg of equal clients:
  tests/methods/test_fedamp.py::test_with_everybody_near_it_is_uniform_averaging
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.compute.cohort import Cohort
from coterie.compute.step_hooks import Quadratic
from coterie.compute.tasks import OwnUpdate
from coterie.config.local import LocalSGD
from coterie.config.rules import NOT_NEGATIVE, POSITIVE, optional
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import ModelOfEach, task
from coterie.contract.wire import PerClient


@task
def attentive_update(
    cohort: Cohort, *, u: ModelOfEach, local: LocalSGD, mu: float
) -> OwnUpdate:
    """Local training from the mixture u [n, d + b], with a pull back to it."""
    penalty = Quadratic(mu) if mu else None
    return OwnUpdate(cohort.updates(u, local, penalty=penalty))


def attention(x: Tensor, alpha: float, sigma: float) -> Tensor:
    """Weights [n, n] of the models x [n, d] in the mixture of each, float64; rows have sum 1.

    >>> attention(torch.tensor([[0.0], [0.0], [99.0]]), alpha=0.25, sigma=1.0).tolist()
    [[0.75, 0.25, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]
    """
    x = x.double().cpu()
    squares = torch.stack([(x - model).square().sum(1) for model in x])
    weights = alpha / sigma * torch.exp(-squares / sigma)
    return weights + torch.diag(1 - weights.sum(1))  # what is left is the own model's


class State(NamedTuple):
    """Names of all N clients, their models and the mixtures near which they train next, both [N, d + b]."""

    names: tuple[str, ...]
    x: Tensor
    u: Tensor


@options
class FedAMP(Method[State]):
    """Give each client a mixture of models, by attention to those near its own, to train near to.

    Attributes:
        local: settings of local training.
        sigma: > 0: the squared distance of models beyond which they hardly count for each other (A of the paper).
        alpha: > 0: the step of the mixtures (alpha_k); (n - 1) alpha <= sigma, so that no weight is negative; None: sigma / n.
        mu: >= 0: weight lambda / alpha_k of the pull back to the mixture.

    >>> import coterie as ct, torch
    >>> centres = {"a": 0.0, "b": 0.4, "c": 9.0}
    >>> clients = ct.data.from_tensors({k: (torch.ones(30, 1), torch.full((30,), v)) for k, v in centres.items()})
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.FedAMP(local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=80)
    >>> {name: round(float(x), 1) for name, x in run.models.items()}  # a and b meet, c is far
    {'a': 0.1, 'b': 0.3, 'c': 9.0}
    """

    local: LocalSGD = LocalSGD()
    sigma: Annotated[float, POSITIVE] = 1.0
    alpha: Annotated[float | None, optional(POSITIVE, "sigma / n")] = None
    mu: Annotated[float, NOT_NEGATIVE] = 0.1

    needs = "pairs"
    tasks = (attentive_update,)

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for steps of the mixtures that could make weights negative."""
        n = len(everyone)
        if self.alpha is not None and (n - 1) * self.alpha > self.sigma:
            raise InputError(
                f"FedAMP.alpha = {self.alpha:g} is over sigma / (n - 1) = {self.sigma / (n - 1):g} for {n} clients, which "
                "could make weights negative; lower it"
            )

    def init(self, x: Tensor, federation: Federation) -> State:
        """All clients start from x."""
        everyone = federation.everyone
        self.check(everyone)
        return State(everyone, x.repeat(len(everyone), 1), x.repeat(len(everyone), 1))

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        attentive_models = PerClient(state.u[federation.positions(federation.clients)])
        replies = federation.ask(
            federation.clients,
            attentive_update,
            u=attentive_models,
            local=self.local,
            mu=self.mu,
        )
        positions = federation.positions(replies.clients)
        trained = state.u[positions] + replies.delta
        alpha = self.alpha
        if alpha is None:
            alpha = self.sigma / len(federation.everyone)
        weights = attention(trained[:, : federation.dim], alpha, self.sigma)
        mixed = weights.to(trained) @ trained
        log = {
            name: replies.by_client(row)
            for name, row in zip(replies.clients, weights, strict=True)
        }
        x, u = state.x.clone(), state.u.clone()
        x[positions], u[positions] = trained, mixed
        return State(state.names, x, u), {"weights": log}

    def models(self, state: State) -> dict[str, Tensor]:
        """A model for each client."""
        return dict(zip(state.names, state.x, strict=True))

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return 4 * clients + 3 * per_round
