"""`make rooms`: the rooms of coterie and the arrows between them.

A room is a folder of `src/coterie`, or a module that lies beside the folders. There is an arrow from a room to another if a file of
the first imports from the second, be it for types alone.

    python -m benchmarks.rooms
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent
SOURCE = BENCHMARKS.parent / "src" / "coterie"
FILES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The full name of a module of coterie or of the benchmarks."""
    root = SOURCE.parent if path.is_relative_to(SOURCE) else BENCHMARKS.parent
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(
        ".__init__"
    )


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
        self.found += [
            (_resolved(name), line)
            for name in names
            if name.split(".")[0] in ("coterie", "benchmarks")
        ]


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
    pairs = {
        (room(name_of(path)), room(name)) for path in FILES for name, _ in imports(path)
    }
    return {(one, other) for one, other in pairs if one and other and one != other}


def main() -> None:
    """Print each room with those that it imports from, and how many rooms and arrows there are."""
    found = arrows()
    for one in sorted(rooms()):
        print(f"{one:<12} {', '.join(sorted(b for a, b in found if a == one)) or '-'}")
    print(f"{len(rooms())} rooms, {len(found)} arrows")


if __name__ == "__main__":
    main()
