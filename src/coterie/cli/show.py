"""List and explain what an experiment can name, from the docstrings, so that the two cannot differ."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.base.errors import InputError, nearest, require
from coterie.cli.catalogue import (
    docstring_of,
    entries,
    entry_of,
    foreign_names,
    paragraph,
)
from coterie.config.registry import DATASETS, KINDS, METHODS
from coterie.config.schema import explanations

if TYPE_CHECKING:
    from coterie.data import Dataset

Field = tuple[str, str, str, str]
"""Name, type, default and explanation."""


def fields_of(cls: type[Any]) -> list[Field]:
    """(name, type, default, explanation) of each field of a dataclass, the explanation from the Attributes of its docstring."""
    explanation_of = explanations(cls)
    rows = []
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        text = ""
        if default is not dataclasses.MISSING:
            text = repr(default)
        explanation = explanation_of.get(field.name, "")
        rows.append((field.name, _plain_type(field.type), text, explanation))
    return rows


def _plain_type(annotation: Any) -> str:
    """A type without its rules: `float` for `Annotated[float, POSITIVE]`."""
    if not isinstance(annotation, str):
        # Of a file without `from __future__ import annotations`.
        if hasattr(annotation, "__metadata__"):
            annotation = getattr(annotation, "__origin__", annotation)
        if isinstance(annotation, type):
            return annotation.__name__
        return str(annotation)
    node = ast.parse(annotation, mode="eval").body
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return annotation
    if ast.unparse(node.value) != "Annotated":
        return annotation
    return ast.unparse(node.slice.elts[0])


def describe(name: str) -> dict[str, Any]:
    """Name, kind, text, and fields of what an experiment can name: a method, a model, a table, ..., or FILE.py:NAME."""
    kind, text, fields = _parts_of(name)
    keys = ("name", "type", "default", "explanation")
    return {
        "name": name,
        "kind": kind,
        "text": text,
        "fields": [dict(zip(keys, f, strict=True)) for f in fields],
    }


def _parts_of(name: str) -> tuple[str, str, list[Field]]:
    from coterie.base.modules import load_object
    from coterie.config.keys import DECLARED, SEVERAL
    from coterie.config.local import LocalSGD
    from coterie.config.run import MethodEntry, Tuning

    values: dict[str, type[Any]] = {"LocalSGD": LocalSGD, "personalise": Tuning}
    if ".py:" in name:
        candidate = load_object(name)
        return _kind_of(candidate), *_describe_class(candidate)
    if name in METHODS:
        entry = entry_of(name)
        text = entry.about
        if name in DECLARED:
            text += "\n\nThe [local] table: coterie show LocalSGD"
        return "method", text, _fields_of(entry.cls)
    if name in DATASETS:
        return "data", *_describe_data(DATASETS[name])
    for registry in KINDS.values():
        if name in registry:
            return registry.kind, *_describe_registered(registry[name])
    if name in values:
        return "settings", *_describe_class(values[name])
    if name in SEVERAL:
        entries = []
        for entry_name, cls in SEVERAL[name].items():
            entries.append((entry_name, "", "", _text(cls).splitlines()[0]))
        text = f"[[{name}]] tables of an experiment, each with one of these names."
        return "table", text, entries
    if name == "methods":
        text = "[[methods]] tables of an experiment, one for each method."
        return "table", text, fields_of(MethodEntry)
    if name == "tune":
        return "table", *_describe_tuning()
    if name in DECLARED:
        return "table", f"The [{name}] table of an experiment.", _keys_of(name)
    known_names = {*DECLARED, *SEVERAL, *values, "methods", "tune"}.union(
        *KINDS.values()
    )
    raise InputError(
        f"there is nothing called {name!r} to show; {nearest(name, known_names)}"
    )


def _kind_of(candidate: Any) -> str:
    """The kind whose base the class derives from; `type` or `function` where that tells nothing."""
    if isinstance(candidate, type):
        for registry in KINDS.values():
            if registry.base is not None and issubclass(candidate, registry.base):
                return registry.kind
    return type(candidate).__name__


def _describe_class(candidate: Any) -> tuple[str, list[Field]]:
    text = _text(candidate)
    if not text:
        # A file with one class says there what it is.
        module = sys.modules.get(getattr(candidate, "__module__", ""))
        text = inspect.getdoc(module) or ""
    if not text:
        text = f"{getattr(candidate, '__name__', candidate)} has no docstring."
    return text, _fields_of(candidate)


def _describe_registered(candidate: Any) -> tuple[str, list[Field]]:
    """What a class says, and the paper that its file names."""
    text, fields = _describe_class(candidate)
    module = sys.modules.get(getattr(candidate, "__module__", ""))
    paper = paragraph(getattr(module, "__doc__", None) or "", "Papers?")
    if paper and not paragraph(text, "Papers?"):
        text = f"{text.rstrip()}\n\nPaper: {paper}"
    return text, fields


def _fields_of(candidate: Any) -> list[Field]:
    if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
        return fields_of(candidate)
    return []


def _text(candidate: Any) -> str:
    return docstring_of(candidate).partition("\n\nAttributes:")[0]


def _describe_data(dataset: Dataset) -> tuple[str, list[Field]]:
    description = f"{dataset.summary}\nclients: {dataset.clients}\ntask: {dataset.task}\nlicence: {dataset.licence}"
    options = {f"data.{k}": v for k, v in dataset.defaults.items() if k != "split"}
    options |= {f"split.{k}": v for k, v in dataset.defaults.get("split", {}).items()}
    fields = [
        (key, type(value).__name__, repr(value), "") for key, value in options.items()
    ]
    return f"{description}\n\n{inspect.cleandoc(dataset.details)}", fields


def _describe_tuning() -> tuple[str, list[Field]]:
    from coterie.run.method_tables import LOCAL_GRID, METHOD_GRIDS

    grids = dict(LOCAL_GRID)
    for name, grid in METHOD_GRIDS.items():
        for key, values in grid.items():
            grids[f"{name}.{key}"] = values
    description = "The [tune] table of an experiment: lists of values by METHOD.FIELD or local.FIELD, among which --tune chooses."
    explanation = "Tried where [tune] is empty."
    fields = [(f"tune.{k}", "a list", repr(v), explanation) for k, v in grids.items()]
    return description, fields


def _keys_of(table: str) -> list[Field]:
    from coterie.config.keys import keys_of

    rows = []
    for key in keys_of(table):
        option = key.option
        default = ""
        if option.default not in (dataclasses.MISSING, None):
            default = repr(option.default)
        if option.in_files is not None:
            allowed = option.in_files.allowed
        else:
            allowed = " | ".join(kind.__name__ for kind in option.kinds)
        explanation = f"{key.help}."
        if key.flag:
            explanation += f" On the command line: {key.flag}."
        rows.append((key.path, allowed, default, explanation))
    return rows


def show(name: str) -> str:
    """The same for people."""
    described = describe(name)
    lines = [described["text"].rstrip(), ""]
    is_table = described["kind"] in ("data", "table")
    if described["fields"] and is_table:
        lines.append("options (--set KEY=VALUE)")
    elif described["fields"]:
        lines.append("fields")
    for field in described["fields"]:
        line = field["name"]
        if not is_table:
            line += f": {field['type']}"
        if field["default"].startswith("LocalSGD("):
            line += " see: coterie show LocalSGD"
        elif field["default"]:
            line += f" = {field['default']}"
        lines.append(line.rstrip())
        lines += textwrap.wrap(
            field["explanation"], 76, initial_indent="    ", subsequent_indent="    "
        )
    return "\n".join(lines).rstrip()


# ---- commands


def say(text: str = "") -> None:
    """Print a line."""
    sys.stdout.write(text + "\n")


def list_methods(args: argparse.Namespace) -> int:
    """Print all methods."""
    rows = [entry.row() for entry in entries().values()]
    for problem in METHODS.importable(foreign_names())[1]:
        sys.stderr.write(f"left out: {problem}\n")
    if args.json:
        say(json.dumps(rows, indent=1))
        return 0
    width = max(12, *(len(row["name"]) for row in rows))
    for row in rows:
        say(f"{row['name']:<{width}} {row['summary']}")
        texts = [row["paper"]]
        for key in ("optimises", "sends", "memory", "needs"):
            if row[key]:
                texts.append(f"{key}: {row[key]}")
        for text in filter(None, texts):
            say_wrapped(text, width + 1)
    say(
        "\nd: numbers in a model; sent: floats of one client in a round, settings aside; memory: what a client keeps"
    )
    say(
        "needs: of updates their sum, which takes least memory here, coordinates, pairs, or all of them at once"
    )
    say(
        "coterie show NAME explains a method's fields; FILE.py:NAME is a method of your own"
    )
    return 0


def say_wrapped(text: str, indent: int) -> None:
    """Print a text behind so many spaces, in lines as wide as the terminal, up to 100 columns."""
    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    space = " " * indent
    for line in textwrap.wrap(
        text, width, initial_indent=space, subsequent_indent=space
    ):
        say(line)


def list_data(args: argparse.Namespace) -> int:
    """Print all data sets, or write one as CSV files."""
    if args.name is not None or args.export is not None:
        from coterie.data.sets.heart_disease import export

        if args.name != "heart-disease":
            raise InputError(
                f"only heart-disease can be exported, with a name; got {args.name!r}"
            )
        require(args.export is not None, "say where to with --export FOLDER")
        for file in export(Path(args.export), server_rows=args.server_rows):
            say(str(file))
        return 0
    datasets, problems = DATASETS.importable()
    for problem in problems:
        sys.stderr.write(f"left out: {problem}\n")
    if args.json:
        keys = ("summary", "clients", "task", "licence")
        rows = []
        for name, dataset in datasets.items():
            rows.append({"name": name, **{k: getattr(dataset, k) for k in keys}})
        say(json.dumps(rows, indent=1))
        return 0
    for name, dataset in datasets.items():
        say(f"{name:<16} {dataset.summary}")
        say_wrapped(
            f"clients: {dataset.clients}; {dataset.task}; {dataset.licence}", 17
        )
    say(
        "\na folder with one CSV, Parquet or npz file per client works too: coterie compare FOLDER --label COLUMN"
    )
    return 0


def show_one(args: argparse.Namespace) -> int:
    """Print the explanation of what is named."""
    if args.json:
        say(json.dumps(describe(args.name), indent=1))
    else:
        say(show(args.name))
    return 0
