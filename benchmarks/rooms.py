"""`make rooms`: the rooms of coterie, the arrows between them and the trips through them, beside what `docs/design.md` records.

A room is a folder of `src/coterie`, or a module that lies beside the folders. There is an arrow from a room to another if a file of
the first imports from the second, be it for types alone. A trip is a call, made a second time: the files of coterie whose functions
it enters, how often it goes from one file to another, and how many functions it calls.

    python -m benchmarks.rooms
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

BENCHMARKS = Path(__file__).resolve().parent
SOURCE = BENCHMARKS.parent / "src" / "coterie"
FILES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The full name of a module of coterie or of the benchmarks."""
    root = SOURCE.parent if path.is_relative_to(SOURCE) else BENCHMARKS.parent
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in (*FILES, *sorted(BENCHMARKS.glob("*.py")))}


def room(dotted: str) -> str:
    """The room of a module: `contract` of `coterie.contract.task`; nothing for the package itself."""
    return dotted.split(".")[1] if "." in dotted else ""


class _Imports(ast.NodeVisitor):
    def __init__(self, path: Path) -> None:
        self.path, self.found = path, list[tuple[str, int]]()
        self.visit(ast.parse(path.read_text()))

    def visit_Import(self, node: ast.Import) -> None:
        self.add([alias.name for alias in node.names], node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"{self.path}:{node.lineno}: imports are absolute"
        self.add([f"{node.module}.{alias.name}" for alias in node.names], node.lineno)

    def add(self, names: Iterable[str], line: int) -> None:
        self.found += [(_resolved(name), line) for name in names if name.split(".")[0] in ("coterie", "benchmarks")]


def _resolved(name: str) -> str:
    """The module of a name that is imported: `coterie.contract.task.task` is in `coterie.contract.task`."""
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return name


@functools.cache
def imports(path: Path) -> list[tuple[str, int]]:
    """Modules of coterie and of the benchmarks that a file imports anywhere, by full name, with their line."""
    return _Imports(path).found


def rooms() -> set[str]:
    """Their names."""
    return {room(name_of(path)) for path in FILES} - {""}


def arrows() -> set[tuple[str, str]]:
    """(room, room that it imports from)."""
    pairs = {(room(name_of(path)), room(name)) for path in FILES for name, _ in imports(path)}
    return {(one, other) for one, other in pairs if one and other and one != other}


class Trip(NamedTuple):
    """Files of coterie that a call enters, changes from one to another, and calls of functions of coterie."""

    files: int
    changes: int
    calls: int


def trip(function: Callable[[], object]) -> Trip:
    """Trace the second call of a function; the first imports and caches."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            entered.append(frame.f_code.co_filename)

    function()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    changes = sum(file != before for file, before in zip(entered, ["", *entered], strict=False))
    return Trip(len(set(entered)), changes, len(entered))


FIT = "files that `fit(FedProx(), ...)`, one round, enters; changes of file; calls (`make rooms`)"
ROUND = "calls of one more round of it"
FOLDER = "files that reading a folder of three CSVs enters; changes of file; calls"


def trips() -> dict[str, tuple[int, ...]]:
    """Measure three trips: a run of FedProx with a linear model on three CSVs of 40 rows, one more round, and reading the CSVs."""
    import torch

    import coterie as ct

    def model(shape: torch.Size, outputs: int) -> torch.nn.Module:
        return torch.nn.Linear(shape[0], outputs)

    with tempfile.TemporaryDirectory() as folder:
        for number, site in enumerate("abc"):
            patients = [(40 + k % 37 + number, "mf"[k % 2], 110 + 7 * k % 50, int(k * k % 11 > 4)) for k in range(40)]
            rows = [("age", "sex", "pressure", "outcome"), *patients]
            Path(folder, f"{site}.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
        read = trip(lambda: ct.data.from_folder(folder, label="outcome"))
        clients = ct.data.from_folder(folder, label="outcome")
    usual = ct.RunSettings(strict_wire=False)  # tests encode every message, which a run does not
    one, two = (trip(lambda n=n: ct.fit(ct.FedProx(), clients, model, n, settings=usual)) for n in (1, 2))
    return {FIT: one, ROUND: (two.calls - one.calls,), FOLDER: read}


def recorded() -> dict[str, str]:
    """Return what `docs/design.md` records, by the first cell of its tables: the last cell."""
    text = (BENCHMARKS.parent / "docs" / "design.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[-1] for row in rows}


def main() -> None:
    """Print each room with those that it imports from, the two numbers, and the trips beside the recorded ones."""
    found = arrows()
    for one in sorted(rooms()):
        print(f"{one:<12} {', '.join(sorted(b for a, b in found if a == one)) or '-'}")
    print(f"{len(rooms())} rooms, {len(found)} arrows")
    for what, numbers in trips().items():
        print(f"{'; '.join(map(str, numbers))} (recorded {recorded()[what]}): {re.sub('`', '', what)}")


if __name__ == "__main__":
    main()
