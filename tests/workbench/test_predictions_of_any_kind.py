"""What a model answers for new rows is what its loss taught it to say: of two classes, of many, of several at once, and numbers."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import coterie as ct
from coterie.data import apply_recipe
from coterie.report.diagnosis import operating_point
from coterie.report.results import Results
from coterie.run.model_files import about_models, open_model_file, save_model
from coterie.study.finalise import finalise
from coterie.study.predict import MODEL, predict

LABELS = {"two": ("no", "yes"), "three": ("a", "b", "c"), "number": ()}


def distance(outputs, labels):
    return (outputs[:, 0] - labels).square()


distance.kind = "own"

KINDS = {
    "binary": (
        "two",
        "auto",
        lambda raw: torch.stack(
            [1 - torch.sigmoid(raw[:, 0]), torch.sigmoid(raw[:, 0])], 1
        ),
    ),
    "classes": ("three", "auto", lambda raw: torch.softmax(raw, 1)),
    "regression": ("number", "auto", lambda raw: raw),
    "squares of classes": ("two", "squared", lambda raw: raw),
    "own": ("two", distance, lambda raw: raw),
}
NUMBERS = ("regression", "squares of classes", "own")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("towns"), np.random.default_rng(0)
    for name in ("north", "south"):
        frame = pd.DataFrame(draw.normal(size=(30, 2)), columns=["age", "sugar"])
        for label, classes in LABELS.items():
            frame[label] = (
                [classes[i % len(classes)] for i in range(30)]
                if classes
                else 300 + 20 * frame["age"]
            )
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    """By kind: the run directory of a comparison, and the same run from Python."""
    made = {}
    for kind, (label, loss, _) in KINDS.items():
        about = {
            "label": label,
            "drop": [other for other in LABELS if other != label],
            "keep": ["age"],
        }
        settings, out = (
            ct.RunSettings(loss=loss),
            tmp_path_factory.mktemp("runs") / "run",
        )
        ct.compare(
            ["fedavg"],
            {"folder": str(folder), **about},
            rounds=1,
            seeds=1,
            settings=settings,
            folder=out,
        )
        made[kind] = (
            out,
            ct.fit(
                "fedavg",
                ct.data.load(str(folder), **about),
                rounds=1,
                settings=settings,
            ),
        )
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_and_the_file_of_its_model_answer_what_the_loss_taught(
    runs, folder, kind
):
    (out, run), (label, _, read), file = runs[kind], KINDS[kind], folder / "north.csv"
    module = ct.models.Logistic().build((2,), len(run.x) // 3)
    module.load_state_dict(run.state_dict())
    raw = module(apply_recipe(dict(run.meaning.recipe), file).inputs).detach()
    answered = run.predict(file, "north")
    torch.testing.assert_close(
        answered.values, run.meaning.scale.undo(read(raw)), rtol=0, atol=1e-6
    )
    assert answered.classes == (() if kind in NUMBERS else LABELS[label])
    saved = predict(out, file, client="north", method="fedavg")
    assert torch.equal(saved.values, answered.values)
    assert (saved.kind, saved.classes) == (answered.kind, answered.classes)
    truth = pd.read_csv(file)[label]
    for prediction in (answered, saved):
        rows = prediction.table().splitlines()
        assert rows[0].endswith(",".join(["prediction", *answered.classes]))
        if kind in NUMBERS:
            assert prediction.accuracy() is None
            with pytest.raises(ct.InputError, match="numbers, not classes"):
                _ = prediction.called
        else:
            right = [
                LABELS[label][number] for number in prediction.called.tolist()
            ] == truth
            assert prediction.accuracy() == pytest.approx(right.mean())
        if kind == "regression":
            np.testing.assert_allclose(prediction.labels, truth)


@pytest.fixture(scope="module")
def final(runs, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "onnx", None)  # the exporter takes many seconds
        out = tmp_path_factory.mktemp("final") / "final"
        finalise(runs["squares of classes"][0], out, client="north", method="fedavg")
    return out


def test_a_model_that_regresses_on_classes_is_reported_as_such(runs, final, folder):
    out, run = runs["squares of classes"]
    assert predict(final, folder / "north.csv").classes == ()
    results = Results.load(out)
    assert operating_point(results, "fedavg", "north") is None
    rows = results.comparisons.outcomes.rows("fedavg", "north")[0]
    assert not rows.classes
    assert rows.squares.mean() == pytest.approx(rows.loss.mean())
    assert {row["majority"] for row in run.summary} == {None}


def test_a_file_that_does_not_say_what_outputs_mean_is_read_by_its_classes(
    final, folder, tmp_path
):
    shutil.copytree(final, tmp_path / "old")
    path = tmp_path / "old" / MODEL
    tensors, about = open_model_file(path)
    assert (about.pop("kind"), about.pop("last")) == ("regression", False)
    save_file(tensors, path, metadata={"coterie": json.dumps(about)})
    raw = predict(final, folder / "north.csv").values[:, 0]
    old = predict(tmp_path / "old", folder / "north.csv")
    assert old.classes == ("no", "yes")
    torch.testing.assert_close(old.values[:, 1], torch.sigmoid(raw))
    save_file(
        tensors, path, metadata={"coterie": json.dumps({**about, "kind": "clases"})}
    )
    with pytest.raises(ct.InputError, match="did you mean 'classes'"):
        predict(tmp_path / "old", folder / "north.csv")


def test_two_logits_of_two_classes_are_read_as_two(folder, tmp_path):
    about = {"label": "two", "drop": ["three", "number"]}
    given = (
        "fedavg",
        ct.data.load(str(folder), **about),
        lambda shape, outputs: nn.Linear(*shape, 2),
    )
    run = ct.fit(*given, rounds=1)
    assert run.meaning.kind == "classes"
    path = tmp_path / "model.safetensors"
    save_model(path, run, "*", about_models("fedavg", run, given[1]))
    assert open_model_file(path)[1]["kind"] == "classes"


def test_several_labels_of_a_row_are_predicted_each():
    draw = torch.Generator().manual_seed(0)
    parts = [
        (
            torch.randn(20, 3, generator=draw),
            torch.randint(0, 2, (20, 2), generator=draw),
        )
        for _ in range(2)
    ]
    prediction = ct.fit("fedavg", ct.data.from_tensors(parts), rounds=1).predict(
        parts[0][0]
    )
    assert prediction.kind == "multilabel"
    assert torch.equal(prediction.called, prediction.values > 0.5)
    both = prediction.called.all(dim=1).tolist().index(True)
    assert prediction.table().splitlines()[both + 1].startswith(f"{both + 1},0; 1,")
    right = (prediction.called == parts[0][1]).all(dim=1).double().mean()
    assert prediction._replace(labels=parts[0][1]).accuracy() == pytest.approx(
        float(right)
    )


def test_an_own_loss_may_predict_several_numbers(folder):
    def spread(outputs, labels):
        return (outputs[:, 0] - labels).square() / (1 + outputs[:, 1].square())

    spread.kind = "own"
    data = ct.data.load(str(folder), label="number", drop=["two", "three"])
    run = ct.fit(
        "fedavg",
        data,
        lambda shape, _: nn.Linear(*shape, 2),
        1,
        settings=ct.RunSettings(loss=spread),
    )
    prediction = run.predict(folder / "north.csv")
    assert prediction.values.shape == (30, 2)
    lines = prediction.table().splitlines()
    assert lines[0].endswith(",prediction 1,prediction 2")
    assert [float(cell) for cell in lines[1].split(",")[-2:]] == pytest.approx(
        prediction.values[0].tolist(), rel=1e-5
    )
