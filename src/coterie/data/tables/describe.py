"""Agree on columns, categories and label: from what each client says about its table to the draft of a recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from coterie.core.errors import InputError, nearest, require
from coterie.data.tables.recipe import MANY_CATEGORIES, Description, Recipe, spelled_threshold
from coterie.data.tables.settings import FEW_NUMBERS, MANY_CLASSES, TableSettings

__all__ = ["draft_recipe"]

Told = dict[str, dict[str, Any]]


def draft_recipe(names: Sequence[str], told: Description, settings: TableSettings) -> Recipe:
    """The columns, categories and classes that the clients `names` agree on; means and scales come later.

    Raises `InputError` that names client, file and column where they cannot agree.
    """
    said: Told = {name: json.loads(text) for name, text in zip(names, told.text, strict=True)}
    everywhere = {c for client in said.values() for c in client["columns"]}
    for key in ("drop", "categorical", "missing"):
        for column in getattr(settings, key):
            require(
                column in everywhere or column == settings.label,
                f"{key} names column {column!r}, which no client has; {nearest(column, everywhere)}",
            )
    columns: list[dict[str, Any]] = []
    left_out: dict[str, list[str]] = {"as asked": sorted(settings.drop)} if settings.drop else {}
    first = next(iter(said.values()))["columns"]
    ordered = [c for c in first if c in everywhere] + sorted(everywhere - set(first))
    for column in (c for c in ordered if c not in settings.drop):
        spec, reason = _column(column, said, column in settings.categorical)
        if spec is None:
            left_out.setdefault(reason, []).append(column)
        else:
            columns.append(spec)
    label = _label(said, settings)
    return {
        "version": 1,
        "label": label,
        "columns": columns,
        "features": [],
        "missing": {k: list(v) for k, v in sorted(settings.missing.items())},
        "training_rows": {name: client["rows"] for name, client in said.items()},
        "notes": [f"left out: {', '.join(gone)} ({reason})" for reason, gone in left_out.items()],
    }


def _column(column: str, said: Told, chosen: bool) -> tuple[dict[str, Any] | None, str]:
    """What `column` becomes, or None and the reason to leave it out."""
    have = {name: client["columns"][column] for name, client in said.items() if column in client["columns"]}
    if len(have) < len(said):
        few, word = (list(have), "only at") if 2 * len(have) <= len(said) else (sorted(set(said) - set(have)), "not at")
        return None, f"{word} {', '.join(few[:3])}{' and others' if len(few) > 3 else ''}"
    kinds = {about["kind"] for about in have.values()} - {"empty"}
    if not kinds:
        return None, "missing at every client"
    if "date" in kinds:
        return None, "dates; turn them into numbers, such as days since a start, to use them"
    if "text" in kinds and len(kinds) > 1 and not chosen:
        texts = next(n for n, about in have.items() if about["kind"] == "text")
        other = next(n for n, about in have.items() if about["kind"] in ("number", "boolean"))
        row, example = have[texts]["example"]
        raise InputError(
            f"{said[texts]['source']}: column {column!r} is text ({example!r} in data row {row}) but {have[other]['kind']} "
            f"at {other!r}; correct that cell, list its code under missing, or name the column in categorical or drop"
        )
    if kinds <= {"number", "boolean"} and not chosen:
        if all(about.get("identifier") for about in have.values()):
            return None, "whole numbers that never repeat under such a name: an identifier"
        return {"name": column, "kind": "number"}, ""
    return _category(column, have, chosen)


def _category(column: str, have: Told, chosen: bool) -> tuple[dict[str, Any] | None, str]:
    texts = [about for about in have.values() if about["kind"] != "empty"]
    if not chosen:
        if any(about["identifier"] for about in texts) or all(about["unique"] for about in texts):
            return None, "every row has its own text: an identifier"
        most = max(about["distinct"] for about in texts)
        if most > MANY_CATEGORIES:
            return None, f"{most} different texts at one client; name it in categorical to keep it"
    categories = sorted({c for about in texts for c in about["categories"]})
    if not categories:
        return None, "no value in any client's training rows"
    return {"name": column, "kind": "category", "categories": categories}, ""


def _label(said: Told, settings: TableSettings) -> dict[str, Any]:
    """Task, values and classes of the label."""
    name = settings.label
    about = {client: what["label"] for client, what in said.items()}
    kinds = {a["kind"]: client for client, a in about.items()}
    if len(kinds) > 1:
        (one, at), (other, there) = sorted(kinds.items())[:2]
        raise InputError(
            f"label {name!r} is {one} at {at!r} ({said[at]['source']}) but {other} at {there!r} "
            f"({said[there]['source']}); write it the same way in all files"
        )
    kind = next(iter(kinds))
    values = sorted({v for a in about.values() for v in a["values"]})
    distinct = max([len(values), *(a["distinct"] for a in about.values())])
    whole = all(a["whole"] for a in about.values())
    spec: dict[str, Any] = {
        "column": name,
        "task": "classification",
        "kind": kind,
        "above": None,
        "values": [],
        "classes": [],
    }
    if settings.above is not None:
        require(kind == "number", f"above = {settings.above} needs a label of numbers, but {name!r} is {kind}")
        spec |= {"above": settings.above, "classes": spelled_threshold(name, settings.above)}
    elif _is_quantity(name, kind, distinct, whole, settings.task):
        return spec | {"task": "regression"}
    else:
        values = sorted(values, key=float) if kind == "number" else values
        require(
            len(values) > 1,
            f"label {name!r} is {values[0] if values else 'missing'} in every row of every client; there is nothing to learn",
        )
        spec |= {"values": values, "classes": values}
    if settings.classes:
        require(
            len(settings.classes) == len(spec["classes"]),
            f"classes has {len(settings.classes)} names but label {name!r} has {len(spec['classes'])} classes: "
            f"{', '.join(spec['classes'])}",
        )
        spec["classes"] = list(settings.classes)
    return spec


def _is_quantity(name: str, kind: str, distinct: int, whole: bool, task: str | None) -> bool:
    """Whether the label is a number to regress on; an error where a guess would be a gamble."""
    require(kind != "date", f"label {name!r} holds dates; predict a number or a class")
    if task == "regression":
        require(kind in ("number", "boolean"), f"regression needs a label of numbers, but {name!r} is {kind}")
        return True
    if kind == "number" and not whole and distinct > FEW_NUMBERS and task is None:
        return True
    limit = MANY_CATEGORIES if task == "classification" else MANY_CLASSES
    if distinct > limit:
        more = 'say task = "regression" or task = "classification"' if task is None and kind == "number" else ""
        more = more or f"at most {limit} classes can be told apart here; choose another label"
        raise InputError(f"label {name!r} has {distinct} different values; {more}")
    return False
