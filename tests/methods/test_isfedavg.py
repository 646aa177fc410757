"""What must hold of ISFedAvg, and rounds recomputed with numpy alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from row_samplers import (
    assert_frequencies,
    assert_goes_through_toml,
    assert_is_fedavg_with_its_sampler,
    assert_refuses_bad_settings,
    assert_two_rounds_by_hand,
    assert_works_under_other_methods,
    skewed,
)
from short_runs import MINI, gradient, rows, run_with_server

from coterie.base.clients import Client, Clients
from coterie.base.rows import Part
from coterie.samplers.isfedavg import GradientNormSampler, ISFedAvg
from coterie.samplers.uniform_is import UniformIS
from federations import (
    SIZES,
    Problem,
    cohort_of,
    dropout,
    logistic,
    seeded,
    start,
)

MUTANTS = {
    "isfedavg": [
        (
            "samplers/isfedavg.py",
            "torch.linalg.vector_norm(g, dim=1, dtype=torch.float64) for",
            "torch.ones(len(g), dtype=torch.float64) for",
        ),
        (
            "samplers/isfedavg.py",
            "torch.linalg.vector_norm(g, dim=1, dtype=torch.float64) for",
            "torch.linalg.vector_norm(g, dim=1, dtype=torch.float64) ** 2 for",
        ),
        (
            "samplers/isfedavg.py",
            "gradient_norms(cohort.only([i]), start) for",
            "gradient_norms(cohort.only([i]), starts[0]) for",
        ),
    ],
}


@pytest.mark.in_turn(but="skewed")
@pytest.mark.parametrize("make", [skewed, logistic, dropout])
def test_it_is_fedavg_with_its_sampler_bit_by_bit(make):
    assert_is_fedavg_with_its_sampler(ISFedAvg, GradientNormSampler, make)


def test_rows_with_equal_gradients_are_drawn_as_if_by_classes_with_equal_counts():
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(8, 1)
    part = Part(x, torch.tensor([0, 1]).repeat(8))
    model = seeded(lambda: torch.nn.Linear(1, 1, bias=False), torch.float64)
    problem = Problem(Clients([Client("a", part)]), model)
    one, other = (
        run_with_server(ISFedAvg(MINI), problem, 1),
        run_with_server(UniformIS(MINI), problem, 1),
    )
    assert torch.equal(one.x, other.x)


def test_a_client_without_any_gradient_draws_any_row():
    zeros = Part(
        torch.zeros(8, 1, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    )
    problem = Problem(
        Clients([Client("a", zeros)]),
        seeded(lambda: torch.nn.Linear(1, 1, bias=False), torch.float64),
    )
    assert torch.equal(run_with_server(ISFedAvg(MINI), problem).x, start(problem))


def chances(problem, name, model):
    """The probability of each row of a client, with a loop; `model` [4] are weights and bias of the logistic loss."""
    inputs, labels = rows(problem, name)
    norms = [
        np.linalg.norm(gradient(model, inputs[i : i + 1], labels[i : i + 1]))
        for i in range(len(labels))
    ]
    return [v / sum(norms) for v in norms]


def test_two_rounds_by_hand():
    assert_two_rounds_by_hand(ISFedAvg, chances)


@pytest.mark.parametrize("name", ["a", "c"])
def test_rows_come_as_often_as_they_should(name):
    problem = skewed()
    cohort, x = cohort_of(problem, name), start(problem)
    model = torch.nn.Linear(3, 4).double()
    model.weight.data, model.bias.data = x[:12].view(4, 3), x[12:]
    part, norms = problem.clients[name].train, []
    for row, label in zip(part.inputs, part.labels, strict=True):
        grads = torch.autograd.grad(
            torch.nn.functional.cross_entropy(model(row), label), model.parameters()
        )
        norms.append(float(torch.cat([g.reshape(-1) for g in grads]).norm()))
    chance = torch.tensor(norms, dtype=torch.float64) / sum(norms)
    assert_frequencies(GradientNormSampler().at(cohort, x), cohort, chance)


def test_gradient_norms_are_taken_at_each_clients_own_model():
    problem = dropout()
    problem.model[2].p = 0.0
    cohort = cohort_of(problem)
    x = start(problem)
    xs = torch.stack([x + 0.1 * i for i in range(5)])
    local = replace(MINI, sampler=GradientNormSampler())
    together = cohort.train(xs, local)
    for i in range(5):
        alone = cohort_of(problem, "abcde"[i]).train(xs[i], local)
        assert torch.equal(together[i], alone[0])
    assert cohort.spent["row_gradients"] == sum(SIZES.values()) + 5 * 12


@pytest.mark.in_turn
def test_it_works_under_other_methods_on_any_number_of_workers():
    assert_works_under_other_methods(GradientNormSampler())


def test_it_goes_through_toml_there_and_back():
    assert_goes_through_toml("gradient-norm")


def test_bad_settings_are_named():
    assert_refuses_bad_settings(ISFedAvg, GradientNormSampler)
