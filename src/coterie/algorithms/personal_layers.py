r"""FedPer, FedRep, FedBABU, FedBN: some layers stay with each client, and only the others are averaged.

Papers: M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with Personalization Layers", 2019, arXiv
1912.00818 (FedPer); L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "Exploiting Shared Representations for Personalized Federated
Learning", ICML 2021, Algorithm 1 (FedRep); J. Oh, S. Kim, S.-Y. Yun, "FedBABU: Toward Enhanced Representation for Federated Image
Classification", ICLR 2022 (FedBABU); X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features via
Local Batch Normalization", ICLR 2021 (FedBN).

Optimises: the mean over clients of the loss of the shared layers with each client's own ones.
Sends: d_s + 1 up, d down (shared_update).
Shows: the average of the shared layers.
Memory: the personal layers, but for FedBABU, which keeps none.

Symbols: d_s numbers of the d of a model are shared; x = the model whose personal entries are those of the start; delta = the update of
the shared entries (added).

FedPer trains all layers together. FedRep takes steps on the personal layers with the shared ones fixed, and then on the shared ones.
FedBABU trains the shared layers alone below a head that stays as it was initialised, and each client tunes the whole model before it
uses it. FedBN is FedPer whose personal layers are those that normalise. Buffers go with their layer.

Differences from the papers: clients count by their rows in the average; `weights = "uniform"` counts them alike. The head is the layer
that a forward pass uses last; where the way of a forward pass depends on the rows, it is the one that the model registers last. A
client that takes part for the first time starts from the model's first personal layers, and so does one that has lost its own, which
log and failures name. All phases of a round draw the same batches. A client tunes FedBABU's model whenever it uses it; these row
gradients count once, before the first round, so that they depend on no setting of evaluation.

What is evaluated, saved and used for predictions is what a client puts together. That of another party stays there.

Laws:
- a layer with one personal bias: biases become the clients' own, and the weight is the mean's:
  tests/methods/test_personal_layers.py::test_a_personal_bias_is_each_clients_own_and_the_weight_is_shared
- FedRep without steps on the head never moves it:
  tests/methods/test_personal_layers.py::test_without_steps_on_the_head_it_stays
- one round of FedPer and FedRep by hand:
  tests/methods/test_personal_layers.py::test_a_round_by_hand
- statistics of batch norm stay with each client:
  tests/methods/test_personal_layers.py::test_statistics_stay_with_each_client
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.layers import (
    is_personal_setting,
    shared_entries,
    shared_layout,
)
from coterie.base.rng import Rng
from coterie.base.vector import Layout, shift
from coterie.compute.cohort import Cohort
from coterie.compute.tasks import OwnModel
from coterie.config.local import LocalSGD, Steps
from coterie.config.rules import COUNT, Rule, one_of
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import Form, OneModel, Rows, task

OWN = "personal-layers"
"""Name of a client's personal entries in its memory."""
PERSONAL = Rule(
    is_personal_setting,
    '"head", "norm" or a list of patterns such as ["encoder.*"]',
    ("head", "norm"),
)


def _layout(payload: Any, layout: Any) -> Any:
    return shared_layout(layout, payload["personal"], payload["norms"])


Shared = Annotated[
    Tensor,
    "update",
    Form(
        lambda payload, layout: (_layout(payload, layout).size,), None, layout=_layout
    ),
]
"""[n, d_s + b_s]: an update of the shared entries."""


class SharedUpdate(NamedTuple):
    """The update of the shared entries delta [n, d_s + b_s], and training rows [n]."""

    delta: Shared
    sizes: Rows


@task
def shared_update(
    cohort: Cohort,
    *,
    x: OneModel,
    local: LocalSGD,
    personal: Any,
    norms: str,
    head_steps: int | None,
    trains_head: bool,
) -> SharedUpdate:
    """Local training from the shared entries of x and the client's own; first on these alone for `head_steps`, if that is a number."""
    layers = cohort.personal(personal, norms=norms, key=OWN)
    shared, is_shared = layers.shared, layers.is_shared
    start = layers.models(x)
    if not trains_head:
        return SharedUpdate(
            cohort.updates(start, local, moving=is_shared)[:, shared], cohort.sizes
        )
    if head_steps is None:
        models = cohort.train(start, local)
    else:
        tuned = start
        if head_steps:
            first = replace(local, steps=Steps(head_steps))
            tuned = cohort.train(start, first, moving=~is_shared)
        models = cohort.train(tuned, local, moving=is_shared)
    layers.keep(models)
    return SharedUpdate((models - start)[:, shared], cohort.sizes)


@task
def put_together(cohort: Cohort, *, x: OneModel, personal: Any, norms: str) -> OwnModel:
    """The model that each client uses: the shared entries of x and its own."""
    return OwnModel(cohort.personal(personal, norms=norms, key=OWN).models(x))


@task
def tune_whole(
    cohort: Cohort, *, x: OneModel, local: LocalSGD, tune_steps: int
) -> OwnModel:
    """X after steps of each client on all layers, which are counted before the first round, for all later ones."""
    if not tune_steps:
        return OwnModel(x.expand(len(cohort.names), -1))
    counting = cohort
    if cohort.round != 0:
        counting = cohort.without_billing()
    return OwnModel(counting.train(x, replace(local, steps=Steps(tune_steps))))


class State(NamedTuple):
    """The model [d + b], whose personal entries stay as they were."""

    x: Tensor


@options
class _PersonalLayers(Method[State]):
    """The base of all four.

    Attributes:
        local: settings of local training.
        weights: "size": by training rows, or "uniform".
    """

    local: LocalSGD = LocalSGD()
    weights: Annotated[str, one_of("size", "uniform")] = "size"

    @property
    def _layers(self) -> dict[str, Any]:
        """The choice of personal layers, as tasks take it."""
        return {
            "personal": getattr(self, "personal", "head"),
            "norms": getattr(self, "norms", "batch"),
        }

    @property
    def _training(self) -> dict[str, Any]:
        """The training of the personal layers, as the task takes it."""
        return {"head_steps": None, "trains_head": True}

    needs = "sum"
    newcomers = True
    keeps = 1

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates of what is shared, and the models that clients put together."""
        return asks(shared_update, **self._layers, **self._training), asks(
            put_together, **self._layers
        )

    def check_model(self, layout: Layout) -> None:
        """Raise `InputError` where nothing is personal, or nothing shared."""
        shared_layout(layout, **self._layers)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x. Errors as for `check_model`."""
        self.check_model(federation.layout)
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        clients, layers = federation.clients, self._layers
        equal = torch.ones(len(clients)) if self.weights == "uniform" else None
        average = federation.average(
            clients,
            shared_update,
            weights=equal,
            x=state.x,
            local=self.local,
            **layers,
            **self._training,
        )
        for name in average.forgot:
            federation.report(
                name, "its personal layers were lost, so it begins anew", shared_update
            )
        shared, part = (
            shared_entries(federation.layout, **layers),
            shared_layout(federation.layout, **layers),
        )
        x = state.x.clone()
        x[shared] = shift(x[shared], average.delta, dim=part.dim)
        return State(x), {"weights": average.by_client(average.weights)}

    def models(self, state: State) -> Tensor:
        """The shared layers with the first personal ones."""
        return state.x

    def personalised(
        self, state: State, federation: Federation
    ) -> dict[str, Tensor | None]:
        """The model that each client puts together, where it is."""
        all_clients = (*federation.everyone, *federation.unseen)
        return federation.own_models(
            all_clients, put_together, x=state.x, **self._layers
        )

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates, and two models of each."""
        return 3 * per_round


@options
class FedPer(_PersonalLayers):
    r"""Average the shared layers; each client keeps its personal ones, and trains both together.

    Paper: M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with Personalization Layers", 2019, arXiv
    1912.00818.

    Use: clients agree on features and differ in what follows from them, such as which classes they have.
    Avoid: the model has one layer, or clients cannot remember anything.
    Formula: (x, v_i) \leftarrow (x, v_i) - \eta \nabla f_i(x, v_i), \quad x \leftarrow x + \sum_i p_i \delta_i

    Attributes:
        local: settings of local training.
        weights: "size": by training rows, or "uniform".
        personal: "head": the layer that a forward pass uses last; "norm": the layers that normalise; or patterns of names.
        norms: with "norm", "batch" for batch norm alone, or "all" for group and layer norm, too.

    >>> import coterie as ct, torch
    >>> inputs = torch.tensor([[1.0], [-1.0]]).repeat(15, 1)
    >>> clients = ct.data.from_tensors({"a": (inputs, inputs[:, 0] + 1.0), "b": (inputs, inputs[:, 0] - 1.0)})
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(5))
    >>> run = ct.fit(ct.FedPer(local, personal=("bias",)), clients, model=torch.nn.Linear(1, 1), rounds=20)
    >>> {name: [round(v, 2) for v in run.models[name].tolist()] for name in "ab"}  # one weight for both, a bias each
    {'a': [1.0, 1.0], 'b': [1.0, -1.0]}
    """

    personal: Annotated[str | tuple[str, ...], PERSONAL] = "head"
    norms: Annotated[str, one_of("batch", "all")] = "batch"


@options
class FedRep(_PersonalLayers):
    r"""Average the shared layers; each client first fits its personal ones to them, and then trains the shared ones.

    Paper: L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "Exploiting Shared Representations for Personalized Federated
    Learning", ICML 2021, Algorithm 1.

    Use: as for `fedper`, where clients can afford steps on the head alone before the body moves.
    Avoid: as for `fedper`.
    Formula: v_i \leftarrow v_i - \eta \nabla_v f_i(x, v_i), \quad \text{then} \quad x \leftarrow x - \eta \nabla_x f_i(x, v_i)

    Attributes:
        local: settings of local training of the shared layers.
        weights: "size": by training rows, or "uniform" (the paper).
        personal: "head": the layer that a forward pass uses last; "norm": the layers that normalise; or patterns of names.
        norms: with "norm", "batch" for batch norm alone, or "all" for group and layer norm, too.
        head_steps: local steps on the personal layers, the shared ones fixed; 0: they never move.

    >>> import coterie as ct, torch
    >>> inputs = torch.tensor([[1.0], [-1.0]]).repeat(15, 1)
    >>> clients = ct.data.from_tensors({"a": (inputs, inputs[:, 0] + 1.0), "b": (inputs, inputs[:, 0] - 1.0)})
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(5))
    >>> run = ct.fit(ct.FedRep(local, personal=("bias",)), clients, model=torch.nn.Linear(1, 1), rounds=20)
    >>> {name: [round(v, 2) for v in run.models[name].tolist()] for name in "ab"}
    {'a': [1.0, 1.0], 'b': [1.0, -1.0]}
    """

    personal: Annotated[str | tuple[str, ...], PERSONAL] = "head"
    norms: Annotated[str, one_of("batch", "all")] = "batch"
    head_steps: Annotated[int, COUNT] = 10

    @property
    def _training(self) -> dict[str, Any]:
        return {"head_steps": self.head_steps, "trains_head": True}


@options
class FedBABU(_PersonalLayers):
    r"""Average the body below a head that stays as it was initialised; each client then tunes the whole model for itself.

    Paper: J. Oh, S. Kim, S.-Y. Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022.

    Memory: none.
    Use: as for `fedper`, where clients cannot remember anything, or new clients come.
    Avoid: clients have too few rows to tune a head.
    Formula: x \leftarrow x - \eta \nabla_x f_i(x, v_0), \quad \text{at the end} \quad (x, v_i) \leftarrow (x, v_0) - \eta
    \nabla f_i(x, v_i)

    Attributes:
        local: settings of local training of the body, and of the tuning.
        weights: "size": by training rows, or "uniform".
        personal: "head": the layer that a forward pass uses last; or patterns of names.
        tune_steps: local steps on the whole model before a client uses it; 0: none.

    >>> import coterie as ct, torch
    >>> inputs = torch.tensor([[1.0], [-1.0]]).repeat(15, 1)
    >>> clients = ct.data.from_tensors({"a": (inputs, inputs[:, 0] + 1.0), "b": (inputs, inputs[:, 0] - 1.0)})
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(5))
    >>> run = ct.fit(ct.FedBABU(local, personal=("bias",), tune_steps=30), clients, model=torch.nn.Linear(1, 1), rounds=20)
    >>> {name: [round(v, 2) for v in run.models[name].tolist()] for name in "ab"}
    {'a': [1.0, 1.0], 'b': [1.0, -1.0]}
    """

    personal: Annotated[str | tuple[str, ...], PERSONAL] = "head"
    tune_steps: Annotated[int, COUNT] = 10

    keeps = 0

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates of the body, and the models that clients tune."""
        return asks(shared_update, **self._layers, **self._training), asks(tune_whole)

    @property
    def _training(self) -> dict[str, Any]:
        return {"head_steps": None, "trains_head": False}

    def personalised(
        self, state: State, federation: Federation
    ) -> dict[str, Tensor | None]:
        """The whole model after each client's own steps, where it is."""
        all_clients = (*federation.everyone, *federation.unseen)
        settings = {"local": self.local, "tune_steps": self.tune_steps}
        return federation.own_models(all_clients, tune_whole, x=state.x, **settings)


@options
class FedBN(_PersonalLayers):
    r"""Average all layers but those that normalise, which stay with each client, statistics included.

    Paper: X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
    Normalization", ICLR 2021.

    Use: clients measure the same things with other machines, so that features are shifted or scaled.
    Avoid: the model has no batch norm, or labels differ rather than features.
    Formula: x \leftarrow x + \sum_i p_i \delta_i \; \text{in all layers but those that normalise}

    Attributes:
        local: settings of local training.
        weights: "size": by training rows, or "uniform" (the paper).
        personal: "norm": the layers that normalise; or patterns of names, where a model normalises by modules of its own.
        norms: with "norm", "batch" for batch norm alone, or "all" for group and layer norm, too.

    >>> import coterie as ct, torch
    >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 2))
    >>> clients = ct.data.from_tensors({k: (torch.randn(40, 1) + m, torch.arange(40) % 2) for k, m in (("a", 5.0), ("b", -5.0))})
    >>> run = ct.fit(ct.FedBN(), clients, model=model, rounds=5)
    >>> [run.state_dict(name)["0.running_mean"].sign().item() for name in "ab"]  # each keeps its own
    [1.0, -1.0]
    """

    personal: Annotated[str | tuple[str, ...], PERSONAL] = "norm"
    norms: Annotated[str, one_of("batch", "all")] = "batch"
