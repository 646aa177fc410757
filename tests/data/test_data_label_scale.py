"""The unit of a regression's label changes no result: stored labels are standardised, metrics and predictions are in the unit."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from csv_files import folder, rows

from coterie.base.errors import InputError
from coterie.base.rows import LabelScale, Part
from coterie.data import apply_recipe, from_tensors, load, standardise
from coterie.report.results import Results
from coterie.report.verdicts import verdict
from coterie.run.experiment import Experiment
from coterie.study.predict import predict
from coterie.study.sweep import run_experiment


def write(tmp_path, factor=1.0, n=36):
    """Three clients with a quantity as label: a and b alike, c the other way round."""
    rng = np.random.default_rng(3)
    files = {}
    for name, slope in {"a": 1.0, "b": 1.1, "c": -1.0}.items():
        x, z = rng.normal(size=(2, n)).round(3)
        y = (5 + 2 * slope * x - z + rng.normal(size=n) / 4).round(3)
        files[name] = rows(x=x, z=z, y=[repr(float(v * factor)) for v in y])
    tmp_path.mkdir(exist_ok=True)
    return folder(tmp_path, **files)


def test_labels_are_standardised_by_the_pooled_moments_of_training_rows(tmp_path):
    clients = load(write(tmp_path))
    scale = clients.label_scale
    raw = torch.cat(
        [
            apply_recipe(clients.recipe, tmp_path / f"{n}.csv").labels
            for n in clients.names
        ]
    )
    assert raw.std() == pytest.approx(1, abs=0.2)
    assert float(clients.train.labels.mean()) == pytest.approx(0, abs=1e-6)
    assert float(clients.train.labels.square().mean()) == pytest.approx(1, abs=1e-6)
    with (tmp_path / "a.csv").open() as file:
        want = [float(row["y"]) for row in csv.DictReader(file)]
    got = scale.undo(apply_recipe(clients.recipe, tmp_path / "a.csv").labels)
    torch.testing.assert_close(
        got, torch.tensor(want, dtype=torch.float64), atol=1e-6, rtol=1e-6
    )
    assert json.loads(json.dumps(clients.recipe)) == clients.recipe


def test_a_constant_label_to_regress_on_is_refused(tmp_path):
    text = rows(x=range(8), y=[7.1] * 8)
    with pytest.raises(
        InputError,
        match=r"label 'y' is 7.1 in all training rows of all clients; there is nothing",
    ):
        load(folder(tmp_path, a=text, b=text), task="regression")


FACTORS = (1.0, 1000.0, 0.01)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By factor of the label: the folder of tables, and the run directory of two methods on them."""
    made = {}
    for factor in FACTORS:
        base = tmp_path_factory.mktemp("unit")
        data = {
            "folder": str(write(base / "data", factor)),
            "label": "y",
            "task": "regression",
            "keep": ["x"],  # which goes the other way at c
        }
        tables = {"data": data, "methods": [{"name": "local"}, {"name": "meritfed"}]}
        tables |= {
            "run": {"rounds": 4, "seeds": 3, "evaluate": 2},
            "local": {"lr": 0.2, "steps": 4},
        }
        run_experiment(Experiment.from_tables(tables, "a test"), base / "run")
        made[factor] = base / "data", base / "run"
    return made


def weights(run):
    with (run / "weights.csv").open() as file:
        return {tuple(row[:-1]): float(row[-1]) for row in list(csv.reader(file))[1:]}


@pytest.mark.parametrize("factor", FACTORS[1:])
def test_the_unit_of_the_label_changes_no_weight_and_no_verdict(runs, factor):
    """Law: label x 1000 or / 100 changes MeritFed's weights by less than 1e-4, no loss, and no verdict."""
    one, other = runs[1.0][1], runs[factor][1]
    before, after = weights(one), weights(other)
    assert before.keys() == after.keys()
    assert len(before) > 20
    assert max(abs(after[k] - before[k]) for k in before) < 1e-4
    results, scaled = Results.load(one), Results.load(other)
    for client in results.clients:
        was, now = verdict(results, client), verdict(scaled, client)
        assert (was.kind, was.method, was.partners) == (
            now.kind,
            now.method,
            now.partners,
        )
    for was, now in zip(
        *(json.loads((f / "summary.json").read_text()) for f in (one, other)),
        strict=True,
    ):
        assert now["loss"] == pytest.approx(was["loss"], abs=1e-4)
        for metric in ("mae", "rmse"):
            assert now[metric] == pytest.approx(was[metric] * factor, rel=1e-3)


def test_metrics_and_predictions_are_in_the_unit_of_the_label(runs):
    data, run = runs[1000.0]
    made = predict(run, data / "a.csv", client="a", method="local", seed=1)
    assert 3000 < float(made.values.mean()) < 7000
    clients = load(data, label="y", task="regression", seed=1)
    at = clients.test_numbers["a"]
    error = made.values[at, 0] - made.labels[at]
    summary = json.loads((run / "summary.json").read_text())
    wanted = {"method": "local", "client": "a", "seed": 1, "split": "test"}
    (row,) = [r for r in summary if wanted.items() <= r.items()]
    assert row["mae"] == pytest.approx(float(error.abs().mean()), rel=1e-5)
    assert row["rmse"] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-5)
    assert row["loss"] == pytest.approx(
        (row["rmse"] / clients.label_scale.scale) ** 2, rel=1e-5
    )
    assert row["accuracy"] is None


def tensors(seed=0, factor=1.0, n=20):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, generator=draw) * torch.tensor(
        [1.0, 100.0]
    ), factor * torch.randn(n, generator=draw) + 7


def test_standardise_does_for_tensors_what_tables_do():
    clients = from_tensors(
        {"a": tensors(0), "b": tensors(1, 3.0)},
        server=tensors(2),
        unseen={"new": tensors(3)},
    )
    made = standardise(clients)
    pooled = made.pool_training_rows()
    torch.testing.assert_close(pooled.inputs.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        pooled.inputs.square().mean(0), torch.ones(2), atol=1e-5, rtol=0
    )
    assert float(pooled.labels.mean()) == pytest.approx(0, abs=1e-6)
    for before, after in ((clients, made), (clients.unseen, made.unseen)):
        for name in before.names:
            for part in ("train", "validation", "test"):
                want, got = before[name].part(part), after[name].part(part)
                torch.testing.assert_close(
                    made.label_scale.undo(got.labels).float(), want.labels
                )
    scales = made.recipe["inputs"]["inputs"]
    undone = made.server.inputs.double() * torch.tensor(scales["scale"]) + torch.tensor(
        scales["mean"]
    )
    torch.testing.assert_close(undone.float(), clients.server.inputs)
    assert made.unseen.label_scale == made.label_scale != LabelScale()
    assert clients.label_scale == LabelScale()
    with pytest.raises(InputError, match="standardised already"):
        standardise(made)


def test_standardise_leaves_classes_images_and_texts_alone():
    images = torch.zeros(6, 3, 3), torch.tensor([0, 1] * 3)
    made = standardise(from_tensors({"a": images}))
    assert torch.equal(made.train.inputs, from_tensors({"a": images}).train.inputs)
    assert made.train.labels.dtype == torch.int64
    texts = (
        {"ids": torch.arange(12).reshape(6, 2), "age": torch.arange(6.0)},
        torch.tensor([0, 1] * 3),
    )
    made = standardise(from_tensors({"a": texts}))
    assert made.train.inputs["ids"].dtype == torch.int64
    assert float(made.train.inputs["age"].mean()) == pytest.approx(0, abs=1e-6)
    assert made.label_scale == LabelScale()


def test_standardise_refuses_a_constant_label_and_scales_rows_that_are_drawn():
    with pytest.raises(InputError, match="have the label 2; there is nothing to learn"):
        standardise(from_tensors({"a": (torch.randn(9, 2), torch.full((9,), 2.0))}))
    drawn = from_tensors({"a": tensors()}).with_draw(
        lambda client, count, rng: Part(*tensors(5, n=count))
    )
    fresh = standardise(drawn).draw("a", 4, None)
    assert float(fresh.labels.abs().max()) < 5
