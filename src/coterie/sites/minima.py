"""A site keeps to itself whatever too few of its rows stand behind, and whatever the plan asks.

Everything here is done to the table or to the encoded rows before any task sees them, so no kind of request gets around it; tasks
whose replies rest on single classes are looked at afterwards.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from coterie.base.clients import PARTS, Clients
from coterie.base.label_form import LabelForm
from coterie.base.rows import Rows
from coterie.base.vector import Layout
from coterie.config.rules import is_number
from coterie.contract.replies import CURVATURE, row_shape
from coterie.contract.requests import declarations
from coterie.data.tables.agreement import MANY_CLASSES
from coterie.data.tables.cells import Column, Table
from coterie.data.tables.description import (
    MANY_CATEGORIES,
    MANY_ROWS,
    LabelDescription,
    TableDescription,
)
from coterie.data.tables.recipe import (
    TableCohort,
    describe_table,
    moments,
    scale_of_bounds,
)
from coterie.sites.allowed import Allowed, RefusedError
from coterie.sites.effective import (
    count_by_value,
    count_labels,
    count_training_rows,
)
from coterie.sites.followup import check_form, form_of_options
from coterie.sites.tables import description_options, left_out, table_settings

STATISTICS = 3
"""Numbers about each column that a site gives for each seed: count, mean and sum of squares about it."""
FARTHEST = math.sqrt(MANY_ROWS)
"""Deviations from the mean that a training value may have at most on the scale of a recipe, whatever the number of rows."""
OF_ALL_ROWS = ("accuracy", "top5")
"""Metrics that rest on all rows of a part; any other may rest on those of a single class."""


def moments_fit(seeds: int, training_rows: int) -> None:
    """Raise `RefusedError` if the sums that a plan's seeds ask could be solved for a part of the rows."""
    if STATISTICS * seeds > training_rows / 10:
        raise RefusedError(
            f"the plan has {seeds} seeds, each with {STATISTICS} sums of every column over other rows; that is more than a tenth of "
            "this site's training rows. Give the plan fewer seeds"
        )


def curvature_fits(
    pairs: Iterable[Allowed],
    layout: Layout,
    columns: int,
    training_rows: int,
    events: int | None = None,
) -> None:
    """Raise `RefusedError` if what the plan's methods tell of curvature could be solved for a part of the rows, or of the events.

    Args:
        pairs: All trainings of the plan.
        layout: Of its model.
        columns: Inputs of the model.
        training_rows: Rows of this site; with weights effective ones.
        events: Of these, those with an event; None: labels are classes or numbers.
    """
    asked, methods = 0, dict[str, None]()
    for allowed in pairs:
        slopes = layout.parameters[0][1].numel()
        wanted = allowed.method.events_per_slope * slopes
        if events is not None and events < wanted:
            raise RefusedError(
                f"{type(allowed.method).__name__} asks what {slopes} slopes follow from, and this site has fewer than {wanted} events. "
                "Give the plan fewer columns, or another method"
            )
        for declaration, _ in declarations(allowed.method).values():
            if allowed.hides_rows_of(declaration.task.name):
                continue  # noise hides rows in it, and epsilon limits how much of it there is
            fields = [
                form
                for field, form in declaration.task.forms.items()
                if declaration.task.kinds[field] == CURVATURE
            ]
            numbers = sum(math.prod(row_shape(form, {}, layout)) for form in fields)
            rounds = declaration.rounds or allowed.rounds
            asked += numbers * min(rounds, allowed.rounds)
            if fields:
                methods[type(allowed.method).__name__] = None
    if asked > columns * training_rows / 10:
        raise RefusedError(
            f"{' and '.join(methods)} ask {asked} numbers of curvature over all trainings, more than a tenth of the numbers in this "
            "site's training rows. Give the plan fewer folds or seeds, partial passes = 1, or other methods"
        )


def table_withheld(table: Table, options: Mapping[str, Any], least: int) -> Table:
    """`table` without identifiers, without categories of fewer than `least` training rows, and without columns of numbers that fewer
    training rows have. Raises `RefusedError` for a class with fewer rows.
    """
    label, chosen = options["label"], tuple(options.get("categorical", ()))
    description = _describe(table, options)
    columns = {}
    for name, column in table.columns.items():
        if name == label:
            columns[name] = column
        elif not description.columns[name].identifier:
            columns[name] = _common(column, table, least, name in chosen)
    if options.get("above") is None and not _is_quantity(description.label, options):
        values = table.columns[label].value_names
        has_label = np.array([value is not None for value in values], dtype=bool)
        weights = None if table.weights is None else table.weights[has_label]
        counts = count_by_value([*map(str, values[has_label])], weights)
        if min(counts.values()) < least:
            raise RefusedError(
                f"one of its classes has fewer than the {least} rows under which its site does not speak of it"
            )
    return replace(table, columns=columns)


def _describe(table: Table, options: Mapping[str, Any]) -> TableDescription:
    settings = description_options(options)
    return describe_table(
        table,
        settings["label"],
        set(json.loads(settings["categorical"])),
        settings["rare"],
    )


def _label_of(table: Table, options: Mapping[str, Any]) -> LabelDescription:
    """Return what of the label says whether it is a quantity."""
    label = table.columns[options["label"]]
    return LabelDescription(label.kind, False, [], len(label.levels[0]), [])


def _is_quantity(label: LabelDescription, options: Mapping[str, Any]) -> bool:
    if options.get("exposure") is not None:
        return True
    if options.get("task") is not None:
        return bool(options["task"] == "regression")
    return label.kind == "number" and label.distinct > MANY_CLASSES


def _common(column: Column, table: Table, least: int, chosen: bool) -> Column:
    """`column` with its rare categories missing; a column of numbers is missing as a whole if too few rows have it."""
    train = table.parts["train"]
    if column.numbers is not None and not chosen:
        has_some = bool(column.present[train].any())
        too_few = count_training_rows(table, column.present) < least
        rare = np.full(len(column), has_some and too_few)
    else:
        rare = np.zeros(len(column), bool)
        if least > 1:
            weights = None if table.weights is None else table.weights[train]
            counts = count_by_value(column.value_names[train].tolist(), weights)
            rare = np.array([counts[t] < least for t in column.value_names], dtype=bool)
    if not rare.any():
        return column
    if column.texts is not None:
        texts = column.texts.copy()
        texts[rare] = None
        kind = column.kind
        if all(t is None for t in texts):
            kind = "empty"
        return replace(column, kind=kind, texts=texts)
    numbers = np.zeros(len(column))
    if column.numbers is not None:
        numbers = column.numbers.copy()
    numbers[rare] = np.nan
    kind = column.kind
    if np.isnan(numbers).all():
        kind = "empty"
    return replace(column, kind=kind, numbers=numbers)


def public_description(table: Table, options: Mapping[str, Any]) -> TableDescription:
    """Return the description of a table without the cells that it quotes, and without values of a label that is not a class."""
    description = _describe(table, options)
    columns = {}
    for name, column in description.columns.items():
        if column.example is not None:
            column = replace(column, example=[column.example[0], "a text"])
        columns[name] = column
    label = description.label
    if options.get("above") is not None or _is_quantity(label, options):
        label = replace(label, values=[])
    return replace(description, columns=columns, label=label)


def columns_to_sum(table: Table, options: Mapping[str, Any]) -> set[str]:
    """Columns whose sums the plan needs: those of numbers that it does not leave out, and a label to regress on; none with bounds."""
    if options.get("bounds"):
        return set()
    numbers = {
        name
        for name, column in table.columns.items()
        if column.numbers is not None or column.kind == "empty"
    }
    summed = numbers - left_out(options)
    # A label of classes, a count and a time to event are not scaled: nobody needs their sums.
    is_scaled = options.get("above") is None and form_of_options(options) == ""
    if is_scaled:
        is_scaled = _is_quantity(_label_of(table, options), options)
    if not is_scaled:
        summed.discard(options["label"])
    return summed


def recipe_fits(
    recipe: Mapping[str, Any],
    table: Table,
    options: Mapping[str, Any],
    rows: int = MANY_ROWS,
) -> None:
    """Raise `RefusedError` for a recipe that makes other features of this table than the plan says, or that a training row could break.

    Of `rows` training rows at all sites, none is further from a pooled mean than the root of their number in pooled deviations. On a
    finer scale a row would stand out behind noise.

    Whether a recipe is taken follows from the plan and from what the site has told of each column (count, mean, squares), and from no
    single value: else a server could move mean and scale until the recipe fails, and read the value off them.
    """
    label, columns = recipe["label"], recipe["columns"]
    chosen, drop = options.get("categorical", ()), left_out(options)
    if label["column"] != options["label"] or label["above"] != options.get("above"):
        raise RefusedError("the recipe has another label than the approved plan")
    check_form(label, options)
    if len(label["classes"]) > MANY_CATEGORIES:
        raise RefusedError(
            f"the recipe has {len(label['classes'])} classes, more than the {MANY_CATEGORIES} that a label of classes may have"
        )
    if not _values_fit(label, _label_of(table, options), options):
        raise RefusedError(
            "the recipe has other values of the label than the approved plan"
        )
    names = [column["name"] for column in columns]
    if len({*names}) < len(names):
        raise RefusedError("the recipe uses a column twice")
    features = 0
    for column in columns:
        if column["kind"] == "number":
            features += 1
        else:
            features += len(column["categories"])
    if len(recipe["features"]) != features:
        raise RefusedError("the recipe has other features than its columns")
    for column in columns:
        name, column_here = column["name"], table.columns.get(column["name"])
        plain = (
            column_here is not None
            and column_here.kind in ("number", "boolean")
            and name not in chosen
        )
        numbers = column["kind"] == "number"
        if (
            name in (options["label"], *drop)
            or (plain and not numbers)
            or (numbers and name in chosen)
        ):
            raise RefusedError(
                f"the recipe uses column {name[:40]!r} otherwise than the approved plan"
            )
        if column["kind"] == "number":
            _scale_as_planned(column, name, table, options, rows)
    if "scale" in label:
        _scale_as_planned(label, label["column"], table, options, rows)


def _scale_as_planned(
    scaled: Mapping[str, Any],
    name: str,
    table: Table,
    options: Mapping[str, Any],
    rows: int,
) -> None:
    """Raise `RefusedError` for another scale than that of the plan's bounds, or, without bounds, than its sums allow."""
    bounds = options.get("bounds")
    if not bounds:
        return _scale_fits(scaled, name, table, rows)
    told = (scaled["mean"], scaled["scale"])
    if name not in bounds or told != scale_of_bounds(*bounds[name]):
        raise RefusedError(
            f"the recipe scales column {name[:40]!r} otherwise than by the bounds of the approved plan"
        )


def _values_fit(
    label: Mapping[str, Any], about: LabelDescription, options: Mapping[str, Any]
) -> bool:
    """Return True if a recipe makes the plan's classes of the label: others would tell which values there are, and how many."""
    values, count = label["values"], len(label["classes"])
    if label.get("spellings", {}) != table_settings(options).spellings:
        return False
    if options.get("above") is not None:
        return values == [] and count == 2
    # Other sites may show that these few values are no classes.
    if _is_quantity(about, options) or count == 0:
        has_no_classes = values == [] and count == 0
        may_be_quantity = about.kind in ("number", "boolean")
        if options.get("task") == "classification":
            may_be_quantity = False
        return has_no_classes and may_be_quantity
    return isinstance(values, list) and len(values) == len({*values}) == count > 1


def _scale_fits(spec: Mapping[str, Any], name: str, table: Table, rows: int) -> None:
    """Raise `RefusedError` if the training values of a column could be further on the recipe's scale than any of so many rows."""
    mean, scale = spec["mean"], spec["scale"]
    if not (is_number(mean) and is_number(scale) and scale > 0):
        raise RefusedError(f"the recipe has no mean and scale of column {name[:40]!r}")
    count, mean_here, squares = (
        float(v)
        for v in moments(TableCohort({table.name: table}), schema=json.dumps([name]))
    )
    if (
        math.sqrt(squares + count * (mean_here - mean) ** 2)
        > math.sqrt(rows) * (1 + 1e-9) * scale
    ):
        raise RefusedError(
            f"the recipe scales column {name[:40]!r} otherwise than its values"
        )


def within_reach(table: Table, recipe: Mapping[str, Any]) -> Table:
    """Return `table` with the numbers of all rows but training rows at most `FARTHEST` from the mean on the recipe's scale.

    Of training rows that is known, so that no row can make a recipe fail.
    """
    specs = {c["name"]: c for c in recipe["columns"] if c["kind"] == "number"}
    if "scale" in recipe["label"]:
        specs[recipe["label"]["column"]] = recipe["label"]
    columns = dict(table.columns)
    for name, spec in specs.items():
        column = table.columns.get(name)
        if column is not None and column.numbers is not None:
            reach = FARTHEST * spec["scale"]
            columns[name] = replace(
                column,
                numbers=column.numbers.clip(spec["mean"] - reach, spec["mean"] + reach),
            )
    return replace(table, columns=columns)


def parts_withheld(clients: Clients, least: int) -> Clients:
    """The client of a site without a part beside its training rows of fewer than `least` rows."""
    client = copy(clients)
    for part in PARTS[1:]:
        rows: Rows | None = getattr(clients, part)
        if rows is None or count_labels(rows.part(0).labels, clients.form) < least:
            setattr(client, part, None)
    return client


def classes_withheld(
    task: str,
    payload: Mapping[str, Any],
    reply: dict[str, Any],
    clients: Clients,
    least: int,
) -> dict[str, Any]:
    """The reply of a task without what it says of classes with fewer than `least` rows.

    What is told of the training rows of each fold tells, by subtraction, the classes of the rows that it tests.

    Raises `RefusedError` where nothing would be left.
    """
    name = task.rpartition(":")[2]
    few_tested = fewest_tested(clients) < least
    if name in ("class_counts", "server_classes", "prototype_update"):
        if few_tested:
            raise RefusedError(
                f"a fold tests fewer than the {least} rows of a class under which its site does not speak of it; give the plan fewer "
                "folds"
            )
        counts = reply["counts"]
        too_few = bool(((counts > 0) & (counts < least)).any())
        if clients.form.weighted:
            too_few |= fewest_of(clients[0].train.labels, clients.form) < least
        if too_few:
            raise RefusedError(
                f"one of its classes has fewer than the {least} rows under which its site does not speak of it"
            )
    if name == "gain_of_others":
        train = clients[0].train
        if fewest_of(train.labels, clients.form) >= least:
            return reply
        return {key: torch.zeros_like(value) for key, value in reply.items()}
    if name not in ("evaluate", "baselines"):
        return reply
    part = getattr(clients[0], str(payload["part"]), None)
    if name == "baselines" and few_tested:
        return {key: torch.zeros_like(value) for key, value in reply.items()}
    if part is None or fewest_of(part.labels, clients.form) >= least:
        return reply
    if name == "baselines":
        return {key: torch.zeros_like(value) for key, value in reply.items()}
    hidden = torch.tensor(
        [metric not in OF_ALL_ROWS for metric in payload["metrics"]], dtype=torch.bool
    )
    values = torch.where(hidden, torch.zeros_like(reply["values"]), reply["values"])
    return {**reply, "values": values, "defined": reply["defined"] & ~hidden}


def fewest_tested(clients: Clients) -> float:
    """Return the rows of the smallest class among those that a fold tests at a site, 0 for one that it lacks; inf without folds."""
    client, form = clients[0], clients.form
    if not clients.row_folds or client.test is None:
        return math.inf
    labels = client.test.labels
    tested = _classes_of(labels, form)
    if tested is None:
        return count_labels(labels, form)
    of_parts = [_classes_of(part.labels, form) for _, part in client.parts()]
    every = torch.cat([classes for classes in of_parts if classes is not None])
    return min(count_labels(labels[tested == c], form) for c in every.unique())


def fewest_of(labels: torch.Tensor, form: LabelForm | None = None) -> int:
    """Return the rows of the smallest class; of all of them, where there are no classes. With weights effective rows.

    Of time to event and counts, which `form` declares, the classes are rows with an event and without one.
    """
    classes = _classes_of(labels, form)
    if classes is None:
        return count_labels(labels, form)
    if form is None or not form.weighted:
        return int(classes.unique(return_counts=True)[1].min())
    return min(count_labels(labels[classes == c], form) for c in classes.unique())


def _classes_of(labels: torch.Tensor, form: LabelForm | None) -> torch.Tensor | None:
    plain = labels if form is None else form.unweighted(labels)
    happened = None if form is None else form.happened(plain)
    if happened is not None:
        return happened.long()
    return None if plain.is_floating_point() else plain.reshape(-1)
