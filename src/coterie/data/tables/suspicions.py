"""Warn of tables whose results would mislead: a column that says the label, copied rows, numbers that are codes, totals or slips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.base.clients import Client
from coterie.base.cures import Cure
from coterie.base.label_form import LabelForm
from coterie.base.rows import Part
from coterie.base.spelling import listing, names_rows, spell
from coterie.config.data import Tables
from coterie.data.tables.cells import Column, Table, are_whole, times_of
from coterie.data.tables.meanings import ask_about_meanings
from coterie.data.tables.questions import (
    CODE,
    LOOKED_AT,
    Far,
    ask_about,
    mean_ranks,
)
from coterie.data.tables.recipe import LabelRecipe, Recipe

_FEWEST_ROWS = 30  # training rows from which on no column says the label by chance
_SHARED = 0.2  # share of a client's rows that others have, too, from which on it is no coincidence
# Share of different rows at one client below which equal rows mean nothing.
_DISTINCT = 0.9
_FEWEST_LABELS = 100  # rows of which 1 % is one
# Share of the variance in 1 % of the rows from which on a tail is heavy; of a normal it is 8 %.
_HEAVY = 1 / 3

_YEARS = (1950, 2100)
_MOVING = 4.0  # standard errors of a trend within clients
_MOVED = 0.05  # difference of shares between the oldest and the newest third from which on it matters

_ENOUGH = 20  # numbers from which on one can be far from all others
_GAP = 3.0  # ranges of all others from which on a number is far from them
_FAR_OFF = 3  # numbers at one end that can be far from all others together, such as several codes
_FIRST = 128  # numbers by which most columns tell that theirs are many

Array = NDArray[Any]


def find_doubts(
    clients: Sequence[Client], tables: Sequence[Table], recipe: Recipe, settings: Tables
) -> tuple[list[str], list[str]]:
    """Return notes about the rows of all clients, encoded and as `tables`, for a machine that has them all; and questions: what may
    make results wrong, each with the setting for either answer, and nothing that is answered.
    """
    clients, recipe = _as_classes(clients, recipe)
    columns = _that_say_the_label([client.train for client in clients], recipe)
    filled = [
        name
        for name in _columns_of_one_class(clients, tables, recipe)
        if name not in columns
    ]
    doubts = {
        "says the label in all training rows; drop what is known only afterwards": columns,
        "has a value in the training rows of one class alone; drop what is known only afterwards": filled,
    }
    notes = [f"{listing(names)}: {doubt}" for doubt, names in doubts.items() if names]
    shares = _shares_of_copies(clients)
    if shares:
        copied = listing([f"{name} ({share:.0%})" for name, share in shares.items()])
        notes.append(f"rows that other clients have too: {copied}; the same patients?")
    extremes = _find_far_numbers(tables, recipe)
    notes += _note_patients_in_two_parts(tables, recipe)
    notes += _note_far_numbers(tables, recipe, extremes)
    notes += _note_codes(tables, recipe)
    notes += _note_heavy_tail(tables, recipe)
    notes += _note_drift(clients, tables, recipe)
    suspected = [*dict.fromkeys([*columns, *filled])]
    questions = ask_about(clients, tables, recipe, settings, extremes, suspected)
    for question in ask_about_meanings(clients, tables, recipe, settings):
        named = question.partition(": ")[0]
        # One question about a column is enough.
        if not any(earlier.startswith(f"{named}: ") for earlier in questions):
            questions.append(question)
    return notes, questions


def _note_codes(tables: Sequence[Table], recipe: Recipe) -> list[str]:
    """Return a note on columns that hold nothing but 1 and 2 at every client: codes, such as of a sex, which are read as numbers."""
    codes = []
    for column in recipe["columns"]:
        name = column["name"]
        if column["kind"] == "number" and all(
            _two_codes(table.columns[name]) == [1.0, 2.0] for table in tables
        ):
            codes.append(name)
    if not codes:
        return []
    return [f"{listing(codes)}: 1 and 2 are read as numbers; name codes in categorical"]


def _note_drift(
    clients: Sequence[Client], tables: Sequence[Table], recipe: Recipe
) -> list[str]:
    """Return a note on a year or a date with which the share of the last class moves within clients, and how to test on the newest."""
    classes = recipe["label"]["classes"]
    if len(classes) != 2:
        return []
    for name in tables[0].columns:
        z, old, new = _trend(clients, tables, name)
        if abs(z) > _MOVING and abs(new - old) >= _MOVED:
            cure = Cure("split_time", name)
            note = (
                f"{name}: {classes[1]} is {old:.0%} of the oldest third of training rows and {new:.0%} of the newest, which a random "
                f"split does not show; to test on the newest rows, say {cure}"
            )
            return [note]
    return []


def _trend(
    clients: Sequence[Client], tables: Sequence[Table], name: str
) -> tuple[float, float, float]:
    """The trend of the last class along a column of times within clients, in standard errors; its share of the oldest and newest third.

    Zeros for a column that is none at some client.
    """
    nothing = 0.0, 0.0, 0.0
    score, variance = 0.0, 0.0
    thirds = np.zeros((2, 2))  # cases and rows of the oldest and the newest third
    for client, table in zip(clients, tables, strict=True):
        column = table.columns.get(name)
        if column is None or not _are_times(column):
            return nothing
        times = times_of(column)
        if times is None:
            return nothing
        times = times[table.parts["train"]]
        present = ~np.isnan(times)
        cases = np.asarray(client.train.labels, dtype=np.float64)[present]
        if len(cases) < _FEWEST_ROWS:
            continue
        # Without a trend the cases' ranks are drawn without replacement from all: of mean 0 and this variance.
        ranks = mean_ranks(times[present])
        ranks -= ranks.mean()
        score += float(ranks @ cases)
        variance += float((ranks @ ranks) * cases.var(ddof=1))
        low, high = np.quantile(ranks, [1 / 3, 2 / 3])
        for k, rows in enumerate((ranks <= low, ranks >= high)):
            thirds[k] += cases[rows].sum(), rows.sum()
    if variance == 0:
        return nothing
    old, new = (thirds[:, 0] / thirds[:, 1]).tolist()
    return score / variance**0.5, old, new


def _are_times(column: Column) -> bool:
    """Return True for dates, and for whole numbers that are years."""
    if column.kind == "date":
        return True
    if column.kind != "number" or column.numbers is None:
        return False
    numbers = column.numbers[~np.isnan(column.numbers)]
    low, high = _YEARS
    return bool(low <= numbers.min() and numbers.max() <= high) and are_whole(numbers)


def _note_heavy_tail(tables: Sequence[Table], recipe: Recipe) -> list[str]:
    """Return a note that suggests a log scale, if 1 % of the rows are much of the variance of a label to regress on, and not on it."""
    if recipe["label"]["classes"]:
        return []
    name = recipe["label"]["column"]
    parts = [np.zeros(0)]
    for table in tables:
        column = table.columns[name].numbers
        if column is not None:
            parts.append(column[~np.isnan(column)])
    numbers = np.concatenate(parts)
    if len(numbers) < _FEWEST_LABELS or numbers.min() < 0:
        return []
    shares = []
    for values in (numbers, np.log1p(numbers)):
        squares = np.sort((values - values.mean()) ** 2)
        largest = squares[-(len(squares) // 100) :]
        shares.append(float(largest.sum() / max(squares.sum(), 1e-300)))
    if shares[0] < max(_HEAVY, 2 * shares[1]):
        return []
    note = f"label {name}: 1 % of the rows make up {shares[0]:.0%} of its variance and decide the squared error; on a log scale, "
    return [f"{note}with a column log(1 + {name}) as the label, all rows count"]


def _as_classes(
    clients: Sequence[Client], recipe: Recipe
) -> tuple[Sequence[Client], Recipe]:
    """Time to event as whether it happened, counts as rates: what a column can give away; other labels as they are."""
    form = LabelForm.of_recipe(recipe["label"])
    if form is None or not form.has_loss:
        return clients, recipe
    judged = []
    for client in clients:
        events = {
            name: Part(part.inputs, form.plain(part.labels))
            for name, part in client.parts()
        }
        judged.append(
            replace(
                client,
                train=events["train"],
                validation=events.get("validation"),
                test=events.get("test"),
            )
        )
    if form.kind == "count":
        plain = LabelRecipe(**{**recipe["label"], "task": "regression"})
        return judged, Recipe(**{**recipe, "label": plain})
    classes = ["no", recipe["label"]["column"]]
    label = LabelRecipe(**{**recipe["label"], "classes": classes, "values": ["0", "1"]})
    return judged, Recipe(**{**recipe, "label": label})


def _that_say_the_label(parts: Sequence[Part], recipe: Recipe) -> list[str]:
    """Return columns from which the label of every training row follows: the label in other words or in another unit."""
    labels = np.concatenate([np.asarray(part.labels) for part in parts])
    if len(labels) < _FEWEST_ROWS:
        return []
    rows = np.concatenate([np.asarray(part.inputs) for part in parts])
    classes = recipe["label"]["classes"]
    if classes and (labels == labels[0]).all():
        # Everybody had the event: there is no other class that a column could tell from it.
        return []
    if not classes:
        tells = _are_in_a_line_with(rows, labels)
    else:
        # The first rows show of most columns that they are not apart.
        tells = _are_apart_in(rows[:LOOKED_AT], labels[:LOOKED_AT])
        if tells.any():
            tells = _are_apart_in(rows, labels)
    names, place = [], 0
    for column in recipe["columns"]:
        says_it = False
        width = 1
        if column["kind"] == "number":
            says_it = bool(tells[place])
        else:
            width = len(column["categories"])
            categories = rows[:, place : place + width]
            if classes and width <= 2 * len(classes):
                says_it = _names_the_class(categories, labels)
        if says_it:
            names.append(column["name"])
        place += width
    return names


def _columns_of_one_class(
    clients: Sequence[Client], tables: Sequence[Table], recipe: Recipe
) -> list[str]:
    """Return columns that all training rows of one class, and no others, have a value of."""
    labels = np.concatenate([np.asarray(client.train.labels) for client in clients])
    if len(labels) < _FEWEST_ROWS or not recipe["label"]["classes"]:
        return []
    names = []
    for column in recipe["columns"]:
        name = column["name"]
        parts = [table.columns[name].present[table.parts["train"]] for table in tables]
        present = np.concatenate(parts)
        if present.all():
            continue
        filled, empty = np.unique(labels[present]), np.unique(labels[~present])
        if len(filled) == 1 and filled[0] not in empty:
            names.append(name)
    return names


def _are_in_a_line_with(rows: Array, labels: Array) -> Array:
    """Return for each column of `rows` [rows, columns] whether it is the label in another unit, bool [columns]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        y = labels - labels.mean(dtype=np.float64)
        x = rows - rows.mean(axis=0, dtype=np.float64)
        norms = np.sqrt((y @ y) * np.einsum("ij,ij->j", x, x))
        correlation = (y @ x) / norms
    is_constant = rows.std(axis=0) == 0
    return np.abs(np.where(is_constant, 0, correlation)) > 1 - 1e-6


def _are_apart_in(rows: Array, classes: Array) -> Array:
    """Return for each column of `rows` [rows, columns] whether the ranges of the classes do not touch, bool [columns]."""
    of_class = [rows[classes == c] for c in np.unique(classes)]
    lows = np.stack([class_rows.min(axis=0) for class_rows in of_class])
    highs = np.stack([class_rows.max(axis=0) for class_rows in of_class])
    order = lows.argsort(axis=0)
    lows = np.take_along_axis(lows, order, 0)
    highs = np.take_along_axis(highs, order, 0)
    return np.asarray((highs[:-1] < lows[1:]).all(axis=0))


def _names_the_class(categories: Array, classes: Array) -> bool:
    """Return True if all rows of a category [rows, categories], and all without one, have the same class."""
    codes = (categories @ np.arange(1, categories.shape[1] + 1)).astype(np.int64)
    pairs = codes * (int(classes.max()) + 1) + classes
    return len(np.unique(pairs)) == len(np.unique(codes))


def _find_far_numbers(tables: Sequence[Table], recipe: Recipe) -> Far:
    """Return the numbers of each column that are far from all others there, in the order of clients."""
    names = [column["name"] for column in recipe["columns"]]
    extremes: dict[tuple[str, str], dict[float, Array]] = {}
    for table in tables:
        for name in (recipe["label"]["column"], *names):
            column = table.columns[name]
            if column.kind != "number" or column.numbers is None:
                continue
            rows = {
                v: np.flatnonzero(column.numbers == v) for v in _far_off(column.numbers)
            }
            if rows:
                extremes[table.name, name] = rows
    return extremes


def _may_be_far(numbers: Array) -> bool:
    """Return False where the ends alone tell that no number is far from all others: more than a few lie in each half of the range,
    and no few below or at 0 end it.
    """
    if not len(numbers):
        return True
    low, high = numbers.min(), numbers.max()
    if low == 0 or high <= 0:
        return True
    # Halves before they are added: the sum of two large numbers may be infinite.
    middle, leading = low / 2 + high / 2, numbers[:_FIRST]
    few_below = _few_distinct(leading[leading < middle])
    few_above = _few_distinct(leading[leading > middle])
    few_negative = low < 0 and _few_distinct(leading[leading < 0])
    return bool(few_below or few_above or few_negative)


def _few_distinct(numbers: Array) -> bool:
    """Return True for at most `_FAR_OFF` different numbers."""
    return len({*numbers.tolist()}) <= _FAR_OFF


def _far_off(numbers: Array) -> list[float]:
    """Return the few numbers at either end that are far from all others.

    Far is more than `_GAP` ranges of all others. For a number that people write for "missing" one range is enough, and for a
    negative one that all others are not negative; for 0 that the others are all far above it, measured by their deviation.
    """
    numbers = numbers[~np.isnan(numbers)]
    if not _may_be_far(numbers):
        return []
    distinct = np.unique(numbers)
    most = min(_FAR_OFF, len(distinct) - 2)
    if most < 1:
        return []
    out: list[float] = []
    # From below, and from above.
    for ordered in (distinct, distinct[::-1]):
        ends = ordered[: _FAR_OFF + 1].tolist()
        other_end = ordered[-1].item()
        for k in range(most, 0, -1):
            is_wide = abs(ends[k - 1] - ends[k]) > abs(other_end - ends[k])
            if not is_wide and ends[k - 1] > 0:
                continue
            others = len(distinct) - k
            if _is_apart_from(ends[:k], ends[k], other_end, others, numbers):
                out += ends[:k]
                break
    return out


def _is_apart_from(
    ends: list[float], nearest: float, other_end: float, count: int, numbers: Array
) -> bool:
    """Return True if `ends` are far from `count` other numbers, which lie between `nearest` and `other_end`."""
    gap, spread = abs(ends[-1] - nearest), abs(other_end - nearest)
    if count >= _ENOUGH and gap > _GAP * spread:
        return True
    if ends == [0.0]:
        others = numbers[numbers != 0]
        if len(numbers) - len(others) < 2 or count < _ENOUGH:
            return False
        return bool(others.mean() > _GAP * others.std())
    negative = max(ends) < 0 <= min(nearest, other_end) and max(nearest, other_end) > 2
    if gap <= spread and not negative:
        return False
    return all(CODE.fullmatch(spell(end)) for end in ends)


def _note_far_numbers(tables: Sequence[Table], recipe: Recipe, far: Far) -> list[str]:
    """Return notes on numbers that are far from all others of their client, and on two ways to write yes and no."""
    label = recipe["label"]["column"]
    names = [label]
    for column in recipe["columns"]:
        if column["kind"] == "number":
            names.append(column["name"])
    # In how many columns a row has a number that is far from all others, and alone.
    counts: Counter[tuple[str, int]] = Counter()
    for table in tables:
        for name in names:
            for rows in far.get((table.name, name), {}).values():
                if len(rows) == 1:
                    counts[table.name, table.data_row(rows[0])] += 1
    notes = [
        f"{client}: data row {row} is far from all others in {n} columns; delete a row of totals, correct others"
        for (client, row), n in counts.items()
        if n > 1
    ]
    for name in names:
        where = []
        for table in tables:
            for value, rows in far.get((table.name, name), {}).items():
                row = table.data_row(rows[0])
                if len(rows) > 1:
                    more = f" and {len(rows) - 1} more"
                elif counts[table.name, row] == 1:
                    more = ""
                else:
                    continue  # its row was noted above
                where.append(f"{spell(value)} (data row {row}{more} at {table.name})")
        if where:
            cure = "correct a slip, name a code for missing under missing"
            notes.append(
                f"{name}: {listing(where)} far from all other numbers there; {cure}"
            )
        if name != label:
            notes += _note_two_spellings_of_no(tables, name)
    return notes


def _note_two_spellings_of_no(tables: Sequence[Table], name: str) -> list[str]:
    """Return a note on a column that is 0 and 1 at some clients, and 1 and 2 at others."""
    zeros_and_ones, ones_and_twos = [], []
    for table in tables:
        codes = _two_codes(table.columns[name])
        if codes == [0.0, 1.0]:
            zeros_and_ones.append(table.name)
        elif codes == [1.0, 2.0]:
            ones_and_twos.append(table.name)
    if not zeros_and_ones or not ones_and_twos:
        return []
    return [
        f"{name}: 0 and 1 at {listing(zeros_and_ones)} but 1 and 2 at {listing(ones_and_twos)}; the same codes?"
    ]


def _two_codes(column: Column) -> list[float]:
    """Return the two numbers that a column consists of; none if there are more, or fewer."""
    if column.kind != "number" or column.numbers is None:
        return []
    if not _few_distinct(column.numbers[:_FIRST]):
        return []
    codes: list[float] = np.unique(column.numbers[~np.isnan(column.numbers)]).tolist()
    return codes if len(codes) == 2 else []


def _note_patients_in_two_parts(tables: Sequence[Table], recipe: Recipe) -> list[str]:
    """Return notes on columns that name patients, of whom some have rows for training and for the test."""
    used = {column["name"] for column in recipe["columns"]}
    used.add(recipe["label"]["column"])
    where: dict[str, list[str]] = {}
    for table in tables:
        for name in table.columns:
            if name in used or not names_rows(name):
                continue
            values = table.columns[name].value_names
            if 2 * len(set(values)) < len(values):  # a code of few values
                continue
            train = set(values[table.parts.get("train", [])])
            test = set(values[table.parts.get("test", [])])
            if (train & test) - {None}:
                where.setdefault(name, []).append(table.name)
    cure = "say which rows belong together (group)"
    return [
        f"{name}: the same values in training and test rows at {listing(clients)}; {cure}"
        for name, clients in where.items()
    ]


def _shares_of_copies(clients: Sequence[Client]) -> dict[str, float]:
    """The share of its different rows that some other client has, too, of each client of which that is no coincidence.

    Where few columns with few values make rows equal by chance, a client has rows twice itself. So often do the more rows of all
    others equal one of its rows that the share must be `_SHARED` above what follows from that.
    """
    distinct_rows, counts = {}, {}
    for client in clients:
        hashes = _hash_rows(client)
        distinct_rows[client.name], counts[client.name] = np.unique(
            hashes, return_counts=True
        )
    everywhere, owners = np.unique(
        np.concatenate([*distinct_rows.values()]), return_counts=True
    )
    shared = everywhere[owners > 1]
    total = sum(int(of_client.sum()) for of_client in counts.values())
    shares = {}
    for name, of_client in counts.items():
        rows = int(of_client.sum())
        if len(of_client) < _DISTINCT * rows:
            continue
        repeated = of_client[of_client > 1].sum() / rows
        by_chance = 1 - (1 - repeated) ** ((total - rows) / max(1, rows - 1))
        share = float(np.isin(distinct_rows[name], shared).mean())
        if share >= by_chance + _SHARED:
            shares[name] = share
    return shares


def _hash_rows(client: Client) -> Array:
    """A number for each row, the same for equal ones."""
    numbers: list[int] = []
    for _, part in client.parts():
        columns = [np.asarray(column, dtype=np.float32) for column in part]
        rows = np.column_stack(columns)
        # A row as one value: its bytes.
        whole_row = np.dtype((np.void, rows.itemsize * rows.shape[1]))
        numbers += map(hash, rows.view(whole_row).ravel().tolist())
    return np.array(numbers)
