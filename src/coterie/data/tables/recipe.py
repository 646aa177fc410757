"""The recipe of a table, what a client tells so that it can be agreed on, and the inputs that it makes of any table.

A recipe says which columns become which features. `agreement` fits it in two exchanges, each a function of a cohort that
answers with one entry per client, so that the same lines serve files in one folder and hospitals on a network:

1. `describe`: names and kinds of the columns, the categories of texts, the values of the label.
2. `moments`: per column of numbers, and of a label to regress on, the count, the mean and the sum of squares about that mean over
   TRAINING rows, missing values not counted. They are joined as Chan, Golub and LeVeque (1983) do, so that a column such as a year
   does not lose its variance to rounding.

`encode` turns any table into inputs with the recipe alone: a missing number becomes the pooled mean (0 after scaling),
a missing or unknown category is all zeros. A label to regress on is stored as (label - mean) / scale, so that no result depends on
its unit. Test and validation rows influence nothing but the list of classes.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, NotRequired, Required, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.label_form import with_weights
from coterie.base.spelling import fold, listing, names_rows, spell
from coterie.base.vector import Layout
from coterie.contract.task import Form, task
from coterie.data.tables.cells import (
    Column,
    Table,
    are_whole,
    complaint,
    example,
    with_signs,
)
from coterie.data.tables.description import (
    MANY_CATEGORIES,
    ColumnDescription,
    LabelDescription,
    TableDescription,
)
from coterie.data.tables.followup import (
    counts_of,
    labels_of,
    weights_of,
    with_followup,
)

RARE = "(rare)"
"""The category of all that are pooled."""

ENOUGH_TO_TELL = 10
"""Values from which on "all distinct" means an identifier and not a small sample."""

FAR = 6.0
"""Standard deviations."""


UNIT = 8.0
"""Factor between the means of clients from which on their units may differ."""

APART = 6.0
"""Standard deviations between the means of clients from which on their units may differ."""

SHAPE = 3.0
"""Factor up to which deviations may differ in another proportion than means if only the unit differs."""


ROOT = 0.75
"""Power of a factor between means, by which deviations differ: from here on a unit's (1) is nearer than that of counts (1/2)."""


class ColumnRecipe(TypedDict, total=False):
    """The recipe by which one column becomes features.

    Attributes:
        name: name of the column.
        kind: "number" or "category".
        mean, scale: of a number: (value - mean) / scale.
        signs: units that its numbers are written with.
        categories: one feature for each.
        rare: whether the last of them, `RARE`, stands for all that are not there.
        separator: what stands between the categories of a row, of a column of lists.
    """

    name: Required[str]
    kind: Required[str]
    mean: float
    scale: float
    signs: list[str]
    categories: list[str]
    rare: bool
    separator: str


def scale_of_bounds(low: float, high: float) -> tuple[float, float]:
    """Return mean and scale of a column with these bounds: its middle, and a quarter of its width, so that it has about unit variance.

    >>> scale_of_bounds(0, 120)
    (60.0, 30.0)
    """
    return (low + high) / 2, (high - low) / 4


class LabelRecipe(TypedDict, total=False):
    """The label that is predicted.

    Attributes:
        column, kind: of the table.
        task: "classification", "regression", "time to event" or "counts".
        above: cuts a label of numbers into two classes.
        values, classes: the label's values in the order of the classes, and what those are called; empty for regression.
        spellings: values that stand for others.
        signs: units that its numbers are written with.
        meaning, unit: in words, for reports.
        count: whether a label to regress on holds whole numbers from 0, of which there are few.
        mean, scale: of a label to regress on, which is stored as (value - mean) / scale.
        time, entry, event_is: of time to event, whose `column` is the event: as in the settings.
        exposure: column of the exposure of counts, which have one rate.
        weights: column of the weights of rows, of any task.
        ordered: whether the classes have an order that a model keeps.
        horizon, cuts, rates, events: the form of time to event (`base.label_form.LabelForm`), and events in training rows.
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
    count: bool
    mean: float
    scale: float
    time: str
    entry: str
    event_is: list[Any]
    horizon: float
    cuts: list[float]
    rates: list[float]
    events: int
    exposure: str
    weights: str
    ordered: bool


class Recipe(TypedDict):
    """The recipe by which the columns of any table become inputs and labels, as `preprocess.json` holds it.

    Attributes:
        version: of this form.
        label: what is predicted.
        columns: in the order of their features.
        features: names of the inputs.
        missing: values that stand for "missing", by column.
        not_missing: words that do not, by column; absent where there are none.
        rename: columns that have another name in some files.
        notes: sentences about what was left out, mapped or imputed.
    """

    version: int
    label: LabelRecipe
    columns: list[ColumnRecipe]
    features: list[str]
    missing: dict[str, list[Any]]
    not_missing: NotRequired[dict[str, list[Any]]]
    rename: dict[str, str]
    notes: list[str]


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
def describe(
    cohort: TableCohort, *, label: str, categorical: str = "[]", rare: int = 0
) -> Description:
    """Reply with what the server must know about each client's columns. `categorical`: JSON list of columns to take as such.

    Categories are those of training rows, without those of fewer than `rare` rows. Those of a column that looks like an
    identifier stay where they are.
    """
    named = set(json.loads(categorical))
    return Description(
        tuple(
            describe_table(table, label, named, rare).text() for table in cohort.tables
        )
    )


def describe_table(
    table: Table, label: str, categorical: set[str], rare: int
) -> TableDescription:
    """Describe one table, as `describe` does."""
    train = table.parts["train"]
    columns = {}
    for name in table.columns:
        if name != label:
            columns[name] = _describe_column(name, table, name in categorical, rare)
    target = table.columns[label]
    values = set(target.levels[0])
    told_values = []
    if len(values) <= MANY_CATEGORIES:
        told_values = sorted(values)
    about_label = LabelDescription(
        target.kind,
        whole=target.numbers is not None and bool((target.numbers % 1 == 0).all()),
        signs=list(target.signs),
        distinct=len(values),
        values=told_values,
    )
    return TableDescription(len(train), table.source, columns, about_label)


def _describe_column(
    name: str, table: Table, chosen: bool, rare: int
) -> ColumnDescription:
    column, train = table.columns[name], table.parts["train"]
    out: dict[str, Any] = {
        "kind": column.kind,
        "signs": list(column.signs),
        "unknown": list(column.unknown),
    }
    numbers_of_column = column.numbers if column.kind == "number" else None
    chosen_as_category = chosen and column.kind in ("number", "boolean")
    if column.problem is not None:
        out["problem"], *out["example"] = column.problem
    elif numbers_of_column is not None and not chosen:
        numbers = numbers_of_column[train]
        numbers = numbers[~np.isnan(numbers)]
        out["unique"] = out["identifier"] = False
        if are_whole(numbers):
            distinct = len(np.unique(numbers))
            out["unique"] = distinct == len(numbers)
            out["identifier"] = 2 * distinct >= len(numbers) and names_rows(name)
    elif column.kind == "text" or chosen_as_category:
        chosen = chosen or bool(column.separator)
        names, rows, codes = column.memberships
        in_train = np.isin(rows, train)
        class_counts = np.bincount(codes[in_train], minlength=len(names))
        spelled: dict[str, int] = {}
        counts = Counter[str]()
        for text, count in zip(names, class_counts.tolist(), strict=True):
            if count:
                spelled[text] = count
                counts[fold(text)] += count
        present = sum(spelled.values())
        unique = len(spelled) == present
        categories = [text for text in sorted(spelled) if counts[fold(text)] >= rare]
        out["pooled"] = len(categories) < len(spelled)
        out["identifier"] = unique and present >= ENOUGH_TO_TELL
        out["unique"] = unique
        names_rows_or_many = out["identifier"] or len(categories) > MANY_CATEGORIES
        out["categories"] = categories
        if names_rows_or_many and not chosen:
            out["categories"] = []  # what names rows is not listed
        out["distinct"] = len(categories)
        if column.kind == "text" and not chosen:
            row, text = example(column)
            out["example"] = [table.data_row(row - 1), text]
    return ColumnDescription(**out)


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
            if numbers is None:
                continue
            values = numbers[table.parts["train"]]
            values = values[~np.isnan(values)]
            if len(values):
                # Too large numbers are refused by name in `_scale`.
                with np.errstate(over="ignore", invalid="ignore"):
                    mean = values.mean()
                    out[:, i, j] = len(values), mean, ((values - mean) ** 2).sum()
    return Moments(*(torch.from_numpy(a) for a in out))


class Encoded(NamedTuple):
    """Rows ready for a model: inputs float32 [rows, features], labels int64 or float32 [rows] or None, and notes."""

    inputs: Tensor
    labels: Tensor | None
    notes: tuple[str, ...] = ()


def encode(
    table: Table, recipe: Recipe, *, need_label: bool = True, weighted: bool = True
) -> Encoded:
    """The rows of `table` as the model reads them. Nothing is fitted here.

    Raises `InputError` that names file, column and row for a missing column, a text among numbers or, if `need_label`,
    a label that is missing or unknown; without `need_label` such labels are None for all rows. If `weighted`, labels have the weights
    of rows as their last column, where the recipe names some.
    """
    inputs = np.zeros((len(table), len(recipe["features"])), dtype=np.float32)
    notes: list[str] = []
    place = 0
    for spec in recipe["columns"]:
        name = spec["name"]
        if name not in table.columns:
            raise InputError(
                f"{table.source} has no column {name!r}, which the model needs; add it (its cells may be empty)"
            )
        column = table.columns[name]
        if spec["kind"] == "number":
            scaled = _scale_numbers(_numbers_of(column, spec, table), spec, table)
            notes += _far(scaled, spec, table.source)
            inputs[:, place] = scaled
            place += 1
        else:
            notes += _one_hot(
                column,
                spec,
                inputs[:, place : place + len(spec["categories"])],
                table.source,
            )
            place += len(spec["categories"])
    labels: Tensor | None
    task_of_label = recipe["label"].get("task")
    if task_of_label in ("time to event", "counts"):
        followed, label_notes = with_followup(table, recipe["label"], need=need_label)
        if followed is None:
            labels = None
        elif task_of_label == "time to event":
            labels = labels_of(followed, recipe["label"])
        else:
            labels = counts_of(followed, recipe["label"])
    else:
        labels, label_notes = _labels(table, recipe["label"], need_label)
    weights = recipe["label"].get("weights")
    if weights and weighted and labels is not None:
        labels = with_weights(labels, torch.from_numpy(weights_of(table, weights)))
    return Encoded(torch.from_numpy(inputs), labels, (*notes, *label_notes))


def _scale_numbers(
    numbers: NDArray[np.float64], spec: ColumnRecipe, table: Table
) -> NDArray[np.float64]:
    """Numbers on the scale of the recipe, missing ones at 0, the mean."""
    scaled: NDArray[np.float64] = (numbers - spec["mean"]) / spec["scale"]
    scaled[np.isnan(scaled)] = 0
    wild = np.flatnonzero(np.abs(scaled) > 1e30)  # float32 ends at 3e38
    if len(wild):
        raise InputError(
            f"{table.source}: column {spec['name']!r} is {numbers[wild[0]]:g} in data row {table.data_row(wild[0])}, absurdly far "
            "from all training rows; correct that cell"
        )
    return scaled


def _far(scaled: NDArray[np.float64], spec: ColumnRecipe, source: str) -> list[str]:
    """A question if half of the numbers and more are far from the training rows, as where a file has another unit."""
    present = np.abs(scaled[scaled != 0])
    if 2 * np.count_nonzero(present >= FAR) < max(1, len(present)):
        return []
    middle = float(np.median(present))
    if middle < FAR:
        return []
    return [
        f"{source}: {spec['name']} is {middle:.0f} standard deviations from the mean of training; the same unit?"
    ]


def _numbers_of(
    column: Column, spec: ColumnRecipe, table: Table
) -> NDArray[np.float64]:
    where = f"{table.source}: column {spec['name']!r}"
    if column.problem is not None:
        raise InputError(f"{where} {complaint(*column.problem)}")
    if column.numbers is None:
        if column.unknown or not column.present.any():
            return np.full(len(column), np.nan)
        row, text = example(column)
        raise InputError(
            f"{where} needs numbers but has {text!r} in data row {table.data_row(row - 1)}; correct that cell"
        )
    signs = sorted({*column.signs} - {","})
    trained_signs = sorted({*spec.get("signs", [])} - {","})
    if signs != trained_signs and column.kind != "empty":
        raise InputError(
            f"{where} has numbers {with_signs(signs)}, but the model was trained on numbers {with_signs(trained_signs)}; write them so"
        )
    return column.numbers


def _one_hot(
    column: Column, spec: ColumnRecipe, out: NDArray[np.float32], source: str
) -> list[str]:
    """Write the categories of `column` into `out` [rows, categories]; a note names those that no client trained with."""
    position = {category: j for j, category in enumerate(spec["categories"])}
    folded = {fold(category): j for category, j in position.items()}
    rare: int | None = None
    if spec.get("rare"):
        rare = position[RARE]
    names, rows, codes = column.memberships
    unknown = []
    place = np.full(len(names) + 1, -1)  # of each category; the last stands for none
    for code, text in enumerate(names):
        j = position.get(text, folded.get(fold(text), rare))
        if j is None:
            unknown.append(text)
        else:
            place[code] = j
    columns = place[codes]
    is_known = columns >= 0
    out[rows[is_known], columns[is_known]] = 1.0
    if not unknown:
        return []
    words = listing([repr(text) for text in sorted(unknown)])
    return [
        f"{source}: {spec['name']} has {words}, which no training row has: taken as missing"
    ]


def _labels(
    table: Table, spec: LabelRecipe, need: bool
) -> tuple[Tensor | None, list[str]]:
    name = spec["column"]
    problem, column = "", table.columns.get(name)
    if column is None:
        problem = f"{table.source} has no label column {name!r}"
    elif not column.present.all():
        problem = f"{table.source}: label {name!r} is missing in data row {table.data_row(np.argmin(column.present))}"
    elif spec["values"]:
        position = {value: j for j, value in enumerate(spec["values"])}
        spellings = spec.get("spellings", {})
        names, levels = column.levels
        codes = np.array(
            [position.get(spellings.get(text, text), -1) for text in names]
        )[levels]
        if codes.min() >= 0:
            return torch.from_numpy(codes), []
        row = int(np.argmax(codes < 0))
        problem = (
            f"{table.source}: label {name!r} is {names[levels[row]]!r} in data row {table.data_row(row)}, which is none of "
            f"{', '.join(spec['values'][:10])}"
        )
    elif column.problem is not None:
        problem = f"{table.source}: label {name!r} {complaint(*column.problem)}"
    elif column.numbers is None:
        problem = f"{table.source}: label {name!r} is text in data row {table.data_row(example(column)[0] - 1)} but must be a number"
    elif spec["above"] is not None:
        return torch.from_numpy((column.numbers > spec["above"]).astype(np.int64)), []
    else:
        scale = ColumnRecipe(
            name=name,
            kind="number",
            mean=spec["mean"],
            scale=spec["scale"],
            signs=spec.get("signs", []),
        )
        stored = _scale_numbers(_numbers_of(column, scale, table), scale, table)
        return torch.from_numpy(stored.astype(np.float32)), []
    if need:
        raise InputError(f"{problem}; correct the file")
    if column is None:
        return None, []
    return None, [f"{problem}: no labels were read"]


def ask_about_units(
    names: Sequence[str], moments: Moments, clients: Sequence[str]
) -> list[str]:
    """A question for each column whose mean and deviation at one client are both many times those of the others, or a small part,
    or whose mean is many deviations away, as it is or on a log scale.

    `moments`: moments of the columns `names` at `clients`.
    """
    counts = moments.counts
    absent = torch.where(counts > 0, 0.0, torch.nan)
    client_moments = (
        torch.stack([moments.means, (moments.squares / counts).sqrt()]) + absent
    )
    # The median client: pooled moments of others in two units would be those of neither.
    typical = client_moments.nanmedian(dim=1, keepdim=True).values
    factors, spreads = (client_moments / typical).unbind()
    same_shape = (spreads / factors).log().abs() < math.log(SHAPE)
    # With a unit the deviation moves as the mean does; of rare counts (Poisson) by the root of that factor.
    same_shape &= spreads.log().abs() > ROOT * factors.log().abs()
    # Units with another zero, such as degrees, or a smaller factor.
    means, deviations = client_moments
    typical_mean, typical_deviation = typical
    larger = torch.maximum(deviations, typical_deviation)
    are_far = (means - typical_mean).abs() > APART * larger
    # On a log scale deviations are, about, in proportion to the mean.
    larger = torch.maximum(
        deviations / means.abs(), typical_deviation / typical_mean.abs()
    )
    are_far |= factors.log().abs() > APART * larger
    shifted = are_far & (deviations > 0) & (factors > 0)
    has_rows = torch.minimum(counts, counts.sum(0) - counts) >= ENOUGH_TO_TELL
    suspect = ((factors.log().abs() > math.log(UNIT)) & same_shape | shifted) & has_rows
    notes = []
    for j, name in enumerate(names):
        for i in suspect[:, j].nonzero().flatten().tolist()[:1]:
            times = f"{spell(float(f'{factors[i, j]:.2g}'))} times"
            notes.append(
                f"{name}: numbers at {clients[i]} are about {times} those of the others; the same unit?"
            )
    return notes


_FEW_NOTES = 3  # columns up to which each has a note of a kind by itself
_ENDINGS = (
    "the mean of all clients stands in",
    "name a code for missing under missing",
    "the same unit?",
)


def group_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """Return each note once, and one for all columns of a kind where there are many.

    >>> group_notes([f"{x} is mostly missing at a (60%): the mean of all clients stands in" for x in "uvwxy"])
    ('u is mostly missing at a (60%): the mean of all clients stands in; the same of v, w, x and others',)
    """
    kinds: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        kind = note
        for ending in _ENDINGS:
            if note.endswith(ending):
                kind = ending
        kinds.setdefault(kind, []).append(note)
    grouped: list[str] = []
    for alike in kinds.values():
        if len(alike) <= _FEW_NOTES:
            grouped += alike
            continue
        columns = [re.split(r":| is ", note, maxsplit=1)[0] for note in alike]
        grouped.append(f"{alike[0]}; the same of {listing(columns[1:])}")
    return tuple(grouped)
