"""What must hold of clients that train alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from short_runs import MINI, ONE, trained

from coterie import FedAvg, Local
from coterie.base.errors import InputError
from coterie.config.local import Steps
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
        ("algorithms/local.py", "own + cohort.updates(own, local)", "own + cohort.updates(own, local).mean(0)"),
        ("algorithms/local.py", "cohort.keep(OWN, own)", "cohort.keep(OWN, own.mean(0).expand_as(own))"),
        ("algorithms/local.py", 'participation = "own"', 'participation = "run"'),
    ],
}


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_local_models_do_not_depend_on_other_clients(make):
    problem = make()
    many = trained(Local(MINI), problem)
    few = trained(Local(MINI), problem.with_clients(subset(problem.clients, "bd")))
    for name in "bd":
        assert torch.equal(many.models[name], few.models[name])
    assert not torch.equal(many.models["b"], many.models["d"])


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_fedavg_with_one_client_is_local(make):
    problem = make()
    alone = problem.with_clients(subset(problem.clients, "c"))
    assert_close(trained(FedAvg(MINI), alone).x, trained(Local(MINI), alone).models["c"], 1e-14)


def test_local_rounds_of_steps_are_one_long_training():
    problem = logistic()
    local = replace(ONE, steps=Steps(2))
    short, long = trained(Local(local), problem, 3), trained(Local(replace(local, steps=Steps(6))), problem, 1)
    for name in SIZES:
        assert_close(short.models[name], long.models[name])


def test_clients_that_work_alone_need_not_wait_to_be_drawn():
    problem = logistic()
    few, everybody = (trained(Local(MINI), problem, 3, clients_per_round=m) for m in (2, None))
    start = trained(Local(MINI), problem, 1)
    for name in SIZES:
        assert torch.equal(few.models[name], everybody.models[name])
        assert not torch.equal(few.models[name], start.models[name])


def test_a_weight_decay_of_its_own_is_that_of_a_run_with_it():
    problem = logistic()
    mixed = trained(Local(MINI, {"b": 0.5}), problem)
    decayed, free = (trained(Local(replace(MINI, weight_decay=decay)), problem) for decay in (0.5, 0.0))
    for name, model in mixed.models.items():
        assert torch.equal(model, (decayed if name == "b" else free).models[name])
    assert not torch.equal(decayed.models["b"], free.models["b"])


def test_a_weight_decay_of_nobody_is_refused():
    with pytest.raises(InputError, match=r"weight_decays names 'nobody'"):
        trained(Local(MINI, {"nobody": 0.1}), logistic())
    with pytest.raises(InputError, match=r"weight_decays must be numbers >= 0 by client"):
        Local(MINI, {"b": -1.0})
