"""The rights that a plan gives a server: which tasks it may ask, with which payloads, about how many models; all else is refused.

The list is made at the site, from the plan that a person there has approved and from what its methods declare (`Method.tasks`); nothing
that the server says enters it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from coterie.base.errors import InputError
from coterie.compute.metrics import baselines, evaluate
from coterie.contract.filters import Filter
from coterie.contract.replies import LOSSES
from coterie.contract.requests import (
    Among,
    Asks,
    Limits,
    asks,
    check_payload,
    declarations,
)
from coterie.contract.task import Form
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.run.contribution import candidate_losses
from coterie.run.files import ALL
from coterie.sites.comparisons import note_outcomes
from coterie.sites.settings import short

PARTS = ("train", "validation", "test")


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
        candidates: models of a round about which contributions ask at most; 0: they are not measured.
    """

    method: Any
    seed: int
    rounds: int
    metrics: tuple[str, ...]
    filters: tuple[Filter, ...] = ()
    fold: str = ""
    secret: bool = False
    candidates: int = 0

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
        hidden = {"own", "count", *noise, *((*LOSSES, "choice") if self.secret else ())}
        for declaration, _ in self.tasks.values():
            task = declaration.task
            for field, kind in task.kinds.items():
                if kind not in hidden and not (
                    kind == "other" and _says_no_more_than_facts(task.forms.get(field))
                ):
                    return f"{field!r} of {short(task.name)}"
        return ""

    @cached_property
    def tasks(self) -> Mapping[str, tuple[Asks, Any]]:
        """The tasks of the method and of the evaluation by name, each with the object whose settings its fields hold."""
        parts = Among(*(part for part in PARTS if not (self.fold and part == "test")))
        looks = (
            asks(evaluate, models=len(parts.values), part=parts, metrics=self.metrics),
            asks(baselines, models=len(parts.values), part=parts),
            *([asks(note_outcomes)] if self.fold != ALL else []),
            *(
                [asks(candidate_losses, models=self.candidates)]
                if self.candidates
                else []
            ),
        )
        return {
            **declarations(self.method),
            **{look.task.name: (look, self) for look in looks},
        }

    def check(
        self,
        task: str,
        payload: Mapping[str, Any],
        limits: Limits,
        *,
        seed: int,
        round: int,
    ) -> Asks:
        """Return the declaration of this request. Raises `RefusedError` if the plan does not allow it."""
        if task not in self.tasks:
            raise RefusedError(
                f"the approved plan does not ask {short(task)!r} of {type(self.method).__name__}"
            )
        first_round = self.rounds if task == note_outcomes.name else 0
        if seed != self.seed or not first_round <= round <= self.rounds:
            raise RefusedError(
                f"the approved plan has no {short(task)} in round {round} of seed {seed} here"
            )
        declaration, owner = self.tasks[task]
        try:
            check_payload(declaration, owner, payload, limits)
        except InputError as error:
            raise RefusedError(str(error)) from error
        return declaration


def is_secret(step: Filter) -> bool:
    """Return True for noise that is drawn under the site's key."""
    return isinstance(step, GaussianNoise) and step.secret


def _says_no_more_than_facts(form: Form | None) -> bool:
    """Return True for a field that says how many rows there are, yes or no, or always the same."""
    if form is None:
        return False
    constant = isinstance(form.within, tuple) and bool(form.within[0] == form.within[1])
    return form.facts or form.dtype is torch.bool or constant


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
