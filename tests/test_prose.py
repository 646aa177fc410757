"""Pages read easily: Flesch's score above 50 for the README and tutorials, above 40 elsewhere, no sentence of more than 40 words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
EASY = [ROOT / "README.md", *sorted((DOCS / "tutorials").glob("*.md"))]
FOLDERS = ("", "howto", "explanation", "reference")
PAGES = [
    *EASY,
    ROOT / "CONTRIBUTING.md",
    *(page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))),
]
LONGEST = 40
WRITTEN_BY_PROGRAMS = re.compile(r"^<!-- (\w+) -->$.*?^<!-- /\1 -->$", re.M | re.S)
BLOCK = re.compile(r"^[ \t]*(`{3,}|:{3,}|~{3,}|\$\$).*?^[ \t]*\1[ \t]*$", re.M | re.S)
INDENTED = re.compile(r"\n\n(?: {4}.*\n|\n(?= {4}))+")
ENTRY = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*>|:]|\d+\.|#)\s)|\n(?=\|)")


def passages(markdown):
    """Paragraphs, entries of lists, headings and cells of tables as plain words; code and formulas are one letter."""
    markdown = re.sub(
        r"^```\{glossary\}\n(.*?)^```$", r"\1", markdown, flags=re.M | re.S
    )
    markdown = re.sub(r"\{term\}`([^`<]*)[^`]*`", r"\1", markdown)
    text = INDENTED.sub("\n\n", markdown)
    text = BLOCK.sub("\n\n", WRITTEN_BY_PROGRAMS.sub("\n\n", text))
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"(`+)[^`].*?\1|\$[^$\n]+\$", "x", text, flags=re.S)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^(#.*)$", r"\1\n", text, flags=re.M)
    for entry in ENTRY.split(text):
        words = " ".join(re.sub(r"^\s*(?:[-*>:]|\d+\.)\s", "", entry).split())
        yield from (
            (("table", cell) for cell in words.split("|") if cell.strip())
            if words[:1] == "|"
            else [("heading" if words[:1] == "#" else "prose", words)]
        )


def sentences(words):
    """The sentences of a passage."""
    return re.split(r'(?<=[.!?:;])\s+(?=[A-Z0-9`*x("]|client-)', words)


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if DOCS in page.parents and page.stem not in ("index", "results")
    ],
    ids=lambda page: page.stem,
)
def test_a_page_begins_with_what_it_explains_and_when_to_read_it(page):
    prose = [
        words
        for kind, words in passages(page.read_text(encoding="utf-8"))
        if kind == "prose" and words
    ]
    assert re.match(r"This page .*\bRead it\b", prose[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_sentence_is_too_long(page):
    found = [
        s
        for _, words in passages(page.read_text(encoding="utf-8"))
        for s in sentences(words)
    ]
    assert [s for s in found if len(s.split()) > LONGEST] == []


@pytest.mark.programs
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_reads_easily(page):
    textstat = pytest.importorskip("textstat")
    prose = [
        words
        for kind, words in passages(page.read_text(encoding="utf-8"))
        if kind == "prose" and " " in words
    ]
    text = "\n".join(
        words.rstrip(":;,") + "." * (words[-1] not in ".!?") for words in prose
    )
    if len(text.split()) < 60:
        pytest.skip("too little prose for a score")
    assert textstat.flesch_reading_ease(text) > (50 if page in EASY else 40)
