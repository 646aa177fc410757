"""A setting is declared once: its field, its TOML key, `--set` and its flag cannot say different things."""

from __future__ import annotations

import argparse
import json

import pytest

from coterie.base.errors import InputError
from coterie.cli import flags
from coterie.cli.options import build_parser
from coterie.cli.settings import override
from coterie.config.data import Split
from coterie.config.keys import DECLARED, keys_of, keys_with_flags
from coterie.config.registry import Registry
from coterie.config.schema import options_of
from coterie.run.experiment import Experiment

FLAGGED = [*keys_with_flags()]
EXAMPLES = {
    "int": "3",
    "float": "0.5",
    "tuple[str, ...]": "b,a",
    "tuple[int, ...]": "7,5",
    "str": "some",
    "bool": "true",
}


def example(key):
    """A text for the flag, and for `--set`."""
    kinds = [
        str(getattr(k, "__name__", k)) if k in (int, float, str, bool) else str(k)
        for k in key.option.kinds
    ]
    return next((EXAMPLES[kind] for kind in EXAMPLES if kind in kinds), EXAMPLES["int"])


def tables_after(*argv):
    tables = {
        "methods": [
            {"name": "fedavg", "local": {"epochs": 9, "lr": 1.0, "batch_size": 1}}
        ]
    }
    override(tables, build_parser().parse_args(["compare", "somewhere", *argv]))
    return tables


def test_every_field_is_a_key_of_its_table():
    for table, declared in DECLARED.items():
        classes = [
            cls
            for one in declared
            for cls in (
                map(one.__getitem__, one) if isinstance(one, Registry) else [one]
            )
        ]
        fields = {
            key for cls in classes for option in options_of(cls) for key in option.keys
        }
        assert fields <= {key.name for key in keys_of(table)}, table
    unexplained = [
        key.path for table in DECLARED for key in keys_of(table) if not key.about
    ]
    assert unexplained == []


@pytest.mark.parametrize("command", ["compare", "run"])
def test_every_flag_is_in_the_help(coterie, command):
    text = coterie(command, "--help").out
    for key in FLAGGED:
        assert f"\n  {key.flag} " in text, key.path


def test_every_key_with_a_flag_is_found_without_the_classes_that_need_torch():
    assert {key.path: key.flag for key in FLAGGED} == {
        key.path: key.flag for table in DECLARED for key in keys_of(table) if key.flag
    }


def test_units_of_one_option_are_told_apart():
    said = {key.flag: key.help for key in FLAGGED}
    assert said["--steps"] == "number of batches in a round"
    assert said["--epochs"] == "number of passes over the rows in a round"


@pytest.mark.parametrize("key", FLAGGED, ids=lambda key: key.path)
def test_a_flag_and_set_write_the_same_key(key):
    text = example(key)
    typed, said = (
        tables_after(key.flag, text),
        tables_after("--set", f"{key.path}={text}"),
    )
    assert typed == said
    assert key.name in typed[key.table]


def test_the_flag_of_a_switch_alone_says_yes():
    assert tables_after("--ordered")["data"] == {"ordered": True}
    assert tables_after("--ordered", "false")["data"] == {"ordered": False}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("run.metrics=auc", ["auc"]),
        ("run.seeds=2", 2),
        ("run.seeds=2,3", [2, 3]),
        ("run.seeds=0", 0),
        ("attack.on=2", 2),
        ("model.hidden=8", [8]),
        ("model.hidden=8,4", [8, 4]),
        ("attack.on=hungary", ["hungary"]),
        ("attack.on=.5", 0.5),
        ("data.classes=no,yes", ["no", "yes"]),
        ('run.metrics=["auc", "f1"]', ["auc", "f1"]),
        ("run.merge_validation=yes", "yes"),
    ],
)
def test_lists_need_no_brackets(setting, value):
    table, _, key = setting.partition("=")[0].partition(".")
    assert tables_after("--set", setting)[table][key] == value


@pytest.mark.parametrize(
    ("settings", "table", "content"),
    [
        (["run.appeal.leave=true"], "run", {"appeal": {"leave": True}}),
        (
            [
                "split.parts={train=0.5, test=0.5}",
                "split.parts.test=.2",
                "split.parts.validation=.3",
            ],
            "split",
            {"parts": {"train": 0.5, "test": 0.2, "validation": 0.3}},
        ),
        (
            ["data.missing.chol=[0]", "data.missing.bp=[1]"],
            "data",
            {"missing": {"chol": [0], "bp": [1]}},
        ),
        (["local.sampler.name=lipschitz"], "local", {"sampler": {"name": "lipschitz"}}),
        (["local.sampler=own.py:Evenly"], "local", {"sampler": "own.py:Evenly"}),
        (
            ["local.sampler=lipschitz", "local.sampler.floor=.2"],
            "local",
            {"sampler": {"name": "lipschitz", "floor": 0.2}},
        ),
        (
            [
                "local.sampler={name='lipschitz', floor=0.1}",
                "local.sampler.floor=.2",
                "local.sampler.name=lipschitz",
            ],
            "local",
            {"sampler": {"name": "lipschitz", "floor": 0.2}},
        ),
        (
            [
                "local.sampler={name='lipschitz', floor=0.1}",
                "local.sampler.name=uniform-classes",
            ],
            "local",
            {"sampler": {"name": "uniform-classes"}},
        ),
    ],
)
def test_a_table_within_a_table_is_set_by_key(settings, table, content):
    assert (
        tables_after(*(word for one in settings for word in ("--set", one)))[table]
        == content
    )


@pytest.mark.parametrize("label", ["lr .1", "a.b", "a.b.c", "lr=.5"])
def test_any_label_can_be_set(label):
    tables = {
        "methods": [
            {"name": "fedavg", "label": one}
            for one in ("a", "a.b", "a.b.c", "lr .1", "lr=.5")
        ]
    }
    override(
        tables,
        build_parser().parse_args(
            ["run", "some.toml", "--set", f"{label}.local.lr=.3"]
        ),
    )
    assert [m["label"] for m in tables["methods"] if m.get("local") == {"lr": 0.3}] == [
        label
    ]


def test_lists_of_methods_and_of_tune_need_no_brackets():
    tables = {"methods": [{"name": "meritfed"}, {"name": "fedavg", "label": "a.b"}]}
    said = (
        "meritfed.targets=lyon,oslo",
        "meritfed.oracle=validation",
        "tune.a.b.local.lr=.1,1",
        "tune.meritfed.md_step=[0.3]",
    )
    override(
        tables,
        build_parser().parse_args(
            ["run", "some.toml", *(w for one in said for w in ("--set", one))]
        ),
    )
    assert tables["methods"][0] == {
        "name": "meritfed",
        "targets": ["lyon", "oslo"],
        "oracle": "validation",
    }
    assert tables["tune"] == {"a.b.local.lr": [0.1, 1], "meritfed.md_step": [0.3]}


def test_the_settings_to_try_may_be_those_of_a_label_with_dots():
    table = {
        "methods": [{"name": "fedprox"}, {"name": "fedprox", "label": "fedprox.b"}]
    }
    tune = {"fedprox.b.mu": [0.2, 0.3], "fedprox.mu": [0.1], "local.lr": [1.0]}
    experiment = Experiment.from_tables(
        {"data": {"name": "digits"}, **table, "tune": tune}, "here"
    )
    tried = [
        [trial["mu"] for trial in experiment.trials_of(entry)]
        for entry in experiment.methods
    ]
    assert tried == [[0.1], [0.2, 0.3]]


def test_filters_are_set_by_name_by_key_or_as_a_list():
    assert tables_after("--set", "filters=top-k")["filters"] == [{"name": "top-k"}]
    both = tables_after(
        "--set",
        'filters=["clip", {name = "top-k", share = 0.2}]',
        "--set",
        "filters.top-k.share=.1",
    )
    assert both["filters"] == [{"name": "clip"}, {"name": "top-k", "share": 0.1}]
    assert tables_after("--set", "filters.clip.bound=2")["filters"] == [
        {"name": "clip", "bound": 2}
    ]
    with pytest.raises(InputError, match=r"must say which: filters\.top-k\.share=\.1"):
        tables_after("--set", "filters.share=.1")
    with pytest.raises(InputError, match=r"must say which: callbacks\.early-stopping"):
        tables_after("--set", "callbacks.patience=3")
    with pytest.raises(InputError, match="did you mean 'filters'"):
        tables_after("--set", "filter.top-k.share=.1")


def test_steps_and_epochs_take_the_place_of_each_other_for_methods_too():
    tables = tables_after("--steps", "4")
    assert tables["local"] == {"steps": 4}
    assert tables["methods"][0]["local"] == {"steps": 4, "lr": 1.0, "batch_size": 1}


def test_another_name_leaves_what_belongs_to_all_names():
    tables = {
        "model": {"name": "mlp", "hidden": [3], "freeze": ["0.*"]},
        "attack": {"name": "ipm", "eps": 1.0, "on": 0.5},
    }
    arguments = ["compare", "somewhere", "--model", "logistic", "--attack", "nan"]
    override(tables, build_parser().parse_args(arguments))
    assert tables["model"] == {"name": "logistic", "freeze": ["0.*"]}
    assert tables["attack"] == {"name": "nan", "on": 0.5}


@pytest.mark.parametrize(
    "typed", [("--steps", "2", "--epochs", "3"), ("--epochs", "3", "--steps", "2")]
)
def test_two_flags_of_one_option_are_refused(typed):
    with pytest.raises(
        InputError, match=r"^--steps and --epochs exclude each other; give one$"
    ):
        tables_after(*typed)


OWN_ENGINE = """
from dataclasses import dataclass
from coterie.contract.engine import EngineSpec

@dataclass(frozen=True)
class Engine(EngineSpec):
    note: str = "x"
    timeout: float | None = None

    def open(self, clients, model, loss):
        raise NotImplementedError
"""


def test_an_engine_from_a_file_keeps_what_all_engines_share_and_it_declares(tmp_path):
    (tmp_path / "own_engine.py").write_text(OWN_ENGINE)
    tables = {
        "engine": {"name": "inprocess", "kernel": "auto", "timeout": 5.0, "workers": 2}
    }
    name = f"{tmp_path}/own_engine.py:Engine"
    override(tables, build_parser().parse_args(["run", "some.toml", "--engine", name]))
    assert tables["engine"] == {"name": name, "timeout": 5.0}


def test_another_kind_of_split_leaves_what_belongs_to_all_kinds():
    tables = {
        "split": {
            "kind": "dirichlet",
            "alpha": 0.3,
            "clients": 4,
            "parts": {"train": 0.5, "test": 0.5},
        }
    }
    override(tables, build_parser().parse_args(["run", "some.toml", "--split", "iid"]))
    assert tables["split"] == {
        "kind": "iid",
        "clients": 4,
        "parts": {"train": 0.5, "test": 0.5},
    }
    override(
        tables,
        build_parser().parse_args(["run", "some.toml", "--set", "split.kind=column"]),
    )
    assert Split.parse({**tables["split"], "column": "ward"}).kind == "column"


def test_a_flag_of_a_kind_that_set_chooses_is_kept():
    arguments = [
        "compare",
        "one.csv",
        "--unnamed",
        "drop",
        "--set",
        "split.column=ward",
        "--set",
        "split.kind=column",
    ]
    tables = {"split": {"kind": "iid", "clients": 3}}
    override(tables, build_parser().parse_args(arguments))
    assert tables["split"] == {
        "kind": "column",
        "clients": 3,
        "unnamed": "drop",
        "column": "ward",
    }


def test_the_name_that_a_table_has_already_changes_nothing():
    tables = {"model": {"name": "mlp", "hidden": [3]}}
    override(tables, build_parser().parse_args(["run", "some.toml", "--model", "mlp"]))
    assert tables["model"] == {"name": "mlp", "hidden": [3]}


def test_a_text_where_a_number_belongs_is_refused_with_the_flag():
    for flag, text in (
        ("--rounds", "many"),
        ("--lr", "fast"),
        ("--seeds", "five"),
        ("--seeds", "1,x"),
        ("--steps", ".5"),
    ):
        with pytest.raises(InputError, match=rf"^{flag} must be an? .*; got '{text}'$"):
            tables_after(flag, text)


def test_what_files_say_for_none_can_be_typed():
    assert tables_after("--batch-size", "all")["local"]["batch_size"] == "all"


@pytest.mark.parametrize("table", [t for t in DECLARED if t != "local"])
def test_show_explains_each_table(coterie, table):
    ended = coterie("show", table, "--json")
    assert ended.status == 0, ended.err
    told = json.loads(ended.out)
    assert [field["name"] for field in told["fields"]] == [
        key.path for key in keys_of(table)
    ]
    assert all(key.flag in coterie("show", table).out for key in keys_of(table))


def test_flags_of_other_commands_are_untouched():
    args = build_parser().parse_args(["submit", "plan.toml", "--out", "there"])
    assert isinstance(args, argparse.Namespace)
    assert (args.out, flags.flag_texts(args)) == ("there", {})
