"""The tables of an experiment: what is read can be written, and read again."""

from __future__ import annotations

import pytest

from coterie.base.errors import InputError
from coterie.cli.show import describe, show
from coterie.run.experiment import Experiment

OWN_METHOD = """
import coterie as ct

class Fixed(ct.Method):
    local = ct.LocalSGD(lr=0.2)

    def init(self, x, federation):
        return x

    def round(self, state, federation, rng):
        return state, {}

    def models(self, state):
        return state

class Open(Fixed):
    def __init__(self, **settings):
        self.settings = settings
"""
OWN_CLIENTS = """
import torch
import coterie as ct

def drawn(seed, rows=20, split=None):
    generator = torch.Generator().manual_seed(seed)
    parts = {n: (torch.randn(rows, 2, generator=generator), torch.arange(rows) % 2) for n in "abc"}
    return ct.data.from_tensors(parts, seed=seed, split=split)

ready = drawn(0)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "method.py").write_text(OWN_METHOD)
    (folder / "towns.py").write_text(OWN_CLIENTS)
    return folder


def experiment(**tables):
    return Experiment.from_tables(
        {"data": {"name": "heart-disease"}, "methods": [{"name": "fedavg"}], **tables},
        "an.toml",
    )


def test_local_training_that_a_class_does_not_take_is_not_written(own):
    given = experiment(methods=[{"name": f"{own}/method.py:Fixed"}])
    again = Experiment.from_tables(given.tables(), "again.toml")
    assert again.tables() == given.tables()
    assert again.build_method(again.methods[0]).local.lr == 0.2


def test_local_training_of_a_class_that_takes_any_setting_is_written(own):
    given = experiment(
        methods=[{"name": f"{own}/method.py:Open", "local": {"lr": 0.3}}]
    )
    again = Experiment.from_tables(given.tables(), "again.toml")
    assert again.build_method(again.methods[0]).settings["local"].lr == 0.3


@pytest.mark.parametrize(
    ("tables", "keys"),
    [
        ({"split": {"kind": "iid"}}, "split.kind"),
        ({"data": {"rows": 7}, "split": {"seed": 1}}, "data.rows, split.seed"),
    ],
)
def test_ready_clients_take_no_settings(own, tables, keys):
    data = {"name": f"{own}/towns.py:ready", **tables.get("data", {})}
    with pytest.raises(
        InputError,
        match=rf"towns\.py:ready holds clients that are ready, so {keys} cannot be set",
    ):
        experiment(**{**tables, "data": data}).load_data(0)


def test_a_function_of_clients_takes_settings(own):
    data = {"name": f"{own}/towns.py:drawn", "rows": 10}
    clients = experiment(
        data=data, split={"parts": {"train": 0.5, "test": 0.5}}
    ).load_data(0)
    assert sum(len(part.labels) for _, part in clients["a"].parts()) == 10
    assert clients.validation is None


@pytest.mark.parametrize(
    ("tables", "at"),
    [
        ({"run": {"evaluate": "default"}}, lambda e: e.run.evaluate),
        ({"run": {"clients_per_round": "default"}}, lambda e: e.run.clients_per_round),
        (
            {"local": {"clip": "default"}},
            lambda e: e.build_method(e.methods[0]).local.clip,
        ),
        (
            {"local": {"batch_size": "all"}},
            lambda e: e.build_method(e.methods[0]).local.batch_size,
        ),
        (
            {"local": {"sampler": "default"}},
            lambda e: e.build_method(e.methods[0]).local.sampler,
        ),
        (
            {
                "local": {"clip": 1.0},
                "methods": [{"name": "fedavg", "local": {"clip": "default"}}],
            },
            lambda e: e.build_method(e.methods[0]).local.clip,
        ),
    ],
)
def test_a_word_says_what_is_none_in_python(tables, at):
    given = experiment(**tables)
    assert at(given) is None
    assert at(Experiment.from_tables(given.tables(), "again.toml")) is None


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (
            {"evaluate": 0},
            '[run]: run.evaluate must be "default" (about twenty evaluations) or an int > 0 or a table such as',
        ),
        ({"evaluate": [2]}, "got [2]"),
        ({"out": 3}, "run.out must be a folder; got 3"),
    ],
)
def test_errors_of_a_file_say_what_a_file_can_say(run, sentence):
    with pytest.raises(InputError) as caught:
        experiment(run=run)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "field"),
    [
        ("ray", "engine", "actors"),
        ("inprocess", "engine", "workers"),
        ("gradient-norm", "sampler", "sample_ratio"),
        ("tune", "table", "tune.local.lr"),
        ("methods", "table", "label"),
    ],
)
def test_whatever_an_experiment_names_is_explained(name, kind, field):
    told = describe(name)
    fields = {one["name"]: one["explanation"] for one in told["fields"]}
    assert told["kind"] == kind
    assert fields[field]
    assert len(told["text"]) > 20


def test_an_object_of_a_file_is_explained(tmp_path):
    (tmp_path / "own.py").write_text(
        """
from dataclasses import dataclass

@dataclass
class Mine:
    \"\"\"Does little.

    Attributes:
        note: what it says.
    \"\"\"
    note: str = "x"
    count: int | None = None
"""
    )
    text = show(f"{tmp_path}/own.py:Mine")
    assert text.startswith(
        "Does little.\n\nfields\nnote: str = 'x'\n    what it says.\ncount: int | None = None"
    )


def test_local_is_a_method_and_a_table():
    assert "The [local] table: coterie show LocalSGD" in show("local")


@pytest.mark.parametrize(
    "label", ["x" * 61, " ", "..", "*", "a/b", "a,b", "a\tb", "run", "data", "", 3]
)
def test_a_label_that_cannot_be_shown_or_set_is_refused(label):
    with pytest.raises(
        InputError,
        match="of method 'fedavg' must be 1 to 60 characters, a letter or digit",
    ) as caught:
        experiment(methods=[{"name": "fedavg", "label": label}])
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize("label", ["lr 0.1", "a.b", "Zürich (α=1)", "x" * 60, "local"])
def test_a_label_in_words_is_taken(label):
    assert experiment(methods=[{"name": "fedavg", "label": label}]).labels == (label,)
