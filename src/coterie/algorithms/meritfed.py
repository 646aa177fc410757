"""MeritFed: each target learns with those whose updates lower its own loss.

Papers: N. Tupitsa, S. Horváth, M. Takáč, E. Gorbunov, "Federated Learning Can Find Friends That Are Beneficial", 2024, Algorithm 1
and Eqs. 7 to 9; and its newer text "Selective Collaboration for Robust Federated Learning".

Symbols: x = x^t, delta_i = -g_i(x^t, xi_i) (an update, added), weights = w^{t+1} on the simplex, lr = gamma,
phi(w) = f_target(x + lr * sum_i w_i delta_i) (Eq. 7), md_step = alpha and md_steps = T of the mirror descent (Eq. 8).

Differences from the paper: weights persist over rounds (warm start; a reset each round stays at the level of plain averaging);
updates may be several local steps; one run serves one target, several or all, each with its own model and weights; with partial
participation the descent runs over the renormalised weights of those who replied, and absent clients keep theirs; the zeroth-order
estimator multiplies by the direction that the printed formula drops. A step multiplies a gradient that already contains `lr`.

The server holds n updates per target. Models differ after the first round, so T targets cost each client T local trainings a round.
Individual updates are needed, which excludes secure aggregation; `oracle="delegated"` shows them to the target.

Laws (tests/laws): md_steps = 0 is uniform averaging; delegated = gradient, bit by bit; all targets = each target alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Log
from coterie.core.cohort import Cohort
from coterie.core.errors import InputError, Rules, RunError, check_field, check_fields, nearest
from coterie.core.federation import Federation
from coterie.core.rng import Rng
from coterie.core.task import Gradient, Task, Update, task
from coterie.core.training import LocalSGD
from coterie.core.vector import dot, move
from coterie.core.wire import Each
from coterie.solvers.mirror import entropic_descent, two_point_candidates, two_point_estimate

__all__ = ["MeritFed", "State"]


class LocalUpdates(NamedTuple):
    """One update per model."""

    delta: Update  # [n, T, d + b]


class TargetGradient(NamedTuple):
    """Gradient of the target's loss."""

    gradient: Gradient  # [n, d + b]


class TargetLosses(NamedTuple):
    """Losses of candidates at the target."""

    losses: Tensor  # [n, q]


class Descent(NamedTuple):
    """Weights after mirror descent at the target."""

    weights: Tensor  # [n, m]


@task
def local_updates(cohort: Cohort, *, x: Tensor, local: LocalSGD) -> LocalUpdates:
    """Line 5: local training from each of the models x [T, d + b], one after the other to save memory."""
    return LocalUpdates(torch.stack([cohort.train(model, local) - model for model in x], dim=1))


@task
def target_gradient(cohort: Cohort, *, x: Tensor, rows: str, batch: int | None, step: int) -> TargetGradient:
    """Gradient of f_target at the candidate x [n, d + b]; a fresh minibatch per step if `batch` is an int."""
    purpose = f"oracle/{step}"
    found = [c.gradient(x[i], part=part, batch_size=batch, purpose=purpose) for i, c, part in _targets(cohort, rows)]
    return TargetGradient(torch.cat(found))


@task
def target_losses(cohort: Cohort, *, xs: Tensor, rows: str, batch: int | None, step: int) -> TargetLosses:
    """Losses of f_target at the candidates xs [n, q, d + b]."""
    purpose = f"oracle/{step}"
    found = [c.losses(xs[i], part=part, batch_size=batch, purpose=purpose) for i, c, part in _targets(cohort, rows)]
    return TargetLosses(torch.cat(found))


@task
def target_descent(
    cohort: Cohort, *, x: Tensor, deltas: Tensor, weights: Tensor, lr: float, steps: int, step: float, damping: bool,
    rows: str, batch: int | None,
) -> Descent:  # fmt: skip
    """The whole descent at the target: x [n, d + b], deltas [n, m, d + b], weights [n, m]."""

    def gradient(candidate: Tensor, k: int) -> Tensor:
        return target_gradient(cohort, x=candidate, rows=rows, batch=batch, step=k).gradient

    slopes = _slopes(x, deltas, lr, cohort.layout.dim, gradient)
    return Descent(entropic_descent(slopes, weights, steps=steps, step=step, damping=damping))


def _targets(cohort: Cohort, rows: str) -> Iterator[tuple[int, Cohort, str]]:
    # Which rows speak for a target depends on what it has itself, not on who shares its process.
    for i in range(len(cohort.names)):
        yield i, cohort.only([i]), "validation" if rows != "train" and cohort.has(i, "validation") else "train"


def _candidates(x: Tensor, weights: Tensor, deltas: Tensor, lr: float, dim: int) -> Tensor:
    # One target at a time: a product over all targets at once would round differently with their number.
    return torch.stack([move(*row, lr, dim) for row in zip(x, weights, deltas, strict=True)])


def _slopes(
    x: Tensor, deltas: Tensor, lr: float, dim: int, gradient: Callable[[Tensor, int], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Function weights [T, m] -> dphi/dw = lr <grad f(x + lr w'Delta), delta_i> [T, m]; its k-th call is the k-th step."""
    steps = count()

    def slopes(weights: Tensor) -> Tensor:
        found = gradient(_candidates(x, weights, deltas, lr, dim), next(steps))
        return torch.stack([lr * dot(d, g, dim) for d, g in zip(deltas, found, strict=True)]).double()

    return slopes


class State(NamedTuple):
    """Targets, their models [T, d + b] ([1, d + b] while they are equal), and weights over all N clients [T, N]."""

    targets: tuple[str, ...]
    x: Tensor
    weights: Tensor


@dataclass(frozen=True)
class MeritFed:
    """Learn, for each target, with whom to learn.

    Attributes:
        targets: "all", the name of one client, or several names: who gets a model of its own.
        local: settings of local training at every client.
        lr: server learning rate gamma > 0 on the weighted sum of updates.
        md_steps: steps of mirror descent a round, >= 0 (T of the papers' experiments).
        md_step: its step size alpha >= 0 (Eq. 8), or "line-search".
        oracle: what is asked of the target: its "gradient"; its "loss" alone (zeroth order, Eq. 9); or "delegated": the
            target descends itself and sees all updates.
        oracle_batch_size: rows of a fresh minibatch per step ("SMD"); None: all rows ("MD").
        validation: rows of f_target: the target's "validation" rows (its training rows if it has none), its "train" rows, or
            rows held by the "server", which then serve one model for everybody.
        damping: average the weights over the steps, as the authors' code does on non-quadratic tasks.
        directions: random directions per step with the loss oracle (1 in Eq. 9).
        radius: h of Eq. 9, the distance of the loss queries, > 0.

    >>> import coterie as ct, torch
    >>> x = torch.linspace(-1, 1, 60)[:, None]
    >>> clients = ct.data.from_tensors({"a": (x, x[:, 0]), "b": (x, x[:, 0]), "c": (x, -x[:, 0])})
    >>> run = ct.fit(ct.MeritFed(targets="a", md_step=1.0), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=20)
    >>> round(run.weights["a"]["c"], 1)  # c would pull the other way
    0.0
    """

    targets: str | tuple[str, ...] = "all"
    local: LocalSGD = LocalSGD()
    lr: float = 1.0
    md_steps: int = 5
    md_step: float | str = 1.0
    oracle: str = "gradient"
    oracle_batch_size: int | None = None
    validation: str = "validation"
    damping: bool = False
    directions: int = 1
    radius: float = 0.01

    def __post_init__(self) -> None:
        given: Any = self.targets
        names = (given,) if isinstance(given, str) else given
        good = isinstance(names, tuple | list) and bool(names) and all(isinstance(n, str) and n for n in names)
        check_field(self, "targets", self.targets, good, '"all", a client\'s name, or several names')
        check_fields(
            self, lr=Rules.POSITIVE, md_steps=Rules.COUNT, oracle=Rules.one_of("gradient", "loss", "delegated"),
            oracle_batch_size=Rules.OPTIONAL_SIZE, validation=Rules.one_of("validation", "train", "server"),
            damping=Rules.FLAG, directions=Rules.SIZE, radius=Rules.POSITIVE,
        )  # fmt: skip
        search = self.md_step == "line-search"
        good = search or Rules.NOT_NEGATIVE[0](self.md_step)
        check_field(self, "md_step", self.md_step, good, 'a number >= 0 or "line-search"')
        if search and (self.oracle != "gradient" or self.oracle_batch_size is not None):
            raise InputError('MeritFed.md_step = "line-search" needs oracle = "gradient" and oracle_batch_size = None')

    def check(self, everyone: tuple[str, ...]) -> tuple[str, ...]:
        """The targets among these clients. Raises `InputError` for one that does not exist."""
        if self.validation == "server":
            return ("server",)
        chosen = (self.targets,) if isinstance(self.targets, str) else tuple(self.targets)
        targets = everyone if chosen == ("all",) else tuple(sorted(set(chosen)))
        for name in targets:
            if name not in everyone:
                raise InputError(f"MeritFed.targets names {name!r}, which is no client; {nearest(name, everyone)}")
        return targets

    def init(self, x: Tensor, federation: Federation) -> State:
        """Uniform weights, once."""
        targets, total = self.check(federation.everyone), len(federation.everyone)
        return State(targets, x[None], torch.full((len(targets), total), 1 / total, dtype=torch.float64))

    def round(self, state: State, federation: Federation, rng: Rng) -> tuple[State, Log]:
        """One round with `federation.clients`; targets answer the oracle whether they participate or not."""
        got = federation.ask(federation.clients, local_updates, x=state.x, local=self.local)  # lines 3-7
        total = len(state.targets)
        x, deltas = state.x.expand(total, -1), got.delta.expand(-1, total, -1).transpose(0, 1)  # [T, n, d + b]
        number = {name: i for i, name in enumerate(federation.everyone)}
        here = torch.tensor([number[n] for n in got.clients])
        mass = state.weights[:, here].sum(1, keepdim=True)
        before = state.weights[:, here] / mass

        oracle = _Oracle(self, state.targets, federation, x, deltas, rng)
        after = oracle.descend(before)  # line 8
        phi = oracle.losses([oracle.candidates(w) for w in (before, after)])
        lost = [t for t, name in enumerate(state.targets) if name in oracle.failed]
        after[lost] = before[lost]
        moved = oracle.candidates(after)  # line 9
        moved[lost] = x[lost]
        weights = state.weights.clone()
        weights[:, here] = after * mass

        names = tuple("*" if t == "server" else t for t in state.targets)
        found = {"phi_before": phi[:, 0], "phi_after": phi[:, 1], "effective_collaborators": 1 / after.square().sum(1)}
        log: Log = {key: dict(zip(names, values.tolist(), strict=True)) for key, values in found.items()}
        log["weights"] = {t: got.named(w) for t, w in zip(names, after, strict=True)}
        return State(state.targets, moved, weights), log

    def models(self, state: State) -> Tensor | dict[str, Tensor]:
        """A model per target; one for everybody where the server's rows are the target."""
        if state.targets == ("server",):
            return state.x[0]
        return dict(zip(state.targets, state.x.expand(len(state.targets), -1), strict=True))

    def keeps_validation(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Targets whose validation rows weigh the others and so are not trained on."""
        return self.check(names) if self.validation == "validation" else ()

    def vectors(self, participants: int, clients: int) -> int:
        """Model vectors that a round holds."""
        everybody = self.targets in ("all", ("all",), ["all"]) and self.validation != "server"
        return participants * (clients if everybody else 1 if isinstance(self.targets, str) else len(self.targets))


@dataclass
class _Oracle:
    """What a round asks of its targets; each query is one ask to all of them."""

    method: MeritFed
    targets: tuple[str, ...]
    federation: Federation
    x: Tensor
    deltas: Tensor
    rng: Rng
    failed: set[str] = field(default_factory=set)

    def candidates(self, weights: Tensor) -> Tensor:
        return _candidates(self.x, weights, self.deltas, self.method.lr, self.federation.dim)

    def losses(self, candidates: list[Tensor], batch: int | None = None, step: int = 0) -> Tensor:
        return self._ask(target_losses, "losses", xs=Each(torch.stack(candidates, dim=1)), batch=batch, step=step)

    def descend(self, weights: Tensor) -> Tensor:  # Eq. 8
        m = self.method
        if m.oracle == "delegated":
            return self._ask(
                target_descent, "weights", weights, x=Each(self.x), deltas=Each(self.deltas), weights=Each(weights),
                lr=m.lr, steps=m.md_steps, step=m.md_step, damping=m.damping, batch=m.oracle_batch_size,
            )  # fmt: skip
        slopes = _slopes(self.x, self.deltas, m.lr, self.federation.dim, self._gradient)
        if m.oracle == "loss":
            steps = count()
            slopes = lambda w: self._zeroth_order(w, next(steps))  # noqa: E731
        value = lambda w: self.losses([self.candidates(w)])[:, 0]  # noqa: E731
        try:
            return entropic_descent(slopes, weights, steps=m.md_steps, step=m.md_step, value=value, damping=m.damping)
        except InputError:
            raise
        except ValueError as error:  # finite updates and gradients whose product overflows
            sentence = (
                f"round {self.federation.round}: the descent of MeritFed diverged ({error}); lower the learning rates"
            )
            raise RunError(sentence) from error

    def _gradient(self, candidates: Tensor, step: int) -> Tensor:
        batch = self.method.oracle_batch_size
        return self._ask(target_gradient, "gradient", x=Each(candidates), batch=batch, step=step)

    def _zeroth_order(self, weights: Tensor, step: int) -> Tensor:
        h, q = self.method.radius, self.method.directions
        streams = [self.rng.child("direction", step, name).generator() for name in self.targets]
        drawn = [two_point_candidates(w, h=h, directions=q, generator=g) for w, g in zip(weights, streams, strict=True)]
        points = torch.stack([points for points, _ in drawn], dim=1)  # [2q, T, n]
        losses = self.losses([self.candidates(w) for w in points], self.method.oracle_batch_size, step)
        return torch.stack([two_point_estimate(row, e, h) for row, (_, e) in zip(losses, drawn, strict=True)])  # Eq. 9

    def _ask(self, what: Task[Any], field_: str, default: Tensor | None = None, **payload: Any) -> Tensor:
        # A single target must answer. Of several, one that fails keeps its model and the others go on.
        need = 1 / len(self.targets)
        got = self.federation.ask(self.targets, what, need=need, rows=self.method.validation, **payload)
        self.failed |= set(got.failed)
        values: Tensor = getattr(got, field_)
        if not got.failed:
            return values
        full = values.new_zeros(len(self.targets), *values.shape[1:]) if default is None else default.clone()
        full[torch.tensor([self.targets.index(n) for n in got.clients])] = values
        return full
