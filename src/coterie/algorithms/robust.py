"""Robust averages: rules that a few arbitrary updates cannot move far, as yardsticks under attack.

Papers: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
ICML 2018 (median, trimmed-mean); K. Pillutla, S. M. Kakade, Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE
Transactions on Signal Processing 2022 (geometric-median); P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine
Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017 (multi-krum).

Optimises: the loss of clients in the middle; where all are alike, the mean loss.
Sends: d up, d down (own_update).
Memory: none.

Symbols: x = model, delta_k = the update of client k (added), lr = server learning rate; trim = beta, byzantine = f, keep = m.

x <- x + lr * rule(delta_1, ..., delta_n). The rules themselves are in `solvers/robust.py`.

Differences from the papers: clients count alike also in the geometric median, which weighs them by rows in the paper, since a
size can be a lie; updates may be several local steps. Float buffers (statistics of batch norm): median and trimmed mean treat
them as further coordinates, which keeps variances >= 0; geometric median and multi-Krum look at the parameters alone and average
buffers with the weights that they found. Without an attacker all four are biased where clients are unlike: they leave out the
unusual ones.

Individual updates are needed, which excludes secure aggregation. Multi-Krum takes O(n^2 d) operations, the others O(n d) up to
logarithms.

Laws:
- equal updates come through whole:
  tests/methods/test_robust.py::test_equal_updates_come_through_whole
- trim = 0, and byzantine = 0 with all kept, is the uniform average:
  tests/methods/test_robust.py::test_rules_that_suspect_nobody_are_the_mean
- fewer than f wild updates move the model by no more than the honest ones spread:
  tests/methods/test_robust.py::test_one_liar_of_five_moves_the_model_no_further_than_the_others_spread
- permuting clients changes nothing:
  tests/contract/test_testing.py::test_every_method_keeps_the_laws_of_methods
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError, RunError
from coterie.base.rng import Rng
from coterie.base.vector import move
from coterie.compute.tasks import OwnUpdate, own_update
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.rules import POSITIVE, SIZE, Rule, optional
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.replies import Replies
from coterie.solvers import robust

COPIES = 5
"""Updates, and twice as much again for them, and for what is sorted or subtracted of them, in double precision."""
NUMBER_OR_SHARE = Rule(
    lambda v: (type(v) is int and v >= 0) or (type(v) is float and 0 <= v < 0.5),
    "an int >= 0 (clients) or a share in [0, 0.5)",
)


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


def _count(limit: float, clients: int) -> int:
    """A number of clients, or a share of them rounded down (up to the rounding of the share itself)."""
    if isinstance(limit, int):
        return limit
    return math.floor(limit * clients + 1e-9)


def _fewest_for_krum(byzantine: int) -> int:
    """Clients that a round needs: n >= 2 f + 3 of the paper, and one where nobody is suspected."""
    if not byzantine:
        return 1
    return 2 * byzantine + 3


def _require_count(
    owner: object,
    field: str,
    fewest: Callable[[int], int],
    clients: int,
    error: type[Exception],
    where: str,
) -> int:
    """The count of `field` among `clients`; an error unless at least `needed(count)` clients are there."""
    limit = getattr(owner, field)
    count = _count(limit, clients)
    if clients < fewest(count):
        raise error(
            f"{where}{type(owner).__name__}.{field} = {limit} needs at least {fewest(count)} clients in a round, and there are "
            f"{clients}; lower it, or take more clients"
        )
    return count


def _step(x: Tensor, aggregate: Tensor, lr: float, dim: int) -> State:
    """A whole step along one vector; its buffers are taken as they are."""
    return State(move(x, torch.ones(1), aggregate[None], lr, dim))


def _ask(state: State, federation: Federation, local: LocalSGD) -> Replies[OwnUpdate]:
    return federation.ask(federation.clients, own_update, x=state.x, local=local)


@options
class Median(Method[State]):
    r"""Move by the median of the updates in each coordinate.

    Paper: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    ICML 2018, Definition 1.

    Use: fewer than half of the clients may be faulty or malicious, and the honest ones are alike.
    Avoid: honest clients differ: what is unusual is left out, also where it is right.
    Formula: x \leftarrow x + \eta \operatorname{median}(\delta_1, \ldots, \delta_n) \; \text{in each coordinate}

    Attributes:
        local: settings of local training.
        lr: server learning rate > 0.

    >>> import coterie as ct, torch
    >>> rows = [(torch.ones(9, 1), torch.full((9,), v)) for v in (1.0, 2.0, 100.0)]
    >>> run = ct.fit(ct.Median(ct.LocalSGD(lr=0.1)), ct.data.from_tensors(rows), ct.models.Logistic(), rounds=10)
    >>> round(float(run.x.sum()), 1)
    2.0
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0

    needs = "coordinates"
    newcomers = True
    tasks = (own_update,)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        replies = _ask(state, federation, self.local)
        return _step(
            state.x,
            robust.median(replies.delta),
            rate_of(self.lr, federation.round),
            federation.dim,
        ), {}

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x


@options
class TrimmedMean(Method[State]):
    r"""Move by the mean of the updates without the smallest and largest values in each coordinate.

    Paper: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    ICML 2018, Definition 2.

    Use: a known share of the clients may be faulty or malicious, and an average over most of the others is wanted.
    Avoid: honest clients differ, or more clients may be faulty than `trim` leaves out.
    Formula: x \leftarrow x + \frac{\eta}{n - 2\beta} \sum_{k = \beta + 1}^{n - \beta} \delta_{(k)} \; \text{in each
    coordinate}

    Attributes:
        local: settings of local training.
        lr: server learning rate > 0.
        trim: values left out at each end: a number of clients >= 0, or a share of those that replied in [0, 0.5), rounded down.

    >>> import coterie as ct, torch
    >>> rows = [(torch.ones(9, 1), torch.full((9,), v)) for v in (1.0, 2.0, 4.0, 100.0)]
    >>> method = ct.TrimmedMean(ct.LocalSGD(lr=0.1), trim=1)
    >>> run = ct.fit(method, ct.data.from_tensors(rows), ct.models.Logistic(), rounds=10)
    >>> round(float(run.x.sum()), 1)
    3.0
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    trim: Annotated[float, NUMBER_OR_SHARE] = 0.2

    needs = "coordinates"
    newcomers = True
    tasks = (own_update,)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x. Raises `InputError` if a round has too few clients to trim."""
        _require_count(
            self, "trim", lambda k: 2 * k + 1, federation.per_round, InputError, ""
        )
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        replies = _ask(state, federation, self.local)
        where = f"round {federation.round}: "
        trim = _require_count(
            self, "trim", lambda k: 2 * k + 1, len(replies), RunError, where
        )
        return _step(
            state.x,
            robust.trimmed_mean(replies.delta, trim),
            rate_of(self.lr, federation.round),
            federation.dim,
        ), {"trimmed": 2 * trim}

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x


@options
class GeometricMedian(Method[State]):
    r"""Move by the point whose distances to the updates have the least sum.

    Paper: K. Pillutla, S. M. Kakade, Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE Transactions on Signal Processing
    2022, Algorithm 2.

    Use: fewer than half of the clients may be faulty or malicious, and the rule should not depend on the coordinates.
    Avoid: honest clients differ much, as with each robust average.
    Formula: x \leftarrow x + \eta \operatorname{argmin}_v \sum_k \|v - \delta_k\|

    Attributes:
        local: settings of local training.
        lr: server learning rate > 0.
        smoothing: nu > 0 of the smoothed Weiszfeld algorithm, relative to the mean distance of the updates from their mean.
        tolerance: > 0, length of the last step, relative to the same distance.

    >>> import coterie as ct, torch
    >>> rows = [(torch.ones(9, 1), torch.full((9,), v)) for v in (1.0, 2.0, 100.0)]
    >>> method = ct.GeometricMedian(ct.LocalSGD(lr=0.1))
    >>> run = ct.fit(method, ct.data.from_tensors(rows), ct.models.Logistic(), rounds=10)
    >>> round(float(run.x.sum()), 1)
    2.0
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    smoothing: Annotated[float, POSITIVE] = 1e-6
    tolerance: Annotated[float, POSITIVE] = 1e-6

    newcomers = True
    tasks = (own_update,)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        replies = _ask(state, federation, self.local)
        heads = replies.delta[:, : federation.dim].double()
        _, weights = robust.geometric_median(
            heads, smoothing=self.smoothing, tolerance=self.tolerance
        )
        return State(
            move(
                state.x,
                weights,
                replies.delta,
                rate_of(self.lr, federation.round),
                federation.dim,
            )
        ), {"weights": replies.by_client(weights)}

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds, see `COPIES`."""
        return COPIES * per_round


@options
class MultiKrum(Method[State]):
    r"""Move by the mean of those updates that are nearest to their neighbours.

    Paper: P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent", NeurIPS 2017, Sections 4 and 5.

    Use: at most `byzantine` of n clients may be malicious, and n is at least twice that number plus 3.
    Avoid: there are few clients, or honest ones differ much.
    Formula: x \leftarrow x + \frac{\eta}{m} \sum_{k \in K} \delta_k, \quad K = \text{the } m \text{ updates nearest to
    their } n - f - 2 \text{ neighbours}

    Attributes:
        local: settings of local training.
        lr: server learning rate > 0.
        byzantine: f, how many clients may be arbitrary: a number >= 0, or a share of those that replied in [0, 0.5), rounded down. A
            round needs 2 f + 3 clients; f = 0 suspects no client.
        keep: m, how many updates are averaged, from 1 (Krum) to n - f; None: n - f.

    >>> import coterie as ct, torch
    >>> rows = [(torch.ones(9, 1), torch.full((9,), v)) for v in (1.0, 2.0, 3.0, 4.0, 100.0)]
    >>> method = ct.MultiKrum(ct.LocalSGD(lr=0.1), byzantine=1)
    >>> run = ct.fit(method, ct.data.from_tensors(rows), ct.models.Logistic(), rounds=10)
    >>> round(float(run.x.sum()), 1)
    2.5
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    byzantine: Annotated[float, NUMBER_OR_SHARE] = 0.2
    keep: Annotated[int | None, optional(SIZE, "n - f")] = None

    needs = "pairs"
    newcomers = True
    tasks = (own_update,)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x. Raises `InputError` if a round has too few clients for f or m."""
        self._attackers(federation.per_round, InputError, "")
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        replies = _ask(state, federation, self.local)
        f = self._attackers(len(replies), RunError, f"round {federation.round}: ")
        # Distances are those of the parameters: buffers are statistics of another scale.
        chosen = robust.multi_krum(replies.delta[:, : federation.dim], f, self.keep)
        weights = torch.zeros(len(replies), dtype=torch.float64)
        weights[chosen.cpu()] = 1 / len(chosen)
        x = move(
            state.x,
            weights,
            replies.delta,
            rate_of(self.lr, federation.round),
            federation.dim,
        )
        return State(x), {"weights": replies.by_client(weights), "byzantine": f}

    def _attackers(self, clients: int, error: type[Exception], where: str) -> int:
        f = _require_count(self, "byzantine", _fewest_for_krum, clients, error, where)
        if self.keep is not None and self.keep > clients - f:
            raise error(
                f"{where}MultiKrum.keep = {self.keep} is more than the {clients - f} of {clients} clients that byzantine = "
                f"{self.byzantine} leaves; lower it"
            )
        return f

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds, see `COPIES`."""
        return COPIES * per_round
