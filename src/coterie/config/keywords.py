"""Keyword arguments that a function does not have: the sentence says which line to write."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from coterie.base.errors import InputError, nearest
from coterie.config.local import LocalSGD
from coterie.config.schema import options_of

P = ParamSpec("P")
T = TypeVar("T")

WORDS = {
    "learning_rate": "lr",
    "num_rounds": "rounds",
    "n_rounds": "rounds",
    "num_workers": "workers",
    "strategy": "method",
    "algorithm": "method",
    "data": "clients",
    "criterion": "loss",
    "loss_fn": "loss",
    "optimizer": "optimiser",
}
"""Names that other libraries have for an argument or a field of coterie."""
PASSES = ("epochs", "num_epochs", "local_epochs")
"""Names that others have for passes over the rows, of which a round has some."""


def explain_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function end in one sentence with the line to write where it is called with a keyword that it does not have.

    A field of its settings, of its engine or of local training is found there.

    >>> @explain_keywords
    ... def train(method, rounds=1, local=LocalSGD()):
    ...     return rounds
    >>> train("fedavg", lr=0.1)
    Traceback (most recent call last):
    coterie.base.errors.InputError: train has no argument 'lr'; write local=ct.LocalSGD(lr=...)
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in signature.parameters:
                raise InputError(f"{function.__name__} has no argument {name!r}; {_cure(name, signature)}")
        return function(*args, **kwargs)

    return call


def _cure(name: str, signature: inspect.Signature) -> str:
    word = WORDS.get(name, name)
    if name in PASSES:
        return "write local=ct.LocalSGD(steps=ct.Epochs(...)); rounds=... says how often clients and server talk"
    if word in signature.parameters:
        return f"write {word}=..."
    defaults = {key: p.default for key, p in signature.parameters.items() if key in ("settings", "engine")}
    classes: dict[str, type] = {"local": LocalSGD, **{key: type(value) for key, value in defaults.items()}}
    for key, cls in classes.items():
        if any(option.name == word for option in options_of(cls)):
            place = key if key in signature.parameters else "a method's local"
            return f"write {place}=ct.{cls.__name__}({word}=...)"
    return nearest(name, signature.parameters)
