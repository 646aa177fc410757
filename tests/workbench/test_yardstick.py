"""`--yardstick trees`: scikit-learn's trees stand beside the methods, on the same rows and by the same metrics, and are none."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.metrics import log_loss, roc_auc_score, root_mean_squared_error

import coterie as ct
from cli.commands import contents
from coterie.cli.main import main

TREES = ("trees-alone", "trees-pooled")

WITH_TREES = ct.StudySettings(yardstick="trees")


@pytest.fixture(scope="module")
def hearts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hearts") / "run"
    return ct.compare(
        ["local", "fedavg"],
        "heart-disease",
        rounds=1,
        seeds=2,
        settings=WITH_TREES,
        folder=folder,
    )


def value(comparison, method, client, metric, split="test"):
    frame = comparison.to_pandas()
    chosen = frame.query(
        "method == @method and client == @client and split == @split and seed == 1"
    )
    return chosen[metric].item()


def parts(clients, name):
    client = clients.merge_validation(())[clients.names.index(name)]
    return tuple(part.numpy() for part in (*client.train, *client.test))


def fitted_trees(inputs, labels):
    """Trees of scikit-learn, and how many rows they have seen."""
    return HistGradientBoostingClassifier(early_stopping=False, random_state=1).fit(
        inputs, labels
    ), len(inputs)


def test_trees_are_those_of_scikit_learn_on_the_same_rows(hearts):
    clients = ct.data.load("heart-disease", seed=1)
    everybody = [parts(clients, name) for name in clients.names]
    pooled = fitted_trees(
        *(np.concatenate([client[i] for client in everybody]) for i in (0, 1))
    )
    for name, (inputs, labels, test_inputs, test_labels) in zip(
        clients.names, everybody, strict=True
    ):
        for method, (trees, rows) in zip(
            TREES, (fitted_trees(inputs, labels), pooled), strict=True
        ):
            shares = trees.predict_proba(test_inputs)
            assert value(hearts, method, name, "loss") == pytest.approx(
                log_loss(test_labels, shares, labels=[0, 1]), rel=1e-4
            )
            assert value(hearts, method, name, "auc") == pytest.approx(
                roc_auc_score(test_labels, shares[:, 1])
            )
            assert value(hearts, method, name, "n_train") == rows


def test_trees_are_no_methods(hearts):
    results = hearts.results
    assert results.references == TREES
    assert hearts.methods == ("local", "fedavg")
    assert repr(hearts).startswith("<comparison of local, fedavg on 4 clients")
    assert results.federated == ("fedavg",)
    assert not any(
        name in str(hearts.verdict(client))
        for client in hearts.clients
        for name in TREES
    )
    assert (
        "trees-alone and trees-pooled: gradient-boosted trees of each client"
        in hearts.table("loss")
    )
    assert "all rows in one place" not in hearts.table("loss")
    assert hearts.report().is_file()


@pytest.mark.in_turn
def test_trees_change_no_method_and_may_be_added(hearts, tmp_path, capsys):
    flags = ("--rounds", "1", "--seeds", "2", "--folds", "0", "--no-report", "--json")
    plain = [
        "compare",
        "heart-disease",
        "--methods",
        "local,fedavg",
        *flags,
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(plain) == 0
    before = contents(tmp_path / "run")
    assert main([*plain, "--resume", "--yardstick", "trees", "--jobs", "2"]) == 0
    after = contents(tmp_path / "run")
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"experiment.toml", "summary.json"}
    rows = json.loads(after["summary.json"])
    assert [row for row in rows if row["method"] not in TREES] == json.loads(
        before["summary.json"]
    )
    trees = [row for row in rows if row["method"] in TREES]
    assert trees == [
        row
        for row in json.loads(contents(hearts.folder)["summary.json"])
        if row["method"] in TREES
    ]
    (tmp_path / "run" / "summary.json").write_text("[]")
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run"), "--no-html"]) == 0
    assert "made again" in capsys.readouterr().err
    assert contents(tmp_path / "run")["summary.json"] == after["summary.json"]


def test_trees_predict_numbers_and_clients_of_one_class():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(90, 3, generator=draw)
    labels = 5 * inputs[:, 0] + torch.randn(90, generator=draw)
    split = {"train": (inputs[:60], labels[:60]), "test": (inputs[60:], labels[60:])}
    clients = ct.data.standardise(ct.data.from_tensors({"a": split, "b": split}))
    made = ct.compare(["local"], clients, rounds=1, seeds=[1], settings=WITH_TREES)
    own = clients[0]
    trees = HistGradientBoostingRegressor(early_stopping=False, random_state=1).fit(
        *(t.numpy() for t in own.train)
    )
    predicted = clients.label_scale.undo(
        torch.from_numpy(trees.predict(own.test.inputs.numpy()))
    )
    assert value(made, "trees-alone", "a", "rmse") == pytest.approx(
        root_mean_squared_error(labels[60:], predicted)
    )
    classes = (labels > 0).long()
    one = {
        "train": (inputs[:60], torch.ones(60, dtype=torch.long)),
        "test": (inputs[60:], classes[60:]),
    }
    both = {"train": (inputs[:60], classes[:60]), "test": (inputs[60:], classes[60:])}
    made = ct.compare(
        ["local"],
        ct.data.from_tensors({"a": one, "b": both}),
        rounds=1,
        seeds=[1],
        settings=WITH_TREES,
    )
    assert value(made, "trees-alone", "a", "accuracy") == pytest.approx(
        classes[60:].double().mean().item()
    )
    assert value(made, "trees-alone", "a", "auc") == 0.5


def test_what_trees_cannot_read_is_a_sentence():
    images = ct.data.from_tensors(
        [(torch.zeros(9, 4, 4), torch.tensor([0, 1, 0] * 3)) for _ in range(2)]
    )
    with pytest.raises(ct.InputError, match="--yardstick trees reads tables"):
        ct.compare(["local"], images, rounds=1, seeds=1, settings=WITH_TREES)
    with pytest.raises(
        ct.InputError, match="the label trees-alone is that of a yardstick"
    ):
        ct.compare(
            {"trees-alone": "local"},
            "heart-disease",
            rounds=1,
            seeds=1,
            settings=WITH_TREES,
        )
    with pytest.raises(
        ct.InputError,
        match=r"StudySettings.yardstick must be None or trees; got .forest",
    ):
        ct.compare(
            ["local"],
            "heart-disease",
            rounds=1,
            seeds=1,
            settings=ct.StudySettings(yardstick="forest"),
        )
