"""A finished run: its models, its history, and what it cost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coterie.base.errors import InputError, nearest, no_attribute
from coterie.base.files import open_tensors, write_tensors
from coterie.base.label_form import LabelForm
from coterie.base.loss import Meaning
from coterie.base.rows import Inputs, LabelScale
from coterie.base.spelling import count, html_table
from coterie.base.vector import Layout, copy_model, export
from coterie.contract.exchange import AskRecord
from coterie.data import apply_recipe
from coterie.run.contribution import ContributionRow
from coterie.run.figure import Curves, draw
from coterie.run.files import METRICS, WRITER, require_format
from coterie.run.history import History, Row, Timing
from coterie.run.predictions import Answers, Prediction

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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
        prior: what clients share beside their models, for methods that learn such (`Method.prior`).

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
    prior: Mapping[str, Any] = field(default_factory=dict)

    if not TYPE_CHECKING:  # a type checker finds such a name itself

        def __getattr__(self, name: str) -> object:
            if name in _CURES:
                raise no_attribute(self, name, _CURES)
            return object.__getattribute__(
                self, name
            )  # Python's own error, or that of a property

    @property
    def label(self) -> str:
        """Name of the method: its class, or the name in a saved run."""
        if isinstance(self.method, str):
            return self.method
        return type(self.method).__name__

    def __repr__(self) -> str:
        about = f"{count(self.rounds, 'round')}, seed {self.seed}, "
        if set(self.models) == {"*"}:
            about += "one model for all clients"
        else:
            about += f"models of {count(len(self.models), 'client')}"
        if self.failures:
            about += f", {count(len(self.failures), 'client')} failed"
        return f"<run of {self.label}: {about}>"

    @property
    def x(self) -> Tensor:
        """The model [d + b] for all clients, or the only one."""
        if "*" in self.models:
            return self.models["*"]
        if len(self.models) > 1:
            raise InputError(
                f"this run has a model for each of {', '.join(self.models)}; take run.models[name]"
            )
        return next(iter(self.models.values()))

    def state_dict(
        self, client: str = "*", *, trained_only: bool = False
    ) -> Mapping[str, Tensor]:
        """A state dict for the module that was trained; of the model for all clients, or of a client's own.

        With `trained_only` it lacks frozen parameters and counters, such as the backbone below adapters: load it with
        `module.load_state_dict(..., strict=False)`.
        """
        chosen = self.models.get(client, self.models.get("*"))
        if chosen is None:
            raise InputError(
                f"this run has no model for {client!r}; {nearest(client, self.models)}"
            )
        return export(
            chosen, self.module, Layout.of(self.module), trained_only=trained_only
        )

    def predict(self, rows: Any, client: str = "*") -> Prediction:
        """Predict new rows with a client's model, or with the one for all clients.

        Args:
            rows: a data frame or a file with the columns of tables; for other clients a tensor [rows, ...], an array or a dict of them.
            client: whose model.

        Raises:
            InputError: no such model, rows that do not fit, or the name of a file where the run was not made from tables.
        """
        if self.meaning is None:
            raise InputError(
                "this run does not say what its outputs mean; make it with ct.fit"
            )
        kind, classes, scale, recipe, last, form = self.meaning
        if recipe is None and isinstance(rows, str | os.PathLike):
            raise InputError(
                "this run was not made from tables: give an array, not the name of a file, such as numpy.load(file)[name] of an npz"
            )
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
            answers = Answers(module, kind, classes, scale, last=last, form=form)
            return answers.predict(
                inputs, labels, method=self.label, client=client, notes=notes
            )
        except InputError:
            raise
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"the model cannot read these rows: {str(error).splitlines()[0]}"
            ) from error

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
        points: dict[str, tuple[list[int], list[float]]] = {}
        for number, client, part, value in self.history.of_metric(metric):
            if part == split:
                rounds, values = points.setdefault(client, ([], []))
                rounds.append(number)
                values.append(value)
        panels: dict[str, Curves] = {
            client: {"": curve} for client, curve in points.items()
        }
        return draw(panels, f"{metric} ({split})")

    @property
    def _split(self) -> str:
        """The rows that results are about: test rows, or what there is."""
        splits = {row["split"] for row in self.summary}
        return next((s for s in ("test", "validation", "train") if s in splits), "test")

    def _repr_html_(self) -> str:
        rows = [row for row in self.summary if row["split"] == self._split]
        measured: set[str] = set()
        for row in rows:
            measured.update(name for name, value in row.items() if value is not None)
        metrics = [metric for metric in METRICS if metric in measured]
        cells = [["client", "rows", *metrics]]
        for row in rows:
            values = [_cell(row.get(metric)) for metric in metrics]
            cells.append([row["client"], str(row["n"]), *values])
        return html_table(f"{repr(self)[1:-1]}; {self._split} rows", cells)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write models, what clients share, history, weights and summary to one safetensors file; not the method's state, nor asks."""
        meaning = None
        if self.meaning is not None:
            meaning = self.meaning._asdict()
        if meaning is not None:
            form = meaning.pop("form")
            if form is not None:
                meaning["form"] = vars(form)
        values = {name: getattr(self, name) for name in _KEPT} | {
            "history": self.history.columns()
        }
        shared = {k: v for k, v in self.prior.items() if isinstance(v, Tensor)}
        others = {k: v for k, v in self.prior.items() if k not in shared}
        metadata = {
            **WRITER,
            "method": self.label,
            "meaning": meaning,
            "prior": others,
            **values,
        }
        tensors = {f"{_PRIOR}{name}": x for name, x in shared.items()}
        write_tensors(Path(path), {**self.models, **tensors}, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str], module: nn.Module) -> Run:
        """Read what `save` wrote, with the module that the models belong to; `method` is then a name, and `state` None.

        Raises `InputError` if the file is none of these or damaged, or of another module.
        """
        with open_tensors(
            Path(path), "pt", "it is not a saved run of this version"
        ) as (file, metadata):
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
            require_format(metadata, Path(path))
            prior = dict(metadata["prior"])
            if "clients" in prior:
                prior["clients"] = tuple(prior["clients"])  # JSON has lists alone
            models = {}
            for name, x in tensors.items():
                if name.startswith(_PRIOR):
                    prior[name.removeprefix(_PRIOR)] = x
                else:
                    models[name] = x
            values = {name: metadata[name] for name in _KEPT}
            meaning = metadata["meaning"]
            run = cls(
                metadata["method"],
                state=None,
                models=models,
                module=module,
                prior=prior,
                **values,
            )
            if meaning is not None:
                exact: dict[str, Any] = {
                    "classes": tuple(meaning["classes"]),
                    "scale": LabelScale(*meaning["scale"]),
                }
                if "form" in meaning:
                    exact["form"] = LabelForm(**meaning["form"])
                run.meaning = Meaning(**{**meaning, **exact})
            run.history = History.of_columns(metadata["history"])
            run.seconds = [Timing(*row) for row in metadata["seconds"]]
            run.weight_rows = [tuple(row) for row in metadata["weight_rows"]]
            run.contributions = [
                ContributionRow(*row) for row in metadata["contributions"]
            ]
        size, size_of_module = len(next(iter(models.values()))), Layout.of(module).size
        if size != size_of_module:
            raise InputError(
                f"{path} has models of {size} numbers, and this module has {size_of_module}; give the one of the run"
            )
        return run


_PRIOR = "*/"
"""What the names of tensors that clients share begin with in the file of a run; other tensors are models."""

_KEPT = (
    "seed",
    "rounds",
    "history",
    "weights",
    "weight_rows",
    "contributions",
    "summary",
    "seconds",
    "failures",
)
"""Fields that `Run.save` writes as JSON."""


def _cell(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:.3f}"
    return "-"
