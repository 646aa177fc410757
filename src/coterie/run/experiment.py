"""Experiments: the tables of a TOML file as checked values, and back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch

from coterie.base.clients import Clients
from coterie.base.errors import InputError, cut, nearest, prefix_errors
from coterie.base.modules import load_object
from coterie.base.privacy import check_delta
from coterie.config.local import LocalSGD
from coterie.config.privacy import Privacy
from coterie.config.registry import (
    ATTACKS,
    CALLBACKS,
    ENGINES,
    FILTERS,
    METHODS,
    MODELS,
    Registry,
)
from coterie.config.rules import SIZE, check_hooks, check_object
from coterie.config.run import MethodEntry, ModelTable, ReportTable, RunTable, Tuning
from coterie.config.schema import build, options_of, plain, spell
from coterie.config.secure import SecureSums
from coterie.contract.down import FLOAT32
from coterie.contract.engine import EngineSpec
from coterie.contract.filters import Filter
from coterie.contract.fitting import down_of, filters_of
from coterie.contract.method import Method
from coterie.run.callbacks import Callback
from coterie.run.evaluation import is_evaluated
from coterie.run.files import ALL, own_objects
from coterie.run.method_tables import (
    apply,
    check_grid,
    label_of,
    names_of,
    override_local,
    settings_of,
    unset_local,
)
from coterie.run.private_methods import (
    check_rows_hidden,
    hide_rows,
    noise_by_row,
    spent_by,
)
from coterie.run.rounded_models import check_beside_down
from coterie.run.secure_methods import check_rows_in_sums, check_sums_alone

TABLES = (
    "data",
    "split",
    "model",
    "local",
    "methods",
    "engine",
    "attack",
    "filters",
    "callbacks",
    "run",
    "report",
    "privacy",
    "secure",
    "tune",
)


@dataclass(frozen=True)
class Experiment:
    """A checked experiment.

    Attributes:
        data: the [data] table: `name` or `folder`, `label`, and options of the data set.
        split: the [split] table, without folds = 0, which is what holds where nothing is set.
        model: the [model] table: `name`, its settings, `init` (a safetensors file) and `freeze` (patterns of parameter names).
        local: the [local] table.
        methods: the [[methods]].
        run: the [run] table.
        report: the [report] table.
        privacy: the [privacy] table; None: rows are not hidden in training.
        tune: the [tune] table: lists of values by METHOD.FIELD or local.FIELD.
        where: the file or command that it comes from, for errors.
        engine: the [engine].
        attack: the [attack] and who attacks; None if there is none.
        filters: the [[filters]].
        callbacks: the [[callbacks]].
        objects: what only the Python program has that made this experiment, by the name with which the tables name it.
    """

    data: Mapping[str, Any]
    split: Mapping[str, Any]
    model: Mapping[str, Any]
    local: Mapping[str, Any]
    methods: tuple[MethodEntry, ...]
    run: RunTable
    tune: Mapping[str, Any]
    where: str
    engine: EngineSpec
    attack: Any = None
    filters: tuple[Filter, ...] = ()
    callbacks: tuple[Callback, ...] = ()
    report: ReportTable = field(default_factory=ReportTable)
    privacy: Privacy | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_tables(
        cls,
        tables: Mapping[str, Any],
        where: str,
        objects: Mapping[str, Any] = MappingProxyType({}),
    ) -> Experiment:
        """Check the tables of a TOML file, in which names may stand for `objects`.

        Raises `InputError` that names file, key, what is allowed and the nearest spelling.
        """
        for key in tables:
            if key not in TABLES:
                raise InputError(
                    f"{where}: unknown table [{key}]; {nearest(key, TABLES)}"
                )
        for key in TABLES:
            may_be_list = key in ("methods", "filters", "callbacks")
            if not may_be_list and not isinstance(tables.get(key, {}), dict):
                raise InputError(f"{where}: [{key}] must be a table")
        _check_data_and_model(tables, where)
        for name in own_objects(tables):
            if name not in objects:
                raise InputError(
                    f"{where} names {name}, an object of a Python program; go on there, with the same object: ct.compare(..., "
                    "folder=..., settings=ct.StudySettings(resume=True))"
                )
        local = with_objects(tables.get("local", {}), objects)
        build(LocalSGD, local, f"{where}, [local]")
        entries = tables.get("methods", [])
        if not isinstance(entries, list) or not entries:
            raise InputError(
                f"{where}: there is no [[methods]] entry; name at least one method"
            )
        split = dict(tables.get("split", {}))
        if split.get("folds") == 0:
            del split["folds"]
        experiment = cls(
            data=dict(tables["data"]),
            split=split,
            model=dict(tables.get("model", {"name": MODELS.default})),
            local=dict(tables.get("local", {})),
            methods=tuple(_entry(e, where, objects) for e in entries),
            run=replace(
                _run(tables.get("run", {}), f"{where}, [run]", objects),
                secure=_secure(tables.get("secure"), f"{where}, [secure]"),
            ),
            report=build(
                ReportTable,
                tables.get("report", {}),
                f"{where}, [report]",
                named="report",
            ),
            privacy=_privacy(tables.get("privacy"), f"{where}, [privacy]"),
            tune=dict(tables.get("tune", {})),
            where=where,
            engine=_value(
                ENGINES,
                tables.get("engine", {}),
                f"{where}, [engine]",
                objects,
                named="engine",
            ),
            attack=_attack(tables.get("attack"), f"{where}, [attack]", objects),
            filters=_values(
                FILTERS, tables.get("filters", []), f"{where}, [[filters]]", objects
            ),
            callbacks=_values(
                CALLBACKS,
                tables.get("callbacks", []),
                f"{where}, [[callbacks]]",
                objects,
            ),
            objects=objects,
        )
        repeated = next(
            (x for x in experiment.labels if experiment.labels.count(x) > 1), None
        )
        if repeated is not None:
            raise InputError(
                f"{where}: two methods are called {repeated!r}; give each a label of its own"
            )
        _check_primary(experiment)
        experiment.build_model()
        check_beside_down(experiment.run)
        for entry in experiment.methods:
            method = experiment.build_method(entry)
            filters_of(method, experiment.filters)
            down_of(method, experiment.run.down)
            if experiment.run.secure is not None:
                check_sums_alone(method, f"{where}, method {entry.label!r}")
                check_rows_in_sums(method, f"{where}, method {entry.label!r}")
            has_row_noise = noise_by_row(method) is not None
            if has_row_noise:
                check_rows_hidden(method, entry.label, where)
            is_own_already = entry.name == "local" or method.linear_only
            if entry.personalise and has_row_noise and method.linear_only:
                # Its slopes are noisy, and what is drawn to them at home is another model.
                is_own_already = entry.personalise.chooses
            if entry.personalise and is_own_already:
                raise InputError(
                    f"{where}, method {entry.label!r}: {entry.name} gives each client a model of its own already; leave out personalise"
                )
        check_grid(experiment.tune, experiment.methods, f"{where}, [tune]")
        if experiment.tune:
            for entry in experiment.methods:
                for setting in experiment.trials_of(entry):
                    experiment.build_method(apply(entry, setting))
        return experiment

    def tables(self) -> dict[str, Any]:
        """The tables of a TOML file with all defaults spelled out; what TOML cannot say (None) is left out."""
        spec = self.build_model()
        model_settings = spell(spec) if is_dataclass(spec) else {}
        tables = {
            "data": self.data,
            "split": self.split,
            "model": {"name": MODELS.default, **model_settings, **self.model},
            "local": spell(self._build_local(self.local, "[local]"), self._kept_name),
            "run": {
                **spell(self.run),
                "loss": self._name_of(self.run.loss) or self.run.loss,
            },
            "engine": self._table_of(ENGINES, self.engine),
            "report": spell(self.report),
            "privacy": spell(self.privacy) if self.privacy else {},
            "secure": spell(self.run.secure) if self.run.secure else {},
            "tune": self.tune,
            "attack": self._attack_table(),
            "filters": [self._table_of(FILTERS, value) for value in self.filters],
            "callbacks": [self._table_of(CALLBACKS, value) for value in self.callbacks],
            "methods": [self._method_table(entry) for entry in self.methods],
        }
        return {k: v for k, v in plain(tables).items() if v or k == "methods"}

    def _name_of(self, value: Any) -> str | None:
        """The name of an object that only the Python program has."""
        for name, candidate in self.objects.items():
            if candidate is value:
                return name
        return None

    def _kept_name(self, value: Any) -> str:
        """The same for an object that must be there."""
        return cast("str", self._name_of(value))

    def _table_of(self, registry: Registry, value: Any) -> dict[str, Any]:
        name = self._name_of(value)
        if name is not None:
            return {"name": name}
        return registry.spell(value)

    def _method_table(self, entry: MethodEntry) -> dict[str, Any]:
        method = None if entry.name in self.objects else self.build_method(entry)
        local = {
            key: spell(value, self._kept_name)
            for key, value in self._local_of(entry).items()
        }
        spelled = spell(method, self._kept_name) if is_dataclass(method) else local
        if isinstance(spelled.get("local"), dict):
            spelled["local"] = {
                **unset_local(self.local, spelled["local"]),
                **spelled["local"],
            }
        table = {"name": entry.name, "label": entry.label, **spelled}
        for key, value in entry.fields.items():
            if key not in spelled:
                table[key] = value
        if entry.personalise is not None:
            table["personalise"] = spell(entry.personalise)
        if entry.seeds is not None:
            table["seeds"] = entry.seeds
        return table

    def _attack_table(self) -> dict[str, Any]:
        if self.attack is None:
            return {}
        return self._table_of(ATTACKS, self.attack)

    def build_method(self, entry: MethodEntry) -> Any:
        """The method of an entry, with [local] below its own local settings."""
        if entry.name in self.objects:
            method = self.objects[entry.name]
        else:
            fields = {
                **with_objects(entry.fields, self.objects),
                **self._local_of(entry),
            }
            method = build(
                find_method(entry.name), fields, f"{self.where}, method {entry.label!r}"
            )
        check_object(method, Method)
        if self.privacy is None or method.is_reference:
            return method
        where = f"{self.where}, method {entry.label!r}"
        return hide_rows(
            method,
            self.privacy,
            self.run.rounds,
            where,
            self.told_numbers,
            self.run.secure,
        )

    @property
    def told_numbers(self) -> int:
        """Numbers about a row that sites tell of the evaluations of one training, under [privacy]."""
        if self.privacy is None:
            return 0
        rounds, every = self.run.rounds, self.run.every(self.run.rounds)
        evaluated = sum(
            is_evaluated(rounds, every, number) for number in range(rounds + 1)
        )
        return evaluated * len(self.privacy.tell)

    def _local_of(self, entry: MethodEntry) -> dict[str, LocalSGD]:
        """The local training of an entry by the name of its parameter; empty for a method that takes none."""
        if entry.name in self.objects:
            return {}
        where = f"method {entry.label!r}"
        if _trains(entry):
            local = override_local(self.local, entry.local)
            return {"local": self._build_local(local, where)}
        if entry.local:
            raise InputError(
                f"{self.where}, {where}: {entry.name} has no local training to set; take fedavg, or leave out what sets it: [local] of "
                "that method, or --privacy"
            )
        return {}

    def _build_local(self, table: Mapping[str, Any], where: str) -> LocalSGD:
        return build(
            LocalSGD, with_objects(table, self.objects), f"{self.where}, {where}"
        )

    def trials_of(self, entry: MethodEntry) -> Iterator[dict[str, Any]]:
        """The settings of an entry that `--tune` tries."""
        return settings_of(
            entry,
            self.tune,
            names_of(self.methods),
            local=entry.name not in self.objects and _trains(entry),
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the methods."""
        return tuple(m.label for m in self.methods)

    @property
    def notes(self) -> list[str]:
        """Sentences about what is unusual in this experiment, for the report."""
        sentences = []
        if self.attack is not None:
            table = self._attack_table()
            attack = table.pop("name")
            table.pop("on", None)
            if table:
                fields = ", ".join(f"{key} = {value}" for key, value in table.items())
                attack += f" ({fields})"
            if isinstance(self.attack.on, int | float):
                who = (
                    f"a share of {self.attack.on:g} of the clients, drawn from the seed"
                )
            else:
                who = ", ".join(self.attack.on)
            sentences.append(f"under attack: {attack} by {who}; evaluation is honest")
        if self.filters:
            names = ", ".join(
                self._table_of(FILTERS, item)["name"] for item in self.filters
            )
            sentences.append(
                f"replies pass filters before they are sent ({names}), except those of references"
            )
        if self.run.down != FLOAT32:
            sentences.append(
                "models are rounded to 16 bits on their way to clients (run.down), except those of references"
            )
        if self.privacy is not None:
            sentences.append(self._privacy_note(self.privacy))
        if self.run.secure is not None:
            sentences.append(self._secure_note(self.run.secure))
        for entry in self.methods:
            if entry.personalise is not None and entry.personalise.chooses:
                sentences.append(
                    f"{entry.label}: validation rows choose how each client tunes its model, so it was not trained on them"
                )
        return sentences

    def _privacy_note(self, privacy: Privacy) -> str:
        spent = []
        for entry in self.methods:
            method = self.build_method(entry)
            if not method.is_reference:
                epsilon = spent_by(
                    method,
                    privacy.delta,
                    self.run.rounds,
                    self.told_numbers,
                    self.run.secure,
                )
                spent.append(f"{epsilon:.3g} for {entry.label}")
        # With bounds columns are scaled by them, and no row decides.
        scaling = ""
        if not self.data.get("bounds"):
            scaling = "scaling of columns, "
        return (
            f"rows are hidden in training by noise: epsilon {', '.join(spent)}, at delta {privacy.delta:g}, for one training; on one "
            "machine seeds and folds repeat the experiment and release nothing, at sites each training tells again, and losses stay "
            f"there (coterie site verdict); {scaling}sizes, classes and choice of settings are not covered"
        )

    def _secure_note(self, secure: SecureSums) -> str:
        if self.privacy is not None and secure.threshold is not None:
            return (
                f"sums of row gradients are added behind masks, and {secure.threshold} clients together make the noise of a sum, of "
                f"which {secure.curious} may tell the server their own; on one machine masks hide nothing"
            )
        return f"updates are added behind masks, their numbers clipped to {secure.clip:g}; on one machine that hides nothing"

    def build_model(self) -> Any:
        """The settings (or function) that build the model."""
        model = _object_of(self.model, self.objects)
        if model is None:
            return model_of(self.model, f"{self.where}, [model]")
        return model

    @property
    def folds(self) -> int:
        """Number of folds, 0 for one split a seed."""
        folds = self.split.get("folds", 0)
        # A mistake in the file is refused elsewhere.
        return folds if isinstance(folds, int) else 0

    @property
    def split_seeds(self) -> tuple[int, ...]:
        """The seeds with which rows are read and split anew: all of them, with folds the first alone."""
        if self.folds:
            return self.run.seeds[:1]
        return self.run.seeds

    def load_data(self, seed: int) -> Clients:
        """Return the clients of this experiment for one seed; with folds those of the first, whose rows all train (`of_fold`)."""
        from coterie.data.parts import refuse_split
        from coterie.data.registry import clients_of, load
        from coterie.data.tensors import settle_task

        options = dict(self.data)
        key = "folder"
        if "name" in options:
            key = "name"
        source = options.pop(key)
        if self.folds:
            seed = self.run.seeds[0]
        split = dict(self.split)
        # Clients that are ready are split already; `of_fold` deals their folds.
        if isinstance(self.objects.get(source), Clients):
            split.pop("folds", None)
        settings = {"seed": seed, "split": split or None, **options}
        try:
            if source in self.objects:
                clients = clients_of(self.objects[source], source, **settings)
            else:
                clients = load(source, **settings)
            if self.folds:
                refuse_split(clients)
            if self.privacy is not None and not clients.rows_elsewhere:
                largest = max(clients.sizes("train").values())
                check_delta(self.privacy.delta, largest, "[privacy] delta")
            return settle_task(clients, self.run.row_loss(clients))
        except InputError as error:
            if not self.where.endswith(".toml"):
                raise
            raise InputError(f"{self.where}: {error}") from error

    def of_fold(self, clients: Clients, seed: int, fold: str) -> Clients:
        """Return the clients that `load_data` gave as one fold of this seed finds them; as they are without folds, or with their rows
        elsewhere, where they are dealt.
        """
        from coterie.data.parts import with_fold

        if clients.rows_elsewhere or not fold:
            return clients
        if fold == ALL:
            return with_fold(clients, self.folds, None, seed)
        return with_fold(clients, self.folds, int(fold), seed)

    def files(self, entry: MethodEntry) -> list[Path]:
        """The user's own files that a method of this experiment depends on, apart from a folder of data."""
        named = [
            self.data.get("name", ""),
            self.model.get("name", ""),
            entry.name,
            *self.run.metrics,
            str(self.run.loss),
        ]
        named.append(self._attack_table().get("name", ""))
        named += [self._table_of(FILTERS, value)["name"] for value in self.filters]
        named += [self._table_of(CALLBACKS, value)["name"] for value in self.callbacks]
        files = [Path(name.rpartition(":")[0]) for name in named if ".py:" in name]
        start = self.model.get("init")
        if start and start not in self.objects:
            files.append(Path(start))
        return files

    @property
    def title(self) -> str:
        """Name of the data set or folder, as a file name."""
        name = str(self.data.get("name") or self.data.get("folder"))
        if ".py:" in name:
            return Path(name.rpartition(":")[0]).stem
        return Path(name).resolve().name or "run"

    def deciding(self) -> list[dict[str, Any]]:
        """The tables of the callbacks on which results depend."""
        return [
            self._table_of(CALLBACKS, callback)
            for callback in self.callbacks
            if callback.decides
        ]

    def with_methods(self, methods: Sequence[MethodEntry]) -> Experiment:
        """Return the same experiment with other methods."""
        return replace(self, methods=tuple(methods))


_START = tuple(key for option in options_of(ModelTable) for key in option.keys)


def model_of(model_table: Mapping[str, Any], where: str) -> Any:
    """The settings (or function) that build the model of a [model] table."""
    table = {k: v for k, v in model_table.items() if k not in _START}
    name = table.pop("name", MODELS.default)
    model = MODELS.find(name, where)
    if isinstance(model, type) and hasattr(model, "build"):
        return build(model, table, where)
    ready = isinstance(model, torch.nn.Module) or not callable(model)
    if ready and table:
        raise InputError(
            f"{where}: {name} is made already, so {', '.join(table)} cannot be set"
        )
    if table:
        return functools.partial(model, **table)
    return model


def find_method(name: str) -> Callable[..., Any]:
    """A registered method, or the user's own as FILE.py:NAME."""
    if ".py:" in name:
        loaded = load_object(name)
        with prefix_errors(name):
            check_hooks(loaded, Method)
        # An object that is a method already has no settings.
        if isinstance(loaded, type):
            return loaded
        return lambda: loaded
    if name not in METHODS:
        name = name.casefold()
    method: Callable[..., Any] = METHODS.find(name)
    return method


def _trains(entry: MethodEntry) -> bool:
    """Return True if a method has local training to set."""
    parameters = inspect.signature(find_method(entry.name)).parameters.values()
    return any(p.name == "local" or p.kind is p.VAR_KEYWORD for p in parameters)


def with_objects(value: Any, objects: Mapping[str, Any]) -> Any:
    """Return a table, or a value in it, with the objects of a Python program where it names them.

    >>> with_objects({"lr": 0.1, "sampler": {"name": "python:S:0f"}}, {"python:S:0f": len})
    {'lr': 0.1, 'sampler': <built-in function len>}
    """
    if isinstance(value, str):
        return objects.get(value, value)
    if isinstance(value, list):
        return [with_objects(item, objects) for item in value]
    if not isinstance(value, Mapping):
        return value
    named = _object_of(value, objects)
    if named is not None:
        return named
    return {key: with_objects(item, objects) for key, item in value.items()}


def _object_of(table: Any, objects: Mapping[str, Any]) -> Any:
    """Return the object of the Python program that a table names, or None."""
    if not isinstance(table, Mapping):
        return None
    return objects.get(str(table.get("name")))


def _privacy(table: Any, where: str) -> Privacy | None:
    if not table:
        return None
    return build(Privacy, table, where, named="privacy")


def _secure(table: Any, where: str) -> SecureSums | None:
    return None if table is None else build(SecureSums, table, where, named="secure")


def _run(table: Mapping[str, Any], where: str, objects: Mapping[str, Any]) -> RunTable:
    """Return the checked [run] table; keys of engines, which many look for there, are refused with the place where they belong."""
    engines: set[str] = set()
    for name in ENGINES:
        for option in options_of(ENGINES[name]):
            engines.update(option.keys)
    for key in table:
        if key in engines:
            raise InputError(
                f"{where}: {key} belongs to the engine; write {key} = ... under [engine]"
            )
    if "engine" in table:
        raise InputError(
            f'{where}: the engine is a table of its own: [engine] name = "ray"'
        )
    fields = dict(table)
    loss = table.get("loss")
    if isinstance(loss, str) and loss in objects:
        fields["loss"] = objects[loss]
    return build(RunTable, fields, where, named="run")


def _value(
    registry: Registry,
    table: Any,
    where: str,
    objects: Mapping[str, Any],
    *,
    named: str = "",
) -> Any:
    """Return the value of a table: an object of the Python program, or a value whose class the registry finds."""
    python_object = _object_of(table, objects)
    if python_object is None:
        return registry.build(table, where, named=named)
    return registry.check_value(python_object, where)


def _attack(
    table: Mapping[str, Any] | None, where: str, objects: Mapping[str, Any]
) -> Any:

    if not table:
        return None
    if "name" not in table:
        raise InputError(f'{where} needs a name, say name = "ipm"')
    names_attackers = "on" in table or table["name"] in objects
    if not names_attackers:
        raise InputError(
            f'{where}: say who attacks: on = ["NAME"], or a share such as on = 0.1'
        )
    return _value(ATTACKS, table, where, objects)


def _values(
    registry: Registry, tables: Any, where: str, objects: Mapping[str, Any]
) -> tuple[Any, ...]:
    if not isinstance(tables, list):
        raise InputError(f"{where} must be a list of tables; got {tables!r}")
    return tuple(_value(registry, table, where, objects) for table in tables)


def _check_primary(experiment: Experiment) -> None:
    """Raise `InputError` unless [report] primary, if it is named, is the label of a method that partners can choose."""
    primary = experiment.report.primary
    if primary is None:
        return
    choices = [
        entry.label
        for entry in experiment.methods
        if entry.name not in ("local", "centralised")
    ]
    if primary not in choices:
        raise InputError(
            f"{experiment.where}, [report]: primary is {primary!r}, which no method is called that partners can choose;"
            f" {nearest(primary, choices)}"
        )


def _check_data_and_model(tables: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` for [data] that names nothing, names that are no texts, and for `init` or `freeze` of another form."""
    data = tables.get("data", {})
    if "name" not in data and "folder" not in data:
        raise InputError(f"{where}: [data] needs a name or a folder")
    texts = (("data", "name"), ("data", "folder"), ("data", "label"), ("model", "name"))
    for table, key in texts:
        value = tables.get(table, {}).get(key, "")
        if not isinstance(value, str):
            raise InputError(f"{where}: {table}.{key} must be a text; got {value!r}")
    start = {k: v for k, v in tables.get("model", {}).items() if k in _START}
    build(ModelTable, start, f"{where}, [model]", named="model")


def _entry(table: Any, where: str, objects: Mapping[str, Any]) -> MethodEntry:
    if not (isinstance(table, dict) and isinstance(table.get("name"), str)):
        raise InputError(f"{where}: each [[methods]] entry needs a name")
    fields = dict(table)
    name = fields.pop("name")
    label = fields.pop("label", label_of(table))
    if not _is_label(label):
        raise InputError(
            f"{where}: the label {cut(label)} of method {cut(name)} must be 1 to 60 characters, a letter or digit among "
            "them, no slash and no comma, and no table's name"
        )
    local = fields.pop("local", {})
    if not isinstance(local, dict):
        raise InputError(f"{where}: local of method {label!r} must be a table")
    seeds = fields.pop("seeds", None)
    if seeds is not None and not SIZE.test(seeds):
        raise InputError(
            f"{where}, method {label!r}: seeds is the number of repeats that it has, 1 or more; got {seeds!r}"
        )
    tuning = fields.pop("personalise", None)
    place = f"{where}, method {label!r}, personalise"
    if name not in objects:
        find_method(name)
    if tuning is not None:
        tuning = build(Tuning, tuning, place)
    return MethodEntry(name, label, fields, local, tuning, seeds)


def _is_label(value: Any) -> bool:
    """Return True if a text can be a label: in tables and file names, and before the dot of `--set LABEL.FIELD=...`."""
    # It is part of a file's name, whose length many systems limit.
    is_short = isinstance(value, str) and len(value) <= 60
    if not is_short or not value.isprintable():
        return False
    if set(value) & set("/\\,") or not any(map(str.isalnum, value)):
        return False
    return value not in TABLES or value == "local"
