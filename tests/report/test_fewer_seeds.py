"""A method that has fewer seeds than the run: what is compared, printed, resumed and combined of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.base.files import read_toml
from coterie.cli.settings import set_key
from coterie.report.card import card
from coterie.report.grids import grid
from coterie.report.results import Results
from coterie.report.verdicts import verdict
from coterie.run.experiment import Experiment
from coterie.study.combine import combine_runs
from coterie.study.sweep import run_experiment

CLIENTS = "abc"


def write_rows(folder: Path) -> str:
    """Three clients of 60 rows."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    for client in CLIENTS:
        x, z = rng.normal(size=(2, 60))
        y = (x + z + rng.normal(size=60) > 0).astype(int)
        rows = zip(x, z, y, strict=True)
        lines = [f"{a:.4f},{b:.4f},{c}" for a, b, c in rows]
        (folder / f"{client}.csv").write_text("\n".join(["x,z,y", *lines, ""]))
    return str(folder)


def run(
    rows: str, folder: Path, seeds: list[int], fewer: int | None, **more: Any
) -> Results:
    """Compare local, partial, and fedavg in the first seeds alone; or go on with what is there."""
    fedavg = {"name": "fedavg"} | ({"seeds": fewer} if fewer else {})
    tables: dict[str, Any] = {
        "data": {"folder": rows, "label": "y"},
        "split": {"folds": 2},
        "model": {"name": "logistic"},
        "methods": [{"name": "local"}, {"name": "partial"}, fedavg],
        "run": {"seeds": seeds, "rounds": 2, "rivals": ["linear"]},
        **more,
    }
    experiment = Experiment.from_tables(tables, "test")
    run_experiment(experiment, folder, resume=folder.exists())
    return Results.load(folder)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("rows") / "data")


@pytest.fixture(scope="module")
def three(rows: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Three seeds, fedavg in two of them."""
    return run(rows, tmp_path_factory.mktemp("three") / "run", [0, 1, 2], 2)


def test_it_is_compared_on_the_seeds_that_it_has(three: Results) -> None:
    outcomes = three.comparisons.outcomes
    assert [*outcomes.rows("fedavg", "a")] == [0, 1]
    assert [*outcomes.rows("partial", "a")] == [0, 1, 2]
    gaps = outcomes.gaps("fedavg", "local", "a", "loss", (0, 1))
    gain = three.comparisons.gain("fedavg", "a", "loss")
    assert gain is not None
    assert gain.estimate == pytest.approx(-gaps.mean())
    assert three.seeds_wanted("fedavg") == three.seed_count("fedavg") == 2
    assert "fedavg: 2 of 3 repeats, on which it is compared" in three.notes
    assert verdict(three, "a").kind != "no verdict"


def test_no_number_of_seeds_is_printed_that_it_has_not(three: Results) -> None:
    text = card(three, "a", "fedavg", dict.fromkeys(CLIENTS, 60), rounds=2)
    assert "over 2 seeds, models of fedavg" in text
    page = ct.Comparison(three.folder).report().read_text(encoding="utf-8")
    assert "over 3 seeds" not in page
    assert "over the seeds of a method, at most 3" in page


def test_its_mean_over_fewer_seeds_is_the_best_of_no_row(three: Results) -> None:
    shown = grid(three, "loss")
    marked = [
        {column for column, cell in zip(shown.columns, row, strict=True) if cell.best}
        for row in shown.cells
    ]
    assert all(marked)
    assert not any("fedavg" in best for best in marked)


def test_it_may_have_more_seeds_when_a_run_goes_on(rows: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for fewer, seen in ((1, [0]), (2, [0, 1]), (None, [0, 1, 2])):
        results = run(rows, folder, [0, 1, 2], fewer)
        assert [*results.comparisons.outcomes.rows("fedavg", "a")] == seen
        (entry,) = read_toml(folder / "experiment.toml")["methods"][2:]
        assert entry.get("seeds") == fewer
    # Its results would be in comparisons, and not in tables.
    with pytest.raises(ct.InputError, match=r"add --set fedavg\.seeds=3, or"):
        run(rows, folder, [0, 1, 2], 1)
    with pytest.raises(ct.InputError, match="has seed 2, which is not among the seeds"):
        run(rows, folder, [0, 1], None)


def test_seeds_of_two_runs_together_are_its_own(
    rows: str, three: Results, tmp_path: Path
) -> None:
    other = run(rows, tmp_path / "other", [3, 4, 5], 1)
    combine_runs([three.folder, other.folder], tmp_path / "both")
    both = Results.load(tmp_path / "both")
    assert [*both.comparisons.outcomes.rows("fedavg", "a")] == [0, 1, 3]
    assert both.seeds_wanted("fedavg") == both.seed_count("fedavg") == 3
    said = [note for note in both.notes if "repeats" in note]
    assert said == ["fedavg: 3 of 6 repeats, on which it is compared"]


def test_without_folds_a_verdict_needs_its_seeds(rows: str, tmp_path: Path) -> None:
    split: dict[str, Any] = {}
    methods = [{"name": "local"}, {"name": "fedavg", "seeds": 2}]
    results = run(rows, tmp_path / "run", [0, 1, 2, 3], 2, split=split, methods=methods)
    said = verdict(results, "a")
    assert (said.kind, said.reason) == ("no verdict", "2 seeds; a verdict needs 3")


@pytest.mark.parametrize("label", ["local", "fedavg"])
def test_the_command_line_sets_them_for_a_method(label: str) -> None:
    tables = {"methods": [{"name": "local"}, {"name": "fedavg"}]}
    set_key(tables, f"{label}.seeds=2")
    (entry,) = (one for one in tables["methods"] if one["name"] == label)
    assert entry["seeds"] == 2


def test_a_number_that_is_none_is_refused(rows: str) -> None:
    methods = [{"name": "local"}, {"name": "fedavg", "seeds": 0}]
    data = {"folder": rows, "label": "y"}
    with pytest.raises(ct.InputError, match="seeds is the number of repeats"):
        Experiment.from_tables({"data": data, "methods": methods}, "test")
