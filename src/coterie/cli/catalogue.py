"""Describe a method, for `coterie methods`, by the docstring of its class and the header of its file.

What comes with coterie is read from its source and not imported: torch alone takes seconds, for a list.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from coterie.base.errors import InputError
from coterie.config.registry import METHODS


@dataclass(frozen=True)
class Entry:
    """A method as the documents describe it.

    Attributes:
        name: On the command line and in TOML.
        origin: Its class, or a function that makes such a method; or where it lies in coterie, as `module:Name`.
        shared: Whether its file has several methods, so that each class says its own.
    """

    name: str
    origin: Any
    shared: bool

    @property
    def cls(self) -> Any:
        """Its class, which is imported for this."""
        if not isinstance(self.origin, str):
            return self.origin
        module, _, name = self.origin.partition(":")
        return getattr(importlib.import_module(module), name)

    @property
    def module(self) -> str:
        """Full name of the module."""
        return _module_of(self.origin)

    @property
    def text(self) -> str:
        """Docstring of the file; that of the class where the file has none."""
        if isinstance(self.origin, str):
            return ast.get_docstring(_parse(self.module)) or self.own_text
        return inspect.getdoc(sys.modules[self.module]) or self.own_text

    @property
    def own_text(self) -> str:
        """Docstring of the class."""
        if isinstance(self.origin, str):
            return ast.get_docstring(_definition(self.origin)) or ""
        return docstring_of(self.cls)

    @property
    def needs(self) -> str:
        """What the server needs of updates, as `Method.needs` says it."""
        if isinstance(self.origin, str):
            try:
                return _needs_in_source(self.origin)
            except LookupError:
                # A base that its file names otherwise, such as `ct.Method`: the class itself is asked.
                return str(getattr(self.cls, "needs", "all"))
        return str(getattr(self.origin, "needs", "all"))

    @property
    def summary(self) -> str:
        """One line."""
        title, colon, line = self.text.partition("\n")[0].partition(": ")
        if self.shared or not colon:
            line = (self.own_text or title).partition("\n")[0]
            line = line[:1].lower() + line[1:]
        return line.rstrip(".")

    @property
    def about(self) -> str:
        """The text of the file without its LaTeX; before it that of the class, where several share the file."""
        class_text = self.own_text.partition("\n\nAttributes:")[0]
        text = self.text
        if self.shared:
            text = f"{class_text}\n\n{text}"
        return re.sub(r"^Formula: .*?\n(?=[A-Z]\w+: |\n)", "", text, flags=re.S | re.M)

    @property
    def laws(self) -> tuple[str, ...]:
        """Tests that its file names under Laws, as `tests/FILE.py::NAME`."""
        return tuple(re.findall(r"tests/[\w/]+\.py::\w+", self.text))

    @property
    def year(self) -> int | None:
        """The year of the paper."""
        years = re.findall(r"\b(?:19|20)\d\d\b", self.paragraph("Papers?"))
        return int(years[0]) if years else None

    def paragraph(self, word: str) -> str:
        """Return what stands behind `word: ` in the text of the class, or of the file, up to the next such line or a blank one."""
        return paragraph(self.own_text, word) or paragraph(self.text, word)

    def row(self) -> dict[str, Any]:
        """Return name, one line, paper, year, what it optimises, floats sent, client memory, and what the server needs of updates."""
        paragraphs = {
            key: self.paragraph(key.capitalize())
            for key in ("optimises", "sends", "memory")
        }
        return {
            "name": self.name,
            "summary": self.summary,
            "paper": self.paragraph("Papers?"),
            "year": self.year,
            **paragraphs,
            "needs": self.needs,
        }


def docstring_of(candidate: Any) -> str:
    """The docstring of an object; "" without one, where Python writes the signature of a dataclass in its place."""
    text = inspect.getdoc(candidate) or ""
    is_signature = text.startswith(f"{getattr(candidate, '__name__', '')}(")
    return "" if is_signature else text


def paragraph(text: str, word: str) -> str:
    """What stands behind `word: ` in a text, in one line, up to the next such word or a blank line; "" where it does not stand."""
    found = re.search(rf"^{word}: (.*?)(?:\n\n|\n(?=[A-Z]\w+: )|\Z)", text, re.S | re.M)
    if found is None:
        return ""
    return " ".join(found.group(1).split())


def _module_of(origin: Any) -> str:
    if isinstance(origin, str):
        return origin.partition(":")[0]
    return str(origin.__module__)


@cache
def _parse(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise InputError(
            f"module {module} is registered and cannot be found; install its package again"
        )
    loader: Any = spec.loader
    source: str = loader.get_source(module)
    return ast.parse(source)


def _definition(place: str) -> ast.ClassDef | ast.FunctionDef:
    """The statement that defines what lies at `module:Name`."""
    module, _, name = place.partition(":")
    definitions = {
        node.name: node
        for node in _parse(module).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    return definitions[name]


def _needs_in_source(place: str) -> str:
    """What `needs` is assigned in a class or in the first of its bases, up to the one that every method has."""
    definition = _definition(place)
    if isinstance(definition, ast.FunctionDef):
        return "all"
    for node in definition.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "needs":
            return str(cast("ast.Constant", node.value).value)
    module = _module_of(place)
    origins = {
        alias.name: node.module
        for node in _parse(module).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    base = ast.unparse(definition.bases[0]).partition("[")[0]
    return _needs_in_source(f"{origins.get(base, module)}:{base}")


def entries() -> dict[str, Entry]:
    """Return all methods that can be imported by name, in the order in which they are listed."""
    others, _ = METHODS.importable(foreign_names())
    origins = {name: METHODS.places.get(name) or others.get(name) for name in METHODS}
    origins = {name: origin for name, origin in origins.items() if origin is not None}
    modules = [_module_of(origin) for origin in origins.values()]
    return {
        name: Entry(name, origin, modules.count(_module_of(origin)) > 1)
        for name, origin in origins.items()
    }


def foreign_names() -> list[str]:
    """Names of the methods that packages, or this program, have added."""
    return [name for name in METHODS if name not in METHODS.places]


def entry_of(name: str) -> Entry:
    """Return the entry of one method. Raises `InputError` with the nearest name, or for one that cannot be imported."""
    METHODS.find(name)
    return entries()[name]


def traffic(sends: str) -> dict[str, tuple[str, str]]:
    """Return floats up and down by task, as formulas, from the `Sends` line of a method: `UP up, DOWN down (TASK...); ...`.

    >>> traffic("d + 1 up, d down (local_update); 1 up, 2 d down (distances: external clients).")
    {'local_update': ('d + 1', 'd'), 'distances': ('1', '2 d')}
    """
    clauses = re.findall(
        r"(?:^|; )((?:[^;(]|\([^)]*\))*?) up, ([^;]+?) down \((\w+)", sends
    )
    return {task: (up.strip(), down) for up, down, task in clauses}
