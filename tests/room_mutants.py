"""`make mutants ROOM=report N=40`: would a test notice if a line of a room were wrong?

Mutants are drawn from a seed out of all places of a room where one of seven things can be changed (see `KINDS`).
Each is made in a copy of the tree. There the tests run that a map of coverage names for its line, the quickest of each
file first, 40 seconds of them at most, until one fails. A mutant that all of them pass SURVIVED: a law is missing, or the
mutant means the same. Those that mean the same are listed in `tests/equivalent.toml`, with the reason.

    PYTHONPATH=tests python -m room_mutants report [--number 40] [--seed 20261129] [--jobs N] [--only PLACE]
    PYTHONPATH=tests python -m room_mutants --map [--in-turn] [TESTS ...]
    PYTHONPATH=tests python -m room_mutants report --again FILE

The map (`.mutants/map.json`) is made of the whole fast suite, or with `--map` of some tests, which are added to it. A test
that it names runs with all its cases, also with those in turn; of tests that are in turn whole it knows with `--in-turn` alone.
Test files of its folders that have changed or come since are measured again before a run.
"""

from __future__ import annotations

import argparse
import ast
import copy
import datetime
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mutants import ROOT, Tree, Verdict, failing_anyway, judged

SOURCE = Path("src", "coterie")
MAP = ROOT / ".mutants" / "map.json"
EQUIVALENT = ROOT / "tests" / "equivalent.toml"
RESULTS = ROOT / "benchmarks" / "results" / "room_mutants.csv"
SEED = 20261129
HELD = ("cli", "compute", "report", "run")
"""Rooms in which at most one mutant of twenty may survive."""
SECONDS = 40.0
"""CPU time that the tests of a mutant take together at most: some lines are reached by all tests."""
READING = "::"
"""Ends the context of what runs while a file of tests is read."""

_FLIPPED = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


class Place(NamedTuple):
    """A stretch of a file's bytes, [first, last), and what a mutant has there."""

    kind: str
    line: int
    first: int
    last: int
    instead: str


class RoomMutant(NamedTuple):
    """A changed place of a file (relative to src/coterie). `was` is what stands there, `line` the whole line where it begins."""

    file: str
    place: Place
    was: str
    line: str = ""

    def text(self, root: Path) -> str:
        code = (root / SOURCE / self.file).read_bytes()
        changed = code[: self.place.first] + self.place.instead.encode()
        return (changed + code[self.place.last :]).decode()

    def __str__(self) -> str:
        before = " ".join(self.was.split())[:70]
        after = " ".join(self.place.instead.split())[:70]
        return (
            f"{self.file}:{self.place.line}: {self.place.kind}: {before}  ->  {after}"
        )


# Each kind: the nodes that it can change, and what they become. None: this node cannot be changed so.


def flip_comparison(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return None
    flipped = copy.deepcopy(node)
    flipped.ops = [_FLIPPED[type(node.ops[0])]()]
    return flipped


def drop_guard(node: ast.AST) -> ast.AST | None:
    """An `if` without `else` that leaves the function or the pass of a loop."""
    if not isinstance(node, ast.If) or node.orelse:
        return None
    leaves = isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue)
    return ast.Pass() if leaves else None


def drop_line(node: ast.AST) -> ast.AST | None:
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return ast.Pass() if called or isinstance(node, ast.AugAssign) else None


def swap_arguments(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Call) or len(node.args) < 2:
        return None
    one, other = node.args[:2]
    starred = isinstance(one, ast.Starred) or isinstance(other, ast.Starred)
    if starred or ast.dump(one) == ast.dump(other):
        return None
    swapped = copy.deepcopy(node)
    swapped.args[:2] = [swapped.args[1], swapped.args[0]]
    return swapped


def change_constant(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Constant):
        return None
    value = node.value
    if isinstance(value, bool):
        return ast.Constant(not value)
    if isinstance(value, int):
        return ast.Constant(value + 1)
    if isinstance(value, float):
        return ast.Constant(2 * value + (value == 0))
    return None


def drop_keyword(node: ast.AST) -> ast.AST | None:
    """The last keyword of a call."""
    if not isinstance(node, ast.Call):
        return None
    named = [k for k, keyword in enumerate(node.keywords) if keyword.arg is not None]
    if not named:
        return None
    dropped = copy.deepcopy(node)
    del dropped.keywords[named[-1]]
    return dropped


def negate(node: ast.AST) -> ast.AST | None:
    """The condition of an `if`, `while` or ternary."""
    if not isinstance(node, ast.If | ast.While | ast.IfExp):
        return None
    negated = copy.deepcopy(node)
    negated.test = ast.UnaryOp(ast.Not(), negated.test)
    return negated


KINDS = {
    function.__name__.replace("_", " "): function
    for function in (
        flip_comparison,
        drop_guard,
        drop_line,
        swap_arguments,
        change_constant,
        drop_keyword,
        negate,
    )
}

_ANNOTATED = ("annotation", "returns", "decorator_list")


def running(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it that compute something: no annotations, decorators, imports or docstrings."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in _ANNOTATED:
            continue
        children = value if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, ast.AST) and not _only_for_types(child):
                yield from running(child)


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def places(code: bytes) -> dict[str, list[Place]]:
    """All places of a file where something can be changed, by kind, in the order of the file."""
    starts = [0]
    for line in code.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[str, list[Place]] = {kind: [] for kind in KINDS}
    for node in running(ast.parse(code)):
        for kind, change in KINDS.items():
            changed = change(node)
            if changed is None:
                continue
            of, instead = _smallest(node, changed)
            first = starts[of.lineno - 1] + of.col_offset
            last = starts[of.end_lineno - 1] + of.end_col_offset
            found[kind].append(Place(kind, of.lineno, first, last, instead))
    return found


def _smallest(node: Any, changed: Any) -> tuple[Any, str]:
    """What is replaced: of a condition the test alone, else the whole node. An expression gets brackets, as it may lie in another."""
    if isinstance(node, ast.If | ast.While | ast.IfExp) and type(changed) is type(node):
        return node.test, f"({ast.unparse(changed.test)})"
    if isinstance(changed, ast.expr) and not isinstance(changed, ast.Constant):
        return node, f"({ast.unparse(changed)})"
    return node, ast.unparse(changed)


def drawn(room: str, number: int, seed: int, root: Path = ROOT) -> list[RoomMutant]:
    """Mutants of a room: each time a kind, then one of its places, none twice.

    Raises:
        ValueError: There is no such room, or it has fewer places.
    """
    files = sorted((root / SOURCE / room).rglob("*.py"))
    by_kind: dict[str, list[RoomMutant]] = {kind: [] for kind in KINDS}
    for path in files:
        code = path.read_bytes()
        file = path.relative_to(root / SOURCE).as_posix()
        lines = code.decode().splitlines()
        for kind, found in places(code).items():
            for place in found:
                was = code[place.first : place.last].decode()
                line = lines[place.line - 1].strip()
                by_kind[kind].append(RoomMutant(file, place, was, line))
    if sum(map(len, by_kind.values())) < number:
        raise ValueError(f"src/coterie/{room} has fewer than {number} places to change")
    chance = random.Random(f"{room} {seed}")
    chosen: list[RoomMutant] = []
    while len(chosen) < number:
        left = [kind for kind, mutants in by_kind.items() if mutants]
        mutants = by_kind[chance.choice(left)]
        chosen.append(mutants.pop(chance.randrange(len(mutants))))
    return chosen


def equivalent(root: Path = ROOT) -> dict[tuple[str, str, str], str]:
    """Why a mutant means the same, by file, the line where it begins, and what stands there instead."""
    listed = tomllib.loads((root / EQUIVALENT.relative_to(ROOT)).read_text())
    return {
        (one["file"], one["line"], one["instead"]): one["why"]
        for one in listed.get("mutant", [])
    }


class Timed(NamedTuple):
    """A test function with all its cases, by `FILE::FUNCTION`, and its CPU time."""

    name: str
    seconds: float

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]


class Map:
    """Which tests reach a line, and how long they take: what was measured, by test file.

    Lines are kept by their text, so that a line that only moved keeps its tests. Tests of `left_out` reach none.
    """

    def __init__(self, files: Mapping[str, Any]) -> None:
        self.files = dict(files)
        self.left_out: set[str] = set()

    def reaching(self, file: str, texts: Collection[str]) -> list[Timed]:
        """The tests that run one of these lines of a file of src/coterie, in the order in which they are to run."""
        found = []
        for measured in self.files.values():
            lines = measured["lines"].get(file, {})
            numbers = {number for text in texts for number in lines.get(text, ())}
            found += [Timed(*measured["tests"][number]) for number in numbers]
        return self._that_count(found)

    def beside(self, file: str) -> list[Timed]:
        """All tests of those files of tests that reach a file of src/coterie, in the order in which they are to run."""
        found = []
        for measured in self.files.values():
            if file in measured["lines"]:
                found += [Timed(*test) for test in measured["tests"]]
        return self._that_count(found)

    def _that_count(self, tests: Iterable[Timed]) -> list[Timed]:
        return in_turn(test for test in tests if test.name not in self.left_out)

    def breadth(self, test_file: str) -> int:
        """How many lines of src/coterie the tests of a file run."""
        return sum(map(len, self.files[test_file]["lines"].values()))

    def stale(self, root: Path = ROOT) -> list[str]:
        """Test files of the measured folders that have changed or come since."""
        folders = {Path(file).parent for file in self.files}
        found = [
            path.relative_to(root)
            for folder in folders
            for path in (root / folder).glob("test_*.py")
        ]
        return sorted(
            path.as_posix()
            for path in found
            if self.files.get(path.as_posix(), {}).get("hash") != _hash(root / path)
        )


def in_turn(tests: Iterable[Timed]) -> list[Timed]:
    """The quickest test of each file, then the second of each, and so on: those of one file often notice the same."""
    by_file: dict[str, list[Timed]] = {}
    for test in sorted(tests, key=lambda test: (test.seconds, test.name)):
        by_file.setdefault(test.file, []).append(test)
    ranked = [(rank, test) for of in by_file.values() for rank, test in enumerate(of)]
    ranked.sort(key=lambda one: (one[0], one[1].seconds, one[1].name))
    return [test for _, test in ranked]


def affordable(tests: Sequence[Timed], seconds: float) -> list[Timed]:
    """The first tests, and those behind that still fit into so many seconds together; at least one."""
    chosen: list[Timed] = []
    for test in tests:
        if test.seconds <= seconds or not chosen:
            chosen.append(test)
            seconds -= test.seconds
    return chosen


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


COVERAGE = """
[run]
branch = false
source = {source}
parallel = true
data_file = {data}
patch = _exit, fork
"""
# `_exit` and `fork`: the jobs of a run are forks that end by os._exit, and what they reach counts.


def measure(tests: Sequence[str], in_turn: str = "none") -> Map:
    """Run tests under coverage and put which of them reaches which line into the map."""
    import coverage

    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "coveragerc")
        data = Path(folder, "coverage")
        settings.write_text(COVERAGE.format(source=ROOT / SOURCE, data=data))
        times = Path(folder, "times.json")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}"]
        command += ["-m", "pytest", "-q", "-p", "room_mutants", "--in-turn", in_turn]
        command += tests
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
            "MUTANTS_TIMES": str(times),
            "OMP_NUM_THREADS": "1",
        }
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        seconds: dict[str, float] = json.loads(times.read_text())
        combined = coverage.Coverage(data_file=str(data), config_file=str(settings))
        combined.combine()
        measured = _by_test_file(combined.get_data(), seconds)
    files = {**known_files(), **measured}
    MAP.parent.mkdir(exist_ok=True)
    temporary = MAP.with_suffix(".tmp")
    temporary.write_text(json.dumps(files))
    temporary.replace(MAP)
    return Map(files)


def known_files() -> dict[str, Any]:
    """What the map holds of test files that still exist."""
    known = json.loads(MAP.read_text()) if MAP.exists() else {}
    return {file: kept for file, kept in known.items() if (ROOT / file).exists()}


def _by_test_file(data: Any, seconds: Mapping[str, float]) -> dict[str, Any]:
    """What coverage measured, whose contexts are names of tests, and of files for what a fixture ran.

    A fixture may serve all tests of its file, so what it ran counts for all of them. So does what ran as the file was
    read, such as a parser for the parameters of its tests. Lines outside of functions then ran only because the file
    was the first to import them.
    """
    measured: dict[str, Any] = {}
    numbers: dict[str, list[int]] = {}
    for name, took in seconds.items():
        file = name.partition("::")[0]
        fresh = {"hash": _hash(ROOT / file), "tests": [], "lines": {}}
        tests = measured.setdefault(file, fresh)["tests"]
        numbers[name] = [len(tests)]
        numbers.setdefault(file, []).append(len(tests))
        numbers.setdefault(file + READING, []).append(len(tests))
        tests.append((name, round(took, 3)))
    for path in data.measured_files():
        # Functions that Jinja makes bear the file of their template.
        if Path(path).suffix != ".py":
            continue
        code = Path(path).read_text()
        texts = code.splitlines()
        within_functions = lines_of_functions(code)
        source = Path(path).relative_to(ROOT / SOURCE).as_posix()
        for line, contexts in data.contexts_by_lineno(path).items():
            # Code that a program makes may bear a file's name and lines that it has not.
            if line > len(texts):
                continue
            for context in contexts:
                is_import = context.endswith(READING) and line not in within_functions
                # No test of a file may have run: all may be slow ones.
                if is_import or context not in numbers:
                    continue
                of_file = measured[context.partition("::")[0]]["lines"]
                of_source = of_file.setdefault(source, {})
                known = of_source.setdefault(texts[line - 1].strip(), [])
                known += [one for one in numbers[context] if one not in known]
    return measured


def lines_of_functions(code: str) -> set[int]:
    """The lines that run when a function is called."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            lines.update(range(node.body[0].lineno, last + 1))
    return lines


_TIMES: dict[str, float] = {}


def _switch(context: str) -> None:
    if "MUTANTS_TIMES" in os.environ:
        import coverage

        running = coverage.Coverage.current()
        if running is not None:
            running.switch_context(context)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: Any) -> Generator[None, Any, Any]:
    """As a plugin of pytest: what runs while a file of tests is read belongs to the file."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    _switch(collector.nodeid + READING)
    report = yield
    _switch("")
    return report


def pytest_runtest_setup(item: Any) -> None:
    """As a plugin of pytest: what runs from here on belongs to the fixtures of the file."""
    _switch(item.nodeid.partition("::")[0])


def pytest_runtest_call(item: Any) -> None:
    """As a plugin of pytest: what runs from here on belongs to the test."""
    _switch(item.nodeid.partition("[")[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Generator[None, Any, Any]:
    """As a plugin of pytest: add up the CPU seconds of a test function, its processes with it."""
    before = _cpu_seconds()
    result = yield
    name = item.nodeid.partition("[")[0]
    _TIMES[name] = _TIMES.get(name, 0.0) + _cpu_seconds() - before
    return result


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def pytest_sessionfinish() -> None:
    if "MUTANTS_TIMES" in os.environ:
        Path(os.environ["MUTANTS_TIMES"]).write_text(json.dumps(_TIMES))


def tests_of(mutant: RoomMutant, reach: Map) -> list[Timed]:
    """The tests that are to notice a mutant: those of its line; where none runs it, of its function.

    Of a line outside of functions: all tests of the files that reach its file.
    """
    code = (ROOT / SOURCE / mutant.file).read_text()
    if mutant.place.line not in lines_of_functions(code):
        # It runs once, as its file is imported, and tests that read a constant may run no line of that file.
        return affordable(reach.beside(mutant.file), SECONDS)
    lines = [line.strip() for line in code.splitlines()]
    found = reach.reaching(mutant.file, {mutant.line})
    if not found:
        first, last = around(code, mutant.place.line)
        found = reach.reaching(mutant.file, set(lines[first - 1 : last]))
    return affordable(found, SECONDS)


def around(code: str, line: int) -> tuple[int, int]:
    """The first and last line of the body of the innermost function that has a line, else of the file."""
    first, last = 1, len(code.splitlines())
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        end = node.end_lineno or node.lineno
        body = node.body[0].lineno
        if body <= line <= end and end - body < last - first:
            first, last = body, end
    return first, last


def groups(tests: Sequence[Timed], reach: Map) -> list[list[Timed]]:
    """The same tests: those of the file that reaches the fewest lines, those of the next three, and all others.

    Tests of little are likely to be about the line of a mutant, and to read many files of tests takes longer than to run
    one of them.
    """
    files = sorted({test.file for test in tests}, key=reach.breadth)
    parts = (files[:1], files[1:4], files[4:])
    return [[test for test in tests if test.file in part] for part in parts if part]


def judge(tree: Tree, mutant: RoomMutant, reach: Map) -> Verdict:
    """Run the tests that reach a mutant, in a copy of the tree that has it."""
    tests = tests_of(mutant, reach)
    if not tests:
        return Verdict("SURVIVED", "(no test reaches it)")
    text = mutant.text(tree.folder)
    for together in groups(tests, reach):
        expected = sum(test.seconds for test in together)
        names = [test.name for test in together]
        longest = 300 + 20 * expected
        verdict = tree.judge(
            mutant.file, text, names, crash_kills=True, longest=longest
        )
        if verdict.word != "SURVIVED":
            break
    return verdict


HEAD = ("room", "seed", "mutants", "killed", "mean the same", "survived")


def write_row(room: str, seed: int, counts: Mapping[str, int]) -> None:
    """Put the counts of a room in place of its former ones, into the results and the table of docs/reliability.md."""
    # Not above: a process that runs tests of a changed tree imports this file, and must not have loaded coterie.
    from benchmarks.pages import between, csv_table, read, write_csv

    former = read(RESULTS)[1:] if RESULTS.exists() else []
    others = [row for row in former if row[0] != room]
    row = [room, str(seed), *(str(counts[name]) for name in HEAD[2:])]
    table = [list(HEAD), *sorted([*others, row])]
    write_csv(RESULTS, table)
    between(ROOT / "docs" / "reliability.md", csv_table(table), "mutants")


def room_of_the_week(number: int) -> str:
    """One of the rooms that have enough places to change, another one each week."""
    enough = []
    for folder in sorted((ROOT / SOURCE).iterdir()):
        codes = [path.read_bytes() for path in folder.rglob("*.py")]
        found = [
            place for code in codes for of in places(code).values() for place in of
        ]
        if len(found) >= number:
            enough.append(folder.name)
    return enough[datetime.date.today().isocalendar().week % len(enough)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each mutant and the survivors last; 1 if more than one in twenty survived in one of `HELD`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "room",
        nargs="?",
        help="a folder of src/coterie, or week: another one each week",
    )
    parser.add_argument("tests", nargs="*", help="with --map: the tests that it holds")
    parser.add_argument("--map", action="store_true", help="make the map and end")
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--only", metavar="TEXT", help="only mutants whose line on the screen has it"
    )
    parser.add_argument(
        "--as-mapped",
        action="store_true",
        help="with the tests of the map alone, none that have changed or come since",
    )
    parser.add_argument(
        "--again",
        type=Path,
        metavar="FILE",
        help="what a run of the same code printed: only what survived there is judged, by tests that have come since",
    )
    parser.add_argument(
        "--in-turn",
        action="store_true",
        help="with --map: tests in turn, too, which take twice as long as the others",
    )
    options = parser.parse_args(arguments)
    if options.map:
        named = [one for one in (options.room, *options.tests) if one]
        measure(named or ["tests"], in_turn="all" if options.in_turn else "none")
        return 0
    if options.room is None:
        parser.error("name a room, such as report")
    room = options.room
    if room == "week":
        room = room_of_the_week(options.number)
    os.environ["OMP_NUM_THREADS"] = "1"
    reach = Map(known_files()) if options.as_mapped else up_to_date()
    try:
        chosen = drawn(room, options.number, options.seed)
    except ValueError as error:
        parser.error(str(error))
    same = equivalent()
    asked = [one for one in chosen if _key(one) not in same]
    judged_anew = asked
    if options.only:
        judged_anew = [one for one in asked if options.only in str(one)]
    if options.again:
        survived = set(options.again.read_text(encoding="utf-8").splitlines())
        judged_anew = [one for one in asked if f"SURVIVED {one}" in survived]
    survivors, killed = _hunt(judged_anew, options.jobs, reach)
    if options.again:
        killed = [one for one in asked if one not in survivors]
    for mutant in survivors:
        print(f"SURVIVED {mutant}")
    counts = {
        "mutants": len(chosen),
        "killed": len(killed),
        "mean the same": len(chosen) - len(asked),
        "survived": len(survivors),
    }
    if not options.only:
        write_row(room, options.seed, counts)
    print(f"{room}: {counts}")
    return int(room in HELD and 20 * len(survivors) > len(chosen))


def up_to_date() -> Map:
    """The map, with what has changed since measured again; of the whole fast suite where there was none."""
    reach = Map(known_files())
    stale = reach.stale() if reach.files else ["tests"]
    return measure(stale) if stale else reach


def _key(mutant: RoomMutant) -> tuple[str, str, str]:
    return mutant.file, mutant.line, mutant.place.instead


def _hunt(
    mutants: Sequence[RoomMutant], jobs: int, reach: Map
) -> tuple[list[RoomMutant], list[RoomMutant]]:
    """The mutants that no test noticed, and the others.

    A test that fails without any mutant has noticed none, as one of a page, which is not in the copy: what it killed is judged
    again without it.
    """
    survivors: list[RoomMutant] = []
    killed: list[RoomMutant] = []
    left = list(mutants)
    with tempfile.TemporaryDirectory() as folder:
        trees = [
            Tree(Path(folder, str(k)).resolve())
            for k in range(min(jobs, len(mutants)) or 1)
        ]
        while left:
            killer_of: dict[RoomMutant, str] = {}
            found = judged(left, trees, lambda tree, mutant: judge(tree, mutant, reach))
            for mutant, verdict, seconds in found:
                killer = verdict.killer.rpartition("::")[2]
                line = f"{verdict.word:<8} {seconds:4.0f} s  {mutant}  {killer}"
                print(line, flush=True)
                if verdict.word == "killed":
                    killer_of[mutant] = verdict.killer
                else:
                    survivors.append(mutant)
            innocent = failing_anyway(trees[0], killer_of.values())
            for name in innocent:
                print(f"{name} fails without any mutant, and so killed nobody")
                reach.left_out.add(name.partition("[")[0])
            left = [one for one, name in killer_of.items() if name in innocent]
            killed += [one for one in killer_of if one not in left]
    return survivors, killed


if __name__ == "__main__":
    sys.exit(main())
