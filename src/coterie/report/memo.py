"""Answers that an object gives once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def cache_answers(
    method: Callable[Concatenate[Owner, Arguments], Answer],
) -> Callable[Concatenate[Owner, Arguments], Answer]:
    """Let an object that never changes keep the answers of `method`, by arguments."""
    name = f"_answers_of_{method.__name__}"

    @wraps(method)
    def answer(
        owner: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Answer:
        answers = vars(owner).setdefault(name, {})
        key = (args, *kwargs.items())
        if key not in answers:
            answers[key] = method(owner, *args, **kwargs)
        return cast("Answer", answers[key])

    return answer
