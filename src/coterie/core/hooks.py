"""Hooks: the public attributes that a base class declares. One that resembles a hook and is none is misspelt, and would be ignored."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from coterie.core.errors import require

__all__ = ["hooks_of", "refuse_misspelt"]

_ALIKE = 0.8
"""From this `difflib` ratio on, an attribute counts as a misspelt hook."""


def hooks_of(base: type[Any]) -> list[str]:
    """Names of the hooks that a class declares.

    >>> class Base:
    ...     keeps_validation = False
    >>> hooks_of(Base)
    ['keeps_validation']
    """
    return [name for name in vars(base) if not name.startswith("_")]


def refuse_misspelt(given: object, base: type[Any], kind: str) -> None:
    """Raise `InputError` if a public attribute resembles a hook of `base` but is none; fields of a dataclass are the user's own.

    >>> class Base:
    ...     keeps_validation = False
    >>> class Mine(Base):
    ...     keep_validation = True
    >>> refuse_misspelt(Mine(), Base, "a callback")
    Traceback (most recent call last):
    coterie.core.errors.InputError: Mine.keep_validation is not a hook of a callback; did you mean keeps_validation?
    """
    hooks = hooks_of(base)
    fields = {f.name for f in dataclasses.fields(given)} if dataclasses.is_dataclass(given) else set()
    for name in dir(given):
        if not (name.startswith("_") or name in hooks or name in fields):
            close = difflib.get_close_matches(name, hooks, n=1, cutoff=_ALIKE)
            require(not close, f"{type(given).__name__}.{name} is not a hook of {kind}; did you mean {''.join(close)}?")
