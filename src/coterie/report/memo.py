"""Answers that an object gives once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def remembered(
    method: Callable[Concatenate[Owner, Arguments], Answer],
) -> Callable[Concatenate[Owner, Arguments], Answer]:
    """A method whose answers its object keeps, by arguments: for objects that never change."""
    name = f"_remembered_{method.__name__}"

    @wraps(method)
    def answer(owner: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        answers = vars(owner).setdefault(name, {})
        key = (args, *kwargs.items())
        if key not in answers:
            answers[key] = method(owner, *args, **kwargs)
        found: Answer = answers[key]
        return found

    return answer
