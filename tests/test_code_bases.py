"""What the page about other frameworks states was measured, and coterie's side of it is right by other means."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import agreement

ROOT = Path(__file__).resolve().parent.parent
RESULT = json.loads((ROOT / "benchmarks" / "results" / "agreement.json").read_text())


@pytest.fixture(scope="module")
def given():
    return agreement.problems()


@pytest.fixture(scope="module")
def ours(given):
    return agreement.ours(given)


def test_every_difference_on_the_page_is_explained():
    differing = [row for row in RESULT["rows"] if row["difference"] > agreement.SAME]
    assert len(differing) > 5
    assert [
        row["rule"]
        for row in differing
        if not row["choice"] or row["with it"] > agreement.SAME
    ] == []


def test_training_is_what_numpy_computes(given, ours):
    sizes = agreement.trained(given, uniform=False)
    assert ours["FedAvg, 3 rounds"][0] == pytest.approx(sizes, abs=1e-6)
    assert ours["SCAFFOLD, 3 rounds"][0] == pytest.approx(
        agreement.trained(given, uniform=True, sign=1.0), abs=1e-6
    )


def test_a_difference_is_explained_by_the_choice_that_leaves_none(given, ours):
    uniform = np.mean(given["models"], axis=0)
    answers = {
        "average": uniform.tolist(),
        "median": (ours["median"][0] + 1).tolist(),
        "IPM": ours["IPM"][0].tolist(),
    }
    told = {"other": {"version": "1", "answers": answers, "problem": "KeyError: x"}}
    rows, stopped = agreement.compare(given, told)
    assert [(row["rule"], row.get("choice")) for row in rows] == [
        ("average", "weighs all clients alike"),
        ("median", ""),
        ("IPM", None),
    ]
    page = agreement.table(
        {
            "rows": rows,
            "not_run": stopped,
            "measured": "2026-01-01",
            "commit": "c",
            "versions": {"torch": "2"},
        }
    )
    assert "other stopped: `KeyError: x`." in page
    assert "| median | other 1 | " in page
    assert "not explained" in page
