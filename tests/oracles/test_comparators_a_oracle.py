"""SCAFFOLD, MOON, q-FFL, MW-Fed, Per-FedAvg and FedFomo against loops in numpy, and in torch where there are layers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.algorithms import MOON, QFFL, FedFomo, MWFed, PerFedAvg, Scaffold
from coterie.core.rng import Rng, batches
from coterie.core.training import Epochs, LocalSGD, Schedule, Steps
from federations import SIZES, dropout, fit, logistic, start

LR, BATCH = 0.3, 4
LOCAL = LocalSGD(lr=LR, steps=Steps(3), batch_size=BATCH)
TOTAL = sum(SIZES.values())


def run(method, problem, rounds=3, **options):
    return fit(method, problem.clients, problem.model, rounds, **{"merge_validation": False, "evaluate": 1, **options})


def logged(found, round_, metric):
    return {r.client: r.value for r in found.history if (r.round, r.metric) == (round_, metric)}


def participants(found, round_):
    return sorted({c for number, _, c, _ in found.weight_rows if number == round_})


# ---- logistic regression in numpy


def rows(problem, name, part="train"):
    found = problem.clients[name].part(part)
    return found.inputs.numpy(), found.labels.numpy()


def loss(w, x, y):
    z = x @ w[:-1] + w[-1]
    return float(np.mean(np.logaddexp(0, z) - y * z))


def gradient(w, x, y):
    error = 1 / (1 + np.exp(-(x @ w[:-1] + w[-1]))) - y
    return np.append(x.T @ error, error.sum()) / len(y)


def hessian(w, x):
    p = 1 / (1 + np.exp(-(x @ w[:-1] + w[-1])))
    wide = np.column_stack([x, np.ones(len(x))])
    return wide.T @ (wide * (p * (1 - p))[:, None]) / len(x)


def drawn(name, round_, purpose="train", **many):
    return list(batches(Rng.named(0, round_, name, purpose), SIZES[name], BATCH, **many))


def sgd(w, problem, name, round_, purpose="train", **many):
    x, y = rows(problem, name)
    for chosen in drawn(name, round_, purpose, **many):
        w = w - LR * gradient(w, x[chosen], y[chosen])
    return w


# ---- SCAFFOLD


@pytest.mark.parametrize(
    "settings", [{"steps": Steps(3)}, {"steps": Epochs(2)}, {"weight_decay": 0.1, "batch_size": 4}]
)
def test_scaffold_with_absent_clients_written_in_numpy(settings):
    problem, server_lr = logistic(), 0.7
    local = LocalSGD(**{"lr": Schedule(LR, (3,), 0.5), "steps": Steps(2), "batch_size": BATCH, **settings})
    found = run(Scaffold(local, lr=server_lr), problem, 5, clients_per_round=3)
    many = {"epochs" if isinstance(local.steps, Epochs) else "steps": local.steps.count}
    x, c = start(problem).numpy(), np.zeros(4)
    own = {n: np.zeros(4) for n in SIZES}
    for number in range(1, 6):
        chosen = participants(found, number)
        assert len(chosen) == 3
        lr = LR if number < 3 else LR / 2
        moves, changes = [], []
        for name in chosen:
            inputs, labels = rows(problem, name)
            y, steps = x, drawn(name, number, **many)
            for at in steps:
                y = y - lr * (gradient(y, inputs[at], labels[at]) + local.weight_decay * y + c - own[name])
            new = own[name] - c + (x - y) / (len(steps) * lr)
            moves.append(y - x)
            changes.append(new - own[name])
            own[name] = new
        x = x + server_lr * sum(moves) / 3
        c = c + 3 / 5 * sum(changes) / 3
        assert logged(found, number, "control_norm")["*"] == pytest.approx(np.linalg.norm(c), rel=1e-10)
    np.testing.assert_allclose(found.x.numpy(), x, rtol=1e-10)
    np.testing.assert_allclose(c, sum(own.values()) / 5, atol=1e-14)
    assert np.linalg.norm(c) > 1e-3


# ---- q-FFL


@pytest.mark.parametrize("q", [0.5, 1.0, 10.0])
def test_qffl_written_in_numpy(q):
    problem, lipschitz = logistic(), 1 / LR
    found = run(QFFL(LOCAL, q), problem)
    x = start(problem).numpy()
    for number in (1, 2, 3):
        top, bottom = np.zeros(4), 0.0
        for name in SIZES:
            f = loss(x, *rows(problem, name))
            step = lipschitz * (x - sgd(x, problem, name, number, steps=3))
            top = top + f**q * step
            bottom += q * f ** (q - 1) * float(step @ step) + lipschitz * f**q
        x = x - top / bottom
    np.testing.assert_allclose(found.x.numpy(), x, rtol=1e-11)


# ---- MW-Fed


@pytest.mark.parametrize("requirements", ["train", "validation"])
def test_mwfed_with_absent_clients_written_in_numpy(requirements):
    problem, rate, server_lr = logistic(), 0.9, 0.6
    found = run(MWFed(LOCAL, rate, server_lr, 4, requirements), problem, 5, clients_per_round=4)
    x0 = start(problem).numpy()
    solo = {n: sgd(x0, problem, n, 0, "warmup", steps=4) for n in SIZES}
    rho = {n: loss(w, *rows(problem, n, requirements)) for n, w in solo.items()}
    x, w, seen = x0, dict.fromkeys(SIZES, 0.2), set()
    for number in range(1, 6):
        chosen = participants(found, number)
        gap = {n: loss(x, *rows(problem, n)) - rho[n] for n in chosen}
        for name in chosen:
            w[name] *= math.exp(rate * (gap[name] > 0))
        total = sum(w.values())
        w = {n: v / total for n, v in w.items()}
        share = {n: w[n] / sum(w[m] for m in chosen) for n in chosen}
        steps = {n: max(1, round(3 * 4 * share[n])) for n in chosen}
        x = x + server_lr * sum(share[n] * (sgd(x, problem, n, number, steps=steps[n]) - x) for n in chosen)
        assert logged(found, number, "gap") == pytest.approx(gap, abs=1e-12)
        assert logged(found, number, "steps") == steps
        seen |= set(steps.values())
    np.testing.assert_allclose(found.x.numpy(), x, rtol=1e-11)
    assert len(seen) > 2


# ---- Per-FedAvg


@pytest.mark.parametrize(("variant", "precision"), [("fo", 1e-11), ("hf", 1e-7)])
def test_perfedavg_written_in_numpy(variant, precision):
    problem, alpha = logistic(), 0.8
    found = run(PerFedAvg(LOCAL, alpha, variant, radius=1e-4), problem, 2)
    x = start(problem).numpy()
    for number in (1, 2):
        moves = []
        for name in SIZES:
            inputs, labels = rows(problem, name)
            y = x
            for step, first in enumerate(drawn(name, number, steps=3)):
                stream = Rng.named(0, number, name, f"train/{step}")
                second, third = (stream.child(k).permutation(SIZES[name], BATCH) for k in (1, 2))
                near = y - alpha * gradient(y, inputs[first], labels[first])
                meta = gradient(near, inputs[second], labels[second])
                if variant == "hf":
                    meta = meta - alpha * hessian(y, inputs[third]) @ meta
                y = y - LR * meta
            moves.append(y - x)
        x = x + sum(moves) / len(SIZES)
    np.testing.assert_allclose(found.x.numpy(), x, rtol=precision)
    for name in SIZES:  # what clients use, and its numbers in the summary
        own = x - alpha * gradient(x, *rows(problem, name))
        np.testing.assert_allclose(found.models[name].numpy(), own, rtol=precision)
        row = next(r for r in found.summary if (r["client"], r["split"]) == (name, "test"))
        assert row["own_model"]
        assert row["loss"] == pytest.approx(loss(own, *rows(problem, name, "test")), rel=precision)


# ---- FedFomo


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
                assert {c: v for r, t, c, v in found.weight_rows if (r, t) == (number, name)} == pytest.approx(w)
        everybody = new
    assert set(found.models) == set("ace")
    for name, x in found.models.items():
        np.testing.assert_allclose(x.numpy(), everybody[name], rtol=1e-10)


# ---- MOON


def layers(vector):
    shapes = [(8, 4), (8,), (3, 8), (3,)]
    return [t.view(s) for t, s in zip(vector.split([math.prod(s) for s in shapes]), shapes, strict=True)]


def forward(vector, inputs):
    w1, b1, w2, b2 = layers(vector)
    z = torch.tanh(inputs @ w1.T + b1)
    return z, z @ w2.T + b2


def cosine(a, b):
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def test_moon_with_absent_clients_written_in_torch():
    problem, mu, temperature, server_lr = dropout(), 2.0, 0.4, 0.8
    problem.model[2].p = 0.0
    found = run(MOON(LOCAL, mu, temperature, server_lr), problem, 4, clients_per_round=3)
    x, previous = start(problem), {}
    for number in range(1, 5):
        chosen = participants(found, number)
        assert logged(found, number, "with_previous")["*"] == len(set(chosen) & set(previous))
        trained = {}
        for name in chosen:
            part, y = problem.clients[name].part("train"), x.clone()
            for at in drawn(name, number, steps=3):
                inputs, labels = part.inputs[at], part.labels[at]
                y = y.detach().requires_grad_()
                z, outputs = forward(y, inputs)
                towards = torch.exp(cosine(z, forward(x, inputs)[0]) / temperature)
                away = torch.exp(cosine(z, forward(previous.get(name, x), inputs)[0]) / temperature)
                contrast = -torch.log(towards / (towards + away)).mean()
                value = torch.nn.functional.cross_entropy(outputs, labels) + mu * contrast
                y = y - LR * torch.autograd.grad(value, y)[0]
            trained[name] = y.detach()
        total = sum(SIZES[n] for n in chosen)
        x = x + server_lr * sum(SIZES[n] / total * (trained[n] - x) for n in chosen)
        previous.update(trained)
    torch.testing.assert_close(found.x, x, rtol=1e-10, atol=1e-12)
    plain = run(MOON(LOCAL, 0.0, temperature, server_lr), problem, 4, clients_per_round=3)
    assert (found.x - plain.x).norm() > 1e-3
