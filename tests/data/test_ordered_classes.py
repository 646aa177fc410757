"""Ordered classes on request: proportional odds as of statsmodels, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.cli.main import main

OPTIONS = ct.data.Tables(label="grade", ordered=True)


def clinic(seed, n=120, classes=4):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    noise = rng.logistic(size=n)
    grade = np.digitize(
        1.2 * x[:, 0] - 0.5 * x[:, 1] + noise, np.linspace(-2, 2, classes - 1)
    )
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "grade": grade})


def frames():
    return {name: clinic(i) for i, name in enumerate(("east", "north"))}


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(3, 8), st.floats(0.1, 60))
def test_outputs_are_logarithms_of_probabilities_in_order(seed, classes, scale):
    torch.manual_seed(seed)
    model = ct.Ordered(torch.nn.Linear(3, 1), classes)
    with torch.no_grad():
        model.cuts.bias.add_(torch.randn(classes - 1))
    inputs = (scale * torch.randn(20, 3)).requires_grad_()
    outputs = model(inputs)
    assert bool(outputs.isfinite().all())
    torch.testing.assert_close(outputs.exp().sum(1), torch.ones(20))
    # The higher the score, the less probable are the classes up to each.
    order = model.body(inputs).reshape(-1).argsort()
    cumulated = outputs.exp().cumsum(1)[order].detach()
    assert bool((cumulated.diff(dim=0) <= 1e-5).all())
    outputs.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def test_the_model_is_that_of_statsmodels():
    ordinal = pytest.importorskip("statsmodels.miscmodels.ordinal_model")
    table = clinic(3, 300)
    theirs = ordinal.OrderedModel(table["grade"], table[["a", "b"]], distr="logit")
    fitted = theirs.fit(method="bfgs", disp=False, gtol=1e-8)
    model = ct.Ordered(torch.nn.Linear(2, 1), 4).double()
    inputs = torch.tensor(table[["a", "b"]].to_numpy())
    labels = torch.tensor(table["grade"].to_numpy())
    optimiser = torch.optim.LBFGS(
        model.parameters(),
        max_iter=500,
        tolerance_grad=1e-9,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    optimiser.step(closure)
    slopes = model.body.weight.detach().numpy().reshape(-1)
    np.testing.assert_allclose(slopes, fitted.params[:2], atol=1e-4)
    loss = float(closure().detach())
    assert loss == pytest.approx(-fitted.llf / 300, abs=1e-7)


def test_methods_train_it_and_judge_it_as_classes():
    clients = ct.data.from_frames(frames(), tables=OPTIONS)
    assert clients.form.kind == "ordered"
    new = pd.DataFrame({"a": [-3.0, 0.0, 3.0], "b": [0.0, 0.0, 0.0]})
    for method in ("fedavg", "local", "ditto", "fedavgm"):
        run = ct.fit(method, clients, rounds=30)
        assert [name for name, _ in run.module.named_parameters()] == [
            "body.weight",
            "cuts.bias",
        ]
        client = "east" if "east" in run.models else "*"
        prediction = run.predict(new, client=client)
        torch.testing.assert_close(prediction.values.sum(1), torch.ones(3))
        called = prediction.called.tolist()
        assert called == sorted(called), method
        assert called[0] < called[-1], method
        row = next(row for row in run.summary if row["split"] == "test")
        assert 0 < row["class_error"] < 1.5
        assert row["auc"] > 0.6
    with pytest.raises(ct.InputError, match="or ordered"):
        ct.fit("partial", clients, rounds=2)


def test_weights_and_order_go_together():
    tables = frames()
    for i, table in enumerate(tables.values()):
        table["w"] = np.random.default_rng(i).uniform(0.3, 2, len(table))
    options = ct.data.Tables(label="grade", ordered=True, weights="w")
    clients = ct.data.from_frames(tables, tables=options)
    assert clients.form.kind == "ordered"
    assert clients.form.weighted
    run = ct.fit("fedavg", clients, rounds=3)
    assert all(np.isfinite(row["loss"]) for row in run.summary)


def test_an_order_that_nobody_knows_is_asked_and_the_cure_works():
    tables = frames()
    for table in tables.values():
        table["grade"] = table["grade"].map({0: "low", 1: "mid", 2: "high", 3: "most"})
    with pytest.raises(ct.InputError) as refused:
        ct.data.from_frames(tables, tables=OPTIONS)
    (cure,) = refused.value.cures
    merged = cure.merge({"label": "grade", "ordered": True})
    ct.data.from_frames(tables, tables=ct.data.Tables(**merged))
    in_order = {word: [word] for word in ("low", "mid", "high", "most")}
    options = ct.data.Tables(label="grade", ordered=True, classes=in_order)
    clients = ct.data.from_frames(tables, tables=options)
    assert clients.classes == ("low", "mid", "high", "most")


@pytest.mark.parametrize("options", [{"above": 1.0}, {"task": "regression"}])
def test_settings_that_contradict_it_are_refused(options):
    with pytest.raises(ct.InputError, match="drop"):
        ct.data.Tables(label="grade", ordered=True, **options)


def test_two_classes_have_no_order():
    tables = {
        name: table.assign(grade=(table["grade"] > 1).astype(int))
        for name, table in frames().items()
    }
    with pytest.raises(ct.InputError, match="three classes or more"):
        ct.data.from_frames(tables, tables=OPTIONS)


@pytest.mark.in_turn
def test_the_command_line_compares_predicts_and_finalises(tmp_path, capsys):
    folder, run, model = tmp_path / "t", tmp_path / "run", tmp_path / "model"
    folder.mkdir()
    for name, table in frames().items():
        table.to_csv(folder / f"{name}.csv", index=False)
    table = [str(folder), "--label", "grade", "--ordered"]
    options = ["--rounds", "2", "--seeds", "1", "--out", str(run)]
    assert main(["check", *table]) == 0
    # Methods that solve linear models give way to those that train.
    assert main(["compare", *table, *options]) == 0
    new = tmp_path / "new.csv"
    clinic(9).to_csv(new, index=False)
    assert (
        main(["predict", str(run), str(new), "--method", "fedavg", "--client", "east"])
        == 0
    )
    words = [
        "finalise",
        str(run),
        "--method",
        "fedavg",
        "--client",
        "east",
        "--out",
        str(model),
    ]
    assert main(words) == 0
    assert main(["predict", str(model), str(new)]) == 0
    capsys.readouterr()
