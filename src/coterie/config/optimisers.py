"""Optimisers of local training: those of torch by name, and functions of a user's own, which travel by name."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from coterie.base.errors import InputError
from coterie.base.identity import code_hash
from coterie.config.rules import Rule
from coterie.config.schema import wire_type

OPTIMISERS = (
    "sgd",
    "adam",
    "adamw",
    "adadelta",
    "adagrad",
    "adamax",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
)
"""Optimisers of torch by name: those that treat every number alike, so that one flat vector is trained as its tensors would be."""


def optimiser_name(value: Any) -> str | None:
    """Return the name of an optimiser that is given as a name, `torch.optim.RMSprop`, or that class; None for anything else."""
    if isinstance(value, type):
        value = f"{value.__module__.rpartition('.')[0]}.{value.__name__}"
    if isinstance(value, str) and value.startswith("torch.optim."):
        value = value.removeprefix("torch.optim.").lower()
    if value not in OPTIMISERS:
        return None
    return str(value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {}


@wire_type
@dataclasses.dataclass(frozen=True)
class OwnOptimiser:
    """The name of a function that makes an optimiser of the user's own. The name travels; forked processes know the function.

    Attributes:
        name: what the function is called, with a hash of its code.
    """

    name: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> OwnOptimiser:
        """Name a function; the same code with the same values around it has the same name."""
        name = f"{getattr(function, '__name__', 'optimiser')}:{code_hash(function)}"
        if _surroundings(_FUNCTIONS.get(name, function)) != _surroundings(function):
            taken = sum(known.startswith(name) for known in _FUNCTIONS)
            name = f"{name}-{taken}"
        _FUNCTIONS[name] = function
        return cls(name)

    @staticmethod
    def learn(functions: Mapping[str, Callable[..., Any]]) -> None:
        """Know the functions of another process, by name."""
        _FUNCTIONS.update(functions)

    @staticmethod
    def known() -> Mapping[str, Callable[..., Any]]:
        """Return the functions that this process knows, by name."""
        return _FUNCTIONS

    @property
    def __name__(self) -> str:
        return self.name.partition(":")[0]

    @property
    def function(self) -> Callable[..., Any]:
        """The function. Raises `InputError` in a process that does not know it."""
        if self.name not in _FUNCTIONS:
            raise InputError(
                f"the optimiser {self.name} is a function of another Python program; it trains in one process and on Ray. "
                f"Elsewhere name one: {' | '.join(OPTIMISERS)}"
            )
        return _FUNCTIONS[self.name]

    def __call__(self, parameters: Any, lr: float) -> Any:
        """Make the optimiser of these parameters; `lr` is given to a function that takes it and was not given one."""
        function = self.function
        bound: Mapping[str, Any] = {}
        if isinstance(function, functools.partial):
            bound = function.keywords
        if "lr" in bound or "lr" not in inspect.signature(function).parameters:
            return function(parameters)
        return function(parameters, lr=lr)


def _surroundings(function: Callable[..., Any]) -> list[Any]:
    """What a function was made with beside its code: other values make another function."""
    cells = getattr(function, "__closure__", None) or ()
    values = [getattr(function, "__defaults__", None)]
    values += [getattr(function, "__kwdefaults__", None)]
    values += [getattr(function, "args", ()), getattr(function, "keywords", {})]
    return values + [cell.cell_contents for cell in cells]


def _is_optimiser(value: Any) -> bool:
    if isinstance(value, str):
        return optimiser_name(value) is not None
    return callable(value)


OPTIMISER = Rule(
    _is_optimiser,
    f"{' | '.join(OPTIMISERS)}, or in Python a function of parameters",
    OPTIMISERS,
)
"""Rule of an optimiser."""
