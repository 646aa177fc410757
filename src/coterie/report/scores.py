"""The numbers of a run directory (docs/run-directory.md), read back without any of the code that made them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeGuard

import numpy as np

from coterie.base.errors import InputError, nearest
from coterie.base.files import path_exists, read_json, read_toml
from coterie.base.metric_names import PRINTED
from coterie.report.evidence import SMALLEST
from coterie.report.files import coinciding, over_folds, read_combination, summary_rows
from coterie.report.history import Vector
from coterie.report.memo import cache_answers
from coterie.report.outcomes import paired_rows, site_test_rows
from coterie.report.text import display_names, is_number, label_in_words, printable
from coterie.run.files import (
    ALL,
    LONG_HISTORY,
    METRICS,
    OBJECT,
    SUMMARY,
    YARDSTICKS,
    higher_is_better,
    own_loss,
    require_readable,
)

FILES = (
    "summary.json",
    "history.csv",
    "weights.csv",
    "timing.csv",
    "environment.json",
    "notes.json",
    "experiment.toml",
)
THRESHOLD = 0.5
PREVALENCE = "prevalence"
REFERENCES = ("centralised", *YARDSTICKS)


@dataclass(frozen=True)
class Scores:
    """The numbers of one run directory.

    Attributes:
        folder: the run directory.
        methods: labels, in the order of the experiment; only those with results, and of federated ones that coincide in every
            digit only the first.
        coincide: labels of the methods that coincide with one of `methods`, by its label.
        algorithms: registered name of each method.
        seeds: all seeds that some method finished, sorted. Every array "[seeds]" is in this order.
        clients: names, in the order of the summary.
        tables: seeds that tested rows of the same table; several of them where runs with other rows were combined.
        runs: names of the runs that were combined; empty for one run.
        experiment, environment, saved_notes: content of the files of these names.
        threshold: the risk of class 1 from which a row is called positive, or "validation": chosen by client and seed.
        decision_threshold: the risk at which decisions are judged; None: the prevalence at each client.
        smallest: the smallest effect of interest, as `report.evidence.SMALLEST` says.
    """

    folder: Path
    methods: tuple[str, ...]
    algorithms: dict[str, str]
    seeds: tuple[int, ...]
    clients: tuple[str, ...]
    experiment: dict[str, Any]
    environment: dict[str, Any]
    saved_notes: tuple[str, ...]
    cells: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = field(repr=False)
    coincide: dict[str, tuple[str, ...]] = field(default_factory=dict)
    threshold: float | str = THRESHOLD
    decision_threshold: float | None = None
    smallest: float = SMALLEST
    tables: tuple[tuple[int, ...], ...] = ()
    runs: tuple[str, ...] = ()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        threshold: float | str | None = None,
        smallest: float | None = None,
    ) -> Self:
        """Read a run directory; an `InputError` names the file that is missing or broken, and the cure.

        Without a `threshold`, or a `smallest`, that of the experiment's [report] is taken. Where no threshold is named, rows are called
        positive from .5 on, and decisions are judged at the prevalence of each client.
        """
        folder = Path(folder)
        if not path_exists(folder, Path.is_dir):
            raise InputError(
                f"there is no run directory {str(folder)!r}; `coterie compare` writes one"
            )
        missing = [f for f in FILES if not (folder / f).is_file()]
        if "history.csv" in missing and (folder / LONG_HISTORY).is_file():
            missing.remove("history.csv")
        if missing:
            raise InputError(
                f"{folder} lacks {', '.join(missing)}; finish the run with --resume, or name another folder"
            )
        require_readable(folder)
        summary = summary_rows(folder / "summary.json")
        if not summary:
            raise InputError(
                f"{folder / 'summary.json'} holds no results yet; finish the run with --resume"
            )
        experiment = read_toml(folder / "experiment.toml")
        rows = [row for row in summary if row["fold"] != ALL]
        algorithms = {}
        for row in rows:
            algorithms[row["method"]] = str(row.get("algorithm", row["method"]))
        report = _table(experiment, "report")
        if threshold is None:
            threshold = report.get("threshold", PREVALENCE)
        threshold = threshold_of(threshold)
        named: float | None = None
        if isinstance(threshold, float):
            named = threshold
        if smallest is None:
            smallest = report.get("smallest", SMALLEST)
        notes = read_json(folder / "notes.json", list)
        environment = read_json(folder / "environment.json", dict)
        ordered = _in_order(algorithms, experiment)
        alone = ("local", *REFERENCES)
        federated = [m for m in ordered if algorithms[m] not in alone]
        coincide = coinciding(federated, rows)
        twins = set(itertools.chain(*coincide.values()))
        seeds = sorted({row["seed"] for row in rows})
        runs, tables = read_combination(folder, seeds)
        # Decisions are judged at the prevalence, but rows are called positive from .5 on.
        called_from = THRESHOLD if threshold == PREVALENCE else threshold
        return cls(
            folder=folder,
            methods=tuple(m for m in ordered if m not in twins),
            coincide=coincide,
            algorithms=algorithms,
            seeds=tuple(seeds),
            tables=tables,
            runs=runs,
            clients=tuple(dict.fromkeys(row["client"] for row in rows)),
            experiment=experiment,
            environment=environment,
            saved_notes=tuple(map(str, notes)),
            cells=_cells_of(over_folds(rows), paired_rows(folder)),
            threshold=called_from,
            decision_threshold=named,
            smallest=smallest_of(smallest),
        )

    # Who takes part

    @cached_property
    def baseline(self) -> str | None:
        """The method that trains every client alone, if there is one."""
        return next((m for m in self.methods if self.algorithms[m] == "local"), None)

    @property
    def references(self) -> tuple[str, ...]:
        """Methods that stand for comparison only: all rows in one place, or a yardstick that is not trained together."""
        return tuple(m for m in self.methods if self.algorithms[m] in REFERENCES)

    @property
    def federated(self) -> tuple[str, ...]:
        """Methods that partners could choose instead of staying alone."""
        alone = ("local", *REFERENCES)
        return tuple(m for m in self.methods if self.algorithms[m] not in alone)

    @cached_property
    def primary(self) -> str | None:
        """The federated method that speaks: the one that [report] names, else `partial`, else the first of the experiment.

        A name that no method has, or one with no results, counts as none; of methods that coincide the first one stands for all.
        """
        named = _table(self.experiment, "report").get("primary")
        for method in self.federated:
            if named is not None and named in (method, *self.coincide.get(method, ())):
                return method
        partial = [m for m in self.federated if self.algorithms[m] == "partial"]
        return next(iter((*partial, *self.federated)), None)

    @property
    def against(self) -> str | None:
        """The method that others are compared with: `baseline`, else the first that is not a reference."""
        if self.baseline:
            return self.baseline
        return next((m for m in self.methods if m not in self.references), None)

    def personal_part(self, method: str) -> str | None:
        """Return which part of this method's model is tuned at each client afterwards, if any."""
        tuning = _entries(self.experiment).get(method, {}).get("personalise")
        if not isinstance(tuning, dict):
            return None
        return str(tuning.get("part"))

    def keeps_rows_to_tune(self, method: str) -> bool:
        """Return True if validation rows choose how this method's model is tuned, so that it was not trained on them."""
        return self.personal_part(method) in ("all", "last", "bias")

    def pools_at_home(self, method: str) -> bool:
        """Return True if each client draws its own slopes to those of this method afterwards."""
        return self.personal_part(method) == "pool"

    def recalibrates(self, method: str) -> bool:
        """Return True if the bias of this method is tuned at each client afterwards."""
        return self.personal_part(method) == "bias"

    def own_models(self, method: str) -> bool:
        """Return True if every client that this method serves has a model of its own."""
        for client in self.clients_of(method):
            by_seed = self.cells[method, client, self.split]
            if not all(row.get("own_model") for row in by_seed.values()):
                return False
        return True

    @cached_property
    def names(self) -> dict[str, str]:
        """Display name of each client."""
        return display_names(self.clients)

    @cached_property
    def split(self) -> str:
        """The rows that results are about: test rows, or what there is."""
        splits = {split for _, _, split in self.cells}
        for split in ("test", "validation", "train"):
            if split in splits:
                return split
        return min(splits)

    @cached_property
    def test_clients(self) -> tuple[str, ...]:
        """Clients of whose rows some method has a result; with folds those with fewer than 5 rows train and are not tested."""
        return tuple(c for c in self.clients if self.methods_for(c))

    # Metrics

    @property
    def _rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the summary that are about `split`, of every method, client and seed."""
        for (_, _, split), by_seed in self.cells.items():
            if split == self.split:
                yield from by_seed.values()

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that have at least one value: the known ones first, then the user's own."""
        # A dict keeps the order in which the columns of own metrics come.
        columns: dict[str, bool] = {}
        for row in self._rows:
            for key, value in row.items():
                columns[key] = columns.get(key, False) or _finite(value)
        own_metrics = [k for k in columns if k not in {*SUMMARY, *METRICS}]
        return tuple(m for m in (*METRICS, *own_metrics) if columns.get(m))

    @cached_property
    def classification(self) -> bool:
        """True if there is an accuracy."""
        return "accuracy" in self.metrics

    @cached_property
    def of_events(self) -> bool:
        """True if the label is a time to event."""
        return "c_index" in self.metrics

    @property
    def of_counts(self) -> bool:
        """True if the label is a count with exposure."""
        return self.label().get("task") == "counts"

    @property
    def ranking(self) -> str:
        """The metric of how rows are ranked, which can veto a join."""
        return "c_index" if self.of_events else "auc"

    @property
    def model(self) -> str:
        """The registered name of the model; empty where the experiment does not say."""
        return str(_table(self.experiment, "model").get("name", ""))

    @property
    def title(self) -> str:
        """Name of the data as a user typed it."""
        data = _table(self.experiment, "data")
        name = str(data.get("name") or "")
        if not name:
            folder = data.get("folder") or self.folder
            name = Path(str(folder)).name
        if name.startswith(OBJECT) and name.count(":") > 1:
            # An object of a program: its name stands between the mark and its hash.
            return name.split(":")[1]
        return name

    @cached_property
    def _recipes(self) -> dict[str, dict[str, Any]]:
        path = self.folder / "preprocess.json"
        if not path.is_file():
            return {}
        return read_json(path, dict)

    def label(self, seed: int | None = None) -> dict[str, Any]:
        """Return the label in the recipe of a seed (None: the first); empty if rows are not those of tables."""
        recipe = self._recipes.get(str(seed)) or next(iter(self._recipes.values()), {})
        label: dict[str, Any] = recipe.get("label", {})
        return label

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the inputs; empty if rows are not those of tables."""
        recipe = next(iter(self._recipes.values()), {})
        return tuple(map(str, recipe.get("features", ())))

    @property
    def columns(self) -> list[dict[str, Any]]:
        """Return the recipe of each column of the inputs; empty if rows are not those of tables."""
        recipe = next(iter(self._recipes.values()), {})
        columns: list[dict[str, Any]] = recipe.get("columns", [])
        return columns

    @cached_property
    def predicts(self) -> str:
        """Return the words for the label: `num > 0, 1 = disease`; empty if the run does not say."""
        if not self.label():
            return ""
        return printable(label_in_words(self.label()))

    @property
    def positive(self) -> str:
        """The name of class 1 of two, if it is more than a number; else empty."""
        classes = [printable(str(c)) for c in self.label().get("classes") or ()]
        if len(classes) != 2 or is_number(classes[1]):
            return ""
        return classes[1]

    def unit(self, metric: str) -> str:
        """The unit of a metric, if it has one that is known: that of the label."""
        if metric not in ("mae", "rmse"):
            return ""
        return printable(str(self.label().get("unit", "")))

    @cached_property
    def magnitude(self) -> dict[str, float]:
        """The median of each metric in the unit of the label, which says what digits tell."""
        medians = {}
        for metric in ("mae", "rmse"):
            values = [row[metric] for row in self._rows if _finite(row.get(metric))]
            if values:
                medians[metric] = float(np.median(values))
        return medians

    def metric_name(self, metric: str) -> str:
        """Return the name that people have for a metric."""
        if metric != "loss":
            return PRINTED.get(metric, metric.replace("_", " "))
        has_log_loss = self.classification or self.of_events
        if has_log_loss and not own_loss(self.experiment):
            return "log-loss"
        return "loss"

    def metric_title(self, metric: str) -> str:
        """The same for a heading: with the label and its unit where the metric has one."""
        title = self.metric_name(metric)
        if metric in ("mae", "rmse") and self.label():
            title += f" of {printable(str(self.label()['column']))}"
        if self.unit(metric):
            title += f" in {self.unit(metric)}"
        return title

    @staticmethod
    def higher_is_better(metric: str) -> bool:
        """False for losses and errors."""
        return higher_is_better(metric)

    def values(
        self, method: str, client: str | None, metric: str, split: str | None = None
    ) -> Vector:
        """One value per seed [seeds]; NaN where undefined or not run. `client=None`: the mean over all clients that are tested.

        The mean is undefined for a method that lacks a result for some client, and leaves out clients for whom the
        metric is undefined (AUC with one class).
        """
        if method not in self.algorithms:
            raise InputError(
                f"no method {method!r} in {self.folder}; {nearest(method, self.methods)}"
            )
        if client is None:
            return self._mean_over_clients(method, metric, split or self.split)
        if client not in self.names:
            raise InputError(
                f"no client {client!r} in {self.folder}; {nearest(client, self.clients)}"
            )
        return self._vector(method, client, metric, split or self.split)

    def _vector(self, method: str, client: str, metric: str, split: str) -> Vector:
        by_seed = self.cells.get((method, client, split), {})
        values = np.full(len(self.seeds), math.nan)
        for i, seed in enumerate(self.seeds):
            value = by_seed.get(seed, {}).get(metric)
            if _finite(value):
                values[i] = value
        return values

    @cache_answers
    def _mean_over_clients(self, method: str, metric: str, split: str) -> Vector:
        clients = self.clients
        if split == self.split:
            clients = self.test_clients
        table = np.stack([self._vector(method, c, metric, split) for c in clients])
        finite = np.isfinite(table)
        # A seed in which nobody has a value divides 0 by 0: NaN, as meant.
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(finite, table, 0).sum(axis=0) / finite.sum(axis=0)
        for client in clients:
            has_result = self.cells.get((method, client, split), {})
            mean[[seed not in has_result for seed in self.seeds]] = math.nan
        return np.asarray(mean, dtype=float)

    def mean(self, method: str, client: str | None, metric: str) -> float:
        """Mean over the seeds that have a value; NaN if none has."""
        return _mean(self.values(method, client, metric))

    def common(
        self, method: str, rival: str, client: str | None, metric: str
    ) -> tuple[float, float]:
        """Means of two methods over the seeds that both have."""
        scores = self.values(method, client, metric)
        rival_scores = self.values(rival, client, metric)
        finite = np.isfinite(scores) & np.isfinite(rival_scores)
        return _mean(scores[finite]), _mean(rival_scores[finite])

    @cache_answers
    def size(self, client: str | None, key: str = "n") -> float:
        """Rows of a client (`n` evaluated, `n_train` trained on), mean over the seeds of a table; `None`: all clients together."""
        if client is None:
            return sum(self.size(c, key) for c in self.test_clients)
        for method in (self.against, *self.methods):
            by_seed = self.cells.get((method or "", client, self.split), {})
            sizes = []
            for seeds in self.tables:
                entries = [by_seed[seed].get(key) for seed in seeds if seed in by_seed]
                mean = _mean(np.array([entry for entry in entries if _finite(entry)]))
                if math.isfinite(mean):
                    sizes.append(mean)
            if sizes:
                # Tables hold rows of other patients: their means add up.
                return float(sum(sizes))
        return math.nan

    def constant(self, client: str | None, key: str) -> Vector:
        """Return a value that depends on client and seed only (`majority`, `majority_loss`): one value per seed [seeds]."""
        values = np.full(len(self.seeds), math.nan)
        for method in self.methods:
            next_values = self.values(method, client, key)
            values = np.where(np.isfinite(values), values, next_values)
        return values

    def cost(self, method: str) -> float:
        """Row gradients of a whole run, mean over seeds; NaN if unknown."""
        for client in self.clients:
            by_seed = self.cells.get((method, client, self.split), {})
            entries = [row.get("row_gradients") for row in by_seed.values()]
            gradients = [float(entry) for entry in entries if _finite(entry)]
            if gradients:
                return sum(gradients) / len(gradients)
        return math.nan

    @property
    def cost_unit(self) -> str | None:
        """The method whose budget counts as 1: fedavg, else the first federated one, else the first."""
        named = [m for m in self.methods if self.algorithms[m] == "fedavg"]
        for method in (*named, *self.federated, *self.methods):
            if self.cost(method) > 0:
                return method
        return None

    def seeds_wanted(self, method: str) -> int:
        """With how many seeds a method was to run."""
        wanted = len(self.seeds)
        entry = _entries(self.experiment).get(method, {})
        return min(int(entry.get("seeds", wanted)), wanted)

    @cached_property
    def of_fewer_seeds(self) -> list[str]:
        """Methods that were to run with some of the seeds alone, whose means are over these."""
        every = len(self.seeds)
        return [m for m in self.methods if self.seeds_wanted(m) < every]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is unusual: those that the run has saved, and which methods have fewer seeds."""
        every = len(self.seeds)
        fewer = [
            f"{method}: {self.seeds_wanted(method)} of {every} repeats, on which it is compared"
            for method in self.of_fewer_seeds
        ]
        return (*self.saved_notes, *fewer)

    def seeds_of(self, method: str) -> set[int]:
        """The seeds for which this method has results."""
        seeds: set[int] = set()
        for client in self.clients:
            seeds |= set(self.cells.get((method, client, self.split), {}))
        return seeds

    def seed_count(self, method: str) -> int:
        """Number of seeds for which this method has results."""
        return len(self.seeds_of(method))

    def find_client(self, name: str) -> str:
        """The client of this name, as `called` finds it. Raises `InputError` if there is none."""
        client = self.called(name)
        if client in self.clients:
            return client
        raise InputError(f"there is no client {name!r}; {nearest(name, self.clients)}")

    def called(self, name: str) -> str:
        """The client of this name, in any case or as reports print it; the name itself where nobody or more than one is called so."""
        if name in self.clients:
            return name
        folded = name.casefold()
        alike = [
            client
            for client, shown in self.names.items()
            if folded in (client.casefold(), shown.casefold())
        ]
        return alike[0] if len(alike) == 1 else name

    def methods_for(self, client: str) -> tuple[str, ...]:
        """The methods that have a model for a client."""
        return tuple(m for m in self.methods if (m, client, self.split) in self.cells)

    def clients_of(self, method: str) -> tuple[str, ...]:
        """The clients that `method` has a model for."""
        return tuple(c for c in self.clients if (method, c, self.split) in self.cells)


def threshold_of(setting: object) -> float | str:
    """The risk from which a row is called positive, as it is said in a file or typed; "validation" and "prevalence" stay.

    Raises:
        InputError: it is neither of these nor between 0 and 1.
    """
    if setting in ("validation", PREVALENCE):
        return str(setting)
    try:
        value = float(str(setting))
    except ValueError:
        value = math.nan
    if 0 < value < 1:
        return value
    raise InputError(
        f"threshold is {setting!r}; give a risk between 0 and 1, say 0.3, or prevalence, or validation"
    )


def _finite(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _mean(values: Vector) -> float:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return math.nan
    return float(finite.sum() / finite.size)


def _cells_of(
    rows: Sequence[dict[str, Any]], paired: Sequence[dict[str, Any]]
) -> dict[tuple[str, str, str], dict[int, dict[str, Any]]]:
    """Rows of a summary by (method, client, split), then by seed; sites' own test rows (`paired`) are among them."""
    cells: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}
    for row in (*rows, *site_test_rows(rows, paired)):
        cell = (row["method"], row["client"], row["split"])
        by_seed = cells.setdefault(cell, {})
        by_seed[row["seed"]] = row
    return cells


def _table(experiment: dict[str, Any], name: str) -> dict[str, Any]:
    """A table of an experiment; empty where the file has none, or something else of this name."""
    table = experiment.get(name)
    if not isinstance(table, dict):
        return {}
    return table


def _entries(experiment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The [[methods]] of an experiment by their labels."""
    entries = experiment.get("methods")
    if not isinstance(entries, list):
        return {}
    by_label = {}
    for entry in entries:
        if isinstance(entry, dict):
            by_label[str(entry.get("label") or entry.get("name"))] = entry
    return by_label


def _in_order(
    algorithms: dict[str, str], experiment: dict[str, Any]
) -> tuple[str, ...]:
    named = [m for m in _entries(experiment) if m in algorithms]
    return tuple(dict.fromkeys([*named, *algorithms]))


def smallest_of(setting: object) -> float:
    """The smallest effect of interest, as it is said in a file or typed.

    Raises:
        InputError: it is not between 0 and 1.
    """
    try:
        value = float(str(setting))
    except ValueError:
        value = math.nan
    if 0 < value < 1:
        return value
    raise InputError(
        f"smallest is {setting!r}; give an effect between 0 and 1, say 0.01"
    )
