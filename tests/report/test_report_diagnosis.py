"""Measures of a test and of its calibration against scikit-learn, and where a client's table takes them from."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import fake_run
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sklearn.metrics import (
    brier_score_loss,
    confusion_matrix,
    f1_score,
    precision_score,
    recall_score,
)

from coterie.report.diagnosis import diagnose, table, thresholds
from coterie.report.drawings import forest, network
from coterie.report.pictures import forest_picture, network_picture
from coterie.report.results import Results


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8])
def test_measures_against_scikit_learn(threshold: float) -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(200) < 0.3).astype(int)
    risks = np.clip(0.3 + 0.3 * labels + rng.normal(0, 0.2, 200), 0, 1)
    called = (risks >= threshold).astype(int)
    found = diagnose(risks, labels, threshold)
    tn, fp, fn, tp = confusion_matrix(labels, called).ravel()
    assert found.sensitivity == pytest.approx(recall_score(labels, called))
    assert found.specificity == pytest.approx(tn / (tn + fp))
    assert found.ppv == pytest.approx(precision_score(labels, called))
    assert found.npv == pytest.approx(tn / (tn + fn))
    assert found.f1 == pytest.approx(f1_score(labels, called))
    assert found.brier == pytest.approx(brier_score_loss(labels, risks))
    assert tp == round(found.sensitivity * labels.sum())


def test_what_no_row_can_tell_is_undefined() -> None:
    found = diagnose([0.9, 0.8], [1, 1])
    assert math.isnan(found.specificity)
    assert math.isnan(found.npv)
    assert found.sensitivity == found.ppv == 1


def test_the_table_of_a_client_is_the_mean_over_seeds(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    rows = table(results, "cleveland")
    assert [row["method"] for row in rows] == ["local", "fedavg", "meritfed"]
    seeds = results.comparisons.outcomes.rows("fedavg", "cleveland").values()
    sensitivities = [
        recall_score(s.labels, s.outputs[:, 0] >= 0)
        for s in seeds
        if s.outputs is not None
    ]
    assert float(rows[1]["cells"][0]) == pytest.approx(np.mean(sensitivities), abs=5e-4)
    plain = fake_run.write(
        tmp_path / "number", {"local": {"a": (1.0,)}}, metrics=("loss",), majority=None
    )
    assert table(Results.load(plain), "a") == []


def test_the_threshold_is_the_one_that_was_said(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    low, high = (
        table(Results.load(folder, threshold), "cleveland")[0]
        for threshold in (0.1, 0.9)
    )
    assert (low["threshold"], high["threshold"]) == (".100", ".900")
    assert float(low["cells"][0]) > float(high["cells"][0])  # sensitivity
    assert float(low["cells"][1]) < float(high["cells"][1])  # specificity
    assert low["cells"][5:] == high["cells"][5:]  # the Brier score needs no threshold
    (folder / "experiment.toml").write_text(
        (folder / "experiment.toml").read_text() + "\n[report]\nthreshold = 0.1\n"
    )
    assert table(Results.load(folder), "cleveland")[0] == low


def test_a_threshold_from_validation_rows_is_that_of_each_seed(tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    for path in (folder / "outcomes").iterdir():
        with safe_open(path, framework="numpy") as file:
            about = file.metadata()
        tensors = load_file(path)
        known = json.loads(about["coterie"])
        local = known["method"] == "local"
        tensors["thresholds"] = np.full(
            4, 0.3 if local and known["seed"] else 0.7 if local else np.nan
        )
        save_file(tensors, path, metadata=about)
    results = Results.load(folder, "validation")
    assert thresholds(results, "local", "hungary") == {
        0: 0.7,
        1: 0.3,
        2: 0.3,
        3: 0.3,
        4: 0.3,
    }
    rows = table(results, "hungary")
    assert rows[0]["threshold"] == ".380"
    assert rows[1]["threshold"] == "-"  # fedavg trained on its validation rows
    assert rows[1]["cells"][:5] == ["-"] * 5
    assert "-" not in rows[1]["cells"][5:]


def test_a_forest_shows_every_method_with_its_interval(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    plot = forest(results, "switzerland")
    assert plot is not None
    assert plot.metrics == (("log-loss", "← better"),)
    assert [row[0] for row in plot.rows] == ["fedavg", "meritfed"]
    bar = plot.rows[0][2][0]
    assert bar is not None
    assert 50 < bar.low < bar.at < bar.high <= 96.01
    assert bar.state == "bad"
    assert bar.label.endswith(", worse")
    assert bar.text.endswith("), worse")  # not by its colour alone
    long = "Safe to join: (a method that somebody gave a name of many letters)."
    (width,) = re.findall(
        r'<svg [^>]*width="(\d+)"', forest_picture("Switzerland", long, plot)
    )
    assert (
        int(width) > 6.5 * len(long) + 16
    )  # pixels of a letter at 13 pixels, and its margin
    truth = {m: v for m, v in fake_run.STORY.items() if m != "local"}
    assert (
        forest(Results.load(fake_run.heart(tmp_path / "none", truth=truth)), "hungary")
        is None
    )


def test_who_helps_whom_is_drawn_for_few_clients(tmp_path: Path) -> None:
    drawn = network(Results.load(fake_run.heart(tmp_path)))
    assert drawn is not None
    arrows = {(a["helper"], a["target"]): a["width"] for a in drawn["arrows"]}
    assert ("Hungary", "Cleveland") in arrows
    assert ("Switzerland", "Cleveland") not in arrows  # 1 % of the weight
    assert arrows["Hungary", "Cleveland"] > arrows["Long Beach", "Cleveland"]
    radius = {n["name"]: n["r"] for n in drawn["nodes"]}
    assert radius["Cleveland"] > radius["Switzerland"]
    assert drawn["label"].startswith(
        "Who helps whom under meritfed: Cleveland gives Long Beach 38 %"
    )
    assert network(Results.load(fake_run.heart(tmp_path / "none", weights={}))) is None


@pytest.mark.parametrize("count", [5, 9, 11, 12])
def test_no_name_lies_on_another_where_names_are_long(
    tmp_path: Path, count: int
) -> None:
    names = [f"University Hospital of District {i}" for i in range(count)]
    truth = {
        m: dict.fromkeys(names, (0.8, 0.8, 0.8, 0.4)) for m in ("local", "meritfed")
    }
    rows = dict.fromkeys(names, (1 / count,) * count)
    drawn = network(
        Results.load(
            fake_run.write(tmp_path, truth, seeds=[0], weights={"meritfed": rows})
        )
    )
    assert drawn is not None
    boxes = []
    for node in drawn["nodes"]:
        width = 6.5 * len(node["name"])
        left = (
            node["label_x"]
            - {"start": 0, "middle": width / 2, "end": width}[node["anchor"]]
        )
        boxes.append((left, left + width, node["label_y"] - 11, node["label_y"] + 3))
    circles = [
        (n["x"] - n["r"], n["x"] + n["r"], n["y"] - n["r"], n["y"] + n["r"])
        for n in drawn["nodes"]
    ]
    for i, (left, right, top, bottom) in enumerate(boxes):
        assert 0 < left < right < drawn["width"]
        assert 0 < top < bottom < drawn["height"]
        others = [*boxes[:i], *circles]
        assert not any(
            left < r and start < right and top < b and t < bottom
            for start, r, t, b in others
        )
    assert len({n["name"] for n in drawn["nodes"]}) == count


def test_a_picture_of_who_helps_whom_names_each_client_once():
    nodes = [
        {"x": 10 * k, "y": 9, "r": 3, "label_x": 10 * k, "label_y": 20}
        | {"name": name, "anchor": "middle"}
        for k, name in enumerate(("a & b", "c"))
    ]
    drawn = {"arrows": [], "nodes": nodes, "width": 90, "height": 60, "label": "whom"}
    picture = ElementTree.fromstring(network_picture(drawn))
    texts = [node.text for node in picture.iter() if node.tag.endswith("text")]
    assert texts == ["a & b", "c"]
