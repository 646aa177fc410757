r"""MaxFL: a global model that is good enough for as many clients as possible.

Paper: Y. J. Cho, D. Jhunjhunwala, T. Li, V. Smith, G. Joshi, "Maximizing Global Model Appeal in Federated Learning", 2022,
Algorithm 1 and Eqs. 3, 4 and 6.

Optimises: the number of clients whose loss is below what they require.
Sends: d + 1 up, d + 1 down (local_update; the initial model too where a requirement is still to be found).
Memory: four numbers: the client's requirement, and how its own model does.
Use: partners may leave, and the model should be good enough for as many of them as possible.
Avoid: the worst-served clients matter most: a client far from its requirement gets little weight. `qffl` and `mwfed`
do the opposite.
Formula: q_k = \sigma(g_k) \, \sigma(-g_k), \quad g_k = F_k(x) - \rho_k, \quad x \leftarrow x + \eta \, \frac{\sum_k
q_k \delta_k}{\varepsilon + \sum_k q_k}

Symbols: x = w^(t,0), delta_k = w_k^(t,tau) - x (an update, added), start = w^(0,0), xhat_k = the client's own model after warmup_steps
steps from start, rho_k = its loss (the client's requirement), gap_k = F_k(x) - rho_k, q_k = h'(gap_k), lr = eta_g, eps = epsilon.

Differences from the paper: q = s(1 - s) as in Eq. 4, where line 8 prints q = s; line 13 subtracts what line 11 prints with the other
sign. The client sends its gap and the server computes q, since who may send q can always send the largest. A fixed number of
mandatory rounds, since a method does not know how many there will be. "Everybody takes part" in those rounds means that everybody may
be drawn; how many are is the run's own setting. Tuning (Table 3) serves the gap alone: local training starts from x. The pool is
asked at x itself, without tuning.

A requirement is computed when a client is first asked, always as of round 0 from the initial model, so it does not matter when that
is. Of xhat_k the client keeps four numbers and no weights. The initial model travels beside x in those rounds only in which someone
still lacks its requirement. The pool of flexible participation asks all clients for a loss in each round.

Only a weighted sum of updates is needed, so MaxFL goes with secure aggregation (the gaps are seen).

Laws:
- equal gaps are uniform averaging:
  tests/methods/test_maxfl.py::test_equal_gaps_are_uniform_averaging
- q is symmetric around a gap of 0:
  tests/methods/test_maxfl.py::test_weights_are_symmetric_around_a_gap_of_zero_and_largest_there
- a client with a gap far from 0 is ignored:
  tests/methods/test_maxfl.py::test_a_client_far_from_its_requirement_is_ignored
- eps -> infinity freezes the model:
  tests/methods/test_maxfl.py::test_a_large_eps_freezes_the_model_but_not_the_statistics
- convex surrogates find the plain average on the two-client toy:
  tests/methods/test_maxfl.py::test_convex_surrogates_find_the_plain_average_and_the_sigmoid_does_not
- the linear one is FedAvg among clients of equal size:
  tests/methods/test_maxfl.py::test_a_linear_surrogate_is_fedavg_among_clients_of_equal_size
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from torch import Tensor

from coterie.base.rng import Rng
from coterie.base.vector import move
from coterie.compute.appeal import (
    KEPT,
    REQUIREMENTS,
    Required,
    Requirements,
    Start,
    as_pairs,
    asks_of_requirements,
    check_names,
    gaps,
    measure,
    measure_appeal,
    requirement,
    requirement_payload,
    solve_gaps,
    staying,
    with_steps,
)
from coterie.compute.cohort import Cohort
from coterie.config.local import SERVER_RATE, LocalSGD, ServerRate, rate_of
from coterie.config.rules import COUNT, POSITIVE, SIZE, one_of
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.requests import Asks
from coterie.contract.task import Form, OneModel, OneUpdate, task
from coterie.solvers import appeal


class LocalUpdates(NamedTuple):
    """Gap [n] and update [n, d + b]."""

    gap: Annotated[Tensor, "gap", Form()]
    delta: OneUpdate


@task
def local_update(
    cohort: Cohort, *, x: OneModel, start: Start | None, required: Required, warm: LocalSGD, rows: str, local: LocalSGD,
    tuning_steps: int,
) -> LocalUpdates:  # fmt: skip
    """Lines 8 to 11."""
    tuned = x
    if tuning_steps:
        tuned = cohort.train(x, with_steps(local, tuning_steps), purpose="tuning")
    gap = cohort.loss(tuned) - requirement(cohort, start, required, warm, rows)
    return LocalUpdates(gap, cohort.updates(x, local))


class State(NamedTuple):
    """Global and initial model [d + b]."""

    x: Tensor
    start: Tensor


@options
class MaxFL(Method[State]):
    """Weigh clients by how near the model is to what they require: far below or far above, they count little.

    Attributes:
        local: settings of local training: b, tau and eta_l (Eq. 5, lines 9 and 10).
        lr: server learning rate eta_g > 0 (Eq. 6).
        eps: epsilon > 0, added to the sum of the weights q_k (Eq. 6).
        warmup_steps: local steps from the initial model w^(0,0) to xhat_k, whose loss is the requirement rho_k (Section 5).
        requirements: rho_k (Eq. 1): rows of that loss, "train" or "validation" (training rows where there are none); or requirements
            of your own, {client: loss}; clients that are not named keep that of their warm-up (all warm up, for xhat_k of the metrics).
        flexible: after the mandatory rounds only those to whom the model appeals (F_k(x) < rho_k) may be drawn, anew in every round
            (Section 3, "Appeal-based Flexible Client Participation"): the run's clients_per_round (m of line 6), or all if fewer.
            If it appeals to nobody, nobody trains, and the model stays as it is for good; the log says when.
        mandatory_rounds: rounds in which all clients may be drawn, with `flexible` (10 of 200 in Tables 1 and 2).
        tuning_steps: local steps from x before the gap is computed (Table 3; 0: none).
        surrogate: h for "does not appeal" (Eq. 3), sigmoid, relu, exp, log or linear; the weights are q_k = h'(gap_k) (Eq. 4). With
            "linear", q = 1 whatever the gap: FedAvg with equal weights, whose clients opt out and are measured like MaxFL's, as
            the paper lets them in the baseline of Tables 1 and 2.

    >>> import coterie as ct, torch
    >>> centres = {"a": 0.0, "b": 0.5, "c": 9.0}
    >>> clients = ct.data.from_tensors({k: (torch.ones(30, 1), torch.full((30,), v)) for k, v in centres.items()})
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(5))
    >>> run = ct.fit(ct.MaxFL(local=local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=20)
    >>> {k: round(w, 1) for k, w in run.weights["*"].items()}  # c could only be served at the cost of a and b
    {'a': 0.5, 'b': 0.5, 'c': 0.0}
    """

    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    eps: Annotated[float, POSITIVE] = 1e-8
    warmup_steps: Annotated[int, SIZE] = 100
    requirements: Annotated[Requirements, REQUIREMENTS] = "train"
    flexible: bool = False
    mandatory_rounds: Annotated[int, COUNT] = 10
    tuning_steps: Annotated[int, COUNT] = 0
    surrogate: Annotated[str, one_of(*appeal.SURROGATES)] = "sigmoid"

    keeps = 1

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates with gaps, who stays in a flexible pool, and the appeal that is measured."""
        if not self.flexible:
            return asks_of_requirements(self, local_update, measure)
        return asks_of_requirements(self, local_update, gaps, measure)

    def __post_init__(self) -> None:
        as_pairs(self)

    @property
    def participation(self) -> str:
        """A flexible pool is drawn from here, any other by the run loop."""
        return "own" if self.flexible else "run"

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raises `InputError` for a requirement of a client that does not exist."""
        check_names(self, everyone)

    def init(self, x: Tensor, federation: Federation) -> State:
        """Requirements are computed when clients are first asked."""
        self.check(federation.everyone)
        return State(x, x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`, or with some of the flexible pool."""
        clients, log = federation.clients, Log()
        if self.flexible:
            pool = self._pool(state, federation)
            log["pool"], log["skipped"] = len(pool), float(not pool)
            if not pool:
                return state, log
            m = min(federation.per_round, len(pool))
            drawn = Rng.named(
                federation.seed, "participants", federation.round
            ).permutation(len(pool), m)
            clients = tuple(pool[i] for i in np.sort(drawn).tolist())  # line 6
        payload = self._payload(state, clients, federation)
        replies = federation.ask(
            clients,
            local_update,
            x=state.x,
            local=self.local,
            tuning_steps=self.tuning_steps,
            **payload,
        )
        federation.discard(KEPT, replies.failed)
        q = solve_gaps(appeal.weights, replies.gap, self.surrogate)  # Eq. 4
        rate = rate_of(self.lr, federation.round) / (float(q.sum()) + self.eps)
        x = move(
            state.x,
            q / (q.sum() + self.eps),
            replies.delta,
            rate_of(self.lr, federation.round),
            federation.dim,
        )  # line 13, Eq. 6
        log["objective"] = float(
            solve_gaps(appeal.objective, replies.gap, self.surrogate)
        )  # Eq. 3
        log.update(
            sum_q=float(q.sum()),
            effective_lr=rate,
            q=replies.by_client(q),
            gap=replies.by_client(replies.gap),
        )
        log["weights"] = replies.by_client(q)
        return State(x, state.start), log

    def _pool(self, state: State, federation: Federation) -> tuple[str, ...]:
        """Names of the clients that may be drawn; clients opt out and in as the model changes."""
        if federation.round <= self.mandatory_rounds:
            return federation.everyone
        return staying(
            state.x,
            state.start,
            federation,
            self.local,
            warmup_steps=self.warmup_steps,
            requirements=self.requirements,
        )

    def _payload(
        self, state: State, clients: tuple[str, ...], federation: Federation
    ) -> dict[str, Any]:
        warm = with_steps(self.local, self.warmup_steps)
        return requirement_payload(
            self.requirements, clients, state.start, federation.holders(KEPT), warm
        )

    def models(self, state: State) -> Tensor:
        """One model for all clients."""
        return state.x

    def measure(self, state: State, federation: Federation) -> Log:
        """Appeal to seen and unseen clients, see `measure_appeal`."""
        return measure_appeal(
            state.x, state.start, federation, self.local, warmup_steps=self.warmup_steps,
            requirements=self.requirements, surrogate=self.surrogate,
        )  # fmt: skip

    def keeps_validation(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """All clients, where requirements are losses on validation rows."""
        if self.requirements != "validation":
            return ()
        return names
