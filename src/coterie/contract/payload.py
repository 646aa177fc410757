"""What the fields of a task's payload may be, as its annotations say: what a site asks before it answers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from torch import Tensor

from coterie.contract.task import Holds, Task


class PayloadField(NamedTuple):
    """A field of a payload: whether it is a tensor, what it holds as one, whether it may be None, and whether it must be sent."""

    tensor: bool
    holds: Holds | None
    optional: bool
    needed: bool


def _payload_field(hint: Any, required: bool) -> PayloadField:
    alternatives: tuple[Any, ...] = (hint,)
    if get_origin(hint) in (Union, UnionType):
        alternatives = get_args(hint)
    kinds: list[Any] = []
    holds: list[Holds] = []
    for alternative in alternatives:
        if get_origin(alternative) is Annotated:
            alternative, *notes = get_args(alternative)
            holds += [note for note in notes if isinstance(note, Holds)]
        kinds.append(alternative)
    return PayloadField(
        tensor=Tensor in kinds,
        holds=next(iter(holds), None),
        optional=NoneType in kinds,
        needed=required,
    )


@functools.cache
def payload_fields(task: Task[Any]) -> Mapping[str, PayloadField]:
    """Return what fields of the payload may be, by name."""
    hints = get_type_hints(task.function, include_extras=True)
    parameters = list(inspect.signature(task.function).parameters.values())[1:]
    return {
        p.name: _payload_field(hints.get(p.name), p.default is p.empty)
        for p in parameters
    }
