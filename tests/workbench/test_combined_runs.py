"""Several runs of one federation together: repeats of the same rows, and rows of other patients."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie.base.errors import InputError
from coterie.cli.main import main
from coterie.report.evidence import Gain
from coterie.report.evidence import combine as combine_gains
from coterie.run.experiment import Experiment
from coterie.run.hashes import TABLES, hash_of_tree, read_record, write_record
from coterie.study.search import Trial, write_trials
from coterie.study.sweep import run_experiment

CLIENTS = ("east", "west", "north")


def write_table(
    folder: Path, seed: int, rows: int = 60, clients: Sequence[str] = CLIENTS
) -> Path:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for client in clients:
        with (folder / f"{client}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["age", "lab", "ill"])
            for _ in range(rows):
                age, lab = rng.normal(size=2)
                table.writerow(
                    [
                        f"{age:.4f}",
                        f"{lab:.4f}",
                        int(rng.random() < 1 / (1 + np.exp(-age - lab))),
                    ]
                )
    return folder


def run(table: Path, out: Path, seeds: Sequence[int], **changes: Any) -> Path:
    tables = {
        "data": {"folder": str(table), "label": "ill"},
        "split": {"folds": 2},
        "local": {"steps": 4, "lr": 0.1},
        "methods": [{"name": "local"}, {"name": "fedavg"}],
        "run": {"rounds": 2, "seeds": [*seeds]},
    }
    for name, table_of_changes in changes.items():
        tables[name] = (
            table_of_changes
            if name == "methods"
            else {**tables[name], **table_of_changes}
        )
    run_experiment(Experiment.from_tables(tables, "a test"), out)
    return out


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    today, later = (
        write_table(place / "today", 1),
        write_table(place / "later", 2, rows=90),
    )
    run(today, place / "a", [0])
    run(today, place / "b", [1])
    run(today, place / "both", [0, 1])
    run(later, place / "new", [0])
    return place


def answers(comparison: ct.Comparison) -> Mapping[str, Any]:
    return {client: comparison.verdict(client) for client in CLIENTS}


@pytest.mark.in_turn
def test_other_repeats_of_the_same_rows_are_one_run_with_all_repeats(
    place: Path,
) -> None:
    together, whole = (
        ct.combine(place / "a", place / "b"),
        ct.Comparison(place / "both"),
    )
    assert answers(together) == answers(whole)
    assert together.seeds == whole.seeds == (0, 1)
    assert together.table() == whole.table()
    assert together.results.comparisons.rows == whole.results.comparisons.rows
    histories = [results.history for results in (together.results, whole.results)]
    found = [
        {run: [*h.rows(place)] for place, run in enumerate(h.runs) if run[2] != "all"}
        for h in histories
    ]
    assert found[0] == found[1] != {}


def test_the_order_of_runs_does_not_count(place: Path) -> None:
    assert answers(ct.combine(place / "b", place / "a")) == answers(
        ct.combine(place / "a", place / "b")
    )


def test_rows_of_other_patients_weigh_by_one_over_the_square_of_their_error(
    place: Path,
) -> None:
    together = ct.combine(place / "a", place / "new", new_rows=True).results.comparisons
    parts = [ct.Comparison(place / name).results.comparisons for name in ("a", "new")]
    for client in CLIENTS:
        ours, (x, y) = (
            together.gain("fedavg", client, "loss"),
            [p.gain("fedavg", client, "loss") for p in parts],
        )
        assert None not in (ours, x, y)
        u, v = 1 / (1.2 * x.error + 1e-6) ** 2, 1 / (1.2 * y.error + 1e-6) ** 2
        assert ours.estimate == pytest.approx(
            (u * x.estimate + v * y.estimate) / (u + v), rel=1e-9
        )
        assert ours.spread == pytest.approx((u + v) ** -0.5, rel=1e-9)
        assert ours.rows == 60 + 90
        assert min(x.spread, y.spread) > ours.spread
        shown = together.family(client)["fedavg", "loss"]
        assert min(x.estimate, y.estimate) <= -shown.mean <= max(x.estimate, y.estimate)
    assert together.results.size("east") == 150


def test_two_halves_weigh_alike() -> None:
    one, two = Gain(0.02, 0.03, 50), Gain(0.06, 0.03, 50)
    together = combine_gains([one, two])
    assert together.estimate == pytest.approx(0.04)
    assert together.spread == pytest.approx(one.spread / 2**0.5)
    assert together.rows == 100
    assert combine_gains([one]) == one
    assert combine_gains([one, Gain(0.5, float("inf"), 3)]) == one


def test_repeats_and_new_rows_together(place: Path) -> None:
    results = ct.combine(place / "a", place / "new", place / "b", new_rows=True).results
    assert len(results.runs) == 3
    assert sorted(map(len, results.tables)) == [1, 2]
    by_pairs = ct.combine(place / "both", place / "new", new_rows=True).results
    for client in CLIENTS:
        ours, other = (
            r.comparisons.gain("fedavg", client, "loss") for r in (results, by_pairs)
        )
        assert None not in (ours, other)
        assert ours.estimate == pytest.approx(other.estimate, rel=1e-12)


def test_other_rows_need_a_word(place: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"new and .*a are of different rows; if no patient is in both.*--new-rows",
    ):
        ct.combine(place / "a", place / "new")


def test_a_seed_that_is_there_twice_is_refused(place: Path) -> None:
    with pytest.raises(
        InputError, match=r"same rows and both have seed 0; .*run.seeds=\[2\]"
    ):
        ct.combine(place / "a", place / "both")
    with pytest.raises(InputError, match="at least two different runs"):
        ct.combine(place / "a", place / "a")


@pytest.mark.in_turn
def test_a_table_that_has_grown_is_not_new(place: Path, tmp_path: Path) -> None:
    grown = shutil.copytree(place / "today", tmp_path / "grown")
    with (grown / "east.csv").open("a") as file:
        file.write("0.1,0.2,1\n0.3,-0.2,0\n")
    with pytest.raises(
        InputError,
        match=r"rows of \w+ in .* have the labels of those at the same places",
    ):
        ct.combine(place / "a", run(grown, tmp_path / "run", [5]), new_rows=True)


@pytest.mark.in_turn(but=("local", "missing method", "columns"))
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"run": {"rounds": 3}}, r"run.rounds = 3, and .*a with 2"),
        ({"local": {"steps": 5}}, r"local.steps = 5"),
        (
            {"methods": [{"name": "local"}, {"name": "fedavg", "lr": 0.5}]},
            r"methods.fedavg.lr = 0.5",
        ),
        ({"methods": [{"name": "local"}]}, r"only .*a has methods.fedavg"),
        ({"split": {"folds": 3}}, r"split.folds = 3"),
        ({"data": {"drop": ["age"]}}, r"data.drop"),
    ],
    ids=["rounds", "local", "method", "missing method", "folds", "columns"],
)
def test_other_settings_are_refused_by_name(
    place: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    other = run(place / "today", tmp_path / "other", [1], **changes)
    with pytest.raises(InputError, match=sentence):
        ct.combine(place / "a", other)


@pytest.mark.in_turn(but="named")
@pytest.mark.parametrize(
    "chosen", [True, False], ids=["chosen by validation rows", "named"]
)
def test_references_may_be_held_back_otherwise_if_rows_chose_so(
    place: Path, tmp_path: Path, chosen: bool
) -> None:
    runs = []
    for seed, decay in enumerate((0.1, 0.3)):
        methods = [
            {"name": "centralised", "local": {"weight_decay": decay}},
            {"name": "fedavg"},
            {"name": "local"},
        ]
        runs.append(
            run(place / "today", tmp_path / f"run-{seed}", [seed], methods=methods)
        )
        write_trials(
            runs[-1],
            [
                Trial(
                    "centralised",
                    {"weight_decay": f"{decay} / rows"},
                    0.5,
                    chosen=chosen,
                )
            ],
        )
    if chosen:
        assert ct.combine(*runs).seeds == (0, 1)
    else:
        with pytest.raises(
            InputError, match=r"methods.centralised.local = .*0.3.*, and .* with .*0.1"
        ):
            ct.combine(*runs)


def test_other_clients_are_refused_by_name(place: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "table", 3, clients=("east", "west", "south"))
    with pytest.raises(InputError, match=r"other clients than .*: south"):
        ct.combine(place / "a", run(table, tmp_path / "run", [0]), new_rows=True)


def test_other_code_is_refused_by_name(place: Path, tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["record"]["machine"]["coterie"] = "0.1.0"

    other = tampered(place / "b", tmp_path / "other", change)
    with pytest.raises(
        InputError,
        match=r"coterie of \w+ differs between .*a and .*other \(0\.\d\.0, now 0\.1\.0\)",
    ):
        ct.combine(place / "a", other)


def tampered(run: Path, copy: Path, change: Any) -> Path:
    """A copy whose records are changed and sealed again, as another version would have written them."""
    shutil.copytree(run, copy)
    tables = read_record(copy / TABLES)
    for path in copy.glob("checkpoint/*/provenance.json"):
        record, done = read_record(path), read_record(path.with_name("done.json"))
        change(record)
        mark = hash_of_tree(record["record"])
        write_record(path, record)
        write_record(path.with_name("done.json"), {**done, "provenance": mark})
        tables["records"][path.parent.name] = mark
    write_record(copy / TABLES, tables)
    return copy


@pytest.mark.in_turn
def test_the_command_says_that_it_is_two_runs(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "together"
    names = [str(place / "a"), str(place / "new")]
    assert main(["report", *names]) == 2
    assert "--new-rows" in capsys.readouterr().err
    assert main(["report", *names, "--new-rows", "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 runs together" in said
    assert "Runs with rows of other patients" in said
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "2 runs together" in page
    assert "rows of other patients" in page
    assert main(["report", *names, "--new-rows", "--out", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["runs"] == names
    assert main(["report", str(out), "--no-html"]) == 0
    assert "2 runs together" in capsys.readouterr().out
    assert main(["plan-rows", str(out), "--for", "east"]) == 0
    assert main(["report", str(place / "a"), "--out", str(out)]) == 2
    assert "for several runs" in capsys.readouterr().err


def test_a_combination_has_no_models(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "together"
    ct.combine(place / "a", place / "b", folder=out)
    for command in (
        ["predict", str(out), str(place / "today/east.csv")],
        ["finalise", str(out)],
    ):
        assert main([*command, "--client", "east"]) == 2
        assert "combines several runs and has no models" in capsys.readouterr().err
    with pytest.raises(InputError, match="is a combination; name the runs"):
        ct.combine(out, place / "b")


def test_nothing_else_is_overwritten(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds .mine\.txt. already"):
        ct.combine(place / "a", place / "b", folder=tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    with pytest.raises(InputError, match="is not a run directory"):
        ct.combine(place / "a", tmp_path)
