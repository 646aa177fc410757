"""Hooks: the public attributes that a base class declares, each with what it may be, as its annotation says.

An object of the user's is checked here, once, whatever it is: a method, a sampler, an attack, a filter, a callback or an engine. What
resembles a hook and is none is misspelt, and would be ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from coterie.base.errors import InputError, cut
from coterie.config.rules import Rule, obey, rule_of

__all__ = ["Kind", "article", "check_hooks", "check_object", "hooks_of", "overrides"]

_ALIKE = 0.8
"""From this `difflib` ratio on, an attribute counts as a misspelt hook."""


class Kind(NamedTuple):
    """What a base class says, as `_kind`, of the objects that have its hooks.

    Attributes:
        name: Name in words, such as `engine`.
        example: One of these objects, as a user would write it.
        derived: True if its class must derive from the base; else any class is taken that has what it needs of the hooks.
    """

    name: str
    example: str
    derived: bool = True


def article(noun: str) -> str:
    """The noun with its article.

    >>> article("engine")
    'an engine'
    """
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def hooks_of(base: type[Any]) -> Mapping[str, Rule | None]:
    """The hooks that a class declares, by name, with what each may be.

    >>> class Base:
    ...     keeps_validation: bool = False
    ...     def check(self, names): ...
    >>> {name: rule.allowed for name, rule in hooks_of(Base).items()}
    {'keeps_validation': 'true or false', 'check': 'a function (names)'}
    """
    if base not in _HOOKS:
        hints = typing.get_type_hints(base, include_extras=True)
        listed = (pair for cls in reversed(base.__mro__[:-1]) for pair in vars(cls).items())
        declared = {name: value for name, value in listed if not name.startswith("_")}
        _HOOKS[base] = {name: _rule(value, hints.get(name)) for name, value in declared.items()}
    return _HOOKS[base]


_HOOKS: dict[type[Any], Mapping[str, Rule | None]] = {}


def _rule(declared: Any, hint: Any) -> Rule | None:
    if isinstance(declared, property):
        return rule_of(typing.get_type_hints(declared.fget, include_extras=True).get("return"))
    if not callable(declared):
        return rule_of(hint)
    names = list(inspect.signature(declared).parameters)[1:]
    return Rule(lambda given: _takes(given, len(names)), f"a function ({', '.join(names)})")


def _takes(function: Any, count: int) -> bool:
    """Whether something can be called with so many arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # nothing is known of how it is called
        return True
    return True


def check_hooks(candidate: Any, base: type[Any]) -> None:
    """Raise `InputError` if an object, or a class of such objects, cannot serve as `base`, or would do nothing.

    Public attributes that resemble a hook but are none are refused; fields of a dataclass are the user's own.

    >>> class Base:
    ...     _kind = Kind("callback", "EarlyStopping(patience=3)")
    ...     keeps_validation: bool = False
    >>> class Mine(Base):
    ...     keep_validation = True
    >>> check_hooks(Mine(), Base)
    Traceback (most recent call last):
    coterie.base.errors.InputError: Mine.keep_validation is not a hook of a callback; did you mean keeps_validation?
    """
    cls = candidate if isinstance(candidate, type) else type(candidate)
    class_name, kind, hooks = cls.__name__, article(base._kind.name), hooks_of(base)
    if base._kind.derived and not issubclass(cls, base):
        example = f"give one such as {base._kind.example}, of a class derived from {base.__name__}"
        raise InputError(f"{cut(candidate)} is not {kind}; {example}")
    fields = {f.name for f in dataclasses.fields(candidate)} if dataclasses.is_dataclass(candidate) else set()
    for name in dir(candidate):
        if not (name.startswith("_") or name in hooks or name in fields):
            close = difflib.get_close_matches(name, hooks, n=1, cutoff=_ALIKE)
            if close:
                raise InputError(f"{class_name}.{name} is not a hook of {kind}; did you mean {''.join(close)}?")
    required: Collection[str] = getattr(base, "__abstractmethods__", ())
    missing = [name for name in sorted(required) if not (hasattr(candidate, name) and overrides(candidate, base, name))]
    if missing:
        raise InputError(
            f"{class_name} has no {' and no '.join(missing)}, so it is not {kind}{_meant(missing, dir(candidate))}"
        )
    functions = [name for name in hooks if inspect.isfunction(getattr(base, name))]
    if not required and not any(hasattr(candidate, name) and overrides(candidate, base, name) for name in functions):
        hint = f"define {', '.join(functions[:-1])} or {functions[-1]}"
        raise InputError(f"{class_name} has no hook of {kind} and would do nothing; {hint}")
    for name, rule in hooks.items():
        if cls is not candidate and rule is not None and hasattr(candidate, name):
            obey(rule, getattr(candidate, name), f"{class_name}.{name}")


def _meant(missing: Sequence[str], names: Sequence[str]) -> str:
    """A half-sentence about a name that one of the missing hooks may stand under."""
    public_names = [name for name in names if not name.startswith("_")]
    for hook in missing:
        for close in difflib.get_close_matches(hook, public_names, n=2, cutoff=0.6):
            if close != hook:
                return f"; rename {close} to {hook}"
    return ""


def overrides(candidate: Any, base: type[Any], hook: str) -> bool:
    """Return True if the class of an object, or a class, defines `hook` itself."""
    return getattr(candidate if isinstance(candidate, type) else type(candidate), hook, None) is not getattr(base, hook)


def check_object(candidate: Any, base: type[Any]) -> None:
    """Let an object serve as `base`: its class gets the default of each hook that it lacks, and counts as derived from `base`.

    Raises `InputError` as `check_hooks` does, and for a class in place of an object.
    """
    if isinstance(candidate, type):
        raise InputError(f"{candidate!r} is a class and not {article(base._kind.name)}; call it")
    check_hooks(candidate, base)
    cls = type(candidate)
    if not isinstance(candidate, base):
        for name in hooks_of(base):
            if not hasattr(candidate, name):
                setattr(cls, name, inspect.getattr_static(base, name))
        base.register(cls)
