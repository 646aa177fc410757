"""The rights that a plan gives a server: which tasks it may ask, with which payloads, about how many models; all else is refused.

The list is made at the site, from the plan that a person there has approved and from what its methods declare (`Method.tasks`); nothing
that the server says enters it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import torch

from coterie.base.errors import InputError
from coterie.compute.left_out import gain_of_others
from coterie.compute.metrics import baselines, evaluate
from coterie.config.secure import SecureSums
from coterie.contract.down import BF16, FLOAT32, rounded_fields
from coterie.contract.filters import Filter
from coterie.contract.replies import LOSSES, VECTORS
from coterie.contract.requests import (
    Among,
    Asks,
    Limits,
    asks,
    check_payload,
    declarations,
)
from coterie.contract.task import is_exact_fact
from coterie.contract.wire import Ask
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.run.contribution import candidate_losses
from coterie.run.evaluation import is_evaluated
from coterie.run.files import ALL
from coterie.run.private_methods import BOUND_SUMS, ROW_SUMS
from coterie.sites.comparisons import note_outcomes
from coterie.sites.settings import short

PARTS = ("train", "validation", "test")
_BY_PART = (evaluate.name, baselines.name)


class RefusedError(InputError):
    """A request that the site refuses; the sentence quotes no row and may leave the site."""


@dataclasses.dataclass(frozen=True)
class Allowed:
    """The rights of one method of a plan.

    Attributes:
        method: the method, with its settings.
        seed: of this run of the method.
        rounds: number of rounds of the plan.
        metrics: metrics of the plan.
        filters: filters of the plan, through which replies leave the site whatever the server asks for; none for a reference.
        fold: fold that is tested, `all` for a training on all rows; empty without folds. What a model says of its rows stays.
        secret: whether the plan has noise that is drawn under the site's key. Then losses and metrics of all its methods have noise,
            those of references too.
        private: whether the plan hides rows in training ([privacy]). Then no loss, metric or difference of its models leaves but those
            of `tell`.
        tell: with `private`, the loss and metrics of an evaluation that leave behind noise.
        metric_noise: deviation of the noise of losses, metrics and differences, in units of what one row can move them.
        candidates: models of a round about which contributions ask at most; 0: they are not measured.
        every: rounds between evaluations; the first and the last round are evaluated, too.
        evaluated_parts: parts of the rows that are evaluated before the last round.
        secure: how vectors of the method are summed behind masks; None: they come as they are.
        down: how the server sends models, "float32" or "bf16"; a reference gets whole ones.
    """

    method: Any
    seed: int
    rounds: int
    metrics: tuple[str, ...]
    filters: tuple[Filter, ...] = ()
    fold: str = ""
    secret: bool = False
    private: bool = False
    tell: tuple[str, ...] = ()
    metric_noise: float = 1.0
    candidates: int = 0
    every: int = 1
    evaluated_parts: tuple[str, ...] = PARTS
    secure: SecureSums | None = None
    down: str = FLOAT32

    @cached_property
    def exposure(self) -> str:
        """The first field of a reply that may show rows and is behind no secret noise, in words; "" if there is none.

        Updates and gradients are hidden by filters, losses and metrics at their source (`sites.secret_noise`), and with them which of
        some models fits best. Numbers of rows, yes and no, and what is always the same are told as they are. Whatever else is declared
        is exposed.
        """
        noise = {
            kind for step in self.filters if is_secret(step) for kind in step.kinds
        }
        untold = (*LOSSES, "choice") if self.secret or self.private else ()
        hidden = {"own", "count", *noise, *untold}
        for declaration, _ in self.tasks.values():
            task = declaration.task
            row_noise = self.hides_rows_of(task.name)
            for field, kind in task.kinds.items():
                if row_noise and kind in ("update", "words", "curvature"):
                    continue
                is_fact = kind == "other" and is_exact_fact(task.forms.get(field))
                if kind not in hidden and not is_fact:
                    return f"{field!r} of {short(task.name)}"
        return ""

    def hides_rows_of(self, task: str) -> bool:
        """Return True for a task whose vectors are made of sums over rows behind noise, each an event of the plan's [privacy]."""
        return self.private and task in (*ROW_SUMS, *BOUND_SUMS)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the rows that the evaluation asks about."""
        return tuple(part for part in PARTS if not (self.fold and part == "test"))

    @property
    def tests_others(self) -> bool:
        """Return True if the site tests one model of the other sites alone: after a training on all rows, by a method that has it."""
        return self.fold in ("", ALL) and self.method.tells_quadratics

    @property
    def evaluations(self) -> tuple[int, ...]:
        """The rounds after which models are evaluated; 0: before the first."""
        return tuple(
            number
            for number in range(self.rounds + 1)
            if is_evaluated(self.rounds, self.every, number)
        )

    def part_of(self, task: str, payload: Mapping[str, Any]) -> str:
        """Return the part that a request of the evaluation is about. Each has a budget of its own, so that no row is asked about
        in the place of those of another part; "" for other tasks.
        """
        return str(payload["part"]) if task in _BY_PART else ""

    def times(self, task: str) -> int:
        """Return how often a run may ask a task about the same rows, each time about as many models as are declared."""
        times = len(self._rounds_of(task))
        declared = self.tasks[task][0].rounds
        return times if declared is None else min(times, declared)

    def asks_of(self, task: str) -> int:
        """Return how often a run may ask a task, each time about as many models as are declared."""
        return self.times(task) * (len(self.parts) if task in _BY_PART else 1)

    @cached_property
    def tasks(self) -> Mapping[str, tuple[Asks, Any]]:
        """The tasks of the method and of the evaluation by name, each with the object whose settings its fields hold."""
        parts = Among(*self.parts)
        looks = (
            asks(evaluate, part=parts, metrics=self.metrics),
            asks(baselines, part=parts),
            *([asks(note_outcomes)] if self.fold != ALL else []),
            *([asks(gain_of_others)] if self.tests_others else []),
            *(
                [asks(candidate_losses, models=self.candidates)]
                if self.candidates
                else []
            ),
        )
        return {
            **self.of_method,
            **{look.task.name: (look, self) for look in looks},
        }

    @property
    def of_method(self) -> dict[str, tuple[Asks, Any]]:
        """The declarations of the method; under noise by row in sums, of the sum over rows that stands for an update."""
        declared = declarations(self.method)
        if self.secure is None or not self.private:
            return declared
        named: dict[str, tuple[Asks, Any]] = {}
        for declaration, owner in declared.values():
            summed = declaration.task.row_sum
            if summed is None:  # such plans are refused
                continue
            noise, parties = owner.local.private, self.secure.threshold
            of_rows = asks(
                summed,
                declaration.models,
                rounds=declaration.rounds,
                noise=noise,
                parties=parties,
            )
            named[summed.name] = (of_rows, owner)
        return named

    def is_summed(self, task: str) -> bool:
        """Return True for a task whose vectors leave behind masks, and in no other way."""
        if self.secure is None or task not in self.of_method:
            return False
        kinds = {*self.tasks[task][0].task.kinds.values()}
        return not kinds.isdisjoint((*VECTORS, "words"))

    def check(
        self,
        task: str,
        payload: Mapping[str, Any],
        limits: Limits,
        *,
        seed: int,
        round: int,
        masked: bool = False,
    ) -> Asks:
        """Return the declaration of this request. Raises `RefusedError` if the plan does not allow it.

        Args:
            task: name of what is asked.
            payload: of the request to this site.
            limits: dimensions that are allowed.
            seed: of the run.
            round: of the run.
            masked: whether the vectors of its answer leave behind masks.
        """
        if task not in self.tasks:
            raise RefusedError(
                f"the approved plan does not ask {short(task)!r} of {type(self.method).__name__}"
            )
        if seed != self.seed or round not in self._rounds_of(task):
            raise RefusedError(
                f"the approved plan has no {short(task)} in round {round} of seed {seed} here"
            )
        if self.is_summed(task) is not masked:
            way = "in no sum" if masked else "in sums behind masks alone"
            raise RefusedError(f"the approved plan asks {short(task)!r} {way}")
        declaration, owner = self.tasks[task]
        try:
            check_payload(declaration, owner, payload, limits)
        except InputError as error:
            raise RefusedError(str(error)) from error
        part = self.part_of(task, payload)
        is_early = task == evaluate.name and round < self.rounds
        if is_early and part not in self.evaluated_parts:
            raise RefusedError(
                f"the approved plan evaluates {part} rows after the last round alone"
            )
        return declaration

    def check_rounded(self, ask: Ask) -> None:
        """Raise `RefusedError` if the models of an ask come in another encoding than the plan says."""
        planned: tuple[str, ...] = ()
        if self.down == BF16 and ask.task in self.tasks:
            planned = rounded_fields(ask.function, ask.payload)
        if ask.rounded != planned:
            raise RefusedError(
                f"the approved plan sends models of {type(self.method).__name__} as {self.down} (run.down), and this request of "
                f"{short(ask.task)} does not"
            )

    def _rounds_of(self, task: str) -> Collection[int]:
        """Return the rounds of the plan in which a task may be asked."""
        if task in _BY_PART:
            return self.evaluations
        at_the_end = task in (note_outcomes.name, gain_of_others.name)
        first = self.rounds if at_the_end else 0
        if self.hides_rows_of(task):
            first = 1  # the noise was made for the rounds of the plan
        return range(first, self.rounds + 1)


def is_secret(step: Filter) -> bool:
    """Return True for noise that is drawn under the site's key."""
    return isinstance(step, GaussianNoise) and step.secret


def check_state(
    state: Mapping[str, Any], module_state: Mapping[str, torch.Tensor]
) -> None:
    """Raise `RefusedError` for the first tensor that the plan's model has otherwise."""
    for name in sorted({*state, *module_state}):
        sent, planned = (_form(tensors.get(name)) for tensors in (state, module_state))
        if sent != planned:
            raise RefusedError(
                f"the server sends a model of another form than the plan's: {name[:40]!r} is {sent}, not {planned}"
            )


def _form(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return "missing"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)[:8]}"
