"""Every odd value for every argument of every public class: the list of both is read from what coterie declares."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import coterie as ct
from coterie import data
from coterie.config.registry import KINDS
from federations import logistic
from torture.apart import Tries, attempt_all
from torture.sentences import wrong_with


def odd_values() -> dict[str, Any]:
    """Values that hardly any argument can take, by name; made anew for each try."""
    x = torch.randn(12, 3)
    return {
        "None": None, "0": 0, "-1": -1, "1.5": 1.5, "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "1e308": 1e308,
        "1e-320": 1e-320, "10**30": 10**30, "10**400": 10**400, "-(10**400)": -(10**400), "True": True, "complex": 1 + 2j,
        "fraction": Fraction(1, 3), "int64": np.int64(3), "float32": np.float32(0.5), "longdouble": np.longdouble(0.5),
        "bool_": np.bool_(True), "empty": "", "text": "x", "NUL": "a\0b", "surrogate": "\udcff", "long": "y" * 10_000, "lines": "a\nb",
        "bytes": b"x", "list": [], "tuple": (), "dict": {}, "set": {1}, "[1]": [1], "[None]": [None], "nested": [[[1]]],
        "{1: 'a'}": {1: "a"}, "range": range(3), "generator": iter([1]), "object": object(), "class": int, "function": len,
        "lambda": lambda *arguments: None, "raises": _raise, "module": math, "path": Path("nowhere"), "tensor": x,
        "sparse": x.to_sparse(), "meta": x.to("meta"), "half": x.half(), "complex tensor": x.to(torch.complex64), "no rows": x[:0],
        "0-d": x[0, 0], "NaN tensor": x * math.nan, "integers": torch.arange(12), "array": np.ones((12, 3)),
        "objects": np.array([object()] * 12), "masked": np.ma.masked_array(np.ones(3), mask=[1, 0, 0]),
        "linear": nn.Linear(3, 1), "no parameters": nn.Identity(), "LocalSGD": ct.LocalSGD(), "FedAvg": ct.FedAvg(),
        "FedAvg class": ct.FedAvg, "cyclic": _cycle(), "dtype": torch.float64, "device": torch.device("meta"),
    }  # fmt: skip


def _raise(*arguments: Any) -> Any:
    raise LookupError("raised by a user's function")


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


class Place(NamedTuple):
    """An argument of a public class or function: the kind and name of it, the argument, and the name of the odd value."""

    kind: str
    name: str
    argument: str
    value: str


REQUIRED: dict[str, Any] = {
    "targets": "all", "internal": ("a", "b"), "members": "*", "target": "c", "count": 2, "lr": 0.1, "on": ("a",), "mu": 0.5,
    "name": "a", "k": 0.1, "alpha": 0.1, "byzantine": 1, "rate": 2.0, "keep": 0.5, "factor": 0.5, "every": 2, "preselect": "smallest",
    "bound": 1.0, "fraction": 0.1, "share": 0.5, "epsilon": 0.1, "train": ct.Part(torch.randn(12, 3), torch.arange(12) % 2),
}  # fmt: skip
"""What a required argument of this name is where another one is odd; classes that need others are tried without."""
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "fit": ct.fit,
    "personalise": ct.personalise,
    "from_tensors": data.from_tensors,
    "load": data.load,
    "standardise": data.standardise,
}


def public_classes() -> dict[tuple[str, str], Any]:
    """All classes that a user makes objects of, by kind and name: of each registry, and options among the public names."""
    classes: dict[tuple[str, str], Any] = {}
    for kind, registry in KINDS.items():
        if kind not in ("datasets", "metrics"):
            classes |= {
                (kind, name): value
                for name, value in registry.importable()[0].items()
                if inspect.isclass(value)
            }
    for name in ct.__all__:
        value = getattr(ct, name)
        registered = value in classes.values()
        if (
            inspect.isclass(value)
            and dataclasses.is_dataclass(value)
            and not registered
            and not inspect.isabstract(value)
        ):
            classes["public", name] = value
    return classes


def places() -> Iterator[Place]:
    """Every argument of every class and function, with every odd value."""
    values = [*odd_values()]
    everything = {
        **public_classes(),
        **{("function", name): function for name, function in FUNCTIONS.items()},
    }
    for (kind, name), called in everything.items():
        for argument, parameter in inspect.signature(called).parameters.items():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                yield from (Place(kind, name, argument, value) for value in values)


def _arguments(called: Any, place: Place) -> dict[str, Any]:
    parameters = inspect.signature(called).parameters.values()
    required = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    chosen = {name: REQUIRED[name] for name in required if name in REQUIRED}
    return {**chosen, place.argument: odd_values()[place.value]}


def _use(kind: str, value: Any) -> None:
    """Let a value that could be made take part in a run of no round, which is enough to find what is refused."""
    problem = logistic(torch.float32)
    options: dict[str, Any] = {
        "method": "fedavg",
        "clients": problem.clients,
        "model": problem.model,
        "rounds": 0,
    }
    names = {
        "methods": "method",
        "models": "model",
        "attacks": "attack",
        "engines": "engine",
    }
    if kind in names:
        options[names[kind]] = value
    elif kind == "filters":
        options["filters"] = [value]
    elif kind == "samplers":
        options["local"] = ct.LocalSGD(sampler=value)
    elif kind in ("callbacks", "trackers"):
        options["settings"] = ct.RunSettings(callbacks=(value,))
    elif isinstance(value, ct.Client):
        options |= {"clients": ct.Clients([value]), "model": torch.nn.Linear(3, 2)}
    elif isinstance(value, ct.LocalSGD):
        options["local"] = value
    elif isinstance(value, ct.RunSettings):
        options["settings"] = value
    else:
        return
    ct.fit(**options)


def attempt(place: Place) -> str:
    """Say what is wrong with what becomes of an odd value."""
    if place.kind != "function":
        called = public_classes()[place.kind, place.name]

        def make() -> None:
            _use(place.kind, called(**_arguments(called, place)))

        return wrong_with(make, missing=_missing(called, place))
    problem = logistic(torch.float32)
    base: dict[str, dict[str, Any]] = {
        "fit": {
            "method": "fedavg",
            "clients": problem.clients,
            "model": problem.model,
            "rounds": 0,
        },
        "personalise": {"clients": problem.clients, "steps": (0, 1), "lr": (0.1,)},
        "from_tensors": {"clients": {"a": (torch.randn(12, 3), torch.arange(12) % 2)}},
        "load": {"source": "heart-disease"},
        "standardise": {"clients": problem.clients},
    }
    function = FUNCTIONS[place.name]
    names = [*inspect.signature(function).parameters]
    arguments = {key: value for key, value in base[place.name].items() if key in names}
    arguments.setdefault(names[0], next(iter(base[place.name].values())))
    if place.name == "personalise":
        settings = ct.RunSettings(merge_validation=False)
        arguments["run"] = ct.fit(
            "fedavg", problem.clients, problem.model, 0, settings=settings
        )
    arguments[place.argument] = odd_values()[place.value]
    return wrong_with(lambda: function(**arguments))


def _missing(called: Any, place: Place) -> bool:
    """Return True if a class has required arguments that nobody here knows, so that Python itself refuses the call."""
    parameters = inspect.signature(called).parameters.values()
    required = {
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    return bool(required - {*REQUIRED, place.argument})


def oddities(
    rng: random.Random, folder: Path, methods: list[str], until: float
) -> Tries:
    """Tries of all places, mixed."""
    folder.mkdir()
    os.chdir(folder)
    tries = [*places()]
    rng.shuffle(tries)
    for place, wrong in attempt_all(tries, attempt, until):
        yield (
            tuple(place),
            wrong,
            (
                f"class: {place.kind}",
                *([place.name] if place.kind == "methods" else []),
            ),
        )
