"""Time to event in tables: which columns say it, and the labels that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.cures import Advice, Cure
from coterie.base.errors import InputError, nearest
from coterie.base.hazards import CELLS, edge
from coterie.base.spelling import count, spell
from coterie.config.data import Tables
from coterie.data.tables.cells import Column, Table, complaint, example, number

Rows = NDArray[np.float64]

LONGEST = edge(CELLS - 1)
"""The longest time that intervals tell from a longer one, 1.1e12."""

_NUMBERS_OF = {
    "time": "such as days since the start",
    "entry": "such as days since the start",
    "exposure": "such as bed days",
    "label": "counts of events",
    "weights": "how much each row counts",
}


def take_followup(table: Table, settings: Tables) -> Table:
    """Return `table` without its columns of times, which `Table.followup` then holds, and with an event of 0 and 1; as it is without.

    Raises `InputError` that names file, row and cure for a time that is none.
    """
    if settings.event is None:
        return table
    event = event_of(table, str(settings.event), settings.event_is)
    followup, notes = times_of_rows(table, str(settings.time), settings.entry)
    taken = {settings.time, settings.entry}
    columns = {
        name: column for name, column in table.columns.items() if name not in taken
    }
    columns[str(settings.event)] = Column("number", event)
    return replace(
        table, columns=columns, followup=followup, notes=(*table.notes, *notes)
    )


def take_exposure(table: Table, settings: Tables) -> Table:
    """Return `table` without its column of exposure, which `Table.exposure` then holds; as it is without.

    Raises `InputError` that names file, row and cure for an exposure that is none, or a label that is no count.
    """
    if settings.exposure is None:
        return table
    name, label = settings.exposure, str(settings.label)
    exposure, counts = (
        _numbers(table, c, k) for c, k in ((name, "exposure"), (label, "label"))
    )
    for values, column, wrong, rule in (
        (
            exposure,
            name,
            exposure <= 0,
            "exposures are above 0: leave out rows in which nothing could be counted",
        ),
        (
            counts,
            label,
            (counts < 0) | (counts % 1 != 0),
            "counts are whole numbers from 0: drop exposure for a label that is none",
        ),
    ):
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"{table.source}: {column!r} is {values[row]:g} in data row {table.data_row(row)}; {rule}"
            )
    columns = {key: column for key, column in table.columns.items() if key != name}
    return replace(table, columns=columns, exposure=exposure)


def take_weights(table: Table, settings: Tables) -> Table:
    """Return `table` without its column of weights, which `Table.weights` then holds; as it is without.

    Raises `InputError` that names file, row and cure for a weight that is none.
    """
    name = settings.weights
    if name is None:
        return table
    columns = {key: column for key, column in table.columns.items() if key != name}
    return replace(table, columns=columns, weights=weights_of(table, name))


def weights_of(table: Table, name: str) -> Rows:
    """The weight of each row [rows]; errors are those of `take_weights`."""
    if table.weights is not None:
        return table.weights
    weights = _numbers(table, name, "weights")
    wrong = weights < 0
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{table.source}: {name!r} is {weights[row]:g} in data row {table.data_row(row)}; weights are 0 or more: correct it, "
            "or leave that row out"
        )
    if not weights.any():
        raise InputError(
            f"{table.source}: {name!r} is 0 in every row, so nothing can be learned of it; drop weights, or leave that client out"
        )
    return weights


def counts_of(table: Table, label: Mapping[str, Any]) -> Tensor:
    """Count and exposure as a model reads them, float32 [rows, 2]."""
    counts = table.columns[label["column"]].numbers
    if table.exposure is None or counts is None:
        raise InputError(f"{table.source} says no exposure of its counts")
    return torch.from_numpy(
        np.column_stack([counts, table.exposure]).astype(np.float32)
    )


def event_of(table: Table, name: str, event_is: Sequence[Any] = ()) -> Rows:
    """1 where the event happened, else 0 [rows].

    Args:
        table: The table.
        name: Its column that says so.
        event_is: Values that mean it; empty: it is 1, or true.
    """
    column = table.columns[name]
    if column.problem is not None:
        raise InputError(f"{table.source}: event {name!r} {complaint(*column.problem)}")
    names, codes = column.levels
    if (codes < 0).any():
        raise InputError(
            f"{table.source}: event {name!r} is missing in data row {table.data_row(np.argmin(codes))}; fill it in, or leave that "
            "row out"
        )
    wanted = {spelled for value in event_is for spelled in _spellings_of(value)}
    if wanted:
        if not wanted & set(names) and not _may_lack_the_event(column, wanted):
            widened = Cure("event_is", [*sorted(wanted), names[-1]])
            raise InputError(
                Advice(
                    f"{table.source}: event {name!r} is never {' or '.join(sorted(wanted))} (event_is); it is "
                    f"{', '.join(sorted(names)[:6])}: add those that mean the event, as {widened}",
                    [widened],
                )
            )
        means_event = np.array([value in wanted for value in names], dtype=float)
        return np.asarray(means_event[codes])
    usual = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}
    strange = [value for value in names if value.lower() not in usual]
    if not strange:
        of_names = np.array([usual[value.lower()] for value in names])
        return np.asarray(of_names[codes])
    row = int(np.flatnonzero(codes == names.index(strange[0]))[0])
    cures = [Cure("event_is", [value]) for value in names if value not in ("0", "2")]
    listed = ", ".join(names[:6])
    raise InputError(
        Advice(
            f"{table.source}: event {name!r} is {strange[0]!r} in data row {table.data_row(row)}, and must be 1 where it happened, 0 "
            f"where follow-up ended before; it is one of {listed}: say which mean the event, as {cures[-1]}. With several causes, the "
            "others then end follow-up",
            cures,
        )
    )


def _spellings_of(value: Any) -> tuple[str, ...]:
    """How a column may write a value that means the event: a truth value as a word, or as 0 or 1."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower(), str(int(value))
    if isinstance(value, int | float):
        return (spell(value),)
    return (str(value),)


def _may_lack_the_event(column: Column, wanted: Set[str]) -> bool:
    """Return True if no row of a client may have had the event, rather than say it in other words than those wanted."""
    names, _ = column.levels
    are_numbers = all(number(value) is not None for value in wanted)
    return len(names) == 1 or (are_numbers and column.kind == "number")


def times_of_rows(table: Table, time: str, entry: str | None) -> tuple[Rows, list[str]]:
    """Entry and time of each row [rows, 2], and notes."""
    end = _numbers(table, time, "time")
    start = np.zeros(len(end))
    if entry is not None:
        start = _numbers(table, entry, "entry")
    for values, name in ((end, time), (start, entry)):
        above = np.flatnonzero(values > LONGEST)
        if len(above):
            raise InputError(
                f"{table.source}: {name!r} is {values[above[0]]:g} in data row {table.data_row(above[0])}, longer than any follow-up: "
                "correct it, or leave that row out"
            )
        below = np.flatnonzero(values < 0)
        if len(below):
            raise InputError(
                f"{table.source}: {name!r} is {values[below[0]]:g} in data row {table.data_row(below[0])}; times begin at 0: "
                "correct it, or leave that row out"
            )
    notes = []
    at_start = end == 0
    if at_start.any() and not at_start.all():
        # A hazard needs time at risk: who is seen once is seen for half of the shortest time.
        smallest = float(end[~at_start].min())
        end = np.where(at_start, smallest / 2, end)
        rows = count(int(at_start.sum()), "row")
        notes.append(
            f"{table.name}: {time} is 0 in {rows}, taken as {smallest / 2:g}, half of the smallest"
        )
    late = np.flatnonzero(start >= end)
    if len(late):
        row = late[0]
        why = "so nothing was seen"
        if entry:
            why = f"and follow-up ends at {end[row]:g}"
        raise InputError(
            f"{table.source}: {entry or time!r} is {start[row]:g} in data row {table.data_row(row)}, {why}; who enters after the end "
            "was never at risk: correct it, or leave that row out"
        )
    return np.stack([start, end], 1), notes


def _numbers(table: Table, name: str, key: str) -> Rows:
    if name not in table.columns:
        raise InputError(
            f"{table.source} has no column {name!r} ({key}); {nearest(name, table.columns)}"
        )
    column = table.columns[name]
    if column.problem is not None:
        raise InputError(
            f"{table.source}: column {name!r} ({key}) {complaint(*column.problem)}"
        )
    if column.numbers is None:
        row, cell = example(column)
        raise InputError(
            f"{table.source}: column {name!r} ({key}) is {cell!r} in data row {table.data_row(row - 1)}, and must be numbers, "
            f"{_NUMBERS_OF[key]}: correct that column"
        )
    missing = np.isnan(column.numbers)
    if missing.any():
        raise InputError(
            f"{table.source}: {name!r} ({key}) is missing in data row {table.data_row(np.argmax(missing))}; fill it in, or leave "
            "that row out"
        )
    return np.asarray(column.numbers)


def followup_of(table: Table, event: str) -> Rows:
    """Entry, time and event of all rows [rows, 3], in the unit of the table."""
    happened = table.columns[event].numbers
    if table.followup is None or happened is None:
        raise InputError(f"{table.source} says no times of follow-up")
    return np.column_stack([table.followup, happened])


def labels_of(table: Table, label: Mapping[str, Any]) -> Tensor:
    """Entry, time and event as a model reads them, float32 [rows, 3]: times in horizons, follow-up cut at the last interval."""
    rows = followup_of(table, label["column"])
    rows[:, :2] /= label["horizon"]
    last = label["cuts"][-1]
    beyond = rows[:, 1] > last
    rows[beyond, 1], rows[beyond, 2] = last, 0.0
    return torch.from_numpy(rows.astype(np.float32))


def with_followup(
    table: Table, label: Mapping[str, Any], *, need: bool
) -> tuple[Table | None, list[str]]:
    """Return a table as it was read with its times taken out, as the recipe's label says, and notes.

    None in place of the table if it has no such label and none is needed: columns that lack, or, with a note, cells that say none.
    """
    if table.followup is not None or table.exposure is not None:
        return table, []
    name, time, entry = label["column"], label.get("time"), label.get("entry")
    exposure = label.get("exposure")
    named = [column for column in (name, time, entry, exposure) if column]
    lacking = [column for column in named if column not in table.columns]
    if lacking and not need:
        return None, []
    if lacking:
        raise InputError(
            f"{table.source} has no column {lacking[0]!r}, which the label needs; add it"
        )
    try:
        if exposure is not None:
            return take_exposure(table, Tables(label=name, exposure=exposure)), []
        settings = Tables(
            time=time,
            event=name,
            entry=entry,
            event_is=tuple(label.get("event_is", ())),
        )
        return take_followup(table, settings), []
    except InputError as error:
        if need:
            raise
        return None, [f"{error}; no labels were read"]
