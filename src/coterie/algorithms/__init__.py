"""Methods: one file is one paper, and says in its header what the catalogue says of it."""

from __future__ import annotations

from typing import Any

from coterie import catalogue


def __getattr__(name: str) -> Any:
    if name == "ALGORITHMS":
        return catalogue.methods()
    for entry in catalogue.entries().values():
        if entry.class_name == name:
            return catalogue.find(entry.name)
    raise AttributeError(f"module 'coterie.algorithms' has no attribute {name!r}")
