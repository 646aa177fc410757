"""How many steps local training has, against counting them, and steps that differ between clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch

from coterie.config.local import Epochs, LocalSGD, Steps
from coterie.config.schema import wire_type
from coterie.contract.method import Sampler
from federations import SIZES, batch_norm, cohort_of, dropout, logistic, start


@wire_type
@dataclass(frozen=True)
class EarlyRows(Sampler):
    """The first rows, and fewer of them than there are."""

    sample_ratio: float = 0.6

    def rows(self, cohort, client, rng, steps, batch_size):
        return np.tile(np.arange(batch_size), (steps, 1))


@cache
def cohorts(make):
    """The initial model, everybody, and each client alone."""
    problem = make()
    return (
        start(problem),
        cohort_of(problem),
        [cohort_of(problem, [name]) for name in SIZES],
    )


@pytest.mark.in_turn(but=("None-None-*", "*-3-amount1-*"))
@pytest.mark.parametrize("make", [logistic, batch_norm])
@pytest.mark.parametrize("amount", [Steps(3), Epochs(1), Epochs(2)])
@pytest.mark.parametrize("batch_size", [None, 3, 5, 7, 100])
@pytest.mark.parametrize("sampler", [None, EarlyRows()])
def test_steps_are_those_that_are_taken(make, amount, batch_size, sampler):
    x, everybody, alone = cohorts(make)
    local = LocalSGD(lr=0.1, steps=amount, batch_size=batch_size, sampler=sampler)
    taken = []
    for one in alone:
        count = 0

        def counted(gradient, y):
            nonlocal count
            count += 1
            return gradient(y, 0)

        one.train(x, local, gradient_rule=counted)
        taken.append(count)
    assert everybody.steps(local).tolist() == taken
    if isinstance(amount, Epochs) and batch_size == 5 and sampler is None:
        assert taken == [
            amount.count * n
            for n in ([3, 2, 4, 2, 3] if make is logistic else [3, 2, 3, 2, 3])
        ]


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_clients_may_take_different_numbers_of_steps(make):
    problem, counts = make(), [1, 4, 2, 7, 3]
    local = LocalSGD(lr=0.1, steps=Epochs(5), batch_size=4)
    together = cohort_of(problem).train(start(problem), local, steps=counts)
    for i, (name, count) in enumerate(zip(SIZES, counts, strict=True)):
        alone = cohort_of(problem, [name]).train(
            start(problem), replace(local, steps=Steps(count))
        )
        assert torch.equal(together[i], alone[0])
