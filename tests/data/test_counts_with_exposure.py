"""Tables whose label is a count with exposure: what is read and refused, and models against a Poisson regression."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct

OPTIONS = ct.data.Tables(label="falls", exposure="bed_days")


def ward(seed, n=120, rate=0.02):
    rng = np.random.default_rng(seed)
    age, days = rng.normal(0, 1, n), rng.integers(5, 400, n)
    falls = rng.poisson(rate * days * np.exp(0.4 * age))
    beds = rng.normal(20, 4, n).round()
    return pd.DataFrame({"age": age, "beds": beds, "bed_days": days, "falls": falls})


def wards():
    return {name: ward(i) for i, name in enumerate(("east", "north"))}


def test_labels_are_counts_and_exposure_and_exposure_is_no_input():
    frames = wards()
    clients = ct.data.from_frames(frames, tables=OPTIONS)
    assert clients.form.kind == "count"
    assert clients.recipe["features"] == ["age", "beds"]
    found = torch.cat([part.labels for _, part in clients["east"].parts()])
    expected = frames["east"][["falls", "bed_days"]].to_numpy(float)
    assert sorted(found.tolist()) == sorted(expected.tolist())
    train = torch.cat([client.train.labels for client in clients]).double()
    rate = float(train[:, 0].sum() / train[:, 1].sum())
    assert clients.form.rates == (pytest.approx(rate),)


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("bed_days", 0, "'bed_days' is 0 in data row 4"),
        ("bed_days", float("nan"), "'bed_days' (exposure) is missing in data row 4"),
        ("falls", -1, "'falls' is -1 in data row 4"),
        ("falls", 0.5, "'falls' is 0.5 in data row 4"),
    ],
)
def test_a_cell_that_is_no_count_or_exposure_is_refused_by_row(column, value, says):
    frames = wards()
    frames["east"][column] = frames["east"][column].astype(float)
    frames["east"].loc[3, column] = value
    with pytest.raises(ct.InputError) as refused:
        ct.data.from_frames(frames, tables=OPTIONS)
    assert says in str(refused.value)


def test_settings_that_contradict_it_are_refused():
    with pytest.raises(ct.InputError, match="drop one of them"):
        ct.data.Tables(label="falls", exposure="days", task="regression")


@pytest.mark.in_turn
def test_the_model_is_a_poisson_regression_with_an_offset():
    sm = pytest.importorskip("statsmodels.api")
    frame = ward(3, n=200)
    clients = ct.data.from_frames(
        {"a": frame, "b": ward(4)}, tables=OPTIONS, split={"parts": {"train": 1.0}}
    )
    run = ct.fit(ct.FixedEffects(ridge=0.0), clients, rounds=20)
    inputs, labels = [], []
    for i, client in enumerate(clients):
        x = client.train.inputs.double().numpy()
        own = np.tile(np.eye(2)[i], (len(x), 1))
        inputs.append(np.column_stack([x, own]))
        labels.append(client.train.labels.double().numpy())
    rows = np.concatenate(labels)
    usual = clients.form.rates[0] * rows[:, 1]
    model = sm.GLM(
        rows[:, 0],
        np.concatenate(inputs),
        family=sm.families.Poisson(),
        offset=np.log(usual),
    )
    theirs = model.fit(tol=1e-12).params
    ours = run.models["a"].double().numpy()
    np.testing.assert_allclose(ours, theirs[[0, 1, 2]], atol=1e-5)
    ours_at_b = run.models["b"].double().numpy()
    np.testing.assert_allclose(ours_at_b, theirs[[0, 1, 3]], atol=1e-5)


def test_every_way_to_train_learns_it_and_predicts_rates():
    clients = ct.data.from_frames(wards(), tables=OPTIONS)
    new = pd.DataFrame({"age": [-1.0, 1.0], "beds": [20.0, 20.0]})
    for method in ("fedavg", "local", "partial", "centralised"):
        run = ct.fit(method, clients, rounds=10)
        prediction = run.predict(new, client="east" if method != "fedavg" else "*")
        low, high = prediction.values[:, 0].tolist()
        assert 0 < low < high < 0.1, method
    assert prediction.table().splitlines()[0].endswith("falls per bed_days")
    measured = [row["poisson_deviance"] for row in run.summary]
    assert all(0 < value < 20 for value in measured)


def test_a_comparison_judges_by_a_share_of_the_deviance(tmp_path):
    for name, frame in wards().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    data = {
        "folder": str(tmp_path),
        "label": "falls",
        "exposure": "bed_days",
        "split": {"folds": 4},
    }
    comparison = ct.compare(["local", "fixed-effects"], data, rounds=8, seeds=1)
    verdict = comparison.verdict("east")
    assert verdict.method == "fixed-effects"
    rows = comparison.results.comparisons.outcomes.rows("local", "east")
    halves = [one.half_deviance for one in rows.values()]
    assert verdict.smallest == pytest.approx(0.01 * np.mean(halves))
    assert "poisson_deviance" in comparison.results.metrics
