"""The keys of an experiment's tables, each read from the field that declares it.

The flags of the command line, `--set` and `coterie show TABLE` are made from them, so that none of these can say something else than
Python and TOML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, NamedTuple, cast

from coterie.base.errors import InputError
from coterie.config.data import KINDS_OF, Split, Tables
from coterie.config.local import LocalSGD
from coterie.config.privacy import Privacy
from coterie.config.registry import (
    ATTACKS,
    CALLBACKS,
    ENGINES,
    FILTERS,
    MODELS,
    Registry,
)
from coterie.config.run import Attackers, ModelTable, ReportTable, RunTable
from coterie.config.schema import Option, explanations, options_of
from coterie.config.secure import SecureSums

DECLARED: Mapping[str, tuple[Any, ...]] = {
    "data": (Tables,),
    "split": (Split,),
    "model": (MODELS, ModelTable),
    "local": (LocalSGD,),
    "run": (RunTable,),
    "engine": (ENGINES,),
    "attack": (ATTACKS, Attackers),
    "report": (ReportTable,),
    "privacy": (Privacy,),
    "secure": (SecureSums,),
}
"""Declarations of the keys of each table: classes, and registries for tables with a `name`."""

SEVERAL: Mapping[str, Registry] = {"filters": FILTERS, "callbacks": CALLBACKS}
"""Tables of which an experiment has several, each with a name."""

CHOICES = {"model": "name", "engine": "name", "attack": "name", "split": "kind"}
"""The key of a table that decides which other keys it has."""


class Key(NamedTuple):
    """A key of a table.

    Attributes:
        table, name: as in TOML: `run` and `rounds`.
        option: the field that declares it.
        entries: the names of a registry, or the kinds of split, that have this key; empty: all have it.
        about: what the docstring of the class says of it.
    """

    table: str
    name: str
    option: Option
    entries: tuple[str, ...]
    about: str

    @property
    def path(self) -> str:
        """Return what `--set` calls it."""
        return f"{self.table}.{self.name}"

    @property
    def flag(self) -> str:
        """Its flag on the command line; empty if it has none."""
        flag = self.option.flag
        if flag is None:
            return ""
        return flag.name or f"--{self.name.replace('_', '-')}"

    @property
    def help(self) -> str:
        """One line about it for the command line, where a key that is None in Python has its default."""
        text = re.sub(
            r"\bNone\b(?=:)",
            self.option.none or "default",
            self.about.replace("`", "").rstrip("."),
        )
        if all(entry in text for entry in self.entries):
            return text
        return f"{text} ({self.table} {', '.join(self.entries)})"

    def parse(self, text: str) -> Any:
        """The value that a text of its flag stands for. Raises `InputError` that names the flag."""
        try:
            return self.option.parse(text)
        except InputError as error:
            raise InputError(f"{self.flag} {error}") from error

    def meant(self, value: Any) -> Any:
        """Return what a file says where the command line says `value`: there a list needs no brackets."""
        if isinstance(value, str):
            with suppress(InputError):  # which comes again where the table is read
                value = self.option.parse(value)
        rule = self.option.rule
        if rule is None or not isinstance(value, int | float):
            return value
        # One number stands for a list of it where a number alone is not allowed: seeds=1 may be.
        if not rule.test(1) and rule.test((value,)):
            return [value]
        return value


def keys_of(table: str) -> Iterator[Key]:
    """Yield the keys of one table; of what has a name those of each class, which is imported."""
    yielded = set[str]()
    for declared in DECLARED[table]:
        if isinstance(declared, Registry):
            keys = [
                _name_of(table, declared),
                *_fields_of_entries(table, declared, declared.importable()[0]),
            ]
        else:
            keys = [*_fields(table, declared)]
        yield from (key for key in keys if key.name not in yielded)
        yielded |= {key.name for key in keys}


def keys_with_flags(*tables: str) -> Iterator[Key]:
    """Yield the keys of these tables, or of all, that have a flag on the command line. Neither torch nor numpy is imported."""
    for table in tables or DECLARED:
        for declared in DECLARED[table]:
            if isinstance(declared, Registry):
                classes = {name: declared[name] for name in declared.flagged}
                keys = [
                    _name_of(table, declared),
                    *_fields_of_entries(table, declared, classes),
                ]
            else:
                keys = [*_fields(table, declared)]
            yield from (key for key in keys if key.flag)


def lasting(table: str, name: str) -> set[str]:
    """Keys of a table that keep their value when it gets another `name`, or kind: those that all have, and so the new one."""
    lasting_names = {key.name for key in keys_of(table) if not key.entries}
    if ".py:" not in name:
        return lasting_names
    # A class of the user's own may lack a field that all of ours have.
    for registry in DECLARED[table]:
        if not isinstance(registry, Registry):
            continue
        new_class = registry.find(name, f"[{table}]")
        declared: set[str] = set()
        if is_dataclass(new_class):
            for option in options_of(new_class):
                declared.update(option.keys)
        for key in _fields_of_entries(table, registry, registry.importable()[0]):
            if key.name not in declared:
                lasting_names.discard(key.name)
    return lasting_names


def _fields(table: str, cls: type, entries: tuple[str, ...] = ()) -> Iterator[Key]:
    docs = explanations(cls)
    for option in options_of(cls):
        for name in option.keys:
            of_kinds = entries
            if cls is Split:
                of_kinds = KINDS_OF.get(name, ())
            explanation = docs.get(option.name, "")
            if option.units is not None:
                explanation = (
                    str(option.units.keys[name].__doc__).partition("\n")[0].lower()
                )
            yield Key(table, name, option, of_kinds, explanation)


def _name_of(table: str, registry: Registry) -> Key:
    option = Option("name", registry.default or None, (str,), flag=registry.flag)
    return Key(table, "name", option, (), f"{', '.join(registry)} or FILE.py:NAME")


def _fields_of_entries(
    table: str, registry: Registry, classes: Mapping[str, Any]
) -> Iterator[Key]:
    by_name: dict[str, list[Key]] = {}
    for name, cls in classes.items():
        if not is_dataclass(cls):
            continue
        for key in _fields(table, cast("type", cls), (name,)):
            by_name.setdefault(key.name, []).append(key)
    for same_name in by_name.values():
        entries: tuple[str, ...] = ()
        if len(same_name) < len(registry):
            entries = tuple(key.entries[0] for key in same_name)
        yield same_name[0]._replace(entries=entries)
