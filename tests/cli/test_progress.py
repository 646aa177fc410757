"""Progress without a terminal: few lines before the answer."""

from __future__ import annotations

import pytest

from coterie.cli.progress import Progress
from coterie.study.progress import Event


def finished(done, pairs):
    return Event("fedavg", 0, "", 5, 5, done, pairs, 1.0, finished=True)


@pytest.mark.parametrize("pairs", [1, 2, 9, 10, 11, 32, 1000])
def test_at_most_ten_lines_stand_before_the_answer(capsys, pairs):
    with Progress() as progress:
        for done in range(1, pairs + 1):
            progress.event(finished(done, pairs))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == min(pairs, 10)
    assert lines[0].endswith(f"1/{pairs} done" + ", 1 s left" * (pairs > 1))
    assert lines[-1].endswith(f"{pairs}/{pairs} done")


def test_quiet_progress_says_nothing(capsys):
    with Progress(quiet=True) as progress:
        progress.event(finished(1, 1))
    assert capsys.readouterr().err == ""
