r"""Power-of-choice: train those clients whose loss is highest.

Paper: Y. J. Cho, J. Wang, G. Joshi, "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022 (2020 as
"Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection Strategies"), Section 4; called Skew
as a comparator of "Rethinking Client Reweighting for Selfish Federated Learning" (VaRSeL).

Optimises: the mean loss of the clients, those with a high one first.
Sends: d up, d down (own_update: the chosen); 1 up, d down (losses: candidates); 1 up, 0 down (row_counts: once).
Memory: none.
Use: few clients can train in a round, and training should reach a low loss in few rounds.
Avoid: some clients have noisy labels: their loss stays high, so they are chosen again and again.
Formula: S = \text{the } m \text{ candidates with the largest } F_k(x), \quad x \leftarrow x + \frac{1}{m} \sum_{k \in
S} \delta_k

Symbols: candidates = d clients drawn without replacement by their shares p_k of all rows, clients_per_round = m of them are kept:
those with the highest local loss F_k(x); the model is the mean of the m local models.

Differences from the paper: the whole training set's loss by default (pi_pow-d), or that of a random batch (`loss_batch_size`,
pi_cpow-d). m is the run's `clients_per_round`; where that is all clients, all train and no loss is asked for.

A round asks d clients for one number (a forward pass over their rows) and m of them for an update. Since sizes decide who becomes
a candidate, updates are averaged evenly, as in the paper.

Laws:
- m = n is the uniform average:
  tests/methods/test_power_of_choice.py::test_power_of_choice_with_everybody_is_the_uniform_average
- the chosen have the highest losses:
  tests/methods/test_power_of_choice.py::test_power_of_choice_takes_the_highest_losses_of_all_candidates
- candidates follow the draw by size:
  tests/methods/test_power_of_choice.py::test_power_of_choice_by_hand
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.cohort import Cohort
from coterie.compute.tasks import own_update
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.rules import SIZE, optional
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import MeanLoss, OneModel, Rows, task
from coterie.solvers.sampling import without_replacement


class Sizes(NamedTuple):
    """Training rows [n]."""

    sizes: Rows


class Losses(NamedTuple):
    """F_k(x), float64 [n]."""

    loss: MeanLoss


@task
def row_counts(cohort: Cohort) -> Sizes:
    """Row counts, by which candidates are drawn; asked once."""
    return Sizes(cohort.sizes)


@task
def losses(cohort: Cohort, *, x: OneModel, batch_size: int | None) -> Losses:
    """Local loss of the global model."""
    return Losses(cohort.loss(x, batch_size=batch_size, purpose="choice"))


class State(NamedTuple):
    """The global model [d + b], and training rows of all N clients, float64 [N] (0: did not tell)."""

    x: Tensor
    sizes: Tensor


@options
class PowerOfChoice(Method[State]):
    """Train the clients with the highest loss among some that are drawn by size.

    Attributes:
        local: settings of local training.
        lr: server learning rate > 0; 1 is the paper's average.
        candidates: d, from the run's clients_per_round m up to all clients; None: 2 m, or all if those are fewer.
        loss_batch_size: rows of the random batch on which the loss is taken; None: all training rows.

    >>> import coterie as ct, torch
    >>> rows = {"a": (torch.ones(9, 1), torch.zeros(9)), "b": (torch.ones(9, 1), torch.ones(9))}
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(1))
    >>> clients, settings = ct.data.from_tensors(rows, task="regression"), ct.RunSettings(clients_per_round=1)
    >>> run = ct.fit(ct.PowerOfChoice(local), clients, ct.models.Logistic(), rounds=1, settings=settings)
    >>> run.weights["*"]  # the first model outputs 0, which is what a wants
    {'b': 1.0}
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    candidates: Annotated[
        int | None, optional(SIZE, "twice the clients of a round")
    ] = None
    loss_batch_size: Annotated[int | None, optional(SIZE, "all rows")] = None

    participation = "own"

    needs = "sum"

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Row counts and losses of candidates where not all take part, and updates."""
        return (
            asks(row_counts),
            asks(losses, batch_size=self.loss_batch_size),
            asks(own_update),
        )

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x; ask for sizes where someone has to be drawn. Raises `InputError` for d outside m..n."""
        everyone, m = federation.everyone, federation.per_round
        candidates = self.candidates
        if candidates is not None and not m <= candidates <= len(everyone):
            raise InputError(
                f"PowerOfChoice.candidates must be between {m} (clients_per_round) and {len(everyone)} (clients); got {candidates}"
            )
        sizes = torch.zeros(len(everyone), dtype=torch.float64)
        if m < len(everyone):
            counted = federation.ask(everyone, row_counts)
            sizes[federation.positions(counted.clients)] = counted.sizes
        return State(x, sizes)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round: losses of the candidates, updates of those with the highest."""
        chosen: tuple[str, ...] = federation.everyone
        log = Log()
        m = federation.per_round
        if m < len(chosen):
            uniform = [rng.child("candidate", n).uniform(1)[0] for n in chosen]
            drawn = without_replacement(
                state.sizes, uniform, self.candidates or 2 * m
            ).tolist()
            names = [chosen[i] for i in drawn]
            replies = federation.ask(
                names, losses, x=state.x, batch_size=self.loss_batch_size
            )
            highest = (
                replies.loss.argsort(descending=True, stable=True)[:m]
                .sort()
                .values.tolist()
            )
            chosen = tuple(replies.clients[i] for i in highest)
            log = {
                "candidates": len(names),
                "candidate_loss": replies.by_client(replies.loss),
            }
        equal = torch.ones(len(chosen))
        average = federation.average(
            chosen, own_update, weights=equal, x=state.x, local=self.local
        )
        x = shift(
            state.x, average.delta, rate_of(self.lr, federation.round), federation.dim
        )
        return State(x, state.sizes), {
            **log,
            "weights": average.by_client(average.weights),
        }

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x
