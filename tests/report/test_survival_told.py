"""A comparison whose label is a time to event: verdicts, their smallest effect, the veto of C, and survival as predicted and seen."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.compute.outcomes import Rows
from coterie.report.comparisons import Comparisons
from coterie.report.evidence import (
    smallest_effect,
    smallest_effect_of_counts,
    smallest_effect_of_events,
)
from coterie.report.followup import groups_of, in_words, patients_of
from coterie.report.words import tell


def hospital(seed, n, slope):
    rng = np.random.default_rng(seed)
    age = rng.normal(0, 1, n)
    until, end = rng.exponential(20 * np.exp(-slope * age)), rng.uniform(1, 60, n)
    return pd.DataFrame(
        {
            "age": age,
            "noise": rng.normal(size=n),
            "months": np.minimum(until, end),
            "died": (until <= end).astype(int),
        }
    )


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals")
    for seed, (name, n, slope) in enumerate(
        [("large", 150, 1.0), ("like", 50, 1.0), ("other", 90, -1.5)]
    ):
        hospital(seed, n, slope).to_csv(folder / f"{name}.csv", index=False)
    data = {
        "folder": str(folder),
        "time": "months",
        "event": "died",
        "horizon": 24.0,
        "split": {"folds": 5},
    }
    methods = ["local", "fixed-effects", "partial"]
    return ct.compare(methods, data, rounds=12, seeds=1)


def test_a_client_unlike_the_others_stays_alone_and_ranks_worse(comparison):
    compared = comparison.results.comparisons
    assert compared.statement("fixed-effects", "other", "loss").word == "stay alone"
    assert compared.gain_metric == "loss"
    assert compared.deciding("other") == ("c_index", "loss")
    ranks = compared.difference("fixed-effects", "local", "other", "c_index")
    assert ranks.mean < 0


@pytest.mark.in_turn
def test_the_smallest_effect_follows_from_events(comparison):
    results = comparison.results
    for client in results.clients:
        without, events = results.comparisons.event_counts(client)
        expected = 0.04 * events / (without + events)
        assert comparison.verdict(client).smallest == pytest.approx(expected)


def test_the_smallest_effect_means_the_same_at_few_and_at_many_events():
    """A row with an event tells of a rate what a row of two classes tells of a share, if both are rare."""
    rare = smallest_effect_of_events(9900, 100) / smallest_effect([9900, 100])
    assert rare == pytest.approx(1, abs=0.02)
    assert smallest_effect_of_events(50, 0) > 0


@pytest.mark.parametrize("mean", [0.03, 0.3, 1.0, 3.0])
def test_the_smallest_effect_on_counts_needs_rows_with_an_event_alone(mean):
    """Where a site tells how many rows have one it is, of Poisson counts, that of the deviance of its rows."""
    seen = np.random.default_rng(0).poisson(mean, 20_000)
    usual = np.full(len(seen), seen.mean())
    constant = usual - seen * np.log(usual / usual)  # of a rate that is the usual one
    rows = Rows(
        np.arange(len(seen)),
        constant,
        constant,
        None,
        None,
        counts=np.column_stack([usual, seen]).astype(float),
    )
    events = int((seen > 0).sum())
    told = smallest_effect_of_counts(len(seen) - events, events)
    assert told == pytest.approx(0.01 * rows.half_deviance, rel=0.05)


def test_a_site_that_tells_counts_has_their_smallest_effect(monkeypatch):
    compared = Comparisons.__new__(Comparisons)

    class Told:
        half_deviance = staticmethod(lambda method, client: None)
        event_counts = staticmethod(lambda method, client: None)
        test_rows = staticmethod(lambda method, client: 100)
        rarest = staticmethod(lambda method, client: 20)

    class Results:
        against, smallest, of_counts, of_events = "local", 0.01, True, False
        classification, experiment = False, {}

    monkeypatch.setattr(Comparisons, "outcomes", Told, raising=False)
    object.__setattr__(compared, "results", Results)
    assert compared.smallest_at("a", "loss") == smallest_effect_of_counts(80, 20)


def test_survival_is_predicted_and_seen_in_all_patients_and_by_third_of_risk(
    comparison,
):
    results = comparison.results
    groups = groups_of(results, "local", "large")
    everybody, *thirds = groups
    assert everybody.patients == 150 == sum(group.patients for group in thirds)
    assert everybody.low < everybody.seen < everybody.high
    assert everybody.predicted == pytest.approx(everybody.seen, abs=0.1)
    predicted = [group.predicted for group in thirds]
    assert predicted == sorted(predicted, reverse=True)
    assert thirds[0].seen > thirds[2].seen
    words = in_words(results, "local", "large")
    assert f"{100 * everybody.predicted:.0f} are predicted" in words
    assert "at 24 months" in words


def test_terminal_and_page_tell_it(comparison):
    results = comparison.results
    story = tell(results)
    assert any("of 100 patients here" in t for c in story.clients for t in c.numbers)
    page = comparison.report().read_text(encoding="utf-8")
    assert "Survival until 24 months, predicted and seen" in page
    assert page.count('class="third2"') == 2 * len(results.clients)


def test_a_finished_model_predicts_and_another_hospital_solves_its_own(
    comparison, tmp_path
):
    """The prior of `partial` serves a hospital that took no part: its own rows move its slopes from theirs."""
    from coterie.study.finalise import finalise
    from coterie.study.outside import solve_own
    from coterie.study.predict import predict

    run = comparison.folder
    finalise(run, tmp_path / "model", client="like", method="partial")
    table = tmp_path / "new.csv"
    hospital(9, 80, -1.5).to_csv(table, index=False)
    shared = predict(tmp_path / "model", table).values
    solve_own(tmp_path / "model", table, tmp_path / "own", client="new")
    own = predict(tmp_path / "own", table).values
    age = pd.read_csv(table).age.to_numpy()
    assert np.corrcoef(age, shared[:, 0])[0, 1] < -0.5
    assert np.corrcoef(age, own[:, 0])[0, 1] > np.corrcoef(age, shared[:, 0])[0, 1]


def test_a_patient_who_is_tested_with_several_seeds_counts_once():
    def rows(hazard):
        return Rows(
            numbers=np.array([0, 1]),
            loss=np.zeros(2),
            constant=np.zeros(2),
            labels=None,
            outputs=None,
            followup=np.array([[0, 1, 1], [0, 2, 0]], dtype=float),
            hazards=np.array([[hazard], [1.0]]),
        )

    patients = patients_of({0: rows(0.2), 1: rows(0.4)})
    assert patients.followup.tolist() == [[0, 1, 1], [0, 2, 0]]
    np.testing.assert_allclose(patients.hazards[:, 0], [0.3, 1.0])
