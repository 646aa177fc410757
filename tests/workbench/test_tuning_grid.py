"""The [tune] table is checked when an experiment is read, whether it is tuned or not."""

from __future__ import annotations

import pytest

import coterie as ct
from coterie.run.experiment import Experiment

TABLES = {
    "data": {"name": "heart-disease"},
    "methods": [{"name": "fedavg", "label": "mine"}, {"name": "local"}],
}


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        (
            {"mime.lr": [1]},
            r"x.toml, \[tune\]: 'mime.lr' names no method; did you mean 'mine'\?",
        ),
        (
            {"fedavg": [1]},
            r"'fedavg' names no setting; write \"fedavg.FIELD\" = \[...\]",
        ),
        (
            {"fedavg": {"lr": [1]}},
            r"'fedavg' is a table of its own; write \"fedavg.lr\" = \[...\] in \[tune\]",
        ),
        ({"local.lr": 0.1}, "'local.lr' must be a list of values; got 0.1"),
        ({"local.lr": []}, r"'local.lr' must be a list of values; got \[\]"),
        ({"local.lr": [0.1, -1]}, "lr must be a number > 0"),
        ({"fedavg.lrr": [1]}, "method 'mine': unknown key 'lrr'"),
    ],
)
def test_what_tuning_cannot_try_is_refused_without_tuning(grid, sentence):
    with pytest.raises(ct.InputError, match=sentence):
        Experiment.from_tables({**TABLES, "tune": grid}, "x.toml")


def test_a_grid_that_can_be_tried_is_kept():
    grid = {"local.lr": [0.1, 1], "mine.local.batch_size": [4]}
    assert Experiment.from_tables({**TABLES, "tune": grid}, "x.toml").tune == grid


def test_a_method_without_local_training_has_no_part_in_the_grid_for_all(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "import coterie as ct\nclass Plain(ct.Method):\n"
        "    def init(self, x, federation): ...\n    def round(self, state, federation, rng): ...\n"
        "    def models(self, state): ...\n"
    )
    methods = [{"name": f"{own}:Plain"}, {"name": "fedavg"}]
    experiment = Experiment.from_tables(
        {**TABLES, "methods": methods, "tune": {"local.lr": [0.1, 1]}}, "x.toml"
    )
    plain, fedavg = experiment.methods
    assert list(experiment.trials_of(plain)) == [{}]
    assert list(experiment.trials_of(fedavg)) == [{"local.lr": 0.1}, {"local.lr": 1}]
