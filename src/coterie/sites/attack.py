"""A dishonest server against this site's own table: how many rows it finds under a plan, through the code with which the site answers.

Each attack begins with a site whose budget is whole, and asks the plan's own tasks with whatever the site accepts:

- sums: squares about centres, of which one row differs, are solved for that row;
- recipes: they fail, or encode otherwise, above a value;
- times, of a time to event: time at risk until many moments is a line with a bend where the follow-up of a row ends;
- requests: whatever differs in one field from what the plan declares (`sites.attack_requests`);
- gates, for models without a hidden layer: two models that are steep in one column differ for the rows between two thresholds alone.
  The difference of what they give is a row where one row lies there;
- imprints, for models with a hidden layer (Fowl et al., "Robbing the Fed", ICLR 2022): every unit of the layer is such a gate, so one
  model asks about as many intervals as there are units;
- lone units, where noise is added: a unit that a single row reaches, so that the row fills all that clipping leaves, and the mean over
  models that are almost alike;
- losses at models that are steep in one column, and beside them: their differences are the slopes that gates read rows from;
- averages of losses at models that differ in their last bits, each with noise of its own: a model that calls one patient ill, and one
  that calls it healthy, and all others the same, differ by that patient's loss;
- copies, where noise is added: the same models many times, so that the mean has little noise;
- membership by loss (Yeom et al., CSF 2018): rows whose loss at the site's own model is below its mean over training rows.

A row is found if all of its features are within .05 deviations. The same guesses are compared with as many rows that nobody has
(each column of the table shuffled), which says how many would be found by luck. This is a lower bound: others may find more.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.hazards import MOST_INTERVALS
from coterie.base.rows import Part
from coterie.compute.cohort import Shard
from coterie.compute.metrics import evaluate
from coterie.contract.down import FLOAT32, as_sent, round_models, rounded_fields
from coterie.contract.payload import payload_fields
from coterie.contract.replies import LOSSES, VECTORS, row_shape
from coterie.contract.requests import Asks
from coterie.contract.task import Task, find_task
from coterie.contract.wire import Ask, Context, PerClient
from coterie.data.tables.agreement import agree
from coterie.data.tables.followup import followup_of
from coterie.data.tables.intervals import sum_followup
from coterie.data.tables.recipe import Recipe, moments
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.models import build_for, outputs_of
from coterie.sites.allowed import RefusedError
from coterie.sites.approval import Approved
from coterie.sites.attack_averages import Sums, candidates, side_model
from coterie.sites.attack_findings import Finding
from coterie.sites.attack_models import (
    count_near,
    decay,
    has_hidden_layer,
    lone_unit,
    open_gates,
    read_imprints,
    read_lone_unit,
    rows_of_a_round,
    slopes_of_losses,
)
from coterie.sites.attack_requests import example_payload, probes
from coterie.sites.followup import form_of_options
from coterie.sites.rows import SiteRows
from coterie.sites.secret_noise import LARGEST_LOSS
from coterie.sites.settings import SiteSettings, short
from coterie.sites.tables import table_settings

FEW_GATES = 4
"""Different models of a request that holds copies."""
MOST_ALIKE = 64
"""Models of a round that are almost alike."""
MOST_PATIENTS, EVALUATIONS_OF_A_PATIENT = 8, 64
"""Patients whose presence is asked, if there are so many evaluations for each: half of them on a side leave a quarter of the noise."""
MOMENTS = 500
"""Until which time at risk is asked."""
MOST_LOOKED_AT = 256
"""Rows among which patients are chosen."""


def attack(
    approved: Approved, settings: SiteSettings, name: str, seconds: float = 120.0
) -> Iterator[Finding]:
    """Attack the table of the site `name` under a plan, and yield what each attack finds.

    Nothing is written into the site's folder and nothing of its budget is spent: keys, memory and budget are new ones.

    Args:
        approved: the plan.
        settings: settings of the site.
        name: name of the site.
        seconds: after which nothing more is asked.
    """
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        first_pair = next(iter(approved.pairs))
        for number, (pair, ways) in enumerate(_ways(approved)):
            if time.monotonic() >= deadline and pair != first_pair:
                return
            place = Path(folder) / str(number)
            # What is found is said also of a plan whose price the site refuses.
            moved_settings = replace(
                settings, log=str(place / "log"), largest_mu=2.0**62
            )
            place.mkdir()
            yield ways(
                _Server(SiteRows(name, moved_settings, place, approved), pair, deadline)
            )


Way = Callable[["_Server"], Finding]


def _ways(approved: Approved) -> Iterator[tuple[str, Way]]:
    """Yield the attacks under a plan, each with the method and seed to which it belongs."""
    for number, (pair, allowed) in enumerate(approved.pairs.items()):
        if number == 0:
            yield pair, _Server.sums
            yield pair, _Server.recipes
            yield pair, _Server.averages
            if form_of_options(approved.plan.experiment.data) == "time to event":
                yield pair, _Server.times
        yield pair, _Server.requests
        noisy = any(isinstance(step, GaussianNoise) for step in allowed.filters)
        for declaration, owner in allowed.tasks.values():
            task = declaration.task
            asks_model = any(
                field.holds and field.holds.model
                for field in payload_fields(task).values()
            )
            if asks_model and any(kind in LOSSES for kind in task.kinds.values()):
                yield (
                    pair,
                    partial(_Server.losses, declaration=declaration, owner=owner),
                )
            if not (asks_model and _tells_of_models(task)):
                continue
            yield pair, partial(_Server.gates, declaration=declaration, owner=owner)
            if noisy:
                yield (
                    pair,
                    partial(
                        _Server.gates, declaration=declaration, owner=owner, copied=True
                    ),
                )
            yield pair, partial(_Server.members, declaration=declaration, owner=owner)


def _tells_of_models(task: Task[Any]) -> bool:
    """Return True if a field of the reply is an update or a gradient of a model."""
    for field, kind in task.kinds.items():
        form = task.forms.get(field)
        if kind in VECTORS and (form is None or form.of_model):
            return True
    return False


class _Server:
    """The server's half of a conversation: it begins as an honest one would, and asks whatever helps it until its time is over."""

    def __init__(self, rows: SiteRows, pair: str, deadline: float) -> None:
        self.rows, self.pair, self.allowed, self.serial = (
            rows,
            pair,
            rows.approved.pairs[pair],
            0,
        )
        self.answered = self.refused = 0
        self.until = math.inf
        self.recipe = self._begin()
        self.until = deadline

    def say(self, do: str, **values: Any) -> dict[str, Any]:
        self.serial += 1
        envelope = {
            "do": do,
            "plan": self.rows.approved.hash,
            "run": "run",
            "serial": self.serial,
            "undo": None,
        }
        return self.rows.answer({**envelope, **values})

    def ask(
        self, task: str, payload: Mapping[str, Any], seed: int, round: int
    ) -> dict[str, Any] | None:
        """The fields of a reply; None where the site refuses or fails, and when the time is over."""
        if time.monotonic() >= self.until:
            return None
        try:
            context = Context(seed, round, 1, self.serial + 1)
            rounded = self._rounded(find_task(task), payload)
            ask = Ask((self.rows.name,), task, payload, context, rounded=rounded)
            answer = self.say("task", ask=ask)["answer"]
        except (
            InputError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RuntimeError,
        ):
            self.refused += 1
            return None
        if answer.failed:
            self.refused += 1
            return None
        self.answered += 1
        return dict(answer.blocks[0].values)

    def ask_about(
        self, task: Task[Any], payload: Mapping[str, Any], seed: int, round: int
    ) -> dict[str, Any] | None:
        """As `ask`, with models in the encoding that the plan says."""
        encoded = round_models(payload, self._rounded(task, payload))
        return self.ask(task.name, encoded, seed, round)

    def _rounded(self, task: Task[Any], payload: Mapping[str, Any]) -> tuple[str, ...]:
        if self.allowed.down == FLOAT32:
            return ()
        return rounded_fields(task, payload)

    def as_received(self, models: Tensor) -> Tensor:
        """Models [..., d + b] as the site has them once they were sent."""
        dtype = self._shard.workspace.layout.dtype
        return as_sent(models.to(dtype), self.allowed.down)

    def _begin(self) -> Recipe:
        """Do what an honest server does before the first round."""
        experiment = self.rows.experiment
        seed = self.allowed.seed
        if experiment.folds:
            seed = experiment.split_seeds[0]
        self.say("open", seed=seed)
        settings = table_settings(self.rows.options)

        def ask(task: Any, **payload: Any) -> Any:
            values = self.ask(task.name, payload, seed, 0)
            if values is None:
                raise RefusedError(f"the site does not answer {short(task.name)}")
            return SimpleNamespace(**values)

        recipe = agree((self.rows.name,), settings, ask)
        self.say("encode", recipe=json.dumps(recipe))
        clients = self.rows.clients
        if clients is None:
            raise RefusedError(
                "the site has not opened its rows; nothing can be attacked"
            )
        inputs: Any = clients.train.inputs
        if not isinstance(inputs, Tensor):
            raise RefusedError("rows that are not one tensor are not attacked")
        module = build_for(
            clients.form,
            self.rows.experiment.build_model(),
            tuple(inputs.shape[1:]),
            outputs_of(clients),
        )
        self.say(
            "prepare",
            pair=self.pair,
            resume=False,
            **{f"state/{k}": v for k, v in module.state_dict().items()},
        )
        self.answered = self.refused = 0
        return recipe

    @property
    def _shard(self) -> Shard:
        shard = self.rows.shard
        if shard is None:
            raise RefusedError(
                "the site has not opened its rows; nothing can be attacked"
            )
        return shard

    @property
    def _train(self) -> Tensor:
        inputs: Tensor = self._shard.clients.train.inputs  # type: ignore[assignment]  # as `_begin` has looked
        return inputs.double()

    def sums(self) -> Finding:
        """Ask the sum of squares of each column about centres that differ in one row: the difference is linear in that row."""
        table = self.rows.table
        if table is None:
            raise RefusedError(
                "the site has not opened its rows; nothing can be attacked"
            )
        rows = table.parts["train"]
        names = [c["name"] for c in self.recipe["columns"] if c["kind"] == "number"]
        columns = {
            name: numbers[rows]
            for name in names
            if (numbers := table.columns[name].numbers) is not None
        }
        true = torch.zeros(len(rows), 0)
        if columns:
            true = torch.from_numpy(np.stack(list(columns.values()), 1))
        guesses = torch.full_like(true, torch.nan)
        for j, name in enumerate(columns):
            schema = json.dumps([name])
            centre = torch.zeros(1, len(rows), dtype=torch.float64)
            about_zero = {"schema": schema, "centre": centre}
            plain = self.ask(moments.name, about_zero, self.rows.seed, 0)
            if plain is None:
                continue
            for i in range(len(rows)):
                shifted = centre.clone()
                shifted[0, i] = 1.0
                about_one = {"schema": schema, "centre": shifted}
                reply = self.ask(moments.name, about_one, self.rows.seed, 0)
                if reply is None:
                    continue
                # (x_i - 1)^2 = x_i^2 - 2 x_i + 1, and all other rows have the same square as before.
                change = float(plain["squares"]) - float(reply["squares"])
                guesses[i, j] = (1.0 + change) / 2
        spread = true.nan_to_num(nan=0.0).std(0).clamp(min=1e-9)
        return self._count_rows("sums about centres", guesses / spread, true / spread)

    def times(self) -> Finding:
        """Ask the time at risk until many moments, and read the time of a row where one row fewer is at risk than before."""
        table = self.rows.told_table
        if table is None:
            raise RefusedError(
                "the site has not opened its rows; nothing can be attacked"
            )
        event = str(self.rows.options["label"])
        ends = followup_of(self.rows.table or table, event)[table.parts["train"], 1]
        moments_asked = np.linspace(0.0, 1.01 * float(ends.max()), MOMENTS + 1)
        at_risk: list[float] = []
        for low in range(0, MOMENTS, MOST_INTERVALS):
            cuts = moments_asked[low : low + MOST_INTERVALS + 1]
            asked = json.dumps(cuts[cuts > 0].tolist())
            payload = {"event": event, "cuts": asked}
            reply = self.ask(sum_followup.name, payload, self.rows.seed, 0)
            if reply is None:
                break
            # The first interval of a request begins at 0.
            exposure = reply["exposure"][0].tolist()
            at_risk += exposure if low == 0 else exposure[1:]
        widths = np.diff(moments_asked)[: len(at_risk)]
        before = np.round(np.array(at_risk) / widths)[:-1]
        missing = before * widths[1:] - np.array(at_risk[1:])
        guesses = moments_asked[2 : len(at_risk) + 1] - missing
        exact = np.abs(guesses[:, None] - ends[None]) <= 1e-6 * ends.max()
        return Finding(
            "time at risk until many moments",
            "columns",
            int(exact.any()),
            1,
            0,
            1,
            self.answered,
            self.refused,
        )

    def recipes(self) -> Finding:
        """Let recipes fail, or encode otherwise, above a value: a column of which this tells something would be told cell by cell."""
        answers: dict[str, set[str]] = {}
        columns: list[Any] = [
            c for c in self.recipe["columns"] if c["kind"] == "number"
        ]
        for column in columns:
            plain = dict(column)
            if time.monotonic() >= self.until:
                break
            for step in range(-12, 13):
                column.update(
                    mean=plain["mean"] + step * plain["scale"],
                    scale=plain["scale"] * 1e-29,
                )
                try:
                    answers.setdefault(column["name"], set()).add(
                        str(self.say("encode", recipe=json.dumps(self.recipe)))
                    )
                    self.answered += 1
                except Exception as error:
                    answers.setdefault(column["name"], set()).add(str(error))
                    self.refused += 1
            column.update(**plain)
        differ = sum(len(of_column) > 1 for of_column in answers.values())
        way = "recipes that fail above a value"
        return Finding(
            way, "columns", differ, len(columns), 0, 0, self.answered, self.refused
        )

    def requests(self) -> Finding:
        """Send what differs from the declarations in one field."""
        limits = self.rows._limits(self._shard)
        for declaration, owner in self.allowed.tasks.values():
            payload = example_payload(declaration, owner, limits)
            for probe in probes(declaration, owner, limits, payload):
                self.ask(declaration.task.name, probe.payload, self.allowed.seed, 1)
        sent = self.answered + self.refused
        way = f"requests beside the plan, of {self.pair}"
        return Finding(
            way, "requests", self.answered, sent, 0, 0, self.answered, self.refused
        )

    def gates(self, declaration: Asks, owner: Any, copied: bool = False) -> Finding:
        """Ask one task about models that are made to find rows, in every round, as often as the site answers."""
        target = _Target.of(self, declaration, owner, VECTORS)
        rows, layout = self._train, self._shard.workspace.layout
        local = getattr(self.allowed.method, "local", None)
        # Which columns are measured on a fine scale, everybody knows who knows their names.
        column = max(range(rows.shape[1]), key=lambda j: len(rows[:, j].unique()))
        batch = min(len(rows), rows_of_a_round(local, len(rows)))
        if copied and has_hidden_layer(layout):
            return self._lone_units(
                target, rows, batch, f"{short(declaration.task.name)} of {self.pair}"
            )
        guess, way = open_gates, "steep gates"
        if has_hidden_layer(layout):
            guess, way = read_imprints, "imprinted layers"
        # More gates than rows find no more.
        most = min(2 * len(rows), target.most)
        copies = 1
        if copied:
            most = min(FEW_GATES, target.most)
            copies = max(2, target.at_once // most)
            way = f"copies of {way}"
        guesses: list[Tensor] = [torch.zeros(0, rows.shape[1], dtype=torch.float64)]
        for number in range(1, self.allowed.rounds + 1):
            updates = partial(target.updates, round=number, copies=copies)
            guesses.append(guess(column, layout, most, number, batch, updates))
        return self._count_rows(
            f"{way}, {short(declaration.task.name)} of {self.pair}",
            torch.cat(guesses),
            rows,
            target,
        )

    def _lone_units(
        self, target: _Target, rows: Tensor, batch: int, way: str
    ) -> Finding:
        """Ask about models with a unit that one row reaches, in every round from another side of the table."""
        layout = self._shard.workspace.layout
        pairs = {
            j: rows[:, j].unique()
            for j in range(rows.shape[1])
            if len(rows[:, j].unique()) <= 2
        }
        columns = [j for j in range(rows.shape[1]) if j not in pairs] or [0]
        guesses = torch.full(
            (self.allowed.rounds, rows.shape[1]), torch.nan, dtype=torch.float64
        )
        for number in range(1, self.allowed.rounds + 1):
            models = lone_unit(
                columns[number % len(columns)],
                layout,
                number,
                batch,
                min(target.most, MOST_ALIKE),
            )
            updates = target.updates(models, round=number, copies=1)
            if not updates:
                break
            guess = read_lone_unit(layout, torch.stack(updates).mean(0))
            for (
                j,
                values,
            ) in (
                pairs.items()
            ):  # which values a column of two has, the description and the recipe tell
                guess[j] = values[(values - guess[j]).abs().argmin()]
            guesses[number - 1] = guess
        return self._count_rows(f"lone units, {way}", guesses, rows, target)

    def losses(self, declaration: Asks, owner: Any) -> Finding:
        """Ask losses at models that are steep in one column, each with a model beside it for each weight."""
        target = _Target.of(self, declaration, owner, LOSSES)
        rows, layout = self._rows_of(target), self._shard.workspace.layout
        column = max(range(rows.shape[1]), key=lambda j: len(rows[:, j].unique()))
        most, number, budget = target.most * self.allowed.rounds, 1, target.most

        def losses_at(models: Tensor) -> list[float]:
            """As many losses as rounds have room for."""
            nonlocal number, budget
            losses: list[float] = []
            while len(losses) < len(models) and number <= self.allowed.rounds:
                part = models[len(losses) : len(losses) + budget]
                replies = target.replies(part, round=number)
                losses += [float(reply.reshape(-1)[0]) for reply in replies]
                budget -= len(replies)
                if len(replies) < len(part) or not budget:
                    number, budget = number + 1, target.most
            return losses

        guesses = slopes_of_losses(column, layout, most, len(rows), losses_at)
        return self._count_rows(
            f"losses of steep models, {short(declaration.task.name)} of {self.pair}",
            guesses,
            rows,
            target,
        )

    def averages(self) -> Finding:
        """Ask the losses of training rows at models that differ in their last bits, and say of some patients whether each is there,
        and ill: with all evaluations of this seed that the plan allows, and all other rows known.
        """
        way = f"averages of losses at models almost alike, of seed {self.allowed.seed}"
        pairs = [
            pair
            for pair, allowed in self.rows.approved.pairs.items()
            if allowed.seed == self.allowed.seed
        ]
        workspace, client = self._shard.workspace, self._shard.clients[0]
        rows, runs = (
            self._train[:MOST_LOOKED_AT],
            self.rows.approved.plan.deployment.runs,
        )
        budget = (
            sum(len(self.rows.approved.pairs[pair].evaluations) for pair in pairs)
            * runs
        )
        if workspace.loss.kind != "binary" or workspace.layout.parameters[-1][1] != (
            1,
        ):
            return Finding(
                f"{way} (two classes only)",
                "patients",
                0,
                0,
                0,
                0,
                self.answered,
                self.refused,
            )
        count = min(MOST_PATIENTS, max(1, budget // (2 * EVALUATIONS_OF_A_PATIENT)))
        known = torch.cat(
            [
                torch.as_tensor(part.inputs, dtype=torch.float64)
                for _, part in client.parts()
            ]
        )
        strangers = candidates(
            _shuffled(rows), torch.full((len(rows),), -1), known, count
        )
        labels = workspace.loss.plain(client.train.labels)
        chosen = (
            candidates(rows, labels[: len(rows)].reshape(-1), known, count) + strangers
        )
        patients = [candidate.features for candidate in chosen]
        sums = Sums(len(chosen))
        number = 0
        for pair in pairs:
            self._prepare(pair)
            sums_of_pair = Sums(len(chosen))
            for place in (
                number
                for number in self.rows.approved.pairs[pair].evaluations
                for _ in range(runs)
            ):
                which, side = number // 2 % len(chosen), number % 2
                model = self.as_received(
                    side_model(chosen[which], workspace.layout, side, number)
                )
                payload = {"x": model, "part": "train", "metrics": self.allowed.metrics}
                reply = self.ask_about(evaluate, payload, self.allowed.seed, place)
                if reply is not None:
                    own = self._loss_beside_others(
                        float(reply["loss"]), model, patients[which]
                    )
                    sums_of_pair.add(which, side, own / LARGEST_LOSS)
                number += 1
            sums.join(sums_of_pair)
        guesses = sums.guesses()
        right = sum(
            guess == candidate.label
            for guess, candidate in zip(
                guesses[: -len(strangers)], chosen, strict=False
            )
        )
        false = sum(guess is not None for guess in guesses[-len(strangers) :])
        effort = self.answered, self.refused, self.answered, budget
        return Finding(
            way,
            "patients",
            right,
            len(chosen) - len(strangers),
            false,
            len(strangers),
            *effort,
        )

    def members(self, declaration: Asks, owner: Any) -> Finding:
        """Follow the updates to a model of the site, and call rows members whose loss is at most the mean of its training rows."""
        target = _Target.of(self, declaration, owner, VECTORS)
        workspace = self._shard.workspace
        client = self._shard.clients[0]
        x = workspace.x.double().clone()
        for number in range(1, self.allowed.rounds + 1):
            replies = target.updates(x[None], round=number, copies=1)
            if replies:
                x = x + replies[0]
        strangers = client.test or client.validation
        way = f"membership by loss, {short(declaration.task.name)} of {self.pair}"
        if strangers is None:
            return Finding(
                f"{way} (no rows to compare with)",
                "members",
                0,
                0,
                0,
                0,
                self.answered,
                self.refused,
            )
        member_losses, stranger_losses = (
            self._losses(x, part) for part in (client.train, strangers)
        )
        # `evaluate` tells the mean of a part.
        counts_below = [
            int((losses <= member_losses.mean()).sum())
            for losses in (member_losses, stranger_losses)
        ]
        counts = (
            counts_below[0],
            len(member_losses),
            counts_below[1],
            len(stranger_losses),
            self.answered,
            self.refused,
        )
        return Finding(
            way, "members", *counts, len(target.seen), target.most * self.allowed.rounds
        )

    def _loss_beside_others(self, mean: float, x: Tensor, patient: Tensor) -> float:
        """What a mean loss of training rows leaves for one patient, once the losses of all others are taken off, who are known."""
        part = self._shard.clients[0].train
        losses = self._losses(x, part)
        if self.rows.approved.secret:
            losses = losses.clamp(max=LARGEST_LOSS)
        others = (torch.as_tensor(part.inputs, dtype=torch.float64) != patient).any(1)
        return mean * len(losses) - float(losses[others].sum())

    def _prepare(self, pair: str) -> None:
        """Send a model for another method or fold of the same seed."""
        self.pair, self.allowed = pair, self.rows.approved.pairs[pair]
        state = self._shard.workspace.model.state_dict()
        self.say(
            "prepare",
            pair=pair,
            resume=False,
            **{f"state/{key}": value for key, value in state.items()},
        )

    def _rows_of(self, target: _Target) -> Tensor:
        """The rows whose loss a task tells: those of the part that its payload names, if the site has it, else training rows."""
        payload, client = target.payload(1), self._shard.clients[0]
        named = str(payload.get("part", payload.get("rows")))
        inputs: Any = (getattr(client, named, None) or client.train).inputs
        return torch.as_tensor(inputs, dtype=torch.float64)

    @torch.no_grad()
    def _losses(self, x: Tensor, part: Part) -> Tensor:
        workspace = self._shard.workspace
        workspace.load(x.to(workspace.layout.dtype))
        workspace.train(False)
        return workspace.loss.rows(workspace.model(part.inputs), part.labels).double()

    def _count_rows(
        self, way: str, guesses: Tensor, rows: Tensor, target: _Target | None = None
    ) -> Finding:
        hits = count_near(guesses, rows)
        # Rows of shuffled columns, which no site has: guesses that are near to them are near by luck.
        luck = count_near(guesses, _shuffled(rows))
        spent: tuple[int, ...] = ()
        if target is not None:
            spent = (len(target.seen), target.most * self.allowed.rounds)
        return Finding(
            way,
            "rows",
            hits,
            len(rows),
            luck,
            len(rows),
            self.answered,
            self.refused,
            *spent,
        )


def _shuffled(rows: Tensor) -> Tensor:
    """Rows [n, width] that nobody has: each column of the table in another order."""
    columns = [
        c[torch.randperm(len(c), generator=torch.Generator().manual_seed(j))]
        for j, c in enumerate(rows.T)
    ]
    return torch.stack(columns, 1)


@dataclass
class _Target:
    """One task of a method and seed, asked about models of the server's choice.

    Attributes:
        server: who asks.
        declaration, owner: of the task, and whose settings its fields hold.
        field, reply: the fields that hold models, and what the site says of them.
        at_once: models of a request; one where the site answers about one of them alone, which it chooses.
        each: whether an answer holds a row for each model.
        uploaded: bool [d + b]: the entries of a model that an update holds; all but the layers that stay at clients.
        most: models of a round, over all runs.
        seen: the models about which the site has answered, in which round.
    """

    server: _Server
    declaration: Asks
    owner: Any
    field: str
    reply: str
    at_once: int
    each: bool
    uploaded: Tensor
    most: int
    seen: set[tuple[int, bytes]]

    @classmethod
    def of(
        cls, server: _Server, declaration: Asks, owner: Any, kinds: tuple[str, ...]
    ) -> _Target:
        """The first field of the reply that is of one of these kinds, about the field of the payload that holds most models."""
        task, limits = declaration.task, server.rows._limits(server._shard)
        models = {
            k: held.holds.shape
            for k, held in payload_fields(task).items()
            if held.holds and held.holds.model
        }
        field = min(models, key=lambda k: models[k][:1] != ("models",))
        reply = next(key for key, kind in task.kinds.items() if kind in kinds)
        count = declaration.most_models(limits.clients)
        most = count * server.rows.approved.plan.deployment.runs
        payload = example_payload(declaration, owner, limits, 1)
        arguments = {}
        for key, value in payload.items():
            if isinstance(value, PerClient):
                value = value.tensor
            arguments[key] = value
        form, layout = task.forms[reply], server._shard.workspace.layout
        shape = row_shape(form, arguments, layout)
        sent = task.layout_of(reply, arguments, layout)
        names = {name for name, _ in (*sent.parameters, *sent.buffers)}
        entries = [
            torch.full((shape.numel(),), name in names)
            for name, shape in (*layout.parameters, *layout.buffers)
        ]
        # Of several models the reply has one entry each where it has a dimension more than about one.
        of_one_model = int(task.kinds[reply] in VECTORS)
        one_each = models[field][:1] == ("models",) and len(shape) > of_one_model
        at_once = count if one_each else 1
        return cls(
            server,
            declaration,
            owner,
            field,
            reply,
            at_once,
            one_each,
            torch.cat(entries),
            most,
            set(),
        )

    def payload(self, round: int) -> dict[str, Any]:
        """A payload that the declaration allows."""
        limits = self.server.rows._limits(self.server._shard)
        return example_payload(self.declaration, self.owner, limits, round)

    def replies(self, models: Tensor, round: int) -> list[Tensor]:
        """Return the site's answer about each model, as long as it answers."""
        server, payload = self.server, self.payload(round)
        example = payload[self.field]
        holds = payload_fields(self.declaration.task)[self.field].holds
        takes_several = holds.shape[:1] == ("models",)  # type: ignore[union-attr]
        answers: list[Tensor] = []
        received = server.as_received(models)
        for start in range(0, len(received), self.at_once):
            part = received[start : start + self.at_once]
            value = part if takes_several else part[0]
            payload[self.field] = value
            if isinstance(example, PerClient):
                payload[self.field] = PerClient(value[None])
            values = server.ask_about(
                self.declaration.task, payload, server.allowed.seed, round
            )
            if values is None:
                break
            self.seen.update((round, x.numpy().tobytes()) for x in part)
            answer = values[self.reply][0].double()
            if self.each:
                answers += list(answer[-len(part) :])
            else:
                answers.append(answer)
        return answers

    def updates(self, models: Tensor, round: int, copies: int) -> list[Tensor]:
        """Return the site's update of each model, the mean over copies, decay of weights taken off."""
        local = getattr(self.server.allowed.method, "local", None)
        copied = self.server.as_received(models.repeat_interleave(copies, 0))
        answers = zip(self.replies(copied, round), copied, strict=False)
        replies = []
        for answer, x in answers:
            update = torch.zeros_like(x, dtype=torch.float64)
            update[self.uploaded] = answer.reshape(-1, int(self.uploaded.sum())).mean(0)
            replies.append(
                torch.where(self.uploaded, update - decay(x.double(), local, round), 0)
            )
        # The site may have stopped answering among the copies of a model, which then has no mean.
        count = len(replies) // copies
        if not count:
            return []
        complete = torch.stack(replies[: count * copies])
        return list(complete.reshape(count, copies, -1).mean(1))
