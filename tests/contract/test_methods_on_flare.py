"""What every method ends with in process it ends with on NVIDIA FLARE, to the last bit: one job of its simulator runs them all."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tomli_w
from test_methods import CASES, is_pooled

from coterie.data.sets.heart_disease import OPTIONS, export
from coterie.run.experiment import Experiment
from coterie.study.sweep import run_experiment
from deployment import HOSPITALS, differences

pytest.importorskip(
    "nvflare",
    reason="engine FLARE is not installed: pip install 'coterie[flare]', or make test-engines",
)
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

CALLED = dict(zip("abcd", HOSPITALS, strict=True))


def in_toml(value: Any) -> Any:
    """A constructor argument as an experiment's file has it; clients by the hospitals' names, of which there is one less."""
    if isinstance(value, tuple):
        return [CALLED.get(v, v) for v in value if v != "e"]
    return CALLED.get(value, value) if isinstance(value, str) else value


def test_every_method_ends_with_the_same_bits_in_flares_simulator(tmp_path):
    from benchmarks.flare import simulate

    from coterie.sites.approval import plan_hash
    from coterie.sites.flare.client import SiteClient
    from coterie.sites.flare.server import RESULT, Coordinator

    cases = [c for c in CASES if not is_pooled(c)]
    export(tmp_path / "hospitals", server_rows=90)
    tables = {
        "data": {
            "folder": str(tmp_path / "hospitals"),
            "server_file": str(tmp_path / "server.csv"),
            **OPTIONS,
        },
        "local": {"lr": 0.1, "steps": 2, "batch_size": 16},
        "run": {"rounds": 2, "seeds": 1},
        "methods": [
            {
                "name": name,
                "label": f"{name}-{i}",
                **{k: in_toml(v) for k, v in arguments.items()},
            }
            for i, (name, arguments) in enumerate(cases)
        ],
    }
    experiment = Experiment.from_tables(tables, "a test")
    run_experiment(experiment, tmp_path / "here")
    path = tmp_path / "plan.toml"
    path.write_text(
        tomli_w.dumps({**experiment.tables(), "deploy": {"sites": list(HOSPITALS)}})
    )
    plan = {
        "experiment": experiment.tables(),
        "run": "r",
        "resume": False,
        "accept_change": [],
        "goes_on": False,
        "timeout": 300.0,
        "accept": [],
        "described": {},
        "seeds": [0],
        "hash": plan_hash(path),
    }
    text = json.dumps({**plan, "where": "a test", "command": "a test"}).encode().hex()
    files = {path.stem: path for path in (tmp_path / "hospitals").iterdir()}
    there = next(
        simulate(Coordinator(text), SiteClient(), files, tmp_path, path).rglob(RESULT)
    )
    kept = [place for place in tmp_path.rglob("coterie") if (place / "models").is_dir()]
    trained = {
        path.name for folder in (there, *kept) for path in (folder / "models").iterdir()
    }
    assert all(
        any(name.startswith(f"{m.label}-") for name in trained)
        for m in experiment.methods
    )
    assert not differences(tmp_path / "here", there, *kept)
