"""Ask about tables what may make results wrong: each question names the setting for either answer, and none is answered already."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.base.clients import Client
from coterie.base.cures import Advice, Cure, drop_or_keep, either
from coterie.base.spelling import listing, names_rows, spell
from coterie.config.data import Tables
from coterie.data.tables.agreement import MAPPING, map_to_classes
from coterie.data.tables.cells import Table
from coterie.data.tables.recipe import ENOUGH_TO_TELL, UNIT, Recipe

FEWEST_CASES = 15
"""Training rows of each class from which on a column hardly tells them apart by chance."""
LOOKED_AT = 4096
"""Training rows, evenly over all, by which columns are looked at one by one."""
_FEWEST_PATIENTS = 5  # values of a client from which on they may be patients
# Rows of a value, on average, from which on they are not there by a slip.
_REPEATED = 1.2
_FEWEST_COUNTS = 5  # whole numbers from which on they may be counts as well as classes
# Area under the ROC curve of one column from which on it may say the label.
_TELLING = 0.95
# Rows of a client with the same odd number from which on it is no slip.
_FEWEST_CODES = 5
CODE = re.compile(r"-?(9+[78]?|77+|88+)|-1")
"""Numbers that people write for "missing"."""
_CHANCE_OF_VALUES = 1e-6  # the same of one value; of 1,179 values of 65 public tables two are asked about, both true leaks
_CHANCE = 1e-4  # probability below which it is no coincidence that so many rows have one class

Array = NDArray[Any]
Far = Mapping[tuple[str, str], Mapping[float, Array]]
"""Data rows of the numbers that are far from all others, by client and column."""


def ask_about(
    clients: Sequence[Client],
    tables: Sequence[Table],
    recipe: Recipe,
    settings: Tables,
    extremes: Far,
    suspected: Sequence[str],
) -> list[str]:
    """Return the questions about the rows of all clients, encoded and as `tables`.

    Args:
        clients: Their encoded rows.
        tables: The same rows before any preprocessing.
        recipe: How these became those.
        settings: What the user has answered.
        extremes: Numbers that are far from all others.
        suspected: Columns that are known to say the label already.
    """
    telling = [*dict.fromkeys([*suspected, *_telling_columns(clients, tables, recipe)])]
    unanswered = [name for name in telling if name not in settings.keep]
    answered = {*telling, *settings.keep}
    answered_or_dropped = answered.union(settings.columns_to_drop())
    return [
        *_ask_patients(tables, recipe, settings),
        *_ask_task(recipe, settings),
        *_ask_words_of_classes(tables, recipe, settings),
        *_ask_telling_columns(unanswered),
        *_ask_columns_of_one_class(
            clients, tables, recipe, extremes, answered_or_dropped
        ),
        *_ask_units(recipe, settings),
        *_ask_unit_of_the_label(tables, recipe, settings),
        *_ask_codes(extremes, answered),
    ]


def _ask_patients(
    tables: Sequence[Table], recipe: Recipe, settings: Tables
) -> Iterator[str]:
    """Ask of a column that names patients, and has several rows for them, whether these belong together."""
    if settings.group is not None:
        return
    for name in tables[0].columns:
        if name == recipe["label"]["column"] or name in settings.keep:
            continue
        if not names_rows(name) or not all(name in table.columns for table in tables):
            continue
        different = total = 0
        for table in tables:
            names, _ = table.columns[name].levels
            different += len(names)
            total += len(table)
        if different < _FEWEST_PATIENTS * len(tables) or total < _REPEATED * different:
            continue
        cures = Cure("group", name), Cure("keep", [name])
        yield Advice(
            f"{name}: {total} rows have {different} values; are the rows of a value one patient's? Then {cures[0]} (--group), "
            f"else {cures[1]} to use it as it is",
            cures,
        )
        return


def _ask_task(recipe: Recipe, settings: Tables) -> Iterator[str]:
    """Ask whether whole numbers are classes or counts."""
    label = recipe["label"]
    if settings.task or settings.classes or settings.above is not None:
        return
    may_be_counts = label["kind"] == "number" and len(label["values"]) >= _FEWEST_COUNTS
    if not may_be_counts or not label["classes"]:
        return
    low, high = label["values"][0], label["values"][-1]
    yield Advice(
        f"label {label['column']} is one of {len(label['values'])} numbers from {low} to {high}; are they a quantity, such as a count? "
        "Then --task regression, else --task classification; if counted over some time, --exposure COLUMN",
        [Cure("task", "regression"), Cure("task", "classification")],
    )


def _ask_words_of_classes(
    tables: Sequence[Table], recipe: Recipe, settings: Tables
) -> Iterator[str]:
    """Ask whether all classes of a client are other words for those of the others, where there are more than two."""
    label = recipe["label"]
    if settings.task or settings.classes or len(label["classes"]) < 3:
        return
    classes = [set(table.columns[label["column"]].levels[0]) for table in tables]
    for table, words in zip(tables, classes, strict=True):
        elsewhere = [values for values in classes if values is not words]
        if len(words) > 1 and elsewhere and words.isdisjoint(set().union(*elsewhere)):
            cures = map_to_classes(set().union(*classes))
            mapping = MAPPING
            if cures:
                mapping = either(cures)
            yield Advice(
                f"label {label['column']}: no class in common with other clients at {table.name}, which has "
                f"{' and '.join(sorted(words)[:3])}; are these other words for the same classes? Then map all values, "
                f"the positive class last: {mapping}, else --task classification",
                [*cures, Cure("task", "classification")],
            )
            return


def _telling_columns(
    clients: Sequence[Client], tables: Sequence[Table], recipe: Recipe
) -> list[str]:
    """Return columns that tell two classes apart by themselves, or by where they have no value."""
    if len(recipe["label"]["classes"]) != 2:
        return []
    labels = np.concatenate([np.asarray(client.train.labels) for client in clients])
    if np.bincount(labels.astype(np.int64), minlength=2).min() < FEWEST_CASES:
        return []
    step = -(-len(labels) // LOOKED_AT)
    sampled = [
        table.parts["train"][first::step]
        for first, table in zip(_starts(clients, step), tables, strict=True)
    ]
    cases, telling = labels[::step], []
    for column in recipe["columns"]:
        tells = _texts_tell
        if column["kind"] == "number":
            tells = _numbers_tell
        if tells(column["name"], tables, sampled, cases):
            telling.append(column["name"])
    return telling


def _numbers_tell(
    name: str, tables: Sequence[Table], sampled: Sequence[Array], cases: Array
) -> bool:
    """Return True if the numbers of a column tell the cases, or where there is one."""
    parts = []
    for table, rows in zip(tables, sampled, strict=True):
        parts.append(table.columns[name].numbers_in(rows))
    values = np.concatenate(parts)
    present = ~np.isnan(values)
    by_gaps = not present.all() and _telling_area(present * 1.0, cases) > _TELLING
    return bool(by_gaps or _telling_area(values[present], cases[present]) > _TELLING)


def _texts_tell(
    name: str, tables: Sequence[Table], sampled: Sequence[Array], cases: Array
) -> bool:
    """Return True if the categories of a column tell the cases."""
    parts = []
    for table, rows in zip(tables, sampled, strict=True):
        texts, codes = table.columns[name].levels
        parts.append(np.array([*texts, ""])[codes[rows]])
    shares = _share_of_cases(np.concatenate(parts), cases)
    return _telling_area(shares, cases) > _TELLING


def _share_of_cases(categories: Array, cases: Array) -> Array:
    """Return for each row how many of the rows of its category are cases; all categories of few rows are one."""
    _, place, count = np.unique(categories, return_inverse=True, return_counts=True)
    place = np.where(count[place] < FEWEST_CASES, len(count), place)
    total = np.bincount(place)
    return np.asarray(np.bincount(place, weights=cases)[place] / total[place])


def _ask_telling_columns(names: Sequence[str]) -> Iterator[str]:
    """Ask whether columns that tell the label are known beforehand."""
    if names:
        each = "each " if len(names) > 1 else ""
        about = f"{each}tells the label of nearly all training rows alone; is it known only afterwards?"
        yield drop_or_keep(names, f"{listing(names)}: {about}")


def _ask_columns_of_one_class(
    clients: Sequence[Client],
    tables: Sequence[Table],
    recipe: Recipe,
    extremes: Far,
    answered: Set[str],
) -> Iterator[str]:
    """Ask about columns whose values, missing values, or numbers far from all others, are those of one class alone; also about dates,
    which no model uses: what else is known only with the outcome may be told by them.
    """
    classes = recipe["label"]["classes"]
    if not classes:
        return
    labels_by_client = [np.asarray(client.train.labels) for client in clients]
    labels = np.concatenate(labels_by_client).astype(np.int64)
    shares = np.bincount(labels, minlength=len(classes)) / len(labels)
    candidates = [column["name"] for column in recipe["columns"]]
    for table in tables:
        for name, column in table.columns.items():
            if column.kind == "date" and name not in candidates:
                candidates.append(name)
    names: dict[str, list[str]] = {}
    for name in candidates:
        if name in answered:
            continue
        missing = _are_missing(tables, name)
        for state, odd_rows in (
            ("has a value", ~missing),
            ("missing", missing),
            ("far from all others", _are_far_off(tables, name, extremes)),
        ):
            count = np.bincount(labels[odd_rows], minlength=len(classes))
            only = int(count.argmax())
            is_one_class = count[only] == count.sum() >= FEWEST_CASES
            if is_one_class and shares[only] ** count[only] < _CHANCE:
                sentence = f"{state} only where the label is {classes[only]}"
                names.setdefault(sentence, []).append(name)
                break
    for name, value, only in _values_of_one_class(tables, recipe, labels, answered):
        state = f"{value!r} only where the label is {classes[only]}"
        if not any(name in columns for columns in names.values()):
            names.setdefault(state, []).append(name)
    for state, columns in names.items():
        cures = Cure("drop", columns[:3]), Cure("keep", columns[:3])
        code = " (or list a code under missing)" if state.startswith("far") else ""
        yield Advice(
            f"{listing(columns)}: {state}; does that follow from the outcome? Then {cures[0]}{code}, else {cures[1]}",
            cures,
        )


def _values_of_one_class(
    tables: Sequence[Table], recipe: Recipe, labels: Array, answered: Set[str]
) -> Iterator[tuple[str, str, int]]:
    """Yield columns of texts with a value whose training rows are of one class alone, that value, and the class."""
    shares = np.bincount(labels) / len(labels)
    for column in recipe["columns"]:
        name = column["name"]
        if column["kind"] != "category" or name in answered:
            continue
        values = np.concatenate(
            [table.columns[name].value_names[table.parts["train"]] for table in tables]
        )
        for value in column["categories"]:
            counts = np.bincount(labels[values == value], minlength=len(shares))
            only = int(counts.argmax())
            rows = int(counts.sum())
            is_one_class = counts[only] == rows >= FEWEST_CASES
            if is_one_class and shares[only] ** rows < _CHANCE_OF_VALUES:
                yield name, value, only
                break


def _are_missing(tables: Sequence[Table], name: str) -> Array:
    """Return which training rows have no value, [rows of all clients]; none has one where a client lacks the column."""
    masks = []
    for table in tables:
        mask = np.ones(len(table), dtype=bool)
        if name in table.columns:
            mask = ~table.columns[name].present
        masks.append(mask[table.parts["train"]])
    return np.concatenate(masks)


def _are_far_off(tables: Sequence[Table], name: str, extremes: Far) -> Array:
    """Return which training rows have a number that is far from all others of their client, [rows of all clients]."""
    masks = []
    for table in tables:
        mask = np.zeros(len(table), dtype=bool)
        for rows in extremes.get((table.name, name), {}).values():
            mask[rows] = True
        masks.append(mask[table.parts["train"]])
    return np.concatenate(masks)


def _starts(clients: Sequence[Client], step: int) -> list[int]:
    """Return for each client its first training row among every `step`-th of all behind each other."""
    offsets = np.cumsum([0, *(len(client.train) for client in clients)])[:-1]
    return [int(-rows % step) for rows in offsets]


def _telling_area(values: Array, classes: Array) -> float:
    """Return the area under the ROC curve of numbers for two classes, or 1 minus it if that is larger."""
    area = auc_of(values, classes)
    return max(area, 1 - area)


def auc_of(values: Array, classes: Array) -> float:
    """Return the area under the ROC curve of numbers for two classes; .5 without both classes.

    It is the statistic of Mann and Whitney (1947), with mean ranks for ties.
    """
    cases = int((classes == 1).sum())
    if not 0 < cases < len(classes):
        return 0.5
    ranks = mean_ranks(values)
    above = ranks[classes == 1].sum() - cases * (cases + 1) / 2
    return float(above / (cases * (len(classes) - cases)))


def mean_ranks(values: Array) -> Array:
    """Return the rank of each number, from 1; equal ones have their mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def _ask_units(recipe: Recipe, settings: Tables) -> Iterator[str]:
    """Ask of all columns at once whose numbers at one client may have another unit."""
    columns_of: dict[str, list[str]] = {}
    for note in recipe["notes"]:
        column, _, doubt = note.partition(": numbers at ")
        if note.endswith("the same unit?") and column not in settings.keep:
            client = doubt.partition(" are about ")[0]
            columns_of.setdefault(client, []).append(column)
    for client, names in columns_of.items():
        cures = Cure("keep", names[:3]), Cure("drop", names[:3])
        yield Advice(
            f"{listing(names)}: numbers at {client} are many times those of the others, or a small part; the same unit? Then "
            f"{cures[0]}, else correct that file or say {cures[1]}",
            cures,
        )


def _ask_unit_of_the_label(
    tables: Sequence[Table], recipe: Recipe, settings: Tables
) -> Iterator[str]:
    """Ask about the client whose times or exposures are, on average, most times those of the others, or the smallest part."""
    label = recipe["label"]
    name = label.get("time") or label.get("exposure")
    if name is None or name in settings.keep:
        return
    means: dict[str, float] = {}
    for table in tables:
        values = table.exposure
        if table.followup is not None:
            values = table.followup[:, 1]
        if values is not None and len(table) >= ENOUGH_TO_TELL:
            means[table.name] = float(values.mean())
    if len(means) < 2:
        return
    factors = {}
    for client, mean in means.items():
        others = [means[other] for other in means if other != client]
        factors[client] = mean / float(np.median(others))
    furthest = max(factors, key=lambda client: abs(np.log(factors[client])))
    if abs(np.log(factors[furthest])) > np.log(UNIT):
        cure = Cure("keep", [name])
        times = spell(float(f"{factors[furthest]:.2g}"))
        yield Advice(
            f"{name}: numbers at {furthest} are about {times} times those of the others; the same unit? Then {cure}, else correct "
            "that file",
            [cure],
        )


def _ask_codes(numbers: Far, answered: Set[str]) -> Iterator[str]:
    """Ask whether numbers that people write for "missing", far from all others in many rows, mean it."""
    codes_of: dict[str, list[str]] = {}
    total: dict[str, int] = {}  # rows by code, of all columns
    for (_, name), extremes in numbers.items():
        for value, rows in extremes.items():
            code = spell(value)
            may_be_code = len(rows) >= _FEWEST_CODES and CODE.fullmatch(code)
            if name in answered or not may_be_code:
                continue
            codes = codes_of.setdefault(name, [])
            if code not in codes:
                codes.append(code)
            total[code] = total.get(code, 0) + len(rows)
    if not codes_of:
        return
    # In the order of columns, as they are named.
    values = [*dict.fromkeys(chain.from_iterable(codes_of.values()))]
    named = {name: [*map(float, codes)] for name, codes in [*codes_of.items()][:3]}
    cures = Cure("missing", named), Cure("keep", [*named])
    is_, does_it = "are", "do they"
    if len(values) == 1:
        is_, does_it = "is", "does it"
    yield Advice(
        f"{listing([*codes_of])}: {' and '.join(values[:3])} in {sum(total.values())} rows {is_} far from all other numbers; "
        f"{does_it} mean missing? Then {cures[0]}, else {cures[1]}",
        cures,
    )
