"""What `coterie methods` and `coterie show` say: read from the docstrings, so that it cannot differ from them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from typing import Any

from coterie.core.errors import InputError, nearest

__all__ = ["describe", "describe_method", "fields_of", "show", "traffic"]


def describe_method(name: str, method: type[Any]) -> dict[str, Any]:
    """Name, one line, paper, year, what it optimises, floats sent, and client memory of a method.

    They are those of its file, unless several methods share it and each says its own.
    """
    from coterie.algorithms import ALGORITHMS

    text = inspect.getdoc(importlib.import_module(method.__module__)) or ""
    summary = text.splitlines()[0].partition(": ")[2].rstrip(".") if text else ""
    own = inspect.getdoc(method) or ""
    if sum(other.__module__ == method.__module__ for other in ALGORITHMS.values()) > 1:
        summary = own.splitlines()[0].rstrip(".")
        summary = summary[:1].lower() + summary[1:]
    paper = _said("Papers?", own) or _said("Papers?", text)
    years = re.findall(r"\b(?:19|20)\d\d\b", paper)
    about = {k: _said(k.capitalize(), own) or _said(k.capitalize(), text) for k in ("optimises", "sends", "memory")}
    return {"name": name, "summary": summary, "paper": paper, "year": int(years[0]) if years else None, **about}


def _said(word: str, text: str) -> str:
    """What stands behind `word: ` at the begin of a line, up to the next such line or the end of the paragraph."""
    found = re.search(rf"^{word}: (.*?)(?:\n\n|\n(?=[A-Z]\w+: )|\Z)", text, re.S | re.M)
    return " ".join(found.group(1).split()) if found else ""


def traffic(sends: str) -> dict[str, tuple[str, str]]:
    """Floats up and down by task, as formulas, from the `Sends` line of a method: `UP up, DOWN down (TASK...); ...`.

    >>> traffic("d + 1 up, d down (local_update); 1 up, 2 d down (distances: external clients).")
    {'local_update': ('d + 1', 'd'), 'distances': ('1', '2 d')}
    """
    clauses = re.findall(r"(?:^|; )([^;(]*(?:\([^)]*\) d)?[^;(]*?) up, ([^;]+?) down \((\w+)", sends)
    return {task: (up.strip(), down) for up, down, task in clauses}


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
    said = {one: words for names, words in said.items() for one in names.split(", ")}
    rows = []
    for field in dataclasses.fields(cls):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        text = "" if default is dataclasses.MISSING else repr(default)
        rows.append((field.name, str(field.type), text, said.get(field.name, "").strip()))
    return rows


def describe(name: str) -> dict[str, Any]:
    """Name, kind, text, and fields of a method, a data set, a model, an attack, or local training."""
    from coterie.algorithms import ALGORITHMS
    from coterie.attacks import ATTACKS
    from coterie.core.training import LocalSGD
    from coterie.data import DATASETS
    from coterie.models import MODELS

    fields: list[tuple[str, str, str, str]] = []
    if name in ALGORITHMS:
        method = ALGORITHMS[name]
        kind, text = "method", inspect.getdoc(importlib.import_module(method.__module__)) or ""
        fields = fields_of(method)
    elif name in MODELS or name == "LocalSGD":
        cls = MODELS.get(name, LocalSGD)
        kind, text, fields = "model" if name in MODELS else "local training", _summary(cls), fields_of(cls)
    elif name in ATTACKS:
        cls = ATTACKS[name]
        kind, text, fields = "attack", (inspect.getdoc(cls) or "").partition("\n\nAttributes:")[0], fields_of(cls)
    elif name in DATASETS:
        dataset = DATASETS[name]
        about = f"{dataset.summary}\nclients: {dataset.clients}\ntask: {dataset.task}\nlicence: {dataset.licence}"
        kind, text = "data", f"{about}\n\n{inspect.cleandoc(dataset.details)}"
        options = {k: v for k, v in dataset.defaults.items() if k != "split"}
        fields = [(f"data.{k}", type(v).__name__, repr(v), "") for k, v in options.items()]
        fields += [(f"split.{k}", type(v).__name__, repr(v), "") for k, v in dataset.defaults.get("split", {}).items()]
    else:
        known = [*ALGORITHMS, *DATASETS, *MODELS, *ATTACKS, "LocalSGD"]
        raise InputError(f"there is nothing called {name!r} to show; {nearest(name, known)}")
    keys = ("name", "type", "default", "explanation")
    return {"name": name, "kind": kind, "text": text, "fields": [dict(zip(keys, f, strict=True)) for f in fields]}


def show(name: str) -> str:
    """The same for people."""
    found = describe(name)
    lines = [found["text"].rstrip(), ""]
    data = found["kind"] == "data"
    if found["fields"]:
        lines.append("options (--set KEY=VALUE)" if data else "fields")
    for field in found["fields"]:
        long = field["default"].startswith("LocalSGD(")
        default = "see: coterie show LocalSGD" if long else field["default"] and f"= {field['default']}"
        lines.append(f"{field['name']}{'' if data else ': ' + field['type']} {default}".rstrip())
        lines += textwrap.wrap(field["explanation"], 76, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines).rstrip()


def _summary(cls: type[Any]) -> str:
    return (inspect.getdoc(cls) or "").splitlines()[0]
