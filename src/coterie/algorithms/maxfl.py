"""MaxFL: a global model that is good enough for as many clients as possible.

Paper: Y. J. Cho, D. Jhunjhunwala, T. Li, V. Smith, G. Joshi, "Maximizing Global Model Appeal in Federated Learning", Algorithm 1
and Eqs. 3, 4 and 6.

Symbols: x = w^(t,0), delta_k = w_k^(t,tau) - x (an update, added), start = w^(0,0), xhat_k = the client's own model after warmup_steps
steps from start, rho_k = its loss (the client's requirement), gap_k = F_k(x) - rho_k, q_k = h'(gap_k), lr = eta_g, eps = epsilon.

Differences from the paper: q = s(1 - s) as in Eq. 4, where line 8 prints q = s; line 13 subtracts what line 11 prints with the other
sign; the client sends its gap and the server computes q, since who may send q can always send the largest; a fixed number of
mandatory rounds, since a method does not know how many there will be. "Everybody takes part" in those rounds means that everybody may
be drawn. Tuning (Table 3) serves the gap alone: local training starts from x. The pool is asked at x itself, without tuning.

A requirement is computed when a client is first asked, always as of round 0 from the initial model, so it does not matter when that
is. Of xhat_k the client keeps four numbers and no weights. The initial model travels beside x in those rounds only in which someone
still lacks its requirement. The pool of flexible participation asks everybody for a loss in each round.

Only a weighted sum of updates is needed, so MaxFL goes with secure aggregation (the gaps are seen).

Laws (tests/laws): equal gaps are uniform averaging; q is symmetric around a gap of 0; a client with a gap far from 0 is ignored;
eps -> infinity freezes the model; convex surrogates find the plain average on the two-client toy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.algorithm import Log
from coterie.core.cohort import Cohort
from coterie.core.errors import InputError, Rules, RunError, check_field, check_fields, is_number, nearest
from coterie.core.federation import Federation
from coterie.core.rng import Rng
from coterie.core.task import Gap, Update, task
from coterie.core.training import LocalSGD, Steps
from coterie.core.vector import move
from coterie.core.wire import Each
from coterie.metrics import accuracy
from coterie.solvers import appeal

__all__ = ["MaxFL", "State", "measure_appeal"]

_TUNED = 5
"""Local steps from x after which appeal is measured once more (Table 3)."""
_CHUNK = 32
"""Clients whose own models are held at once."""
_MEASURED = (
    "gap", "slack", "train_loss", "appeal_train", "test_loss", "test_accuracy", "gm_appeal", "preferred_accuracy",
    "best_of_two", "gm_appeal_tuned", "preferred_accuracy_tuned", "best_of_two_tuned",
)  # fmt: skip


class Gaps(NamedTuple):
    """F_k(x) - rho_k [n]."""

    gap: Gap


class LocalUpdates(NamedTuple):
    """Gap [n] and update [n, d + b]."""

    gap: Gap
    delta: Update


class Measured(NamedTuple):
    """The quantities `_MEASURED` [n, m] and which of them are defined [n, m]."""

    values: Tensor
    defined: Tensor


@task
def gaps(cohort: Cohort, *, x: Tensor, start: Tensor | None, required: Tensor, warm: LocalSGD, rows: str) -> Gaps:
    """Whom the model appeals to: F_k(x) on all training rows, minus rho_k."""
    return Gaps(cohort.loss(x) - _requirement(cohort, start, required, warm, rows))


@task
def local_update(
    cohort: Cohort, *, x: Tensor, start: Tensor | None, required: Tensor, warm: LocalSGD, rows: str, local: LocalSGD,
    tuning_steps: int,
) -> LocalUpdates:  # fmt: skip
    """Lines 8 to 11."""
    near = cohort.train(x, _steps(local, tuning_steps), purpose="tuning") if tuning_steps else x
    gap = cohort.loss(near) - _requirement(cohort, start, required, warm, rows)
    return LocalUpdates(gap, cohort.train(x, local) - x)


@task
def measured(cohort: Cohort, *, x: Tensor, start: Tensor, required: Tensor, warm: LocalSGD, rows: str) -> Measured:
    """Each client's own comparison of x, and of x after a few local steps, with its xhat_k."""
    rho, solo = _requirement(cohort, start, required, warm, rows), _solo(cohort, start, warm, rows)
    found = []
    for some in _chunks(range(len(cohort.names))):
        part = replace(cohort.only(some), spent=dict(cohort.spent))  # looking is no part of the method's work
        need, own = rho[some], solo[some]
        tuned = part.train(x, _steps(warm, _TUNED), purpose="tuned")
        train, (test, right) = part.loss(x), _on_test(part, x)
        columns = [train - need, (need - train).clamp(min=0), train, (train < own[:, 1]).double(), test, right]
        columns += [*_preferences(test, right, own), *_preferences(*_on_test(part, tuned), own)]
        found.append(torch.stack(columns, dim=1))
    table = torch.cat(found)
    return Measured(table.nan_to_num(0.0), ~table.isnan())


def _preferences(test: Tensor, right: Tensor, own: Tensor) -> list[Tensor]:
    """Whether a model appeals on test rows, and the accuracy of the preferred and of the better of the two models, [n] each."""
    appeals = test < own[:, 2]
    either = torch.where(appeals, right, own[:, 3]), torch.maximum(right, own[:, 3])
    return [torch.where(test.isnan(), test, appeals.double()), *either]


def _on_test(cohort: Cohort, x: Tensor) -> tuple[Tensor, Tensor]:
    found = cohort.evaluate(x, {"accuracy": accuracy}, part="test")
    return found["loss"], found["accuracy"]


def _requirement(cohort: Cohort, start: Tensor | None, required: Tensor, warm: LocalSGD, rows: str) -> Tensor:
    """rho_k [n]: the user's where there is one, else that of the warm-up."""
    return torch.where(required.isnan(), _solo(cohort, start, warm, rows)[:, 0], required)


def _solo(cohort: Cohort, start: Tensor | None, warm: LocalSGD, rows: str) -> Tensor:
    """rho_k, training loss, test loss and test accuracy of xhat_k [n, 4], computed once; NaN where there are no rows."""
    found = cohort.memory.get("maxfl", torch.full((4,), math.nan, dtype=torch.float64))
    new = torch.nonzero(~cohort.memory.known("maxfl")).flatten().tolist()
    if new and start is None:
        raise RuntimeError("the requirement is lost (a process ended?); it is computed anew when next asked")
    for some in _chunks(new):
        part = replace(cohort.only(some), round=0)
        own = part.train(start, warm, purpose="warmup")  # type: ignore[arg-type]
        train, held = part.loss(own), [i for i in range(len(some)) if rows != "train" and part.has(i, rows)]
        rho = train.clone()
        if held:
            rho[held] = part.only(held).loss(own[held], part=rows)
        found[some] = torch.stack([rho, train, *_on_test(part, own)], dim=1)
    if new:
        cohort.memory.put("maxfl", found)
    return found


def _chunks(positions: Any) -> Iterator[list[int]]:
    for low in range(0, len(positions), _CHUNK):
        yield list(positions[low : low + _CHUNK])


def _steps(local: LocalSGD, count: int) -> LocalSGD:
    """The same batch size and learning rate; a sampler belongs to the training proper."""
    return replace(local, steps=Steps(count), sampler=None)


def _solved(function: Callable[..., Tensor], gap: Tensor, surrogate: str) -> Tensor:
    try:
        return function(gap, surrogate=surrogate)
    except ValueError as error:
        raise RunError(f'MaxFL.surrogate = "{surrogate}" cannot weigh these gaps ({error}); "sigmoid" can') from error


def measure_appeal(
    x: Tensor, start: Tensor, federation: Federation, local: LocalSGD, *, warmup_steps: int = 100, rows: str = "train",
    required: Mapping[str, float] | None = None, surrogate: str = "sigmoid",
) -> Log:  # fmt: skip
    """How much a model appeals to seen and to unseen clients; any method may log it.

    Args:
        x: model [d + b].
        start: the initial model, from which each client's own xhat_k is trained.
        federation: whose `everyone` and `unseen` are asked.
        local: batch size and learning rate of the warm-up and of the tuning.
        warmup_steps: local steps to xhat_k.
        rows: "train" or "validation" rows of rho_k.
        required: requirements of the user's own, by client.
        surrogate: h of the objective.

    Returns:
        Means over clients: `gm_appeal` (share with test loss(x) < test loss(xhat_k)), `appeal_train`, `preferred_accuracy` (of x if it
        appeals, else of xhat_k), `best_of_two`, these with `_tuned` after 5 local steps from x, `slack` = max(rho_k - F_k(x), 0),
        `train_loss`, `test_loss`, `test_accuracy`, and `objective_everyone`; for unseen clients the same with `_unseen` behind.
    """
    log: Log = {}
    for names, suffix in ((federation.everyone, ""), (federation.unseen, "_unseen")):
        if not names:
            continue
        given = Each(torch.tensor([(required or {}).get(n, math.nan) for n in names], dtype=torch.float64))
        warm = _steps(local, warmup_steps)
        got = federation.ask(names, measured, x=x, start=start, required=given, warm=warm, rows=rows)
        for column, values, defined in zip(_MEASURED, got.values.T, got.defined.T, strict=True):
            if column == "gap":
                log[f"objective_everyone{suffix}"] = float(_solved(appeal.objective, values, surrogate))
            elif bool(defined.any()):
                log[column + suffix] = float(values[defined].mean())
    return log


class State(NamedTuple):
    """Global and initial model [d + b], and the names of the clients that have their requirement."""

    x: Tensor
    start: Tensor
    ready: tuple[str, ...]


@dataclass(frozen=True)
class MaxFL:
    """Weigh clients by how near the model is to what they require: far below or far above, they count little.

    Attributes:
        local: settings of local training: b, tau and eta_l (Eq. 5).
        lr: server learning rate eta_g > 0 (Eq. 6).
        eps: epsilon > 0, added to the sum of the weights q_k (Eq. 6).
        warmup_steps: local steps from the initial model to xhat_k, whose loss is the requirement rho_k.
        requirements: rho_k (Eq. 1): rows of that loss, "train" or "validation" (training rows where there are none); or requirements
            of your own, {client: loss}; clients that are not named keep that of their warm-up (all warm up, for xhat_k of the metrics).
        flexible: after the mandatory rounds only those to whom the model appeals (F_k(x) < rho_k) may be drawn, anew in every round.
        mandatory_rounds: rounds in which everybody may be drawn, with `flexible` (10 are 5 % of the paper's 200).
        clients_per_round: m of line 6, with `flexible`: how many are drawn from the pool; None: all of it. Without `flexible` the
            run's own setting counts.
        tuning_steps: local steps from x before the gap is computed (Table 3; 0: none).
        surrogate: h for "does not appeal" (Eq. 3): sigmoid, relu, exp or log; the weights are q_k = h'(gap_k) (Eq. 4).

    >>> import coterie as ct, torch
    >>> centres = {"a": 0.0, "b": 0.5, "c": 9.0}
    >>> clients = ct.data.from_tensors({k: (torch.ones(30, 1), torch.full((30,), v)) for k, v in centres.items()})
    >>> local = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(5))
    >>> run = ct.fit(ct.MaxFL(local=local), clients, model=torch.nn.Linear(1, 1, bias=False), rounds=20)
    >>> {k: round(w, 1) for k, w in run.weights["*"].items()}  # c could only be served at the cost of a and b
    {'a': 0.5, 'b': 0.5, 'c': 0.0}
    """

    local: LocalSGD = LocalSGD()
    lr: float = 1.0
    eps: float = 1e-8
    warmup_steps: int = 100
    requirements: str | tuple[tuple[str, float], ...] | Mapping[str, float] = "train"
    flexible: bool = False
    mandatory_rounds: int = 10
    clients_per_round: int | None = None
    tuning_steps: int = 0
    surrogate: str = "sigmoid"

    def __post_init__(self) -> None:
        given = self.requirements
        if isinstance(given, Mapping):
            object.__setattr__(self, "requirements", tuple(given.items()))
        pairs = self.requirements
        good = pairs in ("train", "validation") or (
            isinstance(pairs, tuple) and bool(pairs)
            and all(isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) and is_number(p[1]) for p in pairs)
            and len(dict(pairs)) == len(pairs)
        )  # fmt: skip
        check_field(self, "requirements", given, good, '"train", "validation", or a table of a loss by client')
        check_fields(
            self, lr=Rules.POSITIVE, eps=Rules.POSITIVE, warmup_steps=Rules.SIZE, flexible=Rules.FLAG,
            mandatory_rounds=Rules.COUNT, clients_per_round=Rules.OPTIONAL_SIZE, tuning_steps=Rules.COUNT,
            surrogate=Rules.one_of(*appeal.SURROGATES),
        )  # fmt: skip
        if self.clients_per_round is not None and not self.flexible:
            raise InputError(
                "MaxFL.clients_per_round needs flexible = true; otherwise set clients_per_round of the run"
            )

    @property
    def participation(self) -> str:
        """A flexible pool is drawn from here, any other by the run loop."""
        return "own" if self.flexible else "run"

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raises `InputError` for a requirement of a client that does not exist."""
        for name in self._required:
            if name not in everyone:
                raise InputError(f"MaxFL.requirements names {name!r}, which is no client; {nearest(name, everyone)}")

    def init(self, x: Tensor, federation: Federation) -> State:
        """Requirements are computed when clients are first asked."""
        self.check(federation.everyone)
        return State(x, x, ())

    def round(self, state: State, federation: Federation, rng: Rng) -> tuple[State, Log]:
        """One round with `federation.clients`, or with some of the flexible pool."""
        clients, log, failed = federation.clients, Log(), set[str]()
        if self.flexible:
            pool, state, failed = self._pool(state, federation)
            log["pool"], log["skipped"] = len(pool), float(not pool)
            if not pool:
                return state, log
            m = min(self.clients_per_round or len(pool), len(pool))
            drawn = Rng.named(federation.seed, "participants", federation.round).permutation(len(pool), m)
            clients = tuple(pool[i] for i in np.sort(drawn).tolist())  # line 6
        payload = self._payload(state, clients)
        got = federation.ask(
            clients, local_update, x=state.x, local=self.local, tuning_steps=self.tuning_steps, **payload
        )
        q = _solved(appeal.weights, got.gap, self.surrogate)  # Eq. 4
        rate = self.lr / (float(q.sum()) + self.eps)
        x = move(state.x, q / (q.sum() + self.eps), got.delta, self.lr, federation.dim)  # line 13, Eq. 6
        log["objective"] = float(_solved(appeal.objective, got.gap, self.surrogate))  # Eq. 3
        log.update(sum_q=float(q.sum()), effective_lr=rate, q=got.named(q), gap=got.named(got.gap))
        log["weights"] = got.named(q)
        return State(x, state.start, _ready(state, got.clients, failed | set(got.failed))), log

    def _pool(self, state: State, federation: Federation) -> tuple[tuple[str, ...], State, set[str]]:
        """Who may be drawn; clients opt out and in as the model changes."""
        if federation.round <= self.mandatory_rounds:
            return federation.everyone, state, set()
        got = federation.ask(federation.everyone, gaps, x=state.x, **self._payload(state, federation.everyone))
        pool = tuple(n for n, gap in zip(got.clients, got.gap.tolist(), strict=True) if gap < 0)
        return pool, state._replace(ready=_ready(state, got.clients, set(got.failed))), set(got.failed)

    @property
    def _required(self) -> dict[str, float]:
        return {} if isinstance(self.requirements, str) else dict(self.requirements)

    @property
    def _rows(self) -> str:
        return self.requirements if isinstance(self.requirements, str) else "train"

    def _payload(self, state: State, clients: tuple[str, ...]) -> dict[str, Any]:
        required = self._required
        given = torch.tensor([required.get(n, math.nan) for n in clients], dtype=torch.float64)
        return {
            "start": None if set(clients) <= set(state.ready) else state.start, "required": Each(given), "rows": self._rows,
            "warm": _steps(self.local, self.warmup_steps),
        }  # fmt: skip

    def models(self, state: State) -> Tensor:
        """One model for everybody."""
        return state.x

    def measure(self, state: State, federation: Federation) -> Log:
        """Appeal to seen and unseen clients, see `measure_appeal`."""
        return measure_appeal(
            state.x, state.start, federation, self.local, warmup_steps=self.warmup_steps, rows=self._rows,
            required=self._required, surrogate=self.surrogate,
        )  # fmt: skip

    def keeps_validation(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Everybody, where requirements are losses on validation rows."""
        return names if self._rows == "validation" else ()

    def vectors(self, participants: int, clients: int) -> int:
        """Model vectors that a round holds."""
        return min(self.clients_per_round or participants, participants)


def _ready(state: State, replied: tuple[str, ...], failed: set[str]) -> tuple[str, ...]:
    return tuple(sorted((set(state.ready) | set(replied)) - failed))
