"""The errors that a user sees: each is one sentence that names the place and the cure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from typing import Any

__all__ = [
    "CoterieError",
    "InputError",
    "Rule",
    "Rules",
    "RunError",
    "check_field",
    "check_fields",
    "is_number",
    "nearest",
    "require",
]


class CoterieError(Exception):
    """Base of all errors that coterie raises on purpose."""


class InputError(CoterieError, ValueError):
    """Bad input of any kind, found before work starts. The command ends with exit status 2."""


class RunError(CoterieError, RuntimeError):
    """A run that cannot go on; what was saved stays. The command ends with exit status 1."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A half-sentence that helps to spell `word`.

    >>> nearest("fedagv", ["fedavg", "local"])
    "did you mean 'fedavg'? (allowed: fedavg, local)"
    """
    allowed = sorted(allowed)
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}(allowed: {', '.join(allowed)})"


def require(condition: bool, sentence: str) -> None:
    """Raise `InputError(sentence)` unless `condition` holds."""
    if not condition:
        raise InputError(sentence)


def is_number(value: Any) -> bool:
    """Whether `value` is a finite int or float (a bool is neither)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_field(owner: object, field: str, value: Any, good: bool, allowed: str) -> None:
    """Raise `InputError` naming the class, the field, what is allowed and what was got, unless `good`."""
    require(good, f"{type(owner).__name__}.{field} must be {allowed}; got {value!r}")


Rule = tuple[Callable[[Any], bool], str]
"""A test of a value and, in words, what it allows."""


class Rules:
    """What fields of methods usually allow."""

    POSITIVE: Rule = (lambda v: is_number(v) and v > 0, "a number > 0")
    NOT_NEGATIVE: Rule = (lambda v: is_number(v) and v >= 0, "a number >= 0")
    COUNT: Rule = (lambda v: type(v) is int and v >= 0, "an int >= 0")
    SIZE: Rule = (lambda v: type(v) is int and v > 0, "an int > 0")
    OPTIONAL_SIZE: Rule = (lambda v: v is None or (type(v) is int and v > 0), "None (all rows) or an int > 0")
    FLAG: Rule = (lambda v: isinstance(v, bool), "true or false")

    @staticmethod
    def one_of(*words: str) -> Rule:
        """The rule that a value is one of `words`."""
        return (lambda v: v in words, " | ".join(words))


def check_fields(owner: object, **rules: Rule) -> None:
    """Check the fields of a dataclass by name, e.g. `check_fields(self, lr=Rules.POSITIVE)`.

    >>> from types import SimpleNamespace
    >>> check_fields(SimpleNamespace(lr=-1), lr=Rules.POSITIVE)
    Traceback (most recent call last):
    coterie.core.errors.InputError: SimpleNamespace.lr must be a number > 0; got -1
    """
    for field, (test, allowed) in rules.items():
        value = getattr(owner, field)
        check_field(owner, field, value, test(value), allowed)
