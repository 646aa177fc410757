"""`report`, `predict` and what reads a run from Python: models and tables of one record, and nothing of the user's own imported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_combined_runs import run, write_table

import coterie as ct
from coterie.base.errors import InputError
from coterie.cli.main import main

OWN = """
import pathlib
pathlib.Path("imported.txt").write_text("imported")
from coterie.algorithms.fedavg import FedAvg

class Mine(FedAvg):
    pass
"""
FOLD, ALL = "fedavg-0-k0", "fedavg-0-kall"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("records")
    for i, name in enumerate(("one", "two")):
        run(write_table(place / f"table-{name}", i), place / name, [0])
    return place


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(runs / "one", tmp_path / "run")


def put(runs: Path, copied: Path, *names: str) -> None:
    for name in names:
        source, target = runs / "two" / name, copied / name
        if source.is_dir():
            shutil.rmtree(target)
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)


def commands(runs: Path, copied: Path) -> dict[str, Callable[[], object]]:
    table = str(runs / "table-one" / "east.csv")
    predict = ["predict", str(copied), table, "--client", "east", "--method", "fedavg"]
    return {
        "report": lambda: main(["report", str(copied), "--no-html"]),
        "predict": lambda: main(predict),
        "finalise": lambda: main(
            [
                "finalise",
                str(copied),
                "--client",
                "east",
                "--out",
                str(copied.parent / "final"),
            ]
        ),
    }


@pytest.mark.in_turn(but="report")
@pytest.mark.parametrize("command", ["report", "predict", "finalise"])
def test_a_pair_of_another_run_is_refused_by_name(
    runs: Path, copied: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"models/{ALL}.safetensors"
    put(runs, copied, f"checkpoint/{ALL}", model)
    assert commands(runs, copied)[command]() == 2
    assert (
        f"checkpoint/{ALL} is of another run than the tables" in capsys.readouterr().err
    )
    with pytest.raises(InputError, match=f"{ALL} is of another run"):
        ct.Comparison(copied)


@pytest.mark.parametrize("command", ["report", "predict"])
def test_tables_of_another_run_are_refused(
    runs: Path, copied: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [
        path.name
        for path in (runs / "two").iterdir()
        if path.suffix in (".json", ".csv", ".toml")
    ]
    put(runs, copied, *tables, "checkpoint/tables.json")
    assert commands(runs, copied)[command]() == 2
    assert "is of another run than the tables" in capsys.readouterr().err


def test_a_model_of_another_run_is_refused_by_name(
    runs: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(runs, copied, f"models/{ALL}.safetensors")
    assert commands(runs, copied)["predict"]() == 2
    assert f"models/{ALL}.safetensors is damaged" in capsys.readouterr().err


@pytest.mark.in_turn
def test_a_table_of_another_run_is_named_and_made_again(
    runs: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(runs, copied, "summary.json")
    assert commands(runs, copied)["report"]() == 0
    assert "summary.json was damaged; it is made again" in capsys.readouterr().err
    assert (copied / "summary.json").read_bytes() == (
        runs / "one" / "summary.json"
    ).read_bytes()


def test_a_recipe_of_another_run_is_refused_from_python(
    runs: Path, copied: Path
) -> None:
    from coterie.study.predict import predict

    put(runs, copied, "preprocess.json")
    with pytest.raises(InputError, match=r"preprocess\.json is damaged"):
        predict(copied, runs / "table-one" / "east.csv", client="east", method="fedavg")


def test_a_fold_swapped_for_another_is_refused_by_name(
    runs: Path, copied: Path
) -> None:
    shutil.rmtree(copied / "checkpoint" / FOLD)
    shutil.copytree(copied / "checkpoint" / "fedavg-0-k1", copied / "checkpoint" / FOLD)
    with pytest.raises(InputError, match=f"{FOLD} is of another run"):
        ct.Comparison(copied)


def test_methods_of_the_user_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    table = write_table(tmp_path / "table", 1)
    for i in (0, 1):
        run(
            table,
            tmp_path / f"run{i}",
            [i],
            methods=[{"name": "local"}, {"name": "own.py:Mine", "label": "mine"}],
        )
    Path("imported.txt").unlink()
    Path("own.py").write_text("raise SystemExit('imported')\n")
    assert main(["report", "run0", "--no-html"]) == 0
    assert main(["report", "run0", "run1", "--no-html"]) == 0
    assert (
        main(
            [
                "predict",
                "run0",
                "table/east.csv",
                "--client",
                "east",
                "--method",
                "mine",
            ]
        )
        == 0
    )
    assert "prediction" in capsys.readouterr().out
    assert not Path("imported.txt").exists()
