"""A server that says whatever it wants to a site with its own minima: five ways to its rows, and how many rows each gives."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hospital import FEDAVG, Hospital, local

from coterie.compute.metrics import evaluate
from coterie.compute.tasks import local_update
from coterie.data.tables.recipe import describe, moments
from coterie.sites.allowed import RefusedError
from coterie.sites.tables import description_options

COLUMNS = ("age", "trestbps", "chol", "thalach", "oldpeak")


def rows_of(hospital):
    """The rows that an attacker would have to find: what the site has encoded."""
    return hospital.rows.clients.train.inputs


def found(candidates, rows):
    """How many rows are among the candidates [k, d], up to scale: a gradient of one row is a multiple of that row."""
    if not len(candidates):
        return 0
    seen, true = (
        torch.nn.functional.normalize(v.double(), dim=1) for v in (candidates, rows)
    )
    return int((seen @ true.T).abs().max(0).values.gt(1 - 1e-9).sum())


def by_categories(hospital):
    """Ask for the distinct values of columns of numbers: few values per cell would be names of rows."""
    about = description_options(hospital.rows.options)
    said = []
    for column in COLUMNS:
        with pytest.raises(RefusedError):
            said.append(
                hospital.ask(describe, **{**about, "categorical": json.dumps([column])})
            )
    return len(said)


def by_another_label(hospital):
    """Let the description look at another column as the label: it lists values over all rows."""
    about = description_options(hospital.rows.options)
    said = []
    for column in COLUMNS:
        with pytest.raises(RefusedError):
            said.append(hospital.ask(describe, **{**about, "label": column}))
    return len(said)


def by_sums_of_many_splits(hospital):
    """Sums over the training rows of many seeds are as many equations."""
    equations = 0
    for seed in range(400):
        try:
            hospital.say("open", seed=seed)
            hospital.ask(moments, schema=json.dumps(["age"]))
            equations += 1
        except RefusedError:
            continue
    assert equations == 1  # the seed of the plan
    hospital.begin()
    return 0 if equations * 3 <= len(rows_of(hospital)) / 10 else len(rows_of(hospital))


def by_batches_of_one_row(hospital):
    """A step on one row moves a linear model along that row."""
    updates = []
    for asked in (
        local(steps=replace(local().steps, count=1), batch_size=1),
        local(batch_size=1, minimum_batch=1),
    ):
        for at in range(1, 4):
            with pytest.raises(RefusedError):
                updates.append(
                    hospital.ask(local_update, round=at, x=hospital.x, local=asked)[
                        "delta"
                    ]
                )
    honest = [
        hospital.ask(local_update, round=r, x=hospital.x, local=local())["delta"]
        for r in range(1, 6)
    ]
    rows = rows_of(hospital)
    return found(torch.cat(honest)[:, : rows.shape[1]], rows)


def by_parts_of_one_row(hospital):
    """The loss of a model on a part of one row is that row's."""
    hospital.rows.experiment.split["parts"] = {
        "train": 0.98,
        "validation": 0.01,
        "test": 0.01,
    }
    hospital.begin()
    said = hospital.ask(
        evaluate, x=hospital.x, part="validation", metrics=("accuracy", "auc")
    )
    return int(said["rows"][0])


WAYS = (
    by_categories,
    by_another_label,
    by_sums_of_many_splits,
    by_batches_of_one_row,
    by_parts_of_one_row,
)


@pytest.mark.promise("the plan and nothing else")
def test_five_ways_to_rows_give_none(tmp_path):
    reconstructed = {}
    for number, way in enumerate(WAYS):
        folder = tmp_path / str(number)
        folder.mkdir()
        reconstructed[way.__name__] = way(Hospital(folder, methods=(FEDAVG,)).begin())
    assert reconstructed == dict.fromkeys(reconstructed, 0)
    assert len(reconstructed) == 5


def test_batches_of_one_row_give_rows_where_nothing_protects_them(tmp_path):
    bare = {"minimum_rows": 1, "minimum_cell": 1, "minimum_batch": 1}
    one = {
        "name": "fedavg",
        "local": {"steps": 1, "batch_size": 1, "minimum_batch": 1, "weight_decay": 0.0},
    }
    hospital = Hospital(
        tmp_path, settings=bare, methods=(one,), rounds=30, local={"minimum_batch": 1}
    ).begin()
    asked = hospital.approved.pairs["fedavg-0"].method.local
    updates = [
        hospital.ask(local_update, round=r, x=hospital.x, local=asked)["delta"]
        for r in range(1, 31)
    ]
    rows = rows_of(hospital)
    assert found(torch.cat(updates)[:, : rows.shape[1]], rows) >= 20
