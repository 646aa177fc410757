"""What must hold of FedNova, and rounds recomputed with numpy alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from short_runs import (
    LR,
    MINI,
    assert_refused_by_the_command,
    gradient,
    rows,
    run,
    trained,
)

from coterie import FedAvg, FedNova, FedProx
from coterie.algorithms.fednova import norm
from coterie.base.errors import InputError
from coterie.base.rng import Rng, batches
from coterie.config.local import Epochs, LocalSGD
from coterie.contract.exchange import Exchange
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
    "fednova": [
        (
            "algorithms/fednova.py",
            "delta[:, : cohort.layout.dim] /= lengths",
            "delta /= lengths",
        ),
        (
            "algorithms/fednova.py",
            "speed = momentum * speed + 1 - pull * weight",
            "speed = momentum * speed + 1",
        ),
        (
            "algorithms/fednova.py",
            "speed = momentum * speed + 1 - pull * weight",
            "speed = 1 - pull * weight",
        ),
        (
            "algorithms/fednova.py",
            "average.steps if self.mu else average.length",
            "average.length",
        ),
        (
            "algorithms/fednova.py",
            "shift(state.x, average.delta, length, federation.dim)",
            "shift(state.x, average.delta)",
        ),
        (
            "algorithms/fednova.py",
            "length * average.weights / average.length",
            "length * average.weights",
        ),
    ],
}


@pytest.mark.in_turn(but="0.6-batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_equal_numbers_of_steps_are_fedavg(make, momentum):
    local = replace(MINI, momentum=momentum)
    assert_close(trained(FedNova(local), make()).x, trained(FedAvg(local), make()).x)


@pytest.mark.parametrize(("method", "limit"), [(FedAvg, 2.5455), (FedNova, 1.4737)])
def test_the_fixed_point_hardly_depends_on_numbers_of_steps(method, limit, monkeypatch):
    """f_a(w) = w^2 and f_b(w) = (w - 4)^2, a taking one step and b three, each of which halves the way; the optimum is 2."""
    problem = quadratic({"a": [0.0], "b": [4.0]}, {"a": 10, "b": 30})
    local = LocalSGD(lr=0.25, steps=Epochs(1), batch_size=10)
    honest = Exchange.weights
    monkeypatch.setattr(
        Exchange,
        "weights",
        lambda self, *asked: dict.fromkeys(honest(self, *asked), 1.0),
    )  # alike
    assert float(trained(method(local), problem, 60).x) == pytest.approx(
        limit, abs=1e-4
    )
    if method is FedNova:
        nearly = replace(local, lr=0.01)
        assert float(trained(method(nearly), problem, 300).x) == pytest.approx(
            2, abs=0.05
        )


def test_the_recursion_gives_the_norms_of_the_paper():
    r, q, k = 0.7, 0.2, 5
    assert norm(k, r, 0.0) == pytest.approx(
        (k - r * (1 - r**k) / (1 - r)) / (1 - r), rel=1e-14
    )
    assert norm(k, 0.0, q) == pytest.approx((1 - (1 - q) ** k) / q, rel=1e-14)


def test_a_proximal_term_goes_as_far_as_the_steps_say():
    local, mu, k = replace(MINI, batch_size=None), 0.8, MINI.steps.count
    problem = logistic()
    x = start(problem)
    step = trained(FedProx(local, mu=mu), problem, 1).x - x
    assert_close(
        trained(FedNova(local, mu=mu), problem, 1).x,
        x + step * k / norm(k, 0.0, MINI.lr * mu),
    )


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"mu": -1}, r"FedNova.mu must be a number >= 0; got -1"),
    ({"local": LocalSGD(optimiser="adam")}, r"FedNova needs local optimiser = \"sgd\", got 'adam'"),
    ({"local": LocalSGD(momentum=0.5), "mu": 1}, r"FedNova.mu and local momentum exclude each other"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        FedNova(**fields)


def test_adam_at_clients_ends_the_command_with_status_2(capsys, tmp_path):
    setting = 'fednova.local={optimiser = "adam"}'
    assert_refused_by_the_command(
        "fednova", setting, "FedNova needs local optimiser", capsys, tmp_path
    )


def test_fednova_written_in_numpy():
    problem, r = logistic(), 0.5
    local = LocalSGD(lr=LR, steps=Epochs(2), batch_size=4, momentum=r)
    found = run(FedNova(local), problem, 2)
    x = start(problem).numpy()
    for number in (1, 2):
        moves, lengths, shares = [], [], []
        for name, size in SIZES.items():
            inputs, labels = rows(problem, name)
            y, v, steps = x, 0.0, 0
            for batch in batches(
                Rng.named(0, number, name, "train"), size, 4, epochs=2
            ):
                v = r * v + gradient(y, inputs[batch], labels[batch])
                y, steps = y - LR * v, steps + 1
            moves.append(y - x)
            lengths.append(
                sum((1 - r ** (steps - j)) / (1 - r) for j in range(steps))
            )  # how often each gradient counts
            shares.append(size / 60)
        far = sum(p * a for p, a in zip(shares, lengths, strict=True))
        x = x + far * sum(
            p * m / a for p, m, a in zip(shares, moves, lengths, strict=True)
        )
    np.testing.assert_allclose(found.x.numpy(), x, rtol=1e-10)
    share = {n: p / a for n, p, a in zip(SIZES, shares, lengths, strict=True)}
    assert found.weights["*"] == pytest.approx(
        {n: w / sum(share.values()) for n, w in share.items()}
    )
    assert len(set(lengths)) > 2
