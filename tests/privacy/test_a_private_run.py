"""A whole run of a plan with [privacy] at two sites: it ends, the server knows no loss, and each site knows its verdict."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from coterie.base.privacy import epsilon_of
from coterie.report.answer import answer_lines
from coterie.report.html import write
from coterie.report.results import Results
from coterie.report.verdicts import verdict
from coterie.sites.backend import Sites
from coterie.sites.home_verdict import verdict_lines
from coterie.sites.ledger import Account
from coterie.sites.server import Remote
from coterie.study.sweep import run_experiment

sys.path.insert(0, str(Path(__file__).parents[1] / "attacks"))
from test_private_plans import BOUNDS, DELTA, GIVES
from three_sites import ThreeSites

TWO = ("cleveland", "hungary")


@pytest.mark.promise("noise by row")
def test_a_run_ends_without_a_loss_at_the_server_and_with_a_verdict_at_each_site(
    tmp_path,
):
    town = ThreeSites(
        tmp_path / "town",
        [{"name": "local"}, {"name": "fedavg", "local": {"steps": 1}}],
        TWO,
        rounds=3,
        privacy={"epsilon": 1.0, "delta": DELTA},
        data={"bounds": BOUNDS},
        deploy={"runs": 1},
    )
    for site in town.sites.values():
        site.settings = dataclasses.replace(site.settings, **GIVES)
    there = tmp_path / "there"
    run_experiment(
        town.experiment, there, backend=Sites(Remote(town, "run", plan=town.plan))
    )
    summary = json.loads((there / "summary.json").read_text())
    assert {row["method"] for row in summary} == {"local", "fedavg"}
    assert all(row["loss"] is None and row["auc"] is None for row in summary)
    results = Results.load(there)
    assert verdict(results, "hungary").kind == "no verdict"
    said = "\n".join(answer_lines(results))
    assert "nan" not in said
    assert write(there).is_file()
    for site in town.sites.values():
        account = Account(Path(site.settings.log))
        assert epsilon_of(account.mu, DELTA) == pytest.approx(1.0)
        lines = list(verdict_lines(site.approved, site.settings, site.folder))
        assert any("fedavg against local" in line and "AUC" in line for line in lines)
