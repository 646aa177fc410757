"""`coterie predict` with the models of each seed: another split may lack a category."""

from __future__ import annotations

import csv
import io
import json

import numpy as np


def done(ended):
    assert ended.status == 0, ended.err
    return ended


def test_predict_with_a_category_that_one_seed_lacks(coterie, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in "ab":
        wards = ["rare" if name == "a" and i == 0 else "xyz"[i % 3] for i in range(18)]
        lines = [
            "x,ward,y",
            *(f"{i % 7},{ward},{i % 2}" for i, ward in enumerate(wards)),
        ]
        (tmp_path / "mine" / f"{name}.csv").write_text("\n".join(lines) + "\n")
    flags = (
        "--methods",
        "local,fedavg",
        "--rounds",
        "1",
        "--seeds",
        "4",
        "--no-report",
        "--out",
        "run",
    )
    ended = coterie("compare", "mine", "--label", "y", *flags)
    assert ended.status == 0, ended.err
    recipes = json.loads((tmp_path / "run" / "preprocess.json").read_text())
    has = {seed: "ward=rare" in recipe["features"] for seed, recipe in recipes.items()}
    assert set(has.values()) == {True, False}
    for seed in has:
        for method in ("local", "fedavg"):
            chosen = ("--client", "a", "--method", method, "--seed", seed)
            ended = coterie("predict", "run", "mine/a.csv", *chosen)
            assert ended.status == 0, ended.err
            assert len(ended.out.splitlines()) == 19
            assert ("which no training row has" in ended.err) == (not has[seed])


def test_a_model_of_arrays_answers_for_an_npz(coterie, tmp_path):
    """It was refused: a run of arrays could be compared, and its models were of no use on the command line."""
    draw = np.random.default_rng(0)
    (tmp_path / "films").mkdir()
    slopes = draw.normal(size=(4, 3))
    for name in ("arthouse", "studio"):
        features = draw.normal(size=(80, 4)).astype("float32")
        np.savez(
            tmp_path / "films" / f"{name}.npz",
            features=features,
            labels=(features @ slopes > 0).astype("int64"),
        )
    new = draw.normal(size=(5, 4)).astype("float32")
    np.savez(tmp_path / "new.npz", features=new, year=np.arange(5))
    command = "compare films --set data.arrays=true --methods local,fedavg --rounds 3 --seeds 1 --folds 0 --out run"
    done(coterie(*command.split(), "--set", 'data.classes=["sad","long","old"]'))
    # As reports print the name.
    told = done(coterie("predict", "run", "new.npz", "--client", "Studio"))
    header, *rows = told.out.strip().splitlines()
    assert len(rows) == 5
    assert all(name in header for name in ("sad", "long", "old"))

    # The labels of the file are no input, and the model has learnt them.
    told = done(coterie("predict", "run", "films/studio.npz", "--client", "studio"))
    rows = csv.DictReader(io.StringIO(told.out))
    risks = np.array([float(row["sad"]) for row in rows])
    labels = np.load(tmp_path / "films" / "studio.npz")["labels"][:, 0]
    assert risks[labels == 1].mean() > risks[labels == 0].mean() + 0.2

    refused = coterie("predict", "run", "new.npz")
    assert refused.status == 2
    assert "with --client" in refused.err
    np.savez(tmp_path / "wide.npz", features=np.ones((5, 6), "float32"))
    refused = coterie("predict", "run", "wide.npz", "--client", "studio")
    assert refused.status == 2
    assert "one array of rows of shape [4]" in refused.err
