"""What must hold of FedProx."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from short_runs import MINI, assert_follows_the_recursion, trained

from coterie.algorithms import FedAvg, FedProx
from coterie.core.training import Steps
from federations import (
    batch_norm,
    dropout,
    logistic,
    start,
)

MUTANTS = {
    "fedprox": [
        ("algorithms/fedprox.py", "Quadratic(mu) if mu else None", "None"),
        ("algorithms/fedprox.py", "x=state.x,", "weights=state.x.new_ones(len(federation.clients)), x=state.x,"),
        ("algorithms/fedprox.py", "self.lr, federation.dim)", "1.0, federation.dim)"),
    ],
}


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
@pytest.mark.parametrize("lr", [1.0, 0.5])
def test_fedprox_without_a_penalty_is_fedavg_bit_by_bit(make, lr):
    local = replace(MINI, momentum=0.5, weight_decay=0.01)
    prox, avg = trained(FedProx(local, mu=0.0, lr=lr), make()), trained(FedAvg(local, lr), make())
    assert torch.equal(prox.x, avg.x)
    assert (prox.history, prox.weights, prox.summary) == (avg.history, avg.weights, avg.summary)
    assert not torch.equal(trained(FedProx(local, mu=0.1, lr=lr), make()).x, avg.x)


def test_a_larger_penalty_keeps_updates_shorter():
    problem = logistic()
    local = replace(MINI, steps=Steps(30), lr=0.1)
    far = [float((trained(FedProx(local, mu), problem, 1).x - start(problem)).norm()) for mu in (0.0, 0.3, 3.0)]
    assert far[0] > 1.2 * far[1] > 1.2**2 * far[2] > 0


@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_averaging_follows_its_recursion_on_quadratics(server_lr):
    assert_follows_the_recursion(lambda local: FedProx(local, 0.8, server_lr), 0.8, server_lr)
