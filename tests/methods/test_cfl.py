"""What must hold of CFL, its split beside all others, and rounds recomputed with numpy alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from short_runs import (
    LOCAL,
    MINI,
    assert_refused_by_the_command,
    logged,
    opposed,
    run,
    sgd,
    trained,
)

from coterie import CFL, FedAvg
from coterie.algorithms.cfl import halves
from coterie.base.errors import InputError
from coterie.config.local import LocalSGD, Steps
from federations import SIZES, batch_norm, dropout, logistic, quadratic, start

MUTANTS = {
    "cfl": [
        (
            "algorithms/cfl.py",
            "weakest = min(range(n - 1)",
            "weakest = max(range(n - 1)",
        ),
        ("algorithms/cfl.py", "part[child] = part[ancestor]", "part[child] = False"),
        (
            "algorithms/cfl.py",
            "updates).norm() < self.eps1",
            "updates).norm() > self.eps1",
        ),
        ("algorithms/cfl.py", "norms.max() > self.eps2", "norms.max() < self.eps2"),
        (
            "algorithms/cfl.py",
            "== int((cluster == group).sum())",
            "<= int((cluster == group).sum())",
        ),
        (
            "compute/server_averages.py",
            "average(sizes[replied], replies.delta[replied])",
            "average(replies.sizes, replies.delta)",
        ),
    ],
}

HALVES = LocalSGD(lr=0.25, steps=Steps(1), batch_size=None)
"""A step that halves the distance to a client's optimum."""
LINE = {"a": [-1.0], "b": [-1.5], "c": [1.0], "d": [1.5]}


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_without_a_split_it_is_fedavg_bit_by_bit(make):
    x = trained(FedAvg(MINI), make()).x
    for settings in ({"eps1": 0.0, "eps2": 0.0}, {"eps1": 1e9, "eps2": 1e9}):
        found = trained(CFL(MINI, **settings), make())
        assert all(torch.equal(model, x) for model in found.models.values())
        assert int(found.state.cluster.max()) == 0


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_a_split_has_the_least_largest_cosine_of_all(n):
    stream = torch.Generator().manual_seed(n)
    for _ in range(20):
        units = torch.nn.functional.normalize(
            torch.randn(n, 4, generator=stream, dtype=torch.float64), dim=1
        )
        similar = units @ units.T
        part = halves(similar)
        assert 0 < int(part.sum()) < n
        assert not part[0]
        ways = (
            torch.tensor([False, *bits])
            for bits in itertools.product((False, True), repeat=n - 1)
            if any(bits)
        )
        least = min(float(similar[way][:, ~way].max()) for way in ways)
        assert float(similar[part][:, ~part].max()) == least


def test_opposite_groups_are_split_where_the_mean_stands_still():
    found = run(CFL(HALVES, eps1=0.1, eps2=0.4), quadratic(LINE), 40)
    assert {n: float(x) for n, x in found.models.items()} == pytest.approx(
        {"a": -1.25, "b": -1.25, "c": 1.25, "d": 1.25}
    )
    groups = [v for _, v in sorted(logged(found, "groups").items())]
    assert (
        groups[0] == groups[-1] == 2
    )  # at 0 from the first round on, and never again: alike in pairs, they move little
    assert found.weights["a"] == {"a": 0.5, "b": 0.5}


def test_a_group_is_split_only_where_all_of_it_replied():
    found = run(
        CFL(HALVES, eps1=1e9, eps2=0.0), quadratic(LINE), 6, clients_per_round=3
    )
    assert int(found.state.cluster.max()) == 0
    everybody = run(CFL(HALVES, eps1=1e9, eps2=0.0), quadratic(LINE), 6)
    assert len(set(everybody.state.cluster.tolist())) == 4


def test_who_is_absent_moves_with_its_group():
    found = run(CFL(HALVES, eps1=0.0), quadratic(LINE), 3, clients_per_round=2)
    assert len({float(x) for x in found.models.values()}) == 1
    assert abs(float(found.models["a"])) > 0.01


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"eps1": -1}, r"CFL.eps1 must be a number >= 0; got -1"),
    ({"eps2": "long"}, r"CFL.eps2 must be a number >= 0; got 'long'"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        CFL(**fields)


def test_a_wrong_setting_ends_the_command_with_status_2(capsys, tmp_path):
    assert_refused_by_the_command(
        "cfl", "cfl.eps1=-1", "CFL.eps1 must be a number >= 0; got -1", capsys, tmp_path
    )


def test_cfl_written_in_numpy():
    problem, eps1, eps2 = opposed(logistic()), 0.1, 0.3
    found = run(CFL(LOCAL, eps1, eps2), problem, 4)
    models = {n: start(problem).numpy() for n in SIZES}
    groups = [list(SIZES)]
    for number in range(1, 5):
        moves = {
            n: sgd(models[n], problem, n, number, steps=3) - models[n] for n in SIZES
        }
        after = []
        for group in groups:
            mean = sum(SIZES[n] * moves[n] for n in group) / sum(
                SIZES[n] for n in group
            )
            apart = (
                max(np.linalg.norm(moves[n]) for n in group) > eps2
                and np.linalg.norm(mean) < eps1
            )
            after += best_split(group, moves) if apart and len(group) > 1 else [group]
        groups = after
        for group in groups:
            mean = sum(SIZES[n] * moves[n] for n in group) / sum(
                SIZES[n] for n in group
            )
            models.update({n: models[n] + mean for n in group})
        assert logged(found, "groups")[number, "*"] == len(groups)
    assert 1 < len(groups) < 5
    for name, x in models.items():
        np.testing.assert_allclose(found.models[name].numpy(), x, rtol=1e-10)


def best_split(group, moves):
    def cosine(a, b):
        return moves[a] @ moves[b] / np.linalg.norm(moves[a]) / np.linalg.norm(moves[b])

    ways = [
        w
        for k in range(1, len(group))
        for w in itertools.combinations(group, k)
        if group[0] in w
    ]
    best = min(
        ways, key=lambda w: max(cosine(a, b) for a in w for b in group if b not in w)
    )
    return [list(best), [n for n in group if n not in best]]
