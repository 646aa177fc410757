"""A run at hand in Python: what it prints, and what its history answers."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.base.errors import InputError
from coterie.data import apply_recipe
from coterie.data.sets import heart_disease
from coterie.run.history import History, Row


def test_a_run_and_its_history_print_one_line():
    draw = torch.Generator().manual_seed(0)
    parts = [
        (torch.randn(24, 3, generator=draw), torch.randint(0, 2, (24,), generator=draw))
        for _ in range(3)
    ]
    run = ct.fit(ct.FedAvg(), ct.data.from_tensors(parts), ct.models.Logistic(), 4)
    assert repr(run) == "<run of FedAvg: 4 rounds, seed 0, one model for all clients>"
    assert repr(run.history) == f"<history of {len(run.history)} numbers in 5 rounds>"
    own = ct.fit(
        ct.Local(), ct.data.from_tensors(parts), ct.models.Logistic(), 1, seed=2
    )
    assert repr(own) == "<run of Local: 1 round, seed 2, models of 3 clients>"


def test_a_history_does_not_mix_splits():
    history = History(
        [
            Row(1, "a", "test", "auc", 0.5),
            Row(1, "a", "validation", "auc", 0.9),
            Row(1, "*", "", "pool", 3),
        ]
    )
    assert history.select("auc", "a", "validation") == [(1, 0.9)]
    assert history.select("pool") == [(1, 3)]
    with pytest.raises(
        ct.InputError,
        match=r"auc of 'a' was measured on test and validation; name one: split=\.\.\.",
    ):
        history.select("auc", "a")


@pytest.fixture(scope="module")
def hearts():
    return ct.fit(ct.MeritFed(targets="all"), "heart-disease", rounds=2)


def test_a_run_is_shown_in_a_notebook(hearts):
    shown = hearts._repr_html_()
    assert shown.startswith(
        "<p>run of MeritFed: 2 rounds, seed 0, models of 4 clients; test rows</p><table><tr>"
    )
    row = next(
        r for r in hearts.summary if (r["client"], r["split"]) == ("hungary", "test")
    )
    assert f"<td>hungary</td><td>{row['n']}</td><td>{row['accuracy']:.3f}</td>" in shown


def test_a_run_is_a_data_frame(hearts):
    frame = hearts.to_pandas()
    assert list(frame) == ["round", "client", "split", "metric", "value"]
    losses = frame.query("client == 'hungary' and split == 'test' and metric == 'loss'")
    assert list(
        zip(losses["round"], losses["value"], strict=True)
    ) == hearts.history.select("loss", "hungary", "test")
    summary = hearts.to_pandas("summary")
    assert summary["loss"].to_list() == [row["loss"] for row in hearts.summary]
    assert list(hearts.to_pandas("weights").columns) == [
        "round",
        "target",
        "client",
        "weight",
    ]
    with pytest.raises(ct.InputError, match="did you mean 'history'"):
        hearts.to_pandas("histroy")


def test_a_run_is_drawn(hearts):
    figure = hearts.plot("auc")
    assert [axis.get_title() for axis in figure.axes] == [
        "cleveland",
        "hungary",
        "long-beach",
        "switzerland",
    ]
    drawn = list(
        zip(
            *(line.tolist() for line in figure.axes[1].lines[0].get_data()), strict=True
        )
    )
    assert drawn == hearts.history.select("auc", "hungary", "test")
    with pytest.raises(ct.InputError, match=r"no auk \(test\) to draw"):
        hearts.plot("auk")


def test_a_run_predicts_rows_of_a_table(hearts):
    file = heart_disease.FOLDER / "hungary.csv"
    frame = pd.read_csv(file, dtype=str)
    prediction = hearts.predict(frame, "hungary")
    assert prediction.classes == ("no disease", "disease")
    assert prediction.values.shape == (len(frame), 2)
    clients = ct.data.load("heart-disease")
    inputs = apply_recipe(clients.recipe, file).inputs
    module = ct.models.Logistic().build((15,), 1)
    module.load_state_dict(hearts.state_dict("hungary"))
    assert torch.equal(
        prediction.values[:, 1], torch.sigmoid(module(inputs).detach()[:, 0])
    )
    assert torch.equal(hearts.predict(inputs, "hungary").values, prediction.values)
    assert not torch.equal(
        hearts.predict(frame, "switzerland").values, prediction.values
    )
    with pytest.raises(ct.InputError, match="did you mean 'hungary'"):
        hearts.predict(frame, "hungry")
    with pytest.raises(
        ct.InputError, match="the model cannot read these rows: mat1 and mat2"
    ):
        hearts.predict(inputs[:, :3], "hungary")


@pytest.mark.parametrize("rows", ["x", 3, None, {"a": "x"}, ["x"], {}])
def test_rows_that_are_none_are_one_sentence(hearts, rows):
    draw = torch.Generator().manual_seed(0)
    parts = [
        (torch.randn(9, 3, generator=draw), torch.randint(0, 2, (9,), generator=draw))
        for _ in range(2)
    ]
    plain = ct.fit("fedavg", ct.data.from_tensors(parts), rounds=0)
    for run in (plain, hearts):
        with pytest.raises(ct.InputError) as caught:
            run.predict(rows, "hungary")
        assert "\n" not in str(caught.value)


def test_a_run_predicts_numbers_in_their_unit_and_classes_without_names():
    draw = torch.Generator().manual_seed(0)
    frames = {
        name: pd.DataFrame(
            {
                "a": torch.randn(40, generator=draw).numpy(),
                "y": torch.randn(40, generator=draw).numpy(),
            }
        )
        for name in ("one", "two")
    }
    for frame in frames.values():
        frame["y"] = 500 + 100 * frame["a"] + frame["y"]
    run = ct.fit(
        "fedavg",
        ct.data.from_frames(
            frames, label="y", tables=ct.data.Tables(task="regression")
        ),
        rounds=20,
    )
    prediction = run.predict(frames["one"])
    assert prediction.values.dtype == torch.float64
    assert (
        float(
            (prediction.values[:, 0] - torch.tensor(frames["one"]["y"].to_numpy()))
            .abs()
            .mean()
        )
        < 30
    )
    parts = [
        (torch.randn(24, 3, generator=draw), torch.randint(0, 3, (24,), generator=draw))
        for _ in range(2)
    ]
    classes = ct.fit("fedavg", ct.data.from_tensors(parts), rounds=1).predict(
        parts[0][0].numpy()
    )
    assert (classes.classes, tuple(classes.values.shape)) == (("0", "1", "2"), (24, 3))


def test_a_run_is_saved_and_loaded(hearts, tmp_path):
    hearts.save(tmp_path / "run.safetensors")
    module = ct.models.Logistic().build((15,), 1)
    loaded = ct.Run.load(tmp_path / "run.safetensors", module)
    assert repr(loaded) == repr(hearts)
    for name in (
        "history",
        "weights",
        "weight_rows",
        "summary",
        "seconds",
        "failures",
        "meaning",
    ):
        assert getattr(loaded, name) == getattr(hearts, name), name
    assert loaded.history.select("auc", "hungary", "test") == hearts.history.select(
        "auc", "hungary", "test"
    )
    rows = torch.randn(5, 15)
    assert torch.equal(
        loaded.predict(rows, "hungary").values, hearts.predict(rows, "hungary").values
    )
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (
        tmp_path / "run.safetensors"
    ).read_bytes()


def test_what_is_no_saved_run_is_refused(hearts, tmp_path):
    path = tmp_path / "run.safetensors"
    hearts.save(path)
    with pytest.raises(
        ct.InputError,
        match="has models of 16 numbers, and this module has 4; give the one of the run",
    ):
        ct.Run.load(path, torch.nn.Linear(3, 1))
    whole = path.read_bytes()
    for broken in (
        whole[:100],
        b"nothing",
        whole.replace(b"weight_rows", b"weight_cows"),
    ):
        path.write_bytes(broken)
        with pytest.raises(ct.InputError, match="it is not a saved run"):
            ct.Run.load(path, torch.nn.Linear(15, 1))
    with pytest.raises(ct.InputError, match="it is not a saved run"):
        ct.Run.load(tmp_path / "none", torch.nn.Linear(15, 1))


def test_a_run_of_arrays_asks_for_an_array_in_place_of_a_file(tmp_path):
    """PyTorch's own sentence stood there: new(): invalid data type 'str'."""
    draw = torch.Generator().manual_seed(0)
    parts = [
        (torch.randn(24, 3, generator=draw), torch.randint(0, 2, (24,), generator=draw))
        for _ in range(2)
    ]
    run = ct.fit(ct.FedAvg(), ct.data.from_tensors(parts), ct.models.Logistic(), 1)
    for file in ("new.npz", tmp_path / "new.npz"):
        with pytest.raises(InputError, match="give an array, not the name of a file"):
            run.predict(file)
