"""MeritFed: each target learns with those whose updates lower its own loss.

Papers: N. Tupitsa, S. Horváth, M. Takáč, E. Gorbunov, "Federated Learning Can Find Friends That Are Beneficial", 2024 (arXiv:2402.05050),
Algorithm 1; and the newer text "Selective Collaboration for Robust Federated Learning".

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

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.algorithm import Log
from coterie.core.cohort import Cohort
from coterie.core.errors import InputError, check_field, is_number, nearest
from coterie.core.federation import Federation, Replies
from coterie.core.rng import Rng
from coterie.core.task import Gradient, Update, task
from coterie.core.training import LocalSGD
from coterie.core.vector import dot, move
from coterie.core.wire import Each
from coterie.solvers.mirror import entropic_descent, entropic_step, two_point_candidates, two_point_estimate

__all__ = ["MeritFed", "State"]

ORACLES = ("gradient", "loss", "delegated")
VALIDATIONS = ("validation", "train", "server")


# ---- client half


class LocalUpdates(NamedTuple):
    """delta [n, T, d + b]: one update per model."""

    delta: Update


class TargetGradient(NamedTuple):
    """gradient of the target's loss [n, d + b]."""

    gradient: Gradient


class TargetLosses(NamedTuple):
    """losses of the candidates at the target [n, q]."""

    losses: Tensor


class Descent(NamedTuple):
    """weights after mirror descent at the target [n, m]."""

    weights: Tensor


@task
def local_updates(cohort: Cohort, *, x: Tensor, local: LocalSGD) -> LocalUpdates:
    """Line 5: local training from each of the models x [T, d + b], one after the other to save memory."""
    return LocalUpdates(torch.stack([cohort.train(model, local) - model for model in x], dim=1))


@task
def target_gradient(cohort: Cohort, *, x: Tensor, validation: str, batch: int | None, step: int) -> TargetGradient:
    """Gradient of f_target at the candidate x [n, d + b]; a fresh minibatch per step if `batch` is an int."""
    return TargetGradient(
        cohort.gradient(x, part=_part(cohort, validation), batch_size=batch, purpose=f"oracle/{step}")
    )


@task
def target_losses(cohort: Cohort, *, xs: Tensor, validation: str, batch: int | None, step: int) -> TargetLosses:
    """Losses of f_target at the candidates xs [n, q, d + b]."""
    return TargetLosses(cohort.losses(xs, part=_part(cohort, validation), batch_size=batch, purpose=f"oracle/{step}"))


@task
def target_descent(
    cohort: Cohort,
    *,
    x: Tensor,
    deltas: Tensor,
    weights: Tensor,
    lr: float,
    steps: int,
    step: float,
    damping: bool,
    validation: str,
    batch: int | None,
) -> Descent:
    """The whole mirror descent at the target: x [n, d + b], deltas [n, m, d + b], weights [n, m]."""

    def slope(w: Tensor, k: int) -> Tensor:
        candidates = torch.stack([move(*row, lr, cohort.layout.dim) for row in zip(x, w, deltas, strict=True)])
        gradient = target_gradient(cohort, x=candidates, validation=validation, batch=batch, step=k).gradient
        return _slopes(deltas, gradient, lr, cohort.layout.dim)

    return Descent(_descend(weights, slope, steps, step, damping))


def _part(cohort: Cohort, validation: str) -> str:
    has = all(cohort.has(i, "validation") for i in range(len(cohort.names)))
    return "train" if validation == "train" or not has else "validation"


def _slopes(deltas: Tensor, gradient: Tensor, lr: float, dim: int) -> Tensor:
    # One target at a time: a product over all targets at once would round differently with their number.
    return torch.stack([lr * dot(d, g, dim) for d, g in zip(deltas, gradient, strict=True)]).double()


def _descend(weights: Tensor, slope: Callable[[Tensor, int], Tensor], steps: int, step: float, damping: bool) -> Tensor:
    for k in range(steps):  # Eq. 8
        weights = entropic_step(weights, slope(weights, k), step, 1 / (k + 1) if damping else 1.0)
    return weights


# ---- server half


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
    >>> run = ct.fit(ct.MeritFed(targets="a", md_step=5.0), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=20)
    >>> {k: round(w, 1) for k, w in run.weights["a"].items()}  # c would pull the other way
    {'a': 0.5, 'b': 0.5, 'c': 0.0}
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
        names = (self.targets,) if isinstance(self.targets, str) else tuple(self.targets)
        good = bool(names) and all(isinstance(n, str) and n for n in names)
        check_field(self, "targets", self.targets, good, '"all", a client\'s name, or several names')
        check_field(self, "lr", self.lr, is_number(self.lr) and self.lr > 0, "a number > 0")
        check_field(self, "md_steps", self.md_steps, type(self.md_steps) is int and self.md_steps >= 0, "an int >= 0")
        step = self.md_step
        good = step == "line-search" or (not isinstance(step, str) and is_number(step) and step >= 0)
        check_field(self, "md_step", step, good, 'a number >= 0 or "line-search"')
        check_field(self, "oracle", self.oracle, self.oracle in ORACLES, " | ".join(ORACLES))
        size = self.oracle_batch_size
        good = size is None or (type(size) is int and size > 0)
        check_field(self, "oracle_batch_size", size, good, "None (all rows) or an int > 0")
        check_field(self, "validation", self.validation, self.validation in VALIDATIONS, " | ".join(VALIDATIONS))
        check_field(self, "damping", self.damping, isinstance(self.damping, bool), "true or false")
        check_field(
            self, "directions", self.directions, type(self.directions) is int and self.directions > 0, "an int > 0"
        )
        check_field(self, "radius", self.radius, is_number(self.radius) and self.radius > 0, "a number > 0")
        if step == "line-search" and (self.oracle != "gradient" or size is not None):
            raise InputError(
                'MeritFed.md_step = "line-search" needs oracle = "gradient" and oracle_batch_size = None: '
                "it compares losses of one objective"
            )

    def init(self, x: Tensor, federation: Federation) -> State:
        """Uniform weights, once. Raises `InputError` for a target that does not exist."""
        everyone = federation.everyone
        if self.validation == "server":
            targets: tuple[str, ...] = ("server",)
        elif self.targets == "all":
            targets = everyone
        else:
            targets = (self.targets,) if isinstance(self.targets, str) else tuple(sorted(set(self.targets)))
        for name in targets:
            if name not in everyone and name != "server":
                raise InputError(f"MeritFed.targets names {name!r}, which is no client; {nearest(name, everyone)}")
        uniform = torch.full((len(targets), len(everyone)), 1 / len(everyone), dtype=torch.float64)
        return State(targets, x[None], uniform)

    def round(self, state: State, federation: Federation, rng: Rng) -> tuple[State, Log]:
        """One round with `federation.clients`; targets answer the oracle whether they participate or not."""
        got = federation.ask(federation.clients, local_updates, x=state.x, local=self.local)  # lines 3-7
        count = len(state.targets)
        x = state.x.expand(count, -1)
        deltas = got.delta.expand(-1, count, -1).transpose(0, 1)  # [T, n, d + b]
        number = {name: i for i, name in enumerate(federation.everyone)}
        here = torch.tensor([number[n] for n in got.clients])
        before = state.weights[:, here]
        mass = before.sum(1, keepdim=True)
        before = before / mass

        round_ = _Round(self, state.targets, federation, x, deltas, rng)
        after = round_.descend(before)  # line 8
        phi = round_.phi(before, after)
        lost = [t for t, name in enumerate(state.targets) if name in round_.failed]
        after[lost] = before[lost]
        moved = torch.stack([round_.candidate(t, after[t]) for t in range(count)])  # line 9
        moved[lost] = x[lost]
        weights = state.weights.clone()
        weights[:, here] = after * mass
        return State(state.targets, moved, weights), self._log(state.targets, got, after, phi)

    def _log(self, targets: tuple[str, ...], got: Replies[LocalUpdates], weights: Tensor, phi: Tensor) -> Log:
        names = tuple("*" if t == "server" else t for t in targets)
        log: Log = {"weights": {t: got.named(w) for t, w in zip(names, weights, strict=True)}}
        collaborators = 1 / weights.square().sum(1)
        for key, values in (
            ("phi_before", phi[:, 0]),
            ("phi_after", phi[:, 1]),
            ("effective_collaborators", collaborators),
        ):
            log[key] = dict(zip(names, values.tolist(), strict=True))
        return log

    def models(self, state: State) -> Tensor | dict[str, Tensor]:
        """A model per target; one for everybody where the server's rows are the target."""
        if state.targets == ("server",):
            return state.x[0]
        return dict(zip(state.targets, state.x.expand(len(state.targets), -1), strict=True))

    def keeps_validation(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Targets whose validation rows weigh the others and so are not trained on."""
        if self.validation != "validation":
            return ()
        return names if self.targets == "all" else (self.targets,) if isinstance(self.targets, str) else self.targets

    def vectors(self, participants: int, clients: int) -> int:
        """Model vectors that a round holds."""
        targets = clients if self.targets == "all" else 1 if isinstance(self.targets, str) else len(self.targets)
        return participants * (1 if self.validation == "server" else targets)


class _Round:
    """Line 8 for all targets in step: every query is one ask to all of them."""

    def __init__(
        self,
        method: MeritFed,
        targets: tuple[str, ...],
        federation: Federation,
        x: Tensor,
        deltas: Tensor,
        rng: Rng,
    ) -> None:
        self.method, self.targets, self.federation, self.rng = method, targets, federation, rng
        self.x, self.deltas = x, deltas
        self.failed: set[str] = set()

    def candidate(self, target: int, weights: Tensor) -> Tensor:
        return move(self.x[target], weights, self.deltas[target], self.method.lr, self.federation.dim)

    def descend(self, weights: Tensor) -> Tensor:
        method = self.method
        if method.md_steps == 0:
            return weights
        if method.oracle == "delegated":
            return self._delegate(weights)
        if isinstance(method.md_step, str):
            return torch.stack([self._search(t, w) for t, w in enumerate(weights)])
        slope = self._slope if method.oracle == "gradient" else self._estimate
        return _descend(weights, slope, method.md_steps, method.md_step, method.damping)

    def phi(self, before: Tensor, after: Tensor) -> Tensor:
        """Losses [T, 2] on all rows of the oracle, at the weights before and after."""
        pairs = torch.stack(
            [torch.stack([self.candidate(t, w) for w in (before[t], after[t])]) for t in range(len(self.targets))]
        )
        return self._losses(pairs, None, 0)

    def _slope(self, weights: Tensor, step: int) -> Tensor:
        candidates = torch.stack([self.candidate(t, w) for t, w in enumerate(weights)])
        got = self._ask(target_gradient, x=Each(candidates), batch=self.method.oracle_batch_size, step=step)
        gradient = self._rows(got, got.gradient)
        return _slopes(self.deltas, gradient, self.method.lr, self.federation.dim)

    def _estimate(self, weights: Tensor, step: int) -> Tensor:
        drawn = [
            two_point_candidates(
                w,
                h=self.method.radius,
                directions=self.method.directions,
                generator=self.rng.child("direction", step, name).generator(),
            )
            for name, w in zip(self.targets, weights, strict=True)
        ]
        points = [torch.stack([self.candidate(t, w) for w in points]) for t, (points, _) in enumerate(drawn)]
        losses = self._losses(torch.stack(points), self.method.oracle_batch_size, step)
        rows = zip(losses, drawn, strict=True)
        return torch.stack([two_point_estimate(values, e, self.method.radius) for values, (_, e) in rows])

    def _search(self, target: int, weights: Tensor) -> Tensor:
        alone = _Round(
            self.method,
            (self.targets[target],),
            self.federation,
            self.x[target : target + 1],
            self.deltas[target : target + 1],
            self.rng,
        )
        found = entropic_descent(
            lambda w: alone._slope(w[None], 0)[0],
            weights,
            steps=self.method.md_steps,
            step="line-search",
            value=lambda w: alone._losses(alone.candidate(0, w)[None, None], None, 0)[0, 0],
            damping=self.method.damping,
        )
        self.failed |= alone.failed
        return found

    def _delegate(self, weights: Tensor) -> Tensor:
        method = self.method
        got = self._ask(
            target_descent,
            x=Each(self.x),
            deltas=Each(self.deltas),
            weights=Each(weights),
            lr=method.lr,
            steps=method.md_steps,
            step=method.md_step,
            damping=method.damping,
            batch=method.oracle_batch_size,
        )
        return self._rows(got, got.weights, weights)

    def _losses(self, xs: Tensor, batch: int | None, step: int) -> Tensor:
        got = self._ask(target_losses, xs=Each(xs), batch=batch, step=step)
        return self._rows(got, got.losses)

    def _ask(self, task_, /, **payload):  # type: ignore[no-untyped-def]
        # One target must answer. Of several, one that fails keeps its model and the others go on.
        need = "all" if len(self.targets) == 1 else 1 / len(self.targets)
        got = self.federation.ask(self.targets, task_, need=need, validation=self.method.validation, **payload)
        self.failed |= set(got.failed)
        return got

    def _rows(self, got, values: Tensor, default: Tensor | None = None) -> Tensor:  # type: ignore[no-untyped-def]
        """Replies in the order of the targets; for those that failed `default`, or zeros."""
        if got.clients == self.targets:
            return values
        full = values.new_zeros(len(self.targets), *values.shape[1:]) if default is None else default.clone()
        full[torch.tensor([self.targets.index(n) for n in got.clients])] = values
        return full
