"""What a plan allows: which tasks a method may ask a site, and with which settings. Whatever is not listed is refused.

The list is made at the site, from the plan that a person there has approved; nothing that the server says enters it. The tasks of a
method are those that its code can reach, so a new method needs no entry anywhere.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from coterie.base.errors import InputError
from coterie.compute.appeal import with_steps
from coterie.compute.metrics import baselines, evaluate
from coterie.contract.filters import Filter
from coterie.contract.task import Task
from coterie.contract.training import LocalSGD, Schedule
from coterie.contract.wire import PerClient
from coterie.sites.paired import note_outcomes
from coterie.sites.settings import short

__all__ = ["Allowed", "RefusedError", "tasks_of"]

PARTS = ("train", "validation", "test")
COUNTERS = ("step",)
"""Fields that number the asks of a round: they name random streams, and count up to one of the method's settings."""


class RefusedError(InputError):
    """A request that the site refuses; the sentence quotes no row and may leave the site."""


@dataclasses.dataclass(frozen=True)
class Allowed:
    """What one method of a plan may ask.

    Attributes:
        method: the method, with its settings.
        seed: of this run of the method.
        rounds: of the plan.
        metrics: of the plan.
        filters: of the plan, through which replies leave the site whatever the server asks for.
    """

    method: Any
    seed: int
    rounds: int
    metrics: tuple[str, ...]
    filters: tuple[Filter, ...] = ()

    @cached_property
    def tasks(self) -> Mapping[str, Task[Any]]:
        """The tasks of the method and of the evaluation, by name."""
        every: list[Task[Any]] = [evaluate, baselines, note_outcomes, *tasks_of(self.method)]
        return {task.name: task for task in every}

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """Every number and word of the method's settings."""
        return (None, True, False, 0, 1, *_values(self.method))

    def check(self, task: str, payload: Mapping[str, Any], *, seed: int, round: int) -> None:
        """Raise `RefusedError` unless the plan allows this request."""
        if task not in self.tasks:
            raise RefusedError(f"the approved plan does not ask {short(task)!r} of {type(self.method).__name__}")
        if seed != self.seed or not 0 <= round <= self.rounds:
            raise RefusedError(f"the approved plan has no round {round} of seed {seed} here")
        fields = list(inspect.signature(self.tasks[task].function).parameters.values())[1:]
        declared = {field.name: str(field.annotation) for field in fields}
        for name, value in payload.items():
            if name not in declared:
                raise RefusedError(f"{short(task)} has no field {name[:40]!r}")
            if not self._fits(name, value, declared[name]):
                raise RefusedError(f"the approved plan does not allow this {name!r} of {short(task)}")

    def _fits(self, name: str, value: Any, declared: str) -> bool:
        if isinstance(value, Tensor | PerClient):
            return "Tensor" in declared
        if isinstance(value, LocalSGD):
            return "LocalSGD" in declared and self._trains(name, value)
        if name == "part":
            return value in PARTS
        if name == "metrics":
            named = isinstance(value, tuple) and all(isinstance(metric, str) for metric in value)
            return named and len(set(value)) == len(value) and set(value) <= set(self.metrics)
        if name in COUNTERS and type(value) is int:
            return 0 <= value <= max(v for v in self.values if type(v) is int)
        return self._said(name, value)

    def _said(self, name: str, value: Any) -> bool:
        """Whether a number or a word is the method's setting of that name (any setting, if none has it), or a rate that it gives."""
        settings = vars(self.method)
        among = (None, *_values(settings[name])) if name in settings else self.values
        if type(value) is float:
            rates = [v.rate(r) for v in among if isinstance(v, Schedule) for r in range(self.rounds + 1)]
            return value in among or value in rates
        return any(type(value) is type(v) and value == v for v in among)

    def _trains(self, field: str, local: LocalSGD) -> bool:
        """Whether local settings are those of the plan; under another name than `local` with one of the method's numbers of steps."""
        own = [v for v in self.values if isinstance(v, LocalSGD)]
        if field == "local":
            return local in [dataclasses.replace(v, sampler=self.method.sampler) for v in own]
        counts = [v for name, v in vars(self.method).items() if name.endswith("_steps") and v]
        return local in [with_steps(v, count) for v in own for count in counts]


def tasks_of(method: Any) -> tuple[Task[Any], ...]:
    """The tasks that the code of a method can reach, by name: those that its class and the functions that it calls refer to.

    >>> from coterie.algorithms import FedAvg
    >>> [task.name.partition(":")[2] for task in tasks_of(FedAvg())]
    ['local_update']
    """
    tasks: dict[str, Task[Any]] = {}
    sampler = getattr(getattr(method, "local", None), "sampler", None)
    waiting: list[Any] = [type(method), *([] if sampler is None else [type(sampler)])]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Task):
            tasks[node.name] = node
        elif getattr(node, "__module__", None) and node.__module__.startswith("coterie."):
            waiting += _reached(node)
    return tuple(tasks[name] for name in sorted(tasks))


def _reached(node: Any) -> Iterator[Any]:
    """What a class or a function refers to by name."""
    if isinstance(node, type):
        yield from node.__mro__[1:]
        for member in vars(node).values():
            inner = (
                getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
            )
            if isinstance(inner, types.FunctionType):
                yield inner
    elif isinstance(node, types.FunctionType):
        names = set(_names(node.__code__))
        reached = [node.__globals__[n] for n in names if n in node.__globals__]
        yield from reached
        for module in (m for m in reached if isinstance(m, types.ModuleType)):
            yield from (vars(module)[n] for n in names if n in vars(module))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _values(value: Any) -> Iterator[Any]:
    """A value and all that it is made of."""
    yield value
    parts: Iterable[Any] = ()
    if dataclasses.is_dataclass(value):
        parts = [getattr(value, f.name) for f in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        parts = [*value, *value.values()]
    elif isinstance(value, tuple | list):
        parts = value
    for part in parts:
        yield from _values(part)
