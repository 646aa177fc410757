"""Several labels of each row in npz files, one array of them beside one of inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import coterie as ct
from coterie.base.errors import InputError
from coterie.config.data import Tables
from coterie.data.tables.check import check_folder, short


def films(folder, labels):
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(0)
    for name in ("arthouse", "studio"):
        features = draw.normal(size=(60, 4)).astype("float32")
        several = draw.random((60, 3)) < (0.2, 0.5, 0.8)
        np.savez(
            folder / f"{name}.npz", features=features, labels=several.astype(labels)
        )
    return folder


@pytest.mark.parametrize("labels", ["float32", "bool", "float64"])
@pytest.mark.parametrize("named", [None, "labels", "labels.2"])
def test_several_labels_are_asked_about_before_one_of_them_is_the_label(
    labels, named, tmp_path
):
    """`labels.4` was offered as a spelling of `labels`, and the other four became inputs."""
    folder = films(tmp_path / "films", labels)
    with pytest.raises(InputError, match="several labels a row") as asked:
        ct.data.from_folder(folder, label=named)
    assert [str(cure) for cure in asked.value.cures] == [
        "arrays = true",
        "arrays = false",
    ]
    clients = ct.data.from_folder(folder, tables=Tables(arrays=True))
    assert clients.multi_hot
    one = ct.data.from_folder(folder, label="labels.2", tables=Tables(arrays=False))
    assert not one.multi_hot


def test_each_of_several_labels_has_one_name(tmp_path):
    folder = films(tmp_path / "films", "int64")
    with pytest.raises(
        InputError, match="classes has 2 names, and labels have 3 columns"
    ):
        ct.data.from_folder(folder, tables=Tables(arrays=True, classes=["sad", "long"]))
    named = Tables(arrays=True, classes=["sad", "long", "old"])
    assert ct.data.from_folder(folder, tables=named).classes == ("sad", "long", "old")
    checked = check_folder(folder, tables=named)
    shares = checked.columns["label"]["studio"].shares
    assert [*shares] == ["sad", "long", "old"]
    assert shares["sad"] < shares["long"] < shares["old"]


@pytest.mark.parametrize("labels", ["float32", "bool", "int64"])
def test_sisters_of_the_label_are_asked_about(labels, tmp_path):
    """With `labels.2` as the label `labels.0` and `labels.1` were inputs, and nobody was asked."""
    folder = films(tmp_path / "films", labels)
    one_label = Tables(label="labels.2", arrays=False)
    questions = check_folder(folder, tables=one_label).problems
    (question,) = [q for q in questions if "another outcome" in q]
    assert question.startswith("labels.0, labels.1:")
    drop, keep = question.cures
    assert drop.value == keep.value == ["labels.0", "labels.1"]
    for cure in (drop, keep):
        answered = replace(one_label, **{cure.key: cure.value})
        assert not check_folder(folder, tables=answered).problems


def test_columns_of_an_array_that_are_not_labels_are_inputs(tmp_path):
    """Inputs and the label may lie in one array."""
    folder = tmp_path / "films"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for name in ("arthouse", "studio"):
        table = draw.normal(size=(60, 4)).astype("float32")
        table[:, 2:] = table[:, 2:] > 0
        np.savez(folder / f"{name}.npz", table=table)
    assert not check_folder(folder, tables=Tables(label="table.3")).problems


def test_check_shows_the_share_of_each_label(tmp_path):
    """`0 20%, 1 50% and 1 more` read as if 0 and 1 were classes, and the third label was not told."""
    folder = films(tmp_path / "films", "int64")
    checked = check_folder(folder, tables=Tables(arrays=True))
    facts = checked.columns["label"]["studio"]
    assert [*facts.shares] == ["label 0", "label 1", "label 2"]
    shown = short(facts)
    assert all(name in shown for name in facts.shares)
