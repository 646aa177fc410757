"""Experiments: TOML tables to checked settings and back."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from coterie import catalogue
from coterie.core.errors import InputError, check_field, is_number, nearest, require
from coterie.core.metrics import DEFAULT_METRICS
from coterie.core.modules import load_object
from coterie.core.state import write_atomically
from coterie.core.training import Epochs, LocalSGD, Schedule, Steps
from coterie.run.finetune import Tuning

if TYPE_CHECKING:
    from coterie.core.rows import Clients

__all__ = ["Experiment", "MethodEntry", "RunSettings", "preset", "read_experiment", "write_experiment"]

TABLES = ("data", "split", "model", "local", "methods", "attack", "personalise", "run", "tune")
PRESETS = Path(__file__).parent / "presets"


@dataclass(frozen=True)
class RunSettings:
    """The [run] table.

    Attributes:
        rounds: number of rounds.
        seeds: seeds of the runs; an int n means 0..n-1.
        clients_per_round: participants a round; left out: everybody.
        evaluate: rounds between evaluations; left out: about twenty evaluations.
        workers: processes.
        kernel: auto or loop.
        device: cpu or cuda.
        engine: inprocess or ray.
        actors: processes of engine ray.
        address: of a Ray cluster, host:port or auto; left out: a local one is started.
        timeout: seconds that an ask may take on engine ray.
        metrics: beside the loss; a name, or FILE.py:FUNCTION.
        fold_validation: train on validation rows where a method does not need them.
        out: the run directory; left out: runs/NAME.
    """

    rounds: int = 50
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    clients_per_round: int | None = None
    evaluate: int | None = None
    workers: int = 1
    kernel: str = "auto"
    device: str = "cpu"
    engine: str = "inprocess"
    actors: int = 2
    address: str | None = None
    timeout: float = 600.0
    metrics: tuple[str, ...] = DEFAULT_METRICS
    fold_validation: bool = True
    out: str | None = None

    def __post_init__(self) -> None:
        seeds: Any = self.seeds
        if type(seeds) is int:
            require(seeds >= 1, f"run.seeds must be an int >= 1 or a list of seeds; got {seeds!r}")
            object.__setattr__(self, "seeds", tuple(range(seeds)))
        good = isinstance(self.seeds, tuple) and bool(self.seeds) and all(type(s) is int and s >= 0 for s in self.seeds)
        require(good, f"run.seeds must be an int >= 1 or a list of ints >= 0; got {seeds!r}")
        require(len(set(self.seeds)) == len(self.seeds), f"run.seeds repeat: {list(self.seeds)}; name each once")
        for name, least in (("rounds", 0), ("workers", 1), ("actors", 1), ("clients_per_round", 1), ("evaluate", 1)):
            value = getattr(self, name)
            optional = name in ("clients_per_round", "evaluate") and value is None
            require(
                optional or (type(value) is int and value >= least),
                f"run.{name} must be an int >= {least}; got {value!r}",
            )
        for name, allowed in (("kernel", ("auto", "loop")), ("engine", ("inprocess", "ray"))):
            value = getattr(self, name)
            require(value in allowed, f"run.{name} must be one of {', '.join(allowed)}; got {value!r}")
        good = isinstance(self.metrics, tuple) and all(isinstance(m, str) for m in self.metrics)
        require(good, f"run.metrics must be a list of names; got {self.metrics!r}")
        require(isinstance(self.device, str), f"run.device must be cpu or cuda; got {self.device!r}")
        good = is_number(self.timeout) and self.timeout > 0
        require(good, f"run.timeout must be a number of seconds > 0; got {self.timeout!r}")
        good = self.address is None or isinstance(self.address, str)
        require(good, f"run.address must be host:port or auto; got {self.address!r}")
        require(self.out is None or isinstance(self.out, str), f"run.out must be a folder; got {self.out!r}")
        check_field(
            self, "fold_validation", self.fold_validation, isinstance(self.fold_validation, bool), "true or false"
        )

    @property
    def engine_options(self) -> dict[str, Any]:
        """What `fit` must know of the engine; no number depends on it."""
        return {"engine": self.engine, "actors": self.actors, "address": self.address, "timeout": self.timeout}


@dataclass(frozen=True)
class MethodEntry:
    """One of [[methods]]: the method, what it is called here, its fields, and what differs from [local]."""

    name: str
    label: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A checked experiment.

    Attributes:
        data: the [data] table: `name` or `folder`, `label`, and options of the data set.
        split: the [split] table.
        model: the [model] table: `name`, its settings, `init` (a safetensors file) and `freeze` (patterns of parameter names).
        local: the [local] table.
        methods: the [[methods]].
        run: the [run] table.
        tune: the [tune] table: lists of values by METHOD.FIELD or local.FIELD.
        attack: the [attack] table: `name`, `clients` or `share`, and the attack's fields.
        personalise: the [personalise] table.
        where: the file or command that it comes from, for errors.
    """

    data: Mapping[str, Any]
    split: Mapping[str, Any]
    model: Mapping[str, Any]
    local: Mapping[str, Any]
    methods: tuple[MethodEntry, ...]
    run: RunSettings
    tune: Mapping[str, Any]
    where: str
    attack: Mapping[str, Any] = field(default_factory=dict)
    personalise: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], where: str) -> Experiment:
        """Check the tables of a TOML file. Raises `InputError` that names file, key, what is allowed and the nearest spelling."""
        for key in tables:
            require(key in TABLES, f"{where}: unknown table [{key}]; {nearest(key, TABLES)}")
        for key in (k for k in TABLES if k != "methods"):
            require(isinstance(tables.get(key, {}), dict), f"{where}: [{key}] must be a table")
        data = dict(tables.get("data", {}))
        require("name" in data or "folder" in data, f"{where}: [data] needs a name or a folder")
        for table, key in (
            ("data", "name"),
            ("data", "folder"),
            ("data", "label"),
            ("model", "name"),
            ("model", "init"),
        ):
            value = tables.get(table, {}).get(key, "")
            require(isinstance(value, str), f"{where}: {table}.{key} must be a text; got {value!r}")
        frozen = tables.get("model", {}).get("freeze", [])
        good = isinstance(frozen, list) and all(isinstance(p, str) for p in frozen)
        require(good, f"{where}: model.freeze must be a list of patterns; got {frozen!r}")
        local_settings(tables.get("local", {}), f"{where}, [local]")
        run = _settings(RunSettings, tables.get("run", {}), f"{where}, [run]")
        entries = tables.get("methods", [])
        require(
            isinstance(entries, list) and bool(entries),
            f"{where}: there is no [[methods]] entry; name at least one method",
        )
        methods = tuple(_entry(e, where) for e in entries)
        made = cls(
            data,
            dict(tables.get("split", {})),
            dict(tables.get("model", {"name": "logistic"})),
            dict(tables.get("local", {})),
            methods,
            run,
            dict(tables.get("tune", {})),
            where,
            dict(tables.get("attack", {})),
            {"part": Tuning.part, **tables["personalise"]} if "personalise" in tables else {},
        )
        twice = next((x for x in made.labels if made.labels.count(x) > 1), None)
        require(twice is None, f"{where}: two methods are called {twice!r}; give each a label of its own")
        made.build_model()
        made.build_attack()
        for entry in methods:
            made.build_method(entry)
        return made

    def tables(self) -> dict[str, Any]:
        """The tables of a TOML file with all defaults spelled out; what TOML cannot say (None) is left out."""
        methods = []
        for entry in self.methods:
            built = self.build_method(entry)
            spelled = (
                {k: v for k, v in _plain(built).items() if k != "local"} if dataclasses.is_dataclass(built) else {}
            )
            own = getattr(built, "local", None)
            local = {"local": _plain_local(own)} if isinstance(own, LocalSGD) else {}
            methods.append({"name": entry.name, "label": entry.label, **entry.fields, **spelled, **local})
        model = {**self.model}
        spec = self.build_model()
        if dataclasses.is_dataclass(spec):
            model.update(_plain(spec))
        tables = {
            "data": self.data,
            "split": self.split,
            "model": model,
            "local": _plain_local(local_settings(self.local, f"{self.where}, [local]")),
            "run": _plain(self.run),
            "tune": self.tune,
            "attack": self._attack_table(),
            "personalise": {} if (tuning := self.tuning) is None else _plain(tuning),
            "methods": methods,
        }
        return {k: v for k, v in _without_none(tables).items() if v or k == "methods"}

    def build_method(self, entry: MethodEntry) -> Any:
        """The method of an entry, with [local] below its own local settings."""
        where = f"{self.where}, method {entry.label!r}"
        method = find_method(entry.name)
        known = _parameters(method)
        fields = dict(entry.fields)
        _check_keys(fields, known, where)
        if known is None or "local" in known:
            fields["local"] = local_settings({**self.local, **entry.local}, where)
        elif entry.local:
            raise InputError(f"{where}: {entry.name} has no local training to set")
        try:
            return method(**{k: _tuple(v) for k, v in _scheduled(fields, method).items()})
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        except TypeError as error:
            raise InputError(
                f"{where}: {entry.name} cannot be made from {', '.join(fields) or 'nothing'} ({error})"
            ) from error

    def _attack_table(self) -> dict[str, Any]:
        built = self.build_attack()
        return {**self.attack, **(_plain(built) if dataclasses.is_dataclass(built) else {})}

    def build_attack(self) -> Any:
        """The attack of [attack], None if there is none."""
        if not self.attack:
            return None
        from coterie.attacks import ATTACKS

        where = f"{self.where}, [attack]"
        table = {k: v for k, v in self.attack.items() if k not in ("name", "clients", "share")}
        name, who = self.attack.get("name"), {"clients", "share"} & set(self.attack)
        require(isinstance(name, str), f'{where} needs a name, say name = "ipm"')
        require(len(who) == 1, f'{where}: say who attacks, either clients = ["..."] or share = 0.1')
        require(self.run.engine == "inprocess", f"{where}: attacks are simulated in process only; set run.engine")
        if ".py:" in str(name):
            return _settings(load_object(str(name)), table, where)
        require(name in ATTACKS, f"{where}: there is no attack {name!r}; {nearest(str(name), ATTACKS)}")
        return _settings(ATTACKS[str(name)], table, where)

    @property
    def attackers(self) -> tuple[str, ...] | float:
        """Names or share of the attackers; () for nobody."""
        who = self.attack.get("clients", self.attack.get("share", ()))
        found: tuple[str, ...] | float = tuple(who) if isinstance(who, list) else who
        return found

    @property
    def tuning(self) -> Tuning | None:
        """The settings of [personalise], None if there are none."""
        made = _settings(Tuning, self.personalise, f"{self.where}, [personalise]") if self.personalise else None
        return cast("Tuning | None", made)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of all results: of each method, and of its personalised form behind it."""
        tuning = self.tuning
        forms = ("",) if tuning is None else ("", f"+{tuning.part}")
        return tuple(m.label + form for m in self.methods for form in forms)

    @property
    def notes(self) -> list[str]:
        """Sentences about what is unusual in this experiment, for the report."""
        said = []
        if self.attack:
            who = self.attackers
            share = (
                f"a share of {who:g} of the clients, drawn from the seed"
                if isinstance(who, int | float)
                else ", ".join(who)
            )
            fields = ", ".join(
                f"{k} = {v}" for k, v in self._attack_table().items() if k not in ("name", "clients", "share")
            )
            said.append(
                f"under attack: {self.attack['name']}{f' ({fields})' if fields else ''} by {share}; evaluation is honest"
            )
        if self.tuning is not None:
            said.append("validation rows choose each client's personalisation, so that no method was trained on them")
        return said

    def build_model(self) -> Any:
        """The settings (or function) that build the model."""
        from coterie.models import MODELS

        table = {k: v for k, v in self.model.items() if k not in ("init", "freeze")}
        name = table.pop("name", "logistic")
        where = f"{self.where}, [model]"
        if ".py:" not in name:
            require(name in MODELS, f"{where}: there is no model {name!r}; {nearest(name, MODELS)}")
            return _settings(MODELS[name], table, where)
        made = load_object(name)
        if isinstance(made, type) and hasattr(made, "build"):
            return _settings(made, table, where)
        ready = isinstance(made, torch.nn.Module) or not callable(made)
        require(not (ready and table), f"{where}: {name} is made already, so {', '.join(table)} cannot be set")
        return functools.partial(made, **table) if table else made

    def load_data(self, seed: int) -> Clients:
        """The clients of this experiment for one seed."""
        from coterie.core.rows import Clients
        from coterie.data import load

        table = dict(self.data)
        name = table.pop("name", None)
        if name is None or ".py:" not in name:
            try:
                return load(table.pop("folder") if name is None else name, seed=seed, split=self.split or None, **table)
            except InputError as error:
                raise InputError(f"{self.where}: {error}" if self.where.endswith(".toml") else str(error)) from error
        made = load_object(name)
        if callable(made):
            try:
                made = made(seed=seed, **table, **({"split": dict(self.split)} if self.split else {}))
            except InputError:
                raise
            except Exception as error:
                raise InputError(f"{name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(made, Clients):
            raise InputError(
                f"{name} gives a {type(made).__name__}; it must give Clients, as coterie.data.from_tensors does"
            )
        return made

    def files(self, entry: MethodEntry) -> list[Path]:
        """The user's own files that a method of this experiment depends on, apart from a folder of data."""
        named = [self.data.get("name", ""), self.model.get("name", ""), entry.name, *self.run.metrics]
        named.append(self.attack.get("name", ""))
        init = [Path(self.model["init"])] if "init" in self.model else []
        return [Path(n.rpartition(":")[0]) for n in named if ".py:" in n] + init

    @property
    def title(self) -> str:
        """Name of the data set or folder, as a file name."""
        name = str(self.data.get("name") or self.data.get("folder"))
        return Path(name.rpartition(":")[0]).stem if ".py:" in name else Path(name).resolve().name or "run"

    def with_methods(self, methods: Sequence[MethodEntry]) -> Experiment:
        """The same experiment with other methods."""
        return replace(self, methods=tuple(methods))


def find_method(name: str) -> Callable[..., Any]:
    """A registered method, or the user's own as FILE.py:NAME."""
    if ".py:" in name:
        found = load_object(name)
        for part in ("init", "round", "models"):
            require(hasattr(found, part), f"{name} has no {part!r}; a method is an object with init, round and models")
        made: Callable[..., Any] = found if isinstance(found, type) else lambda: found
        return made
    return catalogue.find(name)


def _parameters(method: Callable[..., Any]) -> set[str] | None:
    """Names that `method` can be called with; None for any."""
    found = inspect.signature(method).parameters.values()
    return None if any(p.kind is p.VAR_KEYWORD for p in found) else {p.name for p in found}


def _scheduled(fields: Mapping[str, Any], method: Callable[..., Any]) -> dict[str, Any]:
    """`fields` of a method, with a `Schedule` for a table {start, at, factor} wherever its signature allows one."""
    kinds = {p.name: str(p.annotation) for p in inspect.signature(method).parameters.values()}
    return {
        k: _settings(Schedule, v, k) if isinstance(v, dict) and "Schedule" in kinds.get(k, "") else v
        for k, v in fields.items()
    }


def _check_keys(table: Mapping[str, Any], known: set[str] | None, where: str) -> None:
    for key in table:
        hint = nearest(key, known) if known else "it has none"
        require(known is None or key in known, f"{where}: unknown key {key!r}; {hint}")


def label_of(table: Mapping[str, Any]) -> str:
    """What a [[methods]] entry is called: its label, else its name, that of a class in a file in lower case."""
    name = str(table["name"])
    return str(table.get("label", name.rpartition(":")[2].lower() if ".py:" in name else name))


def local_settings(table: Mapping[str, Any], where: str) -> LocalSGD:
    """The `LocalSGD` of a [local] table: `steps` or `epochs` are ints, `batch_size = "all"` means all rows."""
    values = dict(table)
    known = {f.name for f in dataclasses.fields(LocalSGD)} | {"epochs"}
    for key in values:
        require(key in known, f"{where}: unknown key {key!r} of local training; {nearest(key, known)}")
    require(not {"steps", "epochs"} <= set(values), f"{where}: steps and epochs exclude each other; give one")
    try:
        for key, unit in (("steps", Steps), ("epochs", Epochs)):
            if key in values:
                count = values.pop(key)
                require(type(count) is int and count >= 1, f"{key} must be an int >= 1; got {count!r}")
                values["steps"] = unit(count)
        if values.get("batch_size") == "all":
            values["batch_size"] = None
        if isinstance(values.get("lr"), dict):
            values["lr"] = _settings(Schedule, values["lr"], "lr")
        if "sampler" in values:
            values["sampler"] = _sampler(values["sampler"], "sampler")
        return LocalSGD(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _sampler(table: Any, where: str) -> Any:
    """The sampler of `sampler = {name = "lipschitz", ...}`."""
    from coterie.samplers import SAMPLERS

    good = isinstance(table, dict) and isinstance(table.get("name"), str)
    require(good, f'{where} must be a table with a name, say {{name = "lipschitz"}}; got {table!r}')
    require(
        table["name"] in SAMPLERS, f"{where}: there is no sampler {table['name']!r}; {nearest(table['name'], SAMPLERS)}"
    )
    return _settings(SAMPLERS[table["name"]], {k: v for k, v in table.items() if k != "name"}, where)


def preset(name: str) -> dict[str, Any]:
    """The tables that `coterie compare NAME` starts from; those for a folder where NAME has none of its own."""
    tables = _preset(name)
    tables.pop("others", None)
    return tables


def preset_methods(name: str) -> list[dict[str, Any]]:
    """The [[methods]] entries of that preset, and further ones whose arguments it knows although it does not run them unasked."""
    tables = _preset(name)
    return [*tables.get("methods", []), *tables.get("others", [])]


def _preset(name: str) -> dict[str, Any]:
    path = PRESETS / f"{name}.toml"
    return read_tables(path if path.is_file() else PRESETS / "folder.toml")


def read_experiment(path: str | os.PathLike[str]) -> Experiment:
    """The experiment of a TOML file. Raises `InputError` that names the file and the key."""
    tables = read_tables(Path(path))
    tables.pop("deploy", None)  # of a plan for sites elsewhere, which one machine can try
    return Experiment.from_tables(tables, str(path))


def write_experiment(path: Path, experiment: Experiment) -> None:
    """Write an experiment with all defaults spelled out."""
    import tomli_w

    tables = experiment.tables()
    tables["run"].pop("out", None)  # it is where this file lies
    text = tomli_w.dumps(tables)
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises `InputError` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no valid TOML: {error}") from error


def _entry(table: Any, where: str) -> MethodEntry:
    require(
        isinstance(table, dict) and isinstance(table.get("name"), str), f"{where}: each [[methods]] entry needs a name"
    )
    fields = dict(table)
    name = fields.pop("name")
    label = fields.pop("label", label_of(table))
    good = isinstance(label, str) and bool(label) and not set(label) & set("/\\\n,")
    require(good, f"{where}: the label {label!r} of method {name!r} must be a word without slashes and commas")
    local = fields.pop("local", {})
    require(isinstance(local, dict), f"{where}: local of method {label!r} must be a table")
    find_method(name)
    return MethodEntry(name, label, fields, local)


def _settings(cls: Any, table: Mapping[str, Any], where: str) -> Any:
    _check_keys(table, _parameters(cls), where)
    try:
        return cls(**{k: _tuple(v) for k, v in table.items()})
    except (InputError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error


def _tuple(value: Any) -> Any:
    return tuple(_tuple(v) for v in value) if isinstance(value, list) else value


def _plain(value: Any) -> dict[str, Any]:
    return {f.name: _listed(getattr(value, f.name)) for f in dataclasses.fields(value)}


def _listed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_listed(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(value)
    return value


def _plain_local(local: LocalSGD) -> dict[str, Any]:
    values = _plain(local)
    values.pop("steps")
    if local.sampler is None:
        values.pop("sampler")
    else:
        from coterie.samplers import SAMPLERS

        called = {cls: name for name, cls in SAMPLERS.items()}
        values["sampler"] = {"name": called[type(local.sampler)], **values["sampler"]}
    unit = "epochs" if isinstance(local.steps, Epochs) else "steps"
    size = "all" if local.batch_size is None else local.batch_size
    return {**values, unit: local.steps.count, "batch_size": size}


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list | tuple) else value
