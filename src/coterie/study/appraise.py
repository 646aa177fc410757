"""Would a newcomer gain? The models of a finished run on the rows of a client that took no part in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError, nearest
from coterie.base.rng import Rng
from coterie.base.vector import Layout, copy_model, unflatten
from coterie.compute.cohort import Cohort
from coterie.config.run import StudySettings, Tuning
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.task import Models, OwnModel, task
from coterie.contract.wire import PerClient
from coterie.run.personalisation import tune
from coterie.run.result import Run
from coterie.solvers.mirror import entropic_descent
from coterie.study.compare import Comparison, compare

WAYS = ("as-is", "bias", "mixture")
"""How the models of a run are used at a newcomer."""
STEPS = 30
"""Steps of mirror descent; with its line search it ends earlier at the minimum."""


class Mixed(NamedTuple):
    """The model of each client [n, d + b], a mean of the given ones."""

    model: OwnModel


@task
def mix_models(cohort: Cohort, *, models: Models) -> Mixed:
    """The mean of models [T, d + b] whose weights lower the loss on each client's validation rows most (MeritFed, Eqs. 7 to 9).

    The models stay as they are: phi(w) is the loss at sum_k w_k x_k, and its gradient the products of x_k with the gradient there.
    """
    mixed: list[Tensor] = []
    equal = torch.full((len(models),), 1 / len(models), dtype=torch.float64)
    for position in range(len(cohort.names)):
        one = cohort.only([position])
        part = "validation" if one.has(0, "validation") else "train"

        def model_of(weights: Tensor) -> Tensor:
            return weights.to(models) @ models

        def slope(weights: Tensor, one: Cohort = one, part: str = part) -> Tensor:
            return (models @ one.gradient(model_of(weights), part=part)[0]).double()

        def value(weights: Tensor, one: Cohort = one, part: str = part) -> Tensor:
            return one.loss(model_of(weights), part=part)[0]

        weights = entropic_descent(
            slope, equal, steps=STEPS, step="line-search", value=value
        )
        mixed.append(model_of(weights))
    return Mixed(torch.stack(mixed))


class State(NamedTuple):
    """The model [d + b] of the run, which stays."""

    x: Tensor


class _Vectors:
    """Models [T, d + b] that a method holds; their hash stands for them where settings are written down."""

    __slots__ = ("rows",)

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __repr__(self) -> str:
        total = self.rows.double()
        return f"{tuple(self.rows.shape)} {total.sum().item()!r} {total.square().sum().item()!r}"


@dataclass(frozen=True)
class Served(Method[State]):
    """Serves the models of a finished run and trains none.

    Attributes:
        way: of `WAYS`.
        models_of_run: those of the run.
    """

    way: str
    models_of_run: _Vectors

    def init(self, x: Tensor, federation: Federation) -> State:
        """Start from x, the model of the run."""
        return State(x)

    def round(
        self, state: State, federation: Federation, rng: Rng
    ) -> tuple[State, Log]:
        """Nothing is asked."""
        return state, {}

    def models(self, state: State) -> Tensor:
        """The model of the run."""
        return state.x

    def keeps_validation(self, names: tuple[str, ...]) -> Sequence[str]:
        """Validation rows choose, so nothing trains on them."""
        return names

    def personalised(
        self, state: State, federation: Federation
    ) -> Mapping[str, Tensor | None]:
        """What the newcomer makes of the models, where its rows are."""
        clients = federation.everyone
        if self.way == "bias":
            each = PerClient(state.x.expand(len(clients), -1))
            return federation.own_models(clients, tune, x=each, tuning=Tuning("bias"))
        if self.way == "mixture":
            rows = self.models_of_run.rows
            return federation.own_models(clients, mix_models, models=rows)
        return {}


def appraise(
    run: Run,
    newcomer: Any,
    ways: Sequence[str] = WAYS,
    *,
    name: str = "newcomer",
    seeds: int | Sequence[int] = 10,
    settings: StudySettings | None = None,
) -> Comparison:
    """Compare the models of a run with what a client that took no part learns from its own rows, and give its verdict.

    Nothing of the run is trained. Each seed splits the newcomer's rows anew: its own model is trained on some, and all are tested on
    the others.

    Args:
        run: A finished run; where it has no model for all clients, the mean of its models stands for it.
        newcomer: Rows as the model takes them: (inputs, labels) or a data set.
        ways: How its models are used, the one that speaks first: `as-is`; `bias`, whose bias of the last layer the newcomer tunes;
            `mixture`, the mean of all models of the run whose weights lower the newcomer's loss, as MeritFed weighs clients.
        name: What the newcomer is called.
        seeds: As for `compare`; a verdict needs 3.
        settings: As for `compare`; the loss should be that of the run.

    Returns:
        The comparison; `verdict(name)` says whether the run's models pay for the newcomer.

    Raises:
        InputError: An unknown way, or rows that do not fit the model.

    >>> import coterie as ct
    >>> clients = ct.data.load("heart-disease")
    >>> run = ct.fit("fedavg", clients.subset(("cleveland", "long-beach")), rounds=5)
    >>> rows = clients["hungary"].part("train")
    >>> ct.appraise(run, (rows.inputs, rows.labels), seeds=3).methods
    ('local', 'as-is', 'bias', 'mixture')
    """
    for way in ways:
        if way not in WAYS:
            raise InputError(f"there is no way {way!r}; {nearest(way, WAYS)}")
    if not run.models:
        raise InputError("the run has no model in this process to serve a newcomer")
    rows = torch.stack([x.detach().cpu() for x in run.models.values()])
    module = copy_model(run.module)
    start = run.models.get("*", rows.mean(dim=0))
    views = unflatten(start.detach().cpu(), Layout.of(module))
    module.load_state_dict(dict(views), strict=False)
    methods: dict[str, Any] = {"local": "local"}
    for way in ways:
        methods[way] = Served(way, _Vectors(rows))
    return compare(
        methods,
        {name: newcomer},
        module,
        rounds=1,
        seeds=seeds,
        settings=replace(settings or StudySettings(), progress=False),
    )
