r"""pFedGraph: each client averages the models of those whose models moved as its own did.

Paper: R. Ye, Z. Ni, F. Wu, S. Chen, Y. Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML 2023,
Eqs. 3 to 5 and Algorithm 1.

Optimises: each client's own loss; weights trade similarity of models for sizes.
Sends: d + 1 up, 2 d down (pfedgraph_update).
Shows: a mixture of other clients' models, in which a single one can weigh much.
Memory: none.
Use: each client wants a model of its own, and those with similar data should find each other.
Avoid: models move alike although data differ, as in the first steps of deep models.
Formula: w_i = \operatorname{argmin}_{w \in \Delta} \lambda \|w - p\|^2 - \sum_j w_j \cos(\Delta_i, \Delta_j), \quad x_i = \sum_j
w_{ij} y_j

Symbols: y_j = theta_j trained, Delta_j = y_j - the initial model, p_j = n_j / n, w = A_i, lam = alpha, pull = lambda,
m_i = sum_j w_ij y_j / ||y_j||.

The minimum is the projection of p + cos / (2 lam) on the simplex. In local training, from the second round on, `pull` times
cos(y, m_i) is taken off the loss.

Differences from the paper: the sign of that term; the authors' code adds it, which pushes models away from the mixture. The pull is
cos(y, m_i), along the mixture of directions; the code takes sum_j w_ij cos(y, y_j), which has the same direction and is ||m_i|| <= 1
times as strong, so that `pull` times ||m_i|| gives theirs. Cosines are used as they are, where the code raises those above .9 to 1.
Weights are of the clients that replied in the round; the others keep their models.

Laws:
- a large lam without a pull is FedAvg:
  tests/methods/test_pfedgraph.py::test_a_large_lam_without_a_pull_is_fedavg
- a small one is training alone:
  tests/methods/test_pfedgraph.py::test_a_small_lam_without_a_pull_is_training_alone
- weights of three clients by hand:
  tests/methods/test_pfedgraph.py::test_weights_by_hand
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from coterie.base.rng import Rng
from coterie.compute.cohort import Cohort
from coterie.compute.step_hooks import Step
from coterie.compute.tasks import LocalUpdate
from coterie.config.local import LocalSGD
from coterie.config.rules import NOT_NEGATIVE, POSITIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import ModelOfEach, task
from coterie.contract.wire import PerClient
from coterie.solvers.simplex import project


@task
def pfedgraph_update(
    cohort: Cohort,
    *,
    x: ModelOfEach,
    towards: ModelOfEach,
    local: LocalSGD,
    pull: float,
) -> LocalUpdate:
    """Local training from x [n, d + b] of f_i(y) - pull cos(y, towards); without the cosine where `towards` is 0."""
    aims = towards[:, : cohort.layout.dim].to(cohort.workspace.device)

    def penalty(step: Step) -> Tensor:
        y = torch.cat(
            [p.reshape(-1) for p in step.model.parameters() if p.requires_grad]
        )
        return -pull * functional.cosine_similarity(y, aims[step.client], dim=0)

    is_pulled = pull > 0 and bool(aims.any())
    chosen = penalty if is_pulled else None
    return LocalUpdate(cohort.updates(x, local, penalty=chosen), cohort.sizes)


def collaboration(deltas: Tensor, p: Tensor, lam: float) -> Tensor:
    """Weights [n, n] of the models of all clients in that of each, float64, from how far they moved [n, d] and their sizes [n]."""
    deltas = deltas.double().cpu()
    units = deltas / torch.linalg.vector_norm(deltas, dim=1, keepdim=True).clamp(
        min=torch.finfo(torch.float64).tiny
    )
    return torch.stack(
        [project(p / p.sum() + row / (2 * lam)) for row in units @ units.T]
    )  # Eq. 4


class State(NamedTuple):
    """Names of all N clients, the initial model [d + b], and of each its model and the direction of its pull, both [N, d + b]."""

    names: tuple[str, ...]
    start: Tensor
    x: Tensor
    towards: Tensor


@options
class PFedGraph(Method[State]):
    """Average for each client the models that moved from the start as its own did.

    Attributes:
        local: settings of local training.
        lam: > 0: how close weights stay to the shares of rows (alpha of Eq. 4); large: FedAvg, small: training alone.
        pull: >= 0: weight of the cosine with the mixture of models in local training (lambda of Eq. 5).

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> clients = ct.data.from_tensors({"a": (x, x[:, 0]), "b": (x, x[:, 0]), "c": (x, -x[:, 0])})
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.zero_()
    >>> run = ct.fit(ct.PFedGraph(), clients, model=model, rounds=1)
    >>> {k: round(w, 1) for k, w in run.weights["a"].items()}  # c goes the other way
    {'a': 0.5, 'b': 0.5, 'c': 0.0}
    """

    local: LocalSGD = LocalSGD()
    lam: Annotated[float, POSITIVE] = 0.8
    pull: Annotated[float, NOT_NEGATIVE] = 0.01

    needs = "pairs"
    tasks = (pfedgraph_update,)

    def init(self, x: Tensor, federation: Federation) -> State:
        """All clients start from x."""
        models = x.repeat(len(federation.everyone), 1)
        return State(federation.everyone, x, models, torch.zeros_like(models))

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        positions = federation.positions(federation.clients)
        start, towards = (
            PerClient(state.x[positions]),
            PerClient(state.towards[positions]),
        )
        replies = federation.ask(
            federation.clients,
            pfedgraph_update,
            x=start,
            towards=towards,
            local=self.local,
            pull=self.pull,
        )
        replied, d = federation.positions(replies.clients), federation.dim
        trained = state.x[replied] + replies.delta
        weights = collaboration((trained - state.start)[:, :d], replies.sizes, self.lam)
        shares = weights.to(trained)
        lengths = torch.linalg.vector_norm(trained[:, :d], dim=1, keepdim=True).clamp(
            min=torch.finfo(trained.dtype).tiny
        )
        # Clients are pulled by the cosine, in which a model counts by its direction and not by its length.
        x, aims = state.x.clone(), state.towards.clone()
        x[replied], aims[replied] = shares @ trained, shares @ (trained / lengths)
        log = {
            name: replies.by_client(row)
            for name, row in zip(replies.clients, weights, strict=True)
        }
        return state._replace(x=x, towards=aims), {"weights": log}

    def models(self, state: State) -> dict[str, Tensor]:
        """A model for each client."""
        return dict(zip(state.names, state.x, strict=True))

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return 4 * clients + 4 * per_round
