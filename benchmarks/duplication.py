"""`make duplication`: the share of the method files' code that also stands in a sibling file.

A line of code counts as doubled if it lies in five consecutive lines of code that also occur in another file of `algorithms/` or
`samplers/`. Blank lines, comments, docstrings and imports are no code here; indentation does not matter.

    python -m benchmarks.duplication [FOLDER...]
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "coterie"
FOLDERS = (SOURCE / "algorithms", SOURCE / "samplers")
BLOCK = 5


def code_lines(text: str) -> list[str]:
    """Lines of code of a file, without indentation."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        docstring = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    stripped = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [line for number, line in stripped if line and number not in left_out and not line.startswith("#")]


def doubled(files: dict[str, list[str]]) -> dict[str, set[int]]:
    """By file, the positions of its lines that lie in a block which another file has too."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, lines in files.items():
        for start in range(len(lines) - BLOCK + 1):
            places[tuple(lines[start : start + BLOCK])].append((name, start))
    found: dict[str, set[int]] = {name: set() for name in files}
    for where in places.values():
        if len({name for name, _ in where}) > 1:
            for name, start in where:
                found[name] |= set(range(start, start + BLOCK))
    return found


def main(folders: Sequence[Path]) -> None:
    """Print the share of each file that has doubled lines, and of all files together."""
    paths = [path for folder in folders for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    files = {f"{path.parent.name}/{path.name}": code_lines(path.read_text()) for path in paths}
    found = doubled(files)
    for name, lines in files.items():
        if found[name]:
            print(f"{name:<28} {len(found[name]):4d} of {len(lines):4d} lines  {len(found[name]) / len(lines):6.1%}")
    total, twice = sum(map(len, files.values())), sum(map(len, found.values()))
    print(f"{'all':<28} {twice:4d} of {total:4d} lines  {twice / total:6.1%}")


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]] or FOLDERS)
