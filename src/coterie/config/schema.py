"""Options are values, declared once: a frozen dataclass whose fields carry their rules.

    @options
    class IPM:
        eps: Annotated[float, POSITIVE] = 0.1
        statistics: Annotated[str, one_of("honest", "all")] = "honest"

A value is checked whenever it is made. `build` makes it from a table of a TOML file, `spell` writes that table again, and a
`Registry` (`config/registry.py`) finds the class that the table's `name` says. A rule follows from the type where none is given
(`bool`, `int`, `float`, `str`). In files lists stand for tuples, and a table for a field that holds options. Rules that use names of
their module stand there and not in the annotation, whose lambdas would not see them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass
from datetime import date, time
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
)

from coterie.base.errors import InputError, nearest
from coterie.config.rules import (
    EPOCHS,
    NUMBER,
    PASSES,
    SIZE,
    WORDS,
    Rule,
    kinds_of,
    native,
    obey,
    rule_of,
)

T = TypeVar("T")


class Choice(ABC):
    """A registry, for a field whose table says its class by `name`."""

    @abstractmethod
    def build(self, table: Any, where: str) -> Any:
        """Build the value that a table says."""

    @abstractmethod
    def spell(self, value: Any) -> dict[str, Any]:
        """Return the table that says the same as `value`."""


Keep = Callable[[Any], str]
"""Gives the name by which files refer to an object of a Python program, which they cannot hold."""

IN_FILES = (str, bool, int, float, Mapping, list, tuple, date, time)
"""What TOML has; a value of another type comes from a Python program."""


class InFiles(NamedTuple):
    """The form of a field in files: the word for None, if it may be None, or, with `said` False, a field that only Python can set."""

    none: str = "default"
    said: bool = True


class Units(NamedTuple):
    """A field that files set by one of several keys, each the `count` of a class: `steps = 5` or `epochs = 2`."""

    keys: Mapping[str, Any]


class Flag(NamedTuple):
    """A field that has a flag of its own on the command line, beside `--set`.

    Attributes:
        name: name of the flag; empty: that of the key.
        metavar: of its value.
    """

    name: str = ""
    metavar: str = ""


class Option(NamedTuple):
    """One field of options, as declared.

    Attributes:
        name, default: of the field; `dataclasses.MISSING` where it must be given.
        kinds: the types that it may have, without None.
        rule: what it allows, if that is known.
        files: how files spell it.
        units: the keys that files set it by, if not its name.
        registry: where the class of a table with a `name` is found.
        flag: on the command line.
        none: the word by which files say None; empty if it cannot be None, or if that word is a text that it may be.
        nested: the dataclass that a table makes in this field; None if it takes none.
    """

    name: str
    default: Any
    kinds: tuple[Any, ...] = ()
    rule: Rule | None = None
    files: InFiles = InFiles()
    units: Units | None = None
    registry: Choice | None = None
    flag: Flag | None = None
    none: str = ""
    nested: Any = None

    @property
    def in_files(self) -> Rule | None:
        """The rule as files see it, where the word stands for None.

        >>> from coterie.config.rules import POSITIVE, optional
        >>> Option("clip", None, (float,), optional(POSITIVE), none="default").in_files.allowed
        '"default" or a number > 0'
        """
        if self.rule is None:
            return None
        # What None means, in brackets behind it, stays behind the word.
        word = ""
        if self.none:
            word = f'"{self.none}"\\1 or '
        allowed = re.sub(r"^None((?: \([^)]*\))?) or ", word, self.rule.allowed)
        return self.rule._replace(allowed=allowed)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return what files call it."""
        if self.units is not None:
            return tuple(self.units.keys)
        if not self.files.said:
            return ()
        return (self.name,)

    def parse(self, text: str) -> Any:
        """Return what a file would say in place of a text of the command line; there commas separate the entries of a list.

        Raises `InputError` for a text where only numbers are allowed.
        """
        if text == self.none:
            return text
        kinds, rule = self.kinds, self.in_files or NUMBER
        if bool in kinds and text in ("true", "false"):
            return text == "true"
        if self.units is not None:
            kinds, rule = (int,), SIZE
        for kind, made_of in _TEXTS.items():
            if kind in kinds:
                with suppress(ValueError):
                    return made_of(text)
        raise InputError(f"must be {rule.allowed}; got {text!r}")

    def read(self, key: str, value: Any) -> Any:
        """The value that a file gives under `key`."""
        if self.units is not None:
            if not SIZE.test(value):
                raise InputError(f"{key} must be {SIZE.allowed}; got {value!r}")
            return self.units.keys[key](value)
        if self.none and value == self.none:
            return None
        if self.registry is not None:
            if not isinstance(value, IN_FILES):
                return value  # an object that a Python program put there
            return self.registry.build(_table(value), key)
        if self.nested is not None and isinstance(value, Mapping):
            return build(self.nested, value, key)
        return _tuples(value)

    def spell(self, value: Any, keep: Keep | None = None) -> dict[str, Any]:
        """The entry of a file that says `value`: empty where the default says it, since TOML has no None.

        Args:
            value: of the field.
            keep: gives the name of an object that no file can hold; None: such an object is an error.
        """
        if self.units is not None:
            units = self.units.keys.items()
            (key,) = [key for key, unit in units if type(value) is unit]
            return {key: value.count}
        if not self.files.said:
            return {}
        if value is None:
            if self.none and self.default is not None:
                return {self.name: self.none}
            return {}
        if self.registry is None:
            return {self.name: plain(value, keep)}
        try:
            return {self.name: self.registry.spell(value)}
        except InputError:
            if keep is None:
                raise
            return {self.name: {"name": keep(value)}}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def options(cls: type[T]) -> type[T]:
    """A frozen dataclass that is checked when it is made: each field by its rule, then by the class's own `__post_init__`.

    Lists become tuples. Raises `InputError` that names class, field, what is allowed and what was got.

    >>> @options
    ... class Walk:
    ...     steps: Annotated[int, SIZE] = 1
    >>> Walk(steps=0)
    Traceback (most recent call last):
    coterie.base.errors.InputError: Walk.steps must be an int > 0; got 0
    """
    post_init = cls.__dict__.get("__post_init__")

    def check(self: Any) -> None:
        for option in options_of(type(self)):
            place = f"{type(self).__name__}.{option.name}"
            given = getattr(self, option.name)
            value = given
            try:
                if isinstance(value, list):
                    value = _tuple_of(value)
                value = native(value)
            except RecursionError as error:
                raise InputError(f"{place} holds itself; give values") from error
            takes_table = option.nested is not None and (
                Mapping[str, Any] in option.kinds
            )
            if option.registry is not None:
                value = _values(option.registry, value, place)
            elif takes_table and isinstance(value, Mapping):
                value = build(option.nested, value, place)
            # The dataclass is frozen: its fields can be set in this way alone.
            if value is not given:
                object.__setattr__(self, option.name, value)
            if option.rule is not None:
                obey(option.rule, value, place)
        if post_init is not None:
            post_init(self)

    if post_init is not None or not hasattr(cls, "__post_init__"):
        cls.__post_init__ = check  # type: ignore[attr-defined]
    _CHECKED.add(cls)
    return _with_spellings(dataclass(frozen=True)(cls))


def _with_spellings(cls: type[T]) -> type[T]:
    """Let a class take keywords in other spellings, and name the nearest field for a keyword that it does not have."""
    make = cls.__init__
    names = {field.name for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]

    @functools.wraps(make)
    def initialise(self: Any, *args: Any, **values: Any) -> None:
        for name in values.keys() - names:
            full_name = SPELLINGS.get(name, name)
            if full_name not in names or full_name in values:
                raise InputError(
                    f"{cls.__name__} has no field {name!r}; {_cure(name, names)}"
                )
            values[full_name] = values.pop(name)
        make(self, *args, **values)

    cls.__init__ = initialise  # type: ignore[method-assign]
    return cls


def _cure(name: str, names: set[str]) -> str:
    """Return what to write in place of a keyword that a class does not have."""
    if name in PASSES and names & {"steps", "count"}:
        return f"write {EPOCHS}"
    if WORDS.get(name) in names:
        return f"write {WORDS[name]}=..."
    return nearest(name, names)


SPELLINGS = {"optimizer": "optimiser"}
"""Fields that others spell otherwise."""


_CHECKED: set[type] = set()
_TRAVEL: dict[str, type] = {}


def wire_type(cls: type[T]) -> type[T]:
    """Let a frozen dataclass travel, as its name and the JSON of its fields.

    Raises:
        InputError: Another class travels by this name; it would be read as this one. A class that is defined anew replaces itself,
            and any class replaces one that a function defined.

    >>> import coterie as ct
    >>> from coterie.contract.wire import to_json
    >>> @ct.wire_type
    ... @ct.options
    ... class Window:
    ...     length: int = 3
    >>> to_json(Window(5))
    {'type': 'Window', 'fields': {'length': 5}}
    """
    present = _TRAVEL.get(cls.__name__, cls)
    if _place(present) != _place(cls) and "<locals>" not in present.__qualname__:
        raise InputError(
            f"the class {_place(present)} travels by the name {cls.__name__!r} already; give {_place(cls)} another name"
        )
    _TRAVEL[cls.__name__] = cls
    return cls


def _place(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def wire_types() -> Mapping[str, type]:
    """Return all dataclasses that may travel, by name."""
    return _TRAVEL


def options_of(cls: Any) -> tuple[Option, ...]:
    """The fields of a dataclass, as declared. Only `options` have rules that follow from types."""
    if cls not in _DECLARED:
        _DECLARED[cls] = _read_options(cls)
    return _DECLARED[cls]


_DECLARED: dict[Any, tuple[Option, ...]] = {}


def _read_options(cls: Any) -> tuple[Option, ...]:
    checked = not _CHECKED.isdisjoint(cls.__mro__)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError):
        if checked:
            raise
        hints = {}  # a class of the user's, whose fields have no rules
    return tuple(
        _option(f, hints.get(f.name, Any), checked)
        for f in dataclasses.fields(cls)
        if f.init
    )


def build(
    cls: Callable[..., T], table: Mapping[str, Any], where: str, *, named: str = ""
) -> T:
    """Return what `cls` makes of a table.

    Args:
        cls: options, another dataclass, or any function.
        table: values by key.
        where: begins every error.
        named: what errors call the options in place of their class, such as `run`.

    Raises:
        InputError: a key that is unknown (with the nearest spelling) or missing, or a value that is not allowed.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"{where} must be a table; got {table!r}")
    declared: tuple[Option, ...] = ()
    if dataclasses.is_dataclass(cls):
        declared = options_of(cls)
    if declared:
        known = [key for option in declared for key in option.keys]
        _refuse_unknown(table, known, where)
    else:
        _refuse_unknown(table, _parameters(cls), where)
    try:
        if declared:
            values = _read(declared, table, named or getattr(cls, "__name__", ""))
        else:
            values = _tuples(table)
        return cls(**values)
    except (InputError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error


def _refuse_unknown(
    table: Mapping[str, Any], known: list[str] | None, where: str
) -> None:
    """Raise `InputError` for a key that is not known; None: all are."""
    if known is None:
        return
    for key in table:
        if key not in known:
            cure = "it has none"
            if known:
                cure = nearest(key, known)
            raise InputError(f"{where}: unknown key {key!r}; {cure}")


def spell(value: Any, keep: Keep | None = None) -> dict[str, Any]:
    """The table that says the same as a dataclass, with all defaults written out; `build` undoes it. `keep` as for `Option.spell`."""
    table: dict[str, Any] = {}
    for option in options_of(type(value)):
        table.update(option.spell(getattr(value, option.name), keep))
    return table


def explanations(cls: type) -> dict[str, str]:
    """Return what the docstrings of a class and of its bases say of each field, under Attributes."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        section = re.search(r"^Attributes:\n((?:    .*\n|\n)+)", text + "\n", re.M)
        if section is None:
            continue
        # `name: words` or `name, name: words`, indented by 4; further lines of the words by 8.
        entry = r"^    (\w+(?:, \w+)*): (.*(?:\n        .*)*)"
        for names, words in re.findall(entry, section.group(1), re.M):
            for name in names.split(", "):
                texts[name] = " ".join(words.split())
    return texts


def _option(field: dataclasses.Field[Any], hint: Any, checked: bool) -> Option:
    """Read a field: types from its annotation, the rest from what `Annotated` adds; unless `checked`, no rule follows from types."""
    default: Any = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    plain_hint = hint
    extras: list[Any] = []
    if get_origin(hint) is Annotated:
        plain_hint, *extras = get_args(hint)
    kinds = kinds_of(plain_hint)
    files = _first(InFiles, extras) or InFiles()
    registry = next((e for e in extras if isinstance(e, Choice)), None)
    may_be_none = type(None) in get_args(plain_hint)
    if registry is not None and default is None:
        may_be_none = True

    rule = _first(Rule, extras)
    if checked and rule is None:
        rule = rule_of(hint)
    if checked and rule is None and registry is None:
        rule = _rule_of_dataclasses(kinds, may_be_none)

    # No word can mean None where the field may be that very text.
    none = ""
    may_be_the_word = str in kinds and (rule is None or rule.test(files.none))
    if may_be_none and not may_be_the_word:
        none = files.none
    return Option(
        field.name,
        default,
        kinds,
        rule=rule,
        files=files,
        units=_first(Units, extras),
        registry=registry,
        flag=_first(Flag, extras),
        none=none,
        nested=next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None),
    )


def _rule_of_dataclasses(kinds: tuple[Any, ...], may_be_none: bool) -> Rule | None:
    """The rule of a field that may be of these types, if all of them are dataclasses."""
    if not kinds or not all(map(dataclasses.is_dataclass, kinds)):
        return None
    names = " or ".join(f"{kind.__name__}(...)" for kind in kinds)
    return Rule(lambda v: isinstance(v, kinds) or (v is None and may_be_none), names)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _integers(text: str) -> int | list[int]:
    if "," not in text:
        return int(text)
    return [int(word) for word in _words(text)]


_TEXTS: Mapping[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    tuple[int, ...]: _integers,
    tuple[str, ...]: _words,
    str: str,
}
"""How a text of the command line is read, in the order in which types are tried."""


def _first(kind: type[T], extras: Iterable[Any]) -> T | None:
    return next((e for e in extras if isinstance(e, kind)), None)


def _read(
    declared: tuple[Option, ...], table: Mapping[str, Any], owner: str
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option in declared:
        present_keys = [key for key in option.keys if key in table]
        if len(present_keys) >= 2:
            raise InputError(
                f"{' and '.join(present_keys)} exclude each other; give one"
            )
        for key in present_keys:
            value = native(option.read(key, table[key]))
            if option.in_files is not None:
                place = f"{owner}.{option.name}"
                obey(option.in_files, value, place, spelled=table[key])
            values[option.name] = value
        is_needed = option.default is MISSING and option.files.said
        if is_needed and not present_keys:
            allowed = "it"
            if option.in_files is not None:
                allowed = option.in_files.allowed
            raise InputError(f"{option.name} is missing; give {allowed}")
    return values


def _parameters(cls: Callable[..., Any]) -> list[str] | None:
    """Names that `cls` can be called with; None for any."""
    names = []
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return None
        names.append(parameter.name)
    return names


def _table(value: Any) -> Any:
    """A name stands for a table that says no more."""
    if isinstance(value, str):
        return {"name": value}
    return value


def _values(registry: Choice, value: Any, where: str) -> Any:
    """Return what names and tables of a registry say, also within a tuple; objects as they are."""
    if isinstance(value, str | Mapping):
        return registry.build(_table(value), where)
    if isinstance(value, tuple) and any(
        isinstance(item, str | Mapping) for item in value
    ):
        return tuple(_values(registry, item, where) for item in value)
    return value


def _tuples(value: Any) -> Any:
    try:
        return _tuple_of(value)
    except RecursionError as error:
        raise InputError("a list holds itself; give values") from error


def _tuple_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _tuple_of(v) for k, v in value.items()}
    if isinstance(value, list):
        return tuple(_tuple_of(item) for item in value)
    return value


def plain(value: Any, keep: Keep | None = None) -> Any:
    """Return a value as a file holds it: dataclasses as tables, tuples as lists, and no key whose value is None."""
    if keep is not None and callable(value):
        return keep(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return spell(value, keep)
    if isinstance(value, Mapping):
        return {k: plain(v, keep) for k, v in value.items() if v is not None}
    if isinstance(value, tuple | list):
        return [plain(item, keep) for item in value]
    return value
