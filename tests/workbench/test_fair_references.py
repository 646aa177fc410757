"""With folds `local` and `centralised` are held back as validation rows choose: no gain is one over a model that fits chance."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from coterie.report.results import Results
from coterie.run.experiment import Experiment
from coterie.run.tables import read_experiment
from coterie.study.search import (
    Trial,
    choose_settings,
    tune_references,
    tuning_notes,
    write_trials,
)
from coterie.study.sweep import run_experiment


def noise(folder: Path, rows: int = 40, columns: int = 12) -> Path:
    """Three clients with nothing to learn, and one whose label is its first column."""
    generator = np.random.default_rng(0)
    folder.mkdir()
    names = [f"x{i}" for i in range(columns)]
    for client in "abcd":
        inputs = generator.normal(size=(rows, columns))
        labels = inputs[:, 0] > 0 if client == "d" else generator.random(rows) > 0.5
        lines = [
            ",".join([*map(repr, map(float, row)), str(int(label))])
            for row, label in zip(inputs, labels, strict=True)
        ]
        (folder / f"{client}.csv").write_text(
            "\n".join([",".join([*names, "y"]), *lines]) + "\n"
        )
    return folder


def experiment(folder: Path, **changes: object) -> Experiment:
    tables = {
        "data": {"folder": str(folder), "label": "y"},
        "split": {"folds": 3},
        "local": {"steps": 10, "lr": 0.3, "batch_size": 16},
        "methods": [
            {"name": "local", "exact": False},
            {"name": "centralised", "exact": False},
            {"name": "fedavg"},
        ],
        "run": {"rounds": 20, "seeds": [0]},
    }
    return Experiment.from_tables({**tables, **changes}, "a test")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise(tmp_path_factory.mktemp("noise") / "mine")


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fair") / "run"
    chosen, _ = choose_settings(experiment(data), folder)
    run_experiment(chosen, folder)
    return folder


def test_each_client_is_held_back_as_far_as_it_has_nothing_to_learn(run: Path) -> None:
    decays = read_experiment(run / "experiment.toml").build_method
    local, centralised, fedavg = (
        decays(entry) for entry in read_experiment(run / "experiment.toml").methods
    )
    assert set(local.weight_decays) == set("abcd")
    assert min(local.weight_decays[c] for c in "abc") > 3 * local.weight_decays["d"]
    assert centralised.local.weight_decay > 0
    assert fedavg.local.weight_decay == 0


@pytest.mark.in_turn
def test_gains_are_not_over_a_model_that_fits_chance(
    data: Path, run: Path, tmp_path: Path
) -> None:
    run_experiment(experiment(data), tmp_path / "plain")
    fair, plain = Results.load(run), Results.load(tmp_path / "plain")
    for client in "abc":
        assert (
            fair.mean("local", client, "loss")
            < plain.mean("local", client, "loss") - 0.1
        )
        assert fair.mean("fedavg", client, "loss") == plain.mean(
            "fedavg", client, "loss"
        )


def test_what_was_chosen_is_written_down_and_said(run: Path) -> None:
    with (run / "tuning.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 * 4 + 6
    chosen = [
        json.loads(row["setting"])
        for row in rows
        if row["method"] == "local" and row["chosen"] == "1"
    ]
    assert {setting["client"] for setting in chosen} == set("abcd")
    for setting in chosen:
        own = [
            row
            for row in rows
            if json.loads(row["setting"]).get("client") == setting["client"]
        ]
        assert (
            json.loads(
                min(own, key=lambda row: float(row["validation_loss"]))["setting"]
            )
            == setting
        )
    notes = json.loads((run / "notes.json").read_text())
    assert any(
        note.startswith("local is held back as validation rows of all folds chose")
        and " at d" in note
        for note in notes
    )
    assert any(
        note.startswith("centralised is held back") and "at all rows" in note
        for note in notes
    )


def test_a_resumed_run_keeps_what_was_chosen(data: Path, run: Path) -> None:
    again, trials = choose_settings(experiment(data), run, resume=True)
    assert trials == []
    assert [e.fields for e in again.methods] == [
        e.fields for e in read_experiment(run / "experiment.toml").methods[:2]
    ] + [{}]


@pytest.mark.parametrize(
    "changes",
    [
        {"split": {}},
        {
            "methods": [
                {"name": "local", "local": {"weight_decay": 0.0}, "exact": False},
                {"name": "fedavg"},
            ]
        },
        {"methods": [{"name": "fedavg"}]},
        {"methods": [{"name": "local"}, {"name": "centralised"}, {"name": "fedavg"}]},
    ],
    ids=["without folds", "named by the entry", "no reference", "solved"],
)
def test_nothing_is_chosen_otherwise(
    data: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    plain = experiment(data, **changes)
    assert choose_settings(plain, tmp_path / "run") == (plain, [])
    assert not (tmp_path / "run").exists()


@pytest.mark.in_turn
def test_a_decay_is_never_so_large_that_steps_overshoot(data: Path) -> None:
    steep = experiment(
        data, local={"lr": 1.0, "steps": 2}, run={"rounds": 1, "seeds": [0]}
    )
    chosen, trials = tune_references(steep)
    assert all(np.isfinite(trial.loss) for trial in trials)
    assert max(chosen.methods[0].fields["weight_decays"].values()) <= 1.0


def test_tuning_leaves_out_what_is_solved(data: Path, tmp_path: Path) -> None:
    solved = ["local", "fixed-effects", "partial", "centralised"]
    mixed = experiment(
        data,
        methods=[{"name": name} for name in [*solved, "fedavg"]],
        run={"rounds": 2, "seeds": [0]},
        tune={"local.lr": [0.1, 0.3]},
    )
    chosen, trials = choose_settings(mixed, tmp_path / "run", grid=True)
    assert [trial.label for trial in trials] == ["fedavg", "fedavg"]
    assert [*chosen.labels] == [*mixed.labels]
    assert [*chosen.methods[:4]] == [*mixed.methods[:4]]
    neural = experiment(
        data,
        model={"name": "mlp"},
        methods=[{"name": "local"}],
        run={"rounds": 1, "seeds": [0]},
        tune={"local.lr": [0.1, 0.3]},
    )
    assert len(choose_settings(neural, tmp_path / "other", grid=True)[1]) == 2


def test_a_note_says_how_many_settings_of_each_method_were_tried(tmp_path):
    def trials(label, count, **setting):
        return [
            Trial(label, {"local.lr": 0.1 * n, **setting}, 0.5, n == 1)
            for n in range(1, count + 1)
        ]

    write_trials(tmp_path, trials("fedavg", 3) + trials("ditto", 9))
    (note,) = tuning_notes(tmp_path)
    assert note.startswith(
        "settings were chosen on validation rows. fedavg: 3 trials; ditto: 9 trials. More trials are an"
    )
    write_trials(tmp_path, trials("fedavg", 3) + trials("ditto", 3))
    assert tuning_notes(tmp_path) == [
        "settings were chosen on validation rows. fedavg, ditto: 3 trials"
    ]
    write_trials(tmp_path, trials("local", 2, weight_decay="0.1 / rows", client="a"))
    assert not any("trials" in note for note in tuning_notes(tmp_path))
