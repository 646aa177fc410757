"""One recipe for the tables of all clients, from statistics that a real federation may share.

A recipe says which columns become which features. It is fitted in two exchanges, each a function of a cohort that
answers with one entry per client, so that the same lines serve files in one folder and hospitals on a network:

1. `describe`: names and kinds of the columns, the categories of texts, the values of the label.
2. `moments`: per column of numbers, and of a label to regress on, the count, the mean and the sum of squares about that mean over
   TRAINING rows, missing values not counted. They are joined as Chan, Golub and LeVeque (1983) do, so that a column such as a year
   does not lose its variance to rounding.

`encode.encode` turns any table into inputs with the recipe alone: a missing number becomes the pooled mean (0 after scaling),
a missing or unknown category is all zeros. A label to regress on is stored as (label - mean) / scale, so that no result depends on
its unit. Test and validation rows influence nothing but the list of classes.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, NamedTuple, Required, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import require
from coterie.base.vector import Layout
from coterie.contract.task import Form, task
from coterie.data.tables.columns import Column, Table
from coterie.data.tables.spelling import fold, names_rows, spell

__all__ = [
    "ColumnRecipe",
    "Description",
    "Draft",
    "LabelRecipe",
    "Moments",
    "Recipe",
    "TableCohort",
    "describe",
    "example",
    "fit_recipe",
    "moments",
]

MANY_CATEGORIES = 100
"""A column of texts with more distinct values at one client is left out, unless it is named as categorical."""

RARE = "(rare)"
"""The category of all that are pooled."""

ENOUGH_TO_TELL = 10
"""Values from which on "all distinct" means an identifier and not a small sample."""

UNIT = 8.0
"""Factor between the means of clients from which on their units may differ."""

APART = 6.0
"""Standard deviations between the means of clients from which on their units may differ."""

SHAPE = 3.0
"""Factor up to which deviations may differ in another proportion than means if only the unit differs."""


class ColumnRecipe(TypedDict, total=False):
    """How one column becomes features.

    Attributes:
        name: of the column.
        kind: "number" or "category".
        mean, scale: of a number: (value - mean) / scale.
        signs: units that its numbers are written with.
        categories: one feature for each.
        rare: whether the last of them, `RARE`, stands for all that are not there.
    """

    name: Required[str]
    kind: Required[str]
    mean: float
    scale: float
    signs: list[str]
    categories: list[str]
    rare: bool


class LabelRecipe(TypedDict, total=False):
    """What is predicted.

    Attributes:
        column, kind: of the table.
        task: "classification" or "regression".
        above: cuts a label of numbers into two classes.
        values, classes: the label's values in the order of the classes, and what those are called; empty for regression.
        spellings: values that stand for others.
        signs: units that its numbers are written with.
        meaning, unit: in words, for reports.
        mean, scale: of a label to regress on, which is stored as (value - mean) / scale.
    """

    column: Required[str]
    task: Required[str]
    kind: Required[str]
    above: Required[float | None]
    values: Required[list[str]]
    classes: Required[list[str]]
    spellings: dict[str, str]
    signs: list[str]
    meaning: str
    unit: str
    mean: float
    scale: float


class Recipe(TypedDict):
    """How the columns of any table become inputs and labels, as `preprocess.json` holds it.

    Attributes:
        version: of this form.
        label: what is predicted.
        columns: in the order of their features.
        features: names of the inputs.
        missing: values that stand for "missing", by column.
        rename: columns that have another name in some files.
        notes: sentences about what was left out, mapped or imputed.
    """

    version: int
    label: LabelRecipe
    columns: list[ColumnRecipe]
    features: list[str]
    missing: dict[str, list[Any]]
    rename: dict[str, str]
    notes: list[str]


class Draft(Recipe):
    """A recipe without means and scales, and the training rows of each client that they are to be taken over."""

    training_rows: dict[str, int]


class TableCohort:
    """The tables of the clients that live here, sorted by name."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.names = tuple(sorted(tables))
        self.tables = [tables[name] for name in self.names]


class Description(NamedTuple):
    """Reply of `describe`: one JSON text per client."""

    text: tuple[str, ...]


def _columns(payload: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    return (len(json.loads(payload["schema"])),)


class Moments(NamedTuple):
    """Reply of `moments`, float64 [n, c] each for n clients and c columns; missing values are not counted."""

    counts: Annotated[Tensor, "other", Form(_columns, within=(0.0, 1e15))]
    means: Annotated[Tensor, "other", Form(_columns)]
    squares: Annotated[Tensor, "other", Form(_columns, within=(0.0, 1e300))]


@task
def describe(cohort: TableCohort, *, label: str, categorical: str = "[]", rare: int = 0) -> Description:
    """What the server must know about each client's columns. `categorical`: JSON list of columns to take as such.

    Categories are those of training rows, without those of fewer than `rare` rows. Those of a column that looks like an
    identifier stay where they are.
    """
    named = set(json.loads(categorical))
    return Description(tuple(json.dumps(_describe(table, label, named, rare)) for table in cohort.tables))


def _describe(table: Table, label: str, categorical: set[str], rare: int) -> dict[str, Any]:
    train = table.parts["train"]
    columns = {}
    for name, column in table.columns.items():
        if name != label:
            columns[name] = _describe_column(name, column, train, name in categorical, rare)
    target = table.columns[label]
    values = {str(t) for t in target.spelled if t is not None}
    return {
        "rows": len(train),
        "source": table.source,
        "columns": columns,
        "label": {
            "kind": target.kind,
            "whole": target.numbers is not None and bool((target.numbers % 1 == 0).all()),
            "signs": list(target.signs),
            "distinct": len(values),
            "values": sorted(values) if len(values) <= MANY_CATEGORIES else [],
        },
    }


def _describe_column(name: str, column: Column, train: NDArray[np.int64], chosen: bool, rare: int) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": column.kind, "signs": list(column.signs), "unknown": list(column.unknown)}
    if column.problem is not None:
        out["problem"], *out["example"] = column.problem
    elif column.kind == "number" and not chosen:
        numbers = (column.numbers if column.numbers is not None else np.zeros(0))[train]
        numbers = numbers[~np.isnan(numbers)]
        distinct, whole = len(np.unique(numbers)), bool((numbers % 1 == 0).all())
        out["unique"] = whole and distinct == len(numbers)
        out["identifier"] = whole and 2 * distinct >= len(numbers) and names_rows(name)
    elif column.kind == "text" or (chosen and column.kind in ("number", "boolean")):
        present = [str(t) for t in column.spelled[train] if t is not None]
        counts = Counter(map(fold, present))
        unique = len(set(present)) == len(present)
        categories = [text for text in sorted(set(present)) if counts[fold(text)] >= rare]
        out["pooled"] = len(categories) < len(set(present))
        out["identifier"] = unique and len(present) >= ENOUGH_TO_TELL
        out["unique"] = unique
        hidden = not chosen and (out["identifier"] or len(categories) > MANY_CATEGORIES)
        out["categories"] = [] if hidden else categories
        out["distinct"] = len(categories)
        if column.kind == "text" and not chosen:
            out.setdefault("example", example(column))
    return out


def example(column: Column) -> list[Any]:
    """The first cell that is not a number, else the first, and its data row, for the sentence about a column of two kinds."""
    cells = ((row, str(text)) for row, text in enumerate(column.spelled, 1) if text is not None)
    first = next(cells)
    words = (c for c in chain([first], cells) if not re.fullmatch(r"[-+]?\d*[.,]?\d+([eE][-+]?\d+)?", c[1]))
    row, text = next(words, first)
    return [row, text[:40]]


@task
def moments(cohort: TableCohort, *, schema: str) -> Moments:
    """Count, mean, and sum of squares about that mean, of the columns in `schema` (JSON list) over training rows.

    The answer depends on nothing that a server may choose but the columns: about a centre of the server's choice, sums of squares
    would tell rows.
    """
    names = json.loads(schema)
    out = np.zeros((3, len(cohort.tables), len(names)))
    for i, table in enumerate(cohort.tables):
        for j, name in enumerate(names):
            numbers = table.columns[name].numbers
            values = np.zeros(0) if numbers is None else numbers[table.parts["train"]]
            values = values[~np.isnan(values)]
            if len(values):
                with np.errstate(over="ignore", invalid="ignore"):  # too large numbers are refused by name in `_scale`
                    mean = values.mean()
                    out[:, i, j] = len(values), mean, ((values - mean) ** 2).sum()
    return Moments(*(torch.from_numpy(a) for a in out))


def fit_recipe(draft: Draft, ask: Callable[..., Any]) -> Recipe:
    """`draft` (of `describe.draft_recipe`) with the mean and scale of each column of numbers, and of a label to regress on.

    `ask(task, **payload)` puts a task to all clients; its reply has a leading client dimension. The result survives
    JSON unchanged.
    """
    numbers = [c for c in draft["columns"] if c["kind"] == "number"]
    label, names = draft["label"], [c["name"] for c in numbers]
    schema = [*names, label["column"]] if label["task"] == "regression" else names
    told = ask(moments, schema=json.dumps(schema))
    count = told.counts.sum(0)
    mean = (told.counts * told.means).sum(0) / count.clamp(min=1)
    squares = told.squares + told.counts * (told.means - mean) ** 2  # Chan, Golub, LeVeque 1983, eq. 1.5b
    variance = squares.sum(0) / count.clamp(min=1)
    for j, column in enumerate(numbers):
        column["mean"], column["scale"] = _scale(f"column {column['name']!r}", float(mean[j]), float(variance[j]))
    if label["task"] == "regression":
        label["mean"], label["scale"] = _scale(f"label {label['column']!r}", float(mean[-1]), float(variance[-1]))
        require(
            not _is_constant(label["mean"], float(variance[-1])),
            f"label {label['column']!r} is {label['mean']:g} in all training rows of all clients; there is nothing to learn",
        )
    empty = {c["name"] for j, c in enumerate(numbers) if count[j] == 0}
    columns = [c for c in draft["columns"] if c["name"] not in empty]
    notes = [f"left out: {', '.join(sorted(empty))} (no value in any client's training rows)"] if empty else []
    notes += _mostly_missing(numbers, told.counts, draft)
    require(bool(columns), f"no column is left to learn from; {'; '.join([*draft['notes'], *notes])}")
    features = [
        name
        for c in columns
        for name in ([c["name"]] if c["kind"] == "number" else [f"{c['name']}={v}" for v in c["categories"]])
    ]
    return {
        "version": draft["version"],
        "label": label,
        "columns": columns,
        "features": features,
        "missing": draft["missing"],
        "rename": draft["rename"],
        "notes": [*_other_units(schema, told, draft), *draft["notes"], *notes],
    }


def _scale(what: str, mean: float, variance: float) -> tuple[float, float]:
    """Mean and scale."""
    require(
        bool(np.isfinite(mean) and np.isfinite(variance)),
        f"{what} holds numbers too large to square; rescale it or leave it out (drop)",
    )
    return mean, 1.0 if _is_constant(mean, variance) else variance**0.5  # a constant stays 0


def _is_constant(mean: float, variance: float) -> bool:
    """Whether numbers with these moments are all the same, up to rounding."""
    return bool(variance**0.5 <= 1e-9 * max(abs(mean), 1e-300))


def _mostly_missing(numbers: list[ColumnRecipe], count: Tensor, draft: Draft) -> list[str]:
    notes = []
    for j, column in enumerate(numbers):
        where = [
            f"{name} ({1 - int(count[i, j]) / rows:.0%})"
            for i, (name, rows) in enumerate(draft["training_rows"].items())
            if count[i, j] < 0.5 * rows and count[:, j].sum() > 0
        ]
        if where:
            notes.append(f"{column['name']} is mostly missing at {', '.join(where)}: the mean of all clients stands in")
    return notes


def _other_units(names: Sequence[str], about: Moments, draft: Draft) -> list[str]:
    """A question for each column whose mean and deviation at one client are both many times those of the others, or a small part,
    or whose mean is many deviations away.

    `about`: moments of the columns `names`.
    """
    counts = about.counts
    absent = torch.where(counts > 0, 0.0, torch.nan)
    own = torch.stack([about.means, (about.squares / counts).sqrt()]) + absent
    # The median client: pooled moments of others in two units would be those of neither.
    usual = own.nanmedian(dim=1, keepdim=True).values
    factors, spreads = (own / usual).unbind()
    same_shape = (spreads / factors).log().abs() < math.log(SHAPE)
    # Units with another zero, such as degrees, or a smaller factor.
    apart = ((own[0] - usual[0]).abs() > APART * torch.maximum(own[1], usual[1])) & (own[1] > 0) & (factors > 0)
    enough = torch.minimum(counts, counts.sum(0) - counts) >= ENOUGH_TO_TELL
    odd = ((factors.log().abs() > math.log(UNIT)) & same_shape | apart) & enough
    notes = []
    for j, name in enumerate(names):
        for i in odd[:, j].nonzero().flatten().tolist()[:1]:
            times = f"{spell(float(f'{factors[i, j]:.2g}'))} times"
            notes.append(
                f"{name}: numbers at {list(draft['training_rows'])[i]} are about {times} those of the others; the same unit?"
            )
    return notes
