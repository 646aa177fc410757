"""What must hold of q-FFL, and rounds recomputed with numpy alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import CENTRES, LOCAL, LR, MINI, ONE, loss, rows, run, sgd, uniform
from torch import nn

from coterie import QFFL
from coterie.base.errors import InputError
from coterie.contract.federation import QuorumError
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    dropout,
    logistic,
    quadratic,
    start,
)

MUTANTS = {
    "qffl": [
        (
            "algorithms/qffl.py",
            "self.q * loss ** (self.q - 1)",
            "0 * loss ** (self.q - 1)",
        ),
        (
            "algorithms/qffl.py",
            "weights = loss**self.q / total",
            "weights = loss / total",
        ),
        (
            "algorithms/qffl.py",
            "(scale * self.local.rate(federation.round))",
            "self.local.rate(federation.round)",
        ),
    ],
}


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_qffl_without_q_is_uniform_averaging(make):
    problem = make()
    assert_close(run(QFFL(MINI, q=0.0), problem).x, uniform(problem, MINI))
    assert (
        run(QFFL(MINI, q=1.0), problem).x - uniform(problem, MINI)
    ).abs().max() > 1e-4


def test_equal_losses_and_lengths_make_a_shorter_uniform_step():
    problem = quadratic({"a": [2.0, 0.0], "b": [0.0, 2.0]})
    q, lr = 2.0, 0.2
    found = run(QFFL(ONE, q), problem, 1)
    loss, step = (
        2.0,
        lr * torch.tensor([2.0, 0.0], dtype=torch.float64),
    )  # mean of (x - c)^2 over 2 entries at 0
    mean = (step + step.flip(0)) / 2
    assert_close(found.x, mean / (1 + q * float(step @ step) / (loss * lr)))


def test_scaling_the_loss_does_not_change_the_direction_of_qffl():
    problem = logistic()

    def scaled(factor):
        def loss(outputs, labels):
            return factor * nn.functional.softplus(-outputs[:, 0] * (2 * labels - 1))

        loss.kind = "binary"
        return loss

    x = start(problem)
    moves = [run(QFFL(ONE, 3.0), problem, 1, loss=scaled(s)).x - x for s in (1.0, 7.0)]
    cosine = nn.functional.cosine_similarity(*moves, dim=0)
    assert float(cosine) == pytest.approx(1, abs=1e-12)
    assert not torch.equal(*moves)


def test_losses_of_nearly_zero_and_large_powers_stay_finite():
    problem = quadratic({"a": [0.0], "b": [1e-3]})
    found = run(QFFL(ONE, q=60.0), problem, 3)
    assert torch.isfinite(found.x).all()
    assert found.weights["*"]["b"] == pytest.approx(1)
    still = run(QFFL(ONE, q=0.5), quadratic({"a": [0.0], "b": [0.0]}), 1)
    assert still.x.tolist() == [0.0]


def test_a_negative_loss_cannot_be_raised_to_a_power():
    with pytest.raises(
        QuorumError,
        match=r"a \(field 'loss' has a value out of its range \(at least 0\)\)",
    ):
        run(
            QFFL(ONE),
            quadratic(CENTRES),
            loss=lambda outputs, labels: outputs.sum(1) - 100,
        )


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"q": -0.5}, r"QFFL.q must be a number >= 0; got -0.5"),
    ({"local": replace(MINI, optimiser="adamw")}, r'QFFL needs local optimiser = "sgd", got .adamw.: its L is 1 / lr'),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        QFFL(**fields)


@pytest.mark.parametrize("q", [0.5, 1.0, 10.0])
def test_qffl_written_in_numpy(q):
    problem, lipschitz = logistic(), 1 / LR
    found = run(QFFL(LOCAL, q), problem)
    x = start(problem).numpy()
    for number in (1, 2, 3):
        top, bottom = np.zeros(4), 0.0
        for name in SIZES:
            f = loss(x, *rows(problem, name))
            step = lipschitz * (x - sgd(x, problem, name, number, steps=3))
            top = top + f**q * step
            bottom += q * f ** (q - 1) * float(step @ step) + lipschitz * f**q
        x = x - top / bottom
    np.testing.assert_allclose(found.x.numpy(), x, rtol=1e-11)
