"""Plans with other outcomes than classes on NVIDIA FLARE: the numbers of one process, and only what was declared in their logs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
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
{label}

[model]
name = "logistic"

[local]
lr = 0.05
steps = 3
batch_size = 32
minimum_batch = 32
{methods}
[run]
rounds = 2
seeds = 1

[deploy]
sites = {sites}
port = {port}
kits = "{kits}"
timeout = 60.0
"""


TIMES = """
time = "months"
event = "died"
entry = "enrolled"
drop = ["falls", "bed_days"]
"""
ORDER_AND_WEIGHTS = """
label = "stage"
ordered = true
weights = "w"
drop = ["falls", "bed_days", "months", "died", "enrolled"]
"""
LINEAR = ("local", "fedavg", "fixed-effects", "partial")


def table(number):
    rng = np.random.default_rng([1, number])
    rows = ward(number, n=2200)
    latent = (rows["age"] - 60) / 10 + rng.logistic(size=2200)
    return rows.assign(stage=np.digitize(latent, [-1, 1]), w=rng.uniform(0.5, 3, 2200))


@pytest.mark.promise("one request, one answer")
@pytest.mark.parametrize(
    ("label", "names", "asked"),
    [
        pytest.param(
            TIMES,
            LINEAR,
            ("intervals:sum_followup", "left_out:gain_of_others"),
            id="time",
        ),
        pytest.param(
            ORDER_AND_WEIGHTS,
            ("local", "fedavg"),
            ("comparisons:paired_errors",),
            id="order-weights",
        ),
    ],
)
def test_a_plan_has_the_numbers_of_one_process(tmp_path, label, names, asked):
    files = tmp_path / "files"
    files.mkdir()
    for number, name in enumerate(HOSPITALS):
        rows = table(number)
        if label is TIMES:
            rows = rows.drop(columns=["stage", "w"])
        rows.to_csv(files / f"{name}.csv", index=False)
    of_plan = "".join(f'\n[[methods]]\nname = "{name}"\n' for name in names)
    methods = '[[methods]]\nname = "fedavg"\n'
    with deployed(tmp_path / "made", methods=methods, rounds=1) as deployment:
        plan = tmp_path / "plan.toml"
        sites = json.dumps(HOSPITALS)
        where = {"port": deployment.port, "kits": deployment.kits}
        settings = {"label": label, "methods": of_plan, "sites": sites, **where}
        plan.write_text(PLAN.format(folder=files, **settings))
        for name in HOSPITALS:
            deployment.settings(name, data=str(files / f"{name}.csv"))
            deployment.approve(name, plan)
        here, there = tmp_path / "here", tmp_path / "there"
        deployment.coterie("run", plan, "--out", here, "--no-report")
        deployment.coterie("submit", plan, "--out", there, "--no-report")
        assert not differences(here, there, *deployment.kept)
        log = Path(deployment.kits / "hungary" / "local" / "asks.jsonl").read_text()
        assert all(task in log for task in asked)
