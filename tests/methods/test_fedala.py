"""What must hold of FedALA, and rounds recomputed with numpy alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from short_runs import (
    LOCAL,
    MINI,
    assert_refused_by_the_command,
    drawn,
    forget,
    gradient,
    loss,
    rows,
    run,
    sgd,
)
from short_runs import trained as fitted

from coterie import FedALA, FedAvg
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.config.local import LocalSGD, Steps
from federations import SIZES, batch_norm, dropout, logistic, quadratic, start

MUTANTS = {
    "fedala": [
        ("algorithms/fedala.py", "self.weights + self._eta * slope", "self.weights - self._eta * slope"),
        ("algorithms/fedala.py", "* slope * self._away", "* slope"),
        ("algorithms/fedala.py", ".clamp(0, 1)", ""),
        ("algorithms/fedala.py", "(1 - self.weights) * self._away", "self.weights * self._away"),
        ("algorithms/fedala.py", "delta = (start - x) + cohort", "delta = cohort"),
        ("algorithms/fedala.py", "if not self.learned:", "if True:"),
        ("algorithms/fedala.py", "float(latest.std(correction=0)) < SETTLED", "False"),
        ("algorithms/fedala.py", "[_Mixture(x, entries, row, eta) for row in mixture_state.or_else(start)]",
         "[_Mixture(x, entries, row, eta) for row in start.expand(len(cohort.names), -1)]"),
        ("base/layers.py", "layout.layers[max(0, len(layout.layers) - count) :]", "layout.layers[:count]"),
    ],
}  # fmt: skip


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_without_learning_or_layers_it_is_fedavg(make):
    average = fitted(FedAvg(MINI), make()).x
    for settings in ({"eta": 0.0}, {"layers": 0}):
        found = fitted(FedALA(MINI, **settings), make())
        for model in found.models.values():
            assert torch.equal(model, average)


def parabolas():
    """f_a(w) = w^2 with 30 rows and f_b(w) = (w - 4)^2 with 10; starts at 2."""
    problem = quadratic({"a": [0.0], "b": [4.0]}, {"a": 30, "b": 10})
    torch.nn.init.constant_(problem.model.value, 2.0)
    return problem


def test_two_rounds_by_hand():
    """Weights .25 and 0, starts 1.125 and 3, so that the average is 1.296875 where FedAvg has 1.25."""
    halves = LocalSGD(lr=0.25, steps=Steps(1), batch_size=None)
    found = fitted(FedALA(halves, eta=0.5, passes=1), parabolas(), 2)
    assert float(found.models["*"]) == pytest.approx(1.296875)
    x, own = 1.296875, {"a": 0.5625, "b": 3.5}
    mixed = {"a": x + 0.75 * (own["a"] - x), "b": own["b"]}
    assert {n: float(found.models[n]) for n in "ab"} == pytest.approx(mixed)


def test_the_layers_before_the_last_ones_start_at_the_average():
    problem = batch_norm()
    found = fitted(FedALA(MINI), problem)
    first = 4 * 5 + 5 + 5 + 5  # a linear layer and batch norm
    last = first + 5 * 3 + 3
    for name in SIZES:
        x, model = found.models["*"], found.models[name]
        assert torch.equal(model[:first], x[:first])
        assert torch.equal(model[last:], x[last:])
        assert not torch.equal(model[first:last], x[first:last])


def test_a_client_that_lost_its_model_begins_anew_and_is_named(monkeypatch):
    forget(monkeypatch, "b", 3)
    found = fitted(FedALA(MINI), logistic(), 3)
    assert "its own model was lost, so it begins anew" in found.failures["b"]
    assert list(found.failures) == ["b"]


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"eta": -1}, r"FedALA.eta must be a number >= 0; got -1"),
    ({"sample": 0}, r"FedALA.sample must be a number in \(0, 1\]; got 0"),
    ({"layers": -1}, r"FedALA.layers must be an int >= 0; got -1"),
    ({"passes": 0}, r"FedALA.passes must be None .* or an int > 0; got 0"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    with pytest.raises(InputError, match=sentence):
        FedALA(**fields)


def test_a_wrong_setting_ends_the_command_with_status_2(capsys, tmp_path):
    sentence = "FedALA.eta must be a number >= 0; got -1"
    assert_refused_by_the_command("fedala", "fedala.eta=-1", sentence, capsys, tmp_path)


def test_fedala_with_absent_clients_written_in_numpy():
    """All of a logistic regression is its last layer."""
    problem, eta, sample = logistic(), 8.0, 0.6
    found = run(FedALA(LOCAL, eta=eta, sample=sample), problem, 5, clients_per_round=3)
    x, own, weights = start(problem).numpy(), {}, {}
    counts = {}
    for number in range(1, 6):
        chosen = sorted(
            "abcde"[i] for i in Rng.named(0, "participants", number).permutation(5, 3)
        )
        total, moved = sum(SIZES[n] for n in chosen), np.zeros_like(x)
        for name in chosen:
            inputs, labels = rows(problem, name)
            theta = x
            if name in own:
                w, losses = weights.get(name, np.ones_like(x)), []
                while not losses or (name not in weights and len(losses) < 100):
                    batches = math.ceil(sample * math.ceil(SIZES[name] / 4))
                    for batch in drawn(
                        name, number, f"ala/{len(losses)}", steps=batches
                    ):
                        slope = gradient(
                            x + (1 - w) * (own[name] - x), inputs[batch], labels[batch]
                        )
                        w = np.clip(w - eta * slope * (x - own[name]), 0, 1)
                    theta = x + (1 - w) * (own[name] - x)
                    losses.append(loss(theta, inputs, labels))
                    if len(losses) >= 10 and np.std(losses[-10:]) < 0.1:
                        break
                counts.setdefault(name, []).append(len(losses))
                weights[name] = w
            own[name] = sgd(theta, problem, name, number, steps=3)
            moved += SIZES[name] / total * (own[name] - x)
        x = x + moved
    assert any(
        len(passes) > 1 and passes[0] >= 10 and passes[1] == 1
        for passes in counts.values()
    )
    np.testing.assert_allclose(found.models["*"].numpy(), x, rtol=1e-9)
    for name, model in own.items():
        mixed = x + (1 - weights.get(name, np.ones_like(x))) * (model - x)
        np.testing.assert_allclose(found.models[name].numpy(), mixed, rtol=1e-9)
