r"""FedAS: align the shared layers with a client's own before it trains, and weigh clients by how much they learn.

Paper: X. Yang, W. Huang, M. Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024.

Optimises: each client's own loss, over shared layers and a head of its own.
Sends: d + 1 up, d down (aligned_update); the entries of the head are 0.
Memory: d numbers: its last model.
Use: clients agree on features, take part now and then, and learn at different speed.
Avoid: the model has one layer, so that nothing is shared.
Formula: x \leftarrow x + \sum_k \frac{f_k}{\sum_j f_j} \delta_k, \quad f_k = \operatorname{tr} F_k

Symbols: x = shared layers, f_k = the trace of the client's Fisher information, here the squared norm of its mean gradient.

Differences from the paper: features are aligned row by row in steps of their own, with the squared distance; the authors' code takes
the mean feature of each class.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

import coterie as ct

Layers = str | tuple[str, ...]
"""What stays with each client: "head", "norm" or patterns of names."""


class Aligned(NamedTuple):
    """delta [n, d + b], 0 at the head, and the trace of the Fisher information [n]."""

    delta: ct.Update
    trace: torch.Tensor


@ct.task
def aligned_update(
    cohort: ct.Cohort,
    *,
    x: torch.Tensor,
    local: ct.LocalSGD,
    layers: Layers,
    weight: float,
) -> Aligned:
    """Local training from x and the client's own head, whose features stay near those of the client's last model."""
    personal = cohort.personal(layers)
    start = personal.models(x)
    last, rounds, _ = cohort.state("fedas", x)
    is_new = rounds < 0  # a client without a last model has nothing to align with

    def alignment(step: ct.Step) -> torch.Tensor:
        if is_new[step.client]:
            return 0 * step.features.sum()
        distance = step.features - step.features_of(last[step.client])
        return weight * distance.square().mean()

    aligned = cohort.train(
        start, local, penalty=alignment, moving=personal.is_shared, purpose="align"
    )
    trained = cohort.train(aligned, local)
    personal.keep(trained)
    cohort.keep("fedas", trained)
    trace = cohort.gradient(trained).double().square().sum(dim=1)
    return Aligned(personal.update(trained, start), trace)


class Own(NamedTuple):
    """The model of each client."""

    model: ct.OwnModel


@ct.task
def own_model(cohort: ct.Cohort, *, x: torch.Tensor, layers: Layers) -> Own:
    """The shared layers of x with the client's own head."""
    return Own(cohort.personal(layers).models(x))


class State(NamedTuple):
    """The model [d + b], whose head stays as it was."""

    x: torch.Tensor


@ct.options
class FedAS(ct.Method[State]):
    """Average shared layers that are aligned with each client's own, by how much clients learn.

    Attributes:
        local: settings of local training, and of the alignment before it.
        layers: "head", "norm" or patterns of names: what stays with each client.
        weight: of the distance between features, >= 0.
    """

    local: ct.LocalSGD = ct.LocalSGD()
    layers: Layers = "head"
    weight: float = 1.0

    keeps = 2

    @property
    def tasks(self) -> Sequence[Any]:
        """What clients are asked."""
        return (aligned_update, own_model)

    def init(self, x: torch.Tensor, federation: ct.Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: ct.Federation, rng: ct.Rng
    ) -> tuple[State, dict[str, Any]]:
        """One round with `federation.clients`."""
        replies = federation.ask(
            federation.clients,
            aligned_update,
            x=state.x,
            local=self.local,
            layers=self.layers,
            weight=self.weight,
        )
        shares = replies.trace / replies.trace.sum()
        step = shares.to(replies.delta) @ replies.delta
        return State(state.x + step), {"weights": replies.by_client(shares)}

    def models(self, state: State) -> torch.Tensor:
        """The shared layers with the first head, for clients that never trained."""
        return state.x

    def personalised(
        self, state: State, federation: ct.Federation
    ) -> Mapping[str, torch.Tensor | None]:
        """The model of each client."""
        clients = (*federation.everyone, *federation.unseen)
        return federation.own_models(clients, own_model, x=state.x, layers=self.layers)
