"""Contributions in the report: beside weights, with intervals over seeds, in words that claim no more than they show."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.report.contributions import Contribution, contributions
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
    words = Contribution("fedavg", "b", "a", weight, fall, half, 12, 60).in_words(NAMES)
    assert sentence in words
    assert "worth" not in words


def test_a_report_shows_weights_beside_contributions(tmp_path, monkeypatch):
    settings = ct.StudySettings(contribution=ct.Contribution(every=2))
    methods = [ct.FedAvg(), ct.MeritFed()]
    ct.compare(methods, "heart-disease", rounds=3, seeds=3, folder=tmp_path / "run", settings=settings)
    results = Results.load(tmp_path / "run")
    found = contributions(results)
    assert {(c.method, c.client) for c in found if c.target == "cleveland"} == {
        (m, c) for m in ("fedavg", "meritfed") for c in results.clients
    }
    assert all((c.measured, c.rounds) == (3, 3) or (c.measured, c.rounds) == (2, 3) for c in found)
    for method in ("fedavg", "meritfed"):
        weights = [c.weight for c in found if (c.method, c.target) == (method, "cleveland")]
        assert sum(weights) == pytest.approx(1.0)
    text = write(results.folder).read_text()
    assert 'id="contributions"' in text
    assert any(c.half is not None and np.isfinite(c.half) for c in found)
    monkeypatch.setattr("coterie.report.html.MOST_CONTRIBUTIONS", 5)
    assert (
        f"Shown: 5 of {len(found)} rows. All are in contribution.csv, round by round."
        in write(results.folder).read_text()
    )
