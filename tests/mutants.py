"""`make mutants`: does a test of a method fail when one of the terms is gone that make the method what it is?

Each file of `tests/methods` says in `MUTANTS` what is to be replaced: by method, (file under src/coterie, a term, what stands there
instead). The list lies beside the laws, so that a new method brings both. Every mutant is made in a copy of the tree, and the file's
tests run there until one fails. A mutant that all of them pass SURVIVED: a law is missing.

    python tests/mutants.py [--only PATTERN] [--jobs N]
"""

from __future__ import annotations

import argparse
import ast
import compileall
import multiprocessing
import os
import queue
import re
import shutil
import sys
import tempfile
import textwrap
import time
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

__all__ = ["Mutant", "declared", "mutated", "replaced"]

ROOT = Path(__file__).resolve().parent.parent
METHODS = Path("tests", "methods")
COPIED = ("src", "tests", "benchmarks", "examples", "pyproject.toml")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["pytest", "scipy.optimize", "torch"]
)  # half of the time of a short test
LONGEST = 900
"""Seconds after which a mutant that does not end counts as killed."""
CRASHES = (
    "AttributeError",
    "ImportError",
    "NameError",
    "SyntaxError",
    "TypeError",
    "UnboundLocalError",
)
"""Errors of a mutant that cannot run, also where a refusal cites them: no test has noticed that another method runs."""


M = TypeVar("M")


class Mutant(NamedTuple):
    """A term of `file` (under src/coterie) that is replaced, and the tests, relative to the root, that are to notice."""

    method: str
    tests: Path
    file: str
    term: str
    instead: str

    def __str__(self) -> str:
        return (
            f"{self.method}: {self.file}: {shown(self.term)}  ->  {shown(self.instead)}"
        )


class Verdict(NamedTuple):
    """What became of a mutant: "killed", "SURVIVED", or why it says nothing; and the test that failed."""

    word: str
    killer: str = ""


def shown(code: str) -> str:
    return " ".join(code.split())


@cache
def declared(root: Path = ROOT) -> tuple[Mutant, ...]:
    """All mutants of the test files of methods, in the order of files."""
    return tuple(
        mutant
        for path in sorted((root / METHODS).glob("test_*.py"))
        for mutant in _of(path)
    )


def _of(path: Path) -> Iterator[Mutant]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MUTANTS":
            for method, replacements in ast.literal_eval(node.value).items():
                for file, term, instead in replacements:
                    yield Mutant(method, METHODS / path.name, file, term, instead)


def mutated(mutant: Mutant, root: Path = ROOT) -> str:
    """The text of the file with the other term. Raises `ValueError` unless the term is there exactly once.

    A term that does not stand there letter by letter is looked for by its tokens, so that formatting loses none.
    """
    text = (root / "src" / "coterie" / mutant.file).read_text()
    return replaced(
        text,
        mutant.term,
        mutant.instead,
        f"{mutant.tests} replaces a term that {mutant.file}",
    )


def replaced(text: str, term: str, instead: str, place: str) -> str:
    """A text with another term. Raises `ValueError`, which begins with the place, unless the term is there exactly once."""
    times = text.count(term)
    if times == 1:
        return text.replace(term, instead)
    spans = spans_of(term, text) if times == 0 else []
    if len(spans) == 1:
        first, last = spans[0]
        return text[:first] + instead.strip() + text[last:]
    raise ValueError(f"{place} has {times or len(spans)} times: {shown(term)}")


class Token(NamedTuple):
    """A token of Python, and where it lies in the text: [first, last)."""

    code: str
    first: int
    last: int


_LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
}


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, or of a fragment of one, without layout, comments and commas that end a bracket."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: list[Token] = []
    # A fragment may leave a bracket open: what was read up to there counts.
    with suppress(tokenize.TokenError):
        for kind, code, (row, column), (
            last_row,
            last_column,
        ), _ in tokenize.generate_tokens(iter(lines).__next__):
            if kind in _LAYOUT:
                continue
            if code in ")]}" and found and found[-1].code == ",":
                found.pop()
            found.append(
                Token(
                    code, starts[row - 1] + column, starts[last_row - 1] + last_column
                )
            )
    return found


def spans_of(term: str, text: str) -> list[tuple[int, int]]:
    """Where the tokens of a term stand in a text, one after another: [first, last) of each place."""
    wanted = [token.code for token in tokens_of(textwrap.dedent(term).strip())]
    tokens = tokens_of(text)
    codes = [token.code for token in tokens]
    width = len(wanted)
    places = [
        k for k in range(len(codes) - width + 1) if codes[k : k + width] == wanted
    ]
    return [(tokens[k].first, tokens[k + width - 1].last) for k in places]


class Tree:
    """A copy of the sources and tests in which tests run."""

    def __init__(self, folder: Path, *, fast: bool = False) -> None:
        self.folder = folder
        # What `conftest.py` leaves out of the fast tests runs here, unless these alone are asked for.
        for name in (*COPIED, "conftest.py") if fast else COPIED:
            source, skip = ROOT / name, shutil.ignore_patterns("__pycache__")
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=skip)
            else:
                shutil.copy2(source, folder / name)
        compileall.compile_dir(folder / "src", quiet=2)

    def tests(self, *names: str, longest: float = LONGEST) -> tuple[int | None, str]:
        """Exit status of pytest (None: it had to be ended after `longest` seconds) and what it said."""
        said = self.folder / "said.txt"
        process = FORKS.Process(target=run_tests, args=(self.folder, said, names))
        process.start()
        process.join(longest)
        if process.is_alive():
            process.kill()
            return None, ""
        return process.exitcode, said.read_text()

    @contextmanager
    def holding(self, name: str, text: str) -> Iterator[None]:
        """While this lasts the file of src/coterie has another text."""
        file = self.folder / "src" / "coterie" / name
        before = file.stat()
        original = file.read_bytes()
        file.write_text(text)
        try:
            yield
        finally:
            file.write_bytes(original)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def judge(
        self,
        name: str,
        text: str,
        tests: Sequence[str],
        *,
        crash_kills: bool = False,
        longest: float = LONGEST,
    ) -> Verdict:
        """What tests say of another text of a file. A crash says nothing of a method's terms, and enough of any other line."""
        with self.holding(name, text):
            status, output = self.tests(*tests, longest=longest)
        return verdict_of(status, output, crash_kills=crash_kills)


def run_tests(folder: Path, said: Path, names: Sequence[str]) -> None:
    """Run tests in the tree at `folder`; in a process of its own, which has imported nothing of coterie."""
    os.chdir(folder)
    sys.path.insert(0, str(folder / "src"))
    os.environ["PYTHONPATH"] = str(folder / "src")
    os.environ.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # where it is set, conftest.py would undo the next line
    sys.dont_write_bytecode = (
        True  # two mutants of one second and one size would be taken for each other
    )
    with said.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    import coterie

    if not Path(coterie.__file__).is_relative_to(folder):
        raise RuntimeError(f"tests in {folder} would import {coterie.__file__}")
    sys.exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *names]))


def verdict_of(
    status: int | None, output: str, *, crash_kills: bool = False
) -> Verdict:
    """What the exit status and the output of pytest say."""
    if status is None:
        return Verdict("killed", "(did not end)")
    if status == 0:
        return Verdict("SURVIVED")
    # The name of a case may have blanks.
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M)
    if crash_kills and failed:
        return Verdict("killed", failed[0])
    if status != 1 or not any("::" in name for name in failed):
        return Verdict("BROKEN: its tests did not run")
    crash = re.search(rf"^E .*\b({'|'.join(CRASHES)}): ", output, re.M)
    return (
        Verdict(f"BROKEN: {crash.group(1)}") if crash else Verdict("killed", failed[0])
    )


def judged(
    mutants: Sequence[M], trees: Sequence[Tree], judge: Callable[[Tree, M], Verdict]
) -> Iterator[tuple[M, Verdict, float]]:
    """Each mutant with its verdict and how many seconds that took, in order."""
    free: queue.Queue[Tree] = queue.Queue()
    for tree in trees:
        free.put(tree)

    def one(mutant: M) -> tuple[M, Verdict, float]:
        tree, start = free.get(), time.monotonic()
        try:
            return mutant, judge(tree, mutant), time.monotonic() - start
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        yield from pool.map(one, mutants)


def judge_method(tree: Tree, mutant: Mutant) -> Verdict:
    text = mutated(mutant, tree.folder)
    return tree.judge(mutant.file, text, [str(mutant.tests)])


def failing_anyway(tree: Tree, killers: Iterable[str]) -> list[str]:
    """Those tests that fail without any mutant, and so killed nobody."""
    names = sorted({killer for killer in killers if "::" in killer})
    if not names or tree.tests(*names)[0] == 0:
        return []
    return [name for name in names if tree.tests(name)[0] != 0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each mutant; 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="*", help="a pattern of methods")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time"
    )
    parser.add_argument(
        "--fast", action="store_true", help="with the tests of make test alone"
    )
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    chosen = [
        mutant for mutant in declared() if fnmatchcase(mutant.method, options.only)
    ]
    if not chosen:
        parser.error(f"no method fits {options.only!r}")
    for mutant in chosen:
        mutated(mutant)
    with tempfile.TemporaryDirectory() as folder:
        trees = [
            Tree(Path(folder, str(k)).resolve(), fast=options.fast)
            for k in range(min(options.jobs, len(chosen)))
        ]
        verdicts = []
        for mutant, verdict, seconds in judged(chosen, trees, judge_method):
            verdicts.append(verdict)
            print(
                f"{verdict.word:<8} {seconds:4.0f} s  {mutant}  {verdict.killer.rpartition('::')[2]}",
                flush=True,
            )
        innocent = failing_anyway(trees[0], (v.killer for v in verdicts))
    for name in innocent:
        print(f"{name} fails without any mutant, and so killed nobody")
    killed = sum(v.word == "killed" and v.killer not in innocent for v in verdicts)
    print(
        f"{killed} of {len(chosen)} mutants of {len({m.method for m in chosen})} methods were killed"
    )
    return int(killed < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
