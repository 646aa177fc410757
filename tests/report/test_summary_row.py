"""The columns of summary.json stand in one place: what a run writes, the documents and the report agree with it."""

from __future__ import annotations

from pathlib import Path

from coterie import Clients, FedAvg, fit
from coterie.report.results import Results
from coterie.run.files import METRICS, SUMMARY
from federations import logistic, subset

PAGE = Path(__file__).parents[2] / "docs" / "run-directory.md"


def test_a_run_writes_these_columns_in_this_order():
    all_clients = logistic().clients
    clients = Clients(list(subset(all_clients, "abc")), unseen=subset(all_clients, "d"))
    run = fit(FedAvg(), clients, logistic().model, rounds=1)
    for row in run.summary:
        columns = [c for c in row if c not in METRICS]
        assert columns == [
            c for c in SUMMARY[3:] if c != "unseen" or row["client"] == "d"
        ]
        assert {c for c in row if c in METRICS} == set(METRICS)
    assert {row["client"] for row in run.summary if "unseen" in row} == {"d"}


def test_the_page_explains_every_column():
    table = PAGE.read_text().partition("| key | meaning |")[2].partition("\n\n")[0]
    explained = {
        word.strip("` ")
        for line in table.splitlines()
        for word in line.split("|")[1:2]
        for word in word.split(",")
    }
    assert set(SUMMARY) | set(METRICS) <= explained


def test_the_report_takes_no_column_for_a_metric():
    row = {
        **dict.fromkeys(SUMMARY, 1.0),
        "method": "m",
        "client": "c",
        "split": "test",
        "accuracy": 0.5,
        "mine": 2.0,
    }
    results = Results(
        Path(),
        ("m",),
        {"m": "m"},
        (0,),
        ("c",),
        {},
        {},
        (),
        {("m", "c", "test"): {0: row}},
    )
    assert results.metrics == ("accuracy", "mine")
