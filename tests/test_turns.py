"""Tests in turn: a seventh is drawn by any text, all sevenths together are all; skips are those that are allowed."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from string import ascii_letters

import pytest

ROOT = Path(__file__).parents[1]
# By its path: other folders have a conftest.py, too.
CONFTEST = runpy.run_path(str(ROOT / "conftest.py"))
SHARES, share_of = CONFTEST["SHARES"], CONFTEST["share_of"]
TESTS = """
import pytest

def test_always(): pass

@pytest.mark.in_turn
@pytest.mark.parametrize("number", range(70))
def test_in_turn(number): pass

@pytest.mark.in_turn(but=("first", "no-*"))
@pytest.mark.parametrize("case", ["first", "no-1", "no-2", "other"])
def test_some_cases_stay(case): pass
"""
NO_SUCH_CASE = """
import pytest

@pytest.mark.in_turn(but="thirst")
@pytest.mark.parametrize("case", ["first", "other"])
def test_some_cases_stay(case): pass
"""
SETTINGS = """
[tool.pytest.ini_options]
markers = ["in_turn: a seventh"]
"""


def project_in(made, tests):
    """A project of its own there, with this one's conftest.py and list of allowed skips."""
    for name in ("conftest.py", "tests/skips.toml"):
        copied = made / name
        copied.parent.mkdir(exist_ok=True)
        copied.write_text((ROOT / name).read_text())
    (made / "pyproject.toml").write_text(SETTINGS)
    (made / "test_mine.py").write_text(tests)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return project_in(tmp_path_factory.mktemp("turns"), TESTS)


def pytest_in(folder, *options, in_ci=False):
    """What a pytest of its own says there, without the plugins that are installed here, which it would take time to import."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # CI runs this file, too: what its own run is told does not count there.
    environment.pop("COTERIE_CI", None)
    if in_ci:
        environment["COTERIE_CI"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def collected(folder, *options):
    said = pytest_in(folder, "--collect-only", "-q", *options).stdout
    return {line for line in said.splitlines() if "::" in line}


def test_a_text_draws_a_seventh_and_some_text_draws_each(folder):
    every = collected(folder, "--in-turn", "all")
    usual = collected(folder)
    assert (len(every), len(usual)) == (75, 4)
    assert "test_mine.py::test_some_cases_stay[other]" in every - usual
    named = collected(folder, "test_mine.py::test_in_turn[3]")
    assert named == {"test_mine.py::test_in_turn[3]"}
    share = collected(folder, "--in-turn", "any text") - usual
    drawn = {name for name in every if share_of(name) == share_of("any text")}
    assert share == drawn - usual
    assert {share_of(letter) for letter in ascii_letters} == set(range(SHARES))


def test_a_case_that_is_to_stay_is_there(tmp_path):
    ended = pytest_in(project_in(tmp_path, NO_SUCH_CASE), "--collect-only")
    assert ended.returncode == pytest.ExitCode.INTERRUPTED
    assert "test_some_cases_stay has no case 'thirst' to stay" in ended.stdout


@pytest.mark.parametrize(
    ("reason", "status"),
    [("torch finds no GPU here", 1), ("no chromium on this machine", 0)],
)  # the first is allowed in one file alone
def test_ci_fails_on_a_skip_that_nobody_allows(folder, reason, status):
    place = folder / "tests" / "test_skipped.py"
    place.write_text(
        f'import pytest\n@pytest.mark.skip("{reason}")\ndef test_a(): pass\n'
    )
    ended = pytest_in(folder, "-q", str(place), in_ci=True)
    assert ended.returncode == status
    assert (f"was skipped: Skipped: {reason}" in ended.stdout) == bool(status)


def test_each_stage_of_the_week_has_a_job_and_a_target():
    script = (ROOT / ".ci" / "weekly").read_text()
    (stages,) = re.findall(r"^stages=\((.*)\)$", script, re.M)
    workflow = (ROOT / ".github" / "workflows" / "weekly.yml").read_text()
    (jobs,) = re.findall(r"stage: \[(.*)\]", workflow)
    assert jobs.split(", ") == stages.split()
    commands = dict(re.findall(r"^ +([\w-]+)\) echo (.*) ;;$", script, re.M))
    assert set(commands) == set(stages.split())
    makefile = (ROOT / "Makefile").read_text()
    for command in commands.values():
        target = command.partition("make ")[2].split()[0]
        assert re.search(rf"^{target}:", makefile, re.M)
