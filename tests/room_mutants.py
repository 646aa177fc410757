"""`make mutants ROOM=report N=40`: would a test notice if a line of a room were wrong?

Mutants are drawn from a seed out of all places of a room where one of seven things can be changed (see `KINDS`).
Each is made in a copy of the tree, and the tests run there that a map of coverage names for its line, the quickest
first, until one fails. A mutant that all of them pass SURVIVED: a law is missing, or the mutant means the same. Those
that mean the same are listed in `tests/equivalent.toml`, with the reason.

    python tests/room_mutants.py report [--number 40] [--seed 20261129] [--jobs N]
    python tests/room_mutants.py --map [TESTS ...]

The map (`.mutants/map.json`, of the whole fast suite unless tests are named) is made once; tests that have changed or
come since run for every mutant.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mutants import ROOT, Tree, Verdict, failing_anyway, judged

SOURCE = Path("src", "coterie")
MAP = ROOT / ".mutants" / "map.json"
EQUIVALENT = ROOT / "tests" / "equivalent.toml"
RESULTS = ROOT / "benchmarks" / "results" / "room_mutants.csv"
SEED = 20261129

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


class Map:
    """Which tests reach a line, and how long they take. A test is `FILE::FUNCTION`, all its cases."""

    def __init__(self, kept: Mapping[str, Any]) -> None:
        self.tests: list[str] = kept["tests"]
        self.seconds: list[float] = kept["seconds"]
        self.lines: Mapping[str, Mapping[str, list[int]]] = kept["lines"]
        self.made: float = kept["made"]

    def reaching(self, mutant: RoomMutant) -> list[str]:
        """The tests of a mutant's line, the quickest first; where only an import runs it, those of the whole file."""
        lines = self.lines.get(mutant.file, {})
        found = set(lines.get(str(mutant.place.line), ()))
        if not found:
            found = {test for tests in lines.values() for test in tests}
        ordered = sorted(found, key=lambda test: (self.seconds[test], test))
        return [self.tests[test] for test in ordered]

    def newer(self) -> list[str]:
        """Test files that were written after the map was made."""
        return [
            path.relative_to(ROOT).as_posix()
            for path in sorted((ROOT / "tests").rglob("test_*.py"))
            if path.stat().st_mtime > self.made
        ]


COVERAGE = """
[run]
branch = false
dynamic_context = test_function
source = {source}
parallel = true
data_file = {data}
patch = _exit, fork
"""
# `_exit` and `fork`: the jobs of a run are forks that end by os._exit, and what they reach counts.


def make_map(tests: Sequence[str]) -> Map:
    """Run tests under coverage, write which of them reaches which line, and return it."""
    import coverage

    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "coveragerc")
        data = Path(folder, "coverage")
        settings.write_text(COVERAGE.format(source=ROOT / SOURCE, data=data))
        times = Path(folder, "times.json")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}"]
        command += ["-m", "pytest", "-q", "-p", "room_mutants", *tests]
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
        kept = _kept(combined.get_data(), seconds)
    MAP.parent.mkdir(exist_ok=True)
    temporary = MAP.with_suffix(".tmp")
    temporary.write_text(json.dumps(kept))
    temporary.replace(MAP)
    return Map(kept)


def _kept(data: Any, seconds: Mapping[str, float]) -> dict[str, Any]:
    """What coverage measured, by our names of tests. A context of coverage is MODULE.FUNCTION, whose module has no folder."""
    names = sorted(seconds)
    by_context: dict[str, list[int]] = {}
    for k, name in enumerate(names):
        path, _, function = name.partition("::")
        context = f"{Path(path).stem}.{function.replace('::', '.')}"
        by_context.setdefault(context, []).append(k)
    lines: dict[str, dict[str, list[int]]] = {}
    for path in data.measured_files():
        file = Path(path).relative_to(ROOT / SOURCE).as_posix()
        of_file = lines[file] = {}
        for line, contexts in data.contexts_by_lineno(path).items():
            tests: set[int] = set()
            for context in contexts:
                short = ".".join(context.split(".")[-2:])
                tests.update(by_context.get(context) or by_context.get(short, ()))
            if tests:
                of_file[str(line)] = sorted(tests)
    return {
        "tests": names,
        "seconds": [seconds[name] for name in names],
        "lines": lines,
        "made": time.time(),
    }


_TIMES: dict[str, float] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """As a plugin of pytest: add up the seconds of a test function."""
    if "MUTANTS_TIMES" in os.environ:
        name = report.nodeid.partition("[")[0]
        _TIMES[name] = _TIMES.get(name, 0.0) + report.duration


def pytest_sessionfinish() -> None:
    if "MUTANTS_TIMES" in os.environ:
        Path(os.environ["MUTANTS_TIMES"]).write_text(json.dumps(_TIMES))


def judge(tree: Tree, mutant: RoomMutant, reach: Map) -> Verdict:
    """Run the tests that reach a mutant, in a copy of the tree that has it."""
    tests = reach.reaching(mutant)
    tests += [path for path in reach.newer() if path not in tests]
    if not tests:
        return Verdict("SURVIVED", "no test reaches it")
    text = mutant.text(tree.folder)
    return tree.judge(mutant.file, text, tests, crash_kills=True)


def write_row(room: str, seed: int, counts: Mapping[str, int]) -> None:
    """Write the counts of a room into the table of the site, in place of the room's former ones."""
    head = "room,seed,mutants,killed,mean the same,survived"
    row = ",".join(
        [room, str(seed), *(str(counts[name]) for name in head.split(",")[2:])]
    )
    former = RESULTS.read_text().splitlines()[1:] if RESULTS.exists() else []
    others = [line for line in former if line.partition(",")[0] != room]
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text("\n".join([head, *sorted([*others, row])]) + "\n")
    temporary.replace(RESULTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each mutant and the survivors last; 1 if more than one in twenty survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("room", nargs="?", help="a folder of src/coterie")
    parser.add_argument("tests", nargs="*", help="with --map: the tests that it holds")
    parser.add_argument("--map", action="store_true", help="make the map and end")
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if options.map:
        make_map([one for one in (options.room, *options.tests) if one] or ["tests"])
        return 0
    if options.room is None:
        parser.error("name a room, such as report")
    os.environ["OMP_NUM_THREADS"] = "1"
    reach = Map(json.loads(MAP.read_text())) if MAP.exists() else make_map(["tests"])
    try:
        chosen = drawn(options.room, options.number, options.seed)
    except ValueError as error:
        parser.error(str(error))
    same = equivalent()
    asked = [one for one in chosen if _key(one) not in same]
    survivors, killers = _hunt(asked, options.jobs, reach)
    for mutant in survivors:
        print(f"SURVIVED {mutant}")
    counts = {
        "mutants": len(chosen),
        "killed": len(killers),
        "mean the same": len(chosen) - len(asked),
        "survived": len(survivors),
    }
    write_row(options.room, options.seed, counts)
    print(f"{options.room}: {counts}")
    return int(20 * len(survivors) > len(chosen))


def _key(mutant: RoomMutant) -> tuple[str, str, str]:
    return mutant.file, mutant.line, mutant.place.instead


def _hunt(
    mutants: Sequence[RoomMutant], jobs: int, reach: Map
) -> tuple[list[RoomMutant], list[str]]:
    """The mutants that no test noticed, and the tests that noticed the others."""
    survivors, killers = [], []
    with tempfile.TemporaryDirectory() as folder:
        trees = [
            Tree(Path(folder, str(k)).resolve())
            for k in range(min(jobs, len(mutants)) or 1)
        ]
        found = judged(mutants, trees, lambda tree, mutant: judge(tree, mutant, reach))
        for mutant, verdict, seconds in found:
            killer = verdict.killer.rpartition("::")[2]
            print(f"{verdict.word:<8} {seconds:4.0f} s  {mutant}  {killer}", flush=True)
            if verdict.word == "killed":
                killers.append(verdict.killer)
            else:
                survivors.append(mutant)
        innocent = failing_anyway(trees[0], killers)
    for name in innocent:
        print(f"{name} fails without any mutant, and so killed nobody")
    return survivors, killers


if __name__ == "__main__":
    sys.exit(main())
