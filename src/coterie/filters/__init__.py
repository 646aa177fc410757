"""Filters: what changes a reply between a client's task and the wire. One file is one filter, and its name that of the file."""

from __future__ import annotations

from pathlib import Path

from coterie.config.schema import Registry

__all__ = ["FILTERS"]


def _class_name(file: Path) -> str:
    """`TopK` for `top_k.py`."""
    return "".join(word.capitalize() for word in file.stem.split("_"))


FILTERS = Registry(
    "filter",
    {
        file.stem.replace("_", "-"): f"coterie.filters.{file.stem}:{_class_name(file)}"
        for file in sorted(Path(__file__).parent.glob("[a-z]*.py"))
    },
    base="coterie.contract.filters:Filter",
)
"""What `[[filters]] name = ...` can name; a file of this folder is known by being here."""
