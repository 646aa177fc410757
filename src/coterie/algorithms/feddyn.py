r"""FedDyn: a regulariser that changes from round to round lets the optima of the clients agree with the global one.

Paper: D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021, Algorithm 1.

Optimises: the uniform mean of the clients' losses.
Sends: d up, d down (dynamic_update).
Shows: the model, which contains the mean of all clients' dual variables.
Memory: d numbers: its dual variable.
Use: clients differ and take many local steps, and one model should serve them all.
Avoid: few clients take part in each round or `alpha` cannot be tuned: the dual variables can then grow.
Formula: \delta_i = \operatorname{argmin}_y \Bigl( f_i(y) - \langle h_i, y \rangle + \frac{\alpha}{2} \|y - x\|^2
\Bigr) - x, \quad h_i \leftarrow h_i - \alpha \delta_i

Symbols: x = theta^(t-1), delta_i = theta_i - x (an update, added), dual_i = grad L_i(theta_i^(t-1)), dual = h^t, alpha, N = all
clients. Client i minimises f_i(y) - <dual_i, y> + alpha / 2 ||y - x||^2 by local steps, then dual_i <- dual_i - alpha delta_i. The
server does dual <- dual - alpha / N sum_i delta_i, and x <- x + mean_i delta_i - dual / alpha.

Differences from the paper: local steps as `local` says in place of an exact minimum; all count the same, where the authors' code
divides alpha by the relative size, and nothing is clipped. The server's dual variable is the mean of all dual_i. So where a client has
lost its own (its process ended, or its reply was refused or came too late), all start again at 0 with the next round; log and failures
name the client. Dual variables are of parameters; buffers are averaged.

Laws:
- the first round of all clients moves by twice the mean update:
  tests/methods/test_feddyn.py::test_the_first_round_moves_by_twice_the_mean_update
- the fixed point is the optimum of the uniform mean:
  tests/methods/test_feddyn.py::test_the_fixed_point_is_the_optimum_of_the_uniform_mean
- also after a loss of memory:
  tests/methods/test_feddyn.py::test_the_fixed_point_is_the_optimum_also_after_a_loss_of_memory
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.rng import Rng
from coterie.compute.cohort import Cohort
from coterie.compute.step_hooks import Quadratic
from coterie.compute.tasks import OwnUpdate
from coterie.config.local import LocalSGD
from coterie.config.rules import POSITIVE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import OneModel, task

DUAL = "dual"
"""Name of dual_i in client memory."""


@task
def dynamic_update(
    cohort: Cohort, *, x: OneModel, local: LocalSGD, alpha: float
) -> OwnUpdate:
    """Local steps on f_i(y) - <dual_i, y> + alpha / 2 ||y - x||^2, and the new dual_i."""
    memory = cohort.state(DUAL, torch.zeros_like(x[: cohort.layout.dim]))
    dual = memory.values * memory.counted.to(x)[:, None]
    delta = cohort.updates(x, local, penalty=Quadratic(alpha), correction=-dual)
    cohort.keep(DUAL, dual - alpha * delta[:, : cohort.layout.dim])
    return OwnUpdate(delta)


class State(NamedTuple):
    """The global model [d + b] and the mean of all clients' dual variables [d]."""

    x: Tensor
    dual: Tensor


@options
class FedDyn(Method[State]):
    """Average updates of regularised losses whose linear terms take the drift of local steps out of the fixed point.

    Attributes:
        local: settings of local training: how the regularised loss is minimised (the argmin of Algorithm 1).
        alpha: alpha > 0 of Algorithm 1: how strongly a client is held near the model, and how fast dual variables change.

    >>> import coterie as ct, torch
    >>> ones = torch.ones(30, 1)
    >>> clients = ct.data.from_tensors([(ones, torch.zeros(30)), (2 * ones, torch.full((30,), 4.0))])
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(10))
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> runs = [ct.fit(m, clients, model=model, rounds=60) for m in (ct.FedAvg(local), ct.FedDyn(local, alpha=1.0))]
    >>> [round(float(run.x), 2) for run in runs]  # x^2 + (2 x - 4)^2 is least at 1.6; FedAvg drifts to those with many steps
    [1.06, 1.6]
    """

    local: LocalSGD = LocalSGD()
    alpha: Annotated[float, POSITIVE] = 0.1

    needs = "sum"
    keeps = 1
    tasks = (dynamic_update,)

    @property
    def needs_exact_uploads(self) -> bool:
        """A dual variable that differed from the one that the server counted would move the fixed point."""
        return True

    def init(self, x: Tensor, federation: Federation) -> State:
        """All dual variables are 0."""
        return State(x, torch.zeros_like(x[: federation.dim]))

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        d = federation.dim
        equal = torch.ones(len(federation.clients))
        average = federation.average(
            federation.clients,
            dynamic_update,
            weights=equal,
            x=state.x,
            local=self.local,
            alpha=self.alpha,
        )
        mean, log = average.delta, Log(weights=average.by_client(average.weights))
        # The mean of the dual variables still holds the share of a lost one, which cannot be taken out.
        if average.forgot:
            for name in average.forgot:
                federation.report(
                    name,
                    "its dual variable was lost, so all start again at 0",
                    dynamic_update,
                )
            log["dual_lost"] = dict.fromkeys(average.forgot, 1.0)
            federation.discard(DUAL)
            return State(state.x + mean, torch.zeros_like(state.dual)), log
        # The mean is over all N clients: those that were not drawn keep their dual variables.
        dual = (
            state.dual - self.alpha * len(average) / len(federation.everyone) * mean[:d]
        )
        log["dual_norm"] = float(dual.norm())
        change = torch.cat([mean[:d] - dual / self.alpha, mean[d:]])
        return State(state.x + change, dual), log

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates and dual variables."""
        return 2 * per_round
