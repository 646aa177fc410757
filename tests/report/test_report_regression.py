"""A number as the label: its name and unit stand in the tables, and a mean without any model beside every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import r2_score

import coterie as ct
from coterie.report import words
from coterie.report.grids import grid
from coterie.report.results import Results
from coterie.run.experiment import Experiment
from coterie.run.sweep import run_experiment

CLIENTS = ("a", "b")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    for i, name in enumerate(CLIENTS):
        x = rng.normal(0, 1, 150)
        y = 120 + 10 * i + 15 * x + rng.normal(0, 5, 150)
        rows = "\n".join(f"{u:.4f},{v:.3f}" for u, v in zip(x, y, strict=True))
        (folder / f"{name}.csv").write_text(f"age,pressure\n{rows}\n")
    tables = {
        "data": {"folder": str(folder), "label": "pressure", "unit": "mmHg"},
        "methods": [{"name": "local"}, {"name": "fedavg"}],
        "run": {"rounds": 5, "seeds": [0, 1, 2]},
    }
    out = tmp_path_factory.mktemp("runs") / "pressure"
    run_experiment(Experiment.from_tables(tables, "a test"), out)
    return Results.load(out), folder


def test_the_training_mean_is_a_column_in_the_unit_of_the_label(run: tuple[Results, Path]) -> None:
    results, folder = run
    for client in CLIENTS:
        errors: dict[str, list[float]] = {"mae": [], "rmse": []}
        for seed in results.seeds:
            data = ct.data.load(str(folder), label="pressure", seed=seed)
            known = [data[client].train, data[client].validation]  # both methods train on them
            train = np.concatenate([data.label_scale.undo(part.labels).numpy() for part in known if part is not None])
            gap = data.label_scale.undo(data[client].test.labels).numpy() - train.mean()
            errors["mae"].append(float(np.abs(gap).mean()))
            errors["rmse"].append(float(np.sqrt((gap**2).mean())))
        for metric, expected in errors.items():
            name, scores = results.compared.trivial(client, metric)
            assert name == "training mean"
            assert scores == pytest.approx(expected, rel=1e-5)
    shown = grid(results, "rmse")
    assert shown.columns == ("local", "fedavg", "training mean")
    assert shown.cells[0][-1].mean == pytest.approx(results.compared.trivial("a", "rmse")[1].mean())
    assert shown.cells[-1][-1].mean == pytest.approx(np.mean([row[-1].mean for row in shown.cells[:2]]))


def test_r2_is_that_of_scikit_learn(run: tuple[Results, Path]) -> None:
    results, _ = run
    for client in CLIENTS:
        rows = results.compared.outcomes.rows("fedavg", client)
        expected = [r2_score(one.labels, one.outputs[:, 0]) for one in rows.values() if one.outputs is not None]
        assert results.values("fedavg", client, "r2") == pytest.approx(expected, rel=1e-5)
    assert grid(results, "r2").title.startswith("R² on test rows (higher is better")


def test_name_and_unit_of_the_label_stand_where_numbers_do(run: tuple[Results, Path]) -> None:
    results, _ = run
    assert results.predicts == "pressure, in mmHg"
    assert grid(results, "rmse").title.startswith("RMSE of pressure in mmHg on test rows (lower is better")
    assert grid(results, "loss").title.startswith("loss on test rows")
    numbers = words.tell(results).clients[0].numbers[0]
    assert numbers.startswith("fedavg: RMSE ")
    assert numbers.endswith(" mmHg")


def test_the_training_mean_is_said_in_the_unit_of_the_label(run: tuple[Results, Path], monkeypatch: Any) -> None:
    results, _ = run
    monkeypatch.setattr(words, "beats_constant", lambda results, client, method: method == "local")
    error = float(results.compared.trivial("a", "rmse")[1].mean())
    assert words.constant(results, "a") == (
        f"Always predicting the mean of your training rows has an RMSE of {error:.2f} mmHg. Shown to beat that: local."
    )
