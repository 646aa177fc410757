"""Whatever lies around the command: closed and full streams, folders that cannot be written or were moved, too little memory."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
import tracemalloc

import pytest
from commands import environment

from coterie.base.crash import CRASH
from coterie.base.files import read_json
from coterie.cli.main import main
from coterie.study import sweep


def shell(folder, line):
    return subprocess.run(
        ["bash", "-c", line.replace("coterie", f"{sys.executable} -m coterie")],
        cwd=folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    command = (
        "compare",
        "heart-disease",
        "--methods",
        "local,fedavg",
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--no-report",
        "--out",
        "run",
    )
    assert driver(folder, *command).status == 0
    return folder


@pytest.mark.parametrize(
    "closed",
    [
        pytest.param("1>&-", marks=pytest.mark.in_turn),
        pytest.param("2>&-", marks=pytest.mark.in_turn),
        "1>&- 2>&- 0<&-",
    ],
)
def test_a_closed_stream_changes_nothing(finished, tmp_path, closed):
    flags = f"--rounds 1 --seeds 1 --folds 0 --no-report --out {tmp_path}/run"
    line = f"coterie compare heart-disease --methods local,fedavg {flags} {closed}"
    ended = shell(finished, line)
    assert ended.returncode == 0, ended.stderr
    for name in ("summary.json", "history.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (
            finished / "run" / name
        ).read_bytes()


@pytest.mark.parametrize("is_program", [False, True])
def test_a_run_records_what_was_typed(tmp_path, monkeypatch, is_program):
    typed = [
        *("compare", "mean-estimation", "--methods", "local", "--rounds", "1"),
        *("--seeds", "1", "--folds", "0", "--no-report", "--out", "my run"),
    ]
    monkeypatch.chdir(tmp_path)
    if is_program:
        monkeypatch.setattr(sys, "argv", ["/usr/bin/coterie", *typed])
        status = main()
    else:
        status = main(typed)
    assert status == 0
    made_by = read_json(tmp_path / "my run" / "environment.json", dict)
    assert shlex.split(made_by["command"]) == ["coterie", *typed]


def test_a_full_standard_output_is_named(tmp_path):
    ended = shell(tmp_path, "coterie methods > /dev/full")
    assert (ended.returncode, ended.stderr) == (
        1,
        "coterie: standard output: No space left on device; what was saved before stays\n",
    )


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_report_of_a_read_only_run_prints_its_answer(
    finished, monkeypatch, capsys, number
):
    def refuse(results):
        raise OSError(number, os.strerror(number), str(results.folder / "report.html"))

    monkeypatch.setattr("coterie.report.html.write_page", refuse)
    assert main(["report", str(finished / "run")]) == 0
    printed = capsys.readouterr().out
    assert "Cleveland" in printed
    assert (
        f"no HTML report: {finished / 'run'} cannot be written ({os.strerror(number)})"
        in printed
    )


def test_reading_a_small_file_takes_little_memory(tmp_path):
    (tmp_path / "small.json").write_text("{}")
    tracemalloc.start()
    try:
        assert read_json(tmp_path / "small.json", dict) == {}
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_a_pipe_is_read_to_its_end(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(
        ["bash", "-c", f"(printf '['; sleep .2; printf '1]') > {tmp_path / 'pipe'}"]
    ):
        assert read_json(tmp_path / "pipe", list) == [1]


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError, ZeroDivisionError])
def test_what_nobody_expects_ends_in_a_sentence(finished, monkeypatch, capsys, kind):
    def fail(*arguments, **settings):
        raise kind("secret value")

    monkeypatch.setattr(sweep, "check_everything", fail)
    monkeypatch.chdir(finished)
    command = ["run", "run/experiment.toml", "--resume", "--no-report"]
    assert main(command) == 70
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith(
        f"coterie: unexpected {kind.__name__} (test_surroundings.py, line "
    )
    assert shown[0].endswith(
        "; the traceback is in run/coterie-crash.txt, please report it"
    )
    assert shown[1:] == [
        "rounds are saved, but for the last half second at most; once this is mended, go on with:",
        "  coterie run run/experiment.toml --resume",
    ]
    crash = (finished / "run" / CRASH).read_text()
    assert f"{kind.__name__}\n" in crash
    assert "run_experiment" in crash
    assert "secret" not in crash
    assert main([*command, "--debug"]) == 70
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["verify", str(finished / "run")]) == 0


def test_without_a_run_the_traceback_lies_in_the_current_folder(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coterie.study.layout.choose_folder", lambda *arguments: 1 / 0)
    assert main(["compare", "heart-disease", "--no-report"]) == 70
    assert "the traceback is in coterie-crash.txt" in capsys.readouterr().err
    assert (tmp_path / "coterie-crash.txt").is_file()


def test_a_run_whose_folder_is_moved_makes_nothing_at_the_old_place(driver, tmp_path):
    (tmp_path / "own.py").write_text(MOVES)
    ended = driver(tmp_path, "compare", "heart-disease", "--methods", "own.py:Moves,local", "--rounds", "3", "--seeds", "1",
                   "--no-report", "--out", "run")  # fmt: skip
    assert ended.status == 1
    assert "No such file or directory" in ended.err
    assert "Traceback" not in ended.err
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "moved" / "experiment.toml").is_file()


MOVES = """
import os
import coterie as ct
from dataclasses import dataclass

@dataclass(frozen=True)
class Moves(ct.FedAvg):
    def round(self, state, federation, rng):
        if federation.round == 2:
            os.rename("run", "moved")
        return super().round(state, federation, rng)
"""
