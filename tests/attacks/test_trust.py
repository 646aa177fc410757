"""The page about trust: every promise names a test, and the test exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trust.md").read_text()
PARTIES = ("server", "site", "another site", "outsider")


HONESTY = ("honest", "curious", "malicious")


def rows_of_tables():
    rows = [
        line.strip("|").split("|")
        for line in PAGE.splitlines()
        if line.startswith("| ")
    ]
    return [[cell.strip() for cell in row] for row in rows if len(row) == 5]


def table():
    return [row for row in rows_of_tables() if row[1] in HONESTY]


def test_the_table_has_every_party_and_honesty_once():
    found = [(row[0], row[1]) for row in table()]
    assert sorted(found) == sorted((p, h) for p in PARTIES for h in HONESTY)


def test_every_promise_names_tests_that_exist():
    notes = {row[0]: row for row in rows_of_tables() if row[0].isdigit()}
    assert [*map(int, notes)] == [*range(1, len(notes) + 1)]
    for row in table():
        for cell in row[2:]:
            numbers = re.findall(r"\((\d+)\)", cell)
            assert numbers or not cell.startswith("holds"), (
                f"{row[0]}, {row[1]}: {cell!r} names no test"
            )
            assert set(numbers) <= set(notes)
    for number, note in notes.items():
        assert all(note), f"{number} lacks a party, an asset or a mechanism"
        assert "`tests/" in note[4], f"{number} names no test"
    for path, name in re.findall(r"`(tests/[\w/.]+)::(\w+)`", PAGE):
        assert f"\ndef {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


def test_the_page_is_one_page_and_part_of_the_documentation():
    assert len(re.sub(r"`tests/[^`]+`|^\|.*$", "", PAGE, flags=re.M).split()) <= 1500
    assert "\ntrust\n" in (ROOT / "docs" / "index.md").read_text()
    assert "trust.md" in (ROOT / "docs" / "deploy.md").read_text()
