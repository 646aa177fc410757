"""`make mutants`: what it takes for killed, and where it makes its mutants."""

from __future__ import annotations

import ast
import hashlib

import pytest
from benchmarks.pages import csv_table, read
from benchmarks.pages import replaced as replaced_between

import room_mutants
from mutants import ROOT, Mutant, Tree, declared, main, mutated, verdict_of
from room_mutants import (
    KINDS,
    RESULTS,
    SOURCE,
    Map,
    Timed,
    affordable,
    around,
    drawn,
    equivalent,
    groups,
    places,
    room_of_the_week,
)

FAILED = """\
E       assert 1.0 == 2.0
FAILED tests/methods/test_mine.py::test_a[x] - assert 1.0 == 2.0
"""


@pytest.mark.parametrize(
    ("status", "output", "word", "killer"),
    [
        (0, "3 passed", "SURVIVED", ""),
        (1, FAILED, "killed", "tests/methods/test_mine.py::test_a[x]"),
        (1, FAILED + "E   NameError: name 'x' is not defined", "BROKEN: NameError", ""),
        (
            1,
            "FAILED tests/cli/test_mine.py::test_a[no command] - assert 1 == 2",
            "killed",
            "tests/cli/test_mine.py::test_a[no command]",
        ),
        (
            1,
            FAILED + "E   TypeError: f() got an unexpected argument",
            "BROKEN: TypeError",
            "",
        ),
        (
            1,
            FAILED
            + "E   coterie.contract.exchange.QuorumError: a (TypeError: no tensor)",
            "BROKEN: TypeError",
            "",
        ),
        (
            1,
            FAILED + "E   Failed: DID NOT RAISE <class 'TypeError'>",
            "killed",
            "tests/methods/test_mine.py::test_a[x]",
        ),
        (2, "ERROR tests/methods/test_mine.py", "BROKEN: its tests did not run", ""),
        (5, "no tests ran", "BROKEN: its tests did not run", ""),
    ],
)
def test_only_a_test_that_fails_kills(status, output, word, killer):
    assert verdict_of(status, output) == (word, killer)


def test_a_term_must_be_there_exactly_once(tmp_path):
    file = tmp_path / "src" / "coterie" / "mine.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1 + 1\ny = 2\n")
    mutant = Mutant("mine", "tests/methods/test_mine.py", "mine.py", "x = 1", "x = 0")
    assert mutated(mutant, tmp_path) == "x = 0 + 1\ny = 2\n"
    for term, times in (("1", 2), ("z", 0)):
        with pytest.raises(
            ValueError, match=f"replaces a term that mine.py has {times} times: {term}"
        ):
            mutated(mutant._replace(term=term), tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = f(\n    a + 1,\n    b,\n)\n", "y = g(a)\n"),
        ("y = f(a + 1,  # why\n      b)\n", "y = g(a)\n"),
        (
            "if y:\n    return f(\n        a\n        + 1, b)\n",
            "if y:\n    return g(a)\n",
        ),
    ],
)
def test_a_term_is_found_however_it_is_formatted(tmp_path, text, expected):
    file = tmp_path / "src" / "coterie" / "mine.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert (
        mutated(
            Mutant("mine", "test_mine.py", "mine.py", "f(a + 1, b)", "g(a)"), tmp_path
        )
        == expected
    )
    file.write_text(text + text)
    with pytest.raises(ValueError, match="has 2 times"):
        mutated(
            Mutant("mine", "test_mine.py", "mine.py", "f(a + 1, b)", "g(a)"), tmp_path
        )


def test_a_mutant_lives_in_a_copy_and_only_while_its_tests_run(tmp_path):
    tree, mutant = Tree(tmp_path), declared()[0]
    copy = tmp_path / "src" / "coterie" / mutant.file
    before, stamp = copy.read_text(), copy.stat().st_mtime_ns
    with tree.holding(mutant.file, mutated(mutant)):
        assert copy.read_text() == mutated(mutant) != before
    assert (copy.read_text(), copy.stat().st_mtime_ns) == (before, stamp)
    assert mutated(mutant) != before  # the term is still in the sources


def test_a_pattern_that_fits_no_method_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "fedavgg"])
    assert "no method fits 'fedavgg'" in capsys.readouterr().err


ROOM = """
from typing import Any

def f(x: Any = 1, *, ä: float = 0.5) -> Any:
    if x < 3:
        raise ValueError("no")
    print(x, sep="")
    return max(x, 2) if ä else g(x, k=True)
""".encode()


def test_each_kind_changes_its_places_and_leaves_code_that_can_be_read():
    found = places(ROOM)
    assert {kind: len(of_kind) for kind, of_kind in found.items()} == {
        "flip comparison": 1,
        "drop guard": 1,
        "drop line": 1,
        "swap arguments": 1,
        "change constant": 5,
        "drop keyword": 2,
        "negate": 2,
    }
    whole = ast.dump(ast.parse(ROOM))
    for of_kind in found.values():
        for place in of_kind:
            changed = ROOM[: place.first] + place.instead.encode() + ROOM[place.last :]
            assert ast.dump(ast.parse(changed)) != whole
            assert ROOM.splitlines()[place.line - 1].strip()


def test_a_seed_draws_the_same_mutants_of_all_kinds_and_none_twice():
    chosen = drawn("contract", 60, 1)
    assert chosen == drawn("contract", 60, 1) != drawn("contract", 60, 2)
    assert len(set(chosen)) == 60
    assert {mutant.place.kind for mutant in chosen} == set(KINDS)
    with pytest.raises(ValueError, match="src/coterie/nowhere has fewer than 1 places"):
        drawn("nowhere", 1, 1)


def measured(file, seconds, lines):
    tests = [(f"{file}::test_{k}", took) for k, took in enumerate(seconds)]
    return {file: {"hash": "", "tests": tests, "lines": {"m.py": lines}}}


def test_the_quickest_test_of_each_file_runs_first():
    long = measured("a.py", (3.0, 1.0), {"x = 1": [0, 1], "y = 2": [0]})
    short = measured("b.py", (2.0, 0.5), {"x = 1": [0]})
    reach = Map(long | short)
    names = [test.name for test in reach.reaching("m.py", {"x = 1"})]
    assert names == ["a.py::test_1", "b.py::test_0", "a.py::test_0"]
    assert [t.name for t in reach.reaching("m.py", {"y = 2"})] == ["a.py::test_0"]
    assert reach.reaching("m.py", {"z = 3"}) == reach.reaching("n.py", {"x = 1"}) == []
    beside = [test.name for test in Map(short).beside("m.py")]
    assert beside == ["b.py::test_1", "b.py::test_0"]
    assert Map(short).beside("n.py") == []


def test_the_tests_of_little_run_before_those_of_much():
    files = {}
    for number, name in enumerate("abcdef"):
        reached = {f"line {k}": [0] for k in range(6 - number)}
        files |= measured(f"{name}.py", (1.0,), reached)
    reach = Map(files)
    tests = reach.reaching("m.py", {"line 0"})
    found = [{test.file[0] for test in group} for group in groups(tests, reach)]
    assert found == [{"f"}, {"e", "d", "c"}, {"b", "a"}]
    assert groups(tests[:1], reach) == [tests[:1]]


def test_only_so_many_tests_run_as_fit_into_a_minute():
    tests = [Timed("a", 40.0), Timed("b", 30.0), Timed("c", 15.0)]
    assert affordable(tests, 60.0) == [tests[0], tests[2]]
    assert affordable(tests, 10.0) == tests[:1]


def test_a_test_file_that_changed_or_came_is_measured_again(tmp_path):
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("same", "changed", "new"):
        (folder / f"test_{name}.py").write_text(name)
    files = {}
    for name in ("same", "changed"):
        path = folder / f"test_{name}.py"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files[f"tests/test_{name}.py"] = {"hash": digest}
    (folder / "test_changed.py").write_text("something else")
    assert Map(files).stale(tmp_path) == ["tests/test_changed.py", "tests/test_new.py"]


class Covered:
    """As data of coverage: a file, and the contexts of its lines; and a template, whose functions bear its name."""

    def __init__(self, path, contexts):
        self.path, self.contexts = path, contexts

    def measured_files(self):
        return [str(self.path), str(self.path.with_name("page.html"))]

    def contexts_by_lineno(self, path):
        return self.contexts


def test_what_runs_as_a_test_file_is_read_counts_for_all_of_its_tests(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(room_mutants, "ROOT", tmp_path)
    source = tmp_path / SOURCE / "m.py"
    source.parent.mkdir(parents=True)
    source.write_text("x = 1\ndef f():\n    return x\n")
    source.with_name("page.html").write_text("{{ x }} ± {{ y }}\n")
    (tmp_path / "test_a.py").write_text("")
    contexts = {
        1: ["test_a.py::"],
        2: ["test_a.py::test_two"],
        3: ["test_a.py::", "test_of_slow_tests.py::", ""],
    }
    seconds = {"test_a.py::test_one": 1.0, "test_a.py::test_two": 2.0}
    found = room_mutants._by_test_file(Covered(source, contexts), seconds)
    assert found["test_a.py"]["lines"] == {
        "m.py": {"def f():": [1], "return x": [0, 1]}
    }


def test_a_line_that_no_test_runs_belongs_to_its_innermost_function():
    code = "x = 1\ndef f():\n    y = 2\n    def g():\n        return 3\n    return g\n"
    assert [around(code, line) for line in (1, 3, 5)] == [(1, 6), (3, 6), (5, 5)]


@pytest.mark.in_turn
def test_another_room_has_its_turn_each_week():
    room = room_of_the_week(40)
    assert len(drawn(room, 40, 1)) == 40


def test_a_crash_tells_nothing_of_a_method_and_enough_of_a_line():
    said = FAILED + "E   NameError: name 'x' is not defined"
    assert verdict_of(1, said).word == "BROKEN: NameError"
    assert verdict_of(1, said, crash_kills=True).word == "killed"
    assert verdict_of(5, "no tests ran", crash_kills=True).word.startswith("BROKEN")


def test_each_mutant_that_means_the_same_can_be_drawn_and_has_a_reason():
    for (file, line, instead), why in equivalent().items():
        code = (ROOT / SOURCE / file).read_bytes()
        lines = code.decode().splitlines()
        found = {
            (lines[place.line - 1].strip(), place.instead)
            for of_kind in places(code).values()
            for place in of_kind
        }
        assert (line, instead) in found, file
        assert len(why.split()) >= 4


def test_the_page_shows_what_was_counted():
    page = ROOT / "docs" / "reliability.md"
    shown = csv_table(read(RESULTS))
    assert replaced_between(page, shown, "mutants") == page.read_text()


def test_a_room_replaces_its_former_row_alone(tmp_path, monkeypatch):
    page = tmp_path / "docs" / "reliability.md"
    page.parent.mkdir()
    page.write_text("<!-- mutants -->\n<!-- /mutants -->\n")
    monkeypatch.setattr(room_mutants, "ROOT", tmp_path)
    monkeypatch.setattr(room_mutants, "RESULTS", tmp_path / "counts.csv")
    counts = {"mutants": 40, "killed": 37, "mean the same": 2, "survived": 1}
    for room, killed in (("run", 30), ("cli", 31), ("run", 39)):
        room_mutants.write_row(room, 5, {**counts, "killed": killed})
    assert read(tmp_path / "counts.csv")[1:] == [
        ["cli", "5", "40", "31", "2", "1"],
        ["run", "5", "40", "39", "2", "1"],
    ]
    assert "| run | 5 | 40 | 39 | 2 | 1 |" in page.read_text()
