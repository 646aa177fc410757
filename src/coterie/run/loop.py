"""The run loop: rounds, participation, evaluation, history, checkpoints and resume; the same for every method and engine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.errors import InputError, RunError, nearest, require
from coterie.core.federation import AskRecord, Engine, Federation, QuorumError
from coterie.core.method import Log, Method, Sampler, as_method, as_sampler
from coterie.core.metrics import baselines, evaluate, find_metrics
from coterie.core.rng import Rng
from coterie.core.state import read_checkpoint, state_type, write_checkpoint
from coterie.core.vector import Layout, export
from coterie.core.wire import PerClient
from coterie.engines.inprocess import check_free_memory
from coterie.run.finetune import Tuning, tunable, tune

__all__ = ["Clock", "History", "Plan", "Row", "Run", "personalise_on", "run_on"]

logger = logging.getLogger("coterie")


class Row(NamedTuple):
    """One number of the history: client `*` and an empty split for what belongs to the whole round."""

    round: int
    client: str
    split: str
    metric: str
    value: float


class Clock(NamedTuple):
    """Seconds of a round on the wall, and of them those outside of asks: the method's own work (descent, QP, average)."""

    round: int
    seconds: float
    own: float | None = None


class History(list[Row]):
    """All numbers of a run, in the order in which they were made.

    >>> History([Row(0, "a", "test", "loss", 0.7), Row(5, "a", "test", "loss", 0.4)]).select(metric="loss", client="a")
    [(0, 0.7), (5, 0.4)]
    """

    def select(self, metric: str, client: str = "*", split: str | None = None) -> list[tuple[int, float]]:
        """(round, value) of one metric of one client; `split` may be left out where there is only one."""
        return [
            (r.round, r.value)
            for r in self
            if r.metric == metric and r.client == client and (split is None or r.split == split)
        ]


@dataclass
class Run:
    """What a run has learned and seen.

    Attributes:
        method, seed, rounds: as given.
        state: of the method, after the last round.
        models: a model [d + b] by client, and under `*` one for everybody who has none of its own.
        history: all numbers.
        weights: of the last round: by target (`*`: one model for everybody) and client, divided by their sum.
        weight_rows: (round, target, client, weight) at evaluation rounds.
        summary: rows as in `summary.json`, for the last model.
        seconds: by round; the part without asks is what the method itself took.
        asks: one record per ask.
        failures: last reason of each client that ever failed.
        module: the module that the vectors belong to.
    """

    method: Any
    seed: int
    rounds: int
    state: Any
    models: Mapping[str, Tensor]
    module: nn.Module
    history: History = field(default_factory=History)
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    weight_rows: list[tuple[int, str, str, float]] = field(default_factory=list)
    summary: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[Clock] = field(default_factory=list)
    asks: list[AskRecord] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def x(self) -> Tensor:
        """The model [d + b] for everybody, or the only one."""
        if "*" in self.models:
            return self.models["*"]
        if len(self.models) > 1:
            raise InputError(f"this run has a model for each of {', '.join(self.models)}; take run.models[name]")
        return next(iter(self.models.values()))

    def state_dict(self, client: str = "*") -> Mapping[str, Tensor]:
        """A state dict for the module that was trained; of the model for everybody, or of a client's own."""
        chosen = self.models.get(client, self.models.get("*"))
        if chosen is None:
            raise InputError(f"this run has no model for {client!r}; {nearest(client, self.models)}")
        return export(chosen, self.module, Layout.of(self.module))


@dataclass(frozen=True)
class Plan:
    """What a run is asked for, whatever the engine.

    Attributes:
        rounds, seed, clients_per_round, evaluate, metrics, strict_wire: as for `fit`.
    """

    rounds: int = 50
    seed: int = 0
    clients_per_round: int | None = None
    evaluate: int | None = None
    metrics: tuple[str, ...] = ("accuracy", "balanced_accuracy", "auc")
    strict_wire: bool = False

    def check(self, count: int) -> None:
        """Raise `InputError` for what cannot be run with `count` clients."""
        require(type(self.seed) is int and self.seed >= 0, f"seed must be an int >= 0; got {self.seed!r}")
        require(type(self.rounds) is int and self.rounds >= 0, f"rounds must be an int >= 0; got {self.rounds!r}")
        require(
            type(self.every) is int and self.every >= 1,
            f"evaluate must be an int >= 1 (rounds between evaluations); got {self.evaluate!r}",
        )
        m = self.participants(count)
        require(
            type(m) is int and 1 <= m <= count, f"clients_per_round must be between 1 and {count} (clients); got {m!r}"
        )
        find_metrics(",".join(self.metrics))

    @property
    def every(self) -> int:
        """Rounds between evaluations."""
        return max(1, self.rounds // 20) if self.evaluate is None else self.evaluate

    def participants(self, count: int) -> int:
        """Clients in a round, of `count`."""
        return count if self.clients_per_round is None else self.clients_per_round


def run_on(
    engine: Engine,
    method: Method[Any],
    plan: Plan,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Run a method on the clients of an engine, which stays open. Arguments and errors as for `fit`."""
    plan.check(len(engine.clients))
    loop = _Loop(method, engine, plan)
    return loop.run(plan.rounds, None if checkpoint is None else Path(checkpoint), resume, progress)


def personalise_on(engine: Engine, run: Run, settings: Tuning, plan: Plan) -> Run:
    """Tune the models of a run on the clients of an engine, which stays open; `Run` and errors as for `runner.personalise`."""
    tunable(engine.layout, settings.part)
    trained = engine.sizes("train")
    require(
        any(engine.sizes("validation").values()),
        "personalisation chooses on validation rows, and there are none; give split.parts a share for validation",
    )
    folded = next((r["client"] for r in run.summary if r["n_train"] > trained.get(r["client"], r["n_train"])), None)
    require(
        folded is None,
        f"client {folded!r} was trained on validation rows, which then cannot choose; fit with fold_validation=False",
    )
    loop = _Loop(run.method, engine, plan)
    loop.federation.session.spent["row_gradients"] += max((r["row_gradients"] for r in run.summary), default=0)
    names = [n for n, rows in trained.items() if rows and (n in run.models or "*" in run.models)]
    models = {n: run.models[n if n in run.models else "*"] for n in names}
    view = loop.federation.view(engine.clients, run.rounds, loop.attempt)
    got = view.ask(names, tune, x=PerClient(torch.stack(list(models.values()))), tuning=settings)
    models.update(zip(got.clients, got.model, strict=True))
    loop.look(models, run.rounds, {"tuning_steps": got.named(got.steps), "tuning_lr": got.named(got.lr)})
    return replace(
        run,
        models=models,
        history=loop.history,
        summary=loop.summarise(models, run.rounds),
        seconds=[],
        asks=loop.federation.session.asks,
        failures={**run.failures, **loop.federation.session.failures},
    )


Measured = Mapping[str, dict[str, float | None]]
"""Metrics by client."""


class _Look(NamedTuple):
    """What was seen when these models were evaluated last: by split, the metrics of each client."""

    round: int
    models: Mapping[str, Tensor]
    values: Mapping[str, Measured]


class _Loop:
    """One run; what differs between a fresh and a resumed one is only where it starts."""

    def __init__(self, method: Method[Any], engine: Engine, plan: Plan) -> None:
        self.method, self.engine, self.seed = as_method(method), engine, plan.seed
        self.participants, self.every = plan.participants(len(engine.clients)), plan.every
        self.metrics = ",".join(plan.metrics)
        self.own_participation = self.method.participation == "own"
        self.sampler = as_sampler(self.method.sampler or Sampler())
        # Attackers lie while a model is trained; what is looked at in between, and at the end, is measured honestly.
        self.training = Federation(
            engine,
            engine.clients,
            plan.seed,
            strict_wire=plan.strict_wire,
            clients_per_round=self.participants,
        )
        self.federation = replace(self.training, engine=getattr(engine, "honest", engine))
        self.attempt = secrets.randbits(48)  # tells a repeated round from its first try; no result depends on it
        self.splits = [s for s in ("train", "validation", "test") if any(engine.sizes(s).values())]
        self.history = History()
        self.weight_rows: list[tuple[int, str, str, float]] = []
        self.last_weights: dict[str, dict[str, float]] = {}
        self.seen = _Look(-1, {}, {})
        self.seconds: list[Clock] = []
        self._preflight()

    def _preflight(self) -> None:
        held = self.method.memory_estimate(self.participants, len(self.engine.clients))
        itemsize = torch.empty(0, dtype=self.engine.layout.dtype).element_size()
        sentence = check_free_memory(held, self.engine.layout.size, itemsize)
        if sentence:
            logger.info("%s", sentence)

    def run(self, rounds: int, folder: Path | None, resume: bool, progress: Callable[[int], None] | None) -> Run:
        state, done = self._start(folder, resume, rounds)
        if progress:
            progress(done)
        for number in range(done + 1, rounds + 1):
            started, asks = time.perf_counter(), self.federation.session.asks
            before = len(asks)
            state = self._round(state, number, last=number == rounds)
            total = time.perf_counter() - started
            self.seconds.append(Clock(number, total, total - sum(ask.seconds for ask in asks[before:])))
            if folder is not None:
                self._save(folder, state, number)
            if progress:
                progress(number)
        models = self.seen.models if self.seen.round == rounds else self._served(state, rounds)
        return Run(
            self.method,
            self.seed,
            rounds,
            state,
            models,
            self.engine.model,
            self.history,
            self.last_weights,
            self.weight_rows,
            self.summarise(models, rounds),
            self.seconds,
            self.federation.session.asks,
            self.federation.session.failures,
        )

    def _start(self, folder: Path | None, resume: bool, rounds: int) -> tuple[Any, int]:
        if folder is not None and resume and (folder / "checkpoint.safetensors").exists():
            return self._restore(folder, rounds)
        start = self.federation.view(self.engine.clients, 0, self.attempt)
        # Not on resume: what the sampler let clients remember is part of what was saved, and an ask of round 0 would end it.
        self.sampler.check(start)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "history.jsonl").unlink(missing_ok=True)
            (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        state = self.method.init(self.engine.x.clone(), start)
        self._evaluate(self._served(state, 0), 0)
        self._measure_method(state, start)
        if folder is not None:
            self._save(folder, state, 0)
        return state, 0

    # ---- a round

    def _round(self, state: Any, number: int, last: bool) -> Any:
        view = self.training.view(self._draw(number), number, self.attempt)
        rng = Rng.named(self.seed, "server", number)
        new, log = self.method.round(state, view, rng)
        models = self._models(new)
        for name, x in models.items():
            if not bool(torch.isfinite(x).all()):
                largest = self.federation.session.largest_update
                who = f"; the largest update came from {largest[0]!r} (norm {largest[1]:.3g})" if largest else ""
                whose = "the model" if name == "*" else f"the model of {name!r}"
                raise RunError(
                    f"round {number}: {whose} is not finite and the round is undone{who}; lower the learning rates"
                )
        log = {**log, **(self.sampler.after_round(models.get("*"), view) or {})}
        self._record(number, log, self._is_due(number, last))
        if self._is_due(number, last):
            self._evaluate(self._served(new, number), number)
            self._measure_method(new, self.federation.view(view.clients, number, self.attempt))
        return new

    def _measure_method(self, state: Any, view: Federation) -> None:
        self._record(view.round, self.method.measure(state, view), False)

    def _is_due(self, number: int, last: bool) -> bool:
        return last or number % self.every == 0

    def _draw(self, number: int) -> tuple[str, ...]:
        everyone = self.engine.clients
        if self.own_participation or self.participants == len(everyone):
            return everyone
        chosen = Rng.named(self.seed, "participants", number).permutation(len(everyone), self.participants)
        return tuple(everyone[i] for i in np.sort(chosen).tolist())

    def _models(self, state: Any) -> dict[str, Tensor]:
        models = self.method.models(state)
        return {"*": models} if isinstance(models, Tensor) else dict(models)

    def _served(self, state: Any, number: int) -> dict[str, Tensor]:
        """The models that clients use: those of the state, and those which they make of them for themselves."""
        models = self._models(state)
        view = self.federation.view(self.engine.clients, number, self.attempt)
        return {**models, **self.method.personalised(state, view)}

    # ---- what is seen

    def _record(self, number: int, log: Log, with_weights: bool) -> None:
        for key, value in log.items():
            if key == "weights":
                nested = bool(value) and all(isinstance(v, Mapping) for v in value.values())
                by_target = value if nested else {"*": value}
                self.last_weights = {t: _normalised(w) for t, w in by_target.items()}
                if with_weights:
                    for target, weights in self.last_weights.items():
                        self.weight_rows += [(number, target, c, w) for c, w in weights.items()]
            elif isinstance(value, Mapping):
                self.history += [Row(number, k, "", key, float(v)) for k, v in value.items()]
            else:
                self.history.append(Row(number, "*", "", key, float(value)))

    def look(self, models: Mapping[str, Tensor], number: int, log: Log) -> None:
        """Add quantities of a method and the metrics of these models to the history."""
        self._record(number, log, False)
        self._evaluate(models, number)

    def _evaluate(self, models: Mapping[str, Tensor], number: int) -> None:
        self.history.append(
            Row(number, "*", "", "row_gradients", float(self.federation.session.spent["row_gradients"]))
        )
        self.seen = _Look(number, models, {split: self._measure(models, split, number) for split in self.splits})
        for split, by_client in self.seen.values.items():
            for client, values in by_client.items():
                self.history += [
                    Row(number, client, split, k, v) for k, v in values.items() if v is not None and k != "n"
                ]

    def _measure(
        self, models: Mapping[str, Tensor], split: str, number: int, known: Measured = MappingProxyType({})
    ) -> Measured:
        """Metrics of each client's model, for clients that have one and have rows of this split; asked of those not yet `known`."""
        everybody = [n for n, size in self.engine.sizes(split).items() if size and ("*" in models or n in models)]
        names = [n for n in everybody if n not in known]
        if not names:
            return known
        own = any(n in models for n in names)
        x = PerClient(torch.stack([models[n if n in models else "*"] for n in names])) if own else models["*"]
        view = self.federation.view(self.engine.clients, number, self.attempt)
        try:
            got = view.ask(names, evaluate, x=x, part=split, metrics=self.metrics)
        except QuorumError:  # who failed before has failed again
            if known:
                return known
            raise
        found: dict[str, dict[str, float | None]] = dict(known)
        keys = [k for k in self.metrics.split(",") if k]
        for i, name in enumerate(got.clients):
            found[name] = {"n": float(got.rows[i]), "loss": float(got.loss[i])}
            found[name].update({k: float(got.values[i, j]) if got.defined[i, j] else None for j, k in enumerate(keys)})
        return {n: found[n] for n in everybody if n in found}

    def summarise(self, models: Mapping[str, Tensor], rounds: int) -> list[dict[str, Any]]:
        """Rows as in `summary.json`."""
        trained = self.engine.sizes("train")
        unseen = set(self.engine.unseen)
        spent = self.federation.session.spent["row_gradients"]
        summary = []
        for split in self.splits:
            # After the last round most is known: not of a client that failed then, and nothing where a finished run is resumed.
            known = self.seen.values.get(split, {}) if self.seen.models is models else {}
            measured = self._measure(models, split, rounds, known)
            view = self.federation.view(self.engine.clients, rounds, self.attempt)
            if not measured:
                continue
            constant = view.ask(tuple(measured), baselines, part=split)
            shares = {
                name: (float(constant.majority[i]), float(constant.majority_loss[i]))
                for i, name in enumerate(constant.clients)
            }
            for name, values in measured.items():
                majority, majority_loss = shares.get(name, (-1.0, -1.0))
                summary.append(
                    {
                        "seed": self.seed,
                        "client": name,
                        "split": split,
                        "n": int(values["n"] or 0),
                        "n_train": trained[name],
                        **{k: v for k, v in values.items() if k != "n"},
                        "majority": None if majority < 0 else majority,
                        "majority_loss": None if majority_loss < 0 else majority_loss,
                        "row_gradients": spent,
                        "own_model": name in models,
                        "rounds": rounds,
                        **({"unseen": True} if name in unseen else {}),
                    }
                )
        return summary

    # ---- checkpoints

    def _fingerprint(self) -> str:
        fields = vars(self.method)  # of a method that is no dataclass
        settings = (
            self.method,
            fields,
            self.seed,
            self.participants,
            self.every,
            self.metrics,
            str(self.engine.layout),
        )
        text = re.sub(" at 0x[0-9a-f]+", "", repr(settings))  # where an object lies differs between processes
        digest = hashlib.blake2b(text.encode(), digest_size=16)
        digest.update(self.engine.fingerprint().encode())
        digest.update(self.engine.x.detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def _save(self, folder: Path, state: Any, number: int) -> None:
        # Rows go to a file of their own and are named by its length: a checkpoint does not grow with the history.
        fresh: dict[str, list[Any]] = {
            "history": self.history[self._written[0] :],
            "weights": self.weight_rows[self._written[1] :],
            "seconds": self.seconds[self._written[2] :],
        }
        asks = self.federation.session.asks
        costs = [[a.round, a.ask, a.task, *cost] for a in asks[self._asked :] for cost in a.costs]
        if costs:
            fresh["asks"] = costs
        with open(folder / "history.jsonl", "ab") as file:
            file.truncate(self._bytes)
            file.seek(0, os.SEEK_END)
            if any(fresh.values()):
                file.write((json.dumps(fresh) + "\n").encode())
            file.flush()
            length = file.tell()
        meta = {
            "round": number,
            "fingerprint": self._known_fingerprint,
            "history_bytes": length,
            "spent": self.federation.session.spent,
            "failures": self.federation.session.failures,
            "weights": self.last_weights,
        }
        write_checkpoint(folder / "checkpoint.safetensors", state, self.engine.save_memory(), meta)
        self._bytes = length
        self._written = (len(self.history), len(self.weight_rows), len(self.seconds))
        self._asked = len(asks)

    _bytes = 0
    _written = (0, 0, 0)
    _asked = 0

    @property
    def _known_fingerprint(self) -> str:
        if not hasattr(self, "_print"):
            self._print = self._fingerprint()
        return self._print

    def _restore(self, folder: Path, rounds: int) -> tuple[Any, int]:
        path = folder / "checkpoint.safetensors"
        saved = read_checkpoint(path)
        meta = saved.meta
        require(
            meta["fingerprint"] == self._known_fingerprint,
            f"{path} was written with other data, model or settings; resume with the same ones, or choose another --out",
        )
        require(meta["round"] <= rounds, f"{path} is at round {meta['round']}, beyond the {rounds} rounds asked for")
        kind = state_type(self.method)
        if kind is None:
            kind = type(
                self.method.init(self.engine.x.clone(), self.federation.view(self.engine.clients, 0, self.attempt))
            )
        with open(folder / "history.jsonl", "rb") as file:
            lines = file.read(meta["history_bytes"]).decode().splitlines()
        for line in map(json.loads, lines):
            self.history += [Row(*row) for row in line["history"]]
            self.weight_rows += [tuple(row) for row in line["weights"]]
            self.seconds += [Clock(*row) for row in line["seconds"]]
        self._bytes = meta["history_bytes"]
        self._written = (len(self.history), len(self.weight_rows), len(self.seconds))
        self.federation.session.spent.update(meta["spent"])
        self.federation.session.failures.update(meta["failures"])
        self.last_weights = meta["weights"]
        self.engine.load_memory(saved.memory)
        return kind(**saved.values), meta["round"]


def _normalised(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {k: (v / total if total else v) for k, v in weights.items()}
