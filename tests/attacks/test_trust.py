"""The page about trust: every promise has a test that attacks it, marked by the promise's name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^\| \*\*([^*]+)\*\* \|", PAGE, re.M)


def marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name of each test with a mark `promise`, and the promise that it names."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call):
                continue
            if ast.unparse(decorator.func) == "pytest.mark.promise":
                yield node.name, *map(ast.literal_eval, decorator.args)


def promised() -> dict[str, list[str]]:
    """The tests of each promise that a mark names."""
    tests: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "mark.promise" in text:
            for test, promise in marks(ast.parse(text)):
                tests.setdefault(promise, []).append(f"{file.name}::{test}")
    return tests


def test_every_promise_has_a_test_and_no_test_names_another():
    found = promised()
    assert [promise for promise in PROMISES if promise not in found] == []
    unknown = {name: tests for name, tests in found.items() if name not in PROMISES}
    assert unknown == {}
    assert len(PROMISES) == len(set(PROMISES)) > 10


def test_a_mark_is_read_from_its_decorator():
    text = '@pytest.mark.promise("a b")\n@other(1)\ndef test_it(): pass\n'
    assert [*marks(ast.parse(text))] == [("test_it", "a b")]


def test_every_promise_says_against_whom_and_how_it_is_kept():
    for row in re.findall(r"^\| \*\*.*$", PAGE, re.M):
        name, against, how, _ = (cell.strip() for cell in row.split("|")[1:-1])
        assert against, name
        assert how.endswith("."), name


def test_the_page_is_one_page_and_part_of_the_documentation():
    assert len(PAGE.split()) <= 1800
    assert "\ntrust\n" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert "trust.md" in (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
