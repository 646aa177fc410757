"""The site as readers get it: built without a warning, whole, and with the output that its commands have today."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from site_viewer import looked_at, searched

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
ENGINES = ("deployment",)
NEEDS = {
    "scale": ("\n## Several machines", "ray"),
    "personalise": ("\n## Adapters of a language model", "peft"),
}
"""From this heading on, a page needs a package that not every environment has."""
SESSIONS = [
    pytest.param(
        page, marks=[pytest.mark.engines] * (page.stem in ENGINES), id=page.stem
    )
    for page in (
        ROOT / "README.md",
        *sorted((DOCS / "tutorials").glob("*.md")),
        *sorted((DOCS / "howto").glob("*.md")),
    )
]
AXE = ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
BROWSER = next(
    (
        found
        for found in map(
            shutil.which, ("chromium", "chromium-browser", "google-chrome")
        )
        if found
    ),
    None,
)
LOADED = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
}

pytestmark = pytest.mark.programs


class Page(HTMLParser):
    """What one page refers to, loads and says."""

    def __init__(self, file):
        super().__init__()
        self.links, self.loaded, self.anchors, self.words = [], [], {"", "top"}, []
        self.feed(file.read_text(encoding="utf-8"))
        self.text = "".join(self.words)

    def handle_starttag(self, tag, attributes):
        said = dict(attributes)
        self.anchors.add(said.get("id"))
        if tag == "a" and said.get("href"):
            self.links.append(said["href"])
        if tag in LOADED and said.get(LOADED[tag]):
            self.loaded.append(said[LOADED[tag]])

    def handle_data(self, data):
        self.words.append(data)


def squeezed(text):
    """Words alone, however they are broken into lines, marked as code, and begun."""
    return " ".join(text.replace("`", "").lower().split())


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """All pages by file."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(DOCS),
        str(folder),
    ]
    built = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert built.returncode == 0, built.stderr[-2000:]
    return {file: Page(file) for file in folder.rglob("*.html")}


def test_every_internal_link_leads_to_a_place(site):
    broken = []
    for file, page in site.items():
        for link in page.links:
            path, _, anchor = link.partition("#")
            if "://" in link or link.startswith("mailto:"):
                continue
            target = (file.parent / unquote(path)).resolve() if path else file
            known = (
                site[target].anchors
                if target in site
                else {""}
                if target.exists()
                else set()
            )
            broken += [f"{file.name}: {link}"] * (unquote(anchor) not in known)
    assert broken == []


def test_a_page_loads_nothing_from_elsewhere(site):
    assert [
        f"{file.name}: {name}"
        for file, page in site.items()
        for name in page.loaded
        if "//" in name
    ] == []


def test_no_page_shows_machinery_or_marks_of_markdown(site):
    machinery = re.compile(r"Rule\(|<function|<locals>| at 0x[0-9a-f]{6}")
    marks = re.compile(r"\*\*[A-Z][\w ,.:-]*\*\*")
    assert marks.search("**Zeros that mean** a gap")
    found = []
    for file, page in site.items():
        for pattern in (machinery, marks):
            found += [f"{file.name}: {hit}" for hit in pattern.findall(page.text)]
    assert found == []


def test_each_method_preset_and_command_is_found_on_its_page(site):
    from coterie.cli.catalogue import entries

    pages = runpy.run_path(str(DOCS / "pages.py"))
    text = {f"{file.parent.name}/{file.stem}": page.text for file, page in site.items()}
    for name, entry in entries().items():
        said = pages["Text"](entry.text)
        parts = (entry.summary, entry.paragraph("Use"), said.differences, *said.remarks)
        page = squeezed(text[f"methods/{name}"])
        assert [part for part in parts if squeezed(part) not in page] == [], name
        assert entry.cls.__name__.lower() in page, name
    for file in pages["PRESETS"].glob("*.toml"):
        assert file.read_text(encoding="utf-8").strip() in text[f"presets/{file.stem}"]
    for words, _ in pages["commands"]():
        assert (
            f"usage: coterie {' '.join(words)}" in text[f"commands/{'-'.join(words)}"]
        )


def test_each_method_has_a_picture_of_a_run(site):
    for file, page in site.items():
        if file.parent.name == "methods" and "reference" not in file.parts:
            shown = file.read_text(encoding="utf-8")
            assert shown.count('fill="none" class="mark-') in (1, 2, 4), file.stem
            assert f"{file.stem}: weights of four clients" in shown
            assert "test loss by round" in page.text


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.skipif(
    not AXE.is_file(), reason="no axe-core: npm install --prefix build/axe axe-core"
)
def test_a_browser_finds_no_page_too_wide_or_against_rules_of_level_a_and_aa(
    site, tmp_path
):
    top = next(file.parent for file in site if file.name == "genindex.html")
    pages = sorted(str(file.relative_to(top)) for file in site)
    assert looked_at(top, AXE, BROWSER, tmp_path, pages) == []


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize(
    "name", ["fit", "MeritFed", "data.from_frames", "EarlyStopping"]
)
def test_a_search_for_a_public_name_finds_its_page_first(site, tmp_path, name):
    top = next(file.parent for file in site if file.name == "search.html")
    assert searched(top, BROWSER, tmp_path, f"ct.{name}")[:1] == [
        f"reference/api/{name}.html"
    ]


@pytest.mark.parametrize("page", SESSIONS)
def test_what_commands_print_on_a_page_is_what_they_print_now(page, monkeypatch):
    text = page.read_text(encoding="utf-8")
    if page.stem in NEEDS:
        text = text.partition(NEEDS[page.stem][0])[0]
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    assert runpy.run_path(str(DOCS / "console.py"))["replayed"](text) == text


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("scale", marks=pytest.mark.engines),
        pytest.param("personalise", marks=pytest.mark.extras),
    ],
)
def test_so_do_those_that_need_a_package(name, monkeypatch):
    pytest.importorskip(NEEDS[name][1])
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    text = (DOCS / "howto" / f"{name}.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(DOCS / "console.py"))["replayed"](text) == text
