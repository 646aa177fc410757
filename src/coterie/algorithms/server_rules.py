r"""FedAvgM, FedAdam, FedYogi, FedAdagrad: the server takes the mean update as a direction, and goes along it with a memory.

Papers: T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
2019, arXiv 1909.06335 (FedAvgM); S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan,
"Adaptive Federated Optimization", ICLR 2021, Algorithm 2 (the others).

Optimises: the mean loss over all rows.
Sends: d + 1 up, d down (local_update).
Shows: the average.
Memory: none.

Symbols: x = x_t, D = Delta_t = sum_k p_k delta_k (an update, added), m = m_t, v = v_t, lr = eta, beta, betas = (beta_1, beta_2), tau.

Differences from the papers: clients count by their rows, as in FedAvg; `weights = "uniform"` is the mean of Algorithm 2. There is no
correction of the bias (`sgd-full` has that of Kingma and Ba), v starts at tau^2, and m at 0. FedAvgM is the heavy ball, without
Nesterov's step. Buffers are statistics: they are averaged and do not pass through the rule.

Laws:
- FedAvgM without momentum is FedAvg, bit by bit:
  tests/methods/test_server_rules.py::test_fedavgm_without_momentum_is_fedavg_bit_by_bit
- the first two steps along D = 1 are those that are computed by hand:
  tests/methods/test_server_rules.py::test_two_steps_along_one_direction_by_hand
- a large tau without momentum is FedAvg with another rate:
  tests/methods/test_server_rules.py::test_a_large_tau_without_momentum_is_fedavg_with_another_rate
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.tasks import local_update
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.rules import BELOW_ONE, BETAS, Rule, is_number, one_of
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method

TAU = Rule(
    lambda v: is_number(v) and 0 < v <= 1e15, "a number > 0 and <= 1e15"
)  # float32 holds its square
_BOUNDED = {
    "diverges": "the length of a step is bounded at any learning rate of clients"
}


class State(NamedTuple):
    """The model [d + b], the momentum m [d], and the second moment v [d] of the rules that have one."""

    x: Tensor
    m: Tensor
    v: Tensor


@options
class _ServerRule(Method[State]):
    """Fields and steps of all four.

    Attributes:
        local: settings of local training.
        lr: server learning rate eta > 0.
        weights: "size": by training rows, or "uniform" (Algorithm 2 of Reddi et al.).
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 0.1
    weights: Annotated[str, one_of("size", "uniform")] = "size"

    needs = "sum"
    newcomers = True
    tasks = (local_update,)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x without momentum."""
        m = torch.zeros_like(x[: federation.dim])
        return State(x, m, torch.full_like(m, getattr(self, "tau", 0.0) ** 2))

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Updates, and the moments."""
        return per_round + 2

    def _mean_update(self, state: State, federation: Federation) -> tuple[Tensor, Log]:
        """D [d + b], and the weights by which clients count in it."""
        # None: by training rows.
        count = len(federation.clients)
        equal = torch.ones(count) if self.weights == "uniform" else None
        average = federation.average(
            federation.clients, local_update, weights=equal, x=state.x, local=self.local
        )
        return average.delta, {"weights": average.by_client(average.weights)}

    def _step(
        self,
        state: State,
        mean: Tensor,
        m: Tensor,
        v: Tensor,
        direction: Tensor,
        round: int,
    ) -> State:
        """Go along the direction [d]; buffers are statistics, so they follow the mean itself."""
        d, lr = len(direction), rate_of(self.lr, round)
        return State(shift(state.x, torch.cat([direction, mean[d:]]), lr, d), m, v)

    def _adaptive_step(
        self,
        state: State,
        mean: Tensor,
        v: Tensor,
        beta: float,
        tau: float,
        round: int,
    ) -> State:
        """Lines 11 and 15 of Algorithm 2, from the new v [d]."""
        m = beta * state.m + (1 - beta) * mean[: len(v)]
        return self._step(state, mean, m, v, m / (v.sqrt() + tau), round)


@options
class FedAvgM(_ServerRule):
    r"""Let the server go along a running sum of mean updates, as a heavy ball does.

    Paper: T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019, arXiv 1909.06335.

    Use: clients differ and rounds zigzag: momentum averages over rounds.
    Avoid: few clients take part in each round, and their updates have little in common.
    Formula: m \leftarrow \beta m + \sum_k p_k \delta_k, \quad x \leftarrow x + \eta m

    Attributes:
        lr: server learning rate > 0; the length of a step is up to 1 / (1 - beta) times it.
        beta: share in [0, 1) of the momentum that stays; 0 is FedAvg.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30)), (torch.ones(60, 1), torch.zeros(60))], task="regression")
    >>> local = ct.LocalSGD(lr=0.05, batch_size=None, steps=ct.Steps(1))
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = model.weight.data.zero_()
    >>> runs = [ct.fit(ct.FedAvgM(local, beta=b), clients, model=model, rounds=8) for b in (0.0, 0.5)]
    >>> [round(float(run.x), 2) for run in runs]  # on the way to 1 / 3
    [0.19, 0.29]
    """

    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    beta: Annotated[float, BELOW_ONE] = 0.9

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        mean, log = self._mean_update(state, federation)
        m = self.beta * state.m + mean[: federation.dim]
        return self._step(state, mean, m, state.v, m, federation.round), log


@options
class FedAdam(_ServerRule):
    r"""Let the server take steps of Adam along the mean update, in the form of Reddi et al.

    Paper: S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive Federated
    Optimization", ICLR 2021, Algorithm 2.

    Use: entries of the model move at very different rates, as with embeddings of rare words.
    Avoid: nobody tunes `lr` and `tau`: the length of a step then has little to do with the updates.
    Formula: m \leftarrow \beta_1 m + (1 - \beta_1) D, \quad v \leftarrow \beta_2 v + (1 - \beta_2) D^2, \quad
    x \leftarrow x + \eta \frac{m}{\sqrt{v} + \tau}

    Attributes:
        betas: decay of m and of v, each in [0, 1).
        tau: > 0, added to the root of v: the smaller, the more adaptive.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30)), (torch.ones(60, 1), torch.zeros(60))], task="regression")
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.FedAdam(local, lr=0.03), clients, ct.models.Logistic(), rounds=80)
    >>> round(float(run.x.sum()), 1)
    0.3
    """

    betas: Annotated[tuple[float, float], BETAS] = (0.9, 0.99)
    tau: Annotated[float, TAU] = 1e-3

    exempt: ClassVar[Mapping[str, str]] = _BOUNDED

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        mean, log = self._mean_update(state, federation)
        v = (
            self.betas[1] * state.v
            + (1 - self.betas[1]) * mean[: federation.dim].square()
        )  # line 14
        return self._adaptive_step(
            state, mean, v, self.betas[0], self.tau, federation.round
        ), log


@options
class FedYogi(_ServerRule):
    r"""Let the server take steps of Yogi, whose second moment changes by the size of D^2 alone.

    Paper: S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive Federated
    Optimization", ICLR 2021, Algorithm 2.

    Use: as for `fedadam`, where the second moment should not fall at once after a large update.
    Avoid: as for `fedadam`.
    Formula: v \leftarrow v - (1 - \beta_2) \, D^2 \operatorname{sign}(v - D^2)

    Attributes:
        betas: decay of m and pace of v, each in [0, 1).
        tau: > 0, added to the root of v: the smaller, the more adaptive.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30)), (torch.ones(60, 1), torch.zeros(60))], task="regression")
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.FedYogi(local, lr=0.03), clients, ct.models.Logistic(), rounds=80)
    >>> round(float(run.x.sum()), 1)
    0.3
    """

    betas: Annotated[tuple[float, float], BETAS] = (0.9, 0.99)
    tau: Annotated[float, TAU] = 1e-3

    exempt: ClassVar[Mapping[str, str]] = _BOUNDED

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        mean, log = self._mean_update(state, federation)
        square = mean[: federation.dim].square()
        v = state.v - (1 - self.betas[1]) * square * torch.sign(
            state.v - square
        )  # line 13
        return self._adaptive_step(
            state, mean, v, self.betas[0], self.tau, federation.round
        ), log


@options
class FedAdagrad(_ServerRule):
    r"""Let the server take steps of Adagrad, which become shorter as squares of updates add up.

    Paper: S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive Federated
    Optimization", ICLR 2021, Algorithm 2.

    Use: as for `fedadam`, where steps should become shorter by themselves.
    Avoid: runs of many rounds: steps then end before the model has arrived.
    Formula: v \leftarrow v + D^2

    Attributes:
        beta: decay of m in [0, 1); 0 in the paper's experiments.
        tau: > 0, added to the root of v: the smaller, the more adaptive.

    >>> import coterie as ct, torch
    >>> clients = ct.data.from_tensors([(torch.ones(30, 1), torch.ones(30)), (torch.ones(60, 1), torch.zeros(60))], task="regression")
    >>> local = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
    >>> run = ct.fit(ct.FedAdagrad(local), clients, ct.models.Logistic(), rounds=60)
    >>> round(float(run.x.sum()), 2)
    0.33
    """

    beta: Annotated[float, BELOW_ONE] = 0.0
    tau: Annotated[float, TAU] = 1e-3

    exempt: ClassVar[Mapping[str, str]] = _BOUNDED

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        mean, log = self._mean_update(state, federation)
        v = state.v + mean[: federation.dim].square()  # line 12
        return self._adaptive_step(
            state, mean, v, self.beta, self.tau, federation.round
        ), log
