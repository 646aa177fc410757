"""Arguments of `fit`, `personalise` and `compare` whose type decides whether they can be used at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie.base.clients import Clients
from coterie.base.errors import cut, require
from coterie.contract.training import LocalSGD
from coterie.run.history import Run
from coterie.run.settings import RunSettings

__all__ = ["check_types"]


def check_types(**given: Any) -> None:
    """Raise `InputError` that names an argument of another type, and says what it must be."""
    for name, value in given.items():
        allowed, example = _TYPES[name]
        good = value is None and example.startswith("None")
        require(good or isinstance(value, allowed), f"{name} must be {example}; got {cut(value)}")


_TYPES: Mapping[str, tuple[Any, str]] = {
    "run": (Run, "a run, as fit returns it"),
    "clients": (Clients, "Clients, as data.from_tensors makes them"),
    "checkpoint": ((str, os.PathLike), "None or a folder"),
    "folder": ((str, os.PathLike), "None or a folder"),
    "local": (LocalSGD, "None or LocalSGD(...)"),
    "init": ((Mapping, str, os.PathLike), "None, a state dict or a safetensors file"),
    "settings": (RunSettings, "RunSettings(...)"),
    "steps": (Sequence, "a list of numbers such as (0, 10)"),
    "lr": (Sequence, "a list of numbers such as (0.1, 1.0)"),
    "filters": (Sequence, "a list of filters such as [TopK(0.01)]"),
    "data": (Mapping, "a table such as {'label': 'outcome'}"),
    "split": (Mapping, "a table such as {'kind': 'iid'}"),
    "tune": ((bool, Mapping), "true, false or a grid such as {'local.lr': [0.03, 0.1]}"),
    "progress": (Callable, "None or a function of an Event"),
}
