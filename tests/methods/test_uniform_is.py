"""What must hold of Uniform-IS, and rounds recomputed with numpy alone."""

from __future__ import annotations

import pytest
import torch
from row_samplers import (
    assert_frequencies,
    assert_goes_through_toml,
    assert_is_fedavg_with_its_sampler,
    assert_needs_classes,
    assert_refuses_bad_settings,
    assert_two_rounds_by_hand,
    assert_works_under_other_methods,
    class_counts,
    skewed,
)
from short_runs import MINI, run_with_server

from coterie.base.clients import Client, Clients
from coterie.samplers.pj_is import PjIS
from coterie.samplers.uniform_is import UniformClassSampler, UniformIS
from federations import (
    Problem,
    cohort_of,
    dropout,
    logistic,
)

MUTANTS = {
    "uniform-is": [
        (
            "samplers/uniform_is.py",
            "return torch.full((classes,), 1 / classes, dtype=torch.float64)",
            "return torch.full((classes,), 1 / classes, dtype=torch.float64)[:0]",
        ),
        (
            "samplers/weighted.py",
            "replace(self.local, sampler=self.sampler)",
            "self.local",
        ),
        (
            "samplers/uniform_is.py",
            "return UniformClassSampler(self.sample_ratio)",
            "return UniformClassSampler()",
        ),
    ],
}


@pytest.mark.in_turn(but="skewed")
@pytest.mark.parametrize("make", [skewed, logistic, dropout])
def test_it_is_fedavg_with_its_sampler_bit_by_bit(make):
    assert_is_fedavg_with_its_sampler(UniformIS, UniformClassSampler, make)


def test_uniform_is_and_pj_is_with_equal_class_counts_everywhere_are_one():
    part = skewed().clients["b"].train
    problem = Problem(Clients([Client(n, part) for n in "ab"]), skewed().model)
    assert torch.equal(
        run_with_server(UniformIS(MINI), problem).x,
        run_with_server(PjIS(MINI), problem).x,
    )
    assert not torch.equal(
        run_with_server(UniformIS(MINI), skewed()).x,
        run_with_server(PjIS(MINI), skewed()).x,
    )


def chances(problem, name, model):
    """The probability of each row of a client."""
    labels = problem.clients[name].train.labels.tolist()
    return [1 / len(set(labels)) / labels.count(y) for y in labels]


def test_two_rounds_by_hand():
    assert_two_rounds_by_hand(UniformIS, chances)


@pytest.mark.parametrize("name", ["a", "c"])
def test_rows_come_as_often_as_they_should(name):
    problem = skewed()
    own = class_counts(problem)[problem.clients.number(name)]
    present = (own > 0).double()
    chance = (present / present.sum() / own.clamp(min=1))[
        problem.clients[name].train.labels
    ]
    assert_frequencies(UniformClassSampler(), cohort_of(problem, name), chance)


@pytest.mark.in_turn
def test_it_works_under_other_methods_on_any_number_of_workers():
    assert_works_under_other_methods(UniformClassSampler())


def test_it_goes_through_toml_there_and_back():
    assert_goes_through_toml("uniform-classes")


def test_bad_settings_are_named():
    assert_refuses_bad_settings(UniformIS, UniformClassSampler)


def test_labels_that_are_no_classes_are_named():
    assert_needs_classes(UniformIS)
