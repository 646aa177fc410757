"""The loss of a run in TOML and on the command line; what is predicted, by `--task` and `--classes`."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest
from safetensors.numpy import load_file

from coterie.data import load
from coterie.report.results import Results

QUICK = (
    "--rounds",
    "2",
    "--seeds",
    "1",
    "--no-report",
    "--methods",
    "fedavg,fedavg+bias",
)
HINGE = """
import torch

def hinge(outputs, labels):
    return torch.relu(1 - outputs.flatten() * (2 * labels - 1))

hinge.kind = "binary"
number = 3
"""


def rows(run):
    return json.loads((run / "summary.json").read_text())


@pytest.fixture(scope="module")
def hinged(driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hinged")
    (folder / "own.py").write_text(HINGE)
    ended = driver(
        folder,
        "compare",
        "heart-disease",
        *QUICK,
        "--loss",
        "own.py:hinge",
        "--out",
        "run",
    )
    assert ended.status == 0, ended.err
    return folder


def test_a_loss_from_a_file_trains_and_is_what_is_reported(hinged):
    run = hinged / "run"
    assert (
        tomllib.loads((run / "experiment.toml").read_text())["run"]["loss"]
        == "own.py:hinge"
    )
    tests = [row for row in rows(run) if row["split"] == "test"]
    outcomes = load_file(run / "outcomes" / "fedavg-0.safetensors")
    margins = outcomes["outputs"].ravel() * (2 * outcomes["labels"] - 1)
    assert outcomes["loss"] == pytest.approx((1 - margins).clip(0), abs=1e-6)
    total = sum(row["loss"] * row["n"] for row in tests if row["method"] == "fedavg")
    assert total / len(margins) == pytest.approx(outcomes["loss"].mean(), abs=1e-6)
    assert all(row["accuracy"] is not None for row in tests)


def test_no_page_calls_it_a_log_loss_or_compares_it_with_one(hinged):
    results = Results.load(hinged / "run")
    assert results.metric_name("loss") == "loss"
    assert np.isnan(
        load_file(hinged / "run" / "outcomes" / "fedavg-0.safetensors")["constant_loss"]
    ).all()
    assert all(
        np.isnan(results.comparisons.constant(client)).all()
        for client in results.clients
    )


def test_toml_repeats_it_and_a_changed_file_is_not_resumed(driver, hinged, tmp_path):
    (tmp_path / "own.py").write_text(HINGE)
    again = driver(
        tmp_path,
        "run",
        str(hinged / "run" / "experiment.toml"),
        "--no-report",
        "--out",
        "again",
    )
    assert again.status == 0, again.err
    assert rows(tmp_path / "again") == rows(hinged / "run")
    (tmp_path / "own.py").write_text(HINGE + "\nnumber = 4\n")
    other = driver(tmp_path, "run", "again/experiment.toml", "--no-report", "--resume")
    assert other.status == 2
    assert "own.py has changed since it was complete (number); go back, or" in other.err


def test_a_named_loss_is_the_one_that_auto_finds(driver, tmp_path):
    arguments = ("compare", "heart-disease", "--methods", "fedavg", *QUICK[:5])
    done = driver(tmp_path, *arguments, "--loss", "binary", "--out", "named")
    assert done.status == 0, done.err
    auto = driver(tmp_path, *arguments, "--out", "auto")
    assert auto.status == 0, auto.err
    assert rows(tmp_path / "named") == rows(tmp_path / "auto")


ERRORS = {
    "unknown": (
        ("--loss", "binry"),
        "run.loss must be auto | binary",
        "did you mean 'binary'?",
    ),
    "not a function": (
        ("--loss", "own.py:number"),
        "own.py:number must be a function (outputs, labels); got",
    ),
    "not there": (("--loss", "own.py:hingee"), "did you mean 'hinge'?"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_bad_loss_is_one_sentence(coterie, tmp_path, case):
    (tmp_path / "own.py").write_text(HINGE)
    arguments, *words = ERRORS[case]
    ended = coterie("compare", "heart-disease", *QUICK, *arguments)
    assert ended.status == 2
    assert ended.err.count("\n") == 1
    assert all(word in ended.err for word in words), ended.err


def test_what_is_predicted_is_said_on_the_command_line(driver, tmp_path):
    lines = [f"{20 + i * 7 % 31},{i * 5 % 3}" for i in range(40)]
    for name in "ab":
        path = tmp_path / "good" / f"{name}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["age,stage", *lines]) + "\n")
    names = ("--classes", "none,mild,severe")
    arguments = (
        "compare",
        "good",
        "--label",
        "stage",
        "--methods",
        "fedavg",
        *QUICK[:5],
    )
    ended = driver(
        tmp_path, *arguments, *names, "--task", "classification", "--out", "classes"
    )
    assert ended.status == 0, ended.err
    assert tomllib.loads((tmp_path / "classes" / "experiment.toml").read_text())["data"] == {
        "folder": "good", "label": "stage", "task": "classification", "classes": ["none", "mild", "severe"],
    }  # fmt: skip
    ended = driver(tmp_path, *arguments, "--task", "regression", "--out", "numbers")
    assert ended.status == 0, ended.err
    assert all(row["mae"] is not None for row in rows(tmp_path / "numbers"))
    assert load(str(tmp_path / "good"), label="stage", task="regression").classes == ()
    wrong = driver(tmp_path, *arguments, "--task", "regresion", "--out", "wrong")
    assert wrong.status == 2
    assert "did you mean 'regression'?" in wrong.err
