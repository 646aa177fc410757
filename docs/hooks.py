"""What pages say of methods follows from the catalogue: a new method is not listed by hand."""

from __future__ import annotations

import re
from typing import Any

from coterie.catalogue import Entry, entries, find, traffic
from coterie.core.task import find_task, known_tasks

METHODS, OTHERS = "<!-- methods -->", "<!-- other methods -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the files of all methods, or rows of the privacy table for those without one, where a page has the mark."""
    if METHODS in markdown:
        markdown = markdown.replace(METHODS, listed())
    if OTHERS in markdown:
        missing = [e for name, e in entries().items() if not re.search(rf"^\| [^|]*`{name}`", markdown, re.M)]
        markdown = markdown.replace(OTHERS + "\n", "".join(privacy_row(entry) for entry in missing))
    return markdown


def listed() -> str:
    """One block a file: its text, and the classes that are methods."""
    classes: dict[str, list[str]] = {}
    for entry in entries().values():
        classes.setdefault(entry.module, []).append(entry.class_name)
    return "\n".join(
        f"::: {module}\n    options:\n      members: [{', '.join(names)}]" for module, names in classes.items()
    )


def privacy_row(entry: Entry) -> str:
    """Which fields of which tasks leave a site, from the types of the replies, and what a site is shown, from the header."""
    find(entry.name)  # which makes its tasks known
    tasks = {task.rpartition(":")[2]: find_task(task).reply._fields for task in known_tasks()}
    fields = "; ".join(
        f"`{task}`: {', '.join(f'`{field}`' for field in tasks[task])}" for task in traffic(entry.said("Sends"))
    )
    return f"| `{entry.name}` | {fields} | {entry.said('Shows').rstrip('.')} |\n"
