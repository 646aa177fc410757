"""The errors that a user sees: each is one sentence that names the place and the cure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

__all__ = ["CoterieError", "InputError", "RunError", "check_field", "is_number", "nearest", "require"]


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
