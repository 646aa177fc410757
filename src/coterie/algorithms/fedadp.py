r"""FedAdp: weigh clients by how well their update points along with that of all, or of a target.

Paper: H. Wu, P. Wang, "Fast-Convergent Federated Learning with Adaptive Weighting", IEEE Transactions on Cognitive Communications
and Networking 2021, Algorithm 1; as a comparator of "Selective Collaboration for Robust Federated Learning" (MeritFed), Appendix
A.3.

Optimises: the mean loss over all rows, of clients whose updates point along with the reference.
Sends: d + 1 up, d down (local_update); d up, d down (own_update: a reference client that takes no part).
Memory: none.
Use: most clients pull in one direction, and those that pull elsewhere should count less.
Avoid: clients train on small batches: in many dimensions every angle is then near 90 degrees.
Formula: x \leftarrow x + \eta \sum_i w_i \delta_i, \quad w_i \propto n_i \, e^{f(\bar\theta_i)}, \quad f(\theta) =
\alpha \bigl( 1 - e^{-e^{-\alpha (\theta - 1)}} \bigr)

Symbols: x = w(t), delta_i = Delta_i(t) (an update, added), sizes = D_i, angle = theta_i(t) between delta_i and the reference, its
running mean = the smoothed angle, gompertz = f, alpha.

weights_i ~ D_i exp(gompertz(mean angle_i)), gompertz(t) = alpha (1 - exp(-exp(-alpha (t - 1)))); the reference is sum_i D_i
delta_i / D.

Differences from the paper: `reference` can be one client, whose own update is then the reference (asked of it also in rounds in
which it takes no part); `by_size` and `running_mean` can be turned off; the mean goes over the rounds in which a client took
part. Several local steps give accumulated updates. The MeritFed paper prints the map without the - 1; its authors' code has it.

A client that trains on different batches in each round has an angle near pi / 2 to anything in many dimensions. Individual
updates are needed, which excludes secure aggregation.

Laws:
- equal angles are FedAvg:
  tests/methods/test_fedadp.py::test_fedadp_with_equal_angles_is_fedavg
- a client that points away from the reference counts less, whatever its size:
  tests/methods/test_fedadp.py::test_fedadp_a_client_that_points_away_counts_less_whatever_its_size
- the mean goes over the rounds in which a client took part:
  tests/methods/test_fedadp.py::test_fedadp_takes_the_mean_over_rounds_in_which_a_client_took_part
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError, nearest
from coterie.base.rng import Rng
from coterie.base.vector import move
from coterie.compute.tasks import local_update, own_update
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.rules import POSITIVE, TEXT
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.solvers.angles import angles, gompertz


class State(NamedTuple):
    """The global model [d + b]; by client, the sum of its angles and how many there were, float64 [2, N]."""

    x: Tensor
    angles: Tensor


@options
class FedAdp(Method[State]):
    """Average updates by size and by their angle to a reference.

    Attributes:
        local: settings of local training.
        lr: server learning rate > 0; 1 is the paper's average.
        alpha: the constant of the Gompertz map > 0 (5 in the paper): the largest ratio of two clients' factors is exp(alpha).
        reference: "global" (the average update by size), or the name of a client whose update is the reference.
        by_size: multiply weights by training rows D_i.
        running_mean: use the mean of a client's angles so far (the paper's smoothed angle), not the present one alone.

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> clients = ct.data.from_tensors({"a": (x, x[:, 0]), "b": (x, x[:, 0]), "c": (x, -x[:, 0])})
    >>> run = ct.fit(ct.FedAdp(), clients, model=ct.models.Logistic(), rounds=1)
    >>> round(run.weights["*"]["c"], 2)  # c pulls the other way
    0.0
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    alpha: Annotated[float, POSITIVE] = 5.0
    reference: Annotated[str, TEXT._replace(allowed='"global" or a client\'s name')] = (
        "global"
    )
    by_size: bool = True
    running_mean: bool = True

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates, and that of the reference where it takes no part."""
        if self.reference == "global":
            return (asks(local_update),)
        return asks(local_update), asks(own_update)

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for a reference that does not exist."""
        if self.reference not in ("global", *everyone):
            hint = nearest(self.reference, ("global", *everyone))
            raise InputError(
                f"FedAdp.reference names {self.reference!r}, which is not a client; {hint}"
            )

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x, without any angle."""
        self.check(federation.everyone)
        return State(x, torch.zeros(2, len(federation.everyone), dtype=torch.float64))

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`."""
        replies = federation.ask(
            federation.clients, local_update, x=state.x, local=self.local
        )
        sizes = replies.sizes
        if not self.by_size:
            sizes = torch.ones_like(sizes)
        heads = replies.delta[:, : federation.dim].double()
        now = angles(
            heads, self._reference(state, federation, replies.clients, heads, sizes)
        ).cpu()
        positions = federation.positions(replies.clients)
        sums = state.angles.clone()
        if self.running_mean:
            sums[:, positions] += torch.stack([now, torch.ones_like(now)])
            now = sums[0, positions] / sums[1, positions]
        # The log of a size in the exponent makes it a factor of the weight.
        weights = torch.softmax(gompertz(now, self.alpha) + sizes.log(), 0)
        x = move(
            state.x,
            weights,
            replies.delta,
            rate_of(self.lr, federation.round),
            federation.dim,
        )
        return State(x, sums), {
            "weights": replies.by_client(weights),
            "angle": replies.by_client(now),
        }

    def _reference(
        self,
        state: State,
        federation: Federation,
        clients: tuple[str, ...],
        heads: Tensor,
        sizes: Tensor,
    ) -> Tensor:
        """The update [d] that angles are measured to."""
        if self.reference == "global":
            return (sizes / sizes.sum()).to(heads.device) @ heads
        if self.reference in clients:
            return heads[clients.index(self.reference)]
        replies = federation.ask(
            (self.reference,), own_update, need="all", x=state.x, local=self.local
        )
        update: Tensor = replies.delta[0, : federation.dim].double()
        return update

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Model vectors that a round holds: updates, and again in double precision."""
        return 3 * per_round
