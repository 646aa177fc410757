"""Rules: what a value may be, as a test and in words. One follows from the type where none is given (`bool`, `int`, `float`, `str`)."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, get_args, get_origin

from coterie.base.errors import InputError, cut, is_number

__all__ = [
    "BELOW_ONE",
    "BETAS",
    "COUNT",
    "FLAG",
    "NAMES",
    "NOT_NEGATIVE",
    "NUMBER",
    "POSITIVE",
    "SHARE",
    "SIZE",
    "TARGETS",
    "TEXT",
    "Rule",
    "kinds_of",
    "list_of",
    "obey",
    "one_of",
    "optional",
    "rule_of",
]


class Rule(NamedTuple):
    """A test of a value and, in words that follow "must be", what it allows; `words` are the texts among which one chooses."""

    test: Callable[[Any], bool]
    allowed: str
    words: tuple[str, ...] = ()


POSITIVE = Rule(lambda v: is_number(v) and v > 0, "a number > 0")
NOT_NEGATIVE = Rule(lambda v: is_number(v) and v >= 0, "a number >= 0")
NUMBER = Rule(is_number, "a number")
BELOW_ONE = Rule(lambda v: is_number(v) and 0 <= v < 1, "in [0, 1)")
SHARE = Rule(lambda v: is_number(v) and 0 < v <= 1, "a number in (0, 1]")
COUNT = Rule(lambda v: type(v) is int and v >= 0, "an int >= 0")
SIZE = Rule(lambda v: type(v) is int and v > 0, "an int > 0")
INTEGER = Rule(lambda v: type(v) is int, "an int")
FLAG = Rule(lambda v: isinstance(v, bool), "true or false")
TEXT = Rule(lambda v: isinstance(v, str) and bool(v), "a text")
BETAS = Rule(lambda v: isinstance(v, tuple) and len(v) == 2 and all(map(BELOW_ONE.test, v)), "two numbers in [0, 1)")


def _are_names(value: Any) -> bool:
    names = (value,) if isinstance(value, str) else value
    return isinstance(names, tuple) and bool(names) and all(map(TEXT.test, names))


NAMES = Rule(_are_names, "a client's name, or several names")
TARGETS = Rule(_are_names, '"all", a client\'s name, or several names')


def one_of(*words: str) -> Rule:
    """The rule that a value is one of `words`."""
    return Rule(lambda v: v in words, " | ".join(words), words)


def optional(rule: Rule, none: str = "") -> Rule:
    """The rule that a value is None, which means `none`, or obeys `rule`.

    >>> optional(SIZE, "all rows").allowed
    'None (all rows) or an int > 0'
    """
    allowed = f"None{f' ({none})' if none else ''} or {rule.allowed}"
    return Rule(lambda v: v is None or rule.test(v), allowed, rule.words)


def list_of(rule: Rule, allowed: str, *, empty: bool = False) -> Rule:
    """The rule that a value is a tuple whose entries obey `rule`; `allowed` says it in words."""
    return Rule(lambda v: isinstance(v, tuple) and (empty or bool(v)) and all(map(rule.test, v)), allowed)


_IMPLIED: Mapping[Any, Rule] = {
    bool: FLAG,
    int: INTEGER,
    float: NUMBER,
    str: Rule(lambda v: isinstance(v, str), "a text"),
}


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that a value may have, without None."""
    parts = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(p for p in parts if p is not type(None))


def rule_of(hint: Any) -> Rule | None:
    """The rule that stands in an annotation, or follows from its type.

    >>> rule_of(Annotated[int, SIZE]).allowed, rule_of(float | None).allowed
    ('an int > 0', 'None or a number')
    """
    if get_origin(hint) is ClassVar:
        (hint,) = get_args(hint)
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        for extra in extras:
            if isinstance(extra, Rule):
                return extra
    kinds = kinds_of(hint)
    implied = _IMPLIED.get(kinds[0]) if len(kinds) == 1 else None
    return implied if implied is None or kinds == (hint,) else optional(implied)


def obey(rule: Rule, value: Any, called: str, spelled: Any = None) -> None:
    """Raise `InputError` unless a value, which is called so, obeys the rule; a file may have spelled it otherwise."""
    if not rule.test(value):
        close = difflib.get_close_matches(value, rule.words, n=1, cutoff=0.5) if isinstance(value, str) else []
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InputError(f"{called} must be {rule.allowed}; got {cut(value if spelled is None else spelled)}{hint}")
