"""`coterie predict` with the models of each seed: another split may lack a category."""

from __future__ import annotations

import json


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
