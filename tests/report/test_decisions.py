"""What a model is worth for decisions, and its calibration, against counts by hand, scikit-learn and resampling."""

from __future__ import annotations

import math
from pathlib import Path

import fake_run
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sklearn.linear_model import LogisticRegression

from coterie.base.errors import InputError
from coterie.compute.outcomes import Rows, row_error
from coterie.report import decisions
from coterie.report.card import card
from coterie.report.decisions import (
    CURVE,
    MEASURES,
    decision,
    decision_curve,
    measures,
    table,
    treat_all,
)
from coterie.report.results import Results


def rows_of(logits: np.ndarray, labels: np.ndarray) -> Rows:
    n = len(labels)
    return Rows(np.arange(n), np.zeros(n), np.zeros(n), labels, logits[:, None])


def drawn(n: int, seed: int = 0, slope: float = 1.0, shift: float = 0.0) -> Rows:
    """Rows whose risks are right but for a slope and a shift of their logits."""
    rng = np.random.default_rng(seed)
    true = rng.normal(-0.5, 1.2, n)
    labels = (rng.random(n) < 1 / (1 + np.exp(-true))).astype(int)
    return rows_of((true - shift) / slope, labels)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """One client whose logits of `fedavg` are those of `drawn`."""
    one = (0.8, 0.78, 0.8, 0.45)
    truth = {m: {"a": one} for m in ("local", "fedavg")}
    fake_run.write(tmp_path, truth, seeds=range(3), n_test=300)
    for path in (tmp_path / "outcomes").iterdir():
        with safe_open(path, framework="numpy") as file:
            about = file.metadata()
        tensors = load_file(path)
        rows = drawn(300, 1)
        tensors |= {"labels": rows.labels, "outputs": rows.outputs}
        tensors["numbers"] = np.arange(300)
        save_file(tensors, path, metadata=about)
    return Results.load(tmp_path)


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.6])
def test_net_benefit_counts_patients(results: Results, threshold: float) -> None:
    rows = drawn(300, 1)
    treated, cases = rows.risks >= threshold, rows.labels == 1
    hits, alarms = (treated & cases).sum(), (treated & ~cases).sum()
    benefit = 100 * (hits - alarms * threshold / (1 - threshold)) / 300
    found = measures(results, "fedavg", "a", threshold)
    assert found["net benefit"].mean == pytest.approx(benefit)
    everybody = 100 * treat_all(cases.mean(), threshold)
    assert found["over all"].mean == pytest.approx(benefit - everybody)
    assert found["missed"].mean == pytest.approx(100 * (~treated & cases).sum() / 300)
    curve = decision_curve(results, "fedavg", "a")
    place = int(np.argmin(np.abs(CURVE - threshold)))
    assert curve[place] == pytest.approx(
        measures(results, "fedavg", "a", float(CURVE[place]))["net benefit"].mean
    )


def test_calibration_is_that_of_a_logistic_regression(results: Results) -> None:
    rows = drawn(300, 1)
    found = measures(results, "fedavg", "a", 0.3)
    line = LogisticRegression(C=math.inf, tol=1e-10).fit(rows.outputs, rows.labels)
    assert found["slope"].mean == pytest.approx(float(line.coef_[0, 0]), abs=1e-4)
    # At the intercept the mean risk is the share of cases.
    shifted = 1 / (1 + np.exp(-(rows.outputs[:, 0] + found["intercept"].mean)))
    assert shifted.mean() == pytest.approx(rows.labels.mean(), abs=1e-8)
    assert found["O:E"].mean == pytest.approx(rows.labels.mean() / rows.risks.mean())


def test_risks_that_are_too_extreme_have_a_small_slope() -> None:
    steep = decisions._slope(drawn(20_000, 2, slope=0.5))
    assert steep.metric == pytest.approx(0.5, abs=0.03)
    low = decisions._intercept(drawn(20_000, 2, shift=0.7))
    assert low.metric == pytest.approx(0.7, abs=0.08)


@pytest.mark.parametrize("name", ["_slope", "_intercept", "_observed_over_expected"])
def test_errors_are_those_of_resampled_patients(name: str) -> None:
    rows, measure = drawn(400, 3), getattr(decisions, name)
    one = measure(rows)
    said = row_error([one], [one._replace(values=np.zeros(400))]).error
    rng = np.random.default_rng(0)
    again = []
    for _ in range(200):
        chosen = rng.integers(0, 400, 400)
        again.append(measure(rows_of(rows.outputs[chosen, 0], rows.labels[chosen])))
    resampled = np.std([influence.metric for influence in again])
    assert said == pytest.approx(resampled, rel=0.2)


def test_what_has_no_maximum_is_left_out() -> None:
    labels = np.array([0, 0, 1, 1])
    assert decisions._slope(rows_of(np.array([-1.0, -0.5, 0.5, 1.0]), labels)) is None
    assert decisions._slope(rows_of(np.zeros(4), labels)) is None
    assert decisions._intercept(rows_of(np.zeros(4), np.ones(4, dtype=int))) is None


@pytest.mark.parametrize("steepness", [0.5, 19.0, 21.0])
def test_a_slope_grows_as_its_logits_shrink_up_to_twenty(steepness: float) -> None:
    generator = np.random.default_rng(4)
    logits = generator.normal(size=400)
    labels = (generator.random(400) < 1 / (1 + np.exp(-logits))).astype(int)
    plain = decisions._slope(rows_of(logits, labels))
    assert plain is not None
    scaled = decisions._slope(rows_of(logits * plain.metric / steepness, labels))
    if steepness > 20:
        assert scaled is None
    else:
        assert scaled is not None
        assert scaled.metric == pytest.approx(steepness)


def test_the_threshold_is_the_users_or_the_prevalence(results: Results) -> None:
    share = drawn(300, 1).labels.mean()
    found = decision(results, "a")
    assert (found.threshold, found.named) == (pytest.approx(share), False)
    named = Results.load(results.folder, 0.2)
    assert decision(named, "a").words == "20 %"
    assert "the share of cases here" in found.words
    assert Results.load(results.folder, "prevalence").decision_threshold is None
    with pytest.raises(InputError, match="prevalence"):
        Results.load(results.folder, "half")


def test_the_table_stands_beside_treating_all_and_none(results: Results) -> None:
    found = table(Results.load(results.folder, 0.2), "a")
    assert found.columns == ("local", "fedavg", "treat all", "treat none")
    assert [title for title, _ in found.rows] == list(MEASURES.values())
    share = drawn(300, 1).labels.mean()
    everybody = 100 * treat_all(share, 0.2)
    benefit, over_all, missed, *rest = [cells[2:] for _, cells in found.rows]
    assert float(benefit[0][0]) == pytest.approx(everybody, abs=0.05)
    assert float(over_all[1][0].replace("−", "-")) == pytest.approx(
        -everybody, abs=0.05
    )
    assert float(missed[1][0]) == pytest.approx(100 * share, abs=0.05)
    assert all(value == "-" for cells in rest for value, _ in cells)


def test_the_card_says_it(results: Results) -> None:
    text = card(results, "a", "fedavg", {"a": 300}, 0.5, rounds=60)
    for title in MEASURES.values():
        assert f"| {title} |" in text
    assert "Treating everybody has a net benefit of " in text


def test_without_two_classes_there_is_nothing_to_decide(tmp_path: Path) -> None:
    truth = {"local": {"a": (1.0,)}}
    fake_run.write(tmp_path, truth, metrics=("loss",), majority=None)
    results = Results.load(tmp_path)
    assert decision(results, "a") is None
    assert table(results, "a") is None
    assert measures(results, "local", "a", 0.3) == {}
