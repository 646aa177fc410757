"""What must hold of SCAFFOLD, and rounds recomputed with numpy alone."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import (
    BATCH,
    LR,
    MINI,
    ONE,
    assert_refused_by_the_command,
    drawn,
    forget,
    gradient,
    logged,
    logged_at,
    participants,
    rows,
    run,
    uniform,
)
from torch import nn

from coterie import SCAFFOLD, FedAvg, data
from coterie.base.errors import InputError
from coterie.config.local import Epochs, LocalSGD, Schedule, Steps
from coterie.contract.task import Task
from federations import (
    SIZES,
    Problem,
    assert_close,
    batch_norm,
    dropout,
    logistic,
    loss_of,
    model_at,
    seeded,
    start,
    vector_of,
)

MUTANTS = {
    "scaffold": [
        (
            "algorithms/scaffold.py",
            "correction=_controls(cohort, control).neg_().add_(control)",
            "correction=control",
        ),
        ("algorithms/scaffold.py", ".neg_().add_(control))", ".neg_())"),
        ("algorithms/scaffold.py", ".neg_().sub_(control)", ".neg_()"),
        (
            "algorithms/scaffold.py",
            "state.control + share * average",
            "state.control + average",
        ),
        ("algorithms/scaffold.py", "local.rate(cohort.round)", "local.rate(1)"),
        (
            "algorithms/scaffold.py",
            "rate_of(self.lr, federation.round), federation.dim)",
            "1.0, federation.dim)",
        ),
        (
            "algorithms/scaffold.py",
            "return State(x, torch.zeros_like(state.control)), log",
            "return State(x, state.control), log",
        ),
    ],
}


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_the_first_round_of_scaffold_is_uniform_averaging(make):
    problem = make()
    assert_close(
        run(SCAFFOLD(MINI, lr=0.6), problem, 1).x, uniform(problem, MINI, 1, lr=0.6)
    )
    assert (
        run(SCAFFOLD(MINI), problem, 2).x - uniform(problem, MINI, 2)
    ).abs().max() > 1e-4


def test_scaffold_with_one_step_on_all_rows_is_fedsgd_in_every_round():
    problem = logistic()
    model = model_at(problem, start(problem))
    for _ in range(4):
        parameters, mean = list(model.parameters()), None
        for client in problem.clients:
            value = loss_of(model(client.train.inputs), client.train.labels)
            grads = torch.autograd.grad(value, parameters)
            mean = (
                [g / 5 for g in grads]
                if mean is None
                else [m + g / 5 for m, g in zip(mean, grads, strict=True)]
            )
        for p, g in zip(parameters, mean, strict=True):
            p.data -= 0.7 * 0.2 * g
    assert_close(run(SCAFFOLD(ONE, lr=0.7), problem, 4).x, vector_of(model))


SLOPES = {"a": (1.0, 0.0), "b": (2.0, 4.0), "c": (0.5, -3.0), "d": (1.5, 1.0)}
"""Rows (x, y) of the clients of `curved`: f_k(w) = (w x - y)^2, of different curvature."""
OPTIMUM = sum(x * y for x, y in SLOPES.values()) / sum(
    x * x for x, _ in SLOPES.values()
)


def curved() -> Problem:
    ones = torch.ones(8, 1, dtype=torch.float64)
    clients = data.from_tensors(
        {n: (x * ones, y * ones[:, 0]) for n, (x, y) in SLOPES.items()}
    )
    return Problem(clients, seeded(lambda: nn.Linear(1, 1, bias=False), torch.float64))


def long(method, rounds=60, **options):
    """A run of many rounds on `curved`, seldom looked at."""
    return run(method, curved(), rounds, evaluate=rounds, metrics=(), **options)


TEN = LocalSGD(lr=0.05, steps=Steps(10), batch_size=None)


@pytest.mark.in_turn(but="2")
@pytest.mark.parametrize("participants", [None, 2])
def test_scaffold_ends_at_the_optimum_of_unlike_clients(participants):
    found, plain = (
        long(m(TEN), clients_per_round=participants) for m in (SCAFFOLD, FedAvg)
    )
    assert float(found.x) == pytest.approx(
        OPTIMUM, abs=1e-6 if participants is None else 1e-4
    )
    assert abs(float(plain.x) - OPTIMUM) > 0.05
    assert not logged(found, "control_lost")


def test_weight_decay_is_part_of_the_objective_that_scaffold_ends_at():
    found = long(SCAFFOLD(replace(TEN, weight_decay=0.5)))
    top = sum(2 * x * y for x, y in SLOPES.values())
    assert float(found.x) == pytest.approx(
        top / sum(2 * x * x + 0.5 for x, _ in SLOPES.values()), abs=1e-6
    )


def test_a_lost_control_is_named_and_does_not_move_where_scaffold_ends(monkeypatch):
    undisturbed = long(SCAFFOLD(TEN))
    forget(monkeypatch, "b", 12)
    found = long(SCAFFOLD(TEN))
    assert logged(found, "control_lost") == {(12, "b"): 1.0}
    assert list(found.failures) == ["b"]
    assert "round 12" in found.failures["b"]
    assert "its control was lost" in found.failures["b"]
    norms, before = logged(found, "control_norm"), logged(undisturbed, "control_norm")
    assert {r for r, _ in norms} == set(range(1, 61)) - {12}
    assert all(norms[r, "*"] == before[r, "*"] for r in range(1, 12))
    assert norms[13, "*"] != before[13, "*"]
    assert float(found.x) == pytest.approx(OPTIMUM, abs=1e-6)


def test_a_control_that_was_never_counted_cannot_be_lost(monkeypatch):
    forget(monkeypatch, "b", 1)
    found = run(SCAFFOLD(TEN), curved(), 3)
    assert not logged(found, "control_lost")
    assert found.failures == {}


@pytest.mark.in_turn
def test_a_process_that_ends_takes_no_control_with_it(monkeypatch):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        if (
            "update" in self.kinds.values()
            and cohort.round == 3
            and "b" in cohort.names
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    monkeypatch.setattr(Task, "__call__", call)
    found = long(SCAFFOLD(TEN), workers=2)
    assert list(found.failures) == ["b"]
    assert not logged(found, "control_lost")
    assert float(found.x) == pytest.approx(OPTIMUM, abs=1e-6)


def test_a_refused_reply_leaves_no_control_that_the_server_does_not_know(monkeypatch):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        reply = honest(self, cohort, **payload)
        if (
            "update" in self.kinds.values()
            and cohort.round == 5
            and "b" in cohort.names
        ):
            reply.delta[cohort.names.index("b")] = float("nan")
        return reply

    monkeypatch.setattr(Task, "__call__", call)
    found = long(SCAFFOLD(TEN))
    assert list(found.failures) == ["b"]
    assert not logged(found, "control_lost")
    assert float(found.x) == pytest.approx(OPTIMUM, abs=1e-6)


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"lr": 0.0}, r"SCAFFOLD.lr must be a number > 0; got 0.0"),
    ({"local": replace(MINI, momentum=0.9)}, r"SCAFFOLD needs local momentum = 0.0, got 0.9: .* plain SGD steps"),
    ({"local": replace(MINI, clip=1.0)}, r"SCAFFOLD needs local clip = None, got 1.0: its controls are means"),
    ({"local": replace(MINI, optimiser="adam")}, r"SCAFFOLD needs local optimiser = 'sgd', got 'adam'"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        SCAFFOLD(**fields)


def test_a_wrong_pair_ends_the_command_with_status_2(capsys, tmp_path):
    assert_refused_by_the_command(
        "scaffold",
        "scaffold.local.momentum=0.9",
        "SCAFFOLD needs local momentum = 0.0",
        capsys,
        tmp_path,
    )


@pytest.mark.parametrize(
    "settings",
    [{"steps": Steps(3)}, {"steps": Epochs(2)}, {"weight_decay": 0.1, "batch_size": 4}],
)
def test_scaffold_with_absent_clients_written_in_numpy(settings):
    problem, server_lr = logistic(), 0.7
    local = LocalSGD(
        **{
            "lr": Schedule(LR, (3,), 0.5),
            "steps": Steps(2),
            "batch_size": BATCH,
            **settings,
        }
    )
    found = run(SCAFFOLD(local, lr=server_lr), problem, 5, clients_per_round=3)
    many = {"epochs" if isinstance(local.steps, Epochs) else "steps": local.steps.count}
    x, c = start(problem).numpy(), np.zeros(4)
    own = {n: np.zeros(4) for n in SIZES}
    for number in range(1, 6):
        chosen = participants(found, number)
        assert len(chosen) == 3
        lr = LR if number < 3 else LR / 2
        moves, changes = [], []
        for name in chosen:
            inputs, labels = rows(problem, name)
            y, steps = x, drawn(name, number, **many)
            for at in steps:
                y = y - lr * (
                    gradient(y, inputs[at], labels[at])
                    + local.weight_decay * y
                    + c
                    - own[name]
                )
            new = own[name] - c + (x - y) / (len(steps) * lr)
            moves.append(y - x)
            changes.append(new - own[name])
            own[name] = new
        x = x + server_lr * sum(moves) / 3
        c = c + 3 / 5 * sum(changes) / 3
        assert logged_at(found, number, "control_norm")["*"] == pytest.approx(
            np.linalg.norm(c), rel=1e-10
        )
    np.testing.assert_allclose(found.x.numpy(), x, rtol=1e-10)
    np.testing.assert_allclose(c, sum(own.values()) / 5, atol=1e-14)
    assert np.linalg.norm(c) > 1e-3
