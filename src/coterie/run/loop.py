"""The run loop: rounds, participation and evaluation; the same for every method and engine."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from coterie.base.errors import InputError, RunError, cut
from coterie.base.files import state_type
from coterie.base.names import Names
from coterie.base.rng import Rng
from coterie.compute.linear import linear_layer
from coterie.config.rules import check_object
from coterie.config.run import RunSettings
from coterie.contract.down import as_sent
from coterie.contract.engine import Engine
from coterie.contract.federation import Federation
from coterie.contract.filters import Filter
from coterie.contract.fitting import filters_of
from coterie.contract.method import Log, Method, Sampler, as_log, as_models
from coterie.run.appeals import Appeals
from coterie.run.callbacks import Metrics, Models
from coterie.run.central import CentralTest
from coterie.run.checkpoint import RoundFiles
from coterie.run.contribution import Contributions, check_estimator
from coterie.run.evaluation import Divergence, Evaluator, is_evaluated
from coterie.run.followers import Followers
from coterie.run.history import Record, Timing
from coterie.run.memory_forecast import foresee_memory
from coterie.run.result import Run
from coterie.run.rounded_models import down_of_run
from coterie.run.secure_methods import check_secure

logger = logging.getLogger("coterie")
_NONE: Mapping[str, int] = MappingProxyType({})


def run_method(
    engine: Engine,
    method: Method[Any],
    rounds: int,
    seed: int,
    settings: RunSettings,
    *,
    filters: Sequence[Filter] = (),
    files: RoundFiles | None = None,
    starts: Mapping[str, int] = _NONE,
) -> Run:
    """Run a method on the clients of an engine, which stays open.

    Rounds are saved by `files`; `starts` has the first round of each client that is not there from the beginning (`Clients.starts`).
    Other arguments and errors as for `fit`.
    """
    settings.check(rounds, seed, len(engine.clients))
    try:
        loop = _Loop(method, engine, rounds, seed, settings, filters, starts)
        return loop.run(files)
    except FrozenInstanceError as error:
        raise InputError(
            f"{type(method).__name__} writes on itself or on what it was given ({error}), where a resumed run would not find it; "
            "return it in the state"
        ) from error


MOST_LOST = 0.5
"""Seconds of work on one machine that may be lost with a process that is killed, unless a run says how often it is saved."""


class _Loop:
    """One run; what differs between a fresh and a resumed one is only where it starts."""

    def __init__(
        self,
        method: Method[Any],
        engine: Engine,
        rounds: int,
        seed: int,
        settings: RunSettings,
        filters: Sequence[Filter],
        starts: Mapping[str, int],
    ) -> None:
        check_object(method, Method)
        if starts and not method.newcomers:
            raise InputError(
                f"{type(method).__name__} begins with all clients; leave out start of {', '.join(sorted(starts))}, or take a method "
                "that clients may join later, such as fedavg"
            )
        self.starts = starts
        self.method, self.engine = method, engine
        self.own = type(self.method).__name__
        self.rounds, self.seed, self.settings = rounds, seed, settings
        self.per_round = settings.per_round(len(engine.clients))
        self.every = settings.every(rounds)
        # Not a method: the run would be in a cycle, and its engine outlive it until garbage is looked for.
        self._is_due = partial(is_evaluated, rounds, self.every)
        self.own_participation = self.method.participation == "own"
        self.appeals: Appeals | None = None
        if settings.appeal is not None:
            self.appeals = Appeals(settings.appeal, method, engine.x)
        if method.sampler is not None:
            check_object(method.sampler, Sampler)
        self.sampler = Sampler() if method.sampler is None else method.sampler
        own_filters = filters_of(self.method, filters)
        check_secure(self.method, self.own, settings, own_filters, engine)
        # Attackers lie and filters run while a model is trained; what is looked at in between, and at the end, is measured as it is.
        self.training = Federation(
            engine,
            engine.clients,
            seed,
            max_norm=settings.max_norm,
            strict_wire=settings.strict_wire,
            clients_per_round=self.per_round,
            filters=own_filters,
            label=self.own,
            is_evaluated=self._is_due,
            secure=None if method.is_reference else settings.secure,
            down=down_of_run(self.method, settings, engine.layout),
        )
        self.federation = replace(
            self.training, engine=engine.honest or engine, filters=(), secure=None
        )
        # Tells a repeated round from its first try; no result depends on it.
        self.attempt = secrets.randbits(48)
        # Models that are solved for stand after a few rounds. At a site a look is an answer, which no other stands for.
        may_stand = method.solves_linear and engine.simulated
        self.evaluator = Evaluator(
            self.federation,
            self.attempt,
            settings.metrics,
            settings.evaluation,
            may_stand=may_stand and linear_layer(engine.model) is not None,
        )
        self.record, self.divergence = Record(), Divergence()
        self.pool_was_empty = False
        self.contributions: Contributions | None = None
        if settings.contribution is not None and not method.is_reference:
            check_estimator(settings.contribution, self.per_round)
            self.contributions = Contributions(
                settings.contribution, engine.clients, self.own
            )
        self._final_log: Log | None = None
        # Once: with many clients a tuple of names in every round takes longer than the round.
        self._served = Names((*engine.clients, *engine.unseen))
        self._last_saved = time.monotonic()
        self.central: CentralTest | None = None
        if settings.central is not None:
            self.central = CentralTest(engine, settings, seed)
        foresee_memory(method, engine, self.per_round)

    def run(self, files: RoundFiles | None) -> Run:
        rounds, session = self.rounds, self.federation.session
        label = self.settings.label or self.training.label
        followers = Followers(self.settings.callbacks, (label, self.seed, rounds))
        try:
            if files and self.settings.resume and files.exist():
                state, number = self._restore(files)
            else:
                state, number = self._start(files)
            saved = number
            while not self._ends(followers, state, number) and number < rounds:
                number += 1
                started, asks = time.perf_counter(), len(session.asks)
                is_idle = self._is_idle(state)
                if is_idle:
                    self._pass_idle_round(state, number)
                else:
                    state = self._round(state, number)
                total = time.perf_counter() - started
                server_seconds = total - sum(ask.seconds for ask in session.asks[asks:])
                self.record.seconds.append(Timing(number, total, server_seconds))
                logger.info("%s: round %d of %d, %.2g s", label, number, rounds, total)
                # An idle round takes no time, so that a resumed run may repeat it.
                is_due = not is_idle and self._is_saved(number, total)
                if files and (is_due or number == rounds):
                    self._save(files, state, number)
                    saved = number
            if files and saved < number:  # a callback has ended the run
                self._save(files, state, number)
        finally:
            followers.end()
            if self.central is not None:
                self.central.close()
        models = self.evaluator.seen.models
        if self.evaluator.seen.round != number:
            models = self._final_models(state, number)
        return Run(
            self.method,
            self.seed,
            number,
            state,
            {name: x for name, x in models.items() if x is not None},
            self.engine.model,
            history=self.record.history,
            weights=self.record.weights,
            weight_rows=self.record.weight_rows,
            contributions=self.record.contributions,
            seconds=self.record.seconds,
            summary=self.evaluator.summarise(models, number),
            asks=session.asks,
            failures=session.failures,
            elsewhere=tuple(name for name, x in models.items() if x is None),
            prior=self.method.prior(state),
        )

    def _ends(self, followers: Followers, state: Any, number: int) -> bool:
        """Tell callbacks that a round is complete; return True if one of them ends the run."""
        if not self._is_due(number):
            return followers.tell(number, None)
        models = self.evaluator.seen.models
        if self.evaluator.seen.round != number and followers.look:
            models = self._final_models(state, number)  # of a run that goes on
        at_hand = {name: x for name, x in models.items() if x is not None}
        metrics = Metrics(
            self.record.history, number, Models(at_hand, self.engine.model)
        )
        return followers.tell(number, metrics)

    def _start(self, files: RoundFiles | None) -> tuple[Any, int]:
        start = self._everybody(0)
        # Not on resume: what the sampler let clients remember is part of what was saved, and an ask of round 0 would end it.
        self.sampler.check(start)
        if files:
            files.clear()
        state = self.method.init(self.engine.x.clone(), start)
        self._evaluate(state, start)
        if files and self._is_saved(0, 0.0):
            self._save(files, state, 0)
        return state, 0

    def _is_saved(self, number: int, seconds: float) -> bool:
        """Return True if round `number` is saved, which took so many seconds; the next one may take as many."""
        if self.settings.save_every is not None:
            return number % self.settings.save_every == 0
        at_risk = time.monotonic() - self._last_saved + seconds
        return not self.engine.simulated or at_risk > MOST_LOST

    def _save(self, files: RoundFiles, state: Any, number: int) -> None:
        session = self.federation.session
        files.save(state, number, self.record, session, self.engine)
        self._last_saved = time.monotonic()

    def _restore(self, files: RoundFiles) -> tuple[Any, int]:
        saved = files.read(self.rounds, self.engine.x.device)
        kind = state_type(self.method)
        if kind is None:
            kind = type(self.method.init(self.engine.x.clone(), self._everybody(0)))
        files.restore(saved, self.record, self.federation.session, self.engine)
        self.divergence.notice(self.record.history.parts)  # was said before
        return kind(**saved.values), saved.meta["round"]

    # ---- a round

    def _round(self, state: Any, number: int) -> Any:
        self.evaluator.forget()
        pool, log = self._pool(state, number)
        view = self.training.view(self._draw(number, pool), number, self.attempt)
        due = self._is_due(number)
        if not pool:
            self.record.add(number, log)
            self._notice_empty_pool(number, log)
            if due:
                honest = self.federation.view(view.clients, number, self.attempt)
                self._evaluate(state, honest)
            return state
        measured = self.contributions
        if measured and not measured.looks_at(number):
            measured = None
        if measured:
            view = measured.watch(view)
        rng = Rng.named(self.seed, "server", number)
        was_finished = self.method.finished(state)
        returned = self.method.round(state, view, rng)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise InputError(
                f"{self.own}.round must return (state, log); got {cut(returned)}"
            )
        new_state = returned[0]
        log |= self._as_log(returned[1], f"{self.own}.round")
        models = self._models(new_state)
        self._refuse_infinite(models, number)
        learned = self.sampler.after_round(models.get("*"), view) or {}
        log |= self._as_log(learned, f"{type(self.sampler).__name__}.after_round")
        if was_finished:
            self._final_log = log
            self._repeat_log(number, log)
        else:
            self._write_down(number, log, with_weights=due)
        self._notice_empty_pool(number, log)
        honest = self.federation.view(view.clients, number, self.attempt)
        if measured:
            orders = Rng.named(self.seed, "contribution", number)
            self.record.contributions += measured.measure(
                honest, self._models(state), models, log, orders
            )
            self.record.add(number, measured.log)
        if due:
            self._evaluate(new_state, honest)
        return new_state

    def _repeat_log(self, number: int, log: Log) -> None:
        """Write down what a method says that had finished before this round: in rounds that are evaluated, as it stays the same.

        All this follows from the state, so that a resumed run writes the same; and a site, which is asked in every round, as well.
        """
        if self._is_due(number):
            self._write_down(number, log, with_weights=True)

    def _write_down(self, number: int, log: Log, *, with_weights: bool) -> None:
        """Write down what a method says of a round."""
        self.record.add(
            number,
            log,
            with_weights=with_weights,
            changed_alone=self.method.solves_linear,
        )

    def _is_idle(self, state: Any) -> bool:
        """Return True if the round asks nobody and changes nothing: the method has finished, and was evaluated since."""
        if self._final_log is None or self.evaluator.seen.round <= 0:
            return False
        # These ask clients in each round, whatever the method does.
        if type(self.sampler) is not Sampler or self.contributions is not None:
            return False
        return self.settings.appeal is None and self.method.finished(state)

    def _pass_idle_round(self, state: Any, number: int) -> None:
        """Write down again what the method said last, and the last evaluation, in rounds that are evaluated."""
        if not self._is_due(number):
            return
        self._repeat_log(number, self._final_log or {})
        self.record.history.parts += self.evaluator.repeat(number)
        measured = self.method.measure(state, self._everybody(number))
        self.record.add(number, self._as_log(measured, f"{self.own}.measure"))

    def _as_log(self, returned: Any, hook: str) -> Log:
        """What a hook returned, if it is a log. Raises `InputError` that names the hook."""
        return as_log(returned, hook, self.engine.clients)

    def _notice_empty_pool(self, number: int, log: Log) -> None:
        """Say once that no client is left: nobody trains, so the model cannot win anybody back."""
        if not log.get("skipped") or self.pool_was_empty:
            return
        self.pool_was_empty = True
        logger.warning(
            "%s: in round %d the model appeals to no client; nobody trains it, so it stays as it is in all later rounds. "
            "Raise mandatory_rounds, or let requirements be easier",
            self.own,
            number,
        )

    def _refuse_infinite(self, models: Mapping[str, Tensor], number: int) -> None:
        for name, x in models.items():
            if bool(torch.isfinite(x).all()):
                continue
            whose = "the model"
            if name != "*":
                whose += f" of {name!r}"
            culprit = ""
            if self.federation.session.largest_update:
                client, norm = self.federation.session.largest_update
                culprit = f"; the largest update came from {client!r} (norm {norm:.3g})"
            raise RunError(
                f"round {number}: {whose} is not finite and the round is undone{culprit}; lower the learning rates"
            )

    def _evaluate(self, state: Any, view: Federation) -> None:
        """Write down the metrics of all clients, and what the method itself measures in the round of this view."""
        found = self.evaluator.look(self._final_models(state, view.round), view.round)
        self.record.history.parts += found
        if self.central is not None:
            seen = self.evaluator.seen.models
            self.record.history.parts += self.central.look(seen, view.round)
        diverges = self.divergence.notice(found)
        if diverges:
            logger.warning("%s", diverges)
        log = self._as_log(self.method.measure(state, view), f"{self.own}.measure")
        if self.appeals is not None and "gm_appeal" not in log:
            log = {**self.appeals.measure(self._models(state), view), **log}
        self.record.add(view.round, log)

    def _pool(self, state: Any, number: int) -> tuple[tuple[str, ...], Log]:
        """Clients that may be drawn, and what is written down of them where some may have left."""
        present = self._present(number)
        if self.appeals is None or not self.appeals.may_leave:
            return present, {}
        view = self.training.view(present, number, self.attempt)
        return self.appeals.choose(self._models(state), view)

    def _draw(self, number: int, pool: tuple[str, ...]) -> tuple[str, ...]:
        m = min(self.per_round, len(pool))
        if self.own_participation or m == len(pool):
            return pool
        chosen = Rng.named(self.seed, "participants", number).sample(len(pool), m)
        return tuple(pool[i] for i in chosen.tolist())

    def _present(self, number: int) -> tuple[str, ...]:
        """The clients that have joined by round `number`."""
        everyone = self.engine.clients
        if not self.starts:
            return everyone
        # Round 0 prepares round 1: whoever takes part in that is there.
        reached = max(number, 1)
        return tuple(name for name in everyone if self.starts.get(name, 1) <= reached)

    def _everybody(self, number: int) -> Federation:
        """The clients that have joined by a round, all of them its participants."""
        return self.federation.view(self._present(number), number, self.attempt)

    def _models(self, state: Any) -> dict[str, Tensor]:
        return self._check_models(self.method.models(state), "models")

    def _check_models(self, models: Any, hook: str) -> dict[str, Tensor]:
        size = self.engine.layout.size
        return as_models(models, f"{self.own}.{hook}", size, self._served)

    def _final_models(self, state: Any, number: int) -> dict[str, Tensor | None]:
        """The models that clients use: those of the state as they are sent, and those which they make of them for themselves; None: it
        stays there.
        """
        personal = self.method.personalised(state, self._everybody(number))
        self.evaluator.own = frozenset(personal)
        models: dict[str, Tensor | None] = {}
        for name, x in self._models(state).items():
            models[name] = as_sent(x, self.federation.down)
        if not self.engine.sends_own:
            models |= dict.fromkeys(personal)
            personal = {name: x for name, x in personal.items() if x is not None}
        return models | self._check_models(personal, "personalised")
