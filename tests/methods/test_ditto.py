"""What must hold of Ditto, and rounds recomputed with numpy alone."""

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
    sgd,
    trained,
)

from coterie import Ditto, FedAvg, Local
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.config.local import LocalSGD, Schedule, Steps
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
    "ditto": [
        ("algorithms/ditto.py", "Quadratic(lam, x) if lam else None", "None"),
        (
            "algorithms/ditto.py",
            "Quadratic(lam, x) if lam else None",
            "Quadratic(lam) if lam else None",
        ),
        (
            "algorithms/ditto.py",
            "v = cohort.state(OWN, x).or_else(x)",
            "v = x.expand(len(cohort.names), -1)",
        ),
        (
            "algorithms/ditto.py",
            "LocalUpdate(cohort.updates(x, local)",
            "LocalUpdate(cohort.updates(v, local)",
        ),
        (
            "algorithms/ditto.py",
            "return own_models(federation, OWN, state.x)",
            "return {}",
        ),
    ],
}


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_without_a_pull_it_is_training_alone_beside_fedavg(make):
    found, alone = (
        trained(Ditto(MINI, lam=0.0), make()),
        trained(Local(MINI, exact=False), make()),
    )
    for name, x in alone.models.items():
        assert torch.equal(found.models[name], x)
    average = trained(FedAvg(MINI), make())
    for lam in (0.0, 0.7):
        assert torch.equal(trained(Ditto(MINI, lam=lam), make()).models["*"], average.x)


def parabolas():
    """f_a(w) = w^2 with 30 rows and f_b(w) = (w - 4)^2 with 10; starts at 2."""
    problem = quadratic({"a": [0.0], "b": [4.0]}, {"a": 30, "b": 10})
    torch.nn.init.constant_(problem.model.value, 2.0)
    return problem


HALVES = LocalSGD(lr=0.25, steps=Steps(1), batch_size=None)
"""A step that halves the distance to a client's optimum."""


def numbers(found):
    return {name: float(x) for name, x in found.models.items()}


def test_own_models_end_between_the_optima():
    assert numbers(trained(Ditto(HALVES, lam=2.0), parabolas(), 1)) == pytest.approx(
        {"*": 1.5, "a": 1.0, "b": 3.0}
    )
    assert numbers(trained(Ditto(HALVES, lam=2.0), parabolas(), 60)) == pytest.approx(
        {"*": 1.0, "a": 0.5, "b": 2.5}
    )


def test_one_step_with_the_whole_pull_starts_from_the_global_model():
    one, lr = LocalSGD(lr=0.5, steps=Steps(1), batch_size=None), 0.5
    problem = logistic()
    before, after = (trained(Ditto(one, lam=1 / lr), problem, r) for r in (2, 3))
    for name in SIZES:
        slope = gradient(before.models[name].numpy(), *rows(problem, name))
        np.testing.assert_allclose(
            after.models[name].numpy(),
            before.models["*"].numpy() - lr * slope,
            rtol=1e-12,
        )


def test_a_client_that_lost_its_model_begins_anew_and_is_named(monkeypatch):
    problem = logistic()
    whole = trained(Ditto(MINI), problem, 3)
    forget(monkeypatch, "b", 3)
    found = trained(Ditto(MINI), problem, 3)
    assert "its own model was lost, so it begins anew" in found.failures["b"]
    assert list(found.failures) == ["b"]
    assert torch.equal(found.x, whole.x)
    assert {n for n in SIZES if not torch.equal(found.models[n], whole.models[n])} == {
        "b"
    }


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"lam": -1}, r"Ditto.lam must be a number >= 0; got -1"),
    ({"local": LocalSGD(lr=0.5), "lam": 4}, r"Ditto.lam times the learning rate must be below 2.*got 4 \* 0.5; lower one"),
    ({"local": LocalSGD(lr=Schedule(0.5)), "lam": 5}, r"must be below 2, or own models run away; got 5 \* 0.5"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        Ditto(**fields)


def test_a_pull_that_diverges_ends_the_command_with_status_2(capsys, tmp_path):
    assert_refused_by_the_command(
        "ditto", "ditto.lam=1000", "Ditto.lam times the learning rate", capsys, tmp_path
    )


def test_ditto_with_absent_clients_written_in_numpy():
    problem, lam = logistic(), 0.6
    found = run(Ditto(LOCAL, lam=lam), problem, 4, clients_per_round=3)
    x, own = start(problem).numpy(), {}
    for number in range(1, 5):
        chosen = sorted(
            "abcde"[i] for i in Rng.named(0, "participants", number).permutation(5, 3)
        )
        for name in chosen:
            v = own.get(name, x)
            inputs, labels = rows(problem, name)
            for batch in drawn(name, number, steps=3):
                v = v - LR * (gradient(v, inputs[batch], labels[batch]) + lam * (v - x))
            own[name] = v
        total = sum(SIZES[n] for n in chosen)
        x = x + sum(
            SIZES[n] / total * (sgd(x, problem, n, number, steps=3) - x) for n in chosen
        )
    assert set(own) == set(SIZES)
    for name, v in own.items():
        np.testing.assert_allclose(found.models[name].numpy(), v, rtol=1e-10)
    np.testing.assert_allclose(found.models["*"].numpy(), x, rtol=1e-10)
    assert_close(
        found.models["*"], trained(FedAvg(LOCAL), problem, 4, clients_per_round=3).x
    )


def test_a_rate_that_rises_too_far_is_refused_before_the_run():
    rising = LocalSGD(lr=Schedule(0.5, at=(3,), factor=10.0))
    with pytest.raises(InputError, match=r"must be below 2, .*; got 1 \* 5; lower one"):
        Ditto(rising)
    assert Ditto(LocalSGD(lr=Schedule(1.5, at=(3,)))).lam == 1.0
