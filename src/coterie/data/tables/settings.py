"""What the user says about tables: label, task, classes, columns to rename or leave out. Checked before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from coterie.base.errors import InputError, is_number, nearest, require
from coterie.config.rules import one_of
from coterie.config.schema import Flag, options
from coterie.data.tables.columns import Missing, Reading, Table
from coterie.data.tables.numbers import number
from coterie.data.tables.spelling import alike, legible, quoted, spell

__all__ = ["EVERY_FILE", "FEW_NUMBERS", "MANY_CLASSES", "FileSettings", "TableSettings", "check_label", "settings_of"]

FEW_NUMBERS = 20
"""Distinct numbers that are not whole: a label with more of them is a quantity, with fewer it has classes."""

MANY_CLASSES = 50
"""A label with more distinct values needs the user's word on what it is."""

LABELS = ("label", "target", "outcome", "y", "class")
"""Names that are taken for the label if the user names none and all clients share exactly one of them."""

EVERY_FILE = "*"
"""Stands for all clients where settings are given by client."""

_TASKS = ("classification", "regression")


@options
class FileSettings:
    """How the files of a folder become rows of clients.

    Attributes:
        unlabelled: "refuse" rows without a label, or "drop" them.
        split_column: column that says train, validation or test in each row; it replaces the split.
        server_file: a table with rows that the server holds, outside the folder; no statistic is taken of them.
        arrays: whether npz files hold arrays of inputs (images, sequences of tokens), used as they are, and no tables; None: those
            with an array of three or more dimensions do.
    """

    unlabelled: Annotated[str, one_of("refuse", "drop")] = "refuse"
    split_column: str | None = None
    server_file: str | None = None
    arrays: bool | None = None


@dataclass(frozen=True)
class TableSettings:
    """How the user wants tables to be read; `settings_of` checks it.

    Attributes:
        label: column to predict; None: the one that is called label, target, outcome, y or class.
        task: classification or regression; None: told from the label.
        above: a number cuts the label into two classes, `<= above` and `> above`.
        classes: names of the classes, in the order of the label's sorted values; a table says how each class is spelled.
        spellings: the class that each value of the label means, where the user mapped them.
        categorical: columns of numbers that are codes (and texts to keep although they have many values).
        drop: columns to leave out, by client; those of `*` at every client.
        missing: per column the values that stand for "missing".
        rename: {name in the file: name to use}, by client; those of `*` at every client.
        meaning: of the label, in words for people.
        unit: of a label that is a number.
        rare: a category that no client has so many training rows of is pooled with the others like it.
    """

    label: Annotated[str | None, Flag(metavar="COLUMN")] = None
    task: Annotated[str | None, Flag(metavar="TASK")] = None
    above: float | None = None
    classes: Annotated[tuple[str, ...], Flag(metavar="A,B")] = ()
    spellings: Mapping[str, str] = field(default_factory=dict)
    categorical: Sequence[str] = ()
    drop: Mapping[str, Sequence[str]] = field(default_factory=dict)
    missing: Mapping[str, Missing] = field(default_factory=dict)
    rename: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rare: int = 0
    meaning: str | None = None
    unit: str | None = None

    @property
    def dropped(self) -> Sequence[str]:
        """Columns that are left out at every client."""
        return self.drop.get(EVERY_FILE, ())

    def reading(self, client: str) -> Reading:
        """How the file of `client` is read."""
        rename = {**self.rename.get(EVERY_FILE, {}), **self.rename.get(client, {})}
        return Reading(self.missing, self.categorical, rename, self.drop.get(client, ()))

    def label_of(self, tables: Mapping[str, Table]) -> str:
        """The label, if need be guessed from the names that all `tables` share. Raises `InputError` if nothing can be guessed."""
        return self.label or _guess_label(tables)

    def fitted_to(self, tables: Mapping[str, Table]) -> TableSettings:
        """These settings with the label of `tables`. Raises `InputError` for one that they do not have."""
        label = self.label_of(tables)
        require(
            not any(label in dropped for dropped in self.drop.values()),
            f"drop names {label!r}, which is the label; take it out of drop",
        )
        for table in tables.values():
            check_label(table, label, tables)
        return replace(self, label=label)

    def check_names(self, tables: Mapping[str, Table]) -> None:
        """Raise `InputError` for a client, or a column to rename, that `tables`, those of all clients, do not have."""
        for key, by_client in (("drop", self.drop), ("rename", self.rename)):
            for client in by_client:
                known = client in tables or client == EVERY_FILE
                require(known, f"{key} has settings for {client!r}, which is not a client; {nearest(client, tables)}")
        have = {c for table in tables.values() for c in (*table.columns, *table.renamed)}
        for old in self.rename.get(EVERY_FILE, {}):
            require(old in have, f"rename names column {old!r}, which no client has; {nearest(old, have)}")


def check_label(table: Table, label: str, tables: Mapping[str, Table]) -> None:
    """Raise `InputError` if `table`, one of `tables`, has no column `label`."""
    if label in table.columns:
        return
    have = [n for n, t in tables.items() if label in t.columns]
    near = [c for c in table.columns if alike(c, label)]
    unnamed = 2 * sum(number(name) is not None for name in table.columns) > len(table.columns)
    if unnamed:
        cure = "; its first line has numbers: put one with the names of the columns above"
    elif have and near:
        cure = f"; is {near[0]!r} the same? Then say rename = {{{quoted(near[0])} = {quoted(label)}}}"
    elif have:
        cure = f" although {have[0]!r} has it: see whether its first line is the header, add the column, or name another label"
    else:
        cure = f"; {nearest(label, table.columns)}: add it, or name another label"
    raise InputError(f"{table.source} has no label column {label!r}{cure}")


def settings_of(
    *,
    label: str | None = None,
    task: str | None = None,
    above: float | None = None,
    classes: Sequence[str] | Mapping[str, Any] = (),
    categorical: Sequence[str] = (),
    drop: Sequence[str] | Mapping[str, Sequence[str]] = (),
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, Any] | None = None,
    rare: int = 0,
    meaning: str | None = None,
    unit: str | None = None,
) -> TableSettings:
    """The user's word on tables, checked as far as it can be without them. Raises `InputError` that names the setting."""
    _require_names("categorical", categorical)
    require(above is None or is_number(above), f"above = {above!r} must be a number")
    if task is not None and task not in _TASKS:
        raise InputError(f"task is {task!r}; {nearest(str(task), _TASKS)}")
    require(task != "regression" or above is None, "above makes classes of the label; drop it or task = 'regression'")
    require(type(rare) is int and rare >= 0, f"rare = {rare!r} must be a number of rows, 0 for no pooling")
    for key, text in (("meaning", meaning), ("unit", unit)):
        require(text is None or isinstance(text, str), f"{key} = {text!r} must be a text")
    spellings: dict[str, str] = {}
    if isinstance(classes, Mapping):
        require(above is None, "classes maps values of the label, and above cuts it; drop one of them")
        require(task != "regression", "classes makes classes of the label; drop it or task = 'regression'")
        spellings, classes = _spellings(classes), ()
    _require_names("classes", classes)
    dropped = drop if isinstance(drop, Mapping) else {EVERY_FILE: drop}
    for names in dropped.values():
        _require_names("drop", names)
    return TableSettings(
        label, task, above, tuple(classes), spellings, tuple(categorical),
        {client: tuple(names) for client, names in dropped.items() if names}, codes_of(missing), _renames(rename),
        rare, meaning, unit,
    )  # fmt: skip


def _require_names(key: str, value: Any) -> None:
    require(
        isinstance(value, list | tuple) and all(isinstance(v, str) for v in value),
        f"{key} = {value!r} must be a list of names, such as [{str(value)!r}]",
    )


def _spellings(classes: Mapping[str, Any]) -> dict[str, str]:
    """The class of each spelling, from `classes` as {class: spellings}; a class spells itself."""
    out: dict[str, str] = {}
    for name, listed in classes.items():
        good = isinstance(listed, list | tuple) and all(isinstance(v, str | int | float) for v in listed)
        require(good, f'classes: {name} = {listed!r} must be a list of values, such as {{yes = ["Yes", "y"]}}')
        for value in listed:
            text = _spelled(value)
            require(
                out.get(text, name) == name, f"classes lists {text!r} under {out.get(text)!r} and {name!r}; choose one"
            )
            out[text] = str(name)
    require(len(classes) > 1, "classes must map the label to at least two classes")
    return {**{str(name): str(name) for name in classes}, **out}


def _spelled(value: Any) -> str:
    """A value of TOML as the text of a cell."""
    if isinstance(value, bool):
        return str(value).lower()
    return legible(value) if isinstance(value, str) else spell(value)


def codes_of(missing: Mapping[str, Any] | None) -> dict[str, Missing]:
    """The user's codes for "missing", checked: one value or a list per column."""
    require(
        missing is None or isinstance(missing, Mapping),
        f"missing = {missing!r} must be a table of columns and their codes, such as {{cholesterol = [0]}}",
    )
    out: dict[str, Missing] = {}
    for column, codes in (missing or {}).items():
        listed = list(codes) if isinstance(codes, list | tuple | set) else [codes]
        require(
            all(isinstance(c, str | int | float) for c in listed),
            f"missing: codes of {column!r} must be numbers or texts",
        )
        out[str(column)] = listed
    return out


def _renames(rename: Any) -> dict[str, dict[str, str]]:
    """New names of columns by client, from {old: new} for all and {client: {old: new}} for one."""
    form = 'a table such as {MEAN_RADIUS = "mean_radius"}, or of such tables by client'
    require(rename is None or isinstance(rename, Mapping), f"rename = {rename!r} must be {form}")
    out: dict[str, dict[str, str]] = {}
    for key, value in (rename or {}).items():
        few = dict(value) if isinstance(value, Mapping) else {key: value}
        require(all(isinstance(new, str) and new for new in few.values()), f"rename = {rename!r} must be {form}")
        out.setdefault(str(key) if isinstance(value, Mapping) else EVERY_FILE, {}).update(few)
    return out


def _guess_label(tables: Mapping[str, Table]) -> str:
    shared = [n for n in LABELS if all(n in t.columns for t in tables.values())]
    if len(shared) != 1:
        first = next(iter(tables.values()))
        raise InputError(
            f"which column is to be predicted? Give its name as label (--label NAME); {first.source} has "
            f"{', '.join(list(first.columns)[:12])}"
        )
    return shared[0]
