"""A hospital outside: each client is served by the others alone, and one more hospital's gain is predicted from these."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.base.clients import Client, Clients
from coterie.base.rows import Part
from coterie.compute.left_out import constant_without_own
from coterie.report.outside import (
    TAU_SPREAD,
    TAUS,
    predict_gain,
)
from coterie.run.files import ALL, OUTSIDE_ERROR, OUTSIDE_GAIN
from coterie.study.left_out import centres_without, is_left_out, measure_left_out

NAMES = "abcde"
ALL_TRAIN = {"train": 1.0}


def hospitals(kind: str = "binary", visits: int = 1) -> Clients:
    """Five hospitals of 40 rows, or 20 patients with two visits."""
    generator = torch.Generator().manual_seed(4)
    clients = []
    for k, name in enumerate(NAMES):
        x = torch.randn(40, 3, generator=generator).double()
        score = x @ torch.tensor([1.0, -0.5, 0.2 * k]).double() + 0.3 * k
        noise = torch.randn(40, generator=generator).double()
        y = score + noise if kind == "regression" else (score + noise > 0).long()
        groups = None
        if visits > 1:
            groups = {"train": np.arange(40) // visits}
        clients.append(Client(name, Part(x, y), row_groups=groups))
    return Clients(clients)


def run_of(clients: Clients, method: ct.Partial) -> ct.Run:
    model = torch.nn.Linear(3, 1).double()
    return ct.fit(method, clients, model=model, rounds=2)


def test_in_one_pass_each_client_is_served_by_a_run_of_the_others() -> None:
    clients = hospitals()
    method = ct.Partial(passes=1)
    found = centres_without(run_of(clients, method).prior)
    for k, name in enumerate(NAMES):
        others = Clients([client for client in clients if client.name != name])
        expected = run_of(others, method).models["*"]
        torch.testing.assert_close(found[k], expected, rtol=0, atol=1e-9)


@pytest.mark.in_turn
def test_in_two_passes_it_is_nearly_that_run() -> None:
    """The others told their quadratics near models that the client had a part in."""
    clients = hospitals()
    found = centres_without(run_of(clients, ct.Partial()).prior)
    for k, name in enumerate(NAMES):
        others = Clients([client for client in clients if client.name != name])
        expected = run_of(others, ct.Partial()).models["*"]
        torch.testing.assert_close(found[k], expected, rtol=0, atol=0.05)


def expected_losses(kind: str, rows: Part, model: np.ndarray) -> np.ndarray:
    """Loss of the constant prediction from all other rows minus that of the model, row by row."""
    x, y = rows.inputs.numpy(), rows.labels.numpy().astype(float)
    score = x @ model[:-1] + model[-1]
    gains = []
    for i in range(len(y)):
        others = np.delete(y, i)
        if kind == "regression":
            constant = (y[i] - others.mean()) ** 2
            gains.append((constant - (y[i] - score[i]) ** 2) / y.var())
            continue
        share = (np.sum(others == y[i]) + 1) / (len(others) + 2)
        risk = 1 / (1 + np.exp(-score[i]))
        gains.append(np.log(risk if y[i] else 1 - risk) - np.log(share))
    return np.array(gains)


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_gain_and_error_are_those_of_rows(kind: str) -> None:
    clients = hospitals(kind)
    found = measure_left_out(run_of(clients, ct.Partial()), clients)
    models = centres_without(found.prior).numpy()
    for k, name in enumerate(NAMES):
        gains = expected_losses(kind, clients[name].train, models[k])
        assert float(found.prior[OUTSIDE_GAIN][k]) == pytest.approx(gains.mean())
        error = gains.std(ddof=1) / np.sqrt(len(gains))
        assert float(found.prior[OUTSIDE_ERROR][k]) == pytest.approx(error)


def test_rows_count_by_their_weights() -> None:
    rows = {c.name: (c.train.inputs, c.train.labels) for c in hospitals()}
    generator = torch.Generator().manual_seed(6)
    weights = {name: torch.rand(40, generator=generator) + 0.1 for name in NAMES}
    clients = ct.data.from_tensors(rows, weights=weights, split={"parts": ALL_TRAIN})
    loss = ct.RunSettings().row_loss(clients)
    found = measure_left_out(run_of(clients, ct.Partial()), clients, loss)
    models = centres_without(found.prior)
    for k, name in enumerate(NAMES):
        x, y = rows[name]
        w = (weights[name] / weights[name].mean()).double()
        ill = y.double()
        same = (w * ill).sum() * ill + (w * (1 - ill)).sum() * (1 - ill) - w
        share = (same + 1) / (40 - w + 2)
        score = x @ models[k, :-1] + models[k, -1]
        right = torch.where(y > 0, score, -score)
        gains = torch.nn.functional.logsigmoid(right) - share.log()
        expected = float((w * gains).mean())
        gain = float(found.prior[OUTSIDE_GAIN][k])
        assert gain == pytest.approx(expected, abs=1e-6)


def test_rows_of_one_patient_count_as_one() -> None:
    of_rows, of_patients = (
        measure_left_out(run_of(clients, ct.Partial()), clients).prior
        for clients in (hospitals(), hospitals(visits=2))
    )
    torch.testing.assert_close(of_rows[OUTSIDE_GAIN], of_patients[OUTSIDE_GAIN])
    assert not torch.equal(of_rows[OUTSIDE_ERROR], of_patients[OUTSIDE_ERROR])


def test_the_constant_of_classes_counts_the_other_rows() -> None:
    labels = torch.tensor([0, 2, 2, 1, 2])
    shares = (-constant_without_own("classes", labels)).exp().tolist()
    expected = [1 / 7, 3 / 7, 3 / 7, 1 / 7, 3 / 7]
    assert shares == pytest.approx(expected)


def test_two_clients_and_other_methods_tell_nothing_of_a_third() -> None:
    clients = Clients([client for client in hospitals() if client.name in "ab"])
    run = run_of(clients, ct.Partial())
    assert not is_left_out(run, "")
    shared = ct.fit(ct.FedAvg(), hospitals(), rounds=1)
    assert not is_left_out(shared, "")
    pooled = run_of(hospitals(), ct.Partial())
    assert is_left_out(pooled, "")
    assert is_left_out(pooled, ALL)
    assert not is_left_out(pooled, "0")
    sums = run_of(hospitals(), ct.Partial(sends="sums"))
    assert not is_left_out(sums, "")


def by_integration(gains: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of a new hospital's gain: the flat mean M is integrated on a fine grid."""
    grid = np.linspace(-3, 3, 40_001)
    weights, means, squares = [], [], []
    for i, tau in enumerate(TAUS):
        variance = tau**2 + errors**2
        log_density = sum(
            -((g - grid) ** 2) / (2 * v) - np.log(v) / 2
            for g, v in zip(gains, variance, strict=True)
        )
        density = np.exp(log_density - 20)
        # Half of the way to each neighbour belongs to a point; nothing lies below 0.
        left = TAUS[i - 1] if i else 0.0
        right = TAUS[min(i + 1, len(TAUS) - 1)]
        width = (right - left) / 2
        prior = width * np.exp(-(tau**2) / (2 * TAU_SPREAD**2))
        weights.append(prior * density.sum())
        means.append((density * grid).sum() / density.sum())
        squares.append((density * grid**2).sum() / density.sum() + tau**2)
    share = np.array(weights) / np.sum(weights)
    mean = float(share @ means)
    return mean, float(np.sqrt(share @ squares - mean**2))


@pytest.mark.parametrize("seed", range(4))
def test_the_prediction_is_that_of_an_integral(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 12))
    errors = rng.uniform(0.01, 0.08, count)
    gains = 0.05 + rng.choice([0.0, 0.1]) * rng.normal(size=count)
    gains = gains + errors * rng.normal(size=count)
    mean, deviation = by_integration(gains, errors)
    found = predict_gain(gains, errors)
    assert found.mean == pytest.approx(mean, abs=1e-6)
    assert found.high - found.mean == pytest.approx(1.96 * deviation, abs=1e-5)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


@pytest.mark.parametrize(("count", "tau"), [(4, 0.0), (6, 0.05), (20, 0.1)])
def test_most_new_hospitals_gain_what_was_said(count: int, tau: float) -> None:
    rng = np.random.default_rng(count)
    held = 0
    for _ in range(300):
        errors = rng.uniform(0.01, 0.06, count)
        true = 0.03 + tau * rng.normal(size=count + 1)
        found = predict_gain(true[1:] + errors * rng.normal(size=count), errors)
        held += found.low <= true[0] <= found.high
    assert held >= 0.88 * 300
