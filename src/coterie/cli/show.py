"""What `coterie methods` and `coterie show` say: read from the docstrings, so that it cannot differ from them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Any

from coterie import catalogue
from coterie.core.errors import InputError, nearest
from coterie.core.schema import Registry, explanations

__all__ = ["describe", "fields_of", "show"]


def fields_of(cls: type[Any]) -> list[tuple[str, str, str, str]]:
    """(name, type, default, explanation) of each field of a dataclass, the explanation from the Attributes of its docstring."""
    said = explanations(cls)
    rows = []
    for field in dataclasses.fields(cls):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        text = "" if default is dataclasses.MISSING else repr(default)
        rows.append((field.name, _plain_type(str(field.type)), text, said.get(field.name, "")))
    return rows


def _plain_type(annotation: str) -> str:
    """A type without its rules: `float` for `Annotated[float, POSITIVE]`."""
    node = ast.parse(annotation, mode="eval").body
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and ast.unparse(node.value) == "Annotated":
        return ast.unparse(node.slice.elts[0])
    return annotation


def describe(name: str) -> dict[str, Any]:
    """Name, kind, text, and fields of a method, a data set, a model, an attack, a filter, a callback, settings, or a table of these."""
    from coterie.attacks import ATTACKS
    from coterie.core.training import LocalSGD
    from coterie.data import DATASETS
    from coterie.filters import FILTERS
    from coterie.models import MODELS
    from coterie.run.callbacks import CALLBACKS
    from coterie.run.finetune import Tuning
    from coterie.run.keys import DECLARED

    fields: list[tuple[str, str, str, str]] = []
    several: dict[str, Registry] = {"filters": FILTERS, "callbacks": CALLBACKS}
    values: dict[str, type[Any]] = {"LocalSGD": LocalSGD, "personalise": Tuning}
    if name in catalogue.entries():
        kind, text = "method", catalogue.entries()[name].about
        fields = fields_of(catalogue.find(name))
    elif name in MODELS:
        kind, text, fields = "model", _summary(MODELS[name]), fields_of(MODELS[name])
    elif name in values:
        kind, text, fields = "settings", _summary(values[name]), fields_of(values[name])
    elif registry := next((r for r in (ATTACKS, FILTERS, CALLBACKS) if name in r), None):
        kind, cls = registry.kind, registry[name]
        text, fields = (inspect.getdoc(cls) or "").partition("\n\nAttributes:")[0], fields_of(cls)
    elif name in DATASETS:
        dataset = DATASETS[name]
        about = f"{dataset.summary}\nclients: {dataset.clients}\ntask: {dataset.task}\nlicence: {dataset.licence}"
        kind, text = "data", f"{about}\n\n{inspect.cleandoc(dataset.details)}"
        options = {k: v for k, v in dataset.defaults.items() if k != "split"}
        fields = [(f"data.{k}", type(v).__name__, repr(v), "") for k, v in options.items()]
        fields += [(f"split.{k}", type(v).__name__, repr(v), "") for k, v in dataset.defaults.get("split", {}).items()]
    elif name in several:
        kind, text = "table", f"[[{name}]] tables of an experiment, each with one of these names."
        fields = [(one, "", "", _summary(several[name][one]).splitlines()[0]) for one in several[name]]
    elif name in DECLARED:
        kind, text, fields = "table", f"The [{name}] table of an experiment.", _keys_of(name)
    else:
        known = [*catalogue.entries(), *DATASETS, *MODELS, *ATTACKS, *FILTERS, *CALLBACKS, *DECLARED, *several, *values]
        raise InputError(f"there is nothing called {name!r} to show; {nearest(name, known)}")
    keys = ("name", "type", "default", "explanation")
    return {"name": name, "kind": kind, "text": text, "fields": [dict(zip(keys, f, strict=True)) for f in fields]}


def _keys_of(table: str) -> list[tuple[str, str, str, str]]:
    from coterie.run.keys import keys_of

    rows = []
    for key in keys_of(table):
        option = key.option
        default = "" if option.default in (dataclasses.MISSING, None) else repr(option.default)
        allowed = option.rule.allowed if option.rule is not None else " | ".join(k.__name__ for k in option.kinds)
        rows.append(
            (key.path, allowed, default, f"{key.help}.{f' On the command line: {key.flag}.' if key.flag else ''}")
        )
    return rows


def show(name: str) -> str:
    """The same for people."""
    described = describe(name)
    lines = [described["text"].rstrip(), ""]
    data = described["kind"] in ("data", "table")
    if described["fields"]:
        lines.append("options (--set KEY=VALUE)" if data else "fields")
    for field in described["fields"]:
        long = field["default"].startswith("LocalSGD(")
        default = "see: coterie show LocalSGD" if long else field["default"] and f"= {field['default']}"
        lines.append(f"{field['name']}{'' if data else ': ' + field['type']} {default}".rstrip())
        lines += textwrap.wrap(field["explanation"], 76, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines).rstrip()


def _summary(cls: type[Any]) -> str:
    return (inspect.getdoc(cls) or "").splitlines()[0]
