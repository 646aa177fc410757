"""What must hold of FedFomo, and rounds recomputed with numpy alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import (
    FULL,
    LOCAL,
    MINI,
    ONE,
    assert_refused_by_the_command,
    logged,
    loss,
    rows,
    run,
    sgd,
)

from coterie import FedFomo, Local
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from federations import (
    HELD,
    SIZES,
    assert_close,
    dropout,
    logistic,
    quadratic,
    start,
    subset,
)

MUTANTS = {
    "fedfomo": [
        ("algorithms/fedfomo.py", "gain / gain.max() / distances", "gain / gain.max()"),
        (
            "algorithms/fedfomo.py",
            "(losses[0] - losses[1:]).clamp(min=0)",
            "(losses[0] - losses[1:]).abs()",
        ),
        (
            "algorithms/fedfomo.py",
            "pull = pull / pull.sum()",
            "pull = pull / pull.max()",
        ),
        (
            "algorithms/fedfomo.py",
            'if rows != "train" and cohort.has(i, "validation"):',
            "if False:",
        ),
        (
            "algorithms/fedfomo.py",
            "x[positions[not_judging]] = trained[not_judging]",
            "x[positions[not_judging]] = x[positions[not_judging]]",
        ),
    ],
}


def test_a_client_like_the_target_pulls_and_an_opposite_one_does_not():
    problem = quadratic(
        {"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [-1.0, -1.0], "d": [1.0, -1.0]}
    )
    weights = run(FedFomo(local=FULL), problem, 1).weights
    assert weights["a"]["a"] == weights["a"]["b"] > 0.4
    assert weights["a"]["c"] == weights["c"]["a"] == weights["c"]["b"] == 0
    assert weights["c"]["c"] == 1


def test_a_model_that_exists_twice_pulls_twice():
    problem = logistic()
    twice = problem.with_clients(
        Clients([*problem.clients, Client("b-again", *_parts(problem.clients["b"]))])
    )
    full = FedFomo("a", FULL)
    one, two = run(full, problem, 1).weights["a"], run(full, twice, 1).weights["a"]
    assert two["b"] == two["b-again"]
    total = sum(w * (2 if n == "b" else 1) for n, w in one.items())
    assert two == pytest.approx(
        {**{n: w / total for n, w in one.items()}, "b-again": one["b"] / total},
        rel=1e-9,
    )
    assert one["b"] > 0.01


def _parts(client):
    return client.train, client.validation, client.test


@pytest.mark.parametrize("make", [logistic, dropout])
def test_fedfomo_with_one_client_is_local_training_while_that_helps(make):
    problem = make()
    alone = problem.with_clients(subset(problem.clients, "b"))
    assert_close(
        run(FedFomo(local=MINI), alone).models["b"],
        run(Local(MINI, exact=False), alone).models["b"],
    )


def test_a_target_for_whom_nobody_does_better_keeps_its_model():
    problem = quadratic({"a": [2.0, 0.0], "b": [0.0, 2.0]})
    found = run(FedFomo(local=replace(ONE, lr=1e15)), problem, 2)
    assert all(x.tolist() == [0.0, 0.0] for x in found.models.values())
    assert logged(found, "kept") == {(1, "*"): 2, (2, "*"): 2}
    assert found.weights == {}


def test_who_combines_no_models_goes_on_alone():
    problem = logistic()
    found, alone = (
        run(FedFomo(("a", "b"), MINI), problem),
        run(Local(MINI, exact=False), problem),
    )
    assert set(found.models) == {"a", "b"}
    rows = dict(zip(found.state.names, found.state.x, strict=True))
    for name in "cde":
        assert_close(rows[name], alone.models[name])
    assert not torch.equal(rows["a"], alone.models["a"])
    asked = {
        r.round
        for r in run(FedFomo("a", MINI), problem, 8, clients_per_round=1).asks
        if r.task.endswith(":judge")
    }
    assert 0 < len(asked) < 8  # only where the target takes part


def test_validation_rows_of_targets_are_kept_from_training():
    problem = logistic()
    found = run(FedFomo(("a", "c"), MINI), problem, merge_validation=True)
    assert found.method.keeps_validation(tuple(SIZES)) == ("a", "c")
    assert {r["client"]: r["n_train"] - SIZES[r["client"]] for r in found.summary} == {
        "a": 0,
        "c": 0,
    }
    by_train = FedFomo(("a", "c"), MINI, "train")
    assert by_train.keeps_validation(tuple(SIZES)) == ()
    assert {
        r["n_train"] - SIZES[r["client"]]
        for r in run(by_train, problem, merge_validation=True).summary
    } == {HELD}


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"targets": ()}, r"FedFomo.targets must be \"all\", a client's name, or several names; got \(\)"),
    ({"validation": "server"}, r"FedFomo.validation must be validation \| train; got 'server'"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        FedFomo(**fields)


def test_a_client_that_does_not_exist_is_refused():
    with pytest.raises(
        InputError, match=r"FedFomo.targets names 'x', which is not a client"
    ):
        run(FedFomo(("a", "x")), logistic())


def test_a_wrong_pair_ends_the_command_with_status_2(capsys, tmp_path):
    assert_refused_by_the_command(
        "fedfomo",
        'fedfomo.targets="nobody"',
        "FedFomo.targets names 'nobody'",
        capsys,
        tmp_path,
    )


def test_fedfomo_with_absent_clients_written_in_numpy():
    problem = logistic()
    found = run(FedFomo(("a", "c", "e"), LOCAL), problem, 4, clients_per_round=4)
    everybody = {n: start(problem).numpy() for n in SIZES}
    for number in range(1, 5):
        order = Rng.named(0, "participants", number).permutation(5, 4)
        chosen = sorted("abcde"[i] for i in order)
        trained = {n: sgd(everybody[n], problem, n, number, steps=3) for n in chosen}
        new = dict(everybody)
        for name in chosen:
            if name in "bd":
                new[name] = trained[name]
                continue
            held, previous = rows(problem, name, "validation"), everybody[name]
            w = {}
            for other, model in trained.items():
                gain = loss(previous, *held) - loss(model, *held)
                w[other] = max(0.0, gain / np.linalg.norm(model - previous))
            if sum(w.values()) > 0:
                w = {n: v / sum(w.values()) for n, v in w.items()}
                new[name] = previous + sum(w[n] * (trained[n] - previous) for n in w)
                assert {
                    c: v for r, t, c, v in found.weight_rows if (r, t) == (number, name)
                } == pytest.approx(w)
        everybody = new
    assert set(found.models) == set("ace")
    for name, x in found.models.items():
        np.testing.assert_allclose(x.numpy(), everybody[name], rtol=1e-10)
