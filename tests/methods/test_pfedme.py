"""What must hold of pFedMe, and rounds recomputed with numpy alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from short_runs import (
    LOCAL,
    LR,
    MINI,
    assert_refused_by_the_command,
    drawn,
    gradient,
    rows,
    run,
    trained,
)

from coterie import PFedMe
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.config.local import LocalSGD, Steps
from federations import SIZES, assert_close, dropout, logistic, quadratic, start

MUTANTS = {
    "pfedme": [
        (
            "algorithms/pfedme.py",
            "self._lam * (self.theta - w)",
            "self._lam * (w - self.theta)",
        ),
        (
            "algorithms/pfedme.py",
            "return self._lam * (w - self.theta)",
            "return w - self.theta",
        ),
        (
            "algorithms/pfedme.py",
            "self.theta = self.theta - self._lr * slope",
            "self.theta = w - self._lr * slope",
        ),
        (
            "algorithms/pfedme.py",
            "average.delta, self.beta, federation.dim",
            "average.delta, 1.0, federation.dim",
        ),
        (
            "algorithms/pfedme.py",
            "return own_models(federation, OWN, state.x)",
            "return {}",
        ),
        (
            "algorithms/pfedme.py",
            "weights=torch.ones(len(federation.clients)), x=",
            "x=",
        ),
    ],
}


def at_two():
    """f_a(w) = w^2 with 30 rows and f_b(w) = (w - 4)^2 with 10; starts at 2."""
    problem = quadratic({"a": [0.0], "b": [4.0]}, {"a": 30, "b": 10})
    torch.nn.init.constant_(problem.model.value, 2.0)
    return problem


def test_without_a_pull_the_global_model_stays():
    found = trained(PFedMe(MINI, lam=0.0), logistic())
    assert torch.equal(found.models["*"], start(logistic()))
    assert not torch.equal(found.models["a"], found.models["*"])


def test_a_round_by_hand():
    """One inner step of length 1/4 ends at (c + x) / 2 = 1 and 3, and w goes half of the way there."""
    one = LocalSGD(lr=0.25, steps=Steps(1), batch_size=None)
    found = trained(PFedMe(one, lam=2.0, inner_steps=1, inner_lr=0.25), at_two(), 1)
    assert {n: float(x) for n, x in found.models.items()} == {
        "*": 2.0,
        "a": 1.0,
        "b": 3.0,
    }
    uneven = quadratic(
        {"a": [0.0], "b": [4.0], "c": [4.0]}, {"a": 30, "b": 10, "c": 10}
    )
    torch.nn.init.constant_(uneven.model.value, 2.0)
    far = trained(
        PFedMe(one, lam=2.0, inner_steps=1, inner_lr=0.25, beta=2.0), uneven, 1
    )
    assert float(far.models["*"]) == pytest.approx(2 + 2 * (1.5 + 2.5 + 2.5 - 6) / 3)


@pytest.mark.parametrize("make", [logistic, dropout])
def test_a_whole_step_ends_at_the_own_model(make):
    local = LocalSGD(lr=0.5, steps=Steps(1), batch_size=None)
    found = trained(PFedMe(local, lam=2.0, inner_lr=0.2), make(), 1)
    assert_close(found.models["*"], sum(found.models[n] for n in SIZES) / len(SIZES))


@pytest.mark.in_turn
def test_more_pull_keeps_own_models_nearer():
    spread = []
    for lam in (0.5, 5.0):
        found = trained(
            PFedMe(LocalSGD(lr=0.1, steps=Steps(5), batch_size=None), lam=lam),
            at_two(),
            20,
        )
        spread.append(float(found.models["b"] - found.models["a"]))
    assert spread[0] > spread[1] + 0.5 > 0.5


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"lam": -1}, r"PFedMe.lam must be a number >= 0; got -1"),
    ({"inner_steps": 0}, r"PFedMe.inner_steps must be an int > 0; got 0"),
    ({"inner_lr": 0}, r"PFedMe.inner_lr must be a number > 0; got 0"),
    ({"beta": 0}, r"PFedMe.beta must be a number > 0; got 0"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        PFedMe(**fields)


def test_a_wrong_setting_ends_the_command_with_status_2(capsys, tmp_path):
    sentence = "PFedMe.inner_steps must be an int > 0; got 0"
    assert_refused_by_the_command(
        "pfedme", "pfedme.inner_steps=0", sentence, capsys, tmp_path
    )


def test_pfedme_with_absent_clients_written_in_numpy():
    problem, lam, inner, inner_lr, beta = logistic(), 1.5, 3, 0.2, 1.3
    found = run(
        PFedMe(LOCAL, lam, inner, inner_lr, beta), problem, 4, clients_per_round=3
    )
    x, own = start(problem).numpy(), {}
    for number in range(1, 5):
        chosen = sorted(
            "abcde"[i] for i in Rng.named(0, "participants", number).permutation(5, 3)
        )
        moves = []
        for name in chosen:
            inputs, labels = rows(problem, name)
            w = theta = x
            for batch in drawn(name, number, steps=3):
                for _ in range(inner):
                    theta = theta - inner_lr * (
                        gradient(theta, inputs[batch], labels[batch])
                        + lam * (theta - w)
                    )
                w = w - LR * lam * (w - theta)
            own[name] = theta
            moves.append(w - x)
        x = x + beta * np.mean(moves, axis=0)
    for name, theta in own.items():
        np.testing.assert_allclose(found.models[name].numpy(), theta, rtol=1e-10)
    np.testing.assert_allclose(found.models["*"].numpy(), x, rtol=1e-10)
