"""What pages say of methods follows from the catalogue: nothing is listed by hand."""

from __future__ import annotations

from typing import Any

from coterie.catalogue import entries

MARK = "<!-- methods -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the files of all methods where a page has the mark, in the order of the catalogue."""
    return markdown.replace(MARK, methods_listed())


def methods_listed() -> str:
    """One block a file: its text, and the classes that are methods."""
    classes: dict[str, list[str]] = {}
    for entry in entries().values():
        classes.setdefault(entry.module, []).append(entry.class_name)
    return "\n".join(
        f"::: {module}\n    options:\n      members: [{', '.join(names)}]" for module, names in classes.items()
    )
