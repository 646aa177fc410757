"""Laws near the numbers of the report: each against a formula of its own, for generated values or at both sides of a bound."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import fake_run
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.compute.outcomes import Rows
from coterie.report import privacy
from coterie.report.card import card
from coterie.report.drawings import forest
from coterie.report.evidence import WORDS
from coterie.report.files import coinciding
from coterie.report.grids import grid
from coterie.report.outcomes import Outcomes, Told
from coterie.report.pictures import forest_picture
from coterie.report.planning import Plan, plan_lines
from coterie.report.privacy import TOO_FEW, Curve, Point
from coterie.report.results import Results
from coterie.report.text import chance
from coterie.report.verdicts import verdict
from coterie.report.words import _backwards


@settings(derandomize=True, deadline=None)
@given(st.floats(0.0, 0.95) | st.floats(0.95, 1.0))
def test_what_is_said_of_a_chance_is_true_of_its_probability(
    probability: float,
) -> None:
    said = chance(probability)
    if said == "over 99 %":
        assert probability > 0.995
    elif said.endswith(" %"):
        assert 0.95 <= probability <= 0.995
        assert abs(int(said.removesuffix(" %")) - 100 * probability) <= 0.5 + 1e-9
    else:
        tenths = int(said.removesuffix(" in 10"))
        assert probability < 0.95
        assert tenths / 10 <= probability + 1e-9
        assert probability < (tenths + 1) / 10 or tenths == 9


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_methods_coincide_with_the_first_of_their_kind(kinds: list[int]) -> None:
    methods = [f"method-{k}" for k in range(len(kinds))]
    place = {"client": "a", "split": "test", "seed": 0, "fold": ""}
    rows = [
        {**place, "method": method, "loss": float(kind)}
        for method, kind in zip(methods, kinds, strict=True)
    ]
    members: dict[int, list[str]] = {}
    for method, kind in zip(methods, kinds, strict=True):
        members.setdefault(kind, []).append(method)
    expected = {first: tuple(rest) for first, *rest in members.values() if rest}
    assert coinciding(methods, rows) == expected


@pytest.mark.parametrize("count", [12, 13])
def test_more_than_twelve_clients_have_rows_about_all(
    tmp_path: Path, count: int
) -> None:
    names = [f"client-{k:02d}" for k in range(count)]
    truth = {m: dict.fromkeys(names, (0.8, 0.8, 0.8, 0.4)) for m in ("local", "fedavg")}
    results = Results.load(fake_run.write(tmp_path, truth, seeds=(0, 1)))
    rows = grid(results, "accuracy", cost=False).rows
    about_all = ("worst client", "better", "worse") if count > 12 else ()
    assert rows == (*names, "mean", *about_all)


def test_a_picture_has_the_bars_of_its_forest(tmp_path: Path) -> None:
    plot = forest(Results.load(fake_run.heart(tmp_path)), "hungary")
    assert plot is not None
    svg = forest_picture("Hungary", "Undecided.", plot)
    bars = [bar for _, _, of_method in plot.rows for bar in of_method if bar]
    assert len(bars) == len(plot.rows) * len(plot.metrics)
    assert len(bars) == len(re.findall('<rect [^>]*width="8"', svg))
    for bar in bars:
        assert f">{bar.text}</text>" in svg


def test_a_plan_prints_the_chances_that_it_holds(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    chances = {50: {"undecided": 0.604, "join": 0.396}, 400: {"join": 1.0}}
    everybody = {50: {"stay alone": 0.25, "undecided": 0.75}, 400: {"join": 0.87}}
    plan = Plan(verdict(results, "hungary"), chances, everybody)
    lines = plan_lines(results, "hungary", plan)
    words = [word for word in WORDS if word in ("join", "undecided", "stay alone")]
    tables = {
        "rows of Hungary:": chances,
        "those, and in proportion at every other client:": everybody,
    }
    for heading, held in tables.items():
        start = lines.index(heading) + 1
        assert re.split(r"\s{2,}", lines[start].strip()) == words
        for line, (number, row) in zip(lines[start + 1 :], held.items(), strict=False):
            expected = [number, *(round(100 * row.get(word, 0)) for word in words)]
            assert [int(cell) for cell in line.split()] == expected
    assert "Probability of each word after further rows, in percent:" in lines


def test_a_difference_turned_round_has_the_other_sign_and_no_metric_of_the_first(
    tmp_path: Path,
) -> None:
    told = {
        "client": "a", "method": "fedavg", "other": "local", "metric": "loss",
        "error": 0.2, "p": 0.04, "gap": -0.3, "value": 0.5, "tested": 60, "rarest": 9,
    }  # fmt: skip
    (tmp_path / "paired.json").write_text(json.dumps([told]))
    outcomes = Outcomes(tmp_path, ())
    there = outcomes.of_site("a", "fedavg", "local", "loss")
    back = outcomes.of_site("a", "local", "fedavg", "loss")
    assert there == Told(0.2, 0.04, -0.3, 0.5, 60, 9)
    assert back is not None
    assert (back.gap, back.error, back.p) == (0.3, 0.2, 0.04)
    assert math.isnan(back.value)
    assert outcomes.of_site("b", "local", "fedavg", "loss") is None


def test_what_is_counted_at_a_client_is_the_mean_over_its_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A label below 0 is not known.
    labels = {0: np.array([0, 1, 1, -1, 2]), 1: np.array([2, 2, 1, 0, 2])}
    boosted = {0: np.full(5, 0.3), 1: np.array([0.1, 0.2, 0.3, 0.4, 0.5])}
    by_seed = {}
    for seed in (0, 1):
        zeros = np.zeros(5)
        by_seed[seed] = Rows(
            np.arange(5), zeros, zeros, labels[seed], None, boosted=boosted[seed]
        )
    outcomes = Outcomes(tmp_path, ())
    monkeypatch.setattr(Outcomes, "rows", lambda *_: by_seed)
    monkeypatch.setattr(Outcomes, "boosted_with", "local")
    assert outcomes.class_counts("local", "a", 3) == [1.0, 1.5, 2.0]
    assert outcomes.boosted_loss("a") == pytest.approx((0.3 + 0.3) / 2)
    monkeypatch.setattr(Outcomes, "rows", lambda *_: {})
    assert outcomes.class_counts("local", "a", 3) == []
    assert math.isnan(outcomes.boosted_loss("a"))


def test_gains_behind_noise_are_printed_epsilon_by_epsilon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results.load(fake_run.heart(tmp_path))
    unknown = Point(1.0, TOO_FEW, math.nan, math.nan, math.nan)
    known = [
        Point(8.0, "join", 0.03, 0.01, 0.05),
        Point(2.0, "undecided", 0.0, -0.02, 0.02),
    ]
    curves = [
        Curve("hungary", "fedavg", (*known, unknown)),
        Curve("cleveland", "fedavg", (unknown,)),
    ]
    monkeypatch.setattr(privacy, "privacy_curves", lambda _: curves)
    lines = [*privacy.curve_lines(results, 400)]
    of_points = []
    for point in known:
        gain, low, high = map(results.gain_text, (point.gain, point.low, point.high))
        of_points.append(f"{point.epsilon:g}: {gain} ({low} to {high})")
    assert [line.strip() for line in lines[1:]] == [
        "", "fedavg:",
        f"{'Hungary':<13} pays down to epsilon 8",
        "; ".join(of_points),
        f"{'Cleveland':<13} {TOO_FEW}",
        "",
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [100, 14])
def test_only_a_client_whose_ranking_counts_is_asked_whether_its_label_is_backwards(
    tmp_path: Path, rows: int
) -> None:
    forwards, backwards = (0.8, 0.8, 0.9, 0.4), (0.8, 0.8, 0.1, 0.4)
    truth = {
        "local": dict.fromkeys("abcd", forwards),
        "fedavg": {**dict.fromkeys("abc", forwards), "d": backwards},
    }
    sizes = {**dict.fromkeys("abc", 100), "d": rows}
    results = Results.load(fake_run.write(tmp_path, truth, n_test=sizes))
    has_ten_of_each_class = rows == 100
    assert results.comparisons.decides("d", "auc") == has_ten_of_each_class
    asked = " ".join(_backwards(results))
    assert ("the wrong way round at d (AUC" in asked) == has_ten_of_each_class


def test_a_card_says_at_which_risk_each_accuracy_counts(tmp_path: Path) -> None:
    results = Results.load(fake_run.heart(tmp_path), 0.3)
    text = card(results, "hungary", "fedavg", {"hungary": 100}, 0.3, rounds=60)
    title = results.metric_title("accuracy")
    # A model calls the class of the larger risk, whatever the threshold is.
    mean = results.mean("fedavg", "hungary", "accuracy")
    (row,) = re.findall(rf"^\| {title} at \.500 \| ([.\d]+) ", text, re.M)
    assert float(row) == pytest.approx(mean, abs=5e-4)
    assert f"| {title} |" not in text


@pytest.mark.parametrize("seeds", [2, 5])
def test_of_the_mean_over_clients_something_is_said_from_three_seeds_on(
    tmp_path: Path, seeds: int
) -> None:
    truth = {
        "local": dict.fromkeys("abcd", (0.7, 0.7, 0.7, 0.6)),
        "fedavg": dict.fromkeys("abcd", (0.9, 0.9, 0.95, 0.2)),
    }
    results = Results.load(fake_run.write(tmp_path, truth, seeds=range(seeds)))
    compared = results.comparisons
    strength = compared.family(None)["fedavg", "loss"].strength
    statement = compared._state_mean("fedavg", "loss")
    if seeds < 3:
        assert (strength, statement) == ("no verdict", None)
        return
    gains = [compared.gain("fedavg", client, "loss") for client in "abcd"]
    # The mean of four gains that err independently.
    mean = sum(gain.estimate for gain in gains) / 4
    spread = math.sqrt(sum(gain.spread**2 for gain in gains)) / 4
    assert strength != "no verdict"
    assert statement is not None
    assert statement.word == "join"
    assert statement.mean == pytest.approx(mean)
    assert statement.high - statement.low == pytest.approx(2 * 1.96 * spread, rel=1e-3)


@pytest.mark.parametrize("classes", [False, True])
def test_too_few_rows_are_said_with_what_a_verdict_needs(
    tmp_path: Path, classes: bool
) -> None:
    values, majority = (0.8, 0.8, 0.8, 0.4), 0.6
    metrics = fake_run.METRICS
    if not classes:
        values, majority, metrics = (1.5,), None, ("loss",)
    truth = {m: dict.fromkeys("ab", values) for m in ("local", "fedavg")}
    folder = fake_run.write(
        tmp_path, truth, n_test={"a": 10, "b": 60}, majority=majority, metrics=metrics
    )
    results = Results.load(folder)
    said = verdict(results, "a")
    assert said.kind == "too few rows to tell"
    # Only of classes a verdict needs rows of the rarer one.
    expected = "10 test rows; a verdict needs 30"
    if classes:
        rarer = "of the rarer class"
        cases = round(results.comparisons.rarest("a"))
        expected = f"10 test rows, {cases} {rarer}; a verdict needs 30, 5 {rarer}"
    assert said.reason == expected
