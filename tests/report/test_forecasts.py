"""The forecast of FedCollab beside verdicts: in check and in a run alike, and counted as hits and misses."""

from __future__ import annotations

import pytest
import torch

import coterie as ct
from coterie.report.forecasts import Forecast, forecasts
from coterie.report.html import write
from coterie.report.results import Results
from coterie.report.verdicts import Verdict, verdict
from coterie.study.partners import forecast_partners


def three(seed: int = 0) -> ct.Clients:
    """Two clients that are alike, and one whose labels are opposite."""
    inputs = torch.randn(1200, 3, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long()
    parts = {"a": slice(0, 400), "b": slice(400, 800), "c": slice(800, 1200)}
    rows = {
        name: (inputs[part], labels[part] if name != "c" else 1 - labels[part])
        for name, part in parts.items()
    }
    return ct.data.from_tensors(rows, seed=seed)


def test_a_check_forecasts_what_a_run_finds():
    found = forecast_partners(three(), seed=1)
    run = ct.fit("fedcollab", three(), "logistic", 1, 1)
    assert found.coalitions == (("a", "b"), ("c",))
    assert torch.equal(
        torch.tensor([[*row.values()] for row in found.divergences.values()]),
        run.state.divergences.float(),
    )
    assert run.state.cluster.tolist() == [0, 0, 1]
    assert found.pairs == 3


@pytest.mark.in_turn
def test_a_report_counts_hits_and_misses_of_the_forecast(tmp_path):
    methods = [ct.Local(), ct.FedAvg(), ct.FedCollab(complexity=5.0)]
    ct.compare(methods, three, rounds=3, seeds=3, folder=tmp_path / "run")
    results = Results.load(tmp_path / "run")
    words = {"a": "join", "b": "stay alone", "c": "undecided"}
    found = list(
        forecasts(results, {c: Verdict(word, "") for c, word in words.items()})
    )
    assert found == [
        Forecast("a", ("b",), 3, 3, "join", 3, 0),
        Forecast("b", ("a",), 3, 3, "stay alone", 0, 3),
        Forecast("c", (), 3, 3, "undecided", 0, 0),
    ]
    assert [f.in_words({}) for f in found] == [
        "with b in 3 of 3 trainings",
        "with a in 3 of 3 trainings",
        "alone in 3 of 3 trainings",
    ]
    page = write(results.folder).read_text()
    assert 'id="forecasts"' in page
    assert f'<td class="text">{verdict(results, "c").kind}</td>' in page
