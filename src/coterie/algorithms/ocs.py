r"""OCS: draw clients by the norms of their updates so that the estimated average has the least variance.

Paper: W. Chen, S. Horváth, P. Richtárik, "Optimal Client Sampling for Federated Learning", TMLR 2022 (arXiv 2020), Algorithm 1
and Eq. 7; a comparator of "Rethinking Client Reweighting for Selfish Federated Learning" (VaRSeL).

Optimises: the mean loss over all rows.
Sends: d + 1 up, d down (local_update: drawn clients); 2 up, d down (norms: all clients).
Memory: none; within a round the update.
Use: uploads are the bottleneck and all clients can train in every round.
Avoid: work at the clients is the bottleneck: all of them train, and few send.
Formula: x \leftarrow x + \eta \sum_{k \in S} \frac{w_k}{p_k} \, \delta_k, \quad p_k = \min(1, \lambda \, \|w_k
\delta_k\|), \quad \sum_k p_k = m

Symbols: delta_k = the update of client k, w_k = its share of all rows, u_k = ||w_k delta_k||, p_k = its inclusion probability
(`solvers/sampling.py`), clients_per_round = m = sum_k p_k, the EXPECTED number of clients that send an update; the number of one
round varies, and can be 0. x <- x + lr * sum_{k drawn} w_k / p_k delta_k, an unbiased estimate of FedAvg's step.

Differences from the paper: exact probabilities, not the approximation for secure aggregation (Algorithm 2). Where a drawn client
then fails, the coefficients of the others are scaled up to the sum that all drawn ones had. Where no client is drawn, the model
stays.

What it costs: EVERYBODY trains in every round and sends u_k, one number. The drawn clients are then asked for their update, which
they have noted; one that lost it trains once more on the same batches by name. It saves uploads (m vectors in place of n), not
work. With m = n all are drawn, so norms are not asked for. Coefficients do not sum to 1; buffers are averaged with their shares.

Laws:
- m = n is FedAvg, bit by bit:
  tests/methods/test_ocs.py::test_ocs_with_everybody_is_fedavg_bit_by_bit
- the estimate is unbiased, by enumeration of all subsets:
  tests/methods/test_ocs.py::test_the_estimate_of_ocs_is_unbiased_over_all_subsets
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.cohort import Cohort
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import OneModel, OneUpdate, Rows, Size, task
from coterie.solvers.sampling import inclusion_probabilities


class LocalUpdate(NamedTuple):
    """delta [n, d + b] and training rows [n]."""

    delta: OneUpdate
    sizes: Rows


class Norms(NamedTuple):
    """||delta_k|| over the parameters, float64 [n], and training rows [n]."""

    norms: Size
    sizes: Rows


@task
def local_update(cohort: Cohort, *, x: OneModel, local: LocalSGD) -> LocalUpdate:
    """Line 3: local training from x, if that was not done for its norm."""
    return LocalUpdate(
        cohort.recall("ocs", lambda clients: clients.updates(x, local), x, local),
        cohort.sizes,
    )


@task
def norms(cohort: Cohort, *, x: OneModel, local: LocalSGD) -> Norms:
    """Line 4: the same training, of which only the norm is told."""
    dim = cohort.layout.dim
    deltas = cohort.updates(x, local)
    cohort.note("ocs", deltas, x, local)
    lengths = [
        torch.linalg.vector_norm(delta[:dim], dtype=torch.float64).cpu()
        for delta in deltas
    ]
    return Norms(torch.stack(lengths), cohort.sizes)


class State(NamedTuple):
    """The global model [d + b]."""

    x: Tensor


@options
class OCS(Method[State]):
    """Draw clients independently by the norms of their updates, and correct for it.

    Attributes:
        local: settings of local training.
        lr: server learning rate > 0.

    >>> import coterie as ct, torch
    >>> labels = {"a": 0.0, "b": 0.5, "c": 8.0}
    >>> clients = ct.data.from_tensors({k: (torch.ones(9, 1), torch.full((9,), v)) for k, v in labels.items()})
    >>> run = ct.fit(ct.OCS(), clients, ct.models.Logistic(), rounds=1, settings=ct.RunSettings(1))
    >>> [round(run.history.select("inclusion_probability", name)[0][1], 2) for name in "abc"]
    [0.0, 0.06, 0.94]
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0

    participation = "own"

    needs = "sum"
    tasks = (local_update, norms)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round: norms of all clients, updates of the drawn."""
        everyone, m = federation.everyone, federation.per_round
        if m >= len(everyone):
            average = federation.average(
                everyone, local_update, x=state.x, local=self.local
            )
            x = shift(
                state.x,
                average.delta,
                rate_of(self.lr, federation.round),
                federation.dim,
            )
            return State(x), {
                "weights": average.by_client(average.weights),
                "selected": len(average),
            }
        replies = federation.ask(everyone, norms, x=state.x, local=self.local)
        shares = replies.sizes / replies.sizes.sum()  # w_k
        p = inclusion_probabilities(
            shares * replies.norms, min(m, len(replies))
        )  # line 5, Eq. 7
        uniform = [rng.child("draw", n).uniform(1)[0] for n in replies.clients]
        # Divided by the probability of its draw, an update counts on average as if every client had sent one.
        coefficients = {
            n: w / q
            for n, w, q, u in zip(
                replies.clients, shares.tolist(), p.tolist(), uniform, strict=True
            )
            if u < q
        }  # line 6
        log: Log = {
            "inclusion_probability": replies.by_client(p),
            "selected": len(coefficients),
        }
        if not coefficients:
            return state, log
        weights = torch.tensor(list(coefficients.values()), dtype=torch.float64)
        average = federation.average(
            tuple(coefficients),
            local_update,
            weights=weights,
            x=state.x,
            local=self.local,
        )
        total = sum(coefficients.values())  # of those, too, who have failed
        x = shift(
            state.x,
            average.delta,
            rate_of(self.lr, federation.round) * total,
            federation.dim,
        )  # line 7
        log.update(
            weights=average.by_client(average.weights * total), sum_weights=total
        )
        return State(x), log

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Count what every client trains for its norm, and what is sent."""
        return clients + per_round
