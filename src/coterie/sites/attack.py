"""A dishonest server against this site's own table: how many rows it finds under a plan, through the code with which the site answers.

Three attacks on what leaves, each with the plan's own tasks and whatever models, recipes and copies the site accepts:

- `gates`, for models without a hidden layer: two models that are steep in one column differ for the rows between two thresholds alone.
  The difference of what they give is a row where one row lies there.
- `imprint`, for models with a hidden layer (Fowl et al., "Robbing the Fed", ICLR 2022): every unit of the layer is such a gate, so one
  model asks about as many intervals as there are units.
- `recipes`: recipes that fail, or encode otherwise, above a value; and sums about centres.

A row is found if all of its features are within `NEAR` deviations. The same guesses are compared with as many rows that nobody has
(each column of the table shuffled), which says how many would be found by luck. This is a lower bound: others may find more.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.config.local import LocalSGD, Schedule, Steps
from coterie.contract.replies import VECTORS
from coterie.contract.requests import Among, Asks, Limits
from coterie.contract.wire import Ask, Context, PerClient
from coterie.data.tables.agreement import agree
from coterie.data.tables.recipe import Recipe, moments
from coterie.models import build_shape, outputs_of
from coterie.sites.allowed import Allowed, RefusedError
from coterie.sites.approval import Approved
from coterie.sites.rows import SiteRows
from coterie.sites.settings import SiteSettings, short
from coterie.sites.tables import table_settings

__all__ = ["Found", "attack", "example_payload"]

NEAR = 0.05
STEEP = 200.0
SMALL = 1e-3
"""Weight behind each unit of an imprinted layer: what is trained hardly moves it."""


class Found(NamedTuple):
    """What one attack has found.

    Attributes:
        way: the method, seed and task that were asked, and how.
        rows: rows of the table that were found.
        luck: rows that nobody has, and that were found all the same.
        of: rows of the table that are trained on.
        requests: that the site answered.
        refused: requests that it refused.
    """

    way: str
    rows: int
    luck: int
    of: int
    requests: int
    refused: int

    def __str__(self) -> str:
        asked = f"{self.requests} requests answered, {self.refused} refused"
        return f"{self.way}: {self.rows} of {self.of} rows found ({self.luck} of {self.of} that nobody has), {asked}"


def attack(approved: Approved, settings: SiteSettings, name: str, seconds: float = 120.0) -> Iterator[Found]:
    """Attack the table of the site `name` under a plan, and yield what each attack finds.

    Nothing is written into the site's folder and nothing of its budget is spent: keys, memory and budget are new ones.

    Args:
        approved: the plan.
        settings: of the site.
        name: of the site.
        seconds: after which no further attack begins.
    """
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        own = replace(settings, log=str(Path(folder) / "log"))
        server = _Server(SiteRows(name, own, Path(folder), approved))
        for number, (pair, allowed) in enumerate(approved.pairs.items()):
            recipe = server.begin(pair, allowed)
            if number == 0:
                yield server.recipes(recipe)
            for one, owner in allowed.tasks.values():
                kinds = one.task.kinds
                asks_model = any(about.holds and about.holds.model for about in one.task.payload.values())
                if asks_model and any(kind in VECTORS for kind in kinds.values()) and time.monotonic() < until:
                    yield server.models(pair, allowed, one, owner, until)


def example_payload(one: Asks, owner: Any, limits: Limits, round: int = 1) -> dict[str, Any]:
    """Return a payload that a declaration allows: zeros of the declared shapes, and the first of the values that a field may hold."""
    payload: dict[str, Any] = {}
    for key, about in one.task.payload.items():
        if about.holds is not None:
            sizes = [_size(d, limits, one.most_models(limits.clients)) for d in about.holds.shape]
            low = max(0.0, about.holds.within[0])
            zeros = torch.full(sizes, low, dtype=torch.float64).to(about.holds.dtype or limits.dtype)
            payload[key] = PerClient(zeros[None]) if about.holds.each else zeros
        elif about.needed:
            payload[key] = _first(one.values.get(key, getattr(owner, key, None)), round)
    return payload


def _size(dimension: Any, limits: Limits, models: int) -> int:
    if isinstance(dimension, tuple):
        return _size(dimension[0], limits, models)
    if isinstance(dimension, int):
        return dimension
    return models if dimension == "models" else int(getattr(limits, dimension))


def _first(allowed: Any, round: int) -> Any:
    if isinstance(allowed, Among):
        return _first(allowed.values[0], round)
    if isinstance(allowed, range):
        return allowed[0]
    return allowed.rate(round) if isinstance(allowed, Schedule) else allowed


class _Server:
    """The server's half of a conversation, of a server that asks whatever helps it."""

    def __init__(self, rows: SiteRows) -> None:
        self.rows, self.serial = rows, 0
        self.answered = self.refused = 0

    def say(self, do: str, **values: Any) -> dict[str, Any]:
        self.serial += 1
        about = {"do": do, "plan": self.rows.approved.hash, "run": "run", "serial": self.serial, "undo": None}
        return self.rows.answer({**about, **values})

    def ask(self, task: str, payload: Mapping[str, Any], seed: int, round: int) -> dict[str, Any] | None:
        """The fields of a reply; None where the site refuses or fails."""
        try:
            where = Context(seed, round, 1, self.serial + 1)
            answer = self.say("task", ask=Ask((self.rows.name,), task, payload, where))["answer"]
        except (InputError, ValueError, TypeError, KeyError):
            self.refused += 1
            return None
        if answer.failed:
            self.refused += 1
            return None
        self.answered += 1
        return dict(answer.blocks[0].values)

    def begin(self, pair: str, allowed: Allowed) -> Recipe:
        """Do what an honest server does before the first round."""
        self.say("open", seed=allowed.seed)
        settings = table_settings(self.rows.options)

        def told(task: Any, **payload: Any) -> Any:
            values = self.ask(task.name, payload, allowed.seed, 0)
            if values is None:
                raise RefusedError(f"the site does not answer {short(task.name)}")
            return _Told(values)

        recipe = agree((self.rows.name,), settings, told)
        self.say("encode", recipe=json.dumps(recipe))
        clients = self.rows.clients
        if clients is None:
            raise RefusedError("the site has not opened its rows; nothing can be attacked")
        inputs: Any = clients.train.inputs
        module = build_shape(self.rows.experiment.build_model(), tuple(inputs.shape[1:]), outputs_of(clients))
        self.say("prepare", pair=pair, resume=False, **{f"state/{k}": v for k, v in module.state_dict().items()})
        self.answered = self.refused = 0
        return recipe

    def recipes(self, recipe: Recipe) -> Found:
        """Let recipes fail above a value, and ask sums about centres: each cell that this tells exactly counts."""
        told: dict[str, set[str]] = {}
        columns: list[Any] = [c for c in recipe["columns"] if c["kind"] == "number"]
        for column in columns:
            plain = dict(column)
            for step in range(-12, 13):
                column.update(mean=plain["mean"] + step * plain["scale"], scale=plain["scale"] * 1e-29)
                try:
                    told.setdefault(column["name"], set()).add(str(self.say("encode", recipe=json.dumps(recipe))))
                    self.answered += 1
                except Exception as error:
                    told.setdefault(column["name"], set()).add(str(error))
                    self.refused += 1
            column.update(**plain)
        if self.rows.table is None:
            raise RefusedError("the site has not opened its rows; nothing can be attacked")
        of = len(self.rows.table.parts["train"])
        for shape in ((1,), (1, of)):
            payload = {"schema": json.dumps([columns[0]["name"]] if columns else []), "centre": torch.zeros(shape)}
            self.ask(moments.name, payload, self.rows.seed, 0)
        differ = sum(len(answers) > 1 for answers in told.values())
        self.say("encode", recipe=json.dumps(recipe))
        return Found("recipes that fail above a value, sums about centres", differ, 0, of, self.answered, self.refused)

    def models(self, pair: str, allowed: Allowed, one: Asks, owner: Any, until: float) -> Found:
        """Ask one task about models that are made to find rows, in every round, as often as the site answers."""
        shard = self.rows.shard
        if shard is None:
            raise RefusedError("the site has not opened its rows; nothing can be attacked")
        limits, layout = self.rows._limits(shard), shard.workspace.layout
        inputs = shard.clients.train.inputs
        if not isinstance(inputs, Tensor):
            raise RefusedError("rows that are not one tensor are not attacked")
        rows, self.answered, self.refused = inputs.double(), 0, 0
        field = next(key for key, about in one.task.payload.items() if about.holds and about.holds.model)
        reply = next(key for key, kind in one.task.kinds.items() if kind in VECTORS)
        local = getattr(allowed.method, "local", None)
        most = one.most_models(limits.clients) * self.rows.approved.plan.deployment.runs

        def updates(models: Tensor, round: int) -> list[Tensor]:
            """What the site says of each model that it answers, decay of weights taken off."""
            payload = example_payload(one, owner, limits, round)
            sent, several = payload[field], one.task.payload[field].holds.shape[:1] == ("models",)  # type: ignore[union-attr]
            replies: list[Tensor] = []
            size = one.most_models(limits.clients) if several else 1
            for start in range(0, len(models), size):
                part = models[start : start + size].to(limits.dtype)
                value = part if several else part[0]
                payload[field] = PerClient(value[None]) if isinstance(sent, PerClient) else value
                values = self.ask(one.task.name, payload, allowed.seed, round)
                if values is None:
                    break
                answer = values[reply][0].double().reshape(-1, layout.size)
                answer = answer if several else answer.mean(0, keepdim=True)
                replies += [u - _decay(x.double(), local, round) for u, x in zip(answer, part, strict=False)]
            return replies

        # Which columns are measured on a fine scale, everybody knows who knows their names.
        column = max(range(rows.shape[1]), key=lambda j: len(rows[:, j].unique()))
        batch = min(len(rows), _rows_of_a_round(local, len(rows)))
        guess = _imprints if _hidden(layout) else _gates
        guesses: list[Tensor] = [torch.zeros(0, rows.shape[1], dtype=torch.float64)]
        for number in range(1, allowed.rounds + 1):
            if time.monotonic() < until:
                guesses.append(guess(column, layout, most, number, batch, partial(updates, round=number)))
        how = "imprinted layers" if _hidden(layout) else "steep gates"
        shuffled = torch.stack(
            [c[torch.randperm(len(c), generator=torch.Generator().manual_seed(j))] for j, c in enumerate(rows.T)], 1
        )
        hits, luck = (_found(torch.cat(guesses), of) for of in (rows, shuffled))
        return Found(f"{how}, {short(one.task.name)} of {pair}", hits, luck, len(rows), self.answered, self.refused)


class _Told:
    """The replies of one site, as a federation would give them."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)


Updates = Callable[[Tensor], list[Tensor]]


def _hidden(layout: Any) -> bool:
    """Whether the first layer of a model is followed by another."""
    return sum(len(shape) == 2 for _, shape in layout.parameters) > 1


def _rows_of_a_round(local: Any, rows: int) -> int:
    """How many rows stand behind an update."""
    if not isinstance(local, LocalSGD) or local.batch_size is None or not isinstance(local.steps, Steps):
        return rows
    return local.batch_size * local.steps.count


def _decay(x: Tensor, local: Any, round: int) -> Tensor:
    """How far the decay of weights moves a model by itself."""
    if not isinstance(local, LocalSGD) or not local.weight_decay:
        return torch.zeros_like(x)
    return x * ((1 - local.rate(round) * local.weight_decay) ** local.steps.count - 1)


def _thresholds(count: int, number: int, batch: int) -> Tensor:
    """Thresholds on a standardised column between which about one row of a batch lies; `number` moves them."""
    space = min(1 / count, 1 / batch)
    start = (1 - count * space) * (number * 0.618 % 1)
    shares = start + (torch.arange(count, dtype=torch.float64) + 0.5) * space
    thresholds: Tensor = torch.special.ndtri(shares)
    return thresholds


def _gates(column: int, layout: Any, most: int, number: int, batch: int, updates: Updates) -> Tensor:
    """Rows between neighbouring thresholds of one column, from differences of updates of models that are steep there."""
    width = layout.parameters[0][1][1]
    thresholds = _thresholds(most, number, batch)
    models = torch.zeros(len(thresholds), layout.size, dtype=torch.float64)
    outputs = layout.parameters[0][1][0]
    models[:, column] = STEEP
    models[:, outputs * width] = -STEEP * thresholds
    answers = updates(models)
    if len(answers) < 2:
        return torch.zeros(0, width, dtype=torch.float64)
    differences = torch.stack(answers).diff(dim=0)
    return differences[:, :width] / differences[:, outputs * width, None]


def _imprints(column: int, layout: Any, most: int, number: int, batch: int, updates: Updates) -> Tensor:
    """Rows between neighbouring thresholds of the units of the first layer, from its own update."""
    units, width = layout.parameters[0][1]
    weights, biases = units * width, slice(units * width, units * width + units)
    guesses = [torch.zeros(0, width, dtype=torch.float64)]
    models = []
    for shift in range(most):
        x = torch.zeros(layout.size, dtype=torch.float64)
        first = torch.zeros(units, width, dtype=torch.float64)
        first[:, column] = 1.0
        x[:weights], x[biases] = first.reshape(-1), -_thresholds(units, number * most + shift, batch)
        x[weights + units :] = SMALL
        models.append(x)
    for answer in updates(torch.stack(models)):
        slopes = torch.cat([answer[:weights].reshape(units, width), answer[biases, None]], dim=1)
        differences = torch.cat([slopes, torch.zeros(1, width + 1, dtype=torch.float64)]).diff(dim=0)
        guesses.append(differences[:, :width] / differences[:, width:])
    return torch.cat(guesses)


def _found(guesses: Tensor, rows: Tensor) -> int:
    """How many of the rows are near one of the guesses in all features."""
    guesses = guesses[torch.isfinite(guesses).all(1)]
    if not len(guesses):
        return 0
    near = (guesses[:, None] - rows[None]).abs().amax(2) <= NEAR
    return int(near.any(0).sum())
