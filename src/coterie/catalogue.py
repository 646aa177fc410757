"""The catalogue of methods: a class in `algorithms/` or `samplers/` that says `catalogue = NAME, ORDER` is in it.

What it says of a method is read from the text of the file, so it cannot differ from it, and no method is imported for it.
"""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.base.errors import InputError, nearest

if TYPE_CHECKING:
    from coterie.contract.method import Method

__all__ = ["Entry", "entries", "find", "methods", "traffic"]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """What the catalogue says of a method.

    Attributes:
        name: on the command line and in TOML.
        order: place in listings.
        module, class_name: where it lies.
        text: docstring of its file.
        own_text: docstring of its class.
        shared: whether its file has several methods, so that each class says its own.
    """

    name: str
    order: int
    module: str
    class_name: str
    text: str
    own_text: str
    shared: bool

    @property
    def summary(self) -> str:
        """One line."""
        if not self.shared:
            return self.text.splitlines()[0].partition(": ")[2].rstrip(".")
        line = self.own_text.splitlines()[0].rstrip(".")
        return line[:1].lower() + line[1:]

    @property
    def about(self) -> str:
        """The text of the file without its LaTeX; before it that of the class, where several share the file."""
        own = self.own_text.partition("\n\nAttributes:")[0]
        text = f"{own}\n\n{self.text}" if self.shared else self.text
        return re.sub(r"^Formula: .*?\n(?=[A-Z]\w+: |\n)", "", text, flags=re.S | re.M)

    @property
    def laws(self) -> tuple[str, ...]:
        """What its file names under Laws, as `tests/FILE.py::NAME`."""
        return tuple(re.findall(r"tests/[\w/]+\.py::\w+", self.text))

    @property
    def year(self) -> int | None:
        """Of the paper."""
        years = re.findall(r"\b(?:19|20)\d\d\b", self.said("Papers?"))
        return int(years[0]) if years else None

    def said(self, word: str) -> str:
        """What stands behind `word: ` in the text of the class, or of the file, up to the next such line or a blank one."""
        return _said(word, self.own_text) or _said(word, self.text)

    def row(self) -> dict[str, Any]:
        """Name, one line, paper, year, what it optimises, floats sent, and client memory."""
        about = {k: self.said(k.capitalize()) for k in ("optimises", "sends", "memory")}
        return {"name": self.name, "summary": self.summary, "paper": self.said("Papers?"), "year": self.year, **about}


def _said(word: str, text: str) -> str:
    paragraph = re.search(rf"^{word}: (.*?)(?:\n\n|\n(?=[A-Z]\w+: )|\Z)", text, re.S | re.M)
    return " ".join(paragraph.group(1).split()) if paragraph else ""


@cache
def entries() -> dict[str, Entry]:
    """All methods by name, in the order in which they are shown."""
    files = [file for room in ("algorithms", "samplers") for file in sorted((_HERE / room).glob("*.py"))]
    of_all_files = [entry for file in files for entry in _entries_of(file)]
    return {entry.name: entry for entry in sorted(of_all_files, key=lambda e: (e.order, e.name))}


def _entries_of(file: Path) -> list[Entry]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    module = ".".join(("coterie", *file.relative_to(_HERE).with_suffix("").parts))
    classes = [(node, _declared(node)) for node in tree.body if isinstance(node, ast.ClassDef)]
    declared = [(node, value) for node, value in classes if value is not None]
    text = ast.get_docstring(tree) or ""
    return [
        Entry(*value, module, node.name, text, ast.get_docstring(node) or "", len(declared) > 1)
        for node, value in declared
    ]


def _declared(node: ast.ClassDef) -> tuple[str, int] | None:
    """The value of `catalogue = NAME, ORDER` in a class."""
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "catalogue":
            name, order = ast.literal_eval(line.value)
            return str(name), int(order)
    return None


def find(name: str) -> type[Method[Any]]:
    """The class of a method. Raises `InputError` with the nearest name."""
    if name not in entries():
        raise InputError(
            f"there is no method {name!r}; {nearest(name, entries())}; FILE.py:NAME is a method of your own"
        )
    entry = entries()[name]
    method: type[Method[Any]] = getattr(importlib.import_module(entry.module), entry.class_name)
    return method


@cache
def methods() -> dict[str, type[Method[Any]]]:
    """All methods by name; imports them, so that all their tasks are known."""
    return {name: find(name) for name in entries()}


def traffic(sends: str) -> dict[str, tuple[str, str]]:
    """Floats up and down by task, as formulas, from the `Sends` line of a method: `UP up, DOWN down (TASK...); ...`.

    >>> traffic("d + 1 up, d down (local_update); 1 up, 2 d down (distances: external clients).")
    {'local_update': ('d + 1', 'd'), 'distances': ('1', '2 d')}
    """
    clauses = re.findall(r"(?:^|; )([^;(]*(?:\([^)]*\) d)?[^;(]*?) up, ([^;]+?) down \((\w+)", sends)
    return {task: (up.strip(), down) for up, down, task in clauses}
