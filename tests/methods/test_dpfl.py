"""What must hold of DPFL, and rounds recomputed with numpy alone."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from short_runs import (
    LOCAL,
    MINI,
    assert_refused_by_the_command,
    loss,
    rows,
    run,
    sgd,
    trained,
)

from coterie import DPFL, Local
from coterie.algorithms.dpfl import grow
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from federations import SIZES, batch_norm, logistic, start

MUTANTS = {
    "dpfl": [
        (
            "algorithms/dpfl.py",
            "max(at_inside - loss_with_j, 0.0)",
            "max(loss_with_j - at_inside, 0.0)",
        ),
        ("algorithms/dpfl.py", "max(at_outside - loss_without_j, 0.0)", "0.0"),
        (
            "algorithms/dpfl.py",
            "coin * (gain + gain_without) < gain or",
            "gain > gain_without or",
        ),
        ("algorithms/dpfl.py", "or gain + gain_without == 0", ""),
        ("algorithms/dpfl.py", 'part = "validation" if', 'part = "train" if'),
        ("algorithms/dpfl.py", "if len(inside) == most:", "if False:"),
        (
            "algorithms/dpfl.py",
            "trained[members > 0].mean(0)",
            "trained[members > 0][0]",
        ),
        ("algorithms/dpfl.py", "return names\n", "return ()\n"),
    ],
}


@pytest.mark.parametrize("make", [logistic, batch_norm])
@pytest.mark.parametrize("solver", ["greedy", "exhaustive"])
def test_a_budget_of_one_is_training_alone(make, solver):
    found, alone = (
        trained(DPFL(MINI, budget=1, solver=solver), make()),
        trained(Local(MINI, exact=False), make()),
    )
    for name, x in alone.models.items():
        assert torch.equal(found.models[name], x)


def test_whom_the_other_harms_stays_alone():
    """At y = (1, 3) and an optimum of 0, R is -1 alone and -4 with the other."""
    y = [1.0, 3.0]
    losses = lambda groups: [float(np.mean([y[j] for j in g]) ** 2) for g in groups]  # noqa: E731
    assert grow(losses, 0, [1], [0.0], 2) == (0,)
    assert grow(
        lambda groups: [(v - 2) ** 2 for v in map(len, groups)], 0, [1], [0.999], 2
    ) == (0, 1)


def test_the_coin_weighs_what_is_gained_with_a_partner_and_without():
    """X + 1 gains 1, Y - 1 gains 3: the partner joins in a quarter of the cases."""
    loss_of = {(0,): 4.0, (0, 1): 3.0, (0, 1, 2): 5.0, (0, 2): 2.0}
    losses = lambda groups: [loss_of[g] for g in groups]  # noqa: E731
    assert 1 in grow(losses, 0, [1, 2], [0.24, 0.0], 3)
    assert 1 not in grow(losses, 0, [1, 2], [0.26, 0.0], 3)


def test_a_partner_that_makes_no_difference_joins():
    assert grow(lambda groups: [1.0] * len(groups), 0, [2, 1], [0.9, 0.9], 3) == (
        0,
        1,
        2,
    )
    assert grow(lambda groups: [1.0] * len(groups), 0, [2, 1], [0.9, 0.9], 2) == (0, 2)


def test_the_best_of_all_groups_is_at_least_as_good():
    problem = logistic()
    best, greedy = (
        run(DPFL(MINI, solver=s), problem, 1) for s in ("exhaustive", "greedy")
    )
    for name in SIZES:
        losses = [
            loss(f.models[name].numpy(), *rows(problem, name, "validation"))
            for f in (best, greedy)
        ]
        assert losses[0] <= losses[1] + 1e-12


def test_validation_rows_are_not_trained_on():
    merged, apart = (
        trained(DPFL(MINI, budget=1), logistic(), 2, merge_validation=m)
        for m in (True, False)
    )
    assert all(torch.equal(merged.models[n], apart.models[n]) for n in SIZES)


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"budget": 0}, r"DPFL.budget must be None .* or an int > 0; got 0"),
    ({"solver": "all"}, r"DPFL.solver must be greedy \| exhaustive; got 'all'"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        DPFL(**fields)


def test_too_many_groups_are_refused():
    many = {f"k{i:02}": 4 for i in range(11)}
    clients = logistic().clients
    problem = logistic().with_clients(
        Clients([Client(n, clients["a"].train) for n in many])
    )
    with pytest.raises(
        InputError,
        match=r'tries 2\^10 groups of each client; from 11 clients a round on take "greedy"',
    ):
        run(DPFL(MINI, solver="exhaustive"), problem, 1)


def test_a_wrong_setting_ends_the_command_with_status_2(capsys, tmp_path):
    sentence = "DPFL.solver must be greedy | exhaustive; got 'all'"
    assert_refused_by_the_command("dpfl", "dpfl.solver=all", sentence, capsys, tmp_path)


def test_dpfl_with_absent_clients_written_in_numpy():
    problem, budget = logistic(), 3
    found = run(
        DPFL(LOCAL, budget=budget, solver="exhaustive"), problem, 4, clients_per_round=4
    )
    x, alone = {n: start(problem).numpy() for n in SIZES}, 0
    for number in range(1, 5):
        present = sorted(
            "abcde"[i] for i in Rng.named(0, "participants", number).permutation(5, 4)
        )
        y = {n: sgd(x[n], problem, n, number, steps=3) for n in present}
        for name in present:
            held = rows(problem, name, "validation")
            others = [n for n in present if n != name]
            groups = [
                (name, *c) for k in range(budget) for c in combinations(others, k)
            ]
            group = min(
                groups, key=lambda g: loss(np.mean([y[n] for n in g], 0), *held)
            )
            alone += len(group) == 1
            logged = {
                c: v for r, t, c, v in found.weight_rows if (r, t) == (number, name)
            }
            assert logged == pytest.approx(dict.fromkeys(group, 1 / len(group)))
            x[name] = np.mean([y[n] for n in group], 0)
    assert 0 < alone < 16
    for name in SIZES:
        np.testing.assert_allclose(found.models[name].numpy(), x[name], rtol=1e-9)
