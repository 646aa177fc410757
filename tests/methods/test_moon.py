"""What must hold of MOON, and rounds recomputed with torch alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from short_runs import (
    FULL,
    LOCAL,
    LR,
    MINI,
    drawn,
    forget,
    logged,
    logged_at,
    participants,
    run,
)

from coterie import MOON, FedAvg
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    dropout,
    logistic,
    segmentation,
    start,
)

MUTANTS = {
    "moon": [
        (
            "algorithms/moon.py",
            "(near_previous - near_global)",
            "(near_global - near_previous)",
        ),
        ("algorithms/moon.py", "(x, previous[step.client])", "(x, x)"),
        (
            "algorithms/moon.py",
            "(near_previous - near_global) / temperature",
            "(near_previous - near_global)",
        ),
        ("algorithms/moon.py", "mu * functional.softplus", "functional.softplus"),
        (
            "algorithms/moon.py",
            'cohort.keep("moon", trained)',
            'cohort.keep("moon", x.expand_as(trained))',
        ),
        (
            "algorithms/moon.py",
            "x=state.x,",
            "weights=state.x.new_ones(len(federation.clients)), x=state.x,",
        ),
    ],
}


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_moon_without_mu_is_fedavg_bit_by_bit(make):
    local = replace(MINI, momentum=0.5, weight_decay=0.01)
    moon, avg = (
        run(MOON(local, mu=0.0, lr=0.5), make()),
        run(FedAvg(local, 0.5), make()),
    )
    assert torch.equal(moon.x, avg.x)
    assert (moon.weights, moon.summary) == (avg.weights, avg.summary)


@pytest.mark.parametrize("make", [batch_norm, dropout])
def test_moon_has_nothing_to_hold_away_from_in_its_first_round(make):
    problem = make()
    moon, avg = (
        [run(m, problem, r).x for r in (1, 2)] for m in (MOON(MINI), FedAvg(MINI))
    )
    assert_close(moon[0], avg[0])
    assert (moon[1] - avg[1]).norm() > 1e-3


def test_moon_of_a_model_without_representations_is_fedavg():
    assert_close(run(MOON(MINI), logistic()).x, run(FedAvg(MINI), logistic()).x)


def test_the_contrast_vanishes_as_the_temperature_grows():
    problem = dropout()
    plain = run(FedAvg(MINI), problem).x
    away = [
        float((run(MOON(MINI, temperature=t), problem).x - plain).norm())
        for t in (1e3, 1e5)
    ]
    assert away[0] == pytest.approx(100 * away[1], rel=0.01)
    assert away[1] > 1e-9


def test_a_lost_local_model_is_replaced_by_the_global_one(monkeypatch):
    problem = dropout()
    undisturbed = run(MOON(MINI), problem, 3)
    forget(monkeypatch, "c", 3)
    found = run(MOON(MINI), problem, 3)
    assert logged(undisturbed, "with_previous") == {
        (1, "*"): 0,
        (2, "*"): 5,
        (3, "*"): 5,
    }
    assert logged(found, "with_previous") == {(1, "*"): 0, (2, "*"): 5, (3, "*"): 4}
    assert not torch.equal(found.x, undisturbed.x)


@pytest.mark.parametrize("workers", [1, 2])
def test_moon_needs_a_linear_layer(workers):
    with pytest.raises(
        InputError,
        match="inputs of the last linear layer, and this model calls none",
    ):
        run(MOON(MINI), segmentation(), workers=workers)


def test_moon_counts_rows_so_that_a_client_that_exists_twice_counts_twice():
    problem = dropout()
    problem.model[2].p = 0.0
    twice = problem.with_clients(
        Clients([*problem.clients, Client("a-again", problem.clients["a"].train)])
    )
    weights = run(MOON(FULL), twice).weights["*"]
    assert (
        weights["a"]
        == weights["a-again"]
        == SIZES["a"] / (sum(SIZES.values()) + SIZES["a"])
    )


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"mu": -1}, r"MOON.mu must be a number >= 0; got -1"),
    ({"temperature": 0.0}, r"MOON.temperature must be a number > 0; got 0.0"),
    ({"lr": -1}, r"MOON.lr must be a number > 0; got -1"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        MOON(**fields)


def layers(vector):
    shapes = [(8, 4), (8,), (3, 8), (3,)]
    return [
        t.view(s)
        for t, s in zip(
            vector.split([math.prod(s) for s in shapes]), shapes, strict=True
        )
    ]


def forward(vector, inputs):
    w1, b1, w2, b2 = layers(vector)
    z = torch.tanh(inputs @ w1.T + b1)
    return z, z @ w2.T + b2


def cosine(a, b):
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def test_moon_with_absent_clients_written_in_torch():
    problem, mu, temperature, server_lr = dropout(), 2.0, 0.4, 0.8
    problem.model[2].p = 0.0
    found = run(
        MOON(LOCAL, mu, temperature, server_lr), problem, 4, clients_per_round=3
    )
    x, previous = start(problem), {}
    for number in range(1, 5):
        chosen = participants(found, number)
        assert logged_at(found, number, "with_previous")["*"] == len(
            set(chosen) & set(previous)
        )
        trained = {}
        for name in chosen:
            part, y = problem.clients[name].part("train"), x.clone()
            for at in drawn(name, number, steps=3):
                inputs, labels = part.inputs[at], part.labels[at]
                y = y.detach().requires_grad_()
                z, outputs = forward(y, inputs)
                towards = torch.exp(cosine(z, forward(x, inputs)[0]) / temperature)
                away = torch.exp(
                    cosine(z, forward(previous.get(name, x), inputs)[0]) / temperature
                )
                contrast = -torch.log(towards / (towards + away)).mean()
                value = (
                    torch.nn.functional.cross_entropy(outputs, labels) + mu * contrast
                )
                y = y - LR * torch.autograd.grad(value, y)[0]
            trained[name] = y.detach()
        total = sum(SIZES[n] for n in chosen)
        x = x + server_lr * sum(SIZES[n] / total * (trained[n] - x) for n in chosen)
        previous.update(trained)
    torch.testing.assert_close(found.x, x, rtol=1e-10, atol=1e-12)
    plain = run(
        MOON(LOCAL, 0.0, temperature, server_lr), problem, 4, clients_per_round=3
    )
    assert (found.x - plain.x).norm() > 1e-3
