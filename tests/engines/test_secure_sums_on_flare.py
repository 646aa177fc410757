"""Sums behind masks on NVIDIA FLARE, with the certificates of real kits: the numbers of one process, and one epsilon a site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.base.privacy import epsilon_of
from coterie.sites.ledger import Account
from coterie.sites.log import entries
from deployment import HOSPITALS, approve_private_plan, deployed, differences

pytest.importorskip(
    "nvflare",
    reason="engine FLARE is not installed: pip install 'coterie[flare]', or make test-engines",
)
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

ROUNDS, DELTA = 2, 1e-4
FEDAVG = '\n[[methods]]\nname = "fedavg"\n\n[secure]\nthreshold = 3\n'


def sums_in(log):
    """How often integers left behind masks, and shares were revealed."""
    what = [entry.get("what") for entry in entries(log)]
    return what.count("masked"), what.count("revealed")


@pytest.mark.promise("secure sums")
@pytest.mark.promise("an epsilon")
def test_sums_have_the_numbers_of_one_process_and_noise_costs_one_epsilon(tmp_path):
    with deployed(tmp_path / "made", methods=FEDAVG, rounds=ROUNDS) as deployment:
        here, there = tmp_path / "here", tmp_path / "there"
        deployment.coterie("run", deployment.plan, "--out", here, "--no-report")
        deployment.coterie("submit", deployment.plan, "--out", there, "--no-report")
        assert not differences(here, there, *deployment.kept)
        logs = [
            Path(deployment.kits / name / "local" / "asks.jsonl") for name in HOSPITALS
        ]
        assert [sums_in(log) for log in logs] == [(ROUNDS, ROUNDS)] * 4

        plan = approve_private_plan(
            deployment, tmp_path / "plan.toml", FEDAVG, epsilon=1.0, delta=DELTA
        )
        # What was told without noise counts as infinity: a person gives the sites a new account.
        for log in logs:
            for file in log.parent.glob("asks.jsonl*"):
                file.unlink()
        for name in HOSPITALS:
            deployment.approve(name, plan)
        noisy = tmp_path / "noisy"
        done = deployment.coterie("submit", plan, "--out", noisy, "--no-report")
        assert "epsilon 1 for fedavg" in " ".join(done.stdout.split())
        rows = json.loads((noisy / "summary.json").read_text())
        assert rows
        assert all(row["loss"] is None for row in rows)
        for log in logs:
            assert epsilon_of(Account(log).mu, DELTA) == pytest.approx(1.0)
            assert sums_in(log) == (ROUNDS, ROUNDS)
