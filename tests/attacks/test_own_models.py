"""A model of a site's own stays at the site: evaluated there, kept there, with the numbers of one process."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hospital import FEDAVG, Hospital, local
from safetensors.torch import load_file
from three_sites import ThreeSites

from coterie.algorithms.ditto import ditto_update
from coterie.algorithms.fedproto import prototype_update
from coterie.compute.metrics import evaluate
from coterie.compute.tasks import own_model
from coterie.contract.encoding import decode
from coterie.data.sets.heart_disease import FOLDER, OPTIONS
from coterie.sites.allowed import RefusedError
from coterie.sites.backend import Sites
from coterie.sites.plan_words import in_words
from coterie.sites.server import Remote
from coterie.study.predict import predict
from coterie.study.sweep import run_experiment

LOCAL = {"steps": 2, "batch_size": 16}
OWN = [
    {"name": name, "local": LOCAL}
    for name in ("local", "ditto", "apfl", "pfedme", "perfedavg", "fedproto")
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One experiment in one process and at sites, whose replies were listened to."""
    folder = tmp_path_factory.mktemp("own")
    three_sites = ThreeSites(
        folder / "three_sites", OWN, rounds=3, run={"metrics": ["auc"]}
    )
    (folder / "files").mkdir()
    for name in three_sites.names:
        (folder / "files" / f"{name}.csv").write_bytes(
            (FOLDER / f"{name}.csv").read_bytes()
        )
    options = {k: list(v) if isinstance(v, tuple) else v for k, v in OPTIONS.items()}
    run_experiment(
        replace(
            three_sites.experiment, data={"folder": str(folder / "files"), **options}
        ),
        folder / "here",
    )
    replies, call = [], three_sites.call

    def listening(name, message, timeout):
        reply = call(name, message, timeout)
        replies.append(reply)
        return reply

    three_sites.call = listening
    run_experiment(
        three_sites.experiment,
        folder / "there",
        backend=Sites(Remote(three_sites, "run", plan=three_sites.plan)),
    )
    return folder, three_sites, replies


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif hasattr(value, "blocks"):
        for block in value.blocks:
            for field in block.values.values():
                yield from tensors(field)


def test_metrics_at_sites_are_those_of_one_process(runs):
    folder, _, _ = runs
    for file in ("summary.json", "history.csv", "weights.csv"):
        assert (folder / "here" / file).read_bytes() == (
            folder / "there" / file
        ).read_bytes()
    rows = json.loads((folder / "there" / "summary.json").read_text())
    assert len(rows) == len(OWN) * 3 * 2
    assert all(row["own_model"] for row in rows)


@pytest.mark.promise("own models stay")
def test_no_reply_holds_the_own_model_of_a_site(runs):
    folder, _, replies = runs
    own = [
        load_file(path)
        for path in (folder / "here" / "models").iterdir()
        if path.stem.count("-") > 1
    ]
    assert len(own) == len(OWN) * 3
    vectors = [
        torch.cat([model[key].flatten() for key in ("weight", "bias")]) for model in own
    ]
    sent = [
        t
        for reply in replies
        for value in decode(reply).values()
        for t in tensors(value)
    ]
    long = [
        row
        for t in sent
        for row in t.reshape(-1, t.shape[-1])
        if t.shape[-1] == len(vectors[0])
    ]
    assert len(long) > 20  # updates
    for vector in vectors:
        assert min(float((row - vector).norm()) for row in long) > 1e-4


def test_a_site_keeps_its_own_models_where_predict_finds_them(runs):
    folder, three_sites, _ = runs
    for name in three_sites.names:
        for method in OWN:
            kept = (
                folder
                / "three_sites"
                / name
                / "kept"
                / "models"
                / f"{method['name']}-0-{name}"
            )
            here = folder / "here" / "models" / f"{method['name']}-0-{name}.safetensors"
            there = kept / "model.safetensors"
            assert all(
                torch.equal(value, load_file(there)[key])
                for key, value in load_file(here).items()
            )
            ours, theirs = (
                predict(place, FOLDER / f"{name}.csv", **about)
                for place, about in (
                    (kept, {}),
                    (folder / "here", {"client": name, "method": method["name"]}),
                )
            )
            assert torch.equal(ours.values, theirs.values)
    written = {path.stem for path in (folder / "there" / "models").iterdir()}
    kept_by_sites = {
        "local-0",
        "fedproto-0",
    }  # methods that have no model at the server
    assert written == {f"{method['name']}-0" for method in OWN} - kept_by_sites


def test_the_own_model_is_behind_no_filter_and_still_does_not_leave(tmp_path):
    """What is sent beside the filters was the reason to refuse these methods; now nothing is."""
    hidden = {
        "filters": [
            {"name": "clip", "bound": 1.0},
            {"name": "gaussian-noise", "sigma": 0.1, "secret": True},
        ]
    }
    site = Hospital(tmp_path, methods=[{**FEDAVG, "name": "ditto"}], **hidden).begin(
        pair="ditto-0"
    )
    with pytest.raises(RefusedError, match="has made no model of its own yet"):
        site.ask(evaluate, x=None, part="test", metrics=("accuracy", "auc"))
    local = site.approved.pairs["ditto-0"].method.local
    site.ask(ditto_update, x=site.x, local=local, lam=1.0)
    assert site.ask(own_model, x=site.x, key="ditto") == {}
    assert (
        site.ask(evaluate, x=None, part="test", metrics=("accuracy", "auc"))[
            "rows"
        ].item()
        > 0
    )


def test_evaluations_of_an_own_model_are_paid_for_by_model(tmp_path):
    site = Hospital(
        tmp_path, methods=[{**FEDAVG, "name": "ditto"}], rounds=1, deploy={"runs": 1}
    ).begin(pair="ditto-0")
    looks = {"part": "test", "metrics": ("accuracy", "auc")}
    for part in ("train", "test"):
        site.ask(own_model, x=site.x, key="ditto")
        site.ask(evaluate, x=None, part=part, metrics=looks["metrics"])
    with pytest.raises(RefusedError, match="budget of 1 models that tasks:own_model"):
        site.ask(own_model, x=site.x + 1, key="ditto")


def test_an_approval_says_that_the_own_model_stays(tmp_path):
    site = Hospital(
        tmp_path,
        methods=[{**FEDAVG, "name": "ditto"}],
        filters=[{"name": "clip", "bound": 1.0}],
    )
    words = "\n".join(in_words(site.approved, site.settings, "hungary"))
    assert (
        "tasks:own_model leaves: model (no number: its own model stays here); of up to 3 models in each round, 0 numbers"
        in words
    )


def mean_features(folder, least):
    """What a site tells in fedproto that does not speak of classes with fewer rows."""
    site = Hospital(
        folder, {"minimum_cell": least}, methods=[{**FEDAVG, "name": "fedproto"}]
    ).begin(pair="fedproto-0")
    inputs = len(site.x) - 1
    none = {"prototypes": torch.zeros(2, inputs), "known": torch.zeros(2).bool()}
    return site.ask(prototype_update, x=site.x, **none, local=local(), lam=1.0)


def test_mean_features_are_told_where_each_class_has_enough_rows(tmp_path):
    told = mean_features(tmp_path, 20)
    assert int(told["counts"].min()) >= 20
    assert bool(told["delta"].any())
    smallest = int(told["counts"].min())
    (tmp_path / "more").mkdir()
    with pytest.raises(RefusedError, match=f"fewer than the {smallest + 1} rows"):
        mean_features(tmp_path / "more", smallest + 1)
