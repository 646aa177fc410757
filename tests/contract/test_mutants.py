"""`make mutants`: what it takes for killed, and where it makes its mutants."""

from __future__ import annotations

import pytest

from mutants import Mutant, Tree, declared, main, mutated, verdict_of

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
    with tree.holding(mutant):
        assert copy.read_text() == mutated(mutant) != before
    assert (copy.read_text(), copy.stat().st_mtime_ns) == (before, stamp)
    assert mutated(mutant) != before  # the term is still in the sources


def test_a_pattern_that_fits_no_method_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "fedavgg"])
    assert "no method fits 'fedavgg'" in capsys.readouterr().err
