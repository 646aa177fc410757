"""Which methods `coterie compare` runs unasked: those that solve a linear model on tables, those that train any other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from coterie.base.errors import InputError
from coterie.cli.main import main
from coterie.cli.options import build_parser
from coterie.cli.settings import tables_of_command
from coterie.data.sets.heart_disease import FOLDER as HEART
from coterie.run.experiment import Experiment
from coterie.run.method_tables import label_of

SOLVED = ["local", "fedavg", "fixed-effects", "partial", "meritfed"]
TRAINED = ["local", "centralised", "fedavg", "fedavg+bias", "fedprox", "meritfed"]


FOLDER = str(HEART)
"""A folder of tables; that it belongs to a data set with a preset of its own is not known."""


def labels(*typed: str) -> list[str]:
    given = build_parser().parse_args(["compare", *typed])
    return [label_of(entry) for entry in tables_of_command(given)["methods"]]


@pytest.mark.parametrize(
    "typed",
    [("heart-disease",), (FOLDER, "--label", "y"), (FOLDER, "--rounds", "3")],
)
def test_a_linear_model_on_tables_is_solved(typed: tuple[str, ...]) -> None:
    assert labels(*typed) == SOLVED


@pytest.mark.parametrize(
    "typed",
    [("--time", "months", "--event", "died"), ("--label", "falls", "--exposure", "d")],
)
def test_meritfed_is_not_run_unasked_where_no_kernel_has_the_loss(
    typed: tuple[str, ...],
) -> None:
    """440 rows of time to event took four minutes of a busy machine, three of them for MeritFed."""
    assert labels(FOLDER, *typed) == [m for m in SOLVED if m != "meritfed"]
    named = labels(FOLDER, *typed, "--methods", "local,meritfed")
    assert named == ["local", "meritfed"]


def entries(*typed: str) -> dict[str, dict[str, object]]:
    given = build_parser().parse_args(["compare", *typed])
    tables = tables_of_command(given)
    return {label_of(entry): entry for entry in tables["methods"]}


def test_a_method_that_is_named_has_all_repeats() -> None:
    assert "seeds" in entries("nhefs")["fedavg"]
    named = entries("nhefs", "--methods", "local,fedavg,partial")
    trained = entries("nhefs", "--model", "mlp")
    assert "seeds" not in {**named["fedavg"], **trained["fedavg"]}


@pytest.mark.parametrize(
    "typed",
    [
        ("--model", "mlp"),
        ("--model", "2nn"),
        ("--set", "model.freeze=['0']"),
        ("--set", "run.loss=mine.py:loss"),
        ("--attack", "label-flip", "--set", "attack.on=0.2"),
    ],
)
def test_any_other_is_trained(typed: tuple[str, ...]) -> None:
    assert labels(FOLDER, *typed) == TRAINED
    assert labels("heart-disease", *typed) == [m for m in TRAINED if m != "fedprox"]


def test_what_was_the_default_before_can_be_named() -> None:
    assert labels(FOLDER, "--methods", ",".join(TRAINED)) == TRAINED
    assert labels(FOLDER, "--model", "mlp", "--methods", "partial") == ["partial"]


def wide_table(folder: Path, columns: int) -> Path:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for client in "ab":
        rows = rng.normal(size=(12, columns)).round(3).astype(str)
        lines = [",".join([*row, str(i % 2)]) for i, row in enumerate(rows)]
        header = ",".join([*(f"x{i}" for i in range(columns)), "y"])
        (folder / f"{client}.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder


@pytest.mark.in_turn
def test_a_table_that_is_too_wide_to_be_solved_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = wide_table(tmp_path / "wide", 520), tmp_path / "run"
    typed = ["compare", str(folder), "--label", "y", "--rounds", "1", "--seeds", "1"]
    brief = ["--set", "split.folds=2", "--out", str(out), "--json", "--no-report"]
    assert main([*typed, *brief]) == 0
    printed = capsys.readouterr()
    assert "521 parameters" in printed.err
    rows = json.loads(printed.out)["rows"]
    assert {row["method"] for row in rows} == set(TRAINED)
    assert main([*typed, "--methods", "local,partial"]) == 2


@pytest.mark.parametrize("name", ["local", "fixed-effects", "partial"])
def test_a_model_of_ones_own_is_not_tuned_once_more(name: str) -> None:
    with pytest.raises(InputError, match=r"leave out personalise"):
        Experiment.from_tables(
            {
                "data": {"name": "heart-disease"},
                "methods": [{"name": name, "personalise": {"part": "bias"}}],
            },
            "a test",
        )


def test_a_field_of_local_can_be_set_beside_the_table_of_that_name() -> None:
    settings = ["--set", "local.exact=false", "--set", "local.lr=0.7"]
    given = build_parser().parse_args(["compare", FOLDER, *settings])
    tables = tables_of_command(given)
    assert tables["methods"][0] == {"name": "local", "exact": False}
    assert tables["local"]["lr"] == 0.7


def test_a_data_set_by_name_needs_no_check(capsys):
    assert main(["check", "nhefs-survival"]) == 2
    assert "coterie compare nhefs-survival" in capsys.readouterr().err
