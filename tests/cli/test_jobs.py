"""`--jobs`: several runs at once write what one after the other writes, and lose nothing when they are stopped."""

from __future__ import annotations

import time

import pytest
from commands import contents

from coterie.study import jobs

SETTINGS = (
    "compare",
    "heart-disease",
    "--methods",
    "local,meritfed",
    "--rounds",
    "3",
    "--seeds",
    "2",
    "--no-report",
)
SETTINGS = (*SETTINGS, "--set", "run.evaluate=2", "--out", "run")
JOBS = (*SETTINGS, "--jobs", "3")


@pytest.fixture(scope="module")
def one_after_the_other(driver, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    assert driver(folder, *SETTINGS).status == 0
    return contents(folder / "run")


def test_jobs_write_the_same_bytes(driver, tmp_path, one_after_the_other):
    ended = driver(tmp_path, *JOBS)
    assert (ended.status, contents(tmp_path / "run")) == (0, one_after_the_other), (
        ended.err
    )
    assert ended.err.count("/4 done") == 4
    assert ended.err.splitlines()[-1].startswith("4/4 done")


@pytest.mark.parametrize(("signal", "status"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_what_is_finished_stays_when_jobs_are_stopped(
    driver, tmp_path, one_after_the_other, signal, status
):
    arm = {
        "target": "coterie.study.progress.Status.finish",
        "when": "after",
        "match": "",
        "at": 1,
        "signal_name": signal,
    }
    stopped = driver(tmp_path, *JOBS, arm=arm)
    assert stopped.status == status
    assert "Traceback" not in stopped.err
    done = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "run").glob("checkpoint/*/done.json")
    }
    assert done
    assert driver(tmp_path, *JOBS, "--resume").status == 0
    assert contents(tmp_path / "run") == one_after_the_other
    assert {path: path.stat().st_mtime_ns for path in done} == done


def test_a_job_that_fails_ends_the_run_by_name(driver, tmp_path):
    flags = (
        "--methods",
        "local,fedavg",
        "--set",
        "fedavg.lr=1e30",
        "--rounds",
        "3",
        "--seeds",
        "1",
        "--no-report",
    )
    failed = driver(
        tmp_path, "compare", "heart-disease", *flags, "--jobs", "2", "--out", "run"
    )
    assert failed.status == 1
    assert failed.err.splitlines()[-3].startswith("coterie: fedavg, seed 0: round ")
    assert "Traceback" not in failed.err


def test_a_job_that_dies_says_how_to_go_on(driver, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\nimport coterie as ct\n\nclass Dies(ct.Method):\n"
        "    def init(self, x, federation): os._exit(7)\n    def round(self, state, federation, rng): ...\n"
        "    def models(self, state): return state\n"
    )
    dies = ("--methods", "mine.py:Dies", "--rounds", "1", "--seeds", "1")
    failed = driver(
        tmp_path, "compare", "heart-disease", *dies, "--jobs", "2", "--out", "run"
    )
    assert failed.status == 1
    assert "the process of a run ended with exit code 7" in failed.err
    assert "--resume" in failed.err


def test_engines_that_cannot_be_forked_are_refused(driver, tmp_path):
    refused = driver(tmp_path, *JOBS, "--engine", "ray")
    assert refused.status == 2
    assert "run.jobs = 3 needs the engine inprocess on the CPU" in refused.err
    assert not (tmp_path / "run").exists()


def test_the_file_of_settings_says_nothing_of_jobs(
    driver, tmp_path, one_after_the_other
):
    text = one_after_the_other["experiment.toml"].decode()
    assert "jobs" not in text
    (tmp_path / "plan.toml").write_text(
        text.replace("[run]", "[run]\njobs = 2\nout = 'run'")
    )
    assert driver(tmp_path, "run", "plan.toml", "--no-report").status == 0
    assert contents(tmp_path / "run") == one_after_the_other


def test_a_job_that_does_not_end_by_itself_is_killed(monkeypatch):
    def goes_on(tell):
        while True:
            try:
                tell(1)
                time.sleep(60)
            except SystemExit:  # as Python does with one that is raised where an object is being deleted
                continue

    def heard(number):
        raise KeyError(number)

    monkeypatch.setattr(jobs, "PATIENCE", 0.1)
    with pytest.raises(KeyError), jobs.Jobs(2) as running:
        running.run(goes_on, lambda: (heard, lambda: None))
