"""The page on extending coterie is true: its steps, done in a copy of the package, bring what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "howto" / "extend.md").read_text(encoding="utf-8")
METHOD = ROOT / "examples" / "packages" / "method" / "fedalign.py"
FILE = re.compile(r"^```\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)^```$", re.M | re.S)
STEP = re.compile(r"^\| `(\S+\.py)` \| `(\S+/\S+)` \| `([A-Z]+)` \| `(.+)` \|$", re.M)

pytestmark = pytest.mark.programs


def with_line(registry: str, table: str, line: str) -> str:
    """The text of the registry with a line at the beginning of a table's entries."""
    begin = registry.index(f"\n{table} = Registry(\n")
    opening = re.compile(r"[({]\n").search(registry, begin + len(table) + 14)
    assert opening is not None
    return f"{registry[: opening.end()]}        {line}\n{registry[opening.end() :]}"


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the package with all steps of the page done."""
    top = tmp_path_factory.mktemp("extended")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", top / "src", ignore=ignored)
    files = {
        **dict(FILE.findall(PAGE)),
        METHOD.name: METHOD.read_text(encoding="utf-8"),
    }
    package = top / "src" / "coterie"
    registry = package / "config" / "registry.py"
    for file, place, table, line in STEP.findall(PAGE):
        (package / place).write_text(files[file], encoding="utf-8")
        text = registry.read_text(encoding="utf-8")
        registry.write_text(with_line(text, table, line), encoding="utf-8")
    return top


@pytest.fixture
def python(extended, tmp_path):
    """Run Python with the copy; returns what it printed."""

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(extended / "src")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_page_has_a_step_for_each_kind():
    assert [table for _, _, table, _ in STEP.findall(PAGE)] == [
        "FILTERS",
        "DATASETS",
        "ENGINES",
        "METHODS",
    ]


def test_the_command_knows_the_names(python):
    assert "Round updates and gradients" in python("-m", "coterie", "show", "halved")
    assert "fedalign" in python("-m", "coterie", "methods")
    assert "three towns" in python("-m", "coterie", "data")
    assert "votes the other way round" in python("-m", "coterie", "show", "towns")


def test_all_of_them_work_in_one_run(python, tmp_path):
    python(
        *("-m", "coterie", "compare", "towns", "--methods", "local,fedalign"),
        *("--set", "filters=halved", "--engine", "noted", "--set", "data.rows=90"),
        *("--rounds", "2", "--seeds", "1", "--folds", "0", "--out", "run"),
    )
    asked = (tmp_path / "tasks.txt").read_text(encoding="utf-8")
    assert "coterie.algorithms.fedalign:standing" in asked
    experiment = (tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8")
    assert 'name = "halved"' in experiment


def test_they_keep_the_laws_of_their_kind(python):
    python(
        "-c",
        "import coterie as ct\n"
        "ct.testing.check_filter('halved')\n"
        "ct.testing.check_dataset('towns')\n"
        "assert ct.FedALIGN().priority == 'all'\n",
    )
