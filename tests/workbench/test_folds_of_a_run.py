"""A run with folds: what is trained, which files there are, and what a resumed run may change."""

import json
import math
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from coterie.base.errors import InputError
from coterie.report.card import card
from coterie.report.results import Results
from coterie.run.experiment import Experiment
from coterie.study.predict import load_answers, predict
from coterie.study.sweep import run_experiment


def experiment(**changes: object) -> Experiment:
    tables = {
        "data": {"name": "heart-disease"},
        "split": {"folds": 3},
        "local": {"steps": 2},
        "methods": [{"name": "local"}, {"name": "fedavg"}],
        "run": {"rounds": 1, "seeds": [0]},
    }
    return Experiment.from_tables({**tables, **changes}, "a test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folds") / "run"
    run_experiment(experiment(), folder)
    return folder


def test_every_row_has_one_outcome_a_repeat(folder: Path) -> None:
    results = Results.load(folder)
    assert results.seeds == (0,)
    for client, rows in (
        ("cleveland", 303),
        ("hungary", 294),
        ("long-beach", 200),
        ("switzerland", 123),
    ):
        outcome = results.comparisons.outcomes.rows("fedavg", client)[0]
        assert sorted(outcome.numbers) == list(range(rows))
        assert results.size(client) == rows
        mean = results.mean("fedavg", client, "loss")
        assert mean == pytest.approx(float(outcome.loss.mean()), rel=1e-5)


@pytest.mark.in_turn
def test_files_are_named_by_seed_and_fold(folder: Path) -> None:
    models = {path.stem for path in (folder / "models").glob("fedavg*")}
    assert models == {"fedavg-0-k0", "fedavg-0-k1", "fedavg-0-k2", "fedavg-0-kall"}
    folds = {row["fold"] for row in json.loads((folder / "summary.json").read_text())}
    assert folds == {"0", "1", "2", "all"}
    assert list(json.loads((folder / "preprocess.json").read_text())) == ["0"]


def test_the_model_of_all_rows_answers(folder: Path) -> None:
    _, _, about = load_answers(folder, client="hungary", method="fedavg")
    assert about["fold"] == "all"


def test_resume_adds_repeats_and_never_other_folds(folder: Path) -> None:
    with pytest.raises(InputError, match=r"split.folds = 3"):
        run_experiment(experiment(split={"folds": 4}), folder, resume=True)
    run_experiment(experiment(run={"rounds": 1, "seeds": [0, 1]}), folder, resume=True)
    assert Results.load(folder).seeds == (0, 1)


@pytest.mark.in_turn
def test_a_model_of_all_rows_is_trained_as_long_as_the_median_fold(
    tmp_path: Path,
) -> None:
    stopping = [{"name": "early-stopping", "patience": 1}]
    run_experiment(
        experiment(callbacks=stopping, run={"rounds": 6, "evaluate": 1, "seeds": [0]}),
        tmp_path / "run",
    )
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())
    for method in ("local", "fedavg"):
        rounds = {row["fold"]: row["rounds"] for row in rows if row["method"] == method}
        assert rounds.pop("all") == sorted(rounds.values())[1]


@pytest.mark.in_turn
def test_patients_with_several_rows_are_judged_as_patients(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for name in "ab":
        x = rng.normal(size=(40, 1)) + 0.3 * rng.normal(size=(40, 4))
        y = (x[:, :1] + rng.normal(size=(40, 1)) > 0) * np.ones((40, 4))
        lines = [
            f"p{i},{x[i, j]:.3f},{int(y[i, j])}" for i in range(40) for j in range(4)
        ]
        (tmp_path / "data" / f"{name}.csv").write_text(
            "\n".join(["patient,x,y", *lines]) + "\n"
        )
    data = {"folder": str(tmp_path / "data"), "label": "y", "group": "patient"}
    run_experiment(experiment(data=data), tmp_path / "run")
    comparisons = Results.load(tmp_path / "run").comparisons
    rows = {
        method: comparisons.outcomes.rows(method, "a")[0]
        for method in ("local", "fedavg")
    }
    gap, whose = rows["local"].loss - rows["fedavg"].loss, rows["local"].patients
    assert sorted(np.unique(whose, return_counts=True)[1]) == [4] * 40
    sums = np.bincount(whose, weights=gap - gap.mean())
    gain = comparisons.gain("fedavg", "a", "loss")
    assert gain is not None
    assert gain.rows == 40
    assert gain.estimate == pytest.approx(gap.mean())
    assert gain.error == pytest.approx(math.sqrt(40 / 39 * (sums**2).sum()) / 160)
    assert comparisons.rarest("a") < 40
    assert not comparisons.small("a")


def test_the_card_says_how_sure_the_gain_of_this_one_model_is(folder: Path) -> None:
    results = Results.load(folder)
    rows = dict.fromkeys(results.clients, 100)
    text = card(results, "hungary", "fedavg", rows, 0.5, rounds=1)
    said = re.search(
        r"its gain over training alone in log-loss is (\S+) to (\S+) \(95 %\), above 0 with a probability of",
        text,
    )
    compared = results.comparisons
    posterior, gain = (
        compared.posteriors("fedavg", "loss")["hungary"],
        compared.gain("fedavg", "hungary", "loss"),
    )
    wider = posterior._replace(variances=posterior.variances + (0.75 * gain.error) ** 2)
    assert said
    assert said.groups() == tuple(map(results.gain_text, wider.interval))
    assert "This one model has luck" not in card(
        results, "hungary", "local", rows, 0.5, rounds=1
    )


def test_a_pipe_is_predicted_as_its_file_is(folder: Path, tmp_path: Path) -> None:
    columns = [
        c["name"]
        for c in json.loads((folder / "preprocess.json").read_text())["0"]["columns"]
    ]
    file, pipe = tmp_path / "new.csv", tmp_path / "pipe"
    file.write_text(f"{','.join(columns)}\n{','.join('1' for _ in columns)}\n")
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(file.read_bytes()))
    writer.start()
    from_pipe = predict(folder, pipe, client="hungary", method="fedavg")
    writer.join()
    assert (
        from_pipe.table()
        == predict(folder, file, client="hungary", method="fedavg").table()
    )
