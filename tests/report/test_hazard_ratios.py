"""Hazard ratios in reports: per unit, per deviation and against a category, as statsmodels has them on the pooled table."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.report.card import card
from coterie.report.hazard_ratios import hazard_ratios
from coterie.report.html import write_page


def clinic(seed, n=160):
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 12, n).round(1)
    stage = rng.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2])
    risk = 0.04 * (age - 60) + 0.7 * (stage == "III")
    until, end = rng.exponential(30 * np.exp(-risk)), rng.uniform(5, 60, n)
    return pd.DataFrame(
        {
            "age": age,
            "stage": stage,
            "months": np.minimum(until, end).round(1) + 0.1,
            "died": (until <= end).astype(int),
        }
    )


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clinics")
    frames = {name: clinic(i) for i, name in enumerate(("east", "north", "west"))}
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    data = {
        "folder": str(folder),
        "time": "months",
        "event": "died",
        "split": {"folds": 3},
    }
    found = ct.compare(["local", "cox", "fixed-effects"], data, rounds=9, seeds=1)
    return found.results, frames


def test_ratios_and_intervals_are_those_of_statsmodels_on_all_rows(compared):
    sm = pytest.importorskip("statsmodels.api")
    results, frames = compared
    pooled = pd.concat(frames.values())
    who = np.repeat(np.arange(3), 160)
    x = np.column_stack([pooled.age, pooled.stage == "II", pooled.stage == "III"])
    # Times in a file have one decimal, which float32 keeps apart.
    model = sm.PHReg(pooled.months, x, status=pooled.died, strata=who, ties="efron")
    theirs = model.fit(disp=0)
    ours = hazard_ratios(results, "cox")
    names = [one.name for one in ours]
    assert names == ["age", "stage: II against I", "stage: III against I"]
    for one, slope, error in zip(ours, theirs.params, theirs.bse, strict=True):
        assert one.ratio == pytest.approx(np.exp(slope), rel=1e-4)
        assert one.low == pytest.approx(np.exp(slope - 1.96 * error), rel=1e-4)
        assert one.high == pytest.approx(np.exp(slope + 1.96 * error), rel=1e-4)
    deviation = pooled.age.std(ddof=0)
    expected = np.exp(theirs.params[0] * deviation)
    assert ours[0].per_deviation == pytest.approx(expected, rel=1e-3)


def test_report_and_card_have_them_and_other_methods_none(compared):
    results, _ = compared
    assert hazard_ratios(results, "fixed-effects") == []
    assert hazard_ratios(results, "local") == []
    age = hazard_ratios(results, "cox")[0]
    page = write_page(results).read_text(encoding="utf-8")
    section = page[page.index('id="hazard-ratios"') :]
    assert age.interval in section
    assert "stage: III against I" in section
    text = card(results, "east", "cox", {"east": 160}, rounds=9)
    row = next(line for line in text.splitlines() if line.startswith("| age |"))
    assert len(re.findall(r"\|", row)) == 5
    assert age.interval in row
    assert "Hazard ratios" not in card(results, "east", "local", {"east": 9}, rounds=9)
