"""Rows with several labels: methods are compared by the mean loss over labels, with a word for each client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.compute.outcomes import Rows, join_folds
from coterie.report.evidence import smallest_effect
from coterie.report.results import Results
from coterie.report.verdicts import verdict

SIZES = {"few": 60, "many": 300, "more": 300}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(6, 4, generator=draw)
    rows: dict[str, Any] = {}
    for name, count in SIZES.items():
        inputs = torch.randn(count, 6, generator=draw)
        logits = 1.5 * inputs @ weights - torch.tensor([0.0, 1.0, 2.0, 3.0])
        labels = torch.rand(count, 4, generator=draw) < torch.sigmoid(logits)
        rows[name] = inputs, labels.long()
    folder = tmp_path_factory.mktemp("several") / "run"
    ct.compare(
        ["local", "fedavg"],
        ct.data.from_tensors(rows),
        torch.nn.Linear(6, 4),
        rounds=5,
        seeds=3,
        folder=folder,
    )
    return Results.load(folder)


def test_clients_with_enough_rows_of_a_label_have_a_word(results: Results) -> None:
    words = {name: verdict(results, name) for name in SIZES}
    assert words["few"].kind == "too few rows to tell"
    told = {words[name].kind for name in ("many", "more")}
    assert not told & {"too few rows to tell", "no verdict"}


def test_the_smallest_effect_is_the_mean_over_labels(results: Results) -> None:
    counts = results.comparisons.label_counts("many")
    effects = [smallest_effect(pair) for pair in counts]
    assert len(effects) == 4
    assert sum(counts[0]) == 100
    smallest = results.comparisons.smallest_at("many", "loss")
    assert smallest == pytest.approx(np.mean(effects))
    assert 0 < smallest < 0.01


def test_the_rarer_rows_are_those_of_the_commonest_label() -> None:
    marks = np.zeros((40, 3), dtype=np.int8)
    marks[:9, 0], marks[:35, 1], marks[0, 2] = 1, 1, 1
    losses = np.zeros(40)
    rows = Rows(np.arange(40), losses, losses, None, None, marks=marks)
    assert rows.rarest == 9
    patients = np.arange(40) // 4
    assert rows._replace(patients=patients).rarest == 3
    halves = [
        Rows(np.arange(20), losses[:20], losses[:20], None, None, marks=half)
        for half in (marks[:20], marks[20:])
    ]
    assert join_folds(halves).rarest == 9


def test_the_report_in_html_is_written(results: Results) -> None:
    pytest.importorskip("jinja2")
    from coterie.report.html import write

    text = write(results.folder).read_text()
    assert "Too few rows to tell" in text
    assert "AUC covers" not in text
