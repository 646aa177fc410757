"""What the user says about tables: label, task, codes for "missing", columns to leave out. Checked before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.core.errors import InputError, nearest, require
from coterie.data.splits import is_number
from coterie.data.tables.columns import Missing, Table

__all__ = ["FEW_NUMBERS", "MANY_CLASSES", "TableSettings", "codes_of", "settings_of"]

FEW_NUMBERS = 20
"""Distinct numbers that are not whole: a label with more of them is a quantity, with fewer it has classes."""

MANY_CLASSES = 50
"""A label with more distinct values needs the user's word on what it is."""

LABELS = ("label", "target", "outcome", "y", "class")
"""Names that are taken for the label if the user names none and all clients share exactly one of them."""


@dataclass(frozen=True)
class TableSettings:
    """How the user wants tables to be read.

    Attributes:
        label: column to predict.
        task: classification, regression, or None to tell from the label.
        above: a number cuts the label into two classes, `<= above` and `> above`.
        classes: names to show instead of the label's sorted values.
        categorical: columns of numbers that are codes (and texts to keep although they have many values).
        drop: columns to leave out.
        missing: per column the values that stand for "missing".
    """

    label: str
    task: str | None = None
    above: float | None = None
    classes: Sequence[str] = ()
    categorical: Sequence[str] = ()
    drop: Sequence[str] = ()
    missing: Mapping[str, Missing] = field(default_factory=dict)


def codes_of(missing: Mapping[str, Any] | None) -> dict[str, Missing]:
    """The user's codes for "missing", checked: one value or a list per column."""
    require(
        missing is None or isinstance(missing, Mapping),
        f"missing = {missing!r} must be a table of columns and their codes, such as {{cholesterol = [0]}}",
    )
    out: dict[str, Missing] = {}
    for column, codes in (missing or {}).items():
        listed = [codes] if isinstance(codes, str | int | float) else list(codes)
        require(
            all(isinstance(c, str | int | float) for c in listed),
            f"missing: codes of {column!r} must be numbers or texts",
        )
        out[str(column)] = listed
    return out


def settings_of(
    tables: Mapping[str, Table],
    codes: Mapping[str, Missing],
    *,
    label: str | None,
    task: str | None,
    above: float | None,
    classes: Sequence[str],
    categorical: Sequence[str],
    drop: Sequence[str],
) -> TableSettings:
    """The user's word on `tables`, checked; raises `InputError` for a label that a client lacks."""
    for key, value in {"categorical": categorical, "drop": drop, "classes": classes}.items():
        require(
            isinstance(value, list | tuple) and all(isinstance(v, str) for v in value),
            f"{key} = {value!r} must be a list of names, such as [{str(value)!r}]",
        )
    require(above is None or is_number(above), f"above = {above!r} must be a number")
    tasks = ("classification", "regression")
    if task is not None and task not in tasks:
        raise InputError(f"task is {task!r}; {nearest(str(task), tasks)}")
    require(task != "regression" or above is None, "above makes classes of the label; drop it or task = 'regression'")
    label = label or _guess_label(tables)
    require(label not in drop, f"drop names {label!r}, which is the label; take it out of drop")
    for table in tables.values():
        if label not in table.columns:
            have = [n for n, t in tables.items() if label in t.columns]
            there = f" although {have[0]!r} has it" if have else f"; {nearest(label, table.columns)}"
            raise InputError(f"{table.source} has no label column {label!r}{there}: add it, or name another label")
    return TableSettings(label, task, above, tuple(classes), tuple(categorical), tuple(drop), codes)


def _guess_label(tables: Mapping[str, Table]) -> str:
    shared = [n for n in LABELS if all(n in t.columns for t in tables.values())]
    if len(shared) != 1:
        first = next(iter(tables.values()))
        raise InputError(
            f"which column is to be predicted? Give its name as label (--label NAME); {first.source} has "
            f"{', '.join(list(first.columns)[:12])}"
        )
    return shared[0]
