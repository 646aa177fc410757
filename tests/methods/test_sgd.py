"""What must hold of SGD Full, SGD Ideal and Target Only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import FULL, MINI, descent, run

from coterie import FedAvg, Local, SGDFull, SGDIdeal, TargetOnly
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    cohort_of,
    logistic,
    start,
    subset,
)

MUTANTS = {
    "sgd-full": [
        (
            "algorithms/sgd.py",
            "equal = torch.ones(len(clients))",
            "equal = torch.arange(1, len(clients) + 1)",
        ),
        (
            "algorithms/sgd.py",
            "shift(state.x, mean, rate_of(self.lr, federation.round), federation.dim)",
            "shift(state.x, mean, 1.0, federation.dim)",
        ),
        (
            "algorithms/sgd.py",
            "adam.step(uphill, state.moments, state.steps,",
            "adam.step(uphill, torch.zeros_like(state.moments), state.steps,",
        ),
        (
            "algorithms/sgd.py",
            "step.moments.cpu(), state.steps + 1), log",
            "step.moments.cpu(), state.steps), log",
        ),
        (
            "algorithms/sgd.py",
            "return self._step(state, federation, federation.clients)",
            "return self._step(state, federation, federation.everyone)",
        ),
    ],
    "sgd-ideal": [
        (
            "algorithms/sgd.py",
            "return tuple(n for n in everyone if any(fnmatchcase(n, p) for p in patterns))",
            "return everyone",
        ),
        (
            "algorithms/sgd.py",
            "m = min(federation.per_round, len(group))",
            "m = len(group)",
        ),
    ],
    "target-only": [
        (
            "algorithms/sgd.py",
            'self._step(state, federation, (self.target,), "all")',
            'self._step(state, federation, federation.everyone, "all")',
        ),
        ("algorithms/sgd.py", "return {self.target: state.x}", 'return {"*": state.x}'),
    ],
}


def twins(problem):
    """As many clients with rows of equal number."""
    return problem.with_clients(
        Clients([Client(c.name, c.train.select(slice(0, 8))) for c in problem.clients])
    )


def test_sgd_full_is_fedavg_where_sizes_are_equal():
    equal = twins(batch_norm())
    assert_close(run(SGDFull(MINI, 0.7), equal).x, run(FedAvg(MINI, 0.7), equal).x)
    unequal = batch_norm()
    assert (
        run(SGDFull(MINI, 0.7), unequal).x - run(FedAvg(MINI, 0.7), unequal).x
    ).abs().max() > 1e-4


@pytest.mark.in_turn(but="3-adam")
@pytest.mark.parametrize("server", ["sgd", "adam"])
@pytest.mark.parametrize("m", [None, 3])
def test_the_group_of_everybody_is_everybody(server, m):
    problem, settings = (
        batch_norm(),
        {"local": MINI, "lr": 0.05, "server_optimiser": server},
    )
    one = run(SGDFull(**settings), problem, clients_per_round=m)
    for members in ("*", tuple("abcde"), ("[a-c]", "d", "e")):
        other = run(SGDIdeal(members=members, **settings), problem, clients_per_round=m)
        assert torch.equal(one.x, other.x)
        assert one.weights == other.weights


@pytest.mark.in_turn(but="adam")
@pytest.mark.parametrize("server", ["sgd", "adam"])
def test_a_group_is_a_federation_of_its_own(server):
    problem, settings = (
        batch_norm(),
        {"local": MINI, "lr": 0.05, "server_optimiser": server},
    )
    alone = run(
        SGDFull(**settings), problem.with_clients(subset(problem.clients, "ace"))
    )
    assert torch.equal(
        run(SGDIdeal(members=("c", "a", "e"), **settings), problem).x, alone.x
    )
    assert torch.equal(
        run(
            SGDIdeal(members=("c", "a", "e"), **settings), problem, clients_per_round=4
        ).x,
        alone.x,
    )
    fewer = run(
        SGDIdeal(members=("c", "a", "e"), **settings), problem, 8, clients_per_round=2
    )
    names = {c for _, _, c, _ in fewer.weight_rows}
    assert names == {"a", "c", "e"}
    assert len(fewer.weight_rows) == 16


def test_target_only_is_the_group_of_one_and_local():
    problem = batch_norm()
    target = run(TargetOnly(MINI, target="d"), problem)
    assert list(target.models) == ["d"]
    assert_close(target.models["d"], run(Local(MINI), problem).models["d"], 1e-14)
    adam = {"local": MINI, "lr": 0.05, "server_optimiser": "adam"}
    assert torch.equal(
        run(TargetOnly(target="d", **adam), problem).models["d"],
        run(SGDIdeal(members="d", **adam), problem).x,
    )


def test_adam_at_the_server_is_torchs():
    problem = batch_norm()
    method = SGDFull(MINI, 0.03, "adam", (0.8, 0.95), 1e-3)
    x = start(problem)
    dim = cohort_of(problem).layout.dim
    parameter = torch.nn.Parameter(x[:dim].clone())
    optimiser = torch.optim.Adam([parameter], 0.03, (0.8, 0.95), 1e-3)
    tail = x[dim:]
    for number in range(1, 5):
        cohort = cohort_of(problem, round=number)
        here = torch.cat([parameter.detach(), tail])
        mean = cohort.train(here, MINI).mean(0)
        parameter.grad = here[:dim] - mean[:dim]
        optimiser.step()
        tail = mean[dim:]
    assert_close(run(method, problem, 4).x, torch.cat([parameter.detach(), tail]), 1e-9)
    assert (
        run(replace(method, server_optimiser="sgd"), problem, 4).x - x
    ).abs().max() > 1e-3


def test_adam_goes_on_after_a_resume(tmp_path):
    problem = logistic()
    method = SGDFull(MINI, 0.03, "adam")
    run(method, problem, 2, checkpoint=tmp_path, evaluate=4)
    resumed = run(method, problem, 4, checkpoint=tmp_path, resume=True, evaluate=4)
    assert torch.equal(resumed.x, run(method, problem, 4, evaluate=4).x)
    assert resumed.state.steps == 4


def test_two_rounds_by_hand():
    problem = logistic()
    x = start(problem).numpy()
    for _ in range(2):
        x = x + 0.7 * np.mean([descent(problem, n, x, FULL) for n in SIZES], 0)
    np.testing.assert_allclose(
        run(SGDFull(FULL, 0.7), problem, 2).x.numpy(), x, atol=1e-12
    )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SGDFull(lr=0), "SGDFull.lr must be a number > 0; got 0"),
        (
            lambda: SGDFull(server_optimiser="rms"),
            "SGDFull.server_optimiser must be sgd | adam; got 'rms'",
        ),
        (
            lambda: SGDIdeal(members="a", betas=(0.9, 1.0)),
            r"SGDIdeal.betas must be two numbers in \[0, 1\); got \(0.9, 1.0\)",
        ),
        (
            lambda: TargetOnly(target="a", betas=0.9),
            r"TargetOnly.betas must be two numbers in \[0, 1\); got 0.9",
        ),
        (
            lambda: TargetOnly(target="a", eps=0),
            "TargetOnly.eps must be a number > 0; got 0",
        ),
        (
            lambda: SGDIdeal(),
            "SGDIdeal.members must be a client's name, several names, or patterns",
        ),
        (
            lambda: run(SGDIdeal(members=("a", "far-*")), logistic()),
            "SGDIdeal.members has 'far-.', which fits no client",
        ),
        (lambda: TargetOnly(), "TargetOnly.target must be a client's name; got ''"),
        (
            lambda: run(TargetOnly(target="z"), logistic()),
            "TargetOnly.target names 'z', which is not a client",
        ),
    ],
)
def test_bad_fields_are_named(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
