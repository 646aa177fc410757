"""A release is refused while it would be wrong, and its metadata follow from two settings."""

from __future__ import annotations

import email.parser
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
from release import problems  # noqa: E402 - a script beside the pages

SETTINGS = {"address": "https://example.org/coterie", "contact": "people@example.org"}
CHANGES = "# Changelog\n\n## [1.2.3] - 2026-11-30\n"


def test_a_release_with_addresses_date_and_tag_may_go_out():
    assert problems(SETTINGS, "1.2.3", CHANGES, "v1.2.3") == []
    assert problems(SETTINGS, "1.2.3", CHANGES, "") == []


@pytest.mark.parametrize(
    ("settings", "changes", "tag", "sentence"),
    [
        (
            {**SETTINGS, "address": ""},
            CHANGES,
            "",
            "address in pyproject.toml is empty",
        ),
        (
            {**SETTINGS, "contact": ""},
            CHANGES,
            "",
            "contact in pyproject.toml is empty",
        ),
        (SETTINGS, CHANGES, "v1.2.4", "tag v1.2.3"),
        (SETTINGS, "## [1.2.3] - not published yet\n", "", "has no date for 1.2.3"),
    ],
)
def test_a_release_that_would_be_wrong_is_refused_with_the_cure(
    settings, changes, tag, sentence
):
    assert [
        sentence in problem for problem in problems(settings, "1.2.3", changes, tag)
    ] == [True]


def test_the_command_refuses_as_long_as_nothing_is_published():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "release.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "address in pyproject.toml is empty" in done.stderr


@pytest.mark.programs
def test_an_address_makes_the_links_of_the_readme_absolute(tmp_path: Path):
    tree = tmp_path / "tree"
    shutil.copytree(
        ROOT,
        tree,
        ignore=shutil.ignore_patterns(".*", "build", "dist", "site", "runs", "results"),
    )
    shutil.copy(ROOT / ".gitignore", tree)
    project = tree / "pyproject.toml"
    text = project.read_text()
    for key, value in SETTINGS.items():
        text = text.replace(f'{key} = ""', f'{key} = "{value}"')
    project.write_text(text)
    subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path / "dist", tree],
        check=True,
    )
    with tarfile.open(next((tmp_path / "dist").glob("*.tar.gz"))) as archive:
        folder = archive.getnames()[0].partition("/")[0]
        packed = {name.removeprefix(f"{folder}/") for name in archive.getnames()}
        file = archive.extractfile(f"{folder}/PKG-INFO")
        assert file is not None
        metadata = email.parser.Parser().parsestr(file.read().decode())
    assert {
        "docs/trust.md",
        "tests/test_release.py",
        "SECURITY.md",
        "Makefile",
        "constraints.txt",
    } <= packed
    assert f"Repository, {SETTINGS['address']}" in metadata.get_all("Project-URL", [])
    assert (
        f"![the report in a browser]({SETTINGS['address']}/raw/main/docs/images/report.png)"
        in metadata.get_payload()
    )
