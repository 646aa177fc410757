"""What is written while an experiment runs and no terminal is there: few lines, however many runs."""

from __future__ import annotations

import pytest

from coterie.cli.progress import LINES, Progress
from coterie.study.progress import Event


def lines(pairs: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with Progress() as progress:
        for done in range(1, pairs + 1):
            event = Event("partial", 0, "3", 2, 2, done, pairs, 5.0, finished=True)
            progress.event(event)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("pairs", [1, 4, 9, 10, 11, 55, 1000])
def test_at_most_ten_lines_and_the_last_run_is_one_of_them(
    pairs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = lines(pairs, capsys)
    assert len(shown) == min(pairs, LINES)
    assert shown[0].startswith(f"1/{pairs} done")
    assert shown[-1].startswith(f"{pairs}/{pairs} done")


def test_a_long_run_shows_that_it_is_alive(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.cli.progress.SILENCE", -1.0)
    assert len(lines(1000, capsys)) == 1000


@pytest.mark.parametrize(
    ("fold", "turn"),
    [("", "seed 1"), ("3", "seed 1, fold 3"), ("all", "seed 1, all rows")],
)
def test_a_run_is_named_by_seed_and_fold_and_that_on_all_rows_is_no_fold(
    fold: str, turn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress() as progress:
        progress.event(Event("partial", 1, fold, 2, 2, 1, 1, None, finished=True))
    assert capsys.readouterr().err == f"1/1 done  ({turn}, partial)\n"


def test_quiet_progress_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(quiet=True) as progress:
        progress.event(Event("fedavg", 0, "", 5, 5, 1, 1, 1.0, finished=True))
    assert capsys.readouterr().err == ""


def test_the_time_left_is_said_while_something_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = lines(4, capsys)
    says_time = [", 5 s left" in line for line in shown]
    assert says_time == [True, True, True, False]
