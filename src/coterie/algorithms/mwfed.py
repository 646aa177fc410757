r"""MW-Fed: multiplicative weights; clients whose requirement is not met take more local steps and count more.

Paper: A. Blum, N. Haghtalab, R. L. Phillips, H. Shao, "One for One, or All for All: Equilibria and Optimality of Collaboration in
Federated Learning", ICML 2021, as a comparator of Y. J. Cho et al., "Maximizing Global Model Appeal in Federated Learning".

Optimises: the largest of the gaps between clients' losses and what they require.
Sends: 1 up, d + 1 down (gaps; the initial model too where a requirement is still to be found); d up, d + 1 down (local_update).
Memory: four numbers: the client's requirement, and how its own model does.
Use: every client has a requirement, and those that do not meet it should be helped first.
Avoid: a requirement cannot be met by one model: that client's weight then grows until it leads alone.
Formula: w_k \leftarrow w_k \, e^{\beta [g_k > 0]}, \quad x \leftarrow x + \eta \, \frac{\sum_k w_k \delta_k}{\sum_k
w_k}

Symbols: weights = w on the simplex of all N clients, gap_k = F_k(x) - rho_k, tau = number of steps of `local`, n = participants.

Differences from the paper: the MaxFL paper only names the method. Our reading: w_k *= exp(rate [gap_k > 0]) for the participants,
normalised; each takes max(1, round(tau n w_k)) local steps, w_k as a share of the participants'; updates are weighted by w_k. Absent
clients keep what they have. Requirements are MaxFL's (`coterie/compute/appeal.py`).

Steps of all participants sum to about tau n, so budgets are those of other methods; what is rounded up to one step comes on top.

Laws:
- rate = 0 is uniform averaging with tau steps each:
  tests/methods/test_mwfed.py::test_mwfed_without_a_rate_is_uniform_averaging_with_equal_steps
- equal gaps are so too:
  tests/methods/test_mwfed.py::test_equal_gaps_leave_mwfed_uniform
- a client whose requirement is never met ends with all the weight:
  tests/methods/test_mwfed.py::test_a_client_that_is_never_content_gets_all_the_weight_and_the_steps
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.vector import shift
from coterie.compute.appeal import (
    KEPT,
    REQUIREMENTS,
    Required,
    Requirements,
    Start,
    as_pairs,
    asks_of_requirements,
    check_names,
    measure,
    measure_appeal,
    requirement,
    requirement_payload,
    with_steps,
)
from coterie.compute.cohort import Cohort
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, Steps, rate_of
from coterie.config.rules import NOT_NEGATIVE, SIZE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks, asks
from coterie.contract.task import Form, Holds, OneModel, OneUpdate, task
from coterie.contract.wire import PerClient


class Gaps(NamedTuple):
    """F_k(x) - rho_k [n], by which clients are weighed."""

    gap: Annotated[Tensor, "gap", Form()]


class LocalUpdate(NamedTuple):
    """delta [n, d + b]."""

    delta: OneUpdate


@task
def gaps(
    cohort: Cohort,
    *,
    x: OneModel,
    start: Start | None,
    required: Required,
    warm: LocalSGD,
    rows: str,
) -> Gaps:
    """Tell how far each client is from what it requires: F_k(x) on all training rows, minus rho_k."""
    return Gaps(cohort.loss(x) - requirement(cohort, start, required, warm, rows))


@task
def local_update(
    cohort: Cohort,
    *,
    x: OneModel,
    local: LocalSGD,
    steps: Annotated[Tensor, Holds((), torch.int64, (1, 1e6), each=True)],
) -> LocalUpdate:
    """Local training with a number of steps of its own for each client, `steps` [n]."""
    return LocalUpdate(cohort.updates(x, local, steps=steps.tolist()))


class State(NamedTuple):
    """Global and initial model [d + b], and log of the weights of all N clients."""

    x: Tensor
    start: Tensor
    log_weights: Tensor


@options
class MWFed(Method[State]):
    """Let clients whose loss is above what they require train longer and count more, from round to round.

    Attributes:
        local: settings of local training; its `Steps(tau)` are what a client takes on average.
        rate: w_k grows by exp(rate) >= 1 in each round in which F_k(x) > rho_k.
        lr: server learning rate > 0.
        warmup_steps: local steps from the initial model to the client's own, whose loss is the requirement rho_k.
        requirements: rho_k: rows of that loss, "train" or "validation" (training rows where there are none); or requirements of your
            own, {client: loss}; clients that are not named keep that of their warm-up.

    >>> import coterie as ct, torch
    >>> labels = {"a": 0.0, "b": 0.0, "c": 3.0}
    >>> clients = ct.data.from_tensors({k: (torch.ones(30, 1), torch.full((30,), v)) for k, v in labels.items()})
    >>> local = ct.LocalSGD(lr=0.05, batch_size=None, steps=ct.Steps(4))
    >>> need = {"a": 4.0, "b": 4.0, "c": 1.0}
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 2.0)
    >>> run = ct.fit(ct.MWFed(local=local, requirements=need), clients, model=model, rounds=60)
    >>> bool(run.x > 1.95)  # the average is 1; only from 2 on c has what it requires
    True
    """

    local: LocalSGD = LocalSGD()
    rate: Annotated[float, NOT_NEGATIVE] = 0.1
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    warmup_steps: Annotated[int, SIZE] = 100
    requirements: Annotated[Requirements, REQUIREMENTS] = "train"

    needs = "sum"
    keeps = 1

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Gaps, updates and the appeal that is measured."""
        return asks(local_update), *asks_of_requirements(self, gaps, measure)

    def __post_init__(self) -> None:
        as_pairs(self)
        if not isinstance(self.local.steps, Steps):
            raise InputError(
                f"MWFed shares out local steps among the clients and cannot do so with {self.local.steps}; give local steps"
            )

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raises `InputError` for a requirement of a client that does not exist."""
        check_names(self, everyone)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Uniform weights; requirements are computed when clients are first asked."""
        self.check(federation.everyone)
        return State(x, x, torch.zeros(len(federation.everyone), dtype=torch.float64))

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`: first their gaps, then training."""
        warm = with_steps(self.local, self.warmup_steps)
        payload: dict[str, Any] = requirement_payload(
            self.requirements,
            federation.clients,
            state.start,
            federation.holders(KEPT),
            warm,
        )
        replies = federation.ask(federation.clients, gaps, x=state.x, **payload)
        positions = federation.positions(replies.clients)
        log_weights = state.log_weights.clone()
        log_weights[positions] += self.rate * (replies.gap > 0).double()
        # Normalised in every round, so that the exponentials stay finite however long a run is.
        log_weights -= log_weights.logsumexp(0)
        weights = log_weights[positions].softmax(0)
        steps = (
            (self.local.steps.count * len(positions) * weights)
            .round()
            .clamp(min=1)
            .long()
        )
        average = federation.average(
            replies.clients,
            local_update,
            weights=weights,
            x=state.x,
            local=self.local,
            steps=PerClient(steps),
        )
        x = shift(
            state.x, average.delta, rate_of(self.lr, federation.round), federation.dim
        )
        log = Log(
            weights=average.by_client(average.weights),
            gap=replies.by_client(replies.gap),
            steps=replies.by_client(steps),
        )
        federation.discard(KEPT, (*replies.failed, *average.failed))
        return State(x, state.start, log_weights), log

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def measure(self, state: State, federation: Federation) -> Log:
        """Appeal to seen and unseen clients, see `measure_appeal`."""
        return measure_appeal(
            state.x,
            state.start,
            federation,
            self.local,
            warmup_steps=self.warmup_steps,
            requirements=self.requirements,
        )

    def keeps_validation(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """All clients, where requirements are losses on validation rows."""
        if self.requirements != "validation":
            return ()
        return names
