"""`coterie finalise`: a model on all rows, which answers alone, with a card whose numbers are those of the comparison."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import sys

import pytest
import torch
from safetensors import safe_open

from coterie.report.diagnosis import diagnose
from coterie.report.results import Results
from coterie.run.tables import read_experiment
from coterie.study.predict import load_answers

CLIENTS = {"a": 60, "b": 45}


def write(folder, label=lambda score: "yes" if score > 0 else "no"):
    folder.mkdir()
    draw = torch.Generator().manual_seed(1)
    for name, count in CLIENTS.items():
        lines = ["patient,age,sugar,y"]
        for i in range(count):
            age, sugar, noise = torch.randn(3, generator=draw).tolist()
            lines.append(
                f"{name}{i},{50 + 10 * age:.0f},{sugar:.3f},{label(age + sugar + 0.5 * noise)}"
            )
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def run(driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finalise")
    write(folder / "mine")
    flags = (
        "--label",
        "y",
        "--methods",
        "local,fedavg",
        "--rounds",
        "6",
        "--seeds",
        "3",
        "--no-report",
        "--out",
        "run",
    )
    ended = driver(folder, "compare", str(folder / "mine"), *flags)
    assert ended.status == 0, ended.err
    return folder


@pytest.fixture(autouse=True)
def no_onnx(request, monkeypatch):
    """The exporter takes many seconds; two tests of extras see it."""
    if "extras" not in request.keywords:
        monkeypatch.setitem(sys.modules, "onnx", None)


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_it_is_trained_on_all_rows_and_answers_alone(coterie, run, tmp_path):
    ended = coterie(
        "finalise",
        str(run / "run"),
        "--client",
        "a",
        "--method",
        "fedavg",
        "--out",
        "final",
    )
    assert ended.status == 0, ended.err
    assert 'no model.onnx: that needs pip install "coterie[onnx]"' in ended.err
    assert sorted(p.name for p in (tmp_path / "final").iterdir()) == [
        "card.md",
        "model.safetensors",
        "preprocess.json",
    ]
    card = (tmp_path / "final" / "card.md").read_text()
    assert all(f"| {name} | {rows} |" in card for name, rows in CLIENTS.items())
    with safe_open(tmp_path / "final" / "model.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["coterie"])
    assert (about["method"], about["client"], about["threshold"]) == (
        "fedavg",
        "a",
        0.5,
    )
    ended = coterie("predict", "final", str(run / "mine" / "a.csv"))
    assert ended.status == 0, ended.err
    assert "model: fedavg for a, yes from 0.5 on" in ended.err
    rows = table(ended.out)
    assert list(rows[0]) == ["patient", "age", "sugar", "y", "prediction", "no", "yes"]
    assert len(rows) == CLIENTS["a"]
    right = [row["prediction"] == row["y"] for row in rows]
    assert sum(right) / len(right) > 0.75
    assert f"accuracy {sum(right) / len(right):.3f} on 60 rows" in ended.err


def test_what_has_changed_since_the_run_is_refused_or_accepted(
    coterie, run, tmp_path, monkeypatch
):
    from coterie.run import provenance

    installed = provenance.installed_version
    monkeypatch.setattr(
        provenance,
        "installed_version",
        lambda name: "0.1" if name == "numpy" else installed(name),
    )
    shutil.copytree(run / "run", "copied")  # what is accepted stays so
    command = ("finalise", "copied", "--client", "a", "--method", "fedavg")
    refused = coterie(*command, "--out", "final")
    assert refused.status == 2
    assert "numpy has changed since the run" in refused.err
    assert not (tmp_path / "final").exists()
    accepted = coterie(*command, "--out", "final", "--accept-change", "numpy")
    assert accepted.status == 0, accepted.err


def test_the_fit_is_that_of_the_run_on_rows_of_all_parts(coterie, run, tmp_path):
    import coterie as ct

    assert (
        coterie(
            "finalise",
            str(run / "run"),
            "--client",
            "b",
            "--method",
            "local",
            "--out",
            "final",
        ).status
        == 0
    )
    experiment = read_experiment(run / "run" / "experiment.toml")
    clients = ct.data.load(
        str(run / "mine"),
        label="y",
        seed=0,
        split={"parts": {"train": 0.8, "validation": 0.2}},
    )
    fitted = ct.fit(
        experiment.build_method(experiment.methods[0]),
        clients,
        experiment.build_model(),
        rounds=6,
    )
    answers, _, _ = load_answers(tmp_path / "final")
    for name, tensor in fitted.state_dict("b").items():
        assert torch.equal(answers.model.state_dict()[name], tensor)
    card = (tmp_path / "final" / "card.md").read_text()
    training = card.partition("## Training")[2].partition("## What")[0]
    assert "on all rows of b:" in training
    assert [line for line in training.splitlines() if line.startswith("| ")][2:] == [
        f"| b | {CLIENTS['b']} |"
    ]


def test_the_card_has_the_numbers_of_the_comparison_and_says_so(coterie, run, tmp_path):
    assert (
        coterie(
            "finalise",
            str(run / "run"),
            "--client",
            "a",
            "--method",
            "fedavg",
            "--out",
            "final",
        ).status
        == 0
    )
    card = (tmp_path / "final" / "card.md").read_text()
    results = Results.load(run / "run")
    assert "# mine: a model for a" in card
    assert "These numbers come from the comparison, not from this model" in card
    assert "A row is called positive from a predicted risk of .500 on." in card
    assert "| a | 60 |" in card
    for metric in ("auc", "loss", "accuracy"):
        score = results.comparisons.score("fedavg", "a", metric)
        assert score is not None
        assert score.mean == pytest.approx(results.mean("fedavg", "a", metric))
        assert score.low < score.mean < score.high
        share = results.mean("fedavg", "a", "accuracy")
        if (
            metric == "accuracy"
        ):  # no narrower than if the patients of one test set were all there is
            assert score.half_width > 1.9 * math.sqrt(
                share * (1 - share) / CLIENTS["a"]
            )
    for section in ("Intended use", "Training", "What to expect", "Privacy", "Use"):
        assert f"## {section}\n" in card
    assert (
        "Too few rows to tell whether it is better than a constant prediction at a and b: that takes 30 test rows."
        in card
    )


def test_the_card_says_how_it_serves_as_a_test_at_its_threshold(coterie, run, tmp_path):
    flags = ("--client", "a", "--method", "fedavg", "--threshold", ".3")
    assert coterie("finalise", str(run / "run"), *flags, "--out", "final").status == 0
    card = (tmp_path / "final" / "card.md").read_text()
    assert "| accuracy at .500 |" in card  # as the comparison has it
    results = Results.load(run / "run")
    for at, name in enumerate(("sensitivity", "specificity", "PPV", "NPV")):
        by_seed = [
            diagnose(r.risks, r.labels, 0.3)[at]
            for r in results.comparisons.outcomes.rows("fedavg", "a").values()
        ]
        value, interval = re.search(
            rf"\| {name} at .300 \| (\S+) \| (.+) \|", card
        ).groups()
        assert float(value) == pytest.approx(sum(by_seed) / len(by_seed), abs=6e-4)
        if name in (
            "specificity",
            "PPV",
        ):  # all that are ill are called so, in every seed
            low, high = map(float, interval.split(" to "))
            assert 0 <= low < float(value) < high <= 1


def test_thresholds_of_predict(coterie, run):
    flags = (
        "predict",
        str(run / "run"),
        str(run / "mine" / "b.csv"),
        "--client",
        "b",
        "--method",
        "fedavg",
    )
    shares = {}
    for threshold in (".1", ".5", ".9"):
        ended = coterie(*flags, "--threshold", threshold)
        assert ended.status == 0, ended.err
        rows = table(ended.out)
        shares[threshold] = sum(row["prediction"] == "yes" for row in rows)
        assert all(
            (float(row["yes"]) >= float(threshold)) == (row["prediction"] == "yes")
            for row in rows
        )
    assert shares[".1"] > shares[".5"] > shares[".9"]
    assert coterie(*flags).out == coterie(*flags, "--threshold", "0.5").out
    ended = coterie(*flags, "--threshold", "validation")
    assert ended.status == 2
    assert "fedavg kept no validation rows of b to choose a threshold on" in ended.err


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("the run has no client 'c'; allowed: a, b", ("--client", "c")),
        (
            "the run has no method 'fedavgg'; did you mean 'fedavg'?",
            ("--client", "a", "--method", "fedavgg"),
        ),
        (
            "holds something already; choose another --out",
            ("--client", "a", "--out", "mine"),
        ),
    ],
)
def test_what_cannot_be_finalised_is_one_sentence(coterie, run, tmp_path, words, flags):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").write_text("")
    ended = coterie("finalise", str(run / "run"), *flags)
    assert ended.status == 2
    assert words in ended.err
    assert not (tmp_path / "final").exists()


def test_regression_is_in_the_unit_of_the_label(coterie, tmp_path):
    write(tmp_path / "mine", lambda score: f"{100 + 10 * score:.2f}")
    flags = (
        "--label",
        "y",
        "--methods",
        "local,fedavg",
        "--rounds",
        "30",
        "--seeds",
        "3",
        "--no-report",
        "--out",
        "run",
    )
    assert coterie("compare", "mine", "--set", "data.unit=mg/dl", *flags).status == 0
    ended = coterie(
        "finalise", "run", "--client", "a", "--method", "fedavg", "--out", "final"
    )
    assert ended.status == 0, ended.err
    ended = coterie("predict", "final", "mine/a.csv")
    rows = table(ended.out)
    assert list(rows[0])[-2:] == ["y", "prediction"]
    gaps = [float(row["prediction"]) - float(row["y"]) for row in rows]
    errors = (
        sum(map(abs, gaps)) / len(gaps),
        math.sqrt(sum(g * g for g in gaps) / len(gaps)),
    )
    assert errors[1] < 12
    said = re.search(
        r"MAE (\S+), RMSE (\S+) in the unit of the label on 60 rows", ended.err
    ).groups()
    assert [float(value) for value in said] == pytest.approx(errors, rel=1e-3)
    card = (tmp_path / "final" / "card.md").read_text()
    assert "| RMSE of y in mg/dl |" in card
    assert "called positive" not in card
    flags = ("--client", "a", "--method", "fedavg", "--threshold", ".3")
    for words in (
        ("predict", "final", "mine/a.csv", "--threshold", ".3"),
        ("predict", "run", "mine/a.csv", *flags),
        ("finalise", "run", *flags, "--out", "other"),
    ):
        ended = coterie(*words)
        assert ended.status == 2, words
        assert "a threshold needs two classes; leave it out" in ended.err


@pytest.mark.in_turn
def test_a_personalised_method_keeps_validation_rows_to_tune_on(coterie, tmp_path):
    write(tmp_path / "mine")
    flags = (
        "--label",
        "y",
        "--methods",
        "local,fedavg,fedavg+bias",
        "--rounds",
        "3",
        "--seeds",
        "1",
    )
    assert coterie("compare", "mine", *flags, "--no-report", "--out", "run").status == 0
    ended = coterie(
        "finalise", "run", "--client", "a", "--method", "fedavg+bias", "--out", "final"
    )
    assert ended.status == 0, ended.err
    assert "| a | 48 |" in (tmp_path / "final" / "card.md").read_text()
    assert (
        "model: fedavg+bias for a, yes from 0.5 on"
        in coterie("predict", "final", "mine/a.csv").err
    )


def test_a_model_of_ones_own_is_imported_only_if_its_file_is_trusted(coterie, tmp_path):
    write(tmp_path / "mine")
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef net(shape, outputs):\n    return torch.nn.Linear(shape[0], outputs)\n"
    )
    flags = (
        "--label",
        "y",
        "--methods",
        "local,fedavg",
        "--model",
        "net.py:net",
        "--rounds",
        "2",
        "--seeds",
        "1",
    )
    assert coterie("compare", "mine", *flags, "--no-report", "--out", "run").status == 0
    assert (
        coterie(
            "finalise", "run", "--client", "a", "--method", "fedavg", "--out", "final"
        ).status
        == 0
    )
    ended = coterie("predict", "final", "mine/a.csv")
    assert ended.status == 2
    assert "look at it, then say --trust net.py" in ended.err
    assert coterie("predict", "final", "mine/a.csv", "--trust", "net.py").status == 0


@pytest.mark.extras
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_onnx_answers_as_predict_does(coterie, run, tmp_path, kind):
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    from coterie.data import apply_recipe

    source = run
    if kind == "regression":
        source = tmp_path
        write(source / "mine", lambda score: f"{100 + 10 * score:.2f}")
        flags = (
            "--label",
            "y",
            "--methods",
            "local,fedavg",
            "--rounds",
            "2",
            "--seeds",
            "1",
            "--no-report",
        )
        assert coterie("compare", "mine", *flags, "--out", "run").status == 0
    ended = coterie(
        "finalise",
        str(source / "run"),
        "--client",
        "a",
        "--method",
        "fedavg",
        "--out",
        "final",
    )
    assert ended.err == ""
    answers, recipe, _ = load_answers(tmp_path / "final")
    inputs = apply_recipe(recipe, source / "mine" / "b.csv").inputs
    (given,) = ReferenceEvaluator(str(tmp_path / "final" / "model.onnx")).run(
        None, {"features": inputs.numpy()}
    )
    assert torch.from_numpy(given).numpy() == pytest.approx(
        answers(inputs).detach().numpy(), rel=1e-6, abs=1e-6
    )


@pytest.mark.extras
def test_a_model_whose_code_fixes_the_number_of_rows_has_no_onnx(coterie, tmp_path):
    pytest.importorskip("onnxscript")
    write(tmp_path / "mine")
    (tmp_path / "net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x).reshape(len(x), -1)\n\n\n"
        "def net(shape, outputs):\n    return Net(shape[0], outputs)\n"
    )
    flags = (
        "--label",
        "y",
        "--methods",
        "local,fedavg",
        "--model",
        "net.py:net",
        "--rounds",
        "1",
        "--seeds",
        "1",
    )
    assert coterie("compare", "mine", *flags, "--no-report", "--out", "run").status == 0
    ended = coterie(
        "finalise", "run", "--client", "a", "--method", "fedavg", "--out", "final"
    )
    assert ended.status == 0
    assert "no model.onnx: this model cannot be exported" in ended.err
    assert not (tmp_path / "final" / "model.onnx").exists()


def test_the_threshold_of_an_experiment_is_that_of_its_report_and_changes_no_number(
    coterie, tmp_path
):
    write(tmp_path / "mine")
    flags = (
        "--label",
        "y",
        "--methods",
        "local,fedavg",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--no-report",
        "--out",
        "run",
    )
    assert coterie("compare", "mine", *flags, "--threshold", ".3").status == 0
    assert Results.load(tmp_path / "run").threshold == 0.3
    before = (tmp_path / "run" / "summary.json").read_bytes()
    trained = [
        path.stat().st_mtime_ns
        for path in sorted((tmp_path / "run" / "models").iterdir())
    ]
    again = coterie(
        "run",
        "run/experiment.toml",
        "--resume",
        "--set",
        "report.threshold=validation",
        "--no-report",
    )
    assert again.status == 0, again.err
    assert [
        path.stat().st_mtime_ns
        for path in sorted((tmp_path / "run" / "models").iterdir())
    ] == trained
    assert Results.load(tmp_path / "run").threshold == "validation"
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    ended = coterie("compare", "mine", *flags, "--threshold", "2")
    assert ended.status == 2
    assert (
        'threshold must be a number between 0 and 1, "prevalence" or "validation"; got 2'
        in ended.err
    )


def test_thresholds_come_from_validation_rows_that_nobody_trained_on(coterie, tmp_path):
    write(tmp_path / "mine")
    flags = (
        "--label",
        "y",
        "--methods",
        "local",
        "--rounds",
        "2",
        "--seeds",
        "3",
        "--no-report",
        "--out",
        "run",
    )
    assert (
        coterie(
            "compare",
            "mine",
            *flags,
            "--set",
            "run.merge_validation=false",
            "--threshold",
            "validation",
        ).status
        == 0
    )
    ended = coterie("finalise", "run", "--client", "a", "--out", "final")
    assert ended.status == 0, ended.err
    with safe_open(tmp_path / "final" / "model.safetensors", framework="pt") as file:
        threshold = json.loads(file.metadata()["coterie"])["threshold"]
    assert 0 < threshold < 1
    assert threshold != 0.5
    assert f"yes from {threshold:g} on" in coterie("predict", "final", "mine/a.csv").err


@pytest.mark.in_turn(but="split_time")
@pytest.mark.parametrize("key", ["split_column", "split_time"])
def test_the_column_that_said_which_rows_are_tested_is_no_input(coterie, tmp_path, key):
    (tmp_path / "mine").mkdir()
    draw = torch.Generator().manual_seed(1)
    for name in "ab":
        x = torch.randn(60, generator=draw)
        y = (x + torch.randn(60, generator=draw) > 0).int().tolist()
        rows = zip(
            x.tolist(), range(60), ["train", "train", "test"] * 20, y, strict=True
        )
        lines = [f"{a:.3f},{when},{part},{c}" for a, when, part, c in rows]
        (tmp_path / "mine" / f"{name}.csv").write_text(
            "\n".join(["x,day,part,y", *lines])
        )
    column, other = ("part", "day") if key == "split_column" else ("day", "part")
    settings = ("--set", f"data.{key}={column}", "--set", f'data.drop=["{other}"]')
    compared = coterie(
        "compare", "mine", "--label", "y", *settings, "--methods", "local,fedavg",
        "--rounds", "2", "--seeds", "3", "--no-report", "--out", "run",
    )  # fmt: skip
    assert compared.status == 0, compared.err
    done = coterie(
        "finalise", "run", "--method", "fedavg", "--client", "a", "--out", "f"
    )
    assert done.status == 0, done.err
    recipe = json.loads((tmp_path / "f" / "preprocess.json").read_text())
    assert recipe["features"] == ["x"]
