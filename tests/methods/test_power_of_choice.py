"""What must hold of power-of-choice, and rounds recomputed with numpy alone."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from short_runs import MINI, chosen_by_round, descent, loss, rows, run

from coterie import PowerOfChoice, SGDFull
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.config.local import LocalSGD, Steps
from federations import (
    SIZES,
    batch_norm,
    logistic,
    quadratic,
    start,
)

MUTANTS = {
    "power-of-choice": [
        (
            "algorithms/power_of_choice.py",
            "argsort(descending=True, stable=True)",
            "argsort(stable=True)",
        ),
        (
            "algorithms/power_of_choice.py",
            "without_replacement(state.sizes,",
            "without_replacement(torch.ones_like(state.sizes),",
        ),
        ("algorithms/power_of_choice.py", "self.candidates or 2 * m", "m"),
    ],
}

FULL = LocalSGD(lr=0.4, steps=Steps(2), batch_size=None)


def test_power_of_choice_by_hand():
    """Candidates are drawn one after the other by size, with the named numbers; the two with the highest loss train."""
    problem = logistic()
    x, total = start(problem).numpy(), 3
    found = run(
        PowerOfChoice(FULL, 0.7, candidates=3), problem, total, clients_per_round=2
    )
    chosen = chosen_by_round(found)
    for number in range(1, total + 1):
        rng = Rng.named(0, "server", number)
        arrival = {
            n: -math.log(1 - rng.child("candidate", n).uniform(1)[0]) / SIZES[n]
            for n in SIZES
        }
        candidates = sorted(SIZES, key=arrival.get)[:3]
        known = {n: loss(x, *rows(problem, n)) for n in candidates}
        best = sorted(sorted(candidates, key=lambda n: -known[n])[:2])
        assert chosen[number] == best
        logged = {
            r.client: r.value
            for r in found.history
            if (r.round, r.metric) == (number, "candidate_loss")
        }
        assert logged == pytest.approx(known)
        x = x + 0.7 * sum(descent(problem, n, x, FULL) for n in best) / 2
    np.testing.assert_allclose(found.x.numpy(), x, atol=1e-12)
    assert len({tuple(v) for v in chosen.values()}) > 1


def test_power_of_choice_with_everybody_is_the_uniform_average():
    problem = batch_norm()
    uniform, full = run(PowerOfChoice(MINI), problem), run(SGDFull(MINI), problem)
    assert torch.equal(uniform.x, full.x)
    assert not any(r.task.endswith((":losses", ":row_counts")) for r in uniform.asks)
    assert not torch.equal(
        run(PowerOfChoice(MINI), problem, clients_per_round=2).x, full.x
    )


def test_power_of_choice_takes_the_highest_losses_of_all_candidates():
    problem = quadratic({"a": [0.1], "b": [5.0], "c": [1.0], "d": [4.0]})
    local = LocalSGD(lr=0.01, steps=Steps(1), batch_size=None)
    found = run(PowerOfChoice(local, candidates=4), problem, 2, clients_per_round=2)
    assert chosen_by_round(found) == {1: ["b", "d"], 2: ["b", "d"]}
    free = run(PowerOfChoice(local, candidates=2), problem, 20, clients_per_round=2)
    assert set(itertools.chain(*chosen_by_round(free).values())) == set("abcd")


def test_power_of_choice_estimates_losses_on_a_batch():
    problem = logistic()
    found = run(
        PowerOfChoice(FULL, candidates=5, loss_batch_size=3),
        problem,
        1,
        clients_per_round=2,
    )
    whole = run(PowerOfChoice(FULL, candidates=5), problem, 1, clients_per_round=2)
    one, other = (
        {r.client: r.value for r in f.history if r.metric == "candidate_loss"}
        for f in (found, whole)
    )
    assert all(one[n] != other[n] for n in SIZES)
    assert found.history.select("row_gradients") == [
        (r, sum(FULL.steps.count * SIZES[n] for n in names) if r else 0)
        for r, names in [(0, []), (1, chosen_by_round(found)[1])]
    ]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PowerOfChoice(lr=0), "PowerOfChoice.lr must be a number > 0; got 0"),
        (
            lambda: PowerOfChoice(candidates=0),
            r"PowerOfChoice.candidates must be None \(twice the clients of a round\) or an int > 0; got 0",
        ),
        (
            lambda: PowerOfChoice(loss_batch_size=0),
            r"PowerOfChoice.loss_batch_size must be None \(all rows\) or an int > 0; got 0",
        ),
        (
            lambda: run(PowerOfChoice(candidates=2), logistic(), clients_per_round=3),
            r"PowerOfChoice.candidates must be between 3 \(clients_per_round\) and 5 \(clients\); got 2",
        ),
        (
            lambda: run(PowerOfChoice(candidates=6), logistic(), clients_per_round=3),
            "and 5 .clients.; got 6",
        ),
    ],
)
def test_bad_fields_are_named(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
