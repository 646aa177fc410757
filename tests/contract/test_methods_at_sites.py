"""A site trains with the settings of its plan: what every method of the catalogue really asks is allowed, and nothing beside it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_methods import CASES, is_pooled, label, method_of, server_rows

from coterie.contract.method import as_method
from coterie.contract.training import Epochs, LocalSGD, Steps
from coterie.engines.inprocess import InProcessEngine
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


def asked(method):
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
        ROUNDS,
        engine=Opening(listening),
        evaluate=1,
        metrics=("auc",),
        strict_wire=False,
    )
    return [ask for ask in engines[0].heard if ask.names != ("server",)]


def others(local):
    """Local training beside the plan's, by what differs."""
    count, kind = local.steps.count, type(local.steps)
    other = Epochs if kind is Steps else Steps
    amounts = [kind(count + 1), other(count), kind(1), kind(16), kind(10**6)]
    yield from (dataclasses.replace(local, steps=steps) for steps in amounts if steps != local.steps)
    yield dataclasses.replace(local, batch_size=1)


@pytest.mark.parametrize("case", [c for c in CASES if not is_pooled(c)], ids=label)
def test_a_site_trains_as_its_plan_says_and_not_otherwise(case):
    from coterie.sites.allowed import Allowed, RefusedError

    method = method_of(case, LocalSGD(lr=0.1, steps=Steps(2), batch_size=16))
    allowed = Allowed(as_method(method), 0, ROUNDS, ("auc",))
    heard = asked(method)
    assert heard
    for ask in heard:
        about = {"seed": ask.context.seed, "round": ask.context.round}
        allowed.check(ask.task, ask.payload, **about)
        for field, local in ask.payload.items():
            for other in others(local) if isinstance(local, LocalSGD) else ():
                with pytest.raises(RefusedError, match=f"does not allow this '{field}'"):
                    allowed.check(ask.task, {**ask.payload, field: other}, **about)


def test_a_number_under_the_name_of_a_setting_is_that_settings():
    from coterie import MaxFL
    from coterie.sites.allowed import Allowed, RefusedError

    method = MaxFL(warmup_steps=9, tuning_steps=2)
    allowed = Allowed(method, 0, ROUNDS, ("auc",))
    payload = {"x": torch.zeros(4), "local": method.local, "tuning_steps": 2}
    task = "coterie.algorithms.maxfl:local_update"
    allowed.check(task, payload, seed=0, round=1)
    with pytest.raises(RefusedError, match="does not allow this 'tuning_steps'"):
        allowed.check(task, {**payload, "tuning_steps": 9}, seed=0, round=1)
