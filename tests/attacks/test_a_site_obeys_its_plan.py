"""A malicious server asks what the approved plan does not say: each request is refused, and the site's own copy decides."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from hospital import FEDAVG, Hospital, local, plan_file, settings_file
from safetensors.torch import load_file
from three_sites import ThreeSites

from coterie.algorithms.meritfed import target_gradient
from coterie.base.errors import InputError
from coterie.compute.metrics import evaluate
from coterie.compute.tasks import local_update, local_updates
from coterie.config.local import Steps
from coterie.data.sets.heart_disease import FOLDER, OPTIONS
from coterie.data.tables.recipe import describe
from coterie.samplers.weighted import class_counts
from coterie.sites.backend import Sites
from coterie.sites.server import Remote
from coterie.study.sweep import run_experiment


@pytest.fixture
def hospital(tmp_path):
    return Hospital(tmp_path).begin()


def refused(said, call, *args, **values):
    from coterie.sites.allowed import RefusedError

    with pytest.raises(RefusedError, match=said):
        call(*args, **values)


def test_what_the_plan_says_is_answered(hospital):
    reply = hospital.ask(local_update, x=hospital.x, local=local())
    assert torch.isfinite(reply["delta"]).all()
    assert (
        hospital.ask(evaluate, x=hospital.x, part="test", metrics=("accuracy", "auc"))[
            "rows"
        ].item()
        > 0
    )


@pytest.mark.promise("the plan and nothing else")
def test_a_task_of_another_method_is_refused(hospital):
    refused("does not ask 'weighted:class_counts'", hospital.ask, class_counts)
    refused(
        "does not ask",
        hospital.ask,
        target_gradient,
        x=hospital.x,
        rows="train",
        batch=None,
        step=0,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.2},
        {"steps": Steps(1)},
        {"batch_size": 1},
        {"minimum_batch": 1},
        {"clip": 1.0},
        {"momentum": 0.9},
    ],
)
def test_other_local_settings_are_refused(hospital, change):
    refused(
        "does not allow this 'local'",
        hospital.ask,
        local_update,
        x=hospital.x,
        local=local(**change),
    )


def test_models_in_another_encoding_than_the_plans_are_refused(hospital, tmp_path):
    half = hospital.x.to(torch.bfloat16)
    payload = {"x": hospital.x, "local": local()}
    asked = partial(refused, call=hospital.ask)
    asked("FedAvg as float32", task=local_update, **payload, rounded=("x",))
    asked("bfloat16, not float32", task=local_update, **{**payload, "x": half})

    folder = tmp_path / "half"
    folder.mkdir()
    plan = Hospital(folder, run={"down": "bf16"}).begin()
    asked = partial(refused, call=plan.ask)
    asked("FedAvg as bf16", task=local_update, **payload)
    asked("float32, not bfloat16", task=local_update, **payload, rounded=("x",))
    encoded = {**payload, "x": half}
    asked("FedAvg as bf16", task=local_update, **encoded)
    asked("FedAvg as bf16", task=local_update, **encoded, rounded=("x", "local"))
    asked("does not name", task=local_update, **encoded, rounded=(1,))
    asked("holds no model", task=describe, rounded=("label",), label="num")
    reply = plan.ask(local_update, **encoded, rounded=("x",))
    assert torch.isfinite(reply["delta"]).all()
    assert reply["delta"].dtype == torch.float32


def test_other_fields_metrics_and_parts_are_refused(hospital):
    refused(
        "has no field 'extra'",
        hospital.ask,
        local_update,
        x=hospital.x,
        local=local(),
        extra=1,
    )
    refused(
        "this 'metrics'",
        hospital.ask,
        evaluate,
        x=hospital.x,
        part="test",
        metrics=("balanced_accuracy",),
    )
    for odd in ("accuracy", ("auc", "auc"), (("auc",),), 3):
        refused(
            "this 'metrics'",
            hospital.ask,
            evaluate,
            x=hospital.x,
            part="test",
            metrics=odd,
        )
    refused(
        "this 'part'",
        hospital.ask,
        evaluate,
        x=hospital.x,
        part="all",
        metrics=("auc",),
    )
    refused(
        "this 'x'", hospital.ask, evaluate, x="a text", part="test", metrics=("auc",)
    )


@pytest.mark.parametrize("where", [{"round": 6}, {"round": -1}, {"seed": 7}])
def test_rounds_and_seeds_beyond_the_plan_are_refused(hospital, where):
    refused(
        "has no tasks:local_update in round",
        hospital.ask,
        local_update,
        x=hospital.x,
        local=local(),
        **where,
    )


@pytest.mark.promise("the plan and nothing else")
def test_another_seed_method_or_plan_is_refused(hospital):
    refused("no such method and seed", hospital.say, "prepare", pair="meritfed-0")
    refused("another plan than the one", hospital.say, "open", seed=0, plan="0" * 64)
    refused("has the seeds 0 and no other", hospital.say, "open", seed=1)
    refused("answers open, encode, prepare, task and sum", hospital.say, "memory")


def test_another_label_or_other_columns_are_refused(hospital):
    from coterie.data.tables.recipe import describe, moments

    refused("another label", hospital.ask, describe, label="age")
    refused("another label", hospital.ask, describe, label="num", categorical='["age"]')
    refused("sums are given of", hospital.ask, moments, schema='["num"]')
    refused("sums are given of", hospital.ask, moments, schema='["age"]', more=1)


@pytest.mark.promise("the plan and nothing else")
def test_a_recipe_of_other_features_is_refused(hospital):
    recipe = hospital.recipe()
    other = {**recipe, "label": {**recipe["label"], "column": "age"}}
    refused("another label", hospital.say, "encode", recipe=json.dumps(other))
    for column in recipe["columns"]:
        if column["name"] == "age":
            column.update(kind="category", categories=["28"])
    refused(
        "uses column 'age' otherwise", hospital.say, "encode", recipe=json.dumps(recipe)
    )


REGRESSION = {"name": None, "folder": "x", "label": "age", "task": "regression"}
CLASSES = {"name": None, "folder": "x", "label": "num", "task": "classification"}
OF_AGES = {"values": [str(age) for age in range(28, 67)], "classes": ["young", "old"]}


@pytest.mark.promise("the plan and nothing else")
@pytest.mark.parametrize(
    ("data", "change"),
    [
        ({}, {"values": ["0", "1", "2"]}),
        ({}, {"classes": []}),
        (REGRESSION, OF_AGES),
        (REGRESSION, {"values": ["28"], "spellings": {"29": "28"}}),
        (CLASSES, {"values": [], "classes": [], "mean": 0.0, "scale": 1.0}),
        (CLASSES, {"values": ["0", "1", "0"], "classes": ["0", "1", "2"]}),
    ],
)
def test_a_recipe_of_other_values_of_the_label_is_refused(tmp_path, data, change):
    """As it was: classes of the server's choice told which values a label of numbers has, and how many rows have each."""
    hospital = Hospital(tmp_path, data=data)
    hospital.say("open", seed=0)
    recipe = hospital.recipe()
    hospital.say("encode", recipe=json.dumps(recipe))
    recipe["label"] |= change
    refused(
        "other values of the label than the approved plan",
        hospital.say,
        "encode",
        recipe=json.dumps(recipe),
    )


def test_a_column_that_the_plan_takes_as_categories_is_no_number(hospital):
    recipe = hospital.recipe()
    column = next(c for c in recipe["columns"] if c["name"] == "cp")
    recipe["features"] = recipe["features"][: 1 - len(column["categories"])]
    column.update(kind="number", mean=2.0, scale=1.0)
    refused(
        "uses column 'cp' otherwise", hospital.say, "encode", recipe=json.dumps(recipe)
    )


@pytest.mark.promise("the plan and nothing else")
def test_a_recipe_of_a_finer_scale_than_the_stated_rows_can_have_is_refused(tmp_path):
    """As it was: on a scale 10^5 times as fine, a row's update fills the bound, and noise is small beside it."""
    from coterie.sites.descriptions import SiteDescription, describe_site

    bare = Hospital(tmp_path)
    stated = SiteDescription.of(
        describe_site(bare.approved.plan.experiment, bare.settings, "hungary")
    )
    (tmp_path / "stated").mkdir()
    hospital = Hospital(
        tmp_path / "stated", deploy={"described": {"hungary": asdict(stated)}}
    )
    hospital.say("open", seed=0)
    recipe = hospital.recipe()
    hospital.say("encode", recipe=json.dumps(recipe))
    next(c for c in recipe["columns"] if c["name"] == "age")["scale"] /= 1.01
    refused(
        "scales column 'age' otherwise",
        hospital.say,
        "encode",
        recipe=json.dumps(recipe),
    )


@pytest.mark.promise("the plan and nothing else")
@pytest.mark.parametrize(
    "field",
    [
        {"frozen": ("weight",)},
        {"dtype": "float64"},
        {"fold": False},
        {"keep": True},
        {"outputs": 7},
    ],
    ids=str,
)
def test_the_plan_and_not_the_server_says_what_is_trained_on_which_rows(
    hospital, field
):
    refused(f"has no field '{next(iter(field))}'", hospital.begin, **field)
    assert hospital.rows.shard is None


@pytest.mark.parametrize(
    "other",
    [torch.zeros(1, 3), torch.zeros(1, 13, dtype=torch.float64), None],
    ids=["shape", "dtype", "name"],
)
def test_a_model_of_another_form_than_the_plans_is_refused(hospital, other):
    state = {
        f"state/{k}": torch.zeros_like(v)
        for k, v in hospital.rows.shard.workspace.model.state_dict().items()
    }
    name, given = next(iter(state.items()))
    assert given.shape == (1, 13)
    state = (
        {**state, name: other} if other is not None else {**state, "state/more": given}
    )
    refused(
        "model of another form than the plan's",
        hospital.say,
        "prepare",
        pair="fedavg-0",
        resume=False,
        **state,
    )


def test_a_recipe_of_more_classes_than_the_plans_is_refused(hospital):
    recipe = hospital.recipe()
    recipe["label"]["classes"] = [str(i) for i in range(101)]
    refused("101 classes", hospital.say, "encode", recipe=json.dumps(recipe))


@pytest.mark.promise("one budget")
def test_the_same_request_to_other_features_is_another_request(tmp_path):
    hospital = Hospital(tmp_path, rounds=1, deploy={"runs": 1}).begin()
    recipe = hospital.recipe()
    age = next(c for c in recipe["columns"] if c["name"] == "age")
    hospital.ask(local_update, x=hospital.x, local=local())
    age["mean"] += 1
    hospital.begin(recipe=recipe)
    refused(
        "budget of 1 models that tasks:local_update",
        hospital.ask,
        local_update,
        x=hospital.x,
        local=local(),
    )


def test_a_site_that_has_approved_nothing_or_another_plan_answers_nothing(tmp_path):
    from coterie.sites.approval import approve, read_approval

    settings = settings_file(tmp_path)
    with pytest.raises(InputError, match="has not approved a plan"):
        read_approval(settings)
    first = approve(plan_file(tmp_path), settings, unsigned=True)
    assert read_approval(settings).hash == first.hash
    assert (
        approve(plan_file(tmp_path, rounds=6), settings, unsigned=True).hash
        != first.hash
    )


@pytest.mark.promise("one budget")
def test_the_budget_counts_distinct_models_and_outlives_a_restart(tmp_path):
    hospital = Hospital(tmp_path, rounds=2, deploy={"runs": 2}).begin()
    for number in range(2):
        hospital.ask(local_update, x=hospital.x + number, local=local())
    for _ in range(2):  # the site starts again in between
        refused(
            "budget of 2 models",
            hospital.ask,
            local_update,
            x=hospital.x + 2,
            local=local(),
        )
        for number in range(
            2
        ):  # the same again, under another number and in another run
            hospital.ask(local_update, x=hospital.x + number, local=local(), ask=7)
        hospital.begin(run="another")
        hospital.ask(local_update, x=hospital.x, local=local())
        hospital.ask(
            evaluate, x=hospital.x + 2, part="test", metrics=("accuracy", "auc")
        )  # other tasks have budgets of their own
        hospital.restart()
    hospital.ask(
        local_update, x=hospital.x + 2, local=local(), round=2
    )  # and other rounds


@pytest.mark.promise("one budget")
def test_the_same_request_to_another_model_is_another_request(tmp_path):
    hospital = Hospital(tmp_path, rounds=1, deploy={"runs": 1}).begin()
    hospital.ask(local_update, x=hospital.x, local=local())
    hospital.begin(fill=-1)
    refused(
        "budget of 1 models", hospital.ask, local_update, x=hospital.x, local=local()
    )


@pytest.mark.promise("one budget")
def test_a_request_about_many_models_is_paid_for_by_model_and_not_by_request(tmp_path):
    """A request about as many models as fit into it gave most rows in five requests."""
    method = {"name": "meritfed", "targets": ["hungary"], "local": FEDAVG["local"]}
    hospital = Hospital(tmp_path, methods=[method], deploy={"runs": 2}).begin(
        pair="meritfed-0"
    )
    refused(
        "its shape is",
        hospital.ask,
        local_updates,
        x=torch.zeros(2, len(hospital.x)),
        local=local(),
    )
    hospital.ask(local_updates, x=hospital.x[None], local=local())
    hospital.ask(local_updates, x=hospital.x[None] + 1, local=local())
    refused(
        "budget of 2 models",
        hospital.ask,
        local_updates,
        x=hospital.x[None] + 2,
        local=local(),
    )


@pytest.mark.promise("one budget")
def test_a_request_that_was_refused_is_not_paid_for(tmp_path):
    hospital = Hospital(tmp_path, rounds=1, deploy={"runs": 1}).begin()
    refused(
        "is not finite",
        hospital.ask,
        local_update,
        x=hospital.x * float("nan"),
        local=local(),
    )
    hospital.restart()
    hospital.ask(local_update, x=hospital.x, local=local())


def test_the_log_keeps_the_beginning_of_a_long_setting(hospital):
    refused(
        "plan",
        hospital.ask,
        evaluate,
        x=hospital.x,
        part="x" * 100_000,
        metrics=("accuracy",),
    )
    assert len(str(hospital.rows.about)) < 3000


def test_the_approval_says_in_words_what_is_asked_and_what_leaves(tmp_path):
    from coterie.sites.plan_words import in_words

    hospital = Hospital(
        tmp_path, methods=[FEDAVG, {"name": "meritfed", "targets": "all"}]
    )
    said = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    for words in (
        hospital.approved.hash, "it alone may ask", "predicts  num", "by seed 0", "fedavg: 5 rounds",
        "2 steps with 16 rows each", "delta (a local model minus the one received)",
        "target_tasks:target_gradient leaves: gradient (a gradient); of up to 15 models",
        "budget    ", "stays     rows, identifiers", "of fewer than 8 rows",
    ):  # fmt: skip
        assert words in said, said


@pytest.mark.in_turn
def test_a_site_takes_from_its_plan_what_one_process_takes_from_it(tmp_path):
    """Validation rows that a method keeps, those that it does not, and frozen parameters."""
    methods = [
        {
            "name": "meritfed",
            "targets": ["hungary"],
            "validation": "validation",
            "md_steps": 1,
        },
        FEDAVG,
    ]
    parts = {"split": {"parts": {"train": 0.5, "validation": 0.25, "test": 0.25}}}
    model = {"model": {"name": "mlp", "hidden": [3], "freeze": ["0.*"]}}
    three_sites = ThreeSites(
        tmp_path / "three_sites", methods, rounds=1, **parts, **model
    )
    (tmp_path / "files").mkdir()
    for name in three_sites.names:
        (tmp_path / "files" / f"{name}.csv").write_bytes(
            (FOLDER / f"{name}.csv").read_bytes()
        )
    options = {k: list(v) if isinstance(v, tuple) else v for k, v in OPTIONS.items()}
    run_experiment(
        replace(
            three_sites.experiment, data={"folder": str(tmp_path / "files"), **options}
        ),
        tmp_path / "here",
    )
    run_experiment(
        three_sites.experiment,
        tmp_path / "there",
        backend=Sites(Remote(three_sites, "run", plan=three_sites.plan)),
    )
    models = sorted(path.name for path in (tmp_path / "here" / "models").iterdir())
    assert len(models) == 2
    for name in models:
        here, there = (
            load_file(tmp_path / where / "models" / name) for where in ("here", "there")
        )
        assert here.keys() == there.keys()
        assert all(torch.equal(here[key], there[key]) for key in here), name
