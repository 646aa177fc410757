"""The requests that a method may send to where rows are: each task, what its payload may hold, and about how many models a round asks.

A method and its sampler declare that as `tasks`. A site makes its allow-list and its budget from the declarations of the plan it has
approved (`coterie.sites.allowed`), and the contract suite measures that a run asks all of it and nothing beside it. In one process a
method without declarations runs; a site refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.config.local import Schedule
from coterie.contract.down import is_rounded
from coterie.contract.payload import payload_fields
from coterie.contract.task import Holds, Task
from coterie.contract.wire import PerClient, tensor_of


class Among:
    """Any of these values of a field.

    >>> Among("train", "test").values
    ('train', 'test')
    """

    def __init__(self, *values: Any) -> None:
        self.values = values


@dataclass(frozen=True)
class Asks:
    """A task that a method asks.

    Attributes:
        task: what is asked.
        models: about how many different models a round asks one client at most; a function of the number of clients where it depends
            on that.
        values: what fields that are no tensors hold: a value, `Among` several, a `range` of numbers, or a `Schedule`, which allows its
            rates. A field that is not named here holds the setting of that name of the method or sampler.
        rounds: in how many rounds of a run it is asked at most; None: in every round.
    """

    task: Task[Any]
    models: int | Callable[[int], int] = 1
    values: Mapping[str, Any] = field(default_factory=dict)
    rounds: int | None = None

    def most_models(self, clients: int) -> int:
        """Return about how many different models a round asks one of so many clients at most."""
        if callable(self.models):
            return self.models(clients)
        return self.models


def asks(
    task: Task[Any],
    models: int | Callable[[int], int] = 1,
    *,
    rounds: int | None = None,
    **values: Any,
) -> Asks:
    """Declare a task that a method asks; the arguments are the attributes of `Asks`."""
    return Asks(task, models, values, rounds)


def as_many(names: Any) -> Callable[[int], int]:
    """Return how many clients a setting names, as a function of their number: "all", one name, or several."""
    if names in ("all", ("all",), ["all"]):
        return lambda clients: clients
    if isinstance(names, str):
        return lambda clients: 1
    return lambda clients: len(names)


class Limits(NamedTuple):
    """The dimensions that are allowed at a site.

    Attributes:
        model, parameters, classes: d + b, d and C of the plan's model.
        clients: clients of the plan.
        dtype: type of the numbers of the model.
        rounds: number of rounds of the plan.
        features: inputs of the model's last layer, where that is linear.
        down: type of the numbers of models as the plan has them sent (`contract.down`); None: `dtype`.
    """

    model: int
    parameters: int
    classes: int
    clients: int
    dtype: torch.dtype
    rounds: int
    features: int = 0
    down: torch.dtype | None = None

    def dtype_of(self, holds: Holds) -> torch.dtype:
        """Return the type of the numbers of a tensor that is declared so."""
        if self.down is not None and is_rounded(holds):
            return self.down
        return holds.dtype or self.dtype


def declarations(owner: Any) -> dict[str, tuple[Asks, Any]]:
    """Return what a method and its sampler ask, by name of the task, each with whose settings its fields hold."""
    declared: dict[str, tuple[Asks, Any]] = {}
    for asking in (owner, getattr(owner, "sampler", None)):
        for entry in getattr(asking, "tasks", ()):
            ask = entry
            if not isinstance(ask, Asks):
                ask = Asks(entry)
            declared[ask.task.name] = ask, asking
    return declared


def check_payload(
    declaration: Asks, owner: Any, payload: Mapping[str, Any], limits: Limits
) -> None:
    """Raise `InputError` for a field of a payload that is not as the task and the method declare it.

    Args:
        declaration: the declaration.
        owner: the method or sampler whose settings fields hold.
        payload: what a server sends to one client.
        limits: what dimensions may be.
    """
    fields, name = (
        payload_fields(declaration.task),
        declaration.task.name.rpartition(".")[2],
    )
    for key in payload:
        if key not in fields:
            raise InputError(f"{name} has no field {key[:40]!r}")
    for key, declared in fields.items():
        if key not in payload:
            if declared.needed:
                raise InputError(f"{name} needs the field {key!r}")
            continue
        value, why = payload[key], ""
        if declared.tensor:
            holds = declared.holds
            may_be_none = declared.optional
            if holds is not None and holds.own:
                may_be_none = True  # the client's own model stands for it
            if value is None and may_be_none:
                continue
            models = declaration.most_models(limits.clients)
            why = _wrong(holds, value, limits, models)
        else:
            allowed = declaration.values.get(key, getattr(owner, key, _UNDECLARED))
            if allowed is _UNDECLARED:
                why = "nobody declares what it may hold (tasks)"
            elif not _allows(allowed, value, limits.rounds):
                why = "it is another value"
        if why:
            raise InputError(
                f"the approved plan does not allow this {key!r} of {name}: {why}"
            )


_UNDECLARED = object()


def _allows(allowed: Any, value: Any, rounds: int) -> bool:
    if isinstance(allowed, Among):
        return any(
            _allows(alternative, value, rounds) for alternative in allowed.values
        )
    if isinstance(allowed, range):
        return type(value) is int and value in allowed
    if isinstance(allowed, Schedule):
        return type(value) is float and any(
            value == allowed.rate(r) for r in range(rounds + 1)
        )
    # 1 and 1.0 are the same number; True is none.
    types = {type(allowed)}
    if type(allowed) in (int, float):
        types = {int, float}
    return type(value) in types and bool(value == allowed)


def _wrong(holds: Holds | None, value: Any, limits: Limits, models: int) -> str:
    """Say what is wrong with a tensor of a payload; "" if nothing is."""
    if holds is None:
        return "nobody declares its form (Holds)"
    per_client = isinstance(value, PerClient)
    tensor = tensor_of(value)
    if not isinstance(tensor, Tensor):
        return "it is not a tensor"
    if holds.each is True and not per_client:
        return "it must come to each client alone"
    if holds.each is False and per_client:
        return "it must be the same for all clients"
    shape = tuple(tensor.shape)
    if per_client:
        if shape[:1] != (1,):
            return "it must hold one row for this client"
        shape = shape[1:]
    fits = len(shape) == len(holds.shape)
    for size, dimension in zip(shape, holds.shape, strict=False):
        fits = fits and _fits(size, dimension, limits, models)
    if not fits:
        expected = ", ".join(map(str, holds.shape))
        return f"its shape is {list(shape)[:8]}, not [{expected}]"
    dtype = limits.dtype_of(holds)
    if tensor.dtype != dtype:
        return f"it is {str(tensor.dtype).removeprefix('torch.')}, not {str(dtype).removeprefix('torch.')}"
    if holds.finite and not bool(torch.isfinite(tensor).all()):
        return "it is not finite"
    low, high = holds.within
    if tensor.numel() and bool(((tensor < low) | (tensor > high)).any()):
        return f"it is outside of [{low:g}, {high:g}]"
    return ""


def _fits(size: int, dimension: Any, limits: Limits, models: int) -> bool:
    if isinstance(dimension, tuple):
        return any(_fits(size, choice, limits, models) for choice in dimension)
    if isinstance(dimension, int):
        return size == dimension
    if dimension == "clients":
        return 1 <= size <= limits.clients
    if dimension == "models":
        return 1 <= size <= models
    return bool(size == getattr(limits, dimension))


def about_each_model(
    task: Task[Any], payload: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the payload about each of its models, as if that came alone; the payload itself where it holds at most one model."""
    model_keys = [
        key
        for key, declared in payload_fields(task).items()
        if declared.holds and declared.holds.shape[:1] == ("models",)
    ]
    if len(model_keys) != 1 or payload.get(model_keys[0]) is None:
        yield dict(payload)
        return
    rows = payload[model_keys[0]]
    if isinstance(rows, PerClient):
        rows = rows.tensor[0]  # a payload of one client
    for row in rows:
        yield {**payload, model_keys[0]: row.contiguous()}
