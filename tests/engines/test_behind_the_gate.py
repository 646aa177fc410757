"""What people do with a deployment, over real processes behind the gate: they abort, purge, restart and follow the tutorial."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deployment import HOSPITALS, Deployment, commands, deployed, differences, free_port

pytest.importorskip(
    "nvflare",
    reason="engine FLARE is not installed: pip install 'coterie[flare]', or make test-engines",
)
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).parent.parent.parent
BEHIND_NOISE = """
[[methods]]
name = "fedavg"

[[filters]]
name = "clip"
bound = 1.0

[[filters]]
name = "gaussian-noise"
sigma = 10.0
secret = true
"""
OPERATOR, KEEPER = "operator@coterie.org", "keeper@coterie.org"


def wait_for(condition, seconds=240.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.2)


ABORT = """
import sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
session = new_secure_session(sys.argv[1], sys.argv[2], timeout=15.0)
session.abort_job(sys.stdin.readline().strip())
session.close()
"""


@pytest.mark.in_turn
def test_an_aborted_and_a_purged_run_have_the_bits_of_an_undisturbed_one(tmp_path):
    """Behind secret noise: with another key, or drawn anew for the same request, it would have other bits."""
    with deployed(tmp_path, methods=BEHIND_NOISE, rounds=40) as made:
        for name in HOSPITALS:
            made.settings(name, largest_mu=1000)
            made.approve(name)

        def submit(out, *more, **how):
            return made.coterie(
                "submit",
                made.plan,
                "--out",
                tmp_path / out,
                "--no-report",
                *more,
                **how,
            )

        submit("undisturbed")
        log = made.kits / "hungary" / "local" / "asks.jsonl"

        def updates():
            return log.read_text().count('"what": "coterie.compute.tasks:local_update"')

        # A session takes seconds to open, and the job no longer.
        operator = subprocess.Popen(
            [sys.executable, "-c", ABORT, OPERATOR, str(made.kits / OPERATOR)],
            stdin=subprocess.PIPE,
            text=True,
        )
        before = updates()
        running = submit("aborted", background=True)
        wait_for(lambda: updates() > before + 3)
        submission = tmp_path / "aborted" / ".submission.json"
        wait_for(submission.exists)
        job = json.loads(submission.read_text())["job"]
        operator.communicate(f"{job}\n", timeout=120)
        assert operator.returncode == 0
        said = running.communicate(timeout=240)[1]
        assert running.returncode == 1, said
        assert "--resume" in said
        submit("aborted", "--resume")
        assert not differences(tmp_path / "undisturbed", tmp_path / "aborted")

        made.stop_all()
        for name in ("localhost", *HOSPITALS):
            said = made.coterie("purge", made.kits / name, "--yes").stdout
            assert re.search(r"[1-9][0-9]* files removed", said), said
            assert not (made.kits / name / "coterie").exists()
        made.start_all()
        submit("purged")
        assert not differences(tmp_path / "undisturbed", tmp_path / "purged")
        said = made.coterie("site", "log", made.kits / "hungary", "--check").stdout
        assert "none changed, removed or added" in said


@contextmanager
def ended(folder):
    """Whatever was started from a folder is ended at last."""
    try:
        yield
    finally:
        for pid in (pid for pid, line in commands() if str(folder) in line):
            with suppress(ProcessLookupError):
                if pid != os.getpid():
                    os.kill(pid, signal.SIGKILL)


RESTART = """
import sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
new_secure_session(sys.argv[1], sys.argv[2], timeout=15.0).restart("server", wait=False)
"""


@pytest.mark.in_turn
@pytest.mark.promise("rights of three kits")
def test_the_keeper_restarts_the_server_and_its_site_comes_back(tmp_path):
    """By the start scripts, whose loop starts what has ended. Sites take no order to restart, so the server forgets them first."""
    made = Deployment(tmp_path)
    server, kit = (made.kits / name for name in ("localhost", "hungary"))

    def process():
        return int((server / "pid.fl").read_text())

    def says(state):
        said = made.coterie("status", made.plan, check=False).stdout
        return re.search(rf"^ +hungary +{state}$", said, re.M)

    with ended(tmp_path):
        for folder in (server, kit):
            with open(folder / "said", "wb") as said:
                subprocess.run(
                    [folder / "startup" / "start.sh"],
                    check=True,
                    cwd=tmp_path,
                    env={**os.environ, "COTERIE_PYTHON": sys.executable},
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
        wait_for(lambda: made.listens() and says("connected"))
        first = process()
        # In a process of its own: FLARE's session tries for ever to reach a server that has gone.
        keeper = subprocess.Popen(
            [sys.executable, "-c", RESTART, KEEPER, str(made.kits / KEEPER)]
        )
        try:
            wait_for(lambda: (server / "pid.fl").exists() and process() != first)
        finally:
            keeper.kill()
            keeper.wait()
        wait_for(lambda: made.listens() and says("connected"))
        for folder in (kit, server):
            subprocess.run(
                [folder / "startup" / "stop_fl.sh"],
                input=b"y",
                check=True,
                stdout=subprocess.DEVNULL,
            )
        wait_for(lambda: not made.left())


@pytest.mark.in_turn
def test_the_commands_of_the_tutorial_print_what_its_page_shows(tmp_path, monkeypatch):
    """As a reader gives them: kits, start scripts, a run behind the gate, the log and the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))  # FLARE keeps records of certificates
    page = (ROOT / "docs" / "tutorials" / "deployment.md").read_text(encoding="utf-8")
    page = page.replace("8102", str(free_port()))
    replayed = runpy.run_path(str(ROOT / "docs" / "console.py"))["replayed"]
    with ended(tmp_path):
        assert replayed(page) == page
        assert not [line for _, line in commands() if str(tmp_path) in line]
