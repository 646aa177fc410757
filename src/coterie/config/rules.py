"""Rules: what a value may be, as a test and in words, which hooks an object may have, and which keywords a function has.

A rule follows from the type where none is given (`bool`, `int`, `float`, `str`). Hooks are the public attributes that a base
class declares; its annotation says what each may be. An object of the user's is checked here, once: a method, a sampler, an
attack, a filter, a callback or an engine. What resembles a hook and is none is misspelt, and would be ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
)

from coterie.base.errors import InputError, cut, nearest

P = ParamSpec("P")
T = TypeVar("T")


def native(value: Any) -> Any:
    """Return a number of numpy as Python's, also within tuples and mappings; everything else as it is.

    >>> native((True, None, {"a": 1}))
    (True, None, {'a': 1})
    """
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(native, value))
    if type(value) is dict:
        return {key: native(item) for key, item in value.items()}
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    return value


def is_number(value: Any) -> bool:
    """Return True if `value` is a finite int or float (a bool is neither)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


class Rule(NamedTuple):
    """A test of a value and, in words that follow "must be", what it allows; `words` are the texts among which one chooses."""

    test: Callable[[Any], bool]
    allowed: str
    words: tuple[str, ...] = ()


LARGEST = 2**63
"""Ints below this fit into a tensor; a count beyond it would never end."""

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
BETAS = Rule(
    lambda v: isinstance(v, tuple) and len(v) == 2 and all(map(BELOW_ONE.test, v)),
    "two numbers in [0, 1)",
)


def _are_names(value: Any) -> bool:
    names = value
    if isinstance(value, str):
        names = (value,)
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
    word = "None"
    if none:
        word = f"None ({none})"
    allowed = f"{word} or {rule.allowed}"
    return Rule(lambda v: v is None or rule.test(v), allowed, rule.words)


def list_of(rule: Rule, allowed: str, *, empty: bool = False) -> Rule:
    """The rule that a value is a tuple whose entries obey `rule`; `allowed` says it in words."""
    return Rule(
        lambda v: (
            isinstance(v, tuple) and (empty or bool(v)) and all(map(rule.test, v))
        ),
        allowed,
    )


_IMPLIED: Mapping[Any, Rule] = {
    bool: FLAG,
    int: INTEGER,
    float: NUMBER,
    str: Rule(lambda v: isinstance(v, str), "a text"),
}


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that a value may have, without None."""
    parts = (hint,)
    if get_origin(hint) in (typing.Union, types.UnionType):
        parts = get_args(hint)
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
    if len(kinds) != 1:
        return None
    implied = _IMPLIED.get(kinds[0])
    may_be_none = kinds != (hint,)
    if implied is not None and may_be_none:
        implied = optional(implied)
    return implied


def obey(rule: Rule, value: Any, called: str, spelled: Any = None) -> None:
    """Raise `InputError` unless a value, which is called so, obeys the rule; a file may have spelled it otherwise."""
    if type(value) is int and abs(value) >= LARGEST:
        raise InputError(f"{called} must be below 2**63; got {cut(value)}")
    try:
        allowed = rule.test(value)
    except Exception:  # comparing fails in the value's own code, as that of arrays does
        allowed = False
    if allowed:
        return
    if spelled is None:
        spelled = value
    hint = ""
    if isinstance(value, str):
        for word in difflib.get_close_matches(value, rule.words, n=1, cutoff=0.5):
            hint = f"; did you mean {word!r}?"
    raise InputError(f"{called} must be {rule.allowed}; got {cut(spelled)}{hint}")


_ALIKE = 0.8
"""From this `difflib` ratio on, an attribute counts as a misspelt hook."""


class Kind(NamedTuple):
    """The description, as `_kind`, that a base class gives of objects with its hooks.

    Attributes:
        name: Name in words, such as `engine`.
        example: One of these objects, as a user would write it.
    """

    name: str
    example: str


def article(noun: str) -> str:
    """The noun with its article.

    >>> article("engine")
    'an engine'
    """
    if noun[0] in "aeiou":
        return f"an {noun}"
    return f"a {noun}"


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
        hooks: dict[str, Rule | None] = {}
        # From the most general class on: what a derived one says of a hook replaces it.
        for cls in reversed(base.__mro__[:-1]):
            for name, value in vars(cls).items():
                if not name.startswith("_"):
                    hooks[name] = _rule(value, hints.get(name))
        _HOOKS[base] = hooks
    return _HOOKS[base]


_HOOKS: dict[type[Any], Mapping[str, Rule | None]] = {}


def _rule(declared: Any, hint: Any) -> Rule | None:
    if isinstance(declared, property):
        return rule_of(
            typing.get_type_hints(declared.fget, include_extras=True).get("return")
        )
    if not callable(declared):
        return rule_of(hint)
    names = list(inspect.signature(declared).parameters)[1:]
    return Rule(
        lambda value: _takes(value, len(names)), f"a function ({', '.join(names)})"
    )


def _takes(function: Any, count: int) -> bool:
    """Return True if something can be called with so many arguments."""
    of_class = getattr(function, "__func__", None)
    if inspect.isfunction(of_class):
        return _known_to_take(of_class, count + 1)
    return _can_bind(function, count)


def _can_bind(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # nothing is known of how it is called
        return True
    return True


# A run asks the same of each method and engine that it builds. Others than functions may have no hash.
_known_to_take = functools.lru_cache(maxsize=256)(_can_bind)


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
    cls = _class_of(candidate)
    class_name, kind, hooks = cls.__name__, article(base._kind.name), hooks_of(base)
    if not issubclass(cls, base):
        example = f"give one such as {base._kind.example}, of a class derived from ct.{base.__name__}"
        raise InputError(f"{cut(candidate)} is not {kind}; {example}")
    fields: set[str] = set()
    if dataclasses.is_dataclass(candidate):
        fields.update(field.name for field in dataclasses.fields(candidate))
    for name in dir(candidate):
        if not (name.startswith("_") or name in hooks or name in fields):
            close = difflib.get_close_matches(name, hooks, n=1, cutoff=_ALIKE)
            if close:
                raise InputError(
                    f"{class_name}.{name} is not a hook of {kind}; did you mean {''.join(close)}?"
                )
    required: Collection[str] = getattr(base, "__abstractmethods__", ())
    missing = [
        name for name in sorted(required) if not overrides(candidate, base, name)
    ]
    if missing:
        raise InputError(
            f"{class_name} has no {' and no '.join(missing)}, so it is not {kind}{_meant(missing, dir(candidate))}"
        )
    functions = [name for name in hooks if inspect.isfunction(getattr(base, name))]
    if not required and not any(overrides(candidate, base, name) for name in functions):
        hint = f"define {', '.join(functions[:-1])} or {functions[-1]}"
        raise InputError(
            f"{class_name} has no hook of {kind} and would do nothing; {hint}"
        )
    stored = getattr(candidate, "__dict__", {})
    for name, rule in hooks.items():
        # What comes from the base obeys its rule.
        differs = name in stored or getattr(cls, name, None) is not getattr(base, name)
        if cls is not candidate and rule is not None and differs:
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
    return getattr(_class_of(candidate), hook, None) is not getattr(base, hook)


def _class_of(candidate: Any) -> type[Any]:
    """A class itself, or that of an object."""
    if isinstance(candidate, type):
        return candidate
    return type(candidate)


def check_object(candidate: Any, base: type[Any]) -> None:
    """Raise `InputError` if an object cannot serve as `base`, as `check_hooks` does, or is a class in place of an object."""
    if isinstance(candidate, type):
        name = candidate.__name__
        raise InputError(
            f"{name} is a class and not {article(base._kind.name)}; write {name}()"
        )
    check_hooks(candidate, base)


# ---- keywords that a function does not have


WORDS = {
    "learning_rate": "lr",
    "bs": "batch_size",
    "wd": "weight_decay",
    "proximal_mu": "mu",
    "min_delta": "smallest",
    "fraction": "clients_per_round",
    "fraction_fit": "clients_per_round",
    "num_rounds": "rounds",
    "n_rounds": "rounds",
    "num_workers": "workers",
    "strategy": "method",
    "algorithm": "method",
    "data": "clients",
    "criterion": "loss",
    "loss_fn": "loss",
    "optimizer": "optimiser",
    "server_learning_rate": "lr",
    "server_lr": "lr",
}
"""Names that other libraries have for an argument or a field of coterie."""

SEVERAL_WORDS = {
    "random_state": ("seed", "seeds"),
    "seed": ("seeds",),
    "n_jobs": ("jobs", "workers"),
    "verbose": ("progress", "callbacks"),
}
"""The same for names that mean one thing in `fit` and another in `compare`: the first that a call has is meant."""

SERVER_RATES = ("server_learning_rate", "server_lr")
"""Names of the learning rate of a method's server, which is no setting of local training."""
RATE_OF_METHOD = {
    "method": "write method=ct.FedAvg(lr=...)",
    "methods": "write methods=[ct.FedAvg(lr=...)]",
}

PASSES = ("epochs", "num_epochs", "local_epochs")
"""Names that others have for passes over the rows, of which a round has some."""
EPOCHS = "steps=ct.Epochs(...)"
OF_DATA = {
    "label": "ct.data.from_frames(frames, label=...)",
    "split": "ct.data.from_dataset(dataset, split=...)",
    "task": "ct.data.from_tensors(tensors, task=...)",
}
"""Where words about rows belong, which others give to the call that trains."""


def explain_keywords(**settings: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function end in one sentence with the line to write where it is called with arguments that it does not take.

    Args:
        settings: Classes of settings whose fields may be meant, beside those of its `settings` and `engine`, by what they are given as.

    >>> from coterie.config.local import LocalSGD
    >>> @explain_keywords(local=LocalSGD)
    ... def train(method, rounds=1, local=LocalSGD()):
    ...     return rounds
    >>> train("fedavg", lr=0.1)
    Traceback (most recent call last):
    coterie.base.errors.InputError: train has no argument 'lr'; write local=ct.LocalSGD(lr=...)
    >>> train(rounds=2)
    Traceback (most recent call last):
    coterie.base.errors.InputError: train: missing a required argument: 'method'; write train(method, ...)
    """

    def explain(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name not in signature.parameters:
                    raise InputError(
                        f"{function.__name__} has no argument {name!r}; {_cure(name, signature, settings)}"
                    )
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                order = _order_of(signature)
                raise InputError(
                    f"{function.__name__}: {error}; write {function.__name__}({order})"
                ) from None
            return function(*args, **kwargs)

        return call

    return explain


def _order_of(signature: inspect.Signature) -> str:
    """The arguments that have no default, in their order; `...` where others may follow."""
    needed = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
    ]
    return ", ".join([*needed, "..."])


def _cure(name: str, signature: inspect.Signature, settings: Mapping[str, type]) -> str:
    if name in PASSES and "local" in settings:
        return f"write local=ct.LocalSGD({EPOCHS}); rounds=... says how often clients and server talk"
    for argument, cure in RATE_OF_METHOD.items():
        if name in SERVER_RATES and argument in signature.parameters:
            return f"{cure}, or the same of another method"
    for word in SEVERAL_WORDS.get(name, (WORDS.get(name, name),)):
        place = _place_of(word, signature, settings)
        if place is not None:
            return f"write {place}"
    return nearest(name, signature.parameters)


def _place_of(
    word: str, signature: inspect.Signature, settings: Mapping[str, type]
) -> str | None:
    """Return how a call takes what a word names, as itself or within its settings; None if it does not."""
    if word in signature.parameters:
        return f"{word}=..."
    if word in OF_DATA and "clients" in signature.parameters:
        return f"clients={OF_DATA[word]}"
    classes = dict(settings)
    for key, parameter in signature.parameters.items():
        if key in ("settings", "engine"):
            classes[key] = type(parameter.default)
    for key, cls in classes.items():
        if any(option.name == word for option in dataclasses.fields(cls)):
            place = "a method's local"
            if key in signature.parameters:
                place = key
            return f"{place}=ct.{cls.__name__}({word}=...)"
    return None
