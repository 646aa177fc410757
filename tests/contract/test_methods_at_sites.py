"""A site trains with the settings of its plan: what every method of the catalogue really asks is allowed, and nothing beside it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import pytest
import torch
from test_methods import (
    CASES,
    in_turn,
    is_first,
    is_of_a_family,
    is_pooled,
    method_of,
    server_rows,
)

from coterie.config.local import Epochs, LocalSGD, Steps
from coterie.contract.encoding import encode
from coterie.contract.payload import payload_fields
from coterie.contract.requests import Limits, about_each_model
from coterie.contract.wire import PerClient
from coterie.engines.inprocess import InProcessEngine
from coterie.sites.allowed import Allowed, RefusedError
from federations import Opening, fit, logistic

ROUNDS = 1


class Listening(InProcessEngine):
    """An engine that keeps what clients were asked."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.heard = []

    def ask(self, ask):
        self.heard.append(ask)
        return super().ask(ask)


def asked(method, rounds=ROUNDS, **settings):
    """What a run asks of clients."""
    engines = []

    def listening(clients, model, loss):
        engines.append(Listening(clients, model, loss=loss))
        return engines[0]

    problem = logistic(torch.float32)
    clients = problem.clients.with_server(server_rows(problem))
    fit(
        method,
        clients,
        problem.model,
        rounds,
        engine=Opening(listening),
        evaluate=1,
        metrics=("auc",),
        strict_wire=False,
        **settings,
    )
    return [ask for ask in engines[0].heard if ask.names != ("server",)]


def others(local):
    """Local training beside the plan's, by what differs."""
    count, kind = local.steps.count, type(local.steps)
    other = Epochs if kind is Steps else Steps
    amounts = [kind(count + 1), other(count), kind(1), kind(16), kind(10**6)]
    yield from (
        dataclasses.replace(local, steps=steps)
        for steps in amounts
        if steps != local.steps
    )
    yield dataclasses.replace(local, batch_size=1)


SENT = [case for case in CASES if not is_pooled(case)]
at_sites = pytest.mark.parametrize("case", in_turn(SENT, is_first))
family_at_sites = pytest.mark.parametrize("case", in_turn(SENT, is_of_a_family))
LOCAL = LocalSGD(lr=0.1, steps=Steps(2), batch_size=16)
LIMITS = {
    "model": 0,
    "parameters": 0,
    "classes": 2,
    "clients": 5,
    "dtype": torch.float32,
    "rounds": ROUNDS,
    "features": 3,
}


def limits(ask):
    size = next(
        (
            v.shape[-1]
            for v in map(plain, ask.payload.values())
            if isinstance(v, torch.Tensor) and v.ndim
        ),
        0,
    )
    return Limits(**{**LIMITS, "model": size, "parameters": size})


def plain(value):
    return value.tensor if isinstance(value, PerClient) else value


def alone(ask, client):
    """The payload of an ask as one client is sent it."""
    return ask.to((client,)).payload


@pytest.mark.promise("the plan and nothing else")
@at_sites
def test_a_site_trains_as_its_plan_says_and_not_otherwise(case):
    method = method_of(case, LOCAL)
    allowed = Allowed(method, 0, ROUNDS, ("auc",))
    heard = asked(method)
    assert heard
    for ask in heard:
        about = {"seed": ask.context.seed, "round": ask.context.round}
        payload = alone(ask, ask.names[0])
        allowed.check(ask.task, payload, limits(ask), **about)
        for field, local in payload.items():
            for other in others(local) if isinstance(local, LocalSGD) else ():
                with pytest.raises(
                    RefusedError, match=f"does not allow this '{field}'"
                ):
                    allowed.check(
                        ask.task, {**payload, field: other}, limits(ask), **about
                    )


@pytest.mark.promise("the plan and nothing else")
@family_at_sites
def test_a_method_declares_what_it_asks_and_asks_what_it_declares(case):
    """With all clients and with some, over some rounds: each declared task is asked, about as many models as declared.

    What is asked after a run has tests of its own.
    """
    method = method_of(case, LOCAL)
    allowed = Allowed(method, 0, ROUNDS, ("auc",))
    rounds = (
        11 if getattr(method, "flexible", False) else 3
    )  # a flexible pool is asked who stays after ten
    models = defaultdict(set)
    for run, settings in enumerate(
        ({}, {"clients_per_round": 2}, {"clients_per_round": 3})
    ):
        for ask in asked(method, rounds=rounds, **settings):
            for client in ask.names:
                for payload in about_each_model(ask.function, alone(ask, client)):
                    where = (run, client, ask.task, ask.context.round)
                    models[where].add(encode(payload))
    most = dict.fromkeys(allowed.tasks, 0)
    for (_, _, task, _), seen in models.items():
        most[task] = max(most[task], len(seen))
    declarations = {
        task: one.most_models(5) for task, (one, _) in allowed.tasks.items()
    }
    own = {
        task: n
        for task, n in most.items()
        if "metrics" not in task
        and "sites.comparisons" not in task
        and "left_out" not in task
    }
    assert {task for task, n in own.items() if not n} == set()
    for task, n in own.items():
        line = (
            getattr(method, "md_step", None) == "line-search"
            and "target_losses" in task
        )
        assert n <= declarations[task] if line else n == declarations[task], task


@at_sites
def test_every_field_of_every_declared_task_says_what_it_may_hold(case):
    """An undeclared field runs in one process; a site refuses it, so that no method of the catalogue may have one."""
    from coterie.contract.requests import declarations

    method = method_of(case, LOCAL)
    for one, owner in declarations(method).values():
        for name, about in payload_fields(one.task).items():
            where = f"{one.task.name} takes {name!r}"
            if about.tensor:
                assert about.holds is not None, (
                    f"{where}: annotate it with Holds(...), as OneModel is"
                )
            else:
                assert name in one.values or hasattr(owner, name), (
                    f"{where}: say what it holds, asks(..., {name}=...)"
                )


def test_a_number_under_the_name_of_a_setting_is_that_settings():
    from coterie import MaxFL

    method = MaxFL(warmup_steps=9, tuning_steps=2)
    allowed = Allowed(method, 0, ROUNDS, ("auc",))
    required = PerClient(torch.tensor([float("nan")], dtype=torch.float64))
    warm = LocalSGD(steps=Steps(9))
    payload = {
        "x": torch.zeros(4),
        "start": None,
        "required": required,
        "warm": warm,
        "rows": "train",
        "local": method.local,
    }
    task, about = "coterie.algorithms.maxfl:local_update", {"seed": 0, "round": 1}
    four = Limits(**{**LIMITS, "model": 4, "parameters": 4})
    allowed.check(task, {**payload, "tuning_steps": 2}, four, **about)
    with pytest.raises(RefusedError, match="does not allow this 'tuning_steps'"):
        allowed.check(task, {**payload, "tuning_steps": 9}, four, **about)
