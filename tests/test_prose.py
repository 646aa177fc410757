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
CONSTRUCTIONS = {
    r"\b[Tt]old are\b|\bShown are\b": "Shown: ...",
    r"; left out: ": "; default: ",
    r"\bleft out: everybody": "default: all clients",
    r"\bgoe?s? on where\b": "resumes where",
    r"\bto the same bits\b": "bit-for-bit the same",
    r"\b(?<!there )is no (run directory|TOML|file|folder|method)\b": "is not a ...",
    r"(?<!-)\b[Ll]iars?\b": "faulty or malicious clients",
    r"\b[Uu]pon which\b|\b[Ww]hereupon\b|\b[Ww]herein\b": "then, or where",
    r"\breference that nobody can have\b": "say who cannot, and why",
    r"\bstands for itself\b": "correct for multiple comparisons, and say so",
    r"\banswers nothing\b": "refuses every request",
}
"""What readers stumble over, and what to write instead."""
SPOKEN = [
    *(ROOT / "src" / "coterie").rglob("*.py"),
    *(ROOT / "src" / "coterie").rglob("*.j2"),
    *(ROOT / "examples").glob("*.py"),
]
BLOCK = re.compile(r"^[ \t]*(`{3,}|:{3,}|~{3,}|\$\$).*?^[ \t]*\1[ \t]*$", re.M | re.S)
INDENTED = re.compile(r"\n\n(?: {4}.*\n|\n(?= {4}))+")
ENTRY = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*>|:]|\d+\.|#)\s)|\n(?=\|)")


def passages(markdown):
    """Paragraphs, entries of lists, headings and cells of tables as plain words; code and formulas are one letter."""
    markdown = re.sub(r"^```\{glossary\}\n(.*?)^```$", r"\1", markdown, flags=re.M | re.S)
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


def test_nothing_is_said_in_a_banned_construction():
    found = []
    for file in (*PAGES, *SPOKEN):
        text = file.read_text(encoding="utf-8")
        for pattern, better in CONSTRUCTIONS.items():
            found += [f"{file.name}: {hit.group()!r}; write {better!r}" for hit in re.finditer(pattern, text)]
    assert found == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if DOCS in page.parents and page.stem not in ("index", "results")],
    ids=lambda page: page.stem,
)
def test_a_page_begins_with_what_it_explains_and_when_to_read_it(page):
    prose = [words for kind, words in passages(page.read_text(encoding="utf-8")) if kind == "prose" and words]
    assert re.match(r"This page .*\bRead it\b", prose[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_sentence_is_too_long(page):
    found = [s for _, words in passages(page.read_text(encoding="utf-8")) for s in sentences(words)]
    assert [s for s in found if len(s.split()) > LONGEST] == []


@pytest.mark.programs
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_reads_easily(page):
    textstat = pytest.importorskip("textstat")
    prose = [words for kind, words in passages(page.read_text(encoding="utf-8")) if kind == "prose" and " " in words]
    text = "\n".join(words.rstrip(":;,") + "." * (words[-1] not in ".!?") for words in prose)
    if len(text.split()) < 60:
        pytest.skip("too little prose for a score")
    assert textstat.flesch_reading_ease(text) > (50 if page in EASY else 40)
