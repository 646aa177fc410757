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
from coterie.study.sweep import run_experiment

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


@pytest.mark.in_turn
def test_the_training_mean_is_a_column_in_the_unit_of_the_label(
    run: tuple[Results, Path],
) -> None:
    results, folder = run
    for client in CLIENTS:
        errors: dict[str, list[float]] = {"mae": [], "rmse": []}
        for seed in results.seeds:
            data = ct.data.load(str(folder), label="pressure", seed=seed)
            known = [
                data[client].train,
                data[client].validation,
            ]  # both methods train on them
            train = np.concatenate(
                [
                    data.label_scale.undo(part.labels).numpy()
                    for part in known
                    if part is not None
                ]
            )
            gap = data.label_scale.undo(data[client].test.labels).numpy() - train.mean()
            errors["mae"].append(float(np.abs(gap).mean()))
            errors["rmse"].append(float(np.sqrt((gap**2).mean())))
        for metric, expected in errors.items():
            name, scores = results.comparisons.trivial(client, metric)
            assert name == "training mean"
            assert scores == pytest.approx(expected, rel=1e-5)
    shown = grid(results, "rmse")
    assert shown.columns == ("local", "fedavg", "training mean")
    assert shown.cells[0][-1].mean == pytest.approx(
        results.comparisons.trivial("a", "rmse")[1].mean()
    )
    assert shown.cells[-1][-1].mean == pytest.approx(
        np.mean([row[-1].mean for row in shown.cells[:2]])
    )


def test_r2_is_that_of_scikit_learn(run: tuple[Results, Path]) -> None:
    results, _ = run
    for client in CLIENTS:
        rows = results.comparisons.outcomes.rows("fedavg", client)
        expected = [
            r2_score(one.labels, one.outputs[:, 0])
            for one in rows.values()
            if one.outputs is not None
        ]
        assert results.values("fedavg", client, "r2") == pytest.approx(
            expected, rel=1e-5
        )
    assert grid(results, "r2").title.startswith("R² on test rows (higher is better")


def test_name_and_unit_of_the_label_stand_where_numbers_do(
    run: tuple[Results, Path],
) -> None:
    results, _ = run
    assert results.predicts == "pressure, in mmHg"
    assert grid(results, "rmse").title.startswith(
        "RMSE of pressure in mmHg on test rows (lower is better"
    )
    assert grid(results, "loss").title.startswith("loss on test rows")
    numbers = words.tell(results).clients[0].numbers[0]
    assert numbers.startswith("fedavg: RMSE ")
    assert numbers.endswith(" mmHg")


def test_the_training_mean_is_said_in_the_unit_of_the_label(
    run: tuple[Results, Path], monkeypatch: Any
) -> None:
    results, _ = run
    monkeypatch.setattr(
        words, "beats_constant", lambda results, client, method: method == "local"
    )
    error = float(results.comparisons.trivial("a", "rmse")[1].mean())
    assert words.constant(results, "a") == (
        f"Always predicting the mean of your training rows has an RMSE of {error:.2f} mmHg. Shown to beat that: local."
    )


@pytest.mark.in_turn
def test_a_label_in_a_large_unit_keeps_its_digits(
    run: tuple[Results, Path], tmp_path: Path
) -> None:
    """The same rows in 1e5 mmHg: every number of the label's unit has its three digits, not .000."""
    results, folder = run
    for file in folder.glob("*.csv"):
        head, *rows = file.read_text().splitlines()
        scaled = [
            f"{age},{float(pressure) / 1e5:.8f}"
            for age, pressure in (row.split(",") for row in rows)
        ]
        (tmp_path / "tables").mkdir(exist_ok=True)
        (tmp_path / "tables" / file.name).write_text("\n".join([head, *scaled]) + "\n")
    tables = {
        "data": {"folder": str(tmp_path / "tables"), "label": "pressure"},
        "methods": [{"name": "local"}, {"name": "fedavg"}],
        "run": {"rounds": 5, "seeds": [0, 1, 2]},
    }
    run_experiment(Experiment.from_tables(tables, "a test"), tmp_path / "run")
    small = Results.load(tmp_path / "run")
    for one, other in zip(
        grid(small, "rmse").cells, grid(results, "rmse").cells, strict=True
    ):
        for cell, same in zip(one, other, strict=True):
            shown, spread = (
                (float(part) for part in cell.text.split(" ± "))
                if "±" in cell.text
                else (float(cell.text), 0.0)
            )
            assert shown * 1e5 == pytest.approx(same.mean, abs=0.06)
            assert spread * 1e5 == pytest.approx(
                0.0 if "±" not in cell.text else same.std, abs=0.06
            )
    said, same = (
        words.tell(r).clients[0].numbers[0].removesuffix(" mmHg").split()
        for r in (small, results)
    )
    assert said[:2] == same[:2] == ["fedavg:", "RMSE"]
    for number, expected in zip(said[2::2], same[2::2], strict=True):
        assert float(number.replace("−", "-")) * 1e5 == pytest.approx(
            float(expected.replace("−", "-")), abs=0.06
        )
    assert said[2].lstrip("+−") != ".000"
