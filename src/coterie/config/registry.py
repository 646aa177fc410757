"""Plug-ins by name: one table for each kind, and one way to add to it.

The tables below list what comes with coterie. A package adds its own under `[project.entry-points."coterie.filters"]` of its
`pyproject.toml`, in the same form as here (`qsgd = "quantising.qsgd:QSGD"`); a program or a notebook does it with
`@register("filters", "qsgd")`; a single file needs neither, since `FILE.py:NAME` names what it holds. Names can be listed without an
import: torch is imported with the first class that is asked for.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Any, TypeVar

from coterie.base.errors import InputError, cut, nearest, prefix_errors
from coterie.config.rules import article, check_hooks, check_object
from coterie.config.schema import Choice, Flag, build, spell

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Registry(Choice, MutableMapping[str, Any]):
    """Classes, or functions, of one kind by name; `FILE.py:NAME` is one of the user's own.

    Args:
        kind: What they are, in the singular, for errors.
        group: The kind in the plural, as `register` and entry points (`coterie.GROUP`) call it.
        entries: Where each is imported from when it is first asked for: `module:Name`.
        base: The class whose hooks their values have, or where it is imported from; None: whatever a function makes.
        default: The name that a table without `name` means; empty: a table must have one.
        flag: The flag that chooses the name on the command line, if there is one.
        flagged: Entries whose fields may have flags of their own; importing them needs no torch.
        function: The arguments with which values are called, where they are functions.
        instances_of: Where the class is imported from whose objects values are, in place of classes.

    Attributes:
        places: Where those that come with coterie lie: the `entries` as they were given.
        added: What this program registered, by name; no other process has it.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        entries: Mapping[str, str],
        *,
        base: Any = None,
        default: str = "",
        flag: Flag | None = None,
        flagged: tuple[str, ...] = (),
        function: str = "",
        instances_of: str = "",
    ) -> None:
        self.kind, self.group, self.default = kind, group, default
        self.flag, self.flagged = flag, flagged
        self.function, self._instances_of = function, instances_of
        self.places: Mapping[str, str] = dict(entries)
        self._base = base
        # A value is a place until it is first asked for; those of packages come when all names are (`_all`).
        self._entries: dict[str, Any] = dict(entries)
        self._packaged = False
        self._files: dict[Any, str] = {}  # FILE.py:NAME of what files gave
        self._clashes: list[str] = []
        self.added: dict[str, Any] = {}

    def _all(self) -> dict[str, Any]:
        """The entries, with those of installed packages once these have been looked for."""
        if not self._packaged:
            self._packaged = True
            for point in _points():
                if point.group != f"coterie.{self.group}":
                    continue
                if point.name in self._entries:
                    self._clashes.append(
                        f"{_package(point)} has {article(self.kind)} {point.name!r} too, which is not used"
                    )
                else:
                    self._entries[point.name] = point
        return self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __getitem__(self, name: str) -> Any:
        entry = self._all()[name]
        if isinstance(entry, EntryPoint):
            entry = self._entries[name] = self._from_package(entry)
        elif isinstance(entry, str):
            entry = self._entries[name] = _import_place(entry)
        return entry

    def __setitem__(self, name: str, value: Any) -> None:
        self._all()[name] = self.added[name] = value

    def __delitem__(self, name: str) -> None:
        del self._all()[name]
        self.added.pop(name, None)

    def add(self, name: str, value: Any) -> None:
        """Let this program call `value` so, in place of what it called so before.

        Raises:
            InputError: A name that is none, or belongs to coterie or a package; or what is no function where it must be.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(
                f"{cut(name)} is no name of {article(self.kind)}; use letters, digits, . - _"
            )
        if self.function and not name.isidentifier():
            raise InputError(
                f"a {self.kind}'s name must be an identifier; got {cut(name)}"
            )
        if self.function and not callable(value):
            raise InputError(
                f"a {self.kind} must be a function {self.function}; got {cut(value)}"
            )
        self._check_instance(value, name)
        if name in self and name not in self.added:
            raise InputError(
                f"there is {article(self.kind)} {name!r} already; give yours another name"
            )
        self[name] = value

    def _from_package(self, point: EntryPoint) -> Any:
        try:
            value = point.load()
        except Exception as error:  # of another author's code
            raise InputError(
                f"the {self.kind} {point.name!r} of {_package(point)} cannot be imported: {type(error).__name__}: {error}; "
                "mend or uninstall that package"
            ) from error
        with prefix_errors(f"the {self.kind} {point.name!r} of {_package(point)}"):
            self._check_class(value, point.value)
        return value

    def _check_instance(self, value: Any, name: str) -> None:
        """Raise `InputError` unless `value` is an object of the class that values of this kind have, where they have one."""
        if not self._instances_of:
            return
        cls = _import_place(self._instances_of)
        if not isinstance(value, cls):
            raise InputError(
                f"{name} is a {type(value).__name__}; {article(self.kind)} is a {cls.__module__.rpartition('.')[0]}.{cls.__name__} "
                f"({cls.__name__}(...)), so name that"
            )

    def _check_class(self, value: Any, name: str) -> None:
        """Raise `InputError` unless `value` is a class with the hooks of this kind, where the kind has some."""
        self._check_instance(value, name)
        if self._base is not None:
            if not isinstance(value, type):
                raise InputError(
                    f"{name} is no class of {article(self.kind)}; got {cut(value)}"
                )
            check_hooks(value, self.base)

    @property
    def base(self) -> Any:
        """The class whose hooks the values have; None if there is none."""
        self._base = _import_place(self._base)
        return self._base

    def importable(
        self, names: Iterable[str] | None = None
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Import entries, all if none are named: those that can be imported, by name, and a sentence about each that cannot."""
        values: dict[str, Any] = {}
        if names is None:
            names = list(self)
        problems = [*self._clashes]
        for name in names:
            try:
                values[name] = self[name]
            except InputError as error:
                problems.append(str(error))
        return values, tuple(problems)

    def find(self, name: str, where: str = "") -> Any:
        """The class called `name`. Raises `InputError` with the nearest spelling, or for a file that has no such class."""
        if ".py:" in name:
            from coterie.base.modules import (
                load_object,
            )  # which needs torch, as names do not

            value = load_object(name)
            with prefix_errors(where):
                self._check_class(value, name)
            if isinstance(value, type):
                self._files[value] = name
            return value
        value = self._entries.get(name)
        if value is not None and not isinstance(value, str | EntryPoint):
            return value
        with prefix_errors(where):
            if name not in self:
                hint = f"FILE.py:NAME is {article(self.kind)} of your own"
                raise InputError(
                    f"there is no {self.kind} {name!r}; {nearest(name, self)}; {hint}"
                )
            return self[name]

    def check_value(self, value: Any, where: str) -> Any:
        """Return the value, if a run can use it as one of this registry. Raises `InputError` that says what it lacks."""
        if self._base is not None:
            with prefix_errors(where):
                check_object(value, self.base)
        return value

    def resolve(self, value: Any, where: str) -> Any:
        """Return what a name, FILE.py:NAME or a table says, or the value itself. Raises `InputError` for what a run cannot use.

        Args:
            value: A name, a table with a `name`, or an object.
            where: What begins errors about a name or a table.

        >>> FILTERS.resolve("top-k", "filters")
        TopK(share=0.01)
        """
        if isinstance(value, str):
            return self.build({"name": value}, where)
        if isinstance(value, Mapping):
            return self.build(value, where)
        return self.check_value(value, "")

    def build(self, table: Any, where: str, *, named: str = "") -> Any:
        """Build the value that a table says by `name` and the fields of that class."""
        if not isinstance(table, Mapping) or not isinstance(
            table.get("name", self.default or None), str
        ):
            example = next(iter(self), "FILE.py:NAME")
            raise InputError(
                f'{where} must be a table with a name, say {{name = "{example}"}}; got {table!r}'
            )
        fields = {k: v for k, v in table.items() if k != "name"}
        cls = self.find(table.get("name", self.default), where)
        return self.check_value(build(cls, fields, where, named=named), where)

    def name_of(self, cls: Any) -> str | None:
        """Return the name of a class or function; None if it has none. Nothing is imported."""
        place = f"{getattr(cls, '__module__', '')}:{getattr(cls, '__qualname__', '')}"
        for name, entry in self._all().items():
            # An entry point says its place as `value`.
            if entry is cls or place == getattr(entry, "value", entry):
                return name
        return self._files.get(cls)

    def spell(self, value: Any) -> dict[str, Any]:
        """Return the table that says the same as `value`. Raises `InputError` if its class has no name."""
        name = self.name_of(type(value))
        if name is None:
            class_name = type(value).__name__
            raise InputError(
                f"a {self.kind} of class {class_name} has no name in files; give FILE.py:{class_name}"
            )
        table = {"name": name}
        if dataclasses.is_dataclass(value):
            table.update(spell(value))
        return table


def register(group: str, name: str) -> Callable[[T], T]:
    """Let files, the command line and Python call a class or a function by a name, in this program.

    Args:
        group: Its kind: methods, samplers, filters, attacks, models, datasets, metrics, engines or trackers.
        name: The name, of letters, digits, dots, hyphens and underscores.

    Raises:
        InputError: An unknown kind, a name that is no such text or belongs to coterie or a package, or what is no function.

    >>> @register("metrics", "constant")
    ... def constant(outputs, labels, kind):
    ...     return 1.0
    >>> METRICS["constant"] is constant
    True
    >>> del METRICS["constant"]
    """
    if group not in KINDS:
        raise InputError(
            f"there is no kind {group!r} to register; {nearest(group, KINDS)}"
        )

    def add(value: T) -> T:
        KINDS[group].add(name, value)
        return value

    return add


@cache
def _points() -> tuple[EntryPoint, ...]:
    """The entry points of installed packages for coterie, by name; reading them imports nothing."""
    points: dict[tuple[str, str], EntryPoint] = {}
    for package in distributions():
        for point in package.entry_points:
            # The first on the path is the one that is imported.
            if point.group.startswith("coterie."):
                points.setdefault((point.group, point.name), point)
    return tuple(points[key] for key in sorted(points))


def _package(point: EntryPoint) -> str:
    if point.dist is None:
        return "a package"
    return f"the package {point.dist.name} {point.dist.version}"


def _import_place(value: Any) -> Any:
    """A class, or what `module:Name` says."""
    if not isinstance(value, str):
        return value
    module, _, attribute = value.partition(":")
    return getattr(importlib.import_module(module), attribute)


METHODS = Registry(
    "method",
    "methods",
    {
        "local": "coterie.algorithms.local:Local",
        "centralised": "coterie.algorithms.centralised:Centralised",
        "fixed-effects": "coterie.algorithms.fixed_effects:FixedEffects",
        "cox": "coterie.algorithms.cox:Cox",
        "partial": "coterie.algorithms.partial:Partial",
        "fedavg": "coterie.algorithms.fedavg:FedAvg",
        "fedprox": "coterie.algorithms.fedprox:FedProx",
        "meritfed": "coterie.algorithms.meritfed:MeritFed",
        "varsel": "coterie.algorithms.varsel:VaRSeL",
        "maxfl": "coterie.algorithms.maxfl:MaxFL",
        "isfl": "coterie.samplers.isfl:ISFL",
        "scaffold": "coterie.algorithms.scaffold:SCAFFOLD",
        "feddyn": "coterie.algorithms.feddyn:FedDyn",
        "fedavgm": "coterie.algorithms.server_rules:FedAvgM",
        "fedadam": "coterie.algorithms.server_rules:FedAdam",
        "fedyogi": "coterie.algorithms.server_rules:FedYogi",
        "fedadagrad": "coterie.algorithms.server_rules:FedAdagrad",
        "fednova": "coterie.algorithms.fednova:FedNova",
        "moon": "coterie.algorithms.moon:MOON",
        "qffl": "coterie.algorithms.qffl:QFFL",
        "mwfed": "coterie.algorithms.mwfed:MWFed",
        "perfedavg": "coterie.algorithms.perfedavg:PerFedAvg",
        "fedfomo": "coterie.algorithms.fedfomo:FedFomo",
        "ditto": "coterie.algorithms.ditto:Ditto",
        "apfl": "coterie.algorithms.apfl:APFL",
        "pfedme": "coterie.algorithms.pfedme:PFedMe",
        "fedper": "coterie.algorithms.personal_layers:FedPer",
        "fedrep": "coterie.algorithms.personal_layers:FedRep",
        "fedbabu": "coterie.algorithms.personal_layers:FedBABU",
        "fedbn": "coterie.algorithms.personal_layers:FedBN",
        "fedproto": "coterie.algorithms.fedproto:FedProto",
        "fedala": "coterie.algorithms.fedala:FedALA",
        "ifca": "coterie.algorithms.ifca:IFCA",
        "cfl": "coterie.algorithms.cfl:CFL",
        "fedamp": "coterie.algorithms.fedamp:FedAMP",
        "pfedgraph": "coterie.algorithms.pfedgraph:PFedGraph",
        "fedcollab": "coterie.algorithms.fedcollab:FedCollab",
        "dpfl": "coterie.algorithms.dpfl:DPFL",
        "fedadp": "coterie.algorithms.fedadp:FedAdp",
        "tawt": "coterie.algorithms.tawt:TAWT",
        "power-of-choice": "coterie.algorithms.power_of_choice:PowerOfChoice",
        "selective": "coterie.algorithms.selective:SelectiveLearning",
        "ocs": "coterie.algorithms.ocs:OCS",
        "uniform-is": "coterie.samplers.uniform_is:UniformIS",
        "pj-is": "coterie.samplers.pj_is:PjIS",
        "isfedavg": "coterie.samplers.isfedavg:ISFedAvg",
        "sgd-full": "coterie.algorithms.sgd:SGDFull",
        "sgd-ideal": "coterie.algorithms.sgd:SGDIdeal",
        "target-only": "coterie.algorithms.sgd:TargetOnly",
        "median": "coterie.algorithms.robust:Median",
        "trimmed-mean": "coterie.algorithms.robust:TrimmedMean",
        "geometric-median": "coterie.algorithms.robust:GeometricMedian",
        "multi-krum": "coterie.algorithms.robust:MultiKrum",
    },
    base="coterie.contract.method:Method",
)
"""Methods, in the order in which they are listed; `ct.NAME` follows from the class."""

SAMPLERS = Registry(
    "sampler",
    "samplers",
    {
        "lipschitz": "coterie.samplers.isfl:LipschitzSampler",
        "uniform-classes": "coterie.samplers.uniform_is:UniformClassSampler",
        "class-shares": "coterie.samplers.pj_is:ClassShareSampler",
        "gradient-norm": "coterie.samplers.isfedavg:GradientNormSampler",
    },
    base="coterie.contract.method:Sampler",
)
"""Values that `[local] sampler = {name = ...}` can name."""

FILTERS = Registry(
    "filter",
    "filters",
    {
        "bf16": "coterie.filters.bf16:BF16",
        "clip": "coterie.filters.clip:Clip",
        "gaussian-noise": "coterie.filters.gaussian_noise:GaussianNoise",
        "int8": "coterie.filters.int8:Int8",
        "top-k": "coterie.filters.top_k:TopK",
    },
    base="coterie.contract.filters:Filter",
)
"""Values that `[[filters]] name = ...` can name."""

ATTACKS = Registry(
    "attack",
    "attacks",
    {
        "ipm": "coterie.attacks.kinds:IPM",
        "alie": "coterie.attacks.kinds:ALIE",
        "sign-flip": "coterie.attacks.kinds:SignFlip",
        "noise": "coterie.attacks.kinds:Noise",
        "loss-inflation": "coterie.attacks.kinds:LossInflation",
        "label-flip": "coterie.attacks.kinds:LabelFlip",
        "nan": "coterie.attacks.kinds:NaN",
        "dropout": "coterie.attacks.kinds:Dropout",
        "straggler": "coterie.attacks.kinds:Straggler",
    },
    base="coterie.contract.attack:Attack",
    flag=Flag("--attack", "NAME"),
)
"""Values that `[attack] name = ...` and `--attack` can name."""

MODELS = Registry(
    "model",
    "models",
    {
        "logistic": "coterie.models.specs:Logistic",
        "mlp": "coterie.models.specs:MLP",
        "2nn": "coterie.models.specs:TwoNN",
        "cnn": "coterie.models.specs:CNN",
        "char-lstm": "coterie.models.specs:CharLSTM",
        "resnet8": "coterie.models.resnets:ResNet8",
        "resnet9": "coterie.models.resnets:ResNet9",
        "resnet18": "coterie.models.resnets:ResNet18",
        "mean": "coterie.models.specs:Mean",
    },
    default="logistic",
    flag=Flag("--model", "NAME"),
)
"""Values that `[model] name = ...` can name: settings whose `build` makes a module."""

DATASETS = Registry(
    "data set", "datasets",
    {name: f"coterie.data.sets.{name.replace('-', '_')}:DATASET" for name in (
        "heart-disease", "nhefs", "nhefs-survival", "digits", "fashion-mnist", "cifar10", "cifar100", "emnist", "goemotions",
        "medmnist", "shakespeare", "sent140", "mean-estimation",
    )},
    instances_of="coterie.data.sets:Dataset",
)  # fmt: skip
"""Values that `coterie compare NAME` and `[data] name = ...` can name: each a `coterie.data.Dataset`."""

METRICS = Registry(
    "metric", "metrics",
    {name: f"coterie.compute.metrics:{name}" for name in (
        "accuracy", "balanced_accuracy", "auc", "auprc", "class_error", "poisson_deviance", "top5", "mae", "rmse", "sensitivity",
        "specificity", "ppv", "npv", "f1", "brier", "ece", "r2", "c_index", "uno_c", "horizon_brier",
        "horizon_calibration", "integrated_brier",
    )},
    function="(outputs, labels, kind)",
)  # fmt: skip
"""Values that `[run] metrics = [...]` can name: functions (outputs, labels, kind) -> number."""

ENGINES = Registry(
    "engine",
    "engines",
    {
        "inprocess": "coterie.engines.inprocess:InProcess",
        "ray": "coterie.engines.ray_settings:Ray",
    },
    base="coterie.contract.engine:EngineSpec",
    default="inprocess",
    flag=Flag("--engine", "NAME"),
    flagged=("inprocess", "ray"),
)
"""Values that `[engine] name = ...` can name."""

CALLBACKS = Registry(
    "callback",
    "trackers",
    {
        "early-stopping": "coterie.run.callbacks:EarlyStopping",
        "mlflow": "coterie.run.trackers.mlflow:MLflow",
        "tensorboard": "coterie.run.trackers.tensorboard:TensorBoard",
        "wandb": "coterie.run.trackers.wandb:WandB",
    },
    base="coterie.run.callbacks:Callback",
)
"""Values that `[[callbacks]] name = ...` can name: loggers, and whatever else follows a run."""

KINDS: Mapping[str, Registry] = {
    registry.group: registry
    for registry in (
        METHODS,
        SAMPLERS,
        FILTERS,
        ATTACKS,
        MODELS,
        DATASETS,
        METRICS,
        ENGINES,
        CALLBACKS,
    )
}
"""The registries by what `register` and entry points call them."""


def short_names(metrics: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of metrics without the file of the user's own ones; of functions, what they are called.

    >>> short_names(["accuracy", "own.py:margin"])
    ('accuracy', 'margin')
    """
    return tuple(
        str(getattr(metric, "__name__", metric)).rpartition(":")[2]
        for metric in metrics
    )
