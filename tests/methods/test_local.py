"""What must hold of clients that train alone, by steps; of linear models that are solved for: test_local_exact.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from short_runs import MINI, ONE, trained

from coterie import FedAvg, InProcess, Local
from coterie.algorithms.local import train_alone
from coterie.base.errors import InputError
from coterie.config.local import Steps
from coterie.contract.federation import Federation
from coterie.contract.requests import Limits, check_payload, declarations
from coterie.contract.wire import decode, encode
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    dropout,
    logistic,
    subset,
)

MUTANTS = {
    "local": [
        (
            "algorithms/local.py",
            "own_models = own_models + update",
            "own_models = own_models + update.mean(0)",
        ),
        (
            "compute/local_training.py",
            "for decay in self._decays",
            "for decay in sorted(self._decays)",
        ),
        (
            "algorithms/local.py",
            "cohort.keep(OWN, own_models)",
            "cohort.keep(OWN, own_models.mean(0).expand_as(own_models))",
        ),
        ("algorithms/local.py", 'participation = "own"', 'participation = "run"'),
    ],
}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_local_models_do_not_depend_on_other_clients(make, exact):
    problem, method = make(), Local(MINI, exact=exact)
    many = trained(method, problem)
    few = trained(method, problem.with_clients(subset(problem.clients, "bd")))
    for name in "bd":
        assert torch.equal(many.models[name], few.models[name])
    assert not torch.equal(many.models["b"], many.models["d"])


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_fedavg_with_one_client_is_local(make):
    problem = make()
    alone = problem.with_clients(subset(problem.clients, "c"))
    assert_close(
        trained(FedAvg(MINI), alone).x,
        trained(Local(MINI, exact=False), alone).models["c"],
        1e-14,
    )


def test_local_rounds_of_steps_are_one_long_training():
    problem = logistic()
    local = replace(ONE, steps=Steps(2))
    short, long = (
        trained(Local(local, exact=False), problem, 3),
        trained(Local(replace(local, steps=Steps(6)), exact=False), problem, 1),
    )
    for name in SIZES:
        assert_close(short.models[name], long.models[name])


def test_clients_that_work_alone_need_not_wait_to_be_drawn():
    problem = logistic()
    few, everybody = (
        trained(Local(MINI, exact=False), problem, 3, clients_per_round=m)
        for m in (2, None)
    )
    start = trained(Local(MINI, exact=False), problem, 1)
    for name in SIZES:
        assert torch.equal(few.models[name], everybody.models[name])
        assert not torch.equal(few.models[name], start.models[name])


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kernel", ["auto", "loop"])
@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_a_weight_decay_of_its_own_is_that_of_a_run_with_it(make, kernel, steps):
    problem, local = make(), replace(MINI, steps=Steps(steps))
    engine = InProcess(kernel=kernel)
    mixed = trained(Local(local, {"b": 0.5}, exact=False), problem, 2, engine=engine)
    decayed, free = (
        trained(
            Local(replace(local, weight_decay=decay), exact=False),
            problem,
            2,
            engine=engine,
        )
        for decay in (0.5, 0.0)
    )
    for name, model in mixed.models.items():
        assert torch.equal(model, (decayed if name == "b" else free).models[name])
    assert not torch.equal(decayed.models["b"], free.models["b"])


def test_clients_with_weight_decays_of_their_own_train_in_one_ask(monkeypatch):
    asked = []
    ask = Federation.ask
    monkeypatch.setattr(
        Federation,
        "ask",
        lambda self, *a, **k: asked.append(a[1].name) or ask(self, *a, **k),
    )
    problem = logistic()
    decays = {name: i / 10 for i, name in enumerate(problem.clients.names)}
    trained(Local(MINI, decays, exact=False), problem, 2)
    assert asked.count(train_alone.name) == 2


def test_a_site_takes_the_weight_decays_of_its_plan_and_no_others():
    method = Local(MINI, {"b": 0.5, "a": 0.1})
    declaration, owner = declarations(method)[train_alone.name]
    limits = Limits(3, 3, 2, 4, torch.float32, 5)
    sent = {"x": torch.zeros(3), "local": method.local}
    planned = {**sent, "decays": method.decays, "exact": True}
    check_payload(declaration, owner, decode(encode(planned)), limits)
    with pytest.raises(InputError, match="does not allow this 'exact'"):
        check_payload(declaration, owner, {**planned, "exact": False}, limits)
    with pytest.raises(InputError, match="does not allow this 'decays'"):
        check_payload(
            declaration, owner, {**sent, "decays": (("a", 0.1), ("b", 9.0))}, limits
        )


def test_a_weight_decay_of_nobody_is_refused():
    with pytest.raises(InputError, match=r"weight_decays names 'nobody'"):
        trained(Local(MINI, {"nobody": 0.1}), logistic())
    with pytest.raises(
        InputError, match=r"weight_decays must be numbers >= 0 by client"
    ):
        Local(MINI, {"b": -1.0})
