"""Ten folders with the faults of real files: each gives the rows of the clean tables, a note, or one sentence with the cure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from folders import FOLDERS, diabetes, fifty, plain

import coterie as ct
from coterie.base.errors import InputError
from coterie.config.data import Tables
from coterie.data import load
from coterie.data.tables.check import check_folder

pytest.importorskip("sklearn")
pytest.importorskip("openpyxl")


@pytest.mark.in_turn(but=("dialects", "signs", "unknown", "limits"))
@pytest.mark.parametrize("name", FOLDERS)
def test_a_spoiled_folder_gives_the_rows_of_the_clean_one_or_one_sentence(
    tmp_path, name
):
    made = FOLDERS[name]
    made.write(tmp_path / name)
    options = {**made.options, **made.cure}
    if made.refusal is not None:
        with pytest.raises(InputError, match=made.refusal):
            load(tmp_path / name, **made.options)
        assert check_folder(tmp_path / name, tables=Tables(**made.options)).problems
    clients, want = (
        load(tmp_path / name, **options),
        load(tmp_path / f"{name}-clean", **made.options),
    )
    assert clients.recipe["features"] == want.recipe["features"]
    assert clients.classes == want.classes
    for part in ("train", "validation", "test"):
        got, wanted = getattr(clients, part), getattr(want, part)
        torch.testing.assert_close(got.inputs, wanted.inputs, rtol=1e-5, atol=1e-6)
        assert torch.equal(got.labels, wanted.labels)
    said = "; ".join(clients.notes)
    for note in made.notes:
        assert note in said
    used = Tables(
        **{**options, "keep": ["mean_concave_points"]}
    )  # by which a tumour is told in most rows
    assert check_folder(tmp_path / name, tables=used).problems == ()


def test_the_client_of_three_rows_and_the_rare_categories_are_there(tmp_path):
    FOLDERS["tiny"].write(tmp_path / "tiny")
    clients = load(tmp_path / "tiny", label="diagnosis")
    assert sum(len(part) for _, part in clients["three"].parts()) == 3
    FOLDERS["wards"].write(tmp_path / "wards")
    pooled = load(tmp_path / "wards", label="diagnosis", rare=5).recipe["features"]
    assert [f for f in pooled if f.startswith("ward=")] == [
        "ward=A",
        "ward=B",
        "ward=C",
        "ward=(rare)",
    ]


def test_regression_in_three_units_gives_the_same_rows_and_errors_in_the_unit(tmp_path):
    made = []
    for factor in (1.0, 1000.0, 0.01):
        for name, columns in diabetes(factor).items():
            plain(tmp_path / f"{factor}", name, columns)
        clients = load(tmp_path / f"{factor}", label="progression", task="regression")
        run = ct.fit(ct.FedAvg(), clients, ct.models.Logistic(), rounds=3, seed=0)
        made.append(
            (
                clients,
                {(r["client"], r["split"]): r["rmse"] / factor for r in run.summary},
            )
        )
    for clients, errors in made[1:]:
        torch.testing.assert_close(
            clients.train.labels, made[0][0].train.labels, rtol=1e-6, atol=1e-6
        )
        assert errors == pytest.approx(made[0][1], rel=1e-3)


@pytest.mark.slow
def test_fifty_clients_of_which_one_has_two_hundred_thousand_rows(tmp_path):
    for name, columns in fifty(200_000).items():
        plain(tmp_path / "fifty", name, columns)
    clients = load(tmp_path / "fifty", label="diagnosis")
    assert clients.sizes("train")["site-17"] == pytest.approx(
        200_000 * 8 / 15, rel=1e-3
    )
    run = ct.fit(ct.FedAvg(), clients, ct.models.Logistic(), rounds=3, seed=0)
    accuracy = [r["accuracy"] for r in run.summary if r["split"] == "test"]
    assert len(accuracy) == 50
    assert np.mean(accuracy) > 0.85
