"""Ask what columns mean where cells, names or rows allow two readings: words for missing, codes, lists, weights, times, scales."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.base.clients import Client
from coterie.base.cures import SHOWN, Advice, Cure, drop_or_keep
from coterie.base.spelling import fold, listing, names_event
from coterie.config.data import Tables
from coterie.data.tables.cells import Column, Table
from coterie.data.tables.questions import FEWEST_CASES, auc_of
from coterie.data.tables.recipe import ColumnRecipe, Recipe

# The thresholds were chosen on 65 public tables with 1,179 values and 64 tables with a time, so that a question is asked in a few
# per cent of tables without a reason, and in most with one.

# Share of a column's rows from which on a word for missing matters.
_DOUBTFUL = 0.05
# Share of the cells with a separator from which on a column may hold lists.
_LISTED = 0.2
# Different words for each different cell, up to which the words of lists repeat.
_REPEATING = 1 / 3
# Different cells from which on that can be told.
_FEWEST_CELLS = 10
_SEPARATORS = (";", "|", ",", "/", "+")

# Means of a body's weight, to which those of a survey are not alike.
_KILOGRAMS = (30.0, 120.0)
_WEIGHTS = re.compile(
    "(.* )?(wt|weight|ipw|iptw|pweight)|(.* )?wtmec.*|.*[a-z]weight|sampling weight.*"
)

# Different times of a column.
_FEWEST_TIMES = 10
_TIME = re.compile(
    "(.* )?(time|tte|duration|follow ?up)( .*)?|futime|lenfol|(survival|os|pfs|dfs) .*|.* to .*"
)
_MAY_BE_TIME = re.compile("t|days?|weeks?|months?|stop")
# Areas below which a time may end with the event, beside a label that is called by one and beside another.
_BESIDE_EVENT, _BESIDE_OTHER = 0.55, 0.5
# The same of a name that says little, and of any name beside an event.
_WEAK, _ANY = 0.45, 0.25

_OUTCOMES = re.compile(
    "label|target|outcome|mortality|expired?|(hospital )?expire flag|readmi(t|tted|ssion)|(in hospital )?death|discharge .*"
)
# Area under the ROC curve from which on another outcome goes with the label.
_RELATED = 0.65
# Standard errors of both slopes.
_REVERSED = 4.0
# Squares of a scaled column, and error of a slope, below which there is nothing but rounding.
_CONSTANT = 1e-9

Array = NDArray[Any]


def ask_about_meanings(
    clients: Sequence[Client],
    tables: Sequence[Table],
    recipe: Recipe,
    settings: Tables,
) -> Iterator[str]:
    """Yield questions about what columns mean; arguments are those of `questions.ask_about`."""
    yield from _ask_words_for_missing(tables, recipe, settings)
    yield from _ask_padded_numbers(tables, recipe, settings)
    yield from _ask_lists(tables, recipe, settings)
    yield from _ask_weights(tables, recipe, settings)
    labels = _labels(clients)
    if len(recipe["label"]["classes"]) == 2:
        yield from _ask_times(tables, labels, recipe, settings)
        yield from _ask_other_outcomes(tables, labels, recipe, settings)
        yield from _ask_other_labels(tables, recipe, settings)
    yield from _ask_reversed_scales(clients, tables, recipe, settings)


def _labels(clients: Sequence[Client]) -> Array:
    return np.concatenate([np.asarray(client.train.labels) for client in clients])


def _columns(recipe: Recipe, kind: str) -> list[str]:
    return [c["name"] for c in recipe["columns"] if c["kind"] == kind]


def _numbers(tables: Sequence[Table], name: str) -> Array:
    """The numbers of a column in the training rows of all clients, NaN where missing, [rows]."""
    parts = []
    for table in tables:
        parts.append(table.columns[name].numbers_in(table.parts["train"]))
    return np.concatenate(parts)


def _ask_words_for_missing(
    tables: Sequence[Table], recipe: Recipe, settings: Tables
) -> Iterator[str]:
    """Ask whether None, NA or unknown among texts say that nothing is known, or are a value."""
    label = recipe["label"]["column"]
    # Of the label any such cell matters: it would be a class of its own.
    shares = dict.fromkeys(_columns(recipe, "category"), _DOUBTFUL)
    if not settings.classes:
        shares[label] = 0.0
    found: dict[str, list[str]] = {}
    rows_of: dict[str, int] = {}
    for name, share in shares.items():
        columns = [table.columns[name] for table in tables]
        if not any(column.kind == "text" for column in columns):
            continue
        words = Counter[str]()
        for column in columns:
            words.update(dict(column.words))
        if words.total() > share * sum(map(len, columns)):
            found[name], rows_of[name] = sorted(words), words.total()
    if not found:
        return
    shown = dict(list(found.items())[:SHOWN])
    written = listing([*dict.fromkeys(w for words in shown.values() for w in words)])
    cures = Cure("missing", shown), Cure("not_missing", shown)
    yield Advice(
        f"{listing([*found])}: {written} in {sum(rows_of[name] for name in shown)} cells; do they say that nothing is known? Then "
        f"{cures[0]}, else {cures[1]}",
        cures,
    )


def _ask_padded_numbers(
    tables: Sequence[Table], recipe: Recipe, settings: Tables
) -> Iterator[str]:
    """Ask whether numbers with zeros in front are codes."""
    names = []
    for name in _columns(recipe, "number"):
        columns = [table.columns[name] for table in tables]
        filled = [column.padded for column in columns if column.kind == "number"]
        are_padded = len(filled) > 0 and all(filled)
        if are_padded and name not in settings.keep:
            names.append(name)
    if names:
        cures = Cure("categorical", names[:SHOWN]), Cure("keep", names[:SHOWN])
        yield Advice(
            f"{listing(names)}: numbers with zeros in front; are they codes? Then {cures[0]}, else {cures[1]}",
            cures,
        )


def _ask_lists(
    tables: Sequence[Table], recipe: Recipe, settings: Tables
) -> Iterator[str]:
    """Ask whether cells hold several words, of which each is a category."""
    for name in _columns(recipe, "category"):
        if name in settings.lists or name in settings.categorical:
            continue
        separator = _separator_of([table.columns[name] for table in tables])
        if not separator:
            continue
        cures = Cure("lists", {name: separator}), Cure("categorical", [name])
        yield Advice(
            f"{name}: cells hold several words with {separator!r} between them; is each word a category? Then {cures[0]}, "
            f"else {cures[1]}",
            cures,
        )


def _separator_of(columns: Sequence[Column]) -> str:
    """Return what stands between the words of many cells, where the words repeat; empty for nothing."""
    cells = Counter[str]()
    for column in columns:
        cells.update(text for text in column.value_names if text is not None)
    if len(cells) < _FEWEST_CELLS:
        return ""
    for separator in _SEPARATORS:
        rows = sum(n for cell, n in cells.items() if separator in cell)
        words = {word.strip() for cell in cells for word in cell.split(separator)}
        if rows >= _LISTED * cells.total() and len(words) <= _REPEATING * len(cells):
            return separator
    return ""


def _ask_weights(
    tables: Sequence[Table], recipe: Recipe, settings: Tables
) -> Iterator[str]:
    """Ask of positive numbers under a survey's name for weights whether they are inputs."""
    names = []
    for name in _columns(recipe, "number"):
        if name in settings.keep or not _WEIGHTS.fullmatch(fold(name)):
            continue
        numbers = _numbers(tables, name)
        numbers = numbers[~np.isnan(numbers)]
        low, high = _KILOGRAMS
        are_positive = len(numbers) > 0 and numbers.min() > 0
        if are_positive and not low <= numbers.mean() <= high:
            names.append(name)
    if names:
        about = "a survey's weights of rows? They say how rows were drawn and nothing of a patient; without them all rows count alike."
        question = drop_or_keep(names, f"{listing(names)}: {about}")
        columns = [table.columns[names[0]].numbers for table in tables]
        known = [
            numbers is not None and bool((numbers >= 0).all()) for numbers in columns
        ]
        if settings.weights is None and all(known):
            count = Cure("weights", names[0])
            said = f"{question}. To count rows by it, say {count}"
            question = Advice(said, (*question.cures, count))
        yield question


def _ask_times(
    tables: Sequence[Table], labels: Array, recipe: Recipe, settings: Tables
) -> Iterator[str]:
    """Ask of numbers that end early where the outcome occurs whether they are the time until it, or until the follow-up ended."""
    label = recipe["label"]["column"]
    names = []
    for name in _columns(recipe, "number"):
        numbers = _numbers(tables, name)
        present = ~np.isnan(numbers)
        times, cases = numbers[present], labels[present]
        counts = np.bincount(cases.astype(np.int64), minlength=2)
        if name in settings.keep or counts.min() < FEWEST_CASES or times.min() < 0:
            continue
        if len(np.unique(times)) < _FEWEST_TIMES:
            continue
        if auc_of(times, cases) < _limit(name, label):
            names.append(name)
    if names:
        happened = recipe["label"]["classes"][1]
        if happened == label:
            happened = "1"  # an event is named by its column, and is 1 there
        where = f"small where {label} is {happened}"
        about = f"{where}; is it a time until that, or until the follow-up ended, which is known only afterwards?"
        if settings.event is None:
            about += f' To predict when, say time = "{names[0]}", event = "{label}".'
        yield drop_or_keep(names, f"{listing(names)}: {about}")


def _limit(name: str, label: str) -> float:
    """The area under the ROC curve below which a column of this name may be the time until the label's event."""
    folded, is_event = fold(name), names_event(label)
    if _TIME.fullmatch(folded):
        if is_event:
            return _BESIDE_EVENT
        return _BESIDE_OTHER
    if _MAY_BE_TIME.fullmatch(folded):
        return _WEAK
    if is_event:
        return _ANY
    # Beside another label a strong predictor, such as the highest pulse of a healthy heart, looks the same.
    return 0.0


def _ask_other_outcomes(
    tables: Sequence[Table], labels: Array, recipe: Recipe, settings: Tables
) -> Iterator[str]:
    """Ask of a column whose name is an outcome's, and which goes with the label, whether it is known beforehand."""
    names = []
    for spec in recipe["columns"]:
        name = spec["name"]
        folded = fold(name)
        is_outcome = folded != "status" and names_event(name)
        if _OUTCOMES.fullmatch(folded):
            is_outcome = True
        if name in settings.keep or not is_outcome:
            continue
        area = _best_area(tables, spec, labels)
        if max(area, 1 - area) >= _RELATED:
            names.append(name)
    if names:
        about = "another outcome among the inputs? What is known only afterwards must not be used."
        yield drop_or_keep(names, f"{listing(names)}: {about}")


def _ask_other_labels(
    tables: Sequence[Table], recipe: Recipe, settings: Tables
) -> Iterator[str]:
    """Ask of the other columns of the label's array, if all hold 0 and 1: they may be further labels of a row, and no inputs.

    An array `a` of an npz file is read as columns a.0, a.1, ... Where one of them holds other numbers, inputs and the label lie in
    one array.
    """
    array, dot, number = recipe["label"]["column"].rpartition(".")
    if not (dot and number.isdigit()):
        return
    others = []
    for spec in recipe["columns"]:
        of_array, _, position = spec["name"].rpartition(".")
        if of_array == array and position.isdigit():
            others.append(spec)
    if not all(_is_yes_or_no(tables, spec) for spec in others):
        return
    names = [spec["name"] for spec in others if spec["name"] not in settings.keep]
    if names:
        # Whoever drops one of an array drops all: the cures name every column.
        drop, keep = Cure("drop", names), Cure("keep", names)
        about = f"another outcome of {array!r}, as the label is? What is known only afterwards must not be used."
        yield Advice(
            f"{listing(names)}: {about} Then {drop}, else {keep}", (drop, keep)
        )


def _is_yes_or_no(tables: Sequence[Table], spec: ColumnRecipe) -> bool:
    """Return True for a column of nothing but 0 and 1 in training rows."""
    if spec["kind"] != "number":
        return False
    numbers = _numbers(tables, spec["name"])
    present = numbers[~np.isnan(numbers)]
    return bool(np.isin(present, (0, 1)).all())


def _best_area(
    tables: Sequence[Table], spec: Mapping[str, Any], labels: Array
) -> float:
    """The area under the ROC curve of a column of numbers, or of that category of texts which tells most."""
    if spec["kind"] == "number":
        numbers = _numbers(tables, spec["name"])
        present = ~np.isnan(numbers)
        return auc_of(numbers[present], labels[present])
    values = np.concatenate(
        [t.columns[spec["name"]].value_names[t.parts["train"]] for t in tables]
    )
    areas = [
        auc_of((values == v).astype(np.float64), labels) for v in spec["categories"]
    ]
    return max((max(area, 1 - area) for area in areas), default=0.5)


def _ask_reversed_scales(
    clients: Sequence[Client],
    tables: Sequence[Table],
    recipe: Recipe,
    settings: Tables,
) -> Iterator[str]:
    """Ask of numbers that go up with the label at one client, and down at all others together, or the other way round.

    Only where other columns show that the label means the same there. Else it may be the label that is coded backwards, which a
    comparison finds by its models.
    """
    label = recipe["label"]
    specs = [spec for spec in recipe["columns"] if spec["kind"] == "number"]
    if len(tables) < 2 or len(label["classes"]) > 2 or not specs:
        return
    scores = [_scores(*_slopes(clients, tables, spec)) for spec in specs]
    own, others = np.array(scores).transpose(1, 0, 2)  # [columns, clients]
    agreement = own * others
    apart = np.minimum(np.abs(own), np.abs(others)) * (agreement < 0)
    for j, spec in enumerate(specs):
        i, name = int(apart[j].argmax()), spec["name"]
        rest = agreement[:, i].sum() - agreement[j, i]
        if name in settings.keep or apart[j, i] <= _REVERSED or rest < _REVERSED:
            continue
        cures = Cure("keep", [name]), Cure("drop", [name])
        here, elsewhere = _direction(own[j, i]), _direction(others[j, i])
        yield Advice(
            f"{name}: goes {here} with {label['column']} at {tables[i].name}, and {elsewhere} elsewhere; "
            f"is its scale reversed there? Then correct that file or say {cures[1]}, else {cures[0]}",
            cures,
        )


def _scores(slopes: Array, errors: Array) -> tuple[Array, Array]:
    """Return each client's slope, and the weighted mean of the others' slopes, in standard errors, [clients] each; 0 for none."""
    own, others = np.zeros(len(slopes)), np.zeros(len(slopes))
    weights = errors**-2.0  # 0 of a client without a slope
    for i in range(len(slopes)):
        rest = np.arange(len(slopes)) != i
        total = weights[rest].sum()
        if weights[i] > 0 and total > 0:
            own[i] = slopes[i] * weights[i] ** 0.5
            others[i] = (weights[rest] * slopes[rest]).sum() / total**0.5
    return own, others


def _direction(z: float) -> str:
    return "up" if z > 0 else "down"


def _slopes(
    clients: Sequence[Client], tables: Sequence[Table], spec: ColumnRecipe
) -> tuple[Array, Array]:
    """Slope of the label on a scaled column at each client, by least squares, and its error, [clients]; infinite for too few rows."""
    slopes = np.zeros(len(tables))
    errors = np.full(len(tables), np.inf)
    for i, (client, table) in enumerate(zip(clients, tables, strict=True)):
        numbers, rows = table.columns[spec["name"]].numbers, table.parts["train"]
        if numbers is None:
            continue
        x = (numbers[rows] - spec["mean"]) / spec["scale"]
        present = ~np.isnan(x)
        y = np.asarray(client.train.labels, dtype=np.float64)[present]
        x = x[present]
        if len(x) < FEWEST_CASES:
            continue
        x = x - x.mean()
        squares = float(x @ x)
        if squares < _CONSTANT:
            continue
        slope = float(x @ y) / squares
        rest = y - y.mean() - slope * x
        error = (float(rest @ rest) / (len(x) - 2) / squares) ** 0.5
        slopes[i] = slope
        # A column that is the label itself has no error; it is asked about elsewhere.
        if error > _CONSTANT:
            errors[i] = error
    return slopes, errors
