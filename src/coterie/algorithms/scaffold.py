r"""SCAFFOLD: control variates take the difference between clients out of their local steps.

Paper: S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, Algorithm 1 with option II.

Optimises: the uniform mean of the clients' losses.
Sends: 2 d up, 2 d down (scaffold_update).
Memory: d numbers: its control.
Use: clients differ and take many local steps, and one model should serve them all; clients answer in every round.
Avoid: clients often lose their memory or never come back, or uploads are compressed.
Formula: y_i \leftarrow y_i - \eta_l \, (g_i(y_i) - c_i + c), \quad c_i \leftarrow c_i - c + \frac{x - y_i}{K \eta_l}

Symbols: x, y_i - x = delta_i (an update, added), control = c, own = c_i, K = steps, the number of
batches that the client really took (with `Epochs` it differs between clients), lr = eta_g, N = all clients, S = those that replied.

Differences from the paper: option II alone, which costs no further gradient. The client keeps c_i and sends its
change. A client whose c_i is not the one that is in c (its process ended, or its reply was refused or came too late) starts again at
c_i = 0. Since c still holds the lost c_i / N, which would move the fixed point, all controls then start again at 0 with the next
round, as before the first. Log and failures name the client. Controls are of parameters; buffers are
averaged.

Weight decay belongs to each client's objective, so controls contain it. Momentum, Adam and clipping are refused: then
(x - y_i) / (K lr) is not a mean of gradients. All clients count the same, so a client that exists twice counts twice, and its size
does not matter.

Laws:
- the first round is uniform averaging:
  tests/methods/test_scaffold.py::test_the_first_round_of_scaffold_is_uniform_averaging
- with one step on all rows and all clients every round is FedSGD:
  tests/methods/test_scaffold.py::test_scaffold_with_one_step_on_all_rows_is_fedsgd_in_every_round
- the fixed point on quadratics is the optimum:
  tests/methods/test_scaffold.py::test_scaffold_ends_at_the_optimum_of_unlike_clients
- also after a loss of memory:
  tests/methods/test_scaffold.py::test_a_lost_control_is_named_and_does_not_move_where_scaffold_ends
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.cohort import Cohort
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import Holds, OneModel, OneUpdate, task

CONTROL = "control"
"""Name of c_i in client memory."""


class ControlledUpdate(NamedTuple):
    """delta and change of the client's control, both [n, d + b]; the change is 0 at buffers, which have no control."""

    delta: OneUpdate
    change: OneUpdate


@task
def scaffold_update(
    cohort: Cohort,
    *,
    x: OneModel,
    control: Annotated[Tensor, Holds(("parameters",))],
    local: LocalSGD,
) -> ControlledUpdate:
    """Lines 6 to 13."""
    delta = cohort.updates(
        x, local, correction=_controls(cohort, control).neg_().add_(control)
    )  # line 10
    distance = cohort.steps(local).to(control) * local.rate(cohort.round)  # K lr
    # Line 12, option II: c_i+ - c_i = -c - delta / (K lr), in one memory, as what is kept.
    change = (delta[:, : cohort.layout.dim] / distance[:, None]).neg_().sub_(control)
    cohort.keep(CONTROL, _controls(cohort, control).add_(change))
    buffers = cohort.layout.size - cohort.layout.dim
    if buffers:
        change = pad(change, (0, buffers))
    return ControlledUpdate(delta, change)


def _controls(cohort: Cohort, control: Tensor) -> Tensor:
    """The clients' own controls [n, d], read anew each time, since held through training they would be one more model."""
    memory = cohort.state(CONTROL, control.new_zeros(1).expand_as(control))
    return memory.values.mul_(memory.counted.to(control)[:, None])


class State(NamedTuple):
    """The global model [d + b] and c [d]."""

    x: Tensor
    control: Tensor


@options
class SCAFFOLD(Method[State]):
    """Average updates whose steps were corrected by the difference of global and own control variate.

    Attributes:
        local: settings of local training (K, eta_l of Algorithm 1): plain SGD without momentum and clipping.
        lr: server learning rate eta_g > 0 (line 16).

    >>> import coterie as ct, torch
    >>> ones = torch.ones(30, 1)
    >>> clients = ct.data.from_tensors([(ones, torch.zeros(30)), (2 * ones, torch.full((30,), 4.0))])
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(10))
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> runs = [ct.fit(m(local=local), clients, model=model, rounds=60) for m in (ct.FedAvg, ct.SCAFFOLD)]
    >>> [round(float(run.x), 2) for run in runs]  # x^2 + (2 x - 4)^2 is least at 1.6; FedAvg drifts to those with many steps
    [1.06, 1.6]
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0

    needs = "sum"
    keeps = 1
    tasks = (scaffold_update,)

    def __post_init__(self) -> None:
        plain = LocalSGD()
        for field in ("momentum", "clip", "optimiser"):
            value, required = getattr(self.local, field), getattr(plain, field)
            if value != required:
                raise InputError(
                    f"SCAFFOLD needs local {field} = {required!r}, got {value!r}: its controls are means of the gradients of "
                    "plain SGD steps (option II); another method can take it"
                )

    @property
    def needs_exact_uploads(self) -> bool:
        """A control that differed from the one that the server counted would move the fixed point."""
        return True

    def init(self, x: Tensor, federation: Federation) -> State:
        """All controls are 0."""
        return State(x, torch.zeros_like(x[: federation.dim]))

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        equal = torch.ones(len(federation.clients))
        average = federation.average(
            federation.clients,
            scaffold_update,
            weights=equal,
            x=state.x,
            control=state.control,
            local=self.local,
        )
        x = shift(
            state.x, average.delta, rate_of(self.lr, federation.round), federation.dim
        )  # line 16
        log: Log = {"weights": average.by_client(average.weights)}
        # c still holds the share of a lost control, which cannot be taken out: the fixed point would be another.
        if average.forgot:
            for name in average.forgot:
                federation.report(
                    name,
                    "its control was lost, so all start again at 0",
                    scaffold_update,
                )
            log["control_lost"] = dict.fromkeys(average.forgot, 1.0)
            federation.discard(CONTROL)
            return State(x, torch.zeros_like(state.control)), log
        # c is the mean over all N controls: those that were not drawn keep theirs.
        share = len(average) / len(federation.everyone)
        control = state.control + share * average.change[: federation.dim]  # line 17
        log["control_norm"] = float(control.norm())
        return State(x, control), log

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates, changes and controls."""
        return 3 * per_round
