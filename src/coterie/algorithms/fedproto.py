r"""FedProto: each client trains a model of its own, whose features are held near the mean features of each class over all clients.

Paper: Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang, C. Zhang, "FedProto: Federated Prototype Learning across Heterogeneous
Clients", AAAI 2022, Algorithm 1, Eqs. 3 and 6 to 8.

Optimises: each client's own loss plus lam times the mean squared distance of its rows' features to the prototypes of their classes.
Sends: C k + C up, d + C k + C down (prototype_update: C classes, k features).
Shows: the mean feature of each class over all rows.
Memory: d numbers: its own model.
Use: clients hold different classes, each wants a model of its own, and nothing of a model may be told but features by class.
Avoid: labels are not classes, or the model is linear: its features are its inputs, so nothing is learnt from others.
Formula: \ell = \ell_{\mathrm{task}} + \lambda \, \| z - P_y \|^2, \quad P_j \leftarrow \sum_i \frac{n_{ij}}{\sum_l n_{lj}} c_{ij}

Symbols: z = a row's feature, the input of the last linear layer; y = its class; n_ij = rows of class j at client i, n_i = all its
rows; c_ij = their mean feature by the client's trained model in eval mode (Eq. 3); P_j = prototypes (Eq. 6); lam = lambda.

A client sends delta_ij = n_ij / n_i (c_ij - P_j) and n_ij. With weights n_i the mean of delta_ij over clients is the step of P_j times
the share of class j, by which the server divides. So filters, noise and attacks act on prototypes as on any update.

A class that no participant of a round has keeps its prototype; rows of one without a prototype are trained by their loss alone, as all
are in the first round. All clients start from the same model, and one that has lost its own begins anew, which failures name.

Differences from the paper: all models have one architecture; Eq. 6 also divides by the number of clients that have the class, which
would make no mean, and is left out; the distance is each row's and squared (Eq. 8 has that of mean features); predictions are the
model's own and not the nearest prototype (Eq. 4).

Laws:
- lam = 0 is training alone, bit by bit:
  tests/methods/test_fedproto.py::test_without_lam_it_is_training_alone_bit_by_bit
- so is every lam under a linear model, to rounding:
  tests/methods/test_fedproto.py::test_a_linear_model_learns_nothing_from_others
- prototypes are the means over all rows of a class, whoever has them:
  tests/methods/test_fedproto.py::test_prototypes_are_means_over_all_rows_of_a_class
- a class that nobody has any more keeps its prototype:
  tests/methods/test_fedproto.py::test_a_class_without_a_participant_keeps_its_prototype
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from coterie.base.errors import InputError, require
from coterie.base.layers import head_shape
from coterie.base.rng import Rng
from coterie.base.vector import Layout
from coterie.compute.cohort import Cohort
from coterie.compute.step_hooks import Penalty, Step
from coterie.compute.tasks import own_model
from coterie.config.local import LocalSGD
from coterie.config.rules import NOT_NEGATIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import Form, Holds, OneModel, task

OWN = "fedproto"
"""Name of the own model in client memory."""


def _layout(payload: Any, layout: Layout) -> Layout:
    """The layout of prototypes as a vector."""
    return Layout((("prototypes", payload["prototypes"].shape),), (), layout.dtype)


PrototypeUpdates = Annotated[
    Tensor,
    "update",
    Form(
        lambda payload, layout: (payload["prototypes"].numel(),),
        None,
        layout=_layout,
        of_model=False,
    ),
]
"""[n, C k]: a step of the prototypes, times the shares of the classes."""
ClassRows = Annotated[
    Tensor,
    "count",
    Form(
        lambda payload, layout: (len(payload["known"]),),
        torch.int64,
        (0.0, float("inf")),
    ),
]
"""int64 [n, C]: training rows of each class."""


class PrototypeUpdate(NamedTuple):
    """delta [n, C k], and training rows of each class [n, C]."""

    delta: PrototypeUpdates
    counts: ClassRows


@task
def prototype_update(
    cohort: Cohort,
    *,
    x: OneModel,
    prototypes: Annotated[Tensor, Holds(("classes", "features"))],
    known: Annotated[Tensor, Holds(("classes",), torch.bool, (0.0, 1.0))],
    local: LocalSGD,
    lam: float,
) -> PrototypeUpdate:
    """Train the own models, which begin at x, near the prototypes [C, k] of classes that are `known` [C] (Algorithm 1)."""
    classes, width = prototypes.shape
    device = cohort.workspace.device
    prototypes, known = prototypes.to(device), known.to(device)
    require(
        cohort.workspace.classes == classes,
        "fedproto takes rows with one class each as their labels; take ditto or fedper for others",
    )

    def penalty(step: Step) -> Tensor:
        z, labels = step.features, step.labels.long()
        _check_width(z, width)
        squared = (z - prototypes[labels]).square().sum(1)
        return lam * (squared * known[labels]).mean()

    chosen: Penalty | None = penalty if lam and bool(known.any()) else None
    start = cohort.state(OWN, x).or_else(x)
    models = start + cohort.updates(start, local, penalty=chosen)
    deltas, counts = [], []
    for i, features in enumerate(cohort.features(models)):
        _check_width(features, width)
        labels = cohort.labels(i).long().to(features.device)
        of_class = functional.one_hot(labels, classes).to(features)  # [rows, C]
        rows = of_class.sum(0)
        delta = of_class.T @ features - rows[:, None] * prototypes
        deltas.append(delta.flatten() / len(labels))
        counts.append(rows.long().cpu())
    cohort.keep(OWN, models)
    return PrototypeUpdate(torch.stack(deltas), torch.stack(counts))


def _check_width(features: Tensor, width: int) -> None:
    if features.shape[1] != width:
        raise InputError(
            f"the last linear layer has {width} inputs and was called with {features.shape[1]} numbers of a row; "
            "let it take one vector of each row"
        )


class State(NamedTuple):
    """The model [d + b] that clients began with, the prototypes [C, k], and which of them are known [C]."""

    x: Tensor
    prototypes: Tensor
    known: Tensor


@options
class FedProto(Method[State]):
    """Train each client's own model near the mean feature of each class over all clients.

    Attributes:
        local: settings of local training.
        lam: lambda >= 0: weight of a row's squared distance to the prototype of its class (Eq. 7).

    >>> import coterie as ct, torch
    >>> inputs = torch.randn(60, 4)
    >>> labels = (inputs[:, 0] > 0).long()
    >>> clients = ct.data.from_tensors({"a": (inputs[:30], labels[:30]), "b": (inputs[30:], labels[30:])})
    >>> apart = []
    >>> for lam in (0.0, 1.0):
    ...     run = ct.fit(ct.FedProto(lam=lam), clients, model=ct.models.MLP(), rounds=5)
    ...     apart.append(float((run.models["a"] - run.models["b"]).norm()))
    >>> apart[1] < apart[0]  # own models, of features that are alike
    True
    """

    local: LocalSGD = LocalSGD()
    lam: Annotated[float, NOT_NEGATIVE] = 1.0

    exempt: ClassVar[Mapping[str, str]] = {
        "diverges": "it refuses labels that are not classes, and the law has numbers"
    }
    needs = "sum"
    newcomers = True
    keeps = 1

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Steps of prototypes, and the models that clients keep."""
        return asks(prototype_update), asks(own_model, key=OWN)

    def check_model(self, layout: Layout) -> None:
        """Raise `InputError` for a model that does not end with a linear layer that is trained."""
        require(
            head_shape(layout) is not None,
            "fedproto takes the inputs of a model's last layer, which must be torch.nn.Linear and be trained; end it with one",
        )

    def init(self, x: Tensor, federation: Federation) -> State:
        """All clients start from x, and no prototype is known. Errors as for `check_model`."""
        self.check_model(federation.layout)
        outputs, width = head_shape(federation.layout) or (0, 0)
        classes = max(outputs, 2)  # one logit tells two
        return State(
            x, x.new_zeros(classes, width), torch.zeros(classes, dtype=torch.bool)
        )

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        average = federation.average(
            federation.clients, prototype_update, x=state.x, prototypes=state.prototypes, known=state.known, local=self.local,
            lam=self.lam,
        )  # fmt: skip
        for name in average.forgot:
            federation.report(
                name, "its own model was lost, so it begins anew", prototype_update
            )
        counts = average.counts.double()
        # A client that lies may say that it has no rows.
        rows = counts.sum(1, keepdim=True).clamp(min=1)
        class_shares = average.weights @ (counts / rows)
        has_rows = class_shares > 0
        # Division by 1 keeps the step of a class that nobody has, which is 0.
        divisors = torch.where(has_rows, class_shares, 1.0).to(state.prototypes)
        step = average.delta.view_as(state.prototypes) / divisors[:, None]
        known = state.known | has_rows.to(state.known.device)
        return State(state.x, state.prototypes + step, known), {
            "weights": average.by_client(average.weights),
            "known_classes": int(known.sum()),
        }

    def models(self, state: State) -> dict[str, Tensor]:
        """None that the server has."""
        return {}

    def personalised(
        self, state: State, federation: Federation
    ) -> dict[str, Tensor | None]:
        """The model of each client, where it is."""
        return federation.own_models(federation.everyone, own_model, x=state.x, key=OWN)

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Models of all, as they are evaluated."""
        return clients
