"""The contribution of each client's update to each target: Shapley values of the fall of the target's loss in a round.

No client trains for it. The server holds the updates of a round and asks each target for its loss with combinations of them, on
validation rows on which no client trains and by which no method chooses.

The worth of a set S of clients to a target with model x is U(S) = f(x) - f(x(S)), positive if S helps, where

- game "renormalised": x(S) = x + lr W sum_S w_j delta_j / sum_S w_j, with W the sum over all: "had the others not come";
- game "fixed": x(S) = x + lr sum_S w_j delta_j: "had the others sent zeros".

Sums over rounds ignore that later rounds would differ without a client.

Source: L. S. Shapley 1953; as contribution in federated learning Z. Liu et al., "GTG-Shapley", ACM TIST 2022.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.base.vector import move
from coterie.compute.cohort import Cohort
from coterie.config.run import Contribution
from coterie.contract.federation import Federation, QuorumError
from coterie.contract.method import Log
from coterie.contract.replies import VECTORS, Replies
from coterie.contract.task import Form, Holds, Task, task
from coterie.contract.wire import PerClient
from coterie.run.files import FEWEST_VALIDATION_ROWS
from coterie.solvers import shapley

MOST_EXACT = 8
"""Clients of a round whose 2^n sets are all asked."""
BLOCK_BYTES = 1 << 26
"""Bytes of candidate models that are asked at once."""
SKIP, TRUNCATE = 1e-2, 1e-3
"""GTG-Shapley: shares of the target's first loss below which a round is skipped, and an order ends."""
MISFIT = 1e-3
"""Share of a step that a weighted sum of updates may leave unexplained, beside rounding of the model."""


class CandidateLosses(NamedTuple):
    """Mean losses of candidate models on the rows kept for contribution, [n, q]."""

    losses: Annotated[Tensor, "loss", Form(lambda p, layout: (p["xs"].shape[1],))]


@task
def candidate_losses(
    cohort: Cohort,
    *,
    xs: Annotated[Tensor, Holds(("models", "model"), each=True, model=True)],
) -> CandidateLosses:
    """Losses of the candidates xs [n, q, d + b] at each client."""
    losses = [
        cohort.only([i]).losses(xs[i], part="contribution")
        for i in range(len(cohort.names))
    ]
    return CandidateLosses(torch.cat(losses))


def most_candidates(settings: Contribution, per_round: int) -> int:
    """Return about how many models a round asks a target about at most, with so many clients in it."""
    exact = 1 << min(per_round, 62)
    if settings.estimator == "leave-one-out":
        return per_round + 2
    is_exact = settings.estimator == "exact"
    if settings.estimator is None:
        is_exact = per_round <= MOST_EXACT
    if is_exact:
        return exact
    return min(exact, shapley.most_orders(per_round) * per_round) + 2


def check_estimator(settings: Contribution, per_round: int) -> None:
    """Raise `InputError` for an estimator that costs too much with so many clients a round."""
    if settings.estimator == "exact" and per_round > MOST_EXACT:
        raise InputError(
            f'contribution.estimator = "exact" asks the losses of 2^{per_round} sets of clients; from {MOST_EXACT + 1} '
            'clients a round on give "gtg" or "leave-one-out"'
        )


class ContributionRow(NamedTuple):
    """A line of contribution.csv: phi is the fall of the target's loss; error the standard error over orders, None if exact."""

    round: int
    target: str
    client: str
    phi: float
    error: float | None


class _Step(NamedTuple):
    """A move of a target's model: from x [d + b] by lr times the sum of w [n] times deltas [n, d + b]."""

    x: Tensor
    weights: Tensor
    deltas: Tensor
    lr: float
    dim: int
    renormalised: bool

    def to(self, mask: int) -> Tensor:
        """The model x(S) [d + b] of the set with this bit mask."""
        members = torch.tensor(
            [float(mask >> j & 1) for j in range(len(self.weights))],
            dtype=torch.float64,
        )
        weights = self.weights * members
        total = float(weights.sum())
        if self.renormalised and total > 0:
            weights = weights * (float(self.weights.sum()) / total)
        return move(self.x, weights, self.deltas, self.lr, self.dim)


@dataclass
class Contributions:
    """Measures contributions in some rounds of a run.

    Attributes:
        settings: How often, and how.
        everyone: Sorted names of the clients.
        method: What the method is called in sentences.
        first_losses: By target, its loss before the first round, by which rounds are skipped.
        log: What the estimates of the last measured round cost and left out, by target; empty where values are exact.
    """

    settings: Contribution
    everyone: tuple[str, ...]
    method: str
    first_losses: dict[str, float] = field(default_factory=dict)
    log: dict[str, dict[str, float]] = field(default_factory=dict)
    _seen: list[tuple[Task[Any], Mapping[str, Any], Replies[Any]]] = field(
        default_factory=list
    )

    def looks_at(self, number: int) -> bool:
        """Return True for a round that is measured, the first and then every so many, and for the second one.

        After the first round targets have models of their own, so that the second shows whether a method can be measured at all.
        """
        return number == 2 or self._is_due(number)

    @property
    def _not_a_sum(self) -> str:
        return (
            f"run.contribution needs a method whose round adds a weighted sum of updates that the server holds one by one, such "
            f"as fedavg or meritfed; {self.method} does not"
        )

    def _is_due(self, number: int) -> bool:
        return (number - 1) % self.settings.every == 0

    def watch(self, view: Federation) -> Federation:
        """Return a view whose replies are looked at."""
        self._seen.clear()
        self.log = {}
        return replace(view, observer=lambda *seen: self._seen.append(seen))

    def measure(
        self,
        view: Federation,
        before: Mapping[str, Tensor],
        afterwards: Mapping[str, Tensor],
        log: Log,
        rng: Rng,
    ) -> list[ContributionRow]:
        """Return the contributions to each target in the round of this view.

        Args:
            view: Whom to ask, without attackers and filters.
            before: The models [d + b] before the round, by target; `*` is that of all others.
            afterwards: The same after it.
            log: What the method says of the round; `weights` are those of its sum.
            rng: Draws orders of clients.

        Raises:
            InputError: The models did not move by a weighted sum of updates that the server holds.
        """
        tells_updates = any("update" in seen[0].kinds.values() for seen in self._seen)
        if tells_updates and not afterwards:
            raise InputError(self._not_a_sum)
        sizes = view.engine.sizes("contribution")
        steps, names = {}, {}
        for target in self.everyone:
            if sizes.get(target, 0) < FEWEST_VALIDATION_ROWS:
                continue
            key = target if target in afterwards else "*"
            if key in afterwards:
                steps[target], names[target] = self._step(
                    key, before[key], afterwards[key], log, view.dim
                )
        if not steps or not self._is_due(view.round):
            return []
        estimator = self.settings.estimator
        if estimator is None and view.per_round > MOST_EXACT:
            estimator = "gtg"
        if estimator == "gtg":
            estimates = [
                (target, *self._estimate(target, step, view, rng.child(target)))
                for target, step in steps.items()
            ]
        else:
            estimates = self._exactly(steps, view)
        rows = []
        for target, values, errors in estimates:
            for client, value, error in zip(names[target], values, errors, strict=True):
                rows.append(ContributionRow(view.round, target, client, value, error))
        return rows

    def _step(
        self, key: str, start: Tensor, end: Tensor, log: Log, dim: int
    ) -> tuple[_Step, tuple[str, ...]]:
        logged = log.get("weights", {})
        by_client = {}
        if isinstance(logged, Mapping):
            by_client = logged.get(key, logged)
        if any(isinstance(weight, Mapping) for weight in by_client.values()):
            by_client = {}  # they are weights by target, and this is none of the targets
        change = (end - start)[:dim].double()
        rounding = torch.finfo(start.dtype).eps * float(end[:dim].double().norm()) * 10
        tolerated = MISFIT * float(change.norm()) + rounding
        for asked_task, payload, replies in reversed(self._seen):
            weights = torch.tensor(
                [by_client.get(n, 0.0) for n in replies.clients], dtype=torch.float64
            )
            for deltas in _updates(asked_task, payload, replies, start):
                if deltas.shape[1] != len(start):
                    # Some layers are personal, and the server has no whole update.
                    continue
                moved = move(torch.zeros_like(start), weights, deltas, 1.0, dim)
                sums = moved[:dim].double()
                # The learning rate of the server that explains the change best.
                length = float(sums @ sums)
                lr = 0.0
                if length > 0:
                    lr = float(change @ sums) / length
                if float((change - lr * sums).norm()) <= tolerated:
                    renormalised = self.settings.game == "renormalised"
                    step = _Step(start, weights, deltas, lr, dim, renormalised)
                    return step, replies.clients
        raise InputError(self._not_a_sum)

    def _losses(
        self, models: Mapping[str, Tensor], view: Federation
    ) -> dict[str, Tensor]:
        """The losses of candidates [q, d + b] by target; without the targets that did not reply."""
        try:
            replies = view.ask(
                models,
                candidate_losses,
                need=0.0,
                xs=PerClient(torch.stack(list(models.values()))),
            )
        except QuorumError:
            return {}
        return dict(zip(replies.clients, replies.losses, strict=True))

    def _worths(
        self, steps: Mapping[str, _Step], masks: Sequence[int], view: Federation
    ) -> dict[str, Tensor]:
        """f(x) - f(x(S)) of the sets S of some masks [q], by target, in blocks of so many bytes."""
        x = next(iter(steps.values())).x
        bytes_of_set = x.numel() * x.element_size() * len(steps)
        at_once = max(1, BLOCK_BYTES // bytes_of_set)
        blocks: dict[str, list[Tensor]] = {}
        for low in range(0, len(masks) + 1, at_once):
            sets = (0, *masks)[low : low + at_once]
            candidates = {}
            for target, step in steps.items():
                candidates[target] = torch.stack([step.to(mask) for mask in sets])
            for target, block in self._losses(candidates, view).items():
                blocks.setdefault(target, []).append(block)
        losses = {target: torch.cat(parts) for target, parts in blocks.items()}
        return {
            t: values[0] - values[1:]
            for t, values in losses.items()
            if len(values) == len(masks) + 1
        }

    def _exactly(
        self, steps: Mapping[str, _Step], view: Federation
    ) -> list[tuple[str, list[float], Sequence[float | None]]]:
        results: list[tuple[str, list[float], Sequence[float | None]]] = []
        count = len(next(iter(steps.values())).weights)
        everyone = 2**count - 1
        leave_one_out = self.settings.estimator == "leave-one-out"
        masks = list(range(1, everyone + 1))
        if leave_one_out:
            masks = [everyone, *[everyone & ~(1 << j) for j in range(count)]]
        for target, worths in self._worths(steps, masks, view).items():
            if leave_one_out:
                values = shapley.leave_one_out(float(worths[0]), worths[1:])
            else:
                values = shapley.exact(torch.cat([worths.new_zeros(1), worths]))
            results.append((target, values.tolist(), [None] * count))
        return results

    def _estimate(
        self, target: str, step: _Step, view: Federation, rng: Rng
    ) -> tuple[list[float], Sequence[float | None]]:
        if target not in self.first_losses:
            start = self._losses({target: view.engine.x[None]}, view)
            if target not in start:
                return [], []
            self.first_losses[target] = float(start[target][0])
        scale = self.first_losses[target]

        def worth(sets: Sequence[int]) -> list[float]:
            values: list[float] = self._worths({target: step}, sets, view)[
                target
            ].tolist()
            return values

        sampled = shapley.permutations(
            worth,
            len(step.weights),
            rng.generator(),
            skip=SKIP * scale,
            truncate=TRUNCATE * scale,
        )
        for key in ("asked", "orders", "truncated", "remainder"):
            self.log.setdefault(f"contribution_{key}", {})[target] = float(
                getattr(sampled, key)
            )
        return sampled.values.tolist(), sampled.errors.tolist()


def _updates(
    asked_task: Task[Any],
    payload: Mapping[str, Any],
    replies: Replies[Any],
    origin: Tensor,
) -> Iterator[Tensor]:
    """Updates [n, d + b] among the replies that may have moved the model `origin`."""
    for key, kind in asked_task.kinds.items():
        if kind not in VECTORS:
            continue
        vectors = replies.fields[key]
        if vectors.ndim == 2:
            yield vectors
        elif vectors.ndim == 3 and vectors.shape[1] == 1:
            yield vectors[:, 0]
        elif vectors.ndim == 3 and isinstance(starts := payload.get("x"), Tensor):
            yield from (
                vectors[:, place]
                for place, start in enumerate(starts)
                if torch.equal(start, origin)
            )
