"""An experiment of Python values: they become the tables of a TOML file, and what files cannot say stands there as an object's name."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from coterie.base.clients import Clients
from coterie.base.errors import InputError, cut, nearest
from coterie.base.files import path_exists
from coterie.base.identity import code_hash, identity
from coterie.base.vector import add_tensors
from coterie.config.local import LocalSGD
from coterie.config.registry import (
    ATTACKS,
    CALLBACKS,
    DATASETS,
    ENGINES,
    FILTERS,
    METHODS,
    MODELS,
    Registry,
)
from coterie.config.rules import check_object
from coterie.config.run import StudySettings
from coterie.config.schema import build, spell
from coterie.contract.engine import EngineSpec
from coterie.contract.method import Method
from coterie.data.registry import clients_or_maker
from coterie.run.callbacks import Callback
from coterie.run.experiment import Experiment, with_objects
from coterie.run.files import OBJECT
from coterie.run.method_tables import method_table

WHERE = "ct.compare"


def experiment_of(
    methods: Sequence[Any] | Mapping[str, Any],
    clients: Clients
    | Callable[..., Clients]
    | Mapping[str, Any]
    | Sequence[Any]
    | str
    | os.PathLike[str],
    model: Any,
    run: Mapping[str, Any],
    *,
    engine: EngineSpec | str,
    attack: Any,
    filters: Sequence[Any],
    settings: StudySettings,
) -> Experiment:
    """Make the experiment of these values; its `objects` are what files cannot spell.

    Args:
        methods: As for `compare`.
        clients: As for `compare`.
        model: As for `compare`.
        run: Keys of the [run] table that are no settings: `rounds` and `seeds`.
        engine: As for `compare`.
        attack: As for `compare`.
        filters: As for `compare`.
        settings: What is the same for every method and seed.

    Raises:
        InputError: As for the tables of a TOML file.
    """
    spelling = _Spelling()
    data = spelling.data(clients)
    split = data.pop("split", {})
    if dataclasses.is_dataclass(split):
        split = spell(split)
    model_table = {**spelling.table(MODELS, model)}
    if settings.init is not None and _is_path(settings.init):
        model_table["init"] = os.fspath(settings.init)
    elif settings.init is not None:
        model_table["init"] = spelling.keep(settings.init, "state-dict")
    if settings.freeze:
        model_table["freeze"] = list(settings.freeze)
    callbacks, functions = [], []
    for item in settings.callbacks:
        if isinstance(item, Callback):
            callbacks.append(spelling.table(CALLBACKS, item))
        else:
            functions.append(item)
    tune = {}
    if isinstance(settings.tune, Mapping):
        tune = _as_lists(settings.tune)
    attack_table = {}
    if attack is not None:
        attack_table = spelling.table(ATTACKS, attack)
    tables = {
        "data": data,
        "split": split,
        "tune": tune,
        "model": model_table,
        "local": spell(settings.local or LocalSGD(), spelling.keep),
        "methods": spelling.methods(methods, settings.local),
        "engine": spelling.table(ENGINES, engine),
        "attack": attack_table,
        "filters": [spelling.table(FILTERS, item) for item in filters],
        "callbacks": callbacks,
        "run": spelling.run(settings, run),
    }
    if settings.secure is not None:
        tables["secure"] = spell(settings.secure)
    experiment = Experiment.from_tables(tables, WHERE, spelling.objects)
    table = dataclasses.replace(
        experiment.run,
        callbacks=tuple(functions),
        strict_wire=settings.strict_wire,
        central=settings.central,
        central_personal=settings.central_personal,
    )
    return dataclasses.replace(experiment, run=table)


def _as_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with lists in place of tuples and ranges, which TOML does not have."""
    table = dict(values)
    for key, value in table.items():
        if isinstance(value, list | tuple | range):
            table[key] = list(value)
    return table


def data_table(source: str | os.PathLike[str]) -> dict[str, str]:
    """The [data] table of a data set's name, FILE.py:NAME, hf:NAME or a folder. Raises `InputError` if there is no such thing."""
    text = os.fspath(source)
    if text in DATASETS or ".py:" in text or text.startswith("hf:"):
        return {"name": text}
    if not path_exists(text):
        raise InputError(
            f"there is no data set or folder {text!r}; {nearest(text, DATASETS)}; a folder path works too"
        )
    return {"folder": text}


def object_name(value: Any, called: str = "") -> str:
    """Return the name in experiment.toml of an object that files cannot spell: its class, and a hash of what it is.

    >>> object_name(Clients, "clients").rpartition(":")[0]
    'python:clients'
    """
    kind = called or getattr(value, "__name__", type(value).__name__)
    return f"{OBJECT}{re.sub(r'[^A-Za-z0-9._-]', '-', kind)}:{_digest(value)}"


class _Spelling:
    """Tables of values, and the objects that these tables can only name."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}

    def keep(self, value: Any, called: str = "") -> str:
        """The name of an object, which is kept."""
        name = object_name(value, called)
        self.objects[name] = value
        return name

    def table(self, registry: Registry, value: Any) -> dict[str, Any]:
        """The table of a value of a registry, if reading it again gives the same value; else one that names an object."""
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping):
            return dict(value)
        try:
            spelled = registry.spell(value)
            if identity(registry.build(spelled, WHERE)) == identity(value):
                return spelled
        except InputError:
            pass
        return {"name": self.keep(value)}

    def data(self, clients: Any) -> dict[str, Any]:
        """Return the [data] table of what `data_table` or `fit` takes; a dict with texts or numbers in it is a table already."""
        if _is_path(clients):
            return data_table(clients)
        if isinstance(clients, Mapping):
            is_table = any(map(_is_plain, clients.values()))
            if is_table or not clients:
                return dict(clients)
        ready = clients_or_maker(clients)
        if isinstance(ready, Clients):
            return {"name": self.keep(ready, ready.name)}
        if ready is clients:
            return {"name": self.keep(ready)}
        # Named by the rows of one seed, since each seed splits them anew.
        name = object_name(ready(seed=0), "clients")
        self.objects[name] = ready
        return {"name": name}

    def methods(self, entries: Any, local: LocalSGD | None) -> list[dict[str, Any]]:
        """The [[methods]] of a list of methods, or of methods by label."""
        if isinstance(entries, Mapping):
            return [
                {**self._method(method, local), "label": label}
                for label, method in entries.items()
            ]
        if isinstance(entries, str) or not isinstance(entries, Sequence):
            raise InputError(f"methods must be a list; got {cut(entries)}")
        return [self._method(method, local) for method in entries]

    def _method(self, method: Any, local: LocalSGD | None) -> dict[str, Any]:
        if isinstance(method, str):
            return method_table(method)
        check_object(method, Method)
        name = METHODS.name_of(type(method))
        fields: set[str] = set()
        if dataclasses.is_dataclass(method):
            fields = {field.name for field in dataclasses.fields(method)}
        if local is not None and "local" in fields:
            method = dataclasses.replace(method, local=local)
        if name is not None and dataclasses.is_dataclass(method):
            spelled = spell(method, self.keep)
            again = build(type(method), with_objects(spelled, self.objects), WHERE)
            if identity(again) == identity(method):
                return {"name": name, **spelled}
        return {"name": self.keep(method), "label": type(method).__name__.lower()}

    def run(
        self, settings: StudySettings, further: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the [run] table."""
        table = spell(settings)
        if callable(settings.loss):
            table["loss"] = self.keep(settings.loss)
        return {**table, **_as_lists(further)}


def _is_plain(value: Any) -> bool:
    return _is_path(value) or isinstance(value, bool | int | float)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _digest(value: Any) -> str:
    """A short hash of an object: what it holds, and the source of its class or function where that is known."""
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(value, Clients):
        digest.update(value.fingerprint().encode())
    elif isinstance(value, nn.Module):
        digest.update((repr(value) + code_hash(type(value))).encode())
        add_tensors(digest, value.state_dict())
    elif isinstance(value, Mapping):
        add_tensors(digest, value)
    else:
        return code_hash(value)
    return digest.hexdigest()
