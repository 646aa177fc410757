"""What `coterie methods` and `coterie show` say: read from the docstrings, so that it cannot differ from them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any

from coterie.core.errors import InputError, nearest

__all__ = ["describe_method", "fields_of", "show"]


def describe_method(name: str, method: type[Any]) -> dict[str, Any]:
    """Name, one line, and paper of a method."""
    text = inspect.getdoc(importlib.import_module(method.__module__)) or ""
    summary = text.splitlines()[0].partition(": ")[2].rstrip(".") if text else ""
    papers = re.search(r"^Papers?: (.*?)(?:\n\n|\Z)", text, re.S | re.M)
    return {"name": name, "summary": summary, "paper": " ".join(papers.group(1).split()) if papers else ""}


def fields_of(cls: type[Any]) -> list[tuple[str, str, str, str]]:
    """(name, type, default, explanation) of each field of a dataclass, the explanation from the Attributes of its docstring."""
    text = inspect.getdoc(cls) or ""
    section = re.search(r"^Attributes:\n((?:    .*\n|\n)+)", text + "\n", re.M)
    said: dict[str, str] = {}
    name = ""
    for line in (section.group(1) if section else "").splitlines():
        found = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
        if found:
            name = found.group(1)
            said[name] = found.group(2)
        elif name:
            said[name] += " " + line.strip()
    rows = []
    for field in dataclasses.fields(cls):
        default = "" if field.default is dataclasses.MISSING else repr(field.default)
        rows.append((field.name, str(field.type), default, said.get(field.name, "").strip()))
    return rows


def show(name: str) -> str:
    """All that there is to say about a method, a data set, a model, or local training."""
    from coterie.algorithms import ALGORITHMS
    from coterie.core.training import LocalSGD
    from coterie.data import DATASETS
    from coterie.models import MODELS

    if name in ALGORITHMS:
        method = ALGORITHMS[name]
        module = importlib.import_module(method.__module__)
        return f"{inspect.getdoc(module)}\n\n{_fields(method)}"
    if name in MODELS:
        return f"{_summary(MODELS[name])}\n\n{_fields(MODELS[name])}".rstrip()
    if name in DATASETS:
        dataset = DATASETS[name]
        about = f"{dataset.summary}\nclients: {dataset.clients}\ntask: {dataset.task}\nlicence: {dataset.licence}"
        return f"{about}\n\n{inspect.cleandoc(dataset.details)}".rstrip()
    if name == "LocalSGD":
        return f"{_summary(LocalSGD)}\n\n{_fields(LocalSGD)}"
    raise InputError(
        f"there is nothing called {name!r} to show; {nearest(name, [*ALGORITHMS, *DATASETS, *MODELS, 'LocalSGD'])}"
    )


def _summary(cls: type[Any]) -> str:
    return (inspect.getdoc(cls) or "").splitlines()[0]


def _fields(cls: type[Any]) -> str:
    import textwrap

    lines = []
    for name, kind, default, text in fields_of(cls):
        lines.append(f"{name}: {kind}" + (f" = {default}" if default else ""))
        lines += textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(["fields", *lines]) if lines else ""
