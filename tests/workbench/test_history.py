"""The history of a run: many numbers as one array, and the two files of a run directory, which say the same."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from test_combined_runs import run, write_table

import coterie as ct
from coterie.base.errors import InputError
from coterie.cli.main import main
from coterie.report.history import SavedHistory
from coterie.report.results import Results
from coterie.run.files import LONG_HISTORY
from coterie.run.history import ClientMetrics, History, Record, Row
from coterie.study import tables


def two_clients(number: int) -> ClientMetrics:
    values, defined = (
        np.array([[0.5, math.nan], [math.inf, 0.25]]),
        np.array([[True, False], [True, True]]),
    )
    return ClientMetrics(number, "test", ("a", "b"), ("loss", "auc"), values, defined)


ROWS = [
    Row(0, "*", "", "row_gradients", 0.0),
    Row(0, "a", "test", "loss", 0.5),
    Row(0, "b", "test", "loss", math.inf),
    Row(0, "b", "test", "auc", 0.25),
]


def test_many_numbers_at_once_are_those_numbers_one_by_one() -> None:
    history = History([ROWS[0], two_clients(0)])
    assert list(history) == ROWS
    assert history == ROWS == list(reversed(list(reversed(history))))
    assert history != ROWS[1:]
    assert (len(history), history[-1], history[1:3]) == (4, ROWS[-1], ROWS[1:3])
    for metric, client in (
        ("loss", "a"),
        ("loss", "b"),
        ("auc", "b"),
        ("row_gradients", "*"),
    ):
        assert history.select(metric, client) == History(ROWS).select(metric, client)
    assert History.of_columns(json.loads(json.dumps(history.columns()))) == history
    assert list(History([*history.parts, two_clients(5)]).of_round(5)) == [
        row._replace(round=5) for row in ROWS[1:]
    ]


def test_what_a_client_does_not_have_is_not_in_the_history() -> None:
    history = History([two_clients(0)])
    with pytest.raises(InputError, match="no auc of client 'a'"):
        history.select("auc", "a")
    nobody = two_clients(0).defined & False
    with pytest.raises(InputError, match="no 'loss'"):
        History(
            [
                ClientMetrics(
                    0,
                    "test",
                    ("a", "b"),
                    ("loss", "auc"),
                    two_clients(0).values,
                    nobody,
                )
            ]
        ).select("loss")


@pytest.fixture
def short(tmp_path: Path) -> Path:
    return run(write_table(tmp_path / "tables", 1), tmp_path / "short", [0, 1])


@pytest.fixture
def long(tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same run, as if it had too many numbers for a CSV file."""
    monkeypatch.setattr(tables, "LONGEST_CSV", 10)
    return run(tmp_path / "tables", tmp_path / "long", [0, 1])


def numbers(folder: Path) -> dict[tuple[str, int, str], set[tuple[object, ...]]]:
    history = Results.load(folder).history
    return {
        of_run: set(history.rows(place)) for place, of_run in enumerate(history.runs)
    }


@pytest.mark.in_turn
def test_a_long_history_says_the_same_in_another_file(short: Path, long: Path) -> None:
    assert [(folder / "history.csv").exists() for folder in (short, long)] == [
        True,
        False,
    ]
    assert [(folder / LONG_HISTORY).exists() for folder in (short, long)] == [
        False,
        True,
    ]
    assert numbers(short) == numbers(long)
    assert len(numbers(short)["fedavg", 1, "0"]) > 20
    comparisons = [ct.Comparison(folder) for folder in (short, long)]
    curves = [c.results.curve("fedavg", "east", "loss", "test") for c in comparisons]
    assert [curve.rounds.tolist() for curve in curves if curve] == [[0, 1, 2]] * 2
    np.testing.assert_array_equal(*[curve.values for curve in curves if curve])
    frames = [
        c.to_pandas("history").sort_values([*tables.HISTORY], ignore_index=True)
        for c in comparisons
    ]
    assert frames[0].equals(frames[1])
    assert main(["verify", str(long)]) == 0


def test_a_damaged_long_history_is_named_and_made_again(
    long: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = long / LONG_HISTORY
    whole = path.read_bytes()
    for content in (
        whole[:-9],
        whole[:40],
        b"",
        whole.replace(b"east", b"west"),
        whole[:-4] + b"\0\0\0\1",
    ):
        path.write_bytes(content)
        assert main(["verify", str(long)]) == 2
        assert (
            f"{LONG_HISTORY} is damaged; continue with: coterie run"
            in capsys.readouterr().out
        )
    path.write_bytes(whole[:-9])
    with pytest.raises(
        InputError,
        match=rf"{LONG_HISTORY} cannot be read .*; restore it or repeat the run",
    ):
        numbers(long)
    assert tables.mend_tables(long) == [LONG_HISTORY]
    assert path.read_bytes() == whole


@pytest.mark.in_turn
def test_long_histories_are_combined(short: Path, long: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "tables", tmp_path / "other", [2])
    together = ct.combine(short, other)
    assert (together.folder / LONG_HISTORY).exists()
    assert not (together.folder / "history.csv").exists()
    tested = {
        of_run: told
        for of_run, told in {**numbers(short), **numbers(other)}.items()
        if of_run[2] != "all"
    }
    assert numbers(together.folder) == tested


GAPS = """method,seed,fold,round,client,split,metric,value
m,1,0,0,a,test,loss,1.0
m,1,1,0,a,test,loss,2.0
m,1,0,5,a,test,loss,nan
m,1,1,5,a,test,loss,4.0
m,1,all,0,a,test,loss,9.0
m,0,0,5,a,test,loss,3.0
m,0,0,2,b,test,loss,7.0
n,0,0,2,b,test,loss,
"""


def test_a_curve_is_the_mean_of_folds_and_has_gaps_where_nothing_was_measured(
    tmp_path: Path,
) -> None:
    (tmp_path / "history.csv").write_text(GAPS)
    history = SavedHistory(tmp_path)
    curve, other = (
        history.curve("m", "a", "test", "loss"),
        history.curve("m", "b", "test", "loss"),
    )
    assert curve is not None
    assert other is not None
    assert curve.rounds.tolist() == [0, 5]
    np.testing.assert_array_equal(curve.values, [[math.nan, 3.0], [1.5, 4.0]])
    assert (other.rounds.tolist(), other.values.tolist()) == ([2], [[7.0]])
    assert history.clients_with("m", "test", "loss") == {"a", "b"}
    for absent in (
        ("n", "b", "test", "loss"),
        ("m", "c", "test", "loss"),
        ("m", "a", "train", "loss"),
        ("x",) * 4,
    ):
        assert history.curve(*absent) is None
    assert history.clients_with("n", "test", "loss") == set()


def test_weights_that_stay_are_written_once() -> None:
    """A method that is solved for says the same in each round: all are read from one."""
    settings = ct.RunSettings(evaluate=2)
    run = ct.fit(ct.Partial(), "heart-disease", "logistic", 9, settings=settings)
    rounds = {number for number, *_ in run.weight_rows}
    assert rounds == {2}
    assert len(run.weight_rows) == 16
    by_target: dict[str, dict[str, float]] = {}
    for _, target, client, weight in run.weight_rows:
        by_target.setdefault(target, {})[client] = weight
    assert by_target == run.weights


def test_weights_that_change_are_written_again() -> None:
    record = Record()
    for number, share in ((1, 0.5), (2, 0.5), (3, 0.25), (4, 0.25), (5, 0.5)):
        told = {"a": {"a": share, "b": 1 - share}}
        record.add(number, {"weights": told}, with_weights=True, changed_alone=True)
    assert [row[0] for row in record.weight_rows] == [1, 1, 3, 3, 5, 5]
    fewer = {"weights": {"a": {"a": 1.0}}}  # a client has failed
    record.add(6, fewer, with_weights=True, changed_alone=True)
    record.add(7, fewer, with_weights=True, changed_alone=True)
    assert [row[0] for row in record.weight_rows[6:]] == [6]
