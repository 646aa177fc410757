"""What every method ends with in process it ends with on NVIDIA FLARE, to the last bit: one job of its simulator runs them all."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tomli_w
from test_methods import CASES, is_pooled, is_solved

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


@pytest.mark.in_turn
def test_every_method_ends_with_the_same_bits_in_flares_simulator(tmp_path):
    # These hospitals have too few rows to tell a curvature: the test below.
    cases = [c for c in CASES if not is_pooled(c) and not is_solved(c)]
    methods = [
        {
            "name": name,
            "label": f"{name}-{i}",
            **{k: in_toml(v) for k, v in arguments.items()},
        }
        for i, (name, arguments) in enumerate(cases)
    ]
    tables = of_hospitals(tmp_path, methods)
    same_bits_on_flare(tmp_path, tmp_path / "hospitals", tables)


def test_models_in_16_bits_end_with_the_same_bits_in_flares_simulator(tmp_path):
    methods = [{"name": "fedavg"}, {"name": "ditto"}]
    tables = of_hospitals(tmp_path, methods, down="bf16")
    same_bits_on_flare(tmp_path, tmp_path / "hospitals", tables)


def of_hospitals(tmp_path, methods, **run):
    """The tables of an experiment on the hospitals, whose rows are written into a folder."""
    export(tmp_path / "hospitals", server_rows=90)
    return {
        "data": {
            "folder": str(tmp_path / "hospitals"),
            "server_file": str(tmp_path / "server.csv"),
            **OPTIONS,
        },
        "local": {"lr": 0.1, "steps": 2, "batch_size": 16},
        "run": {"rounds": 2, "seeds": 1, **run},
        "methods": methods,
    }


def same_bits_on_flare(tmp_path, folder, tables):
    """Run an experiment here and in FLARE's simulator, and compare all that both have written."""
    from benchmarks.flare import simulate

    from coterie.sites.approval import plan_hash
    from coterie.sites.flare.client import SiteClient
    from coterie.sites.flare.server import RESULT, Coordinator

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
    files = {path.stem: path for path in folder.iterdir()}
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


def test_solved_methods_end_with_the_same_bits_in_flares_simulator(tmp_path):
    """On hospitals that have rows enough, since a tenth of their numbers may be told."""
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for k, name in enumerate(HOSPITALS):
        rng = np.random.default_rng(k)
        x = rng.normal(size=(1500, 3)) + 0.1 * k
        risk = 1 / (1 + np.exp(-(x @ [1.0, -0.5, 0.2 * k] - 0.3)))
        died = np.where(rng.uniform(size=1500) < risk, "yes", "no")
        lines = [
            f"{a:.4f},{b:.4f},{c:.4f},{y}" for (a, b, c), y in zip(x, died, strict=True)
        ]
        text = "\n".join(["age,weight,dose,died", *lines])
        (folder / f"{name}.csv").write_text(text + "\n")
    tables = {
        "data": {"folder": str(folder), "label": "died"},
        "run": {"rounds": 4, "seeds": 1},
        "methods": [
            {"name": "fixed-effects"},
            {"name": "partial"},
            {"name": "partial", "label": "sums", "sends": "sums"},
        ],
    }
    same_bits_on_flare(tmp_path, folder, tables)
