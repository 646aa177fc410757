"""The results of a run: the history, what it cost, and the models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.base.clients import Clients
from coterie.base.errors import InputError, explain_imports, nearest, no_attribute
from coterie.base.files import open_tensors, write_tensors
from coterie.base.loss import Kind, Loss
from coterie.base.metric_names import find_metric
from coterie.base.rows import Inputs, LabelScale
from coterie.base.spelling import count, html_table
from coterie.base.vector import Layout, copy_model, export
from coterie.contract.exchange import AskRecord
from coterie.contract.method import Log
from coterie.data import apply_recipe
from coterie.run.contribution import ContributionRow
from coterie.run.files import METRICS, WRITER, require_format
from coterie.run.predictions import Answers, Prediction

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


Curves = Mapping[str, tuple[Sequence[int], Sequence[float]]]
"""By label: rounds [k] and values [k]."""
COLUMNS = 4
INCHES = 3.0


class Row(NamedTuple):
    """One number of the history: client `*` and an empty split for what belongs to the whole round."""

    round: int
    client: str
    split: str
    metric: str
    value: float


class Timing(NamedTuple):
    """Seconds of a round on the wall, and of them those outside of asks: the method's own work (descent, QP, average)."""

    round: int
    seconds: float
    own: float | None = None


class History(list[Row]):
    """All numbers of a run, in the order in which they were made.

    >>> History([Row(0, "a", "test", "loss", 0.7), Row(5, "a", "test", "loss", 0.4)]).select(metric="loss", client="a")
    [(0, 0.7), (5, 0.4)]
    """

    def select(self, metric: str, client: str = "*", split: str | None = None) -> list[tuple[int, float]]:
        """(round, value) of one metric of one client; `split` may be left out where there is only one.

        Raises `InputError` where there are several and none is named, and for a metric, a client or a split that there is not.
        """
        metrics = {r.metric for r in self}
        metric = find_metric(metric, sorted(metrics))
        if metric not in metrics:
            raise InputError(f"the history has no {metric!r}; {nearest(metric, metrics)}")
        rows = [r for r in self if r.metric == metric]
        clients = {r.client for r in rows}
        if client not in clients:
            raise InputError(f"the history has no {metric} of client {client!r}; {nearest(client, clients)}")
        rows = [r for r in rows if r.client == client]
        splits = {r.split for r in rows}
        if split is None:
            names = " and ".join(sorted(splits))
            if len(splits) != 1:
                raise InputError(f"{metric} of {client!r} was measured on {names}; name one: split=...")
        else:
            spelling = nearest(split, splits)
            if split not in splits:
                raise InputError(f"the history has no {metric} of {client!r} on {split!r} rows; {spelling}")
            rows = [r for r in rows if r.split == split]
        return [(r.round, r.value) for r in rows]

    def __repr__(self) -> str:
        return f"<history of {len(self)} numbers in {len({r.round for r in self})} rounds>"


class Meaning(NamedTuple):
    """The meaning of outputs, and the recipe that makes inputs of rows of tables.

    Attributes:
        kind: how outputs are read.
        classes: names of the classes; empty for regression.
        scale: scale of the labels of a regression.
        recipe: how raw rows become inputs; None where clients were not made from tables.
        last: the classes lie in the last dimension of outputs, not in dimension 1.
    """

    kind: Kind
    classes: tuple[str, ...] = ()
    scale: LabelScale = LabelScale()
    recipe: Mapping[str, Any] | None = None
    last: bool = False

    @classmethod
    def of(cls, loss: Loss, clients: Clients) -> Meaning:
        """Return the meaning of outputs that were trained with this loss on these clients."""
        return cls(loss.kind, clients.classes, clients.label_scale, clients.recipe, loss.last)


_CURES = {
    **dict.fromkeys(
        ("model", "global_model", "get_model"),
        'write run.predict(inputs), or load run.state_dict("CLIENT") into a model of yours',
    ),
    **dict.fromkeys(
        ("metrics", "accuracy", "losses", "scores", "results"),
        'write run.history.select("accuracy", "CLIENT", "test"), or run.to_pandas()',
    ),
}
"""The line to write where people look for results under another name."""


@dataclass(repr=False)
class Run:
    """A finished run: its models and its history.

    Attributes:
        method, seed, rounds: as given.
        state: state of the method, after the last round.
        models: a model [d + b] by client, and under `*` one for all clients that have none of their own.
        history: all numbers.
        weights: weights of the last round: by target (`*`: one model for all clients) and client, divided by their sum.
        weight_rows: (round, target, client, weight) at evaluation rounds.
        contributions: what each client's update added to a target in a round, if `settings.contribution` asks for it.
        summary: rows as in `summary.json`, for the last model.
        seconds: by round; the part without asks is what the method itself took.
        asks: one record per ask.
        failures: last reason of each client that ever failed.
        module: the module that the vectors belong to.
        meaning: what outputs mean, for `predict`; None of a run without clients in this process.
        elsewhere: clients whose own models stay with them, since they are other parties.

    >>> import coterie as ct
    >>> clients = ct.data.load("heart-disease")
    >>> run = ct.fit(ct.FedAvg(), clients, model="logistic", rounds=2)
    >>> run.rounds, run.label, tuple(run.x.shape)
    (2, 'FedAvg', (16,))
    """

    method: Any
    seed: int
    rounds: int
    state: Any
    models: Mapping[str, Tensor]
    module: nn.Module
    history: History = field(default_factory=History)
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    weight_rows: list[tuple[int, str, str, float]] = field(default_factory=list)
    contributions: list[ContributionRow] = field(default_factory=list)
    summary: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[Timing] = field(default_factory=list)
    asks: list[AskRecord] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    meaning: Meaning | None = None
    elsewhere: tuple[str, ...] = ()

    if not TYPE_CHECKING:  # a type checker finds such a name itself

        def __getattr__(self, name: str) -> object:
            if name in _CURES:
                raise no_attribute(self, name, _CURES)
            return object.__getattribute__(self, name)  # Python's own error, or that of a property

    @property
    def label(self) -> str:
        """Name of the method: its class, or the name in a saved run."""
        return self.method if isinstance(self.method, str) else type(self.method).__name__

    def __repr__(self) -> str:
        models = (
            "one model for all clients"
            if set(self.models) == {"*"}
            else f"models of {count(len(self.models), 'client')}"
        )
        failed = f", {count(len(self.failures), 'client')} failed" if self.failures else ""
        return f"<run of {self.label}: {count(self.rounds, 'round')}, seed {self.seed}, {models}{failed}>"

    @property
    def x(self) -> Tensor:
        """The model [d + b] for all clients, or the only one."""
        if "*" in self.models:
            return self.models["*"]
        if len(self.models) > 1:
            raise InputError(f"this run has a model for each of {', '.join(self.models)}; take run.models[name]")
        return next(iter(self.models.values()))

    def state_dict(self, client: str = "*", *, trained_only: bool = False) -> Mapping[str, Tensor]:
        """A state dict for the module that was trained; of the model for all clients, or of a client's own.

        With `trained_only` it lacks frozen parameters and counters, such as the backbone below adapters: load it with
        `module.load_state_dict(..., strict=False)`.
        """
        chosen = self.models.get(client, self.models.get("*"))
        if chosen is None:
            raise InputError(f"this run has no model for {client!r}; {nearest(client, self.models)}")
        return export(chosen, self.module, Layout.of(self.module), trained_only=trained_only)

    def predict(self, rows: Any, client: str = "*") -> Prediction:
        """Predict new rows with a client's model, or with the one for all clients.

        Args:
            rows: a data frame or a file with the columns of tables; for other clients a tensor [rows, ...], an array or a dict of them.
            client: whose model.

        Raises:
            InputError: no such model, or rows that do not fit.
        """
        if self.meaning is None:
            raise InputError("this run does not say what its outputs mean; make it with ct.fit")
        kind, classes, scale, recipe, last = self.meaning
        module = copy_model(self.module).cpu()
        module.load_state_dict(self.state_dict(client))
        labels, notes = None, tuple[str, ...]()
        inputs: Inputs
        try:
            if recipe is not None and not isinstance(rows, Tensor):
                inputs, labels, notes = apply_recipe(recipe, rows)
            elif isinstance(rows, dict):
                inputs = {k: torch.as_tensor(v) for k, v in rows.items()}
            else:
                inputs = torch.as_tensor(rows)
            answers = Answers(module, kind, classes, scale, last=last)
            return answers.predict(inputs, labels, method=self.label, client=client, notes=notes)
        except InputError:
            raise
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f"the model cannot read these rows: {str(error).splitlines()[0]}") from error

    def to_pandas(self, table: str = "history") -> pd.DataFrame:
        """The history as a data frame (round, client, split, metric, value); or the `summary`, the `weights` or the `contributions`.

        Raises `InputError` for another name.
        """
        import pandas as pd

        tables: dict[str, tuple[Sequence[Any], Sequence[str] | None]] = {
            "history": (self.history, Row._fields),
            "summary": (self.summary, None),
            "weights": (self.weight_rows, ("round", "target", "client", "weight")),
            "contributions": (self.contributions, ContributionRow._fields),
        }
        if table not in tables:
            raise InputError(f"there is no table {table!r}; {nearest(table, tables)}")
        rows, columns = tables[table]
        return pd.DataFrame(list(rows), columns=columns)

    def plot(self, metric: str = "loss", split: str | None = None) -> Figure:
        """A matplotlib figure (extra `plot`) of a metric over rounds, with a panel for each client.

        Raises `InputError` for a metric that the history does not have.
        """
        split = split or self._split
        rows = [r for r in self.history if (r.metric, r.split) == (metric, split)]
        panels: dict[str, Curves] = {}
        for client in dict.fromkeys(r.client for r in rows):
            points = self.history.select(metric, client, split)
            panels[client] = {"": ([number for number, _ in points], [value for _, value in points])}
        return draw(panels, f"{metric} ({split})")

    @property
    def _split(self) -> str:
        """The rows that results are about: test rows, or what there is."""
        splits = {row["split"] for row in self.summary}
        return next((s for s in ("test", "validation", "train") if s in splits), "test")

    def _repr_html_(self) -> str:
        rows = [row for row in self.summary if row["split"] == self._split]
        metrics = [m for m in METRICS if any(row.get(m) is not None for row in rows)]
        cells = [["client", "rows", *metrics]]
        cells += [[row["client"], str(row["n"]), *(_cell(row.get(m)) for m in metrics)] for row in rows]
        return html_table(f"{repr(self)[1:-1]}; {self._split} rows", cells)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write models, history, weights and summary to one safetensors file; not the method's state, nor what was asked."""
        meaning = None if self.meaning is None else self.meaning._asdict()
        values = {name: getattr(self, name) for name in _KEPT}
        metadata = {**WRITER, "method": self.label, "meaning": meaning, **values}
        write_tensors(Path(path), self.models, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str], module: nn.Module) -> Run:
        """Read what `save` wrote, with the module that the models belong to; `method` is then a name, and `state` None.

        Raises `InputError` if the file is none of these or damaged, or of another module.
        """
        with open_tensors(Path(path), "pt", "it is not a saved run of this version") as (file, metadata):
            models = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
            require_format(metadata, Path(path))
            values = {name: metadata[name] for name in _KEPT}
            meaning = metadata["meaning"]
            run = cls(metadata["method"], state=None, models=models, module=module, **values)
            if meaning is not None:
                exact = {"classes": tuple(meaning["classes"]), "scale": LabelScale(*meaning["scale"])}
                run.meaning = Meaning(**{**meaning, **exact})
            run.history = History(Row(*row) for row in metadata["history"])
            run.seconds = [Timing(*row) for row in metadata["seconds"]]
            run.weight_rows = [tuple(row) for row in metadata["weight_rows"]]
            run.contributions = [ContributionRow(*row) for row in metadata["contributions"]]
        size, size_of_module = len(next(iter(models.values()))), Layout.of(module).size
        if size != size_of_module:
            raise InputError(
                f"{path} has models of {size} numbers, and this module has {size_of_module}; give the one of the run"
            )
        return run


_KEPT = ("seed", "rounds", "history", "weights", "weight_rows", "contributions", "summary", "seconds", "failures")
"""Fields that `Run.save` writes as JSON."""


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "-"


@dataclass
class Record:
    """Numbers of a run round by round. Attributes as of `Run`."""

    history: History = field(default_factory=History)
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    weight_rows: list[tuple[int, str, str, float]] = field(default_factory=list)
    contributions: list[ContributionRow] = field(default_factory=list)
    seconds: list[Timing] = field(default_factory=list)

    def add(self, number: int, log: Log, *, with_weights: bool = False) -> None:
        """Write down what a method says of a round; its weights as rows only in rounds that are evaluated."""
        for key, value in log.items():
            if key == "weights":
                self._add_weights(number, value, with_weights)
            elif isinstance(value, Mapping):
                self.history += [Row(number, k, "", key, float(v)) for k, v in value.items()]
            else:
                self.history.append(Row(number, "*", "", key, float(value)))

    def _add_weights(self, number: int, value: Mapping[str, Any], with_rows: bool) -> None:
        nested = bool(value) and all(isinstance(v, Mapping) for v in value.values())
        by_target = value if nested else {"*": value}
        self.weights = {t: _shares(w) for t, w in by_target.items()}
        if with_rows:
            for target, weights in self.weights.items():
                self.weight_rows += [(number, target, c, w) for c, w in weights.items()]


def _shares(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {k: (v / total if total else v) for k, v in weights.items()}


def draw(panels: Mapping[str, Curves], metric: str) -> Figure:
    """A figure with a panel of curves over rounds for each client.

    Args:
        panels: curves by client; at least one.
        metric: what the values are.

    Raises:
        InputError: there is nothing to draw, or no matplotlib.
    """
    if not panels:
        raise InputError(f"the history has no {metric} to draw")
    figure, axes = _figure(len(panels))
    for axis, (client, curves) in zip(axes, panels.items(), strict=False):
        for label, (rounds, values) in curves.items():
            axis.plot(rounds, values, label=label)
        axis.set_title(client)
        axis.set_xlabel("round")
    axes[0].set_ylabel(metric)
    if any(label for curves in panels.values() for label in curves):
        axes[0].legend()
    return figure


def _figure(panels: int) -> tuple[Figure, list[Any]]:
    with explain_imports("plot needs matplotlib", "plot"):
        from matplotlib.figure import Figure
    columns = min(panels, COLUMNS)
    rows = -(-panels // columns)
    figure = Figure(figsize=(columns * INCHES, rows * INCHES), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axis in axes[panels:]:
        axis.set_visible(False)
    return figure, axes
