"""A plan with time to event on NVIDIA FLARE: the numbers of one process, and no time in what the sites have written down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deployment import HOSPITALS, deployed, differences
from wards import ward

pytest.importorskip(
    "nvflare",
    reason="engine FLARE is not installed: pip install 'coterie[flare]', or make test-engines",
)
pytestmark = [
    pytest.mark.engines,
    pytest.mark.in_turn,
    pytest.mark.filterwarnings("default"),
]

PLAN = """
[data]
folder = "{folder}"
time = "months"
event = "died"
entry = "enrolled"
drop = ["falls", "bed_days"]

[model]
name = "logistic"

[local]
lr = 0.05
steps = 3
batch_size = 32

[[methods]]
name = "local"

[[methods]]
name = "fedavg"

[[methods]]
name = "fixed-effects"

[[methods]]
name = "partial"

[run]
rounds = 2
seeds = 1

[deploy]
sites = {sites}
port = {port}
kits = "{kits}"
timeout = 60.0
"""


@pytest.mark.promise("one request, one answer")
def test_a_plan_with_time_to_event_has_the_numbers_of_one_process(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    for number, name in enumerate(HOSPITALS):
        ward(number, n=2200).to_csv(files / f"{name}.csv", index=False)
    methods = '[[methods]]\nname = "fedavg"\n'
    with deployed(tmp_path / "made", methods=methods, rounds=1) as deployment:
        plan = tmp_path / "plan.toml"
        sites = json.dumps(HOSPITALS)
        where = {"port": deployment.port, "kits": deployment.kits}
        plan.write_text(PLAN.format(folder=files, sites=sites, **where))
        for name in HOSPITALS:
            deployment.settings(name, data=str(files / f"{name}.csv"))
            deployment.approve(name, plan)
        here, there = tmp_path / "here", tmp_path / "there"
        deployment.coterie("run", plan, "--out", here, "--no-report")
        deployment.coterie("submit", plan, "--out", there, "--no-report")
        assert not differences(here, there, *deployment.kept)
        log = Path(deployment.kits / "hungary" / "local" / "asks.jsonl").read_text()
        assert "intervals:sum_followup" in log
        assert "left_out:gain_of_others" in log
