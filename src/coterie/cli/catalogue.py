"""Describe a method, for `coterie methods`, by the docstring of its class and the header of its file."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from typing import Any

from coterie.config.registry import METHODS


@dataclass(frozen=True)
class Entry:
    """A method as the documents describe it.

    Attributes:
        name: On the command line and in TOML.
        cls: Its class, or a function that makes such a method.
        shared: Whether its file has several methods, so that each class says its own.
    """

    name: str
    cls: Any
    shared: bool

    @property
    def module(self) -> str:
        """Full name of the module."""
        return str(self.cls.__module__)

    @property
    def text(self) -> str:
        """Docstring of the file; that of the class where the file has none."""
        return inspect.getdoc(sys.modules[self.module]) or self.own_text

    @property
    def own_text(self) -> str:
        """Docstring of the class."""
        return inspect.getdoc(self.cls) or ""

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
        text = f"{class_text}\n\n{self.text}" if self.shared else self.text
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
        for text in (self.own_text, self.text):
            if match := re.search(
                rf"^{word}: (.*?)(?:\n\n|\n(?=[A-Z]\w+: )|\Z)", text, re.S | re.M
            ):
                return " ".join(match.group(1).split())
        return ""

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
            "needs": getattr(self.cls, "needs", "all"),
        }


def entries() -> dict[str, Entry]:
    """Return all methods that can be imported by name, in the order in which they are listed."""
    methods, _ = METHODS.importable()
    modules = [cls.__module__ for cls in methods.values()]
    return {
        name: Entry(name, cls, modules.count(cls.__module__) > 1)
        for name, cls in methods.items()
    }


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
