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
    "cut",
    "is_number",
    "nearest",
    "plain",
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
    word = word[:100]  # the time to compare grows with the square of the length
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    known = f"allowed: {', '.join(allowed)}"
    return f"did you mean {close[0]!r}? ({known})" if close else known


def plain(text: str, most: int = 300) -> str:
    """A text of another party as one line that any terminal and file can take: at most `most` characters, none of them for control.

    >>> plain("a" + chr(27) + "[2J" + chr(10) + "b")
    'a [2J b'
    """
    shown = "".join(c if c.isprintable() else " " for c in text[: 4 * most])
    shown = shown.strip() if shown != text else text
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def cut(value: Any, most: int = 100) -> str:
    """`value` as the text of an error, cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


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


def _are_names(value: Any) -> bool:
    names = (value,) if isinstance(value, str) else value
    return isinstance(names, tuple | list) and bool(names) and all(isinstance(n, str) and n for n in names)


class Rules:
    """What fields of methods usually allow."""

    POSITIVE: Rule = (lambda v: is_number(v) and v > 0, "a number > 0")
    NOT_NEGATIVE: Rule = (lambda v: is_number(v) and v >= 0, "a number >= 0")
    COUNT: Rule = (lambda v: type(v) is int and v >= 0, "an int >= 0")
    SIZE: Rule = (lambda v: type(v) is int and v > 0, "an int > 0")
    OPTIONAL_SIZE: Rule = (lambda v: v is None or (type(v) is int and v > 0), "None (all rows) or an int > 0")
    FLAG: Rule = (lambda v: isinstance(v, bool), "true or false")
    SHARE: Rule = (lambda v: is_number(v) and 0 < v <= 1, "a number in (0, 1]")
    NAMES: Rule = (_are_names, "a client's name, or several names")
    TARGETS: Rule = (_are_names, '"all", a client\'s name, or several names')
    BETAS: Rule = (
        lambda v: isinstance(v, tuple | list) and len(v) == 2 and all(is_number(b) and 0 <= b < 1 for b in v),
        "two numbers in [0, 1)",
    )

    @staticmethod
    def one_of(*words: str) -> Rule:
        """The rule that a value is one of `words`."""
        return (lambda v: v in words, " | ".join(words))


def clients_named(owner: object, field: str, everyone: tuple[str, ...], *, everybody: str = "") -> tuple[str, ...]:
    """The clients that a field (`Rules.NAMES`, `Rules.TARGETS`) names, sorted; all of them for the word `everybody`.

    Raises `InputError` for one that does not exist.

    >>> from types import SimpleNamespace
    >>> clients_named(SimpleNamespace(targets=("b", "a")), "targets", ("a", "b", "c"))
    ('a', 'b')
    """
    given = getattr(owner, field)
    chosen = (given,) if isinstance(given, str) else tuple(given)
    if chosen == (everybody,):
        return everyone
    for name in sorted(set(chosen)):
        if name not in everyone:
            raise InputError(
                f"{type(owner).__name__}.{field} names {name!r}, which is not a client; {nearest(name, everyone)}"
            )
    return tuple(sorted(set(chosen)))


def check_fields(owner: object, **rules: tuple[Any, ...]) -> None:
    """Check the fields of a dataclass by name, e.g. `check_fields(self, lr=Rules.POSITIVE)`.

    >>> from types import SimpleNamespace
    >>> check_fields(SimpleNamespace(lr=-1), lr=Rules.POSITIVE)
    Traceback (most recent call last):
    coterie.core.errors.InputError: SimpleNamespace.lr must be a number > 0; got -1
    """
    for field, rule in rules.items():
        test, allowed = rule[0], rule[1]
        value = getattr(owner, field)
        check_field(owner, field, value, test(value), allowed)
