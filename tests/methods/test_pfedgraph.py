"""What must hold of pFedGraph, and rounds recomputed with numpy alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from short_runs import (
    LOCAL,
    LR,
    MINI,
    assert_refused_by_the_command,
    drawn,
    gradient,
    rows,
    run,
    sgd,
    trained,
)

from coterie import FedAvg, Local, PFedGraph
from coterie.algorithms.pfedgraph import collaboration
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from federations import SIZES, assert_close, batch_norm, dropout, logistic, start

MUTANTS = {
    "pfedgraph": [
        ("algorithms/pfedgraph.py", "row / (2 * lam)", "row / lam"),
        (
            "algorithms/pfedgraph.py",
            "project(p / p.sum() + row",
            "project(p / p.sum() - row",
        ),
        (
            "algorithms/pfedgraph.py",
            "return -pull * functional",
            "return pull * functional",
        ),
        ("algorithms/pfedgraph.py", "shares @ (trained / lengths)", "shares @ trained"),
        (
            "algorithms/pfedgraph.py",
            "(trained - state.start)[:, :d]",
            "replies.delta[:, :d]",
        ),
        (
            "algorithms/pfedgraph.py",
            "replies.sizes, self.lam)",
            "torch.ones(len(replies)), self.lam)",
        ),
    ],
}


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_a_large_lam_without_a_pull_is_fedavg(make):
    found, x = (
        trained(PFedGraph(MINI, lam=1e12, pull=0.0), make()),
        trained(FedAvg(MINI), make()).x,
    )
    for model in found.models.values():
        assert_close(model, x, 1e-9)


@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_a_small_lam_without_a_pull_is_training_alone(make):
    found, alone = (
        trained(PFedGraph(MINI, lam=1e-6, pull=0.0), make()),
        trained(Local(MINI, exact=False), make()),
    )
    for name, x in alone.models.items():
        assert_close(found.models[name], x)


def test_weights_by_hand():
    """Cosines 1, .5, -.5 of the first client with all."""
    half, root = 0.5, 0.75**0.5
    moved, p = (
        torch.tensor([[1.0, 0.0], [half, root], [-half, root]]).double(),
        torch.tensor([5.0, 3.0, 2.0]).double(),
    )
    assert collaboration(moved, p, 1.0)[0].tolist() == pytest.approx(
        [0.725, 0.275, 0.0]
    )
    assert collaboration(moved, p, 0.1)[0].tolist() == [1.0, 0.0, 0.0]


def test_the_pull_goes_towards_the_mixture():
    """What a pull changes in round 2 is towards the mixture of round 1."""
    problem = logistic()
    plain, pulled = (
        run(PFedGraph(LOCAL, lam=1e-6, pull=p), problem, 2) for p in (0.0, 0.05)
    )
    before = run(PFedGraph(LOCAL, lam=1e-6), problem, 1)
    for name, x in before.models.items():
        gained = [
            torch.cosine_similarity(f.models[name], x, dim=0) for f in (plain, pulled)
        ]
        assert gained[1] > gained[0]


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"lam": 0}, r"PFedGraph.lam must be a number > 0; got 0"),
    ({"pull": -1}, r"PFedGraph.pull must be a number >= 0; got -1"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        PFedGraph(**fields)


def test_a_wrong_setting_ends_the_command_with_status_2(capsys, tmp_path):
    assert_refused_by_the_command(
        "pfedgraph",
        "pfedgraph.lam=0",
        "PFedGraph.lam must be a number > 0; got 0",
        capsys,
        tmp_path,
    )


def projected(v):
    """The nearest point of the simplex, by bisection of its threshold."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
        )
    return np.maximum(v - low, 0)


def test_pfedgraph_with_absent_clients_written_in_numpy():
    problem, lam, pull = logistic(), 0.6, 0.3
    found = run(PFedGraph(LOCAL, lam, pull), problem, 4, clients_per_round=4)
    x = {n: start(problem).numpy() for n in SIZES}
    first, aims = start(problem).numpy(), {}
    for number in range(1, 5):
        chosen = sorted(
            "abcde"[i] for i in Rng.named(0, "participants", number).permutation(5, 4)
        )
        y = {}
        for name in chosen:
            inputs, labels = rows(problem, name)
            y[name] = w = x[name]
            for batch in drawn(name, number, steps=3) if name in aims else ():
                m, long = aims[name] / np.linalg.norm(aims[name]), np.linalg.norm(w)
                slope = m / long - (m @ w) * w / long**3
                w = w - LR * (gradient(w, inputs[batch], labels[batch]) - pull * slope)
            y[name] = (
                w if name in aims else sgd(x[name], problem, name, number, steps=3)
            )
        moved = np.stack(
            [(y[n] - first) / np.linalg.norm(y[n] - first) for n in chosen]
        )
        p = np.array([SIZES[n] for n in chosen]) / sum(SIZES[n] for n in chosen)
        for i, name in enumerate(chosen):
            weights = projected(p + moved @ moved[i] / (2 * lam))
            logged = {
                c: v for r, t, c, v in found.weight_rows if (r, t) == (number, name)
            }
            assert logged == pytest.approx(
                dict(zip(chosen, weights, strict=True)), abs=1e-9
            )
            x[name] = sum(w * y[n] for w, n in zip(weights, chosen, strict=True))
            aims[name] = sum(
                w * y[n] / np.linalg.norm(y[n])
                for w, n in zip(weights, chosen, strict=True)
            )
    for name in SIZES:
        np.testing.assert_allclose(found.models[name].numpy(), x[name], rtol=1e-8)
