"""What must hold of IFCA and HypCluster, and rounds recomputed with numpy alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from short_runs import (
    LOCAL,
    MINI,
    assert_refused_by_the_command,
    logged_at,
    loss,
    opposed,
    rows,
    run,
    sgd,
    trained,
)

from coterie import IFCA, FedAvg, SGDFull
from coterie.algorithms.ifca import State
from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.config.local import LocalSGD, Steps
from federations import (
    SIZES,
    batch_norm,
    dropout,
    federation_of,
    logistic,
    quadratic,
    start,
    subset,
)

MUTANTS = {
    "ifca": [
        (
            "algorithms/ifca.py",
            "nan_to_num(nan=torch.inf).argmin(1)",
            "nan_to_num(nan=torch.inf).argmax(1)",
        ),
        ("algorithms/ifca.py", 'self.weighting != "size"', 'self.weighting == "size"'),
        (
            "algorithms/ifca.py",
            "xs[j] = shift(state.xs[j],",
            "xs[j] = shift(state.xs[0],",
        ),
        (
            "algorithms/ifca.py",
            "average(shares[members], replies.delta[members])",
            "average(shares, replies.delta)",
        ),
        (
            "algorithms/ifca.py",
            "noise.to(x), x[layout.dim :]",
            "0 * noise.to(x), x[layout.dim :]",
        ),
        (
            "algorithms/ifca.py",
            "state.xs[replies.cluster.long()], strict",
            "state.xs[0 * replies.cluster.long()], strict",
        ),
    ],
}

HALVES = LocalSGD(lr=0.25, steps=Steps(1), batch_size=None)
"""A step that halves the distance to a client's optimum."""
LINE = {"a": [0.0], "b": [1.0], "c": [10.0], "d": [11.0]}


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_one_group_is_averaging_bit_by_bit(make):
    for weighting, other in (("uniform", SGDFull), ("size", FedAvg)):
        found = trained(IFCA(1, MINI, weighting), make())
        x = trained(other(MINI), make()).x
        assert all(torch.equal(model, x) for model in found.models.values())


def rounds_from(method, problem, starts, rounds):
    """The models after some rounds of everybody from these starts."""
    with federation_of(problem) as federation:
        state = State(
            starts,
            federation.everyone,
            torch.zeros(len(federation.everyone), dtype=torch.int64),
        )
        for number in range(1, rounds + 1):
            state, _ = method.round(
                state, federation.view(federation.everyone, number, 0), Rng.named(0)
            )
    return state


@pytest.mark.parametrize(
    ("weighting", "limits"), [("uniform", [0.5, 10.5]), ("size", [0.25, 10.75])]
)
def test_two_groups_on_a_line_are_found(weighting, limits):
    problem = quadratic(LINE, {"a": 30, "b": 10, "c": 10, "d": 30})
    state = rounds_from(
        IFCA(2, HALVES, weighting), problem, torch.tensor([[0.0], [10.0]]).double(), 50
    )
    assert state.xs.flatten().tolist() == pytest.approx(limits, abs=1e-9)
    assert state.cluster.tolist() == [0, 0, 1, 1]


def test_a_model_that_nobody_chose_stays():
    state = rounds_from(
        IFCA(3, HALVES),
        quadratic(LINE),
        torch.tensor([[0.0], [10.0], [99.0]]).double(),
        3,
    )
    assert float(state.xs[2]) == 99.0
    assert (state.xs[:2].flatten() - torch.tensor([0.0, 10.0])).abs().min() > 0.1


def test_of_equal_losses_the_first_model_counts():
    state = rounds_from(
        IFCA(2, HALVES),
        quadratic({"a": [1.0], "b": [1.0]}),
        torch.tensor([[0.0], [2.0]]).double(),
        1,
    )
    assert state.cluster.tolist() == [0, 0]
    assert state.xs.flatten().tolist() == [0.5, 2.0]


def test_models_start_apart_by_the_seed():
    problem = logistic()
    first, second = (run(IFCA(3, MINI), problem, 0, seed=s).state.xs for s in (0, 1))
    assert torch.equal(first[0], start(problem))
    away = first - start(problem)
    assert 0 < away[1].abs().max() <= 1  # a bias of one entry, weights of three inputs
    assert away[1, :3].abs().max() <= 3**-0.5
    assert not torch.equal(first[1], first[2])
    assert not torch.equal(first[1], second[1])


def test_unseen_clients_choose_as_well_and_use_is_not_counted():
    problem = logistic()
    clients = Clients(
        list(subset(problem.clients, "abc")), unseen=subset(problem.clients, "de")
    )
    found = trained(IFCA(2, MINI), problem.with_clients(clients))
    assert set(found.models) == set(SIZES)
    for name in "de":
        losses = [loss(x.numpy(), *rows(problem, name)) for x in found.state.xs]
        assert torch.equal(found.models[name], found.state.xs[int(np.argmin(losses))])
    with federation_of(problem) as federation:
        assert set(IFCA(2, MINI).personalised(found.state, federation)) == set(SIZES)
        assert federation.session.spent == {"row_gradients": 0, "row_losses": 0}


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"clusters": 0}, r"IFCA.clusters must be an int > 0; got 0"),
    ({"weighting": "rows"}, r"IFCA.weighting must be uniform \| size; got 'rows'"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        IFCA(**fields)


def test_more_groups_than_clients_end_the_command_with_status_2(capsys, tmp_path):
    assert_refused_by_the_command(
        "ifca",
        "ifca.clusters=5",
        "IFCA.clusters = 5 groups of 4 clients leave groups empty",
        capsys,
        tmp_path,
    )


def test_ifca_written_in_numpy():
    problem = opposed(logistic())
    found = run(IFCA(2, LOCAL), problem, 3, clients_per_round=4)
    xs = [x.numpy() for x in run(IFCA(2, LOCAL), problem, 0).state.xs]
    groups = set()
    for number in range(1, 4):
        chosen = sorted(
            "abcde"[i] for i in Rng.named(0, "participants", number).permutation(5, 4)
        )
        best = {
            n: int(np.argmin([loss(x, *rows(problem, n)) for x in xs])) for n in chosen
        }
        assert logged_at(found, number, "cluster") == best
        groups |= set(best.values())
        trained_models = {
            n: sgd(xs[best[n]], problem, n, number, steps=3) for n in chosen
        }
        for j in set(best.values()):
            xs[j] = np.mean([trained_models[n] for n in chosen if best[n] == j], axis=0)
    assert groups == {0, 1}
    last = {n: int(np.argmin([loss(x, *rows(problem, n)) for x in xs])) for n in SIZES}
    assert set(last.values()) == {0, 1}
    for name, j in last.items():
        np.testing.assert_allclose(found.models[name].numpy(), xs[j], rtol=1e-10)
    np.testing.assert_allclose(found.state.xs.numpy(), np.stack(xs), rtol=1e-10)
