r"""MeritFed: each target learns with those whose updates lower its own loss.

Papers: N. Tupitsa, S. Horváth, M. Takáč, E. Gorbunov, "Federated Learning Can Find Friends That Are Beneficial", 2024, Algorithm 1
and Eqs. 7 to 9; and its newer text "Selective Collaboration for Robust Federated Learning", whose line numbers are given here and
whose appendix D.4 has MeritFedA.

Optimises: the loss of each of T targets.
Sends: T d up, T d down (local_updates: T = 1 in the first round); d up, d down (target_gradient: each target, in each
of md_steps steps); 2 up, 2 d down (target_losses: each target); d up, d down (own_update: anchored uploads).
Memory: none.
Use: a client wants the best model for itself and does not know whose data help; some clients may even send harmful updates.
Avoid: a target has very few validation rows, whose chance the weights would follow; or the server must not see single updates.
Formula: w \leftarrow \operatorname{argmin}_{w \in \Delta} \, f_t \Bigl( x + \gamma \sum_i w_i \delta_i \Bigr), \quad
x \leftarrow x + \gamma \sum_i w_i \delta_i

Symbols: x = x^t, delta_i = x_{i,K} - x^t (an update, added; -g_i for K = 1 and a local rate of 1), weights = w^{t+1} on the simplex,
lr = gamma, phi(w) = f_target(x + lr * sum_i w_i delta_i) (Eq. 7), md_step = alpha and md_steps = T of the mirror descent (Eq. 8).

MeritFedA (`server_optimiser = "adam"`): phi(w) = f_target(x + a(g)) with g = -sum_i w_i delta_i, where a is the step of Adam from the
target's moments: Adam takes gradients, and an update points the other way. The descent goes through the step, entry by entry and bias
correction included: dphi/dw_i = <grad f * (-da/dg), delta_i>. Adam's first step goes lr along every entry whatever its size, so that
in the first round weights hardly move. Moments, a pair of vectors per target, are kept at the server; buffers are averaged as ever.

Differences from the paper: weights persist over rounds (warm start; a reset each round stays at the level of plain averaging).
Updates may be several local steps. One run serves one target, several or all, each with its own model and weights. With partial
participation the descent runs over the renormalised weights of those that replied, and absent clients keep theirs. The zeroth-order
estimator multiplies by the direction that the printed formula drops. A step multiplies a gradient that already contains `lr`.

The server holds n updates per target. Models differ after the first round, so T targets cost each client T local trainings a round;
`uploads = "anchored"` (ours) makes it two (`compute/anchored.py`): from the mean of the targets' models, and for each target one client
from the target's own. Fixed points are those of the paper's form. Statistics in buffers start from the mean's.

`oracle_steps = "one"` (ours) goes all md_steps along one oracle gradient, taken at the weights before the descent. `oracle_every` asks
the oracle in every so many rounds, with steps so many times as long; in between weights stay. `oracle_steps = "scores"` (ours) is the
delegated descent of a model whose outputs are linear in what is trained: exact steps from forward passes alone
(`compute/target_tasks.py`). With each of these, and with anchored uploads, phi is measured in rounds that are evaluated.

Individual updates are needed, which excludes secure aggregation; `oracle="delegated"` shows them (and Adam's moments) to the target.

Logged for each target: phi before and after the descent, 1 / sum w^2, and `gap_bound`. It is at least phi(w) - min phi at the new
weights, of those that replied, if phi is convex (f convex and SGD at the server) and the oracle is "gradient" or "delegated" on all
rows; else an estimate. It is phi(w) - phi(w0) + max_i <w0 - e_i, dphi/dw(w0)>: the Frank-Wolfe gap at the weights w0 before the
descent, where its first step takes the gradient anyway, less what the descent has gained. It costs nothing, is exact where phi is
linear, and bounds the delta of Theorems 1 and 2. Without a step (md_steps = 0) there is none, and a target that fails has no such
numbers in that round.

Laws:
- md_steps = 0 is uniform averaging:
  tests/methods/test_meritfed.py::test_without_descent_it_is_uniform_averaging
- delegated = gradient, bit by bit:
  tests/methods/test_meritfed.py::test_the_delegated_descent_is_the_gradient_descent_bit_by_bit
- all targets = each target alone:
  tests/methods/test_meritfed.py::test_all_targets_at_once_are_each_target_alone_bit_by_bit
- anchored uploads have the fixed points of the paper's form:
  tests/methods/test_meritfed.py::test_anchored_uploads_have_the_fixed_points_of_the_papers_form
- along one gradient weights go where the closed form says:
  tests/methods/test_meritfed.py::test_one_gradient_goes_all_steps_at_once
- scores = the delegated descent of a linear model:
  tests/methods/test_meritfed.py::test_scores_are_the_delegated_descent_of_a_linear_model
- Adam with betas = (0, 0) and lr = eps * c is SGD with lr = c as eps grows:
  tests/methods/test_meritfed.py::test_without_memory_and_with_a_large_eps_adam_is_sgd
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Annotated, Any

import torch
from torch import Tensor

from coterie.base.errors import InputError, RunError
from coterie.base.names import match_clients
from coterie.base.rng import Rng
from coterie.base.vector import Layout
from coterie.compute.anchored import Offsets, anchored_updates
from coterie.compute.server_step import ServerStep, descend
from coterie.compute.target_state import State, join_rounds
from coterie.compute.target_tasks import (
    target_descent,
    target_gradient,
    target_losses,
    target_rows,
)
from coterie.compute.tasks import local_updates, own_update
from coterie.config.local import (
    SERVER_RATE,
    LocalSGD,
    Schedule,
    ServerRate,
    rate_of,
)
from coterie.config.rules import (
    BETAS,
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SIZE,
    TARGETS,
    Rule,
    one_of,
    optional,
)
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.replies import Replies
from coterie.contract.requests import Among, Asks, as_many, asks
from coterie.contract.task import Task
from coterie.contract.wire import PerClient
from coterie.solvers import NotFiniteError
from coterie.solvers.mirror import MOST_TRIALS, two_point_candidates, two_point_estimate

STEP = Rule(
    lambda v: v == "line-search" or isinstance(v, Schedule) or NOT_NEGATIVE.test(v),
    'a number >= 0 or "line-search"',
)
"""Rule of the step of mirror descent."""


@options
class MeritFed(Method[State]):
    """Learn, for each target, with whom to learn.

    Attributes:
        targets: "all", the name of one client, or several names: who gets a model of its own (the papers: client 1, Eq. 1).
        local: settings of local training at every client: K and gamma_l of Algorithm 1, lines 5 to 7 (K = 1 and gamma_l = 1 in the
            papers' experiments).
        lr: server learning rate gamma > 0 on the weighted sum of updates (line 10), a `Schedule`, or a function of the round.
        md_steps: steps of mirror descent a round, >= 0 (T of the papers' experiments; k = 0..T-1 in Eq. 8).
        md_step: its step size alpha >= 0 (Eq. 8), or a `Schedule` by round (the authors' code divides it by 10 after round 400 on
            images and text); or "line-search" (ours), which needs no tuning and comes near the minimum of phi
            in few steps, and so fits few validation rows too well: there few fixed steps serve better.
        oracle: what is asked of the target about phi (Eq. 7): its "gradient"; its "loss" alone (zeroth order, Eq. 9); or
            "delegated": the target descends itself and sees all updates.
        oracle_batch_size: rows of a minibatch xi^k per step (Eq. 9; "MeritFed SMD"); None: all rows ("MeritFed MD").
        validation: rows of f_target in line 9: the target's "validation" rows (its training rows if it has none), its "train" rows,
            "fresh" samples, `oracle_batch_size` of them per step, where the task can draw them, or rows held by the "server", which
            then serve one model for all clients.
        damping: average the weights over the steps, w <- t/(t+1) w + 1/(t+1) MD(w), as the authors' code does on non-quadratic tasks.
        accelerate: take the accelerated form of mirror descent, which the text before Eq. 8 allows, with the loss oracle: as many
            queries lead nearer to the minimum of phi, and so fit few validation rows sooner.
        directions: random directions e per step with the loss oracle (1 in Eq. 9).
        radius: h of Eq. 9, the distance of the loss queries, > 0.
        server_optimiser: "sgd" (line 10), or "adam" (MeritFedA, appendix D.4): lr is then Adam's.
        betas: decay beta_1 and beta_2 of the moments, each in [0, 1), with "adam" (Kingma and Ba 2015, Algorithm 1).
        eps: epsilon > 0 in the denominator, with "adam" (the same Algorithm 1).
        uploads: "each": a client trains from the model of each target; "anchored" (ours): from their mean, and for each target one
            client from its own model, which costs two trainings whatever the number of targets.
        oracle_steps: "all": an oracle gradient in each of md_steps steps; "one" (ours): one for all of them; "scores" (ours): none,
            where oracle is "delegated" and outputs are linear in what is trained, as those of logistic.
        oracle_every: rounds between two descents; a step is as many times as long (ours).
        cheap_above: with more targets than this, and the oracle "gradient" and "sgd" at the server, take uploads "anchored",
            oracle_steps "one" and oracle_every 2, which costs little more than two trainings; None: never (ours).

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> clients = ct.data.from_tensors({"a": (x, x[:, 0]), "b": (x, x[:, 0]), "c": (x, -x[:, 0])})
    >>> run = ct.fit(ct.MeritFed(targets="a", md_step=1.0), clients, model="logistic", rounds=20)
    >>> round(run.weights["a"].get("c", 0.0), 1)  # c would pull the other way; a weight of 0 is not listed
    0.0
    """

    targets: Annotated[str | tuple[str, ...], TARGETS] = "all"
    local: LocalSGD = LocalSGD()
    lr: Annotated[ServerRate, SERVER_RATE] = 1.0
    md_steps: Annotated[int, COUNT] = 5
    md_step: Annotated[float | str | Schedule, STEP] = 1.0
    oracle: Annotated[str, one_of("gradient", "loss", "delegated")] = "gradient"
    oracle_batch_size: Annotated[int | None, optional(SIZE, "all rows")] = None
    validation: Annotated[str, one_of("validation", "train", "fresh", "server")] = (
        "validation"
    )
    damping: bool = False
    accelerate: bool = False
    directions: Annotated[int, SIZE] = 1
    radius: Annotated[float, POSITIVE] = 0.01
    server_optimiser: Annotated[str, one_of("sgd", "adam")] = "sgd"
    betas: Annotated[tuple[float, float], BETAS] = (0.9, 0.999)
    eps: Annotated[float, POSITIVE] = 1e-8
    uploads: Annotated[str, one_of("each", "anchored")] = "each"
    oracle_steps: Annotated[str, one_of("all", "one", "scores")] = "all"
    oracle_every: Annotated[int, SIZE] = 1
    cheap_above: Annotated[int | None, optional(SIZE, "never")] = None

    @property
    def tasks(self) -> tuple[Asks, ...]:
        """Updates of the model of each target, and what its oracle asks."""
        if self.validation == "server":  # the oracle is there, too
            return (asks(local_updates),)
        return (*self._update_asks(), *self._oracle_asks())

    def _update_asks(self) -> list[Asks]:
        count_of = as_many(self.targets)
        of_each = asks(local_updates, models=count_of)
        at_anchor = asks(own_update, models=lambda n: 1 + count_of(n))
        # How many targets there are, and so whether the cheap form runs, is not known here.
        if self.cheap_above is not None and self._can_be_cheap:
            return [of_each, at_anchor]
        if self.uploads == "each":
            return [of_each]
        return [at_anchor]

    def _oracle_asks(self) -> list[Asks]:
        rows: dict[str, Any] = {"rows": self.validation}
        batch = self.oracle_batch_size
        steps = range(self.md_steps + 1)
        oracle: list[Asks] = []
        # Losses asked of a target in a round: phi before and after the descent, and those of the descent itself.
        losses = 2
        if self.validation == "fresh":
            oracle.append(asks(target_rows, rows="fresh"))
        if self.oracle == "delegated":
            oracle.append(
                asks(
                    target_descent,
                    **rows,
                    batch=batch,
                    steps=self.md_steps,
                    step=self.md_step,
                    betas=self._adam_betas,
                    scores=self.oracle_steps == "scores",
                )
            )
        elif self.oracle == "gradient" and self.md_steps:
            oracle.append(
                asks(
                    target_gradient, models=self._steps, **rows, batch=batch, step=steps
                )
            )
        elif self.oracle == "loss":
            losses += 2 * self.directions * self.md_steps
        if self.md_step == "line-search":
            losses += 1 + MOST_TRIALS * self.md_steps
        # phi is measured on all rows where they can be had.
        batch_of_losses: Any = Among(batch, None)
        if self.validation == "fresh":
            batch_of_losses = batch
        oracle.append(
            asks(
                target_losses, models=losses, **rows, batch=batch_of_losses, step=steps
            )
        )
        return oracle

    @property
    def _adam_betas(self) -> tuple[float, float] | None:
        """The decays of Adam's moments at the server; None with plain SGD."""
        if self.server_optimiser == "sgd":
            return None
        return self.betas

    def __post_init__(self) -> None:
        if self.md_step == "line-search" and (
            self.oracle != "gradient" or self.oracle_batch_size is not None
        ):
            raise InputError(
                'MeritFed.md_step = "line-search" needs oracle = "gradient" and oracle_batch_size = None'
            )
        if self.validation == "fresh" and self.oracle_batch_size is None:
            raise InputError(
                'MeritFed.validation = "fresh" needs oracle_batch_size, the number of rows to draw per step'
            )
        if self.accelerate and (self.oracle != "loss" or self.damping):
            raise InputError(
                'MeritFed.accelerate needs oracle = "loss" and damping = false'
            )
        by_scores = self.oracle_steps == "scores"
        exact = (
            self.oracle == "delegated"
            and self.server_optimiser == "sgd"
            and self.oracle_batch_size is None
        )
        if by_scores and not exact:
            raise InputError(
                'MeritFed.oracle_steps = "scores" needs oracle = "delegated", server_optimiser = "sgd" and oracle_batch_size = None'
            )
        cheap = self.oracle_steps == "one" or (self.oracle_every > 1 and not by_scores)
        if cheap and (self.oracle != "gradient" or self.md_step == "line-search"):
            raise InputError(
                'MeritFed.oracle_steps = "one" and oracle_every need oracle = "gradient" and a number as md_step; change one of them'
            )
        if self.uploads == "anchored" and self.server_optimiser == "adam":
            raise InputError(
                'MeritFed.uploads = "anchored" needs server_optimiser = "sgd"; take it, or uploads = "each"'
            )

    @property
    def needs_server_rows(self) -> bool:
        """True if the server's rows are the target."""
        return self.validation == "server"

    @property
    def _can_be_cheap(self) -> bool:
        return (
            self.oracle == "gradient"
            and self.md_step != "line-search"
            and self.server_optimiser == "sgd"
        )

    def _form(self, targets: int) -> MeritFed:
        """The method with so many targets: its cheap form where `cheap_above` says so."""
        few_targets = self.cheap_above is None or targets <= self.cheap_above
        if few_targets or not self._can_be_cheap:
            return self
        return replace(
            self,
            uploads="anchored",
            oracle_steps="one",
            oracle_every=2,
            cheap_above=None,
        )

    def notes(self, everyone: tuple[str, ...]) -> tuple[str, ...]:
        """Say where the cheap form is taken in place of the paper's."""
        count = len(self.target_names(everyone))
        if self._form(count) is self:
            return ()
        words = "linear models are near those of the paper's form, which trains each target's model at each client; others may be worse"
        return (
            f'with {count} targets the cheap form ran: {words} (cheap_above = "default" brings it back)',
        )

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for a target that does not exist, and for one target with anchored uploads."""
        if len(self.target_names(everyone)) == 1 and self.uploads == "anchored":
            raise InputError(
                'MeritFed.uploads = "anchored" saves trainings of several targets; with one take uploads = "each"'
            )

    def check_model(self, layout: Layout) -> None:
        """Raise `InputError` where scores are asked of a model that cannot be linear in what is trained."""
        if self.oracle_steps == "scores" and (len(layout.layers) > 1 or layout.buffers):
            raise InputError(
                f'MeritFed.oracle_steps = "scores" needs one trained layer, and this model has {len(layout.layers)} '
                f'({", ".join(layout.layers)[:60]}); freeze all but the last, or take "one"'
            )

    def target_names(self, everyone: tuple[str, ...]) -> tuple[str, ...]:
        """The targets among these clients, or the server."""
        if self.needs_server_rows:
            return ("server",)
        return match_clients(self, "targets", everyone, everybody="all")

    @property
    def exempt(self) -> dict[str, str]:
        """Laws of `coterie.testing` that these settings do not keep, with the reason."""
        reasons = {}
        if self.uploads == "anchored":
            reasons["alone"] = "anchored uploads need several targets"
        if self.server_optimiser == "adam":
            reasons["diverges"] = "the length of Adam's steps is bounded"
        if self.oracle == "loss":
            reasons["names"] = "directions are drawn over the clients by name"
        return reasons

    def _measures(self, federation: Federation) -> bool:
        """Return True if phi is measured in this round: where rounds are to be cheap, in the last descent before an evaluation."""
        is_cheap = self.oracle_steps != "all" or self.oracle_every > 1
        if not is_cheap and self.uploads == "each":
            return True
        until_next = range(federation.round, federation.round + self.oracle_every)
        return any(map(federation.is_evaluated, until_next))

    @property
    def _steps(self) -> int:
        """Steps of a descent, each with an oracle gradient of its own."""
        if self.oracle_steps == "one":
            return min(1, self.md_steps)
        return self.md_steps

    def init(self, x: Tensor, federation: Federation) -> State:
        """Uniform weights, once. Raises `InputError` for rows of `validation` that do not exist."""
        self.check_model(federation.layout)
        dim, clients = federation.dim, len(federation.everyone)
        targets = self.target_names(federation.everyone)
        if self.validation in ("fresh", "server"):
            federation.ask(targets, target_rows, rows=self.validation)
        weights = torch.full((len(targets), clients), 1 / clients, dtype=torch.float64)
        # What only Adam, or only anchored uploads need, is empty without them.
        moments = x.new_zeros(len(targets), 2, 0)
        if self.server_optimiser == "adam":
            moments = x.new_zeros(len(targets), 2, dim)
        offsets = Offsets.start(x[:dim], 0, 0)
        if self._form(len(targets)).uploads == "anchored":
            offsets = Offsets.start(x[:dim], len(targets), clients)
        taken = torch.zeros(len(targets), dtype=torch.int64)
        return State(targets, x[None], weights, moments, taken, *offsets)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """One round with `federation.clients`, of a large model some targets at a time; targets that do not participate answer, too."""
        form = self._form(len(state.targets))
        if form is not self:
            return form.round(state, federation, rng)
        if self.uploads == "anchored":
            return self._anchored_round(state, federation, rng)
        at_once = total = len(state.targets)
        # With a sampler all targets are trained in one ask.
        if self.local.sampler is None:
            at_once = federation.groups_at_once(total, len(federation.clients))
        return self._round_in_parts(state, federation, rng, at_once)

    def _anchored_round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        offsets = Offsets(state.offsets, state.visited)
        replies, models, deltas, (values, visited) = anchored_updates(
            federation, state.x, state.weights, offsets, self.local
        )
        moved = state._replace(x=models, offsets=values, visited=visited)
        return self._descend(moved, replies, deltas, federation, rng)

    def _round_in_parts(
        self, state: State, federation: Federation, rng: Rng, at_once: int
    ) -> tuple[State, Log]:
        # Lines 3 to 8.
        ask = partial(
            federation.ask, federation.clients, local_updates, local=self.local
        )
        total = len(state.targets)
        # While all targets have one model, as in the first round, one training is that of all.
        shared: Replies[Any] | None = None
        if len(state.x) == 1:
            shared = ask(x=state.x)
        rounds: list[tuple[State, Log]] = []
        for low in range(0, total, at_once):
            part = state.only(slice(low, low + at_once))
            replies = shared
            if replies is None:
                replies = ask(x=part.x)
                # Who is refused for one target is refused for all, which only one ask can do.
                if replies.failed and at_once < total:
                    return self._round_in_parts(state, federation, rng, total)
            by_target = replies.delta.expand(-1, len(part.targets), -1)
            deltas = by_target.transpose(0, 1)  # [T, n, d + b]
            rounds.append(self._descend(part, replies, deltas, federation, rng))
            # They are gone before the updates for the next targets are made.
            del replies, by_target, deltas
        return join_rounds(rounds)

    def _descend(
        self,
        state: State,
        replies: Replies[Any],
        deltas: Tensor,
        federation: Federation,
        rng: Rng,
    ) -> tuple[State, Log]:
        """The round from the updates [T, n, d + b] of those that replied."""
        x = state.x.expand(len(state.targets), -1)
        positions = federation.positions(replies.clients)
        mass = state.weights[:, positions].sum(1, keepdim=True)
        old_weights = state.weights[:, positions] / mass

        server = ServerStep(
            x,
            deltas,
            state.moments,
            state.taken,
            rate_of(self.lr, federation.round),
            self._adam_betas,
            self.eps,
            federation.dim,
        )
        oracle = _Oracle(self, state.targets, federation, server, rng)
        try:
            new_weights, measured = old_weights.clone(), {}
            if (federation.round - 1) % self.oracle_every == 0:
                new_weights, gap = oracle.descend(old_weights)  # line 9
                if self._measures(federation):
                    phi = oracle.phi(old_weights, new_weights)
                    measured = {"phi_before": phi[:, 0], "phi_after": phi[:, 1]}
                    if self.md_steps:
                        measured["gap_bound"] = phi[:, 1] - phi[:, 0] + gap
            new_models, _, moments = server.step(new_weights)  # line 10
        except NotFiniteError as error:
            # Updates and gradients are finite, and their product overflows.
            cure = (
                f"the descent of MeritFed diverged ({error}); lower the learning rates"
            )
            raise RunError(f"round {federation.round}: {cure}") from error
        taken = state.taken + 1
        # A target that did not answer keeps what it had.
        lost = [t for t, name in enumerate(state.targets) if name in oracle.failed]
        new_weights[lost] = old_weights[lost]
        new_models[lost] = x[lost]
        moments[lost] = state.moments[lost]
        taken[lost] = state.taken[lost]
        weights = state.weights.clone()
        weights[:, positions] = new_weights * mass

        names = state.targets
        if self.needs_server_rows:
            names = ("*",)  # its weights are those of all clients
        measured["effective_collaborators"] = 1 / new_weights.square().sum(1)
        log: Log = {}
        for column, values in measured.items():
            by_target = dict(zip(names, values.tolist(), strict=True))
            for t in lost:
                del by_target[names[t]]
            log[column] = by_target
        log["weights"] = {
            name: replies.by_client(row)
            for name, row in zip(names, new_weights, strict=True)
        }
        new_state = state._replace(
            x=new_models, weights=weights, moments=moments, taken=taken
        )
        return new_state, log

    def models(self, state: State) -> Tensor | dict[str, Tensor]:
        """A model per target; one for all clients where the server's rows are the target."""
        if state.targets == ("server",):
            return state.x[0]
        return dict(
            zip(state.targets, state.x.expand(len(state.targets), -1), strict=True)
        )

    def keeps_validation(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Targets whose validation rows weigh the others and so are not trained on."""
        if self.validation != "validation":
            return ()
        return self.target_names(names)

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Models of the targets before and after, and the updates for one target, or as many models when its parts are joined."""
        named = self.targets
        if isinstance(named, str):
            named = (named,)
        targets = len(named)
        if named == ("all",) and self.validation != "server":
            targets = clients
        models_before_and_after = 2 * targets
        moments = 0
        if self.server_optimiser == "adam":
            moments = 2 * targets
        if self._form(targets).uploads == "each":
            return max(per_round, targets) + models_before_and_after + moments
        updates = per_round * targets + per_round  # of all targets, and at the anchor
        offsets_and_visits = 4 * targets * clients  # two of each, before and after
        return updates + offsets_and_visits + models_before_and_after + moments


@dataclass
class _Oracle:
    """The queries of a round to its targets; each is one ask to all of them."""

    method: MeritFed
    targets: tuple[str, ...]
    federation: Federation
    server: ServerStep
    rng: Rng
    failed: set[str] = field(default_factory=set)

    def phi(self, *weights: Tensor) -> Tensor:
        """Values of phi at each of some weights [T, n] by the same rows, all of them where they can be had [T, q]."""
        batch: int | None = None
        if self.method.validation == "fresh":
            batch = self.method.oracle_batch_size
        return self._losses(weights, batch, self.method.md_steps)

    def descend(self, weights: Tensor) -> tuple[Tensor, Tensor]:  # Eq. 8
        m, server = self.method, self.server
        step = m.md_step
        if not isinstance(step, str):
            # A descent goes as far as one in each round until the next, and one gradient as far as all steps.
            factor = m.oracle_every
            if m.oracle_steps == "one":
                factor *= m.md_steps
            step = rate_of(step, self.federation.round) * factor
        settings: dict[str, Any] = {
            "steps": m._steps,
            "step": step,
            "damping": m.damping,
        }
        if m.oracle == "delegated":
            descended, gap = self._ask(
                target_descent,
                x=PerClient(server.x),
                deltas=PerClient(server.deltas),
                weights=PerClient(weights),
                moments=PerClient(server.moments),
                taken=PerClient(server.taken),
                lr=server.lr,
                betas=server.betas,
                eps=server.eps,
                batch=m.oracle_batch_size,
                scores=m.oracle_steps == "scores",
                **settings,
            )
            return descended, gap
        slopes = server.slopes(self._gradient)
        if m.oracle == "loss":
            steps = count()

            def slopes(w: Tensor) -> Tensor:
                return self._zeroth_order(w, next(steps))

        def value(w: Tensor) -> Tensor:
            return self.phi(w)[:, 0]

        return descend(
            slopes, weights, value=value, accelerated=m.accelerate, **settings
        )

    def _gradient(self, candidates: Tensor, step: int) -> Tensor:
        batch = self.method.oracle_batch_size
        (gradients,) = self._ask(
            target_gradient, x=PerClient(candidates), batch=batch, step=step
        )
        return gradients

    def _losses(
        self, weights: Iterable[Tensor], batch: int | None, step: int
    ) -> Tensor:
        """f_target [T, q] of the models to which each of some weights [T, n] leads."""
        candidates = torch.stack([self.server.step(w)[0] for w in weights], dim=1)
        (losses,) = self._ask(
            target_losses, xs=PerClient(candidates), batch=batch, step=step
        )
        return losses

    def _zeroth_order(self, weights: Tensor, step: int) -> Tensor:
        """Eq. 9: dphi/dw [T, n] from losses at two points along each of some random directions."""
        h, q = self.method.radius, self.method.directions
        points, directions = [], []
        for name, w in zip(self.targets, weights, strict=True):
            generator = self.rng.child("direction", step, name).generator()
            own_points, own_directions = two_point_candidates(
                w, h=h, directions=q, generator=generator
            )
            points.append(own_points)
            directions.append(own_directions)
        queries = torch.stack(points, dim=1)  # [2q, T, n]
        losses = self._losses(queries, self.method.oracle_batch_size, step)
        estimates = [
            two_point_estimate(row, e, h)
            for row, e in zip(losses, directions, strict=True)
        ]
        return torch.stack(estimates)

    def _ask(self, oracle_task: Task[Any], **payload: Any) -> list[Tensor]:
        """The fields of the targets' answers [T, ...]; 0 at a target that fails."""
        # A single target must answer. Of several, one that fails keeps its model and the others go on.
        need = 1 / len(self.targets)
        answers = self.federation.ask(
            self.targets, oracle_task, need=need, rows=self.method.validation, **payload
        )
        self.failed |= set(answers.failed)
        values: list[Tensor] = [
            getattr(answers, name) for name in oracle_task.reply._fields
        ]
        if not answers.failed:
            return values
        places = torch.tensor([self.targets.index(name) for name in answers.clients])
        of_all = []
        for value in values:
            zeros = value.new_zeros(len(self.targets), *value.shape[1:])
            of_all.append(zeros.index_copy(0, places, value))
        return of_all
