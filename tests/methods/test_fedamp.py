"""What must hold of FedAMP, and rounds recomputed with numpy alone."""

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
    uniform,
)

from coterie import FedAMP, Local
from coterie.algorithms.fedamp import attention
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    dropout,
    logistic,
    start,
    subset,
)

MUTANTS = {
    "fedamp": [
        (
            "algorithms/fedamp.py",
            "torch.exp(-squares / sigma)",
            "torch.exp(-squares.sqrt() / sigma)",
        ),
        ("algorithms/fedamp.py", "alpha / sigma * torch.exp", "alpha * torch.exp"),
        (
            "algorithms/fedamp.py",
            "torch.diag(1 - weights.sum(1))",
            "torch.diag(weights.sum(1))",
        ),
        (
            "algorithms/fedamp.py",
            "penalty=Quadratic(mu) if mu else None",
            "penalty=None",
        ),
        (
            "algorithms/fedamp.py",
            "trained = state.u[positions] + replies.delta",
            "trained = state.x[positions] + replies.delta",
        ),
        (
            "algorithms/fedamp.py",
            "(n - 1) * self.alpha > self.sigma",
            "self.alpha > self.sigma",
        ),
    ],
}


def test_equal_models_stay_and_far_ones_are_left_alone():
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [40.0, 0.0], [1.0, 2.0]])
    weights = attention(x, alpha=0.5, sigma=2.0)
    assert torch.equal(weights.sum(1), torch.ones(4).double())
    assert torch.equal(weights[2], torch.tensor([0.0, 0.0, 1.0, 0.0]).double())
    assert weights[0].tolist() == [0.5, 0.25, 0.0, 0.25]
    assert torch.equal(weights.float() @ x, x)


def test_the_weight_of_a_neighbour_by_hand():
    """Squared distance 5: alpha / sigma exp(-5 / sigma)."""
    weights = attention(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), alpha=1.5, sigma=3.0)
    assert float(weights[0, 1]) == pytest.approx(0.5 * np.exp(-5 / 3), rel=1e-14)


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_with_nobody_near_and_no_pull_it_is_training_alone(make):
    found, alone = (
        trained(FedAMP(MINI, sigma=1e-9, mu=0.0), make()),
        trained(Local(MINI, exact=False), make()),
    )
    for name, x in alone.models.items():
        assert_close(found.models[name], x)


def test_with_everybody_near_it_is_uniform_averaging():
    problem = logistic()
    found = trained(FedAMP(MINI, sigma=1e12, mu=0.0), problem)
    mean = sum(found.models.values()) / len(SIZES)
    assert_close(mean, uniform(problem, MINI), 1e-9)
    assert found.weights["a"] == pytest.approx(dict.fromkeys(SIZES, 0.2), abs=1e-9)


def test_a_pull_keeps_models_near_their_mixtures():
    far, near = (trained(FedAMP(MINI, mu=mu), logistic(), 1) for mu in (0.0, 3.0))
    x = start(logistic())
    for name in SIZES:
        assert (near.models[name] - x).norm() < 0.8 * (far.models[name] - x).norm()


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"sigma": 0}, r"FedAMP.sigma must be a number > 0; got 0"),
    ({"alpha": 0}, r"FedAMP.alpha must be None \(sigma / n\) or a number > 0; got 0"),
    ({"mu": -1}, r"FedAMP.mu must be a number >= 0; got -1"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        FedAMP(**fields)


def test_weights_that_could_be_negative_are_refused_before_the_run(capsys, tmp_path):
    with pytest.raises(
        InputError,
        match=r"FedAMP.alpha = 0.3 is over sigma / \(n - 1\) = 0.25 for 5 clients",
    ):
        run(FedAMP(alpha=0.3), logistic())
    trained(FedAMP(alpha=0.25), logistic(), 1)
    alone = logistic().with_clients(subset(logistic().clients, "b"))
    trained(FedAMP(alpha=5.0), alone, 1)
    sentence = "FedAMP.alpha = 0.5 is over sigma / (n - 1) = 0.333333 for 4 clients"
    assert_refused_by_the_command(
        "fedamp", "fedamp.alpha=0.5", sentence, capsys, tmp_path
    )


def test_fedamp_with_absent_clients_written_in_numpy():
    problem, sigma, alpha, mu = logistic(), 0.7, 0.15, 0.4
    found = run(FedAMP(LOCAL, sigma, alpha, mu), problem, 4, clients_per_round=4)
    x = {n: start(problem).numpy() for n in SIZES}
    u = dict(x)
    for number in range(1, 5):
        chosen = sorted(
            "abcde"[i] for i in Rng.named(0, "participants", number).permutation(5, 4)
        )
        for name in chosen:
            inputs, labels = rows(problem, name)
            y = u[name]
            for batch in drawn(name, number, steps=3):
                y = y - LR * (
                    gradient(y, inputs[batch], labels[batch]) + mu * (y - u[name])
                )
            x[name] = y
        for name in chosen:
            near = {
                o: alpha / sigma * np.exp(-((x[name] - x[o]) ** 2).sum() / sigma)
                for o in chosen
                if o != name
            }
            u[name] = x[name] + sum(w * (x[o] - x[name]) for o, w in near.items())
    for name in SIZES:
        np.testing.assert_allclose(found.models[name].numpy(), x[name], rtol=1e-10)
