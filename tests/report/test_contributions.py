"""Contributions in the report: beside weights, with intervals over seeds, in words that claim no more than they show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.report.contributions import Contribution, Sign, conspicuous, contributions
from coterie.report.html import write
from coterie.report.results import Results

NAMES = {"a": "Hungary", "b": "Cleveland"}


@pytest.mark.parametrize(("fall", "half", "weight", "sentence"), [
    (0.021, 0.012, 0.2, "In 12 measured of 60 rounds Hungary's updates lowered Cleveland's validation log-loss by .021 [.009, .033]."),
    (-0.021, 0.012, 0.25, "updates raised Cleveland's validation log-loss by .021 [.009, .033], with a weight of .250."),
    (-0.021, 0.012, 0.0, "raised Cleveland's validation log-loss by .021 [.009, .033]."),
    (0.021, 0.03, 0.2, "nor clearly raised Cleveland's validation log-loss: it changed by -.021 [-.051, .009]."),
    (0.021, None, 0.2, "changed Cleveland's validation log-loss by -.021; fewer than 3 seeds tell no interval."),
])  # fmt: skip
def test_sentences_claim_what_the_interval_shows(fall, half, weight, sentence):
    words = Contribution(
        "fedavg", "b", "a", weight, fall, half, 12, 60, "fixed"
    ).in_words(NAMES)
    assert sentence in words
    assert "worth" not in words
    weaker = Contribution("fedavg", "b", "a", weight, fall, half, 12, 60).in_words(
        NAMES
    )
    assert weaker == words.replace("60 rounds", "60 rounds, each taken alone,")


@pytest.mark.in_turn
def test_a_report_shows_weights_beside_contributions(tmp_path, monkeypatch):
    settings = ct.StudySettings(contribution=ct.Contribution(every=2))
    methods = [ct.FedAvg(), ct.MeritFed()]
    ct.compare(
        methods,
        "heart-disease",
        rounds=3,
        seeds=3,
        folder=tmp_path / "run",
        settings=settings,
    )
    results = Results.load(tmp_path / "run")
    found = contributions(results)
    assert {(c.method, c.client) for c in found if c.target == "cleveland"} == {
        (m, c) for m in ("fedavg", "meritfed") for c in results.clients
    }
    assert all(
        (c.measured, c.rounds) == (3, 3) or (c.measured, c.rounds) == (2, 3)
        for c in found
    )
    for method in ("fedavg", "meritfed"):
        weights = [
            c.weight for c in found if (c.method, c.target) == (method, "cleveland")
        ]
        assert sum(weights) == pytest.approx(1.0)
    text = write(results.folder).read_text()
    assert 'id="contributions"' in text
    assert any(c.half is not None and np.isfinite(c.half) for c in found)
    monkeypatch.setattr("coterie.report.html.MOST_CONTRIBUTIONS", 5)
    assert (
        f"Shown: 5 of {len(found)} rows. All are in contribution.csv, round by round."
        in write(results.folder).read_text()
    )


def rounds_of(
    phi: dict[str, dict[str, float]], rounds: int = 5
) -> dict[tuple[int, str], dict[str, float]]:
    """The same contributions in each of some rounds."""
    return {
        (r, target): dict(row) for r in range(rounds) for target, row in phi.items()
    }


@pytest.mark.parametrize(("phi", "expected"), [
    ({"a": {"a": 0.2, "b": 0.1, "c": 0.0}, "b": {"a": -0.1, "b": 0.2, "c": 0.0}}, [Sign("rider", ("c",))]),
    ({"a": {"a": 0.2, "b": -0.1}, "b": {"a": 0.3, "b": -0.2}}, [Sign("saboteur", ("b",))]),
    ({"a": {"a": 0.2, "b": -0.1}, "b": {"a": -0.1, "b": 0.2}}, []),  # a partner that harms others, and not itself
    ({"a": {"a": 0.2, "b": 0.205}, "b": {"a": 0.1, "b": 0.102}}, [Sign("twin", ("a", "b"))]),
    ({"a": {"a": 0.2, "b": 0.25}, "b": {"a": 0.1, "b": 0.1}}, []),
])  # fmt: skip
def test_contributions_name_riders_saboteurs_and_twins_and_nobody_else(phi, expected):
    assert list(conspicuous(rounds_of(phi))) == expected


def test_two_values_alike_make_no_twins():
    assert list(conspicuous(rounds_of({"a": {"a": 0.2, "b": 0.2}}, rounds=3))) == []


def test_a_report_names_who_shows_in_most_trainings_and_who_has_too_few_rows(tmp_path):
    def hospitals(seed: int = 0) -> ct.Clients:
        parts = {
            "train": 0.64,
            "validation": 0.06,
            "test": 0.3,
        }  # Switzerland keeps 7 validation rows
        return ct.data.load("heart-disease", seed=seed, split={"parts": parts})

    settings = ct.StudySettings(contribution=ct.Contribution(every=2, game="fixed"))
    attack = ct.attacks.SignFlip(scale=3.0, on=("hungary",))
    ct.compare(
        ["local", "fedavg"],
        hospitals,
        rounds=6,
        seeds=2,
        folder=tmp_path / "run",
        settings=settings,
        attack=attack,
    )
    page = write(tmp_path / "run").read_text()
    assert "fedavg: In 2 of 2 trainings Hungary" in page
    assert "Switzerland: too few rows to tell (fewer than 10 validation rows)." in page


@pytest.mark.slow
def test_planted_clients_are_named_in_nine_of_ten_trainings(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent.parent))
    from benchmarks.contribution import PLANTED, VICTIM, Job, measure

    expected = {
        "nobody": None, "rider": ["rider", [VICTIM]], "saboteur": ["saboteur", [VICTIM]], "twin": ["twin", [VICTIM, "twin"]],
    }  # fmt: skip
    for who in PLANTED:
        found = [measure(Job(who, seed, 60))["signs"] for seed in range(10)]
        assert (
            expected[who] is None or sum(expected[who] in signs for signs in found) >= 9
        )
        others = [[sign for sign in signs if sign != expected[who]] for signs in found]
        assert sum(bool(signs) for signs in others) <= 1


def test_each_sign_has_a_sentence_of_its_own_that_names_its_clients_by_their_names():
    names = {"a": "Ward A"}
    signs = [Sign("rider", ("a",)), Sign("saboteur", ("a",)), Sign("twin", ("a", "b"))]
    said = [sign.in_words(names, 3, 4) for sign in signs]
    assert len({sentence.partition("Ward A")[2] for sentence in said}) == 3
    assert all(sentence.startswith("In 3 of 4 trainings Ward A") for sentence in said)
    assert "b's updates" in said[2]
