"""A plan with [privacy] on NVIDIA FLARE: jobs and restarts of sites have one epsilon, and people there read their verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.base.privacy import epsilon_of
from coterie.sites.ledger import Account
from deployment import HOSPITALS, approve_private_plan, deployed

pytest.importorskip(
    "nvflare",
    reason="engine FLARE is not installed: pip install 'coterie[flare]', or make test-engines",
)
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

ROUNDS, DELTA = 2, 1e-4
LOCAL = '[[methods]]\nname = "local"\n'


@pytest.mark.promise("an epsilon")
@pytest.mark.promise("noise by row")
@pytest.mark.parametrize(
    "method", ["fedavg", pytest.param("fixed-effects", marks=pytest.mark.slow)]
)
def test_a_second_job_and_a_restart_tell_nothing_more(tmp_path, method):
    one = f'[[methods]]\nname = "{method}"\n'
    with deployed(tmp_path / "made", methods=one, rounds=ROUNDS) as deployment:
        plan = approve_private_plan(
            deployment, tmp_path / "plan.toml", LOCAL + one, epsilon=1.0, delta=DELTA
        )
        first = tmp_path / "first"
        done = deployment.coterie("submit", plan, "--out", first, "--no-report")
        assert f"epsilon 1 for {method}" in " ".join(done.stdout.split())
        rows = json.loads((first / "summary.json").read_text())
        assert rows
        assert all(row["loss"] is None for row in rows)
        said = deployment.coterie("site", "verdict", deployment.kits / "hungary")
        assert f"{method} against local" in said.stdout
        logs = [
            Path(deployment.kits / name / "local" / "asks.jsonl") for name in HOSPITALS
        ]
        for log in logs:
            assert epsilon_of(Account(log).mu, DELTA) == pytest.approx(1.0)

        deployment.stop("hungary")
        deployment.start("hungary")
        deployment.approve("hungary", plan)
        # Another run begins at the same model, whose answer is the same again and free; what comes of it is new and does not leave.
        changed = plan.read_text().replace("rounds = 2", "rounds = 3")
        plan.write_text(changed)
        for name in HOSPITALS:
            deployment.approve(name, plan)
        again = deployment.coterie(
            "submit", plan, "--out", tmp_path / "second", "--no-report", check=False
        )
        assert again.returncode == 1
        assert "[site] epsilon" in again.stderr
        for log in logs:
            assert epsilon_of(Account(log).mu, DELTA) == pytest.approx(1.0)
