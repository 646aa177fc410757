"""What must hold of APFL, and rounds recomputed with numpy alone."""

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
    forget,
    gradient,
    rows,
    run,
    trained,
)

from coterie import APFL, FedAvg, Local
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.config.local import LocalSGD, Steps
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    dropout,
    logistic,
    quadratic,
    start,
)

MUTANTS = {
    "apfl": [
        ("algorithms/apfl.py", "self._lr * share * at_mixed", "self._lr * at_mixed"),
        (
            "algorithms/apfl.py",
            "share - self._lr * float(dot",
            "share + self._lr * float(dot",
        ),
        ("algorithms/apfl.py", "            self._adapts = False\n", ""),
        ("algorithms/apfl.py", "vector[d:] = statistics", "vector[d:] = vector[d:]"),
        (
            "algorithms/apfl.py",
            "share * models[:, :d] + (1 - share) * x[:d]",
            "models[:, :d]",
        ),
        (
            "algorithms/apfl.py",
            "cohort.state(OWN, x).or_else(x), cohort",
            "x.expand(len(cohort.names), -1), cohort",
        ),
    ],
}

HALVES = LocalSGD(lr=0.25, steps=Steps(1), batch_size=None)
"""A step that halves the distance to a client's optimum."""


def at_two():
    """f_a(w) = w^2 with 30 rows and f_b(w) = (w - 4)^2 with 10; starts at 2."""
    problem = quadratic({"a": [0.0], "b": [4.0]}, {"a": 30, "b": 10})
    torch.nn.init.constant_(problem.model.value, 2.0)
    return problem


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_the_global_model_is_that_of_fedavg(make):
    x = trained(FedAvg(MINI), make()).x
    for settings in ({}, {"alpha": 0.9, "adaptive": False}):
        assert_close(trained(APFL(MINI, **settings), make()).models["*"], x)


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_a_fixed_share_of_one_is_training_alone_and_of_none_fedavg(make):
    alone, average = (
        trained(Local(MINI, exact=False), make()),
        trained(FedAvg(MINI), make()),
    )
    d = sum(p.numel() for p in make().model.parameters())
    whole, none = (
        trained(APFL(MINI, alpha=a, adaptive=False), make()) for a in (1.0, 0.0)
    )
    for name, x in alone.models.items():
        assert_close(whole.models[name], x)
        assert_close(none.models[name][:d], average.x[:d])


def test_a_round_by_hand():
    """m = 2, gradient 4 and -4, so v = 2 -+ .25 * .5 * 4, w = 1 and 3, x = 1.5; then the mean of v and x."""
    found = trained(APFL(HALVES, adaptive=False), at_two(), 1)
    assert {n: float(x) for n, x in found.models.items()} == pytest.approx(
        {"*": 1.5, "a": 1.5, "b": 2.0}
    )


def test_who_differs_relies_on_itself():
    problem = quadratic({"a": [0.0], "b": [0.0], "c": [4.0]})
    found = trained(APFL(HALVES), problem, 30)
    assert abs(float(found.models["c"]) - 4) < 0.01
    fixed = trained(APFL(HALVES, alpha=0.1, adaptive=False), problem, 30)
    assert abs(float(fixed.models["c"]) - 4) < abs(float(fixed.models["*"]) - 4)


def test_a_client_that_lost_its_model_begins_anew_and_is_named(monkeypatch):
    problem = logistic()
    whole = trained(APFL(MINI), problem, 3)
    forget(monkeypatch, "b", 3)
    found = trained(APFL(MINI), problem, 3)
    assert "its own model was lost, so it begins anew" in found.failures["b"]
    assert torch.equal(found.x, whole.x)
    assert {n for n in SIZES if not torch.equal(found.models[n], whole.models[n])} == {
        "b"
    }


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"alpha": 1.5}, r"APFL.alpha must be a number in \[0, 1\]; got 1.5"),
    ({"adaptive": "yes"}, r"APFL.adaptive must be true or false; got 'yes'"),
    ({"local": LocalSGD(momentum=0.5)}, r"APFL needs local optimiser = \"sgd\" without momentum and clip"),
    ({"local": LocalSGD(optimiser="adam")}, r"APFL needs local optimiser = \"sgd\" without momentum and clip"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        APFL(**fields)


def test_a_wrong_share_ends_the_command_with_status_2(capsys, tmp_path):
    assert_refused_by_the_command(
        "apfl",
        "apfl.alpha=2",
        "APFL.alpha must be a number in [0, 1]",
        capsys,
        tmp_path,
    )


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_apfl_with_absent_clients_written_in_numpy(decay):
    problem = logistic()
    local = LocalSGD(
        lr=LR, steps=LOCAL.steps, batch_size=LOCAL.batch_size, weight_decay=decay
    )
    found = run(APFL(local, alpha=0.4), problem, 4, clients_per_round=3)
    x, own, share = start(problem).numpy(), {}, dict.fromkeys(SIZES, 0.4)
    for number in range(1, 5):
        chosen = sorted(
            "abcde"[i] for i in Rng.named(0, "participants", number).permutation(5, 3)
        )
        moves = {}
        for name in chosen:
            w, v, a = x, own.get(name, x), share[name]
            inputs, labels = rows(problem, name)
            for step, batch in enumerate(drawn(name, number, steps=3)):
                m = a * v + (1 - a) * w
                slopes = [
                    gradient(y, inputs[batch], labels[batch]) + decay * y
                    for y in (w, m)
                ]
                after = (
                    min(1.0, max(0.0, a - LR * slopes[1] @ (v - w))) if step == 0 else a
                )
                w, v, a = w - LR * slopes[0], v - LR * a * slopes[1], after
            own[name], share[name], moves[name] = v, a, w - x
        x = x + sum(SIZES[n] * move for n, move in moves.items()) / sum(
            SIZES[n] for n in chosen
        )
    for name, v in own.items():
        a = share[name]
        np.testing.assert_allclose(
            found.models[name].numpy(), a * v + (1 - a) * x, rtol=1e-10
        )
    assert len({round(a, 6) for a in share.values()}) > 3
